"""What the tests of the package share: round trips in memory, and `outlive run`."""

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from outlive import _state

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(__file__).with_name("programs")
sys.path.insert(0, str(ROOT / "tests"))
from skip import skip  # noqa: E402

BOUND_S = 120  # of every program started here


def binary() -> Path:
    """The command; whichever build there is."""
    asked = os.environ.get("OUTLIVE_BIN")
    builds = [ROOT / "target" / kind / "outlive" for kind in ("release", "debug")]
    found = [Path(asked)] if asked else [path for path in builds if path.exists()]
    return (found or builds)[0]


def carry(saved: Any, state: Any, version: int = 7) -> None:
    """Captures `saved` and restores `state` from it, as the job does, without one."""
    tree, regions, holds = _state.capture(saved)
    held = {name: ctypes.string_at(address, count) for name, address, count, _ in regions}
    assert len(held) == len(regions)
    assert all(1 <= len(name.encode()) <= 255 for name in held)
    del holds
    plan = _state.Plan(state, tree, {name: len(data) for name, data in held.items()}, version)
    assert {name for name, _, _ in plan.targets()} == set(held)
    for name, address, count in plan.targets():
        assert count == len(held[name])
        ctypes.memmove(address, held[name], count)
    plan.finish()


@dataclass
class Protected:
    """`outlive run` in a store of its own."""

    directory: Path

    def run(
        self,
        options: list[str],
        program: str,
        *arguments: str,
        launcher: tuple[str, ...] = (),
        fails: bool = False,
    ) -> tuple[dict, str]:
        """Runs one of the programs beside the tests; gives report and output."""
        report = self.directory / "report.json"
        command = [*launcher, sys.executable, str(PROGRAMS / program), *arguments]
        words = [str(binary()), "run", "--job", "test", "--store", str(self.directory / "store")]
        done = subprocess.run(
            [*words, "--report", str(report), *options, "--", *command],
            capture_output=True,
            text=True,
            timeout=BOUND_S,
        )
        assert (done.returncode != 0) == fails, f"{command}\n{done.stdout}\n{done.stderr}"
        return json.loads(report.read_text()), done.stdout


@pytest.fixture
def protected(tmp_path: Path) -> Protected:
    """A store of its own, or the test is skipped."""
    if not binary().exists():
        skip("outlive-run", "the command is not built; make build")
    return Protected(tmp_path)


def mpich(ranks: int) -> tuple[str, ...]:
    """`mpirun -n RANKS` of the MPICH wheel."""
    found = ROOT / ".deps" / "mpich" / "bin" / "mpirun"
    if not found.exists():
        skip("mpich", "no .deps/mpich; make deps")
    return (str(found), "-n", str(ranks))
