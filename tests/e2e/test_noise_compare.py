"""Protections of a core side by side, on this machine, under the load of the command itself.

Programs of others stay where they are (`--others leave`). No time is asserted."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from harness import OUTLIVE, until
from test_json import documented, fields
from test_quiet import CORES, differences, needs_root, snapshot

pytestmark = pytest.mark.alone

PEER = """#!/bin/sh
case "$*" in
"osnoise top --quiet --cpus {core} --duration 1s") echo "of the peer" ;;
*) echo "unknown: $*" >&2; exit 2 ;;
esac
"""


def words(tmp_path: Path, *more: object) -> list[str]:
    """The command."""
    line = [OUTLIVE, "noise", "compare", "--core", CORES[-1], "--service", CORES[0], "--disturb"]
    line += ["--others", "leave", "--journal", tmp_path / "journals", "--dir", tmp_path / "file"]
    return [str(word) for word in [*line, *more]]


@pytest.fixture(autouse=True)
def place(tmp_path: Path) -> None:
    """Where the load writes."""
    needs_root()
    (tmp_path / "file").mkdir()


def test_every_protection_is_measured_and_all_comes_back(tmp_path: Path) -> None:
    before = snapshot()
    (tmp_path / "bin").mkdir()
    rtla = tmp_path / "bin" / "rtla"
    rtla.write_text(PEER.format(core=CORES[-1]))
    rtla.chmod(0o755)
    env = os.environ | {"PATH": f"{rtla.parent}:{os.environ['PATH']}"}
    more = ["--samples", 200, "--rounds", 1, "--json"]
    done = subprocess.run(
        words(tmp_path, *more), capture_output=True, text=True, timeout=120, env=env
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    names = {mode["name"] for mode in answer["modes"]} | {name for name, _ in answer["skipped"]}
    assert names == {"normal", "taskset", "chrt", "isolated", "isolated-fifo"}
    # Root gets these on any machine.
    measured = [mode["name"] for mode in answer["modes"]]
    assert {"normal", "taskset", "isolated"} <= set(measured), answer["skipped"]
    assert answer["osnoise"] == "of the peer\n"
    assert all(answer["load"].values())
    by_name = {mode["name"]: mode for mode in answer["modes"]}
    # Daemons take the core from whoever is bound to it, and from none that has it alone.
    switches = {name: mode["interruptions"]["switches"] for name, mode in by_name.items()}
    assert switches["taskset"] > switches["isolated"], switches
    found = fields(answer)
    told = documented()["outlive.noise-compare/1"]
    known = all(mode["untouched"] for mode in answer["modes"])
    if not known:  # perf is not to be had, or every quantum was hit
        told = {name for name in told if not name.startswith("modes[].untouched.")}
        found = {name for name in found if not name.startswith("modes[].untouched.")}
    assert found == told, sorted(found ^ told)
    assert differences(before, snapshot()) == {}
    assert list((tmp_path / "journals").glob("*.journal")) == []
    assert list((tmp_path / "file").iterdir()) == []


def mine(text: str) -> list[str]:
    """Command lines that hold a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found


@pytest.mark.parametrize("wait", [0.0, 0.3])
def test_killed_while_it_isolates_the_machine_is_as_before(tmp_path: Path, wait: float) -> None:
    before = snapshot()
    journals = tmp_path / "journals"
    more = ["--modes", "isolated", "--samples", 5000, "--rounds", 9]
    with subprocess.Popen(
        words(tmp_path, *more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            until("changes", lambda: list(journals.glob("*.journal")))
            time.sleep(wait)
        finally:
            process.kill()
    # Nobody is told to restore: outlive quiet has seen that who started it is gone.
    until("its end", lambda: not mine(str(tmp_path)) and not mine(f"--parent {process.pid} "))
    assert differences(before, snapshot()) == {}
    assert list(journals.glob("*.journal")) == []
    assert list((tmp_path / "file").iterdir()) == []
