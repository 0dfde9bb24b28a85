"""Nodes whose storage is really full, out of files, or read-only.

Each case mounts a small file system of memory as a node's storage, which takes root. The
same without one is in test_damage.py, by injection.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import Job, kill, until
from skip import skip

MIB = 1 << 20


@contextmanager
def small(path: Path, options: str) -> Iterator[None]:
    """A small file system at `path`, as long as this lasts."""
    if os.geteuid() != 0:
        skip("small-disk", "a file system of its own takes root")
    path.mkdir(parents=True, exist_ok=True)
    for parent in (path, *path.parents[:2]):
        parent.chmod(0o700)
    words = ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "outlive-test", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    if done.returncode != 0:
        skip("small-disk", f"cannot mount: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True, timeout=20)


def fill(path: Path) -> Path:
    """Takes all the room there is."""
    filler = path / "filler"
    with filler.open("ab", buffering=0) as file:
        for chunk in (MIB, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * chunk)
            except OSError:
                pass
    return filler


def use_up_names(path: Path) -> None:
    """Takes all the files that there may be."""
    (path / "many").mkdir()
    try:
        for number in range(100_000):
            (path / "many" / str(number)).touch()
    except OSError:
        return
    raise AssertionError("there is no end of files")


def make_read_only(path: Path) -> None:
    words = ["mount", "-o", "remount,ro", str(path)]
    # Refused while a file is being written.
    until("the remount", lambda: subprocess.run(words, timeout=20).returncode == 0)


@contextmanager
def node_one(job: Job, options: str = "size=64m") -> Iterator[Path]:
    """The storage of node 1 is a small file system."""
    job.store.mkdir(mode=0o700)
    job.home.mkdir(mode=0o700)
    with small(job.node(1), options):
        yield job.node(1)
        job.gone()


SPOILS: dict[str, tuple[Callable[[Path], object], str]] = {
    "full": (fill, "OL-401"),
    "no more files": (use_up_names, "OL-401"),
    "read-only": (make_read_only, "OL-402"),
}
OPTIONS = {"full": "size=8m", "no more files": "size=64m,nr_inodes=160", "read-only": "size=64m"}


@pytest.mark.parametrize("how", SPOILS)
def test_storage_that_is_no_good_from_the_start(job: Job, how: str) -> None:
    spoil, code = SPOILS[how]
    job.steps = 160
    with node_one(job, OPTIONS[how]) as storage:
        spoil(storage)
        levels = "memory,disk,partner,shared"
        result = job.goes_on("--levels", levels, when=job.saves(100, "memory", "shared"))
        assert result.failures == [] and code in result.codes(), result.err
        last = result.report["checkpoints"]["last"]
        assert last["memory"] >= 100 and last["shared"] >= 100, (last, result.err)
        named = [w for w in result.report["warnings"] if w["code"] == code]
        assert "node-1" in named[0]["entity"] and named[0]["remedy"], named


@pytest.mark.parametrize("how", SPOILS)
def test_storage_that_goes_bad_costs_no_readable_copy(job: Job, how: str) -> None:
    """Its partner is lost too: the job goes on from the copy that can be read."""
    job.hold(80, 20)
    spoil, code = SPOILS[how]
    job.steps = 300
    door = job.dir / "door"
    program = job.program("--pause", 85, door)
    with node_one(job, OPTIONS[how]) as storage:
        run = job.start(program=program, inject=("node:2@version=95",))
        until("the pause", Path(f"{door}.reached").exists)
        before = job.settled(20)
        spoil(storage)
        door.touch()
        result = run.end()
        assert result.status == 0, result.err
        job.check(program)
        failure = result.failure()
        assert failure["place"] == "node:2", result.err
        assert failure["version"] is not None and failure["version"] >= before, result.err
        assert code in result.codes(), result.err


def test_full_while_its_own_ranks_are_rebuilt(job: Job) -> None:
    """The node's keeper ends, so its memory is gone; its full disk is read, and serves."""
    job.hold(80, 20)
    job.steps = 200
    door = job.dir / "door"
    program = job.program("--pause", 85, door)
    with node_one(job, "size=8m") as storage:
        run = job.start(program=program)
        until("the pause", Path(f"{door}.reached").exists)
        before = job.settled(20)
        fill(storage)
        kill(run.pids("keeper")[1])
        door.touch()
        result = run.end()
        assert result.status == 0, result.err
        job.check(program)
        assert result.failure()["version"] >= before, result.err


def test_room_comes_back(job: Job) -> None:
    job.hold(299, 200)
    job.steps = 300
    door = job.dir / "door"
    program = job.program("--pause", 85, door)
    with node_one(job, "size=8m") as storage:
        filler = fill(storage)
        run = job.start(program=program)
        until("the pause", Path(f"{door}.reached").exists)
        filler.unlink()
        door.touch()
        result = run.end()
        assert result.status == 0, result.err
        assert result.report["checkpoints"]["last"]["partner"] >= 200, result.err
        # What was owed to the disk is there: the next run finds all of it.
        job.steps = 320
        again = job.survive()
        assert again.said("restored"), again.err
