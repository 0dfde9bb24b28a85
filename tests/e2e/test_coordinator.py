"""Jobs that take turns on storage that they share, and what becomes of them when those who give
the turns die."""

import contextlib
import json
import os
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import OUTLIVE, Job, kill, until
from skip import skip
from test_memory_server import Servers

# So often that two jobs meet.
OFTEN = ("--levels", "memory,shared", "--redo-max", "2s")


def made(name: str, place: Path, ring: Path, store: Path) -> Job:
    """A job of this name in this store, which keeps its other files in a directory of its own."""
    directory = place / name
    directory.mkdir()
    job = Job(directory, ring, uuid.uuid4().hex, nodes=1, ranks=2, every=None)
    job.name, job.place = name, store
    return job


@pytest.fixture
def jobs(tmp_path: Path, ring: Path) -> Iterator[list[Job]]:
    """Two jobs of one store."""
    found = [made(name, tmp_path, ring, tmp_path / "store") for name in ("a", "b")]
    yield found
    for job in found:
        job.gone()


@pytest.fixture
def strangers(tmp_path: Path, ring: Path) -> Iterator[list[Job]]:
    """A job of a store, and two that have each a store of their own."""
    places = {"a": "store", "b": "of-b", "c": "of-c"}
    found = [made(name, tmp_path, ring, tmp_path / place) for name, place in places.items()]
    yield found
    for job in found:
        job.gone()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A directory of another file system."""
    other = Path("/dev/shm")
    if not os.access(other, os.W_OK) or other.stat().st_dev == tmp_path.stat().st_dev:
        skip("two-file-systems", f"{other} is none beside {tmp_path}")
    with tempfile.TemporaryDirectory(dir=other) as path:
        yield Path(path)


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


def kept(job: Job) -> int:
    """Versions that a job has in shared storage."""
    report = job.place / job.name / "report.json"
    if not report.exists():
        return 0
    return json.loads(report.read_text())["checkpoints"]["stable"].get("shared", 0)


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

    known_before = turns(store)["turns"]["accepted"]
    before = [kept(job) for job in jobs]
    for job, number in zip(jobs, before, strict=True):
        until(f"{job.name} goes on alone", lambda job=job, number=number: kept(job) >= number + 2)
    with coordinator(store) as anew:
        until("both jobs are known still", lambda: known(store, anew.pid) == {"a", "b"})
        # It goes on with what was known.
        since = given(store, anew.pid)
        assert since >= known_before
        until("turns again", lambda: given(store, anew.pid) >= since + 4)
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


def ask(store: Path, *words: str) -> None:
    """`outlive coordinator` for something that it does at once."""
    line = [OUTLIVE, "coordinator", "--store", str(store), *words]
    subprocess.run(line, check=True, capture_output=True, timeout=20)


def refused(job: Job) -> list[str]:
    """What a job has said of a coordinator that does not take it."""
    report = job.place / job.name / "report.json"
    warnings = json.loads(report.read_text())["warnings"] if report.exists() else []
    return [entry["code"] for entry in warnings if "refuses this job" in entry["reason"]]


def test_guests_take_turns_and_strangers_do_not(strangers: list[Job]) -> None:
    """A job of another store has an invitation; one has another's, and says it is the first; one of
    the store itself has another key."""
    own, guest, thief = strangers
    store = own.place
    store.mkdir()
    with coordinator(store) as process:
        invitations = {}
        for name in ("guest", "other"):
            invitations[name] = own.dir / f"{name}.invitation"
            ask(store, "--issue", f"{name}={invitations[name]}")
            assert invitations[name].stat().st_mode & 0o077 == 0
        stolen = invitations["other"]
        stolen.write_text(stolen.read_text().replace('"other"', '"guest"'))
        key = store / ".coordinator" / "key"
        assert key.stat().st_mode & 0o077 == 0
        key.write_bytes(bytes(reversed(key.read_bytes())))
        runs = []
        for job, invitation in ((own, None), (guest, invitations["guest"]), (thief, stolen)):
            program = job.program("--until", job.dir / "enough")
            options = ["--job", job.name, "--store", str(job.place), *OFTEN]
            options += ["--coordinator", str(invitation)] if invitation else []
            runs.append((job, job.start(*options, program=program), program))
        until("the guest is known", lambda: known(store, process.pid) == {"guest"})
        for job in (own, thief):
            until(f"{job.name} goes on by itself", lambda job=job: kept(job) >= 2)
            until(f"{job.name} is told", lambda job=job: refused(job) == ["OL-306"])
        since = given(store, process.pid)
        until("turns", lambda: given(store, process.pid) >= since + 2)
        assert known(store, process.pid) == {"guest"} and not refused(guest)
        # From then on it is a stranger too.
        ask(store, "--withdraw", "guest")
        until("it is not known any more", lambda: known(store, process.pid) == set())
        until("it is told", lambda: refused(guest) == ["OL-306"])
        last, number = given(store, process.pid), kept(guest)
        until("it goes on alone", lambda: kept(guest) >= number + 1)
        assert given(store, process.pid) == last
        for job, run, program in runs:
            (job.dir / "enough").touch()
            assert run.end().status == 0
            job.check(program)
    kill(process.pid)


@contextlib.contextmanager
def memory_server(place: Path, store: Path, jobs: list[Job]) -> Iterator[str]:
    """The address of a memory server for jobs of a store."""
    place.mkdir()
    servers = Servers(place)
    rights = [word for job in jobs for word in ("--job", job.name)]
    try:
        yield servers.server("--memory", "64MiB", *rights, "--store", str(store))[1]
    finally:
        servers.end()


def of_tiers(store: Path, kind: str) -> dict[str, dict]:
    """What the coordinator says of tiers of a kind: jobs, and turns."""
    tiers = turns(store).get("tiers", [])
    return {tier["tier"]: tier for tier in tiers if tier["tier"].startswith(kind)}


def where(store: Path) -> dict[str, set[str]]:
    """The tiers of each job that takes turns."""
    jobs = turns(store)["jobs"]
    return {job["name"]: {it["tier"] for it in job["tiers"]} for job in jobs}


def test_two_jobs_take_turns_on_a_memory_server(jobs: list[Job], tmp_path: Path) -> None:
    """They share nothing else: what each stores lies on its own nodes."""
    store = jobs[0].place
    store.mkdir()
    with memory_server(tmp_path / "server", store, jobs) as server, coordinator(store):
        runs = []
        for job in jobs:
            job.nodes, job.ranks, job.spares = 4, 4, 0
            program = job.program("--until", job.dir / "enough")
            options = ["--job", job.name, "--store", str(store), "--memory-server", server]
            options += ["--levels", "memory,memory-server:4", "--redo-max", "2s"]
            runs.append((job, job.start(*options, program=program), program))
        tier = lambda: list(of_tiers(store, "memory-server:").values())  # noqa: E731
        until("both are on one tier", lambda: tier() and tier()[0]["jobs"] == 2)
        assert len(turns(store)["tiers"]) == 1, turns(store)
        since = tier()[0]["turns"]["accepted"]
        until("turns", lambda: tier()[0]["turns"]["accepted"] >= since + 6)
        until("one waits for the other", lambda: tier()[0]["turns"]["later"] >= 1)
        for job, run, program in runs:
            (job.dir / "enough").touch()
            result = run.end()
            assert result.status == 0, result.err
            job.check(program)
            assert result.report["checkpoints"]["stable"]["memory-server:4"] >= 3


def test_who_shares_no_tier_is_never_made_to_wait(
    tmp_path: Path, ring: Path, elsewhere: Path
) -> None:
    """A job of the coordinator's store, and two guests with stores on another file system: the
    guests wait for each other, and the first for nobody."""
    places = {"a": tmp_path / "store", "b": elsewhere / "of-b", "c": elsewhere / "of-c"}
    jobs = [made(name, tmp_path, ring, place) for name, place in places.items()]
    store = places["a"]
    store.mkdir()
    with coordinator(store):
        runs = []
        for job in jobs:
            program = job.program("--until", job.dir / "enough")
            options = ["--job", job.name, "--store", str(job.place), *OFTEN]
            if job.place != store:
                invitation = job.dir / "invitation"
                ask(store, "--issue", f"{job.name}={invitation}")
                options += ["--coordinator", str(invitation)]
            runs.append((job, job.start(*options, program=program), program))
        try:
            until("all are known", lambda: set(where(store)) == {"a", "b", "c"})
            (of_a,), (of_b,), (of_c,) = (where(store)[name] for name in "abc")
            assert of_b == of_c != of_a, where(store)
            of = lambda tier: of_tiers(store, tier)[tier]["turns"]  # noqa: E731
            until("turns of the guests", lambda: of(of_b)["accepted"] >= 6)
            until("a guest waits for the other", lambda: of(of_b)["later"] >= 1)
            until("turns of the first", lambda: of(of_a)["accepted"] >= 6)
            assert of(of_a)["later"] == 0, turns(store)
            for job, run, program in runs:
                (job.dir / "enough").touch()
                result = run.end()
                assert result.status == 0, result.err
                job.check(program)
        finally:
            for job in jobs:
                job.gone()


def given_by_numbers(path: Path) -> int:
    """Turns that a member that serves counts for Prometheus; of others, none."""
    lines = (line.rsplit(" ", 1) for line in path.read_text().splitlines() if line[:1] != "#")
    found = {name.partition("{")[0]: int(value) for name, value in lines}
    serves = found.get("outlive_coordinator_serves", 0)
    return serves * found.get("outlive_coordinator_turns_given_total", 0)


class Members:
    """Three coordinators of one store, each a process that can be killed and started again."""

    def __init__(self, store: Path, place: Path) -> None:
        self.store, self.place = store, place
        self.running: dict[int, subprocess.Popen] = {}
        self.said: dict[int, Path] = {}

    def start(self) -> subprocess.Popen:
        path = self.place / f"member-{len(self.said)}.err"
        words = [OUTLIVE, "coordinator", "--store", str(self.store), "--members", "3"]
        words += ["--metrics", str(path.with_suffix(".prom"))]
        with path.open("w") as said:
            process = subprocess.Popen(words, stderr=said, text=True)
        self.running[process.pid], self.said[process.pid] = process, path
        return process

    def serves(self, pid: int) -> bool:
        """Whether this process says so."""
        text = self.said[pid].read_text()
        return text.rfind("coordinating ") > text.rfind("coordinates no more")

    def leader(self) -> int:
        """The process that serves, if it lives."""
        pid = turns(self.store).get("pid", 0)
        return pid if pid in self.running else 0

    def kill(self, pid: int) -> None:
        process = self.running.pop(pid)
        process.kill()
        process.wait(10)


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    store = tmp_path / "store"
    store.mkdir()
    found = Members(store, tmp_path)
    yield found
    for pid in list(found.running):
        found.kill(pid)


def test_three_coordinators_outlive_one(strangers: list[Job], members: Members) -> None:
    """One job is of their store, the other a guest."""
    store, jobs = members.store, strangers[:2]
    invitation = store / "b.invitation"
    ask(store, "--issue", f"b={invitation}")
    for _ in range(3):
        members.start()
    runs = []
    for job in jobs:
        program = job.program("--until", job.dir / "enough")
        options = ["--job", job.name, "--store", str(job.place), *OFTEN]
        options += [] if job.place == store else ["--coordinator", str(invitation)]
        runs.append((job, job.start(*options, program=program), program))
    until("both jobs are known", lambda: known(store, members.leader()) == {"a", "b"})
    first = members.leader()
    until("turns", lambda: given(store, first) >= 4)
    # The one that serves dies, whoever's turn it is: another goes on with what it knew.
    before = given(store, first)
    members.kill(first)
    second = until("another takes over", members.leader)
    since = given(store, second)
    assert since >= before
    assert known(store, second) == {"a", "b"}
    page = members.said[second].with_suffix(".prom")
    until("it counts", lambda: given_by_numbers(page) >= since)
    until("turns go on", lambda: given(store, second) >= since + 3)
    # The one that died comes back, and is needed: the third dies.
    back = members.start()
    told = members.said[back.pid]
    until("it is told who serves", lambda: "coordinat" in told.read_text())
    (third,) = set(members.running) - {second, back.pid}
    members.kill(third)
    leader = until("two are enough", members.leader)
    since = given(store, leader)
    until("turns of two", lambda: given(store, members.leader()) >= since + 3)
    # One alone gives no turn, and the jobs go by their own plans.
    leader = members.leader()
    (other,) = set(members.running) - {leader}
    members.kill(other)
    until("it stops serving", lambda: not members.serves(leader))
    last = turns(store)["turns"]["accepted"]
    numbers = [kept(job) for job in jobs]
    for job, number in zip(jobs, numbers, strict=True):
        until(f"{job.name} goes on alone", lambda job=job, number=number: kept(job) >= number + 2)
    assert turns(store)["turns"]["accepted"] == last
    for job, run, program in runs:
        (job.dir / "enough").touch()
        assert run.end().status == 0
        job.check(program)
