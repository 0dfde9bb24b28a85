#!/usr/bin/env python3
"""Prints the report of `outlive run --report FILE` as a small table.

    scripts/report.py FILE [--failures N]

With --failures, ends with 1 unless the job finished after exactly N failures.
"""

import json
import sys

COLUMNS = (
    ("failure", "kind"),
    ("place", "place"),
    ("at version", "at_version"),
    ("detected", "detect_ms"),
    ("rebuilt", "rebuild_ms"),
    ("relaunched", "relaunch_ms"),
    ("from level", "level"),
    ("version", "version"),
    ("recomputed", "versions_lost"),
)


def cell(failure: dict, key: str) -> str:
    """One value, with its unit."""
    value = failure.get(key)
    if value is None:
        return "-"
    return f"{value:.0f} ms" if key.endswith("_ms") else str(value)


def table(report: dict) -> str:
    """The failures, one a line."""
    rows = [[title for title, _ in COLUMNS]]
    rows += [[cell(failure, key) for _, key in COLUMNS] for failure in report["failures"]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def main() -> int:
    """The command."""
    if len(sys.argv) not in (2, 4):
        print(__doc__, file=sys.stderr)
        return 64
    with open(sys.argv[1], encoding="utf-8") as file:
        report = json.load(file)
    if report.get("schema") != "outlive.report/1":
        print(f"report: unknown schema {report.get('schema')!r}", file=sys.stderr)
        return 65
    print(table(report))
    print(f"result: {report['result']}, restarts: {report['restarts']}")
    for error in report["errors"]:
        print(f"error: {error['code']} {error['text']}: {error['entity']}: {error['reason']}")
    if len(sys.argv) == 4:
        expected = int(sys.argv[3])
        if report["result"] != "finished" or len(report["failures"]) != expected:
            print(f"report: expected a finished job after {expected} failures", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
