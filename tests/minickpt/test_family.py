"""Processes and their parents over a death."""

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LONG
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


# By the next boot somebody else has the lock of one child and the number of another.
TAKEN = """
NEXT="--fork copy $NEXT"
if [ $BOOT = 2 ]; then
    partial lock /dax/locked &
    until [ "$N" = "$(cat /dax/number)" ]; do
        echo $(($(cat /dax/number) - 1)) >/proc/sys/kernel/ns_last_pid
        sleep 1000 & N=$!
    done
fi
"""


@pytest.mark.skipif(not LONG, reason="in make test-minickpt")
def test_who_cannot_come_back_ends_alone(machine: Make, outlive: dict[str, Path]) -> None:
    """One whose lock another has now, and one whose number: told by name at once and in `last`,
    killed for their parent; their parent and a third child go on.
    """
    text = scenario(
        "/bin/partial /dax /dax/stop",
        ["own"],
        early=TAKEN,
        before="read -r never </dev/console",
        last="outlive minickpt last --memory /dax/memory; usleep 1000000",
    )
    with machine(text, extra=outlive) as m:
        m.expect("BOOT 2 ", 120)
        lock = r"process \d+ could not be kept: its lock on /dax/locked cannot be taken again"
        m.expect(f"OL-110.*{lock}", 240)
        m.expect(r"OL-110.*process \d+ could not be kept: its number", 60)
        m.expect("EXIT 0", 120)
        m.expect_past("partial ok")
        m.expect_past(r"^process \d+ lost +its lock on /dax/locked")
        m.expect_past(r"^process \d+ lost +its number")
