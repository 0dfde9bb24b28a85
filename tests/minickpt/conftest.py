"""What the tests of mini-checkpoints share: the kernel, the modules, the programs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]
from machine import Machine
from skip import skip

LONG = os.environ.get("OUTLIVE_MINICKPT", "") in ("long", "soak")
SOAK = os.environ.get("OUTLIVE_MINICKPT", "") == "soak"


@pytest.fixture(scope="session")
def prepared() -> None:
    """Kernel, modules and programs are there, or the test is skipped by name."""
    done = subprocess.run(
        [Path(__file__).parent / "prepare.sh"], capture_output=True, text=True, check=False
    )
    if done.returncode == 69:
        skip("minickpt", done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stdout, done.stdout


@pytest.fixture
def machine(prepared: None, tmp_path: Path) -> Callable[..., Machine]:
    """Makes a machine that runs a scenario; its serial.log stays in tmp_path."""
    return lambda scenario, **words: Machine(scenario, tmp_path, **words)
