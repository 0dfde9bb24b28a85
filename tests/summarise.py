#!/usr/bin/env python3
"""Sums the suites of scripts/test.sh: ``N passed, N failed, N skipped``.

    python3 tests/summarise.py DIRECTORY

reads SUITE.log and SUITE.status (the exit status) for every suite there. Names
what was skipped (SKIP), what failed and may (FLAKY, see tests/flaky.py), and what failed in
the emulator and was run once more (AGAIN). Counts
come from the output of cargo test, pytest and unittest, else from lines that start
with PASS, FAIL or SKIP. A suite that counts nothing is one test, passed or
failed by its status; a suite that failed counts at least one failure. Ends with
1 if anything failed or nothing was run.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
CARGO = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.M)
PYTEST = re.compile(r"^=*\s*((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s", re.M)
UNITTEST = re.compile(r"^Ran (\d+) tests? in .*?\n\n(OK|FAILED)(?: \((.*)\))?$", re.M)
SHELL = re.compile(r"^(PASS|FAIL|SKIP) ", re.M)


@dataclass
class Count:
    """What one suite says."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, passed: int, failed: int, skipped: int) -> None:
        """Adds to it."""
        self.passed += passed
        self.failed += failed
        self.skipped += skipped

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def count(log: str, status: int) -> Count:
    """Counts one suite's output."""
    log = COLOUR.sub("", log)
    total = Count()
    for passed, failed, ignored in CARGO.findall(log):
        total.add(int(passed), int(failed), int(ignored))
    for words in PYTEST.findall(log):
        found = {word: int(n) for n, word in re.findall(r"(\d+) ([a-z]+)", words)}
        bad = found.get("failed", 0) + found.get("error", 0) + found.get("errors", 0)
        total.add(found.get("passed", 0), bad, found.get("skipped", 0))
    for ran, _, details in UNITTEST.findall(log):
        found = {word: int(n) for word, n in re.findall(r"(\w+)=(\d+)", details)}
        bad = found.get("failures", 0) + found.get("errors", 0)
        skipped = found.get("skipped", 0)
        total.add(int(ran) - bad - skipped, bad, skipped)
    if total == Count():  # else these lines are part of a test's own output
        for word in SHELL.findall(log):
            total.add(word == "PASS", word == "FAIL", word == "SKIP")
    # What tests/flaky-list allows is named and not counted as failed.
    allowed = min(total.failed, len(set(re.findall(r"^FLAKY (\S+):", log, re.M))))
    if status == 0:
        total.add(0, -allowed, allowed)
    if status != 0 and total.failed == 0:
        total.failed = 1
    if total == Count():
        total.passed = 1
    return total


def main() -> int:
    """The command."""
    directory = Path(sys.argv[1])
    total = Count()
    named = []
    for status in sorted(directory.glob("*.status"), key=lambda path: path.stat().st_mtime_ns):
        log = status.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
        one = count(log, int(status.read_text()))
        total.add(one.passed, one.failed, one.skipped)
        print(f"  {status.stem:<12} {one}")
        lines = COLOUR.sub("", log).splitlines()
        named += [line[line.index("SKIP ") :].strip() for line in lines if "SKIP " in line]
        named += [line for line in lines if line.startswith(("AGAIN ", "FLAKY "))]
    for line in dict.fromkeys(named):
        print(f"  {line}")
    print(total)
    return 1 if total.failed or total.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
