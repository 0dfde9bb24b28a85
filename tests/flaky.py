#!/usr/bin/env python3
"""Judges the failures of a suite by tests/flaky-list.

    python3 tests/flaky.py LOG STATUS

LOG is what pytest (with ``-rfE``) or cargo test said, STATUS its exit status. Ends with 0
if nothing failed, or all that failed is named there with a date of the last 30 days; else
with STATUS. Says ``FLAKY NAME: REASON`` for each failure that the list allows.
"""

import datetime
import re
import sys
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("flaky-list")
DAYS_MAX = 30
TESTS_FAILED = (1, 101)  # pytest's and cargo's; nothing else is about single tests
RUNNING = re.compile(r"\s+(?:Running .*/([\w-]+)-[0-9a-f]{16}\)|Doc-tests ([\w-]+))$")
COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class Entry:
    """A line of the list."""

    since: datetime.date
    name: str
    reason: str


def entries(text: str) -> list[Entry]:
    """The lines of the list; raises ValueError at one that is not as it should be."""
    found = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split(maxsplit=2)
        if len(words) < 3:
            raise ValueError(f"tests/flaky-list: '{line}' is not DATE NAME REASON")
        found.append(Entry(datetime.date.fromisoformat(words[0]), words[1], words[2]))
    return found


def expired(listed: list[Entry], today: datetime.date) -> list[str]:
    """What is wrong with the dates, one line each."""
    lines = []
    for entry in listed:
        age = (today - entry.since).days
        if age > DAYS_MAX:
            lines.append(f"tests/flaky-list: {entry.name} stands there for {age} days")
        if age < 0:
            lines.append(f"tests/flaky-list: {entry.name} is dated {entry.since}, after today")
        if entry.name.startswith("tests/minickpt/"):
            lines.append(f"tests/flaky-list: {entry.name}: tests/minickpt is run again anyway")
    return lines


def failures(log: str) -> list[str]:
    """The names of the tests that failed."""
    log = COLOUR.sub("", log)
    names = re.findall(r"^(?:FAILED|ERROR) ([^ ]+)", log, re.M)
    crate = "unknown"
    for line in log.splitlines():
        if match := RUNNING.match(line):
            crate = match[1] or match[2]
        if match := re.match(r"test (\S+)(?: - .*)? \.\.\. FAILED$", line):
            names.append(f"{crate}::{match[1]}")
    return names


def judge(log: str, status: int, listed: list[Entry]) -> tuple[int, list[str]]:
    """The status that counts, and lines to print."""
    if status == 0:
        return 0, []
    failed = failures(log)
    known = {entry.name: entry.reason for entry in listed}
    lines = [f"FLAKY {name}: {known[name]}" for name in failed if name in known]
    whole = status in TESTS_FAILED and "(signal: " not in log
    allowed = whole and failed and all(name in known for name in failed)
    return (0 if allowed else status), lines


def main() -> int:
    """The command."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 64
    log = Path(sys.argv[1]).read_text(encoding="utf-8", errors="replace")
    listed = entries(LIST.read_text(encoding="utf-8"))
    status, lines = judge(log, int(sys.argv[2]), listed)
    for line in lines:
        print(line)
    return status


if __name__ == "__main__":
    sys.exit(main())
