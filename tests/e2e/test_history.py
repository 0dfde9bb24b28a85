"""What was saved is never taken for what never was: storage purged, records damaged or
removed, directories renamed, between two runs and in one."""

import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from harness import OUTLIVE, Job, Result, damage, logged, until


def stopped(job: Job) -> int:
    """A job that was run to 60 of 120 steps; the newest version on every disk."""
    job.steps = 60
    job.hold(55, 40)
    result = job.survive()
    job.steps = 120
    return result.report["checkpoints"]["last"]["disk"]


def records(job: Job) -> list[Path]:
    """Every record of every node."""
    return [path for node in range(job.nodes) for path in job.containers(node, "records")]


def versions(path: Path) -> list[tuple[int, int]]:
    """The versions of which a log has a decision, and where it stands."""
    data = path.read_bytes()
    # Behind the head of 24 bytes: the incarnation, then the version.
    starts = [at for at, _ in logged(data) if data[at + 10] in (2, 3, 4)]
    return [(int.from_bytes(data[at + 28 : at + 36], "little"), at) for at in starts]


def copies(job: Job) -> set[Path]:
    """Every container of every node."""
    kinds = ("containers", "partner")
    return {path for n in range(job.nodes) for kind in kinds for path in job.containers(n, kind)}


def refused(job: Job, said: str) -> Result:
    """The next run is refused for want of a checkpoint, quickly, with the true cause, and
    takes nothing away; the other commands say the same."""
    before = copies(job)
    result = job.run(bound_s=30)
    assert result.status == 80 and result.codes("errors") == {"OL-500"}, result.err
    (error,) = result.report["errors"]
    assert said in error["reason"] and "--fresh" in error["remedy"], error
    assert not result.said("fresh") and copies(job) == before
    told = json.loads(job.outlive("status", "--json"))
    assert told["refusal"]["code"] == 500, told
    assert "OL-500" in job.outlive("checkpoints", "rehearse", status=80)
    return result


def purge(job: Job) -> None:
    """As a purge of scratch does: everything that the nodes have stored."""
    for node in range(job.nodes):
        shutil.rmtree(job.node(node))


def flip(job: Job) -> None:
    """A bit in every record."""
    for path in records(job):
        damage(path, 0.7)


def cut(job: Job) -> None:
    """Every record is cut off."""
    for path in records(job):
        path.write_bytes(path.read_bytes()[:20])


def empty(job: Job) -> None:
    """The records are removed, and all else is left."""
    for path in records(job):
        path.unlink()


def commits(job: Job) -> None:
    """Only the commits are removed, as if they had never been written."""
    for path in [path for path in records(job) if path.suffix == ".log"]:
        data = bytearray(path.read_bytes())
        for at, length in [(at, length) for at, length in logged(data) if data[at + 10] == 3]:
            data[at : at + length] = bytes(length)
        path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (purge, "no record of a version"),
        (flip, "damaged record"),
        (cut, "damaged record"),
        (empty, "container"),
        (commits, "a mark that"),
    ],
)
def test_without_a_readable_record_the_job_is_not_begun_anew(job: Job, harm, said: str) -> None:
    stopped(job)
    harm(job)
    refused(job, said)
    # A refusal changes nothing: neither does the next.
    refused(job, said)
    assert job.survive("--fresh").said("fresh")
    # The word is remembered: what is left of before is settled.
    assert job.survive().said("restored")


def test_records_back_in_their_place(job: Job) -> None:
    newest = stopped(job)
    shutil.move(job.home / "nodes", job.dir / "aside")
    refused(job, "no record of a version")
    shutil.rmtree(job.home / "nodes")
    shutil.move(job.dir / "aside", job.home / "nodes")
    assert set(job.survive().said("restored")) == {newest}


def test_a_job_that_saved_nothing_begins_plainly(job: Job) -> None:
    # It fails before its first version, and all that it left is purged.
    result = job.run("--max-restarts", "0", "--every", "1000000", inject=("rank:1@version=30",))
    assert result.status != 0 and not result.report["checkpoints"]["last"]
    assert "would begin at its start" in job.outlive("checkpoints", "rehearse", status=80)
    purge(job)
    assert job.survive().said("fresh")


def test_a_renamed_directory_is_another_jobs(job: Job) -> None:
    newest = stopped(job)
    other = job.store / "other"
    words = [OUTLIVE, "run", "--job", "other", "--store", job.store, "--emulate-nodes", job.nodes]
    for change, back in ((Path.rename, Path.rename), (shutil.copytree, None)):
        change(job.home, other)
        run = subprocess.run(
            [str(word) for word in (*words, "--", *job.program())],
            env=job.environment(),
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert run.returncode == 80 and "OL-500" in run.stderr, run.stderr
        assert "the job test, renamed or copied" in run.stderr and "--fresh" in run.stderr
        for what in (("status",), ("checkpoints", "rehearse")):
            words_of = (OUTLIVE, *what, "--store", job.store, "--job", "other")
            asked = [str(word) for word in words_of]
            told = subprocess.run(asked, env=job.environment(), capture_output=True, text=True)
            assert told.returncode == 80 and "renamed or copied" in told.stderr, what
        if back is not None:
            back(other, job.home)
    assert set(job.survive().said("restored")) == {newest}
    # The owner's word makes it a job of its own; the one that it was copied from is whole.
    run = subprocess.run(
        [str(word) for word in (*words, "--fresh", "--every", 10, "--", *job.program())],
        env=job.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    job.check()
    assert job.checkpoints()


def test_what_was_renamed_away_is_not_begun_anew_in_silence(job: Job) -> None:
    """The same command, and the job's directory has another name."""
    newest = stopped(job)
    other = job.store / "aside"
    job.home.rename(other)
    result = job.run()
    assert result.status == 80 and "OL-500" in result.err, result.err
    assert str(other) in result.err and "--fresh" in result.err, result.err
    assert not job.home.exists(), "what is refused leaves nothing"
    assert str(other) in job.outlive("status", status=80)
    other.rename(job.home)
    assert set(job.survive().said("restored")) == {newest}
    # A copy beside the job harms nobody, and the owner's word begins anew.
    shutil.copytree(job.home, other)
    newest = job.checkpoints()[0]["version"]
    assert set(job.survive().said("restored")) == {newest}
    shutil.rmtree(job.home)
    assert job.run().status == 80
    assert set(job.survive("--fresh").said("fresh")), "begun anew"


def test_a_store_that_was_moved_goes_on(job: Job) -> None:
    newest = stopped(job)
    shutil.move(job.store, job.dir / "moved")
    # The harness looks where the store is now.
    (job.dir / "moved").rename(job.dir / "elsewhere")
    job.store.symlink_to(job.dir / "elsewhere")
    assert set(job.survive().said("restored")) == {newest}
    assert not (job.dir / "moved").exists()


def test_job_json_gone_is_built_again(job: Job) -> None:
    newest = stopped(job)
    (job.home / "job.json").unlink()
    # Who only looks sees what the run will see, and writes nothing.
    told = json.loads(job.outlive("status", "--json"))
    assert told["refusal"] is None and told["newest"]["version"] == newest, told
    assert (told["job"]["nodes"], told["job"]["ranks"]) == (job.nodes, job.ranks), told
    listed = json.loads(job.outlive("checkpoints", "list", "--json"))
    assert listed["versions"][0]["version"] == newest, listed
    rehearsed = json.loads(job.outlive("checkpoints", "rehearse", "--json"))
    assert rehearsed["rebuilt"][1] == newest, rehearsed
    assert not (job.home / "job.json").exists()
    result = job.survive(bound_s=30)
    assert set(result.said("restored")) == {newest}
    assert any("job.json" in warning["entity"] for warning in result.report["warnings"])
    # With another number of nodes it is not this job.
    (job.home / "job.json").unlink()
    result = job.run("--emulate-nodes", "2", bound_s=30)
    assert result.status == 64 and "3 nodes" in result.err, result.err


def test_job_json_and_the_records_gone(job: Job) -> None:
    stopped(job)
    (job.home / "job.json").unlink()
    purge(job)
    result = job.run(bound_s=30)
    assert result.status == 80 and "OL-500" in result.err and "job.json" in result.err
    for words in (("status",), ("checkpoints", "list"), ("checkpoints", "rehearse")):
        assert "OL-500" in job.outlive(*words, status=80), words
    assert job.survive("--fresh").said("fresh")


def test_an_old_job_json_put_back(job: Job) -> None:
    newest = stopped(job)
    path = job.home / "job.json"
    known = json.loads(path.read_text())
    known["incarnation"] = 0
    del known["history"], known["checksum"]
    path.write_text(json.dumps(known))
    assert set(job.survive(bound_s=30).said("restored")) == {newest}


def test_the_jobs_directory_gone_and_the_nodes_storage_left(job: Job) -> None:
    job.hold(55, 0)
    apart = ("--node-storage", str(job.dir / "scratch"))
    job.steps = 60
    job.survive(*apart)
    job.steps = 120
    before = set((job.dir / "scratch").rglob("*.olc"))
    shutil.rmtree(job.home)
    # It may be another store's job of this name, so even --fresh leaves it alone.
    for fresh in ((), ("--fresh",)):
        result = job.run(*fresh, *apart, bound_s=30)
        assert result.status != 0 and "OL-306" in result.err, result.err
        assert "was lost" in result.err and str(job.dir / "scratch") in result.err
    assert set((job.dir / "scratch").rglob("*.olc")) == before
    assert not (job.home / "key").exists(), "the old key may still be put back"
    shutil.rmtree(job.dir / "scratch")
    assert job.survive(*apart).said("fresh")


def test_nothing_usable_and_the_owners_standing_word(job: Job) -> None:
    stopped(job)
    purge(job)
    result = job.survive("--on-nothing-usable", "fresh")
    assert result.said("fresh") and "OL-500" in result.codes()


def test_a_node_and_its_partner_lost(job: Job) -> None:
    program = job.program("--force", 10, "--wait", "node-loss")
    faults = ("node:1@version=75", "node:2@version=75")
    result = job.run("--every", "1000000", program=program, inject=faults)
    assert result.status == 80 and result.codes("errors") == {"OL-500"}, result.err
    (error,) = result.report["errors"]
    for word in ("version 70", "node 1", "node 2", "partner", "shared", "lost"):
        assert word in error["reason"], error
    assert "NothingUsable" not in result.err
    assert "--on-nothing-usable" in error["remedy"]


def test_all_nodes_lost_in_a_run(job: Job) -> None:
    faults = tuple(f"node:{node}@version=75" for node in range(job.nodes))
    program = job.program("--force", 10, "--wait", "node-loss")
    options = ("--every", "1000000", "--spares", "3")
    result = job.run(*options, program=program, inject=faults)
    assert result.status == 80 and result.codes("errors") == {"OL-500"}, result.err
    again = job.survive("--fresh", *options, "--on-nothing-usable", "fresh", program=program)
    assert again.said("fresh")


def test_the_key_removed_in_a_run_is_written_again(job: Job) -> None:
    job.hold(60, 50)
    door = job.dir / "door"
    program = job.program("--pause", 65, door)
    run = job.start(program=program)
    until("the pause", Path(f"{door}.reached").exists)
    job.settled(50)
    kept = (job.home / "key").read_bytes()
    (job.home / "key").unlink()
    os.kill(run.pids("keeper")[1], 9)
    until("the next start", lambda: "key was removed" in run.text())
    assert (job.home / "key").read_bytes() == kept
    door.touch()
    result = run.end()
    job.check(program)
    assert result.status == 0 and result.report["restarts"] == 1, result.err


@pytest.mark.parametrize("what", ["key", "store"])
def test_what_a_run_needs_replaced_or_removed(job: Job, what: str) -> None:
    job.hold(60, 50)
    door = job.dir / "door"
    run = job.start(program=job.program("--pause", 65, door))
    until("the pause", Path(f"{door}.reached").exists)
    job.settled(50)
    if what == "key":
        (job.home / "key").write_bytes(bytes(range(32)))
    else:
        job.store.rename(job.dir / "gone")
    os.kill(run.pids("keeper")[1], 9)
    result = run.end(30)
    code = {"key": "OL-306", "store": "OL-404"}[what]
    assert result.status not in (0, 79) and result.codes("errors") == {code}, result.err
    assert "while the job ran" in result.err and result.report["restarts"] == 0


def unfinished(job: Job) -> list[Path]:
    """Files that never got their name."""
    found = [path for path in job.home.rglob("*") if path.is_file()]
    return [path for path in found if path.name.startswith(".tmp-") or ".new-" in path.name]


def test_unfinished_files_do_not_stay(job: Job) -> None:
    levels = ("--levels", "memory,disk,partner,shared")
    job.steps = 60
    job.survive(*levels)
    assert not unfinished(job)
    for path in ("shared/records", "shared/containers", "nodes/node-1/records"):
        (job.home / path / ".tmp-77-0-commit-i1-v10-disk-b1.rec").write_bytes(b"x")
    for name in ("job.json.new-77-0", "report.json.new-77-1"):
        (job.home / name).write_bytes(b"x")
    job.steps = 120
    job.survive(*levels, inject=("agent:1@version=85", "node:2@version=95"))
    assert not unfinished(job)


def unreadable(job: Job, path: Path) -> None:
    """The job's next run, as an ordinary user who may not look into this directory."""
    result = job.run(bound_s=30)
    assert result.status == 74 and "OL-402" in result.err, result.err
    assert str(path) in result.err and not result.said("fresh")


@pytest.mark.parametrize("place", ["nodes/node-1/records", "nodes/node-1", "shared/records"])
def test_a_directory_that_cannot_be_read(job: Job, place: str) -> None:
    job.hold(55, 0)
    if os.geteuid() == 0:
        # Root may read everything: the whole job is another user's.
        outside = job.dir
        while outside != Path("/tmp") and outside != outside.parent:
            outside.chmod(0o755)
            outside = outside.parent
        os.chown(job.dir, 1000, 1000)
        job.ring.parent.chmod(0o755)
        job.before = ("setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups")
    job.steps = 60
    levels = ("--levels", "memory,disk,partner,shared")
    job.survive(*levels)
    newest = job.checkpoints()[0]["version"]
    job.steps = 120
    path = job.home / place
    path.chmod(0)
    try:
        unreadable(job, path)
    finally:
        path.chmod(0o700)
    assert set(job.survive(*levels).said("restored")) == {newest}


def harms(chance: random.Random, job: Job) -> list[str]:
    """What somebody does to a store between two runs; what was done."""
    done = []
    for _ in range(chance.randint(1, 3)):
        node = job.node(chance.randrange(job.nodes))
        some = [path for path in job.home.rglob("*") if path.is_file()]
        kind = chance.choice(
            ["purge", "purge all", "flip", "cut", "empty", "newest", "kind", "file", "job.json"]
        )
        done.append(f"{kind} {node.name}")
        if kind == "purge":
            shutil.rmtree(node, ignore_errors=True)
        elif kind == "purge all":
            for number in range(job.nodes):
                shutil.rmtree(job.node(number), ignore_errors=True)
        elif kind in ("flip", "cut", "empty"):
            {"flip": flip, "cut": cut, "empty": empty}[kind](job)
        elif kind == "newest":
            logs = [path for path in records(job) if path.suffix == ".log"]
            spoken = [version for path in logs for version, _ in versions(path)]
            for path in logs:
                data = bytearray(path.read_bytes())
                for version, at in versions(path):
                    data[at] ^= 0x10 * (version == max(spoken))
                path.write_bytes(data)
        elif kind == "kind":
            prefix = chance.choice(["incarnation", "decisions", "commit", "promise", "history"])
            done[-1] += f" {prefix}"
            for path in [*job.home.rglob(f"{prefix}*.rec"), *job.home.rglob(f"{prefix}*.log")]:
                path.unlink()
        elif kind == "file" and some:
            path = chance.choice(some)
            done[-1] += f" {path.relative_to(job.home)}"
            if path.stat().st_size and chance.random() < 0.5:
                damage(path, chance.random())
            else:
                path.unlink()
        elif kind == "job.json":
            (job.home / "job.json").unlink(missing_ok=True)
    return done


@pytest.mark.parametrize("nth", range(4))
def test_whatever_is_done_to_the_store(job: Job, seed: int, nth: int) -> None:
    """Right bits, or a coded refusal; never step 0 with exit 0 without the owner's word."""
    chance = random.Random(seed + nth)
    levels = ("--levels", chance.choice(["memory,disk", "memory,disk,partner", "disk,shared"]))
    done: list[str] = []
    for steps in (40, 60, 80, 100):
        job.steps = steps
        # A busy machine may leave out every version of a run as short as these: what begins
        # the job stores one for certain, so that there always is something to lose.
        certain = job.program("--force", 10, "--wait", "node-crash")
        forced = ("--every", "1000000")
        if steps == 40:
            result = job.run(*levels, *forced, program=certain, bound_s=40)
        else:
            result = job.run(*levels, bound_s=40)
        if result.status == 0:
            job.check()
            assert steps == 40 or not result.said("fresh"), (done, result.err)
        else:
            (error,) = result.report["errors"]
            assert error["code"] in ("OL-500", "OL-306", "OL-403", "OL-405", "OL-406"), (
                done,
                error,
            )
            assert result.status != 79 and error["remedy"], (done, result.err)
            assert not result.said("fresh"), (done, result.err)
            # The owner's word always helps, but for what only the owner can put right.
            again = job.run(*levels, *forced, "--fresh", program=certain, bound_s=40)
            if again.status != 0:
                (error,) = again.report["errors"]
                assert error["code"] in ("OL-403", "OL-405", "OL-406"), (done, again.err)
                return
            job.check()
        done = harms(chance, job)
        print(steps, done)
