"""What the tests on machines of their own share."""

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import machines as made
from machines import Machines
from seed import seed
from skip import skip

__all__ = ["seed"]

OUTLIVE = Path(os.environ.get("OUTLIVE_BIN", ROOT / "target" / "release" / "outlive"))
HEAT2D = ROOT / "build" / "examples" / "heat2d"
MPICH = ROOT / ".deps" / "mpich" / "bin"
BOUND_S = 120


@dataclass
class Cluster:
    """Machines, a store that all see, and `outlive run` in their room."""

    machines: Machines
    dir: Path
    runs: int = field(default=0)

    def hosts(self, text: str) -> Path:
        path = self.dir / "hostfile"
        path.write_text(text)
        return path

    def line(self, *words: object, job: str = "heat") -> str:
        """The line of a shell that runs `outlive run` with these words, as a user writes it."""
        options = ["--job", job, "--store", self.dir / "store", "--node-storage", "/tmp/nodes"]
        run = [OUTLIVE, "run", *options, "-v", *words]
        return f"env PATH={MPICH}:$PATH {shlex.join(str(word) for word in run)}"

    def wait_until(self, words: str, file: Path) -> None:
        """Until a file has these words."""
        until = time.monotonic() + BOUND_S
        while not file.exists() or words not in file.read_text():
            text = file.read_text() if file.exists() else "nothing"
            assert time.monotonic() < until, f"'{words}' never came:\n{text}"
            time.sleep(0.05)

    def start(
        self, *words: object, job: str = "heat", within: tuple[object, ...] = (), **more: str
    ) -> subprocess.Popen[str]:
        """`outlive run` with these words, in the room; behind `within` if that is given."""
        self.runs += 1
        report = self.dir / f"report-{self.runs}.json"
        report.unlink(missing_ok=True)
        options = [
            *("--job", job, "--store", self.dir / "store", "--node-storage", "/tmp/nodes"),
            *("--report", report, "-v"),
        ]
        variables = {"PATH": f"{MPICH}:{os.environ['PATH']}", "HOME": "/root"}
        return subprocess.Popen(
            self.machines.words("room", *within, OUTLIVE, "run", *options, *words),
            cwd=self.dir,
            env=os.environ | variables | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def tell(self, status: int, *words: object) -> str:
        """What another command of outlive says in the room; it ends with this status."""
        done = subprocess.run(
            self.machines.words("room", OUTLIVE, *words), capture_output=True, text=True, timeout=30
        )
        said = done.stdout + done.stderr
        assert done.returncode == status, said
        return said

    def end(self, run: subprocess.Popen[str], status: int = 0) -> tuple[dict, str]:
        """Waits for it: its report and what it wrote."""
        try:
            text, _ = run.communicate(timeout=BOUND_S)
        except subprocess.TimeoutExpired:
            # All that could hold the pipe ends with the machines.
            self.machines.close()
            text, _ = run.communicate()
            pytest.fail(f"not over after {BOUND_S} s:\n{text}")
        assert run.returncode == status, text
        report = self.dir / f"report-{self.runs}.json"
        return json.loads(report.read_text()), text

    def wait_for(self, run: subprocess.Popen[str], words: str) -> str:
        """Reads what it writes until these words come."""
        assert run.stdout is not None
        seen = []
        bound = threading.Timer(BOUND_S, self.machines.close)
        bound.start()
        try:
            for line in run.stdout:
                seen.append(line)
                if words in line:
                    return "".join(seen)
        finally:
            bound.cancel()
        pytest.fail(f"'{words}' never came:\n{''.join(seen)}")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Four machines."""
    yield from made_for(tmp_path, slurm=False)


@pytest.fixture
def under_slurm(tmp_path: Path) -> Iterator[Cluster]:
    """The same, with Slurm."""
    yield from made_for(tmp_path, slurm=True)


@pytest.fixture
def under_switches(tmp_path: Path) -> Iterator[Cluster]:
    """Five machines with Slurm: two under one switch, three under another."""
    yield from made_for(tmp_path, slurm=True, switches={"s1": "n[1-2]", "s2": "n[3-5]"})


def made_for(
    tmp_path: Path, slurm: bool, switches: dict[str, str] | None = None
) -> Iterator[Cluster]:
    lacks = made.missing()
    if lacks is not None:
        skip("machines", lacks)
    lacks = made.missing_slurm() if slurm else None
    if lacks is not None:
        skip("slurm", lacks)
    for path in (HEAT2D, MPICH / "mpirun"):
        if not path.exists():
            skip("machines", f"no {path.relative_to(ROOT)}; make deps examples")
    machines = Machines(tmp_path, 5 if switches else 4, slurm, switches)
    try:
        if slurm:
            machines.wait_for_slurm()
        yield Cluster(machines, tmp_path)
    finally:
        machines.close()
