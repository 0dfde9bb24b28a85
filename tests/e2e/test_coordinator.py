"""Jobs that take turns on storage that they share, and what becomes of them without."""

import contextlib
import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import OUTLIVE, Job, kill, until

# So often that two jobs meet.
OFTEN = ("--levels", "memory,shared", "--redo-max", "2s")


@pytest.fixture
def jobs(tmp_path: Path, ring: Path) -> Iterator[list[Job]]:
    """Two jobs of one store."""
    found = []
    for name in ("a", "b"):
        directory = tmp_path / name
        directory.mkdir()
        job = Job(directory, ring, uuid.uuid4().hex, nodes=1, ranks=2, every=None)
        job.name, job.place = name, tmp_path / "store"
        found.append(job)
    yield found
    for job in found:
        job.gone()


@contextlib.contextmanager
def coordinator(store: Path) -> Iterator[subprocess.Popen]:
    """`outlive coordinator`, which is killed at the end."""
    process = subprocess.Popen(
        [OUTLIVE, "coordinator", "--store", str(store), "--ports", "20900-20919"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert "coordinating" in process.stderr.readline()
        address = json.loads((store / ".coordinator" / "address.json").read_text())
        assert 20900 <= int(address["address"].rsplit(":")[-1]) <= 20919
        yield process
    finally:
        process.kill()
        process.wait(10)
        process.stderr.close()


def turns(store: Path) -> dict:
    """What the coordinator that runs has answered, and which jobs it knows."""
    path = store / ".coordinator" / "state.json"
    return json.loads(path.read_text()) if path.exists() else {"jobs": [], "turns": {}}


def known(store: Path, pid: int) -> set[str]:
    """The jobs that the coordinator of this process knows."""
    state = turns(store)
    return {job["name"] for job in state["jobs"]} if state.get("pid") == pid else set()


def given(store: Path, pid: int) -> int:
    """Turns that the coordinator of this process has given."""
    state = turns(store)
    return state["turns"]["accepted"] if state.get("pid") == pid else 0


def test_two_jobs_take_turns_and_go_on_without_their_coordinator(jobs: list[Job]) -> None:
    store = jobs[0].place
    store.mkdir()
    with coordinator(store) as first:
        runs = []
        for job in jobs:
            program = job.program("--until", job.dir / "enough")
            options = ("--job", job.name, "--store", str(store), *OFTEN)
            runs.append((job, job.start(*options, program=program), program))
        until("both jobs are known", lambda: known(store, first.pid) == {"a", "b"})
        until("turns", lambda: given(store, first.pid) >= 6)
        # A second one is refused as long as this one serves.
        second = subprocess.run(
            [OUTLIVE, "coordinator", "--store", str(store)],
            capture_output=True,
            text=True,
            timeout=20,
        )
        assert second.returncode == 75 and "another coordinator" in second.stderr, second

    def kept(job: Job) -> int:
        report = store / job.name / "report.json"
        return json.loads(report.read_text())["checkpoints"]["stable"].get("shared", 0)

    before = [kept(job) for job in jobs]
    for job, number in zip(jobs, before, strict=True):
        until(f"{job.name} goes on alone", lambda job=job, number=number: kept(job) >= number + 2)
    with coordinator(store) as anew:
        until("both jobs come back", lambda: known(store, anew.pid) == {"a", "b"})
        until("turns again", lambda: given(store, anew.pid) >= 4)
        # A job that is killed holds up nobody.
        job, run, _ = runs.pop()
        run.process.kill()
        run.process.wait(10)
        run.end()
        since = given(store, anew.pid)
        until("the other has turns", lambda: given(store, anew.pid) >= since + 3)
        job, run, program = runs[0]
        (job.dir / "enough").touch()
        result = run.end()
        assert result.status == 0, result.err
        job.check(program)
    told = [entry for entry in result.report["warnings"] if "turns" in entry["reason"]]
    # Its coordinator's death, once.
    assert len(told) == 1, told


def test_a_stranger_is_not_heard(jobs: list[Job]) -> None:
    store = jobs[0].place
    store.mkdir()
    with coordinator(store) as process:
        key = store / ".coordinator" / "key"
        assert key.stat().st_mode & 0o077 == 0
        right = key.read_bytes()
        key.chmod(0o600)
        key.write_bytes(bytes(reversed(right)))
        job = jobs[0]
        enough = job.dir / "enough"
        options = ("--job", job.name, "--store", str(store), *OFTEN)
        run = job.start(*options, program=job.program("--until", enough))

        def kept() -> int:
            report = store / job.name / "report.json"
            if not report.exists():
                return 0
            return json.loads(report.read_text())["checkpoints"]["stable"].get("shared", 0)

        until("it goes on by itself", lambda: kept() >= 3)
        assert known(store, process.pid) == set()
        enough.touch()
        assert run.end().status == 0
    kill(process.pid)
