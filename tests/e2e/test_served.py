"""The level of a memory server: it pulls what the nodes of a group store and keeps the parity. One
node of each group may be lost, or the server."""

import json
import shutil
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import LEFT_S, Job, until
from test_memory_server import Servers
from test_scrub import OFTEN, entry, goes_on, paused

LEVEL = "memory-server:4"
LEVELS = f"memory,disk,{LEVEL}"


class Served(Servers):
    """A memory server for jobs of tests, and what it has."""

    def __init__(self, place: Path, job: Job) -> None:
        super().__init__(place)
        self.job = job
        self.process, self.address = None, ""

    def rights(self) -> tuple[str, ...]:
        """Of a job that need not have run before: its key is read when it calls."""
        return ("--job", "test", "--store", str(self.job.store))

    def key(self, job: Job, name: str) -> Path:
        """The key of a job, which has one when it was run."""
        result = job.run("--job", name, "--levels", "disk", program=["true"])
        assert result.status == 0, result.err
        return job.store / name / "key"

    def begin(self, *words: str, memory: str = "64MiB", listen: str = "127.0.0.1:0") -> None:
        """Starts one, at the address of the one before if that is given."""
        words = words or self.rights()
        self.process, self.address = self.server("--memory", memory, "--listen", listen, *words)

    def kill(self) -> None:
        """Ends it."""
        self.process.kill()
        self.process.wait()

    def options(self, levels: str = LEVELS) -> tuple[str, ...]:
        """Those of a run."""
        return ("--levels", levels, "--memory-server", self.address)

    def regions(self) -> list[str]:
        """Names of what it has of the job."""
        words = ("--job", "test", "--key", str(self.job.home / "key"))
        done = self.run("memory", "list", "--server", self.address, *words, "--json")
        assert done.returncode == 0, done.stderr
        return [region["name"] for region in json.loads(done.stdout)["regions"]]


@pytest.fixture
def served(job: Job, tmp_path: Path) -> Iterator[Served]:
    """A server, and a job of eight ranks on four nodes."""
    job.nodes, job.ranks, job.beyond = 4, 8, LEVEL
    place = tmp_path / "server"
    place.mkdir()
    served = Served(place, job)
    served.begin()
    yield served
    served.end()


def half_done(job: Job, served: Served, levels: str = LEVELS, version: int = 50) -> int:
    """A job that has come half its way; the newest version that the server protects."""
    steps, job.steps = job.steps, job.steps // 2
    job.hold(job.steps - 5, job.steps - 20)
    result = job.survive(*served.options(levels))
    job.steps = steps
    return result.report["checkpoints"]["last"][LEVEL]


def test_nothing_fails(job: Job, served: Served) -> None:
    counts = job.counts(5, "memory", "disk", LEVEL)
    tidy = lambda: 1 <= len(served.regions()) <= 3  # noqa: E731
    # Parities of the newest version, of the one before it and of one that is made: while it
    # runs, for what is replaced goes in the background.
    result = job.goes_on(*served.options(), when=lambda run: counts(run) and tidy())
    assert result.failures == [] and result.report["warnings"] == [], result.err
    for node in range(4):
        assert not job.containers(node, "parity") and not job.containers(node, "partner")
    names = served.regions()
    assert names and all(name.startswith("checkpoint/") and "-n0." in name for name in names)


def test_a_killed_node_comes_back(job: Job, served: Served) -> None:
    job.hold(74, 50)
    for node in (2, 0):
        result = job.survive(*served.options(), "--fresh", inject=(f"node:{node}@version=75",))
        failure = result.failure()
        assert (failure["kind"], failure["place"]) == ("node", f"node:{node}")
        assert failure["level"] == LEVEL and 50 <= failure["version"] <= 74
        assert failure["rejected"] == []


def test_the_replaced_node_is_protected_again(job: Job, served: Served) -> None:
    """Another node is lost before a new version could be taken."""
    job.hold(44, 0)
    options = (*served.options(), "--every", "1000000")
    program = job.program("--force", 40)
    faults = ("node:1@version=45", "node:3@version=60")
    result = job.survive(*options, program=program, inject=faults)
    places = [failure["place"] for failure in result.failures]
    assert places == ["node:1", "node:3"], result.err
    assert [failure["version"] for failure in result.failures] == [40, 40], result.err


def test_two_nodes_of_a_group_are_more_than_it_survives(job: Job, served: Served) -> None:
    job.hold(74, 0)
    result = job.run(*served.options(), inject=("node:1@version=75", "node:2@version=75"))
    assert result.status == 80, result.err
    (error,) = result.report["errors"]
    assert error["code"] == "OL-500", error
    what = f"2 of the 4 nodes of a group of {LEVEL} have lost what they stored (node 1, node 2)"
    assert what in error["reason"] and "and it tolerates 1" in error["reason"], error


def test_a_server_that_is_killed_and_comes_back(job: Job, served: Served) -> None:
    """The job goes on without it, and with the next one."""
    seen = []

    def acts(run) -> bool:
        if not seen and job.counts(2, LEVEL)(run):
            served.kill()
            seen.append(job.running("stable")["disk"])
        if len(seen) == 1 and job.running("stable")["disk"] >= seen[0] + 3:
            served.begin(listen=served.address)
            seen.append(job.running("stable")[LEVEL])
        return len(seen) == 2 and job.running("stable")[LEVEL] >= seen[1] + 2

    result = job.goes_on(*served.options(), when=acts)
    assert result.failures == [], result.err
    lost = [it for it in result.report["warnings"] if it["code"] == "OL-310"]
    assert len(lost) == 1, result.report["warnings"]
    assert len(served.regions()) >= 1


@pytest.mark.parametrize("levels", [LEVELS, f"{LEVELS},shared"])
def test_a_server_and_a_node_are_lost_together(job: Job, served: Served, levels: str) -> None:
    """Its successor is empty: the next protection is taken, and without one nothing is left."""
    half_done(job, served, levels)
    served.kill()
    served.begin(listen=served.address)
    shutil.rmtree(job.node(2))
    if "shared" in levels:
        result = job.survive(*served.options(levels))
        assert min(result.said("restored")) > 0
        return
    result = job.run(*served.options(levels))
    assert result.status == 80, result.err
    (error,) = result.report["errors"]
    assert "the memory server gave no parity of it" in error["reason"], error


def test_a_node_is_lost_between_two_runs(job: Job, served: Served) -> None:
    newest = half_done(job, served)
    shutil.rmtree(job.node(0))
    rehearsed = json.loads(job.outlive("checkpoints", "rehearse", "--json"))
    assert rehearsed["rebuilt"][1] == newest, rehearsed
    result = job.survive(*served.options())
    assert set(result.said("restored")) == {newest}, result.err


def test_what_is_rehearsed_and_verified(job: Job, served: Served) -> None:
    job.goes_on(*served.options(), when=job.counts(4, LEVEL))
    rehearsed = json.loads(job.outlive("checkpoints", "rehearse", "--lose", "node:2", "--json"))
    assert LEVEL in json.dumps(rehearsed)
    job.outlive("checkpoints", "rehearse", "--lose", "node:1", "--lose", "node:2", status=80)
    job.outlive("checkpoints", "verify")
    where = ("--server", served.address, "--job", "test", "--key", str(job.home / "key"))
    for region in served.regions():
        served.run("memory", "put", *where, region, "--offset", "5000", given=b"rotten")
    said = job.outlive("checkpoints", "verify", status=65)
    assert "OL-403" in said and "memory server" in said, said
    served.kill()
    job.outlive("checkpoints", "rehearse", "--lose", "node:2", status=80)
    said = job.outlive("checkpoints", "verify", status=65)
    assert "at the memory server" in said and "OL-310" in said, said
    # No device is to blame, and what it has no number for is not numbered.
    assert "OL-400" not in said and "429496" not in said, said


def test_a_server_that_is_stopped(job: Job, served: Served) -> None:
    """It answers nobody and closes nothing: its level is given up, and the job goes on."""
    stopped = []

    def acts(run) -> bool:
        if not stopped and job.counts(2, LEVEL)(run):
            served.process.send_signal(signal.SIGSTOP)
            stopped.append(job.running("stable")["disk"])
        told = "OL-310" in run.text()
        return bool(stopped) and told and job.running("stable")["disk"] >= stopped[0] + 5

    result = job.goes_on(*served.options(), when=acts)
    assert result.failures == [], result.err
    assert "OL-310" in result.codes(), result.err


def test_more_than_the_quota(job: Job, served: Served) -> None:
    served.kill()
    served.begin(*served.rights(), "--quota", "test=4KiB")
    result = job.goes_on(*served.options(), when=job.counts(4, "disk"))
    full = [it for it in result.report["warnings"] if it["code"] == "OL-401"]
    assert len(full) == 1, result.report["warnings"]
    assert LEVEL not in result.report["checkpoints"]["last"], result.report["checkpoints"]


def test_a_server_that_has_another_key(job: Job, served: Served) -> None:
    served.kill()
    served.begin("--job", "test=job.key")
    result = job.goes_on(*served.options(), when=job.counts(4, "disk"))
    codes = [it["code"] for it in result.report["warnings"]]
    assert codes and set(codes) == {"OL-306"}, result.report["warnings"]


def test_a_server_that_is_not_there(job: Job, served: Served) -> None:
    served.kill()
    result = job.goes_on(*served.options(), when=job.counts(4, "disk"))
    assert result.codes() == {"OL-310"}, result.err
    assert len(result.report["warnings"]) <= 2, result.report["warnings"]


def test_what_a_new_server_lacks_is_made_again(job: Job, served: Served) -> None:
    """And a node that is lost before a new version comes back of it."""
    inject = ("node:1@version=45",)
    run, go, version = paused(job, *OFTEN, *served.options(), force=40, inject=inject)
    served.kill()
    served.begin(listen=served.address)
    is_there = lambda: any(f"-v{version}-" in name for name in served.regions())  # noqa: E731
    until("it is made again", lambda: is_there() and entry(job).get("mended", 0) >= 1)
    result = goes_on(job, run, go, force=40)
    failure = result.failure()
    assert (failure["place"], failure["version"], failure["level"]) == ("node:1", 40, LEVEL)
    # Of the version before it as well, if that is kept still.
    told = [it for it in result.report["warnings"] if it["code"] == "OL-403"]
    assert told and all("it is gone" in it["reason"] for it in told), told
    assert all("made again" in it["reason"] and served.address in it["entity"] for it in told)


def test_what_rots_at_the_server_is_mended(job: Job, served: Served) -> None:
    run, go, version = paused(job, *OFTEN, *served.options())
    (region,) = [name for name in served.regions() if f"-v{version}-" in name]
    where = ("--server", served.address, "--job", "test", "--key", str(job.home / "key"))
    sound = served.run("memory", "get", *where, region).stdout
    for mended, offset in enumerate([17, len(sound) - 9], start=1):
        served.run("memory", "put", *where, region, "--offset", str(offset), given=b"rotten")
        until("it is mended", lambda count=mended: entry(job).get("mended", 0) >= count)
        assert served.run("memory", "get", *where, region).stdout == sound

    def read() -> bool:
        found = entry(job).get("versions", [])
        at = {it["level"]: it["read_seconds"] for it in found if it["version"] == version}
        return at.get(LEVEL) is not None

    until("it is read whole", read)
    result = goes_on(job, run, go)
    told = [it for it in result.report["warnings"] if it["code"] == "OL-403"]
    assert len(told) == 2 and all("mended" in it["reason"] for it in told), told


def test_a_fault_is_injected_at_the_server(job: Job, served: Served) -> None:
    """Also by the name of a node that the parity is not named after."""
    job.hold(41, 40)
    inject = (f"corrupt:node:2@version=42,level={LEVEL}",)
    run, go, _ = paused(job, *OFTEN, *served.options(), force=40, inject=inject)
    until("it is mended", lambda: entry(job).get("mended", 0) >= 1)
    result = goes_on(job, run, go, force=40)
    told = [it for it in result.report["warnings"] if it["code"] == "OL-403"]
    assert len(told) == 1 and "memory server" in told[0]["entity"], told


def test_two_jobs_share_a_server(job: Job, served: Served, tmp_path: Path) -> None:
    served.kill()
    other = Job(tmp_path / "other", job.ring, uuid.uuid4().hex, nodes=4, ranks=4, beyond=LEVEL)
    other.dir.mkdir()
    theirs = served.key(other, "other")
    served.begin(*served.rights(), "--job", f"other={theirs}")
    for one in (job, other):
        one.hold(74, 50)
    try:
        inject = ("node:1@version=75",)
        run = job.start(*served.options(), inject=inject)
        also = other.start("--job", "other", *served.options(), inject=inject)
        for one, result in ((job, run.end()), (other, also.end())):
            assert result.status == 0, result.err
            assert result.failure()["level"] == LEVEL, result.err
            one.check()
    finally:
        other.gone(LEFT_S)


def test_what_cannot_be_is_refused(job: Job, served: Served) -> None:
    result = job.run("--levels", LEVELS)
    assert result.status == 64 and "--memory-server HOST:PORT" in result.err, result.err
    result = job.run("--levels", LEVELS, "--memory-server", "nowhere")
    assert result.status == 64 and "is no address" in result.err, result.err
    result = job.run("--levels", "memory,disk", "--memory-server", served.address)
    assert result.status == 64 and "nothing would be kept there" in result.err, result.err
    job.nodes = 3
    result = job.run(*served.options())
    assert result.status == 64 and "at least 4 nodes" in result.err, result.err


def test_it_is_left_in_order_when_the_job_begins_anew(job: Job, served: Served) -> None:
    half_done(job, served)
    before = set(served.regions())
    counts = job.counts(3, LEVEL)

    def tidy() -> bool:
        names = served.regions()
        return len(names) <= 3 and not before & set(names)

    job.goes_on(*served.options(), "--fresh", when=lambda run: counts(run) and tidy())


def test_a_server_that_a_job_has_no_use_for_any_more_is_not_missed(
    job: Job, served: Served
) -> None:
    steps = job.steps
    half_done(job, served)
    served.kill()
    told = []
    for part in (3, 4, 5):
        job.steps = steps * part // 4
        job.hold(job.steps - 5, job.steps - 20)
        told.append(job.survive("--levels", "memory,disk,partner").codes())
    # The first may have needed what lies there; what is newer now survives as much.
    assert told[0] == {"OL-310"} and told[-1] == set(), told


@pytest.mark.parametrize("lost", [False, True])
def test_a_job_that_is_deleted_leaves_nothing_there(job: Job, served: Served, lost: bool) -> None:
    half_done(job, served)
    assert served.regions() != []
    key = shutil.copy(job.home / "key", served.place / "old.key")
    if lost:
        served.kill()
    done = served.run("checkpoints", "delete", "test", "--store", str(job.store), "--yes")
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0 and not job.home.exists(), said
    assert ("OL-310" in said) == lost and "job test deleted" in said, said
    if not lost:
        # The server takes the key from where it was.
        job.home.mkdir(mode=0o700)
        shutil.copy(key, job.home / "key")
        assert served.regions() == []
