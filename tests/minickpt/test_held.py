"""What open files hold in the kernel, over a death."""

from collections.abc import Callable
from pathlib import Path

from machine import Machine
from survival import scenario, survive

Make = Callable[..., Machine]

FORKS = """
NEXT="--fork copy $NEXT"
"""


def test_locks_and_special_descriptors(machine: Make, outlive: dict[str, Path]) -> None:
    """Locks of each kind are held; counters, timers, signals and what an epoll watches are as
    they were; pipes and pairs of sockets hold what they held.
    """
    before = "read -r never </dev/console"
    text = scenario("/bin/held /dax /dax/stop", ["own"], early=FORKS, before=before)
    with machine(text, extra=outlive) as m:
        survive(m, 1)
        m.expect_past("held ok")
