"""Damaged, cut off and missing files; full disks; another job's key."""

import json
import random
import subprocess
from pathlib import Path

import pytest
from harness import OUTLIVE, Job, damage, logged, newest_of, until


def test_a_corrupt_container_costs_one_copy(job: Job) -> None:
    job.hold(71, 0)
    # The keeper's end takes the memory; the disk's copy is damaged: the partner's.
    result = job.survive(inject=("corrupt:node:1@version=72", "keeper:1@version=78"))
    failure = result.failure()
    assert failure["place"] == "node:1" and failure["level"] in ("partner", "disk")
    if failure["level"] == "partner":
        assert "OL-403" in result.codes(), result.err


def test_a_corrupt_partner_copy_and_a_lost_node(job: Job) -> None:
    # Each version is forced and committed before the next, however slow the machine is.
    program = job.program("--force", 10, "--wait", "node-loss")
    faults = ("corrupt:node:2@version=72,level=partner", "node:1@version=78")
    result = job.survive("--every", "1000000", program=program, inject=faults)
    failure = result.failure()
    assert failure["place"] == "node:1"
    assert failure["version"] == 60 and failure["rejected"], failure


def stopped(job: Job) -> int:
    """A job that was run to 60 of 120 steps; the newest version on every disk."""
    job.steps = 60
    job.hold(25, 0)
    job.hold(55, 40)
    result = job.survive()
    job.steps = 120
    return result.report["checkpoints"]["last"]["disk"]


def test_every_copy_of_one_node_damaged_falls_back(job: Job) -> None:
    version = stopped(job)
    newest = newest_of(job.containers(1))
    for path in (newest, job.node(2) / "partner" / newest.name):
        damage(path)
    result = job.survive()
    (restored,) = set(result.said("restored"))
    assert restored < version
    # The loss is named: the version, and what is wrong with each copy.
    assert f"OL-500 no valid checkpoint: version {version}" in result.err
    assert newest.name in result.err and "newer could not be used" in result.err


def test_one_copy_of_each_node_damaged_costs_nothing(job: Job) -> None:
    newest = stopped(job)
    for node in range(job.nodes):
        for path in job.containers(node):
            damage(path)
    result = job.survive()
    assert set(result.said("restored")) == {newest}


def test_copies_cut_off(job: Job) -> None:
    newest = stopped(job)
    for path in job.containers(0):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for path in job.containers(1):
        path.write_bytes(b"")
    result = job.survive()
    assert set(result.said("restored")) == {newest}


def test_everything_damaged_is_an_error_with_a_remedy(job: Job) -> None:
    stopped(job)
    for node in range(job.nodes):
        for kind in ("containers", "partner"):
            for path in job.containers(node, kind):
                damage(path)
    result = job.run()
    assert result.status == 80 and result.codes("errors") == {"OL-500"}
    assert "--fresh" in result.report["errors"][0]["remedy"]
    assert job.survive("--fresh").said("fresh")


def test_damaged_records(job: Job) -> None:
    stopped(job)
    for node in range(job.nodes):
        for path in job.containers(node, "records")[::2]:
            damage(path, 0.7)
    result = job.run()
    # Decisions are on more than one node; what cannot be proven is not taken.
    assert result.status in (0, 80), result.err
    if result.status == 0:
        job.check()


def test_a_commit_that_is_damaged_everywhere_is_told(job: Job) -> None:
    """No node can read the decision about the newest version: an older one is restored, and not
    in silence."""
    newest = stopped(job)
    for node in range(job.nodes):
        for path in job.containers(node, "records"):
            if path.suffix == ".log":
                hide(path, newest)
    assert "record damaged" in job.outlive("checkpoints", "verify", status=65)
    result = job.survive()
    (restored,) = set(result.said("restored"))
    assert restored < newest
    told = [it for it in result.report["warnings"] if it["code"] == "OL-403"]
    assert len({it["entity"] for it in told}) == job.nodes, result.report["warnings"]
    assert all("damaged record" in it["reason"] for it in told), told


def hide(path: Path, version: int) -> None:
    """Damages each record of a log that speaks of this version or a later one."""
    data = bytearray(path.read_bytes())
    for start, length in logged(data):
        kind = int.from_bytes(data[start + 10 : start + 12], "little")
        said = int.from_bytes(data[start + 28 : start + 36], "little")
        # Prepared, commit and abort: incarnation u32, version u64.
        if kind in (2, 3, 4) and said >= version:
            data[start + length - 4] ^= 0x10
    path.write_bytes(data)


def test_records_of_one_node_gone(job: Job) -> None:
    newest = stopped(job)
    for path in job.containers(2, "records"):
        path.unlink()
    result = job.survive()
    assert set(result.said("restored")) == {newest}


def test_a_node_directory_gone_between_two_runs(job: Job) -> None:
    newest = stopped(job)
    for kind in ("containers", "partner", "records"):
        for path in job.containers(1, kind):
            path.unlink()
    result = job.survive()
    assert set(result.said("restored")) == {newest}


@pytest.mark.parametrize("instead", [None, bytes(range(32))])
def test_the_key_lost_or_replaced(job: Job, instead: bytes | None) -> None:
    newest = stopped(job)
    key = job.home / "key"
    kept = key.read_bytes()
    key.unlink()
    if instead is not None:
        key.write_bytes(instead)
        key.chmod(0o600)
    # A start from the beginning would take the place of what was saved.
    result = job.run(bound_s=20)
    assert result.status != 0 and "OL-306" in result.err and "--fresh" in result.err
    key.write_bytes(kept)
    key.chmod(0o600)
    result = job.survive()
    assert set(result.said("restored")) == {newest}


def test_begun_anew_under_a_new_key(job: Job) -> None:
    stopped(job)
    (job.home / "key").unlink()
    before = job.containers(0)
    result = job.survive("--fresh")
    assert result.said("fresh") and not result.said("restored")
    assert before and all(path.exists() for path in before), "of the other key, and left"


def test_a_key_that_is_cut_off(job: Job) -> None:
    stopped(job)
    (job.home / "key").write_bytes(b"short")
    result = job.run(bound_s=10)
    assert result.status not in (0, 70) and "OL-" in result.err


@pytest.mark.parametrize("name", ["job.json", "lock", "report.json"])
def test_damaged_files_of_the_job(job: Job, name: str) -> None:
    stopped(job)
    (job.home / name).write_text("{ nonsense")
    result = job.run(bound_s=20)
    if name == "job.json":
        assert (result.status == 65 and "OL-406" in result.err) or "job.json" in result.err
    else:
        assert result.status == 0
        job.check()


def test_a_flipped_bit_of_the_job_file_is_found_and_the_file_built_again(
    job: Job, seed: int
) -> None:
    newest = stopped(job)
    path = job.home / "job.json"
    good = path.read_bytes()
    dice = random.Random(seed)
    for _ in range(10):
        bytes_ = bytearray(good)
        bytes_[dice.randrange(len(good))] ^= 1 << dice.randrange(8)
        path.write_bytes(bytes_)
        said = job.outlive("checkpoints", "verify", status=65)
        assert "OL-403" in said or "OL-406" in said, said
        assert "job.json" in said and "remedy: " in said, said
    result = job.run(bound_s=20)
    assert result.status == 65, result.err
    path.rename(job.dir / "aside")
    result = job.survive()
    assert set(result.said("restored")) == {newest}


def test_a_full_disk_stops_nobody(job: Job) -> None:
    job.hold(100, 60, "process")
    result = job.survive(inject=("full:node:1@version=25",))
    assert result.failures == []
    assert "OL-401" in result.codes(), result.err
    last = result.report["checkpoints"]["last"]
    assert last.get("disk", 0) < 100
    assert result.report["seconds"] < 20


def test_a_disk_that_is_full_for_a_while(job: Job) -> None:
    job.steps = 250
    result = job.goes_on(when=job.saves(200), inject=("full:node:1@version=25,for=200ms",))
    assert result.failures == []
    assert result.report["checkpoints"]["last"]["partner"] >= 200, result.err


def test_a_full_disk_and_a_lost_rank(job: Job) -> None:
    job.hold(194, 50, "process")
    job.steps = 240
    result = job.survive(inject=("full:node:1@version=45", "rank:5@version=195"))
    # The node has kept room for the record of the restart: nobody takes its place.
    assert result.failure()["place"] == "rank:5"
    assert result.failure()["level"] == "memory" and result.failure()["version"] >= 50


def test_a_full_disk_and_a_lost_partner_go_on_from_what_is_stored(job: Job) -> None:
    job.hold(44, 20)
    # The full disk has the only copy of some ranks, and it can be read.
    result = job.survive(inject=("full:node:1@version=45", "node:2@version=95"))
    assert result.failure()["place"] == "node:2", result.err
    assert result.failure()["version"] >= 20, result.err
    assert "OL-401" in result.codes()


def test_a_full_disk_and_more_openings_than_it_has_room_for(job: Job) -> None:
    job.steps = 700
    faults = tuple(f"rank:{n % 6}@version={95 + 60 * n}" for n in range(9))
    result = job.survive("--max-restarts", "20", inject=("full:node:1@version=45", *faults))
    assert len(result.failures) == len(faults), result.err
    assert not any(failure["place"].startswith("node") for failure in result.failures)


@pytest.mark.parametrize("levels", ["memory,disk", "disk"])
def test_a_full_disk_and_a_lost_rank_keep_what_lies_on_no_other_node(job: Job, levels: str) -> None:
    job.hold(44, 20, "node-crash")
    # No level outlives a node: the one with the full disk goes on, and is read.
    faults = ("full:node:1@version=45", "rank:5@version=95")
    result = job.survive("--levels", levels, inject=faults)
    assert result.failure()["place"] == "rank:5" and result.failure()["version"] >= 20


def test_hostile_files_in_the_store(job: Job) -> None:
    newest = stopped(job)
    for node in range(job.nodes):
        for kind in ("containers", "partner", "records"):
            folder = job.node(node) / kind
            (folder / "i1-v999-n1.olc").write_bytes(b"\xff" * 5000)
            (folder / "nonsense").write_bytes(b"x")
            (folder / "dir.olc").mkdir()
    result = job.survive()
    assert set(result.said("restored")) == {newest}
    assert json.dumps(result.report)


def test_a_full_disk_leaves_the_level_memory(job: Job) -> None:
    # A disk that takes nothing costs what would lie on it, not what lies elsewhere (P9).
    for node in range(job.nodes):
        job.steps = 200
        (job.dir / "enough").unlink(missing_ok=True)
        result = job.goes_on(
            "--fresh",
            "--levels",
            "memory,disk,shared",
            when=job.saves(100, "memory", "shared"),
            inject=(f"full:node:{node}@version=25",),
        )
        assert result.failures == []
        last = result.report["checkpoints"]["last"]
        assert last["memory"] >= 100 and last["shared"] >= 100, (last, result.err)
        assert last.get("disk", 0) < 100, last
        assert "OL-401" in result.codes()
        assert any(w["entity"] for w in result.report["warnings"] if w["code"] == "OL-401")


def test_a_peer_with_another_key_is_refused_and_named(job: Job) -> None:
    door = job.dir / "door"
    program = job.program("--pause", 65, door)
    run = job.start(program=program)
    until("the pause", Path(f"{door}.reached").exists)
    # An agent in all respects but the key: it says that it is a newer node 1.
    agent = run.pids("agent")[1]
    environ = Path(f"/proc/{agent}/environ").read_bytes().split(b"\0")
    text = next(e for e in environ if e.startswith(b"OUTLIVE_AGENT_SPEC="))
    spec = json.loads(text.split(b"=", 1)[1])
    key = job.dir / "foreign-key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    home = job.dir / "foreign"
    home.mkdir(mode=0o700)
    spec |= {"key_file": str(key), "node_dir": str(home), "epoch": spec["epoch"] + (1 << 40)}
    spec["socket"] = str(job.dir / "foreign.sock")
    environment = job.environment() | {"OUTLIVE_AGENT_SPEC": json.dumps(spec)}
    foreign = subprocess.Popen(
        [OUTLIVE, "agent"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until("the refusal", lambda: "OL-306" in run.text())
        assert not list(job.dir.glob("foreign/containers/*"))
    finally:
        foreign.kill()
        foreign.wait()
    door.touch()
    result = run.end()
    job.check(program)
    assert result.status == 0 and result.failures == [] and result.report["restarts"] == 0
    named = [w for w in result.report["warnings"] if w["code"] == "OL-306"]
    assert named and "127.0.0.1" in named[0]["entity"] and named[0]["remedy"], named
