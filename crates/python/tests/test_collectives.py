"""Asking liboutlive_mpi.so: without it, and in a job of which a rank is killed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import outlive
import pytest
from outlive import collectives

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

from skip import skip  # noqa: E402

BUILT = [ROOT / "target" / how / "liboutlive_mpi.so" for how in ("release", "debug")]
PROGRAM = Path(__file__).with_name("programs") / "ask_collectives.py"


def test_without_the_library_nothing_is_served() -> None:
    assert collectives.library() is None
    assert collectives.active() is False
    for ask in (collectives.dead, lambda: collectives.absent(7)):
        with pytest.raises(outlive.Error, match="OL-101") as caught:
            ask()
        assert caught.value.code == 101
    with pytest.raises(TypeError, match="str is no communicator"):
        collectives.absent("world")  # type: ignore[arg-type]


def test_survivors_are_told_who_is_missing() -> None:
    mpich = ROOT / ".deps/mpich"
    library = os.environ.get("OUTLIVE_MPI_LIBRARY") or next(filter(Path.exists, BUILT), None)
    if library is None or not (mpich / "bin/mpirun").exists():
        skip("python-collectives", "no liboutlive_mpi.so, or no MPICH in .deps")
    settings = {
        "LD_PRELOAD": str(library),
        "LD_LIBRARY_PATH": str(mpich / "lib"),
        "PYTHONPATH": str(Path(outlive.__file__).parents[1]),
        "OUTLIVE_COLLECTIVES": "corrected-tree",
        "OUTLIVE_COLLECTIVES_RAIL": "tcp",
    }
    words = [mpich / "bin/mpirun", "-disable-auto-cleanup", "-n", "4"]
    words += [ROOT / "crates/mpi/tools/outlive-shield", "env"]
    words += [f"{name}={value}" for name, value in settings.items()]
    words += [sys.executable, PROGRAM, "2"]
    ended = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=90, check=False
    )
    # mpirun may put what two ranks say at once into one line.
    lines = sorted(re.findall(r"rank (?:(?!rank )[^\n])*", ended.stdout))
    want = [f"rank {rank}: 7 without [2], dead [2]" for rank in (0, 1, 3)]
    assert lines == want, ended.stdout + ended.stderr
