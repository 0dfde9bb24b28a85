"""Processes and their parents over a death."""

from collections.abc import Callable
from pathlib import Path

from machine import Machine
from survival import scenario, survive

Make = Callable[..., Machine]

FORKS = """
NEXT="--fork copy $NEXT"
"""


def test_statuses_of_children_and_one_that_left(machine: Make, outlive: dict[str, Path]) -> None:
    """Three children that ended before the death, by exit and by signals, are waited for after
    it; a process whose parent ended goes on beside them.
    """
    before = "read -r never </dev/console"
    text = scenario("/bin/family /dax/stop", ["own"], early=FORKS, before=before)
    with machine(text, extra=outlive) as m:
        survive(m, 1)
        m.expect_past("family ok")
        m.expect_past("family: the one that left")


def test_a_program_with_many_mappings(machine: Make, outlive: dict[str, Path]) -> None:
    """Thirty thousand mappings: their paths are held once."""
    ready = "until [ -e /dax/ready ]; do usleep 50000; done"
    text = scenario("/bin/mappings 30000 /dax/stop /dax/ready", ["panic"], before=ready)
    with machine(text, extra=outlive) as m:
        survive(m, 1)
        m.expect_past("mappings ok")
