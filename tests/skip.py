#!/usr/bin/env python3
"""The one way to skip a test: by name, with a reason, and allowed or not.

    python3 tests/skip.py NAME REASON...

prints ``SKIP NAME: REASON`` and ends with 0. With CI=true a name that is not in
tests/skip-list is a failure: ``FAIL NAME: ...`` and 1. Python tests call
:func:`skip`.
"""

import os
import sys
from pathlib import Path

LIST = Path(__file__).with_name("skip-list")


def allowed(path: Path = LIST) -> dict[str, str]:
    """The names that may be skipped, each with its reason."""
    names = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, reason = line.partition(" ")
            if not reason.strip():
                raise ValueError(f"{path}: '{name}' needs a reason")
            names[name] = reason.strip()
    return names


def judge(name: str, reason: str, ci: bool, path: Path = LIST) -> tuple[bool, str]:
    """Whether the skip may be made, and the line to print."""
    if ci and name not in allowed(path):
        return False, f"FAIL {name}: skipped in CI and not in tests/skip-list ({reason})"
    return True, f"SKIP {name}: {reason}"


def skip(name: str, reason: str) -> None:
    """Skips the running pytest test, or fails it."""
    import pytest

    ok, line = judge(name, reason, os.environ.get("CI") == "true")
    if ok:
        pytest.skip(line)
    pytest.fail(line, pytrace=False)


def main() -> int:
    """The command."""
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 64
    ok, line = judge(sys.argv[1], " ".join(sys.argv[2:]), os.environ.get("CI") == "true")
    print(line)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
