"""mpi4py's own wheel over each MPI: its calls reach the layer, and its programs end."""

import re
import sys
from dataclasses import replace

import pytest
from conftest import PROGRAMS, ROOT, SHIELD, Mpi, library

PROGRAM = PROGRAMS / "four.py"


def python(mpi: Mpi, monkeypatch: pytest.MonkeyPatch) -> Mpi:
    """The MPI, told to mpi4py."""
    monkeypatch.setenv("MPI4PY_MPIABI", mpi.name)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(ROOT / ".deps" / mpi.name / "lib"))
    # Open MPI's mpirun hands on its own variables only.
    words = () if mpi.name == "mpich" else ("-x", "MPI4PY_MPIABI", "-x", "LD_LIBRARY_PATH")
    return replace(mpi, run=(*mpi.run, *words))


@pytest.mark.parametrize("last", [[], ["finalize"]], ids=str)
@pytest.mark.parametrize("victim", [-1, 2, 0])
@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_a_program_in_python_survives(
    monkeypatch: pytest.MonkeyPatch, name: str, victim: int, last: list[str]
) -> None:
    mpi = python(library(name), monkeypatch)
    if name == "mpich":
        options: tuple[str, ...] = ("-disable-auto-cleanup",)
        ended = mpi.start(
            4, SHIELD, sys.executable, PROGRAM, victim, *last, options=options, RAIL="tcp"
        )
    else:
        options = ("--with-ft", "ulfm")
        ended = mpi.start(4, sys.executable, PROGRAM, victim, *last, options=options)
    want = sorted(f"rank {rank}: right" for rank in range(4) if rank != victim)
    if last:
        want += sorted(f"rank {rank}: finalized" for rank in range(4) if rank != victim)
    # mpirun may put what two ranks say at once into one line.
    said = sorted(re.findall(r"rank \d+: (?:(?!rank )[^\n])*", ended.stdout))
    assert said == sorted(want), ended.stdout + ended.stderr
    # Open MPI's mpirun reports the death that was survived.
    assert ended.returncode == 0 or (name == "openmpi" and victim >= 0), ended.stderr
