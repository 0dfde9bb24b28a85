"""What the tests of mini-checkpoints share: the kernel, the modules, the programs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "tests"), str(HERE)]
from machine import WORK, Machine, with_libraries
from seed import seed as seed
from skip import skip

LONG = os.environ.get("OUTLIVE_MINICKPT", "") in ("long", "soak")
SOAK = os.environ.get("OUTLIVE_MINICKPT", "") == "soak"


def prepare(*words: str) -> None:
    """Runs prepare.sh; skips the test by name if something is missing."""
    done = subprocess.run(
        [HERE / "prepare.sh", *words], capture_output=True, text=True, check=False
    )
    if done.returncode == 69:
        skip("minickpt", done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stdout, done.stdout


@pytest.fixture(scope="session")
def prepared() -> None:
    """Kernel, modules and programs are there, or the test is skipped by name."""
    prepare()


@pytest.fixture
def machine(prepared: None, tmp_path: Path) -> Callable[..., Machine]:
    """Makes a machine that runs a scenario; its serial.log stays in tmp_path."""
    return lambda scenario, **words: Machine(scenario, words.pop("directory", tmp_path), **words)


@pytest.fixture(scope="session")
def outlive() -> dict[str, Path]:
    """The command with its libraries, as files of the machine."""
    named = os.environ.get("OUTLIVE_BIN")
    places = (
        [Path(named)] if named else [ROOT / f"target/{k}/outlive" for k in ("release", "debug")]
    )
    for place in places:
        if place.exists():
            small = WORK / "command/outlive"
            small.parent.mkdir(parents=True, exist_ok=True)
            # Another session of tests may be reading it.
            fresh = small.with_name(f"outlive-{os.getpid()}")
            subprocess.run(["strip", "-o", fresh, place], check=True)
            fresh.replace(small)
            return with_libraries(small)
    skip("minickpt", "the command is not built; make build")
    raise AssertionError("skip() ends the test")
