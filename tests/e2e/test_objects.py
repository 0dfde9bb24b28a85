"""The level shared in an object store: a job that outlives its cluster."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import OUTLIVE, Job, Run, kill, processes, until
from objects import SECRET, Objects, served


@pytest.fixture
def bucket(job: Job, tmp_path: Path) -> Iterator[Objects]:
    """An empty bucket; the job has its credentials."""
    with served(tmp_path) as objects:
        use(job, objects)
        yield objects


def use(job: Job, objects: Objects) -> None:
    job.extra |= objects.environment()
    job.beyond = "shared"
    job.levels = "memory,disk,shared"


def options(bucket: Objects) -> tuple[str, ...]:
    return ("--object-store", bucket.url)


def half(job: Job, bucket: Objects) -> int:
    """A job that ends half way; the newest version in the bucket."""
    job.steps, steps = 60, job.steps
    job.hold(55, 40, "all-nodes")
    saved = job.survive(*options(bucket)).report["checkpoints"]["last"]["shared"]
    assert saved >= 40
    job.steps = steps
    job.holds.clear()
    return saved


def paused(job: Job, bucket: Objects, *more: str, force: int = 10) -> tuple[Run, Path]:
    """A job that waits after a version that is stable in the bucket: its run, and the file that
    lets it go on."""
    go = job.dir / "go"
    words = job.program("--force", force, "--pause", force + 4, go)
    run = job.start(*options(bucket), "--every", "1000000", *more, program=words)
    until("it waits", lambda: (job.dir / "go.reached").exists())
    assert job.settled(force) == force
    return run, go


def test_a_job_goes_on_where_nothing_but_the_bucket_is_left(job: Job, bucket: Objects) -> None:
    saved = half(job, bucket)
    assert not (job.home / "shared").exists()
    assert {name.split("/")[0] for name in bucket.names()} == {
        "containers",
        "history.rec",
        "identity.json",
        "records",
    }
    shutil.rmtree(job.store)
    second = job.survive(*options(bucket))
    assert second.said("restored") == [saved] * job.ranks, second.out
    (note,) = [it for it in second.report["warnings"] if it["code"] == "OL-404"]
    assert bucket.url in note["reason"], note
    # It is the same job from then on, without being told where its objects are.
    job.steps += 20
    third = job.survive()
    assert third.said("restored")[0] > saved
    assert not [it for it in third.report["warnings"] if it["code"] == "OL-404"]
    for command in (["list"], ["verify"]):
        job.outlive("checkpoints", *command)
    assert bucket.uploads() == 0


def test_nodes_that_lose_their_storage_have_the_bucket(job: Job, bucket: Objects) -> None:
    job.hold(28, 10, "all-nodes")
    job.hold(58, 40, "all-nodes")
    result = job.survive(*options(bucket), inject=("node:1@version=30", "node:2@version=60"))
    levels = {failure["level"] for failure in result.failures}
    assert len(result.failures) == 2 and levels == {"shared"}, result.failures


def test_what_rots_there_is_mended(job: Job, bucket: Objects) -> None:
    run, go = paused(job, bucket, "--scrub-every", "300ms", "--scrub-rate", "256MiB")
    (name,) = [name for name in bucket.names("containers/") if "-v10-n1" in name]
    sound = bucket.get(name)
    bucket.put(name, sound[:5000] + bytes([sound[5000] ^ 4]) + sound[5001:])
    until("it is mended", lambda: bucket.get(name) == sound)
    go.touch()
    result = run.end()
    assert result.status == 0, result.err
    (warning,) = [it for it in result.report["warnings"] if it["code"] == "OL-403"]
    assert f"{bucket.url}/test/{name}" in warning["entity"], warning
    assert not bucket.names("drafts/")


@pytest.mark.parametrize("mode", ["cuts", "busy", "holds"])
def test_a_store_that_is_away_costs_its_own_level_alone(
    job: Job, bucket: Objects, mode: str
) -> None:
    """Versions go on to be stable on disk; when it is back, in the bucket too."""
    job.extra |= {"AWS_TIMEOUT": "1 seconds", "AWS_MAX_RETRIES": "2"}
    where = {"disk": 0, "shared": 0}

    def goes(run: Run) -> bool:
        last = job.running("last")
        if bucket.between.mode == "passes" and last.get("shared", 0) >= 20:
            if where["disk"] == 0:
                where.update(last)
                bucket.between.set(mode)
            return last["shared"] >= where["shared"] + 100 and where["disk"] > 0
        if bucket.between.mode != "passes" and last.get("disk", 0) >= where["disk"] + 20:
            bucket.between.set("passes")
        return False

    result = job.goes_on(*options(bucket), "--commit-timeout", "5s", when=goes)
    assert result.failures == []
    assert SECRET not in result.out + result.err + json.dumps(result.report)


def test_a_job_that_was_moved_while_it_runs_decides_nothing_any_more(
    job: Job, bucket: Objects, tmp_path: Path
) -> None:
    run, go = paused(job, bucket)
    here = Job(tmp_path / "other", job.ring, job.token)
    here.dir.mkdir()
    use(here, bucket)
    here.extra["XDG_RUNTIME_DIR"] = str(here.dir)
    moved = here.survive(*options(bucket))
    assert moved.said("restored") == [10] * here.ranks
    newest = moved.report["checkpoints"]["last"]["shared"]
    before = set(bucket.names())
    # The one that was left behind goes on to its end, with what its own nodes keep.
    go.touch()
    result = run.end()
    assert result.status == 0, result.err
    assert "OL-502" in {it["code"] for it in result.report["warnings"]}, result.report
    assert before <= set(bucket.names())
    # Long enough for a version: of twenty steps in a tenth of a second none may be armed in time.
    here.steps += 200
    there = here.survive(*options(bucket))
    assert there.said("restored") == [newest] * here.ranks
    # Moved back, it goes on from what was decided elsewhere.
    newest = there.report["checkpoints"]["last"]["shared"]
    job.steps = here.steps + 20
    assert job.survive(*options(bucket)).said("restored") == [newest] * job.ranks


def test_a_job_that_was_moved_while_it_runs_cannot_start_again(
    job: Job, bucket: Objects, tmp_path: Path
) -> None:
    run, _ = paused(job, bucket)
    here = Job(tmp_path / "other", job.ring, job.token)
    here.dir.mkdir()
    use(here, bucket)
    here.extra["XDG_RUNTIME_DIR"] = str(here.dir)
    here.survive(*options(bucket))
    ranks = [pid for pid, line in processes(job.token).items() if "/ring " in line.split("--")[0]]
    kill(ranks[0])
    result = run.end()
    assert result.status == 75 and "OL-502" in result.err, result.err


def test_a_launcher_and_an_agent_killed_while_they_write(job: Job, bucket: Objects) -> None:
    job.goes_on(
        *options(bucket),
        when=job.counts(4, "shared"),
        inject=("agent:0@phase=commit:persist", "agent:1@phase=flush:prepared"),
    )
    run = job.start(*options(bucket))
    until("it saves", lambda: job.running("stable").get("shared", 0) >= 2)
    run.signal(signal.SIGKILL)
    run.process.wait()
    until("all ended", lambda: not processes(job.token))
    job.survive(*options(bucket))


def test_prune_pin_and_delete_reach_the_bucket(job: Job, bucket: Objects) -> None:
    saved = half(job, bucket)
    job.outlive("checkpoints", "pin", saved)
    assert [name for name in bucket.names("records/") if "pin-" in name]
    said = job.outlive("checkpoints", "prune", "--keep", "1", "--yes")
    assert "freed" in said or "nothing" in said, said
    versions = {name.split("-")[1] for name in bucket.names("containers/")}
    assert f"v{saved}" in versions
    job.outlive("checkpoints", "unpin", saved)
    words = [OUTLIVE, "checkpoints", "delete", "test", "--store", job.store, "--yes"]
    subprocess.run(words, check=True, env=job.environment(), timeout=20, capture_output=True)
    assert bucket.names() == []


def test_an_old_store_is_deleted_without_what_another_goes_on_from(
    job: Job, bucket: Objects, tmp_path: Path
) -> None:
    saved = half(job, bucket)
    moved = job.store.rename(tmp_path / "moved")
    job.steps += 20
    job.survive(*options(bucket))
    before = bucket.names()
    words = [OUTLIVE, "checkpoints", "delete", "test", "--store", moved, "--yes"]
    blind = {key: value for key, value in job.environment().items() if "AWS_SECRET" not in key}
    blind |= {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_SECRET_ACCESS_KEY": "none"}
    refused = subprocess.run(words, env=blind, timeout=60, capture_output=True, text=True)
    assert refused.returncode == 74 and "AWS_ENDPOINT_URL" in refused.stderr, refused.stderr
    assert (moved / "test" / "job.json").exists()
    assert not (moved / "test" / "deleting").exists()
    words = [str(word) for word in words]
    done = subprocess.run(words, env=job.environment(), timeout=20, capture_output=True, text=True)
    assert done.returncode == 0 and "is left there" in done.stderr, done.stderr
    assert not (moved / "test").exists() and bucket.names() == before
    job.steps += 20
    assert job.survive().said("restored")[0] > saved


def test_a_job_without_its_file_has_the_same_bucket(job: Job, bucket: Objects) -> None:
    saved = half(job, bucket)
    (job.home / "job.json").unlink()
    assert f'"version": {saved}' in job.outlive("checkpoints", "list", "--json")
    shutil.rmtree(job.home / "nodes")
    job.steps += 20
    assert job.survive().said("restored") == [saved] * job.ranks
    assert not (job.home / "shared").exists()


def test_a_job_with_a_directory_is_not_moved_to_a_bucket_in_silence(
    job: Job, bucket: Objects
) -> None:
    job.survive()
    (job.home / "job.json").unlink()
    result = job.run(*options(bucket))
    assert result.status == 64 and str(job.home / "shared") in result.err, result.err


def test_a_store_without_conditional_puts_is_refused(job: Job, tmp_path: Path) -> None:
    with served(tmp_path, "rclone") as objects:
        use(job, objects)
        result = job.run(*options(objects))
        assert result.status == 74 and "OL-408" in result.err, result.err
        assert "conditional puts" in result.err
        wrong = f"not-{SECRET}"
        job.extra["AWS_SECRET_ACCESS_KEY"] = wrong
        result = job.run(*options(objects))
        assert result.status == 74 and "OL-402" in result.err, result.err
        assert "AWS_SECRET_ACCESS_KEY" in result.err and wrong not in result.err
        said = doctor(job, objects)
        assert "object store" in said and "FAIL" in said and wrong not in said, said
    started = time.monotonic()
    job.extra |= {"AWS_MAX_RETRIES": "1", "AWS_RETRY_TIMEOUT": "1"}
    result = job.run(*options(objects), bound_s=100)
    assert result.status == 74 and "OL-400" in result.err, result.err
    assert time.monotonic() - started < 90


def doctor(job: Job, bucket: Objects) -> str:
    words = [OUTLIVE, "doctor", "--store", job.store, *options(bucket)]
    done = subprocess.run(
        words, capture_output=True, text=True, env=job.environment(), timeout=60, check=False
    )
    return done.stdout


def test_doctor_tries_it_out_and_leaves_nothing(job: Job, bucket: Objects) -> None:
    said = doctor(job, bucket)
    assert f"ok    object store   {bucket.url}" in said, said
    assert b"<Key>" not in bucket.ask("GET", "?list-type=2")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--object-store", "s3://k:s@bucket/x"), "credentials belong in the environment"),
        (("--object-store", "ftp://bucket/x"), "no kind of object store"),
        (("--object-store", "s3://bucket/x", "--levels", "memory,disk"), "--levels"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(
    job: Job, words: tuple[str, ...], text: str
) -> None:
    job.levels = "memory,disk,shared"
    result = job.run(*words)
    assert result.status == 64 and text in result.err, result.err
    assert not job.store.exists()


def test_another_place_than_the_jobs_is_refused(job: Job, bucket: Objects) -> None:
    half(job, bucket)
    other = job.run("--object-store", "s3://bucket/elsewhere")
    assert other.status == 64 and bucket.url in other.err, other.err
    # Another job of this name, with another key.
    stranger = job.store.with_name("stranger")
    words = ("--object-store", bucket.url, "--store", str(stranger))
    shutil.copytree(job.store, stranger)
    (stranger / "test" / "key").unlink()
    result = job.run(*words, "--fresh")
    assert result.status != 0 and "OL-306" in result.err, result.err


def large(job: Job, bucket: Objects, *more: str) -> tuple[Run, Path]:
    """A job whose forced version is on its way in parts, four of 8 MiB on each node. None comes
    to its end before the caller says so: on a busy machine one would before another begins."""
    bucket.between.unfinished = b"-v10-"
    job.cells, job.steps = 2_000_000, 20
    go = job.dir / "go"
    words = job.program("--force", 10, "--pause", 14, go)
    never = ("--every", "1000000", "--shared-rate", "8MiB")
    run = job.start(*options(bucket), *never, *more, program=words)
    until("some of it is there", lambda: len(of_ten(bucket)) == job.nodes)
    return run, go


def of_ten(bucket: Objects) -> set[tuple[str, str]]:
    """The uploads of version 10: version 0 was taken before it."""
    return {(key, upload) for key, upload in bucket.upload_ids() if "-v10-" in key}


def test_an_upload_goes_on_with_the_next_agent(job: Job, bucket: Objects) -> None:
    run, go = large(job, bucket)
    began = of_ten(bucket)
    noted = [job.node(node) / "upload" for node in range(job.nodes)]
    begun = lambda path: path.exists() and b"-v10-" in path.read_bytes()  # noqa: E731
    until("all have noted what they began", lambda: all(map(begun, noted)))
    for node, pid in run.pids("agent").items():
        if node != 0:
            kill(pid)
    bucket.between.unfinished = None
    seen = set(began)

    def shared() -> bool:
        seen.update(of_ten(bucket))
        return job.stable("shared") == 10

    until("it is in the bucket", shared)
    go.touch()
    result = run.end()
    assert result.status == 0 and result.failures == [], result.err
    assert seen == began, "begun anew"
    assert bucket.uploads() == 0


@pytest.mark.parametrize("at", ["parts", "end"])
def test_an_upload_outlasts_an_outage(job: Job, bucket: Objects, at: str) -> None:
    """It begins amid the parts, or when all of them are there and their end is asked for."""
    run, go = large(job, bucket)
    began = of_ten(bucket)
    if at == "end":
        until("all ask for the end", lambda: len(bucket.between.held) >= job.nodes)
    bucket.between.set("cuts")
    bucket.between.unfinished = None
    seen = set(began)
    time.sleep(8)
    bucket.between.set("passes")

    def shared() -> bool:
        seen.update(of_ten(bucket))
        return job.stable("shared") == 10

    until("it is in the bucket", shared)
    assert seen == began and len(began) == job.nodes, "begun anew"
    until("no upload is left", lambda: bucket.uploads() == 0)
    go.touch()
    result = run.end()
    assert result.status == 0, result.err
    assert result.report["warnings"] == [], result.err
