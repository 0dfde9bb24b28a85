"""Copies are read before they are needed; what has rotted is mended, or told."""

import json
import signal
from pathlib import Path

import pytest
from harness import Job, Run, damage, newest_of, until

OFTEN = ("--scrub-every", "300ms", "--scrub-rate", "256MiB")


def entry(job: Job) -> dict:
    """What the running report says of it."""
    path = job.home / "report.json"
    return json.loads(path.read_text())["scrub"] if path.exists() else {}


def paused(job: Job, *options: str, force: int = 10, **more) -> tuple[Run, Path, int]:
    """A job that waits after a version that is stable everywhere: its run, the file that lets it
    go on, and the version."""
    go = job.dir / "go"
    words = job.program("--force", force, "--pause", force + 4, go)
    run = job.start(*options, "--every", "1000000", program=words, **more)
    until("it waits", lambda: (job.dir / "go.reached").exists())
    return run, go, job.settled(force)


def newest(job: Job, node: int, kind: str) -> Path:
    return newest_of(job.containers(node, kind))


def goes_on(job: Job, run: Run, go: Path, force: int = 10):
    go.touch()
    result = run.end()
    assert result.status == 0, result.err
    words = job.program("--force", force, "--pause", force + 4, go)
    job.check(words)
    return result


def test_a_sound_job_is_read_and_says_when(job: Job) -> None:
    run, go, version = paused(job, *OFTEN)
    levels = ("disk", "partner")

    def read() -> bool:
        found = entry(job).get("versions", [])
        at = {it["level"]: it["read_seconds"] for it in found if it["version"] == version}
        return all(at.get(level) is not None for level in levels)

    until("it is read whole", read)
    # Each node has its own container and one that it keeps.
    until("all copies are read", lambda: entry(job)["read"] >= 2 * job.nodes)
    text = job.outlive("status")
    assert f"version {version} at partner: read whole" in text, text
    assert entry(job)["damaged"] == 0
    result = goes_on(job, run, go)
    assert result.report["warnings"] == []


# What rots, at which levels: the own container, the one that is kept for a partner, a parity, and
# the copy in the shared directory.
ROTS = [
    ("memory,disk,partner", "containers"),
    ("disk,partner", "partner"),
    ("disk,xor:3", "containers"),
    ("disk,xor:3", "parity"),
    ("disk,shared", "containers"),
    ("disk,shared", "shared"),
]


@pytest.mark.parametrize(("levels", "kind"), ROTS)
def test_what_rots_is_mended(job: Job, levels: str, kind: str) -> None:
    job.beyond = levels.rpartition(",")[2]
    run, go, _ = paused(job, *OFTEN, "--levels", levels)
    if kind == "shared":
        files = (job.home / "shared" / "containers").glob("*-n1*")
        path = newest_of(files)
    else:
        path = newest(job, 1, kind)
    sound = path.read_bytes()
    damage(path)
    until("it is mended", lambda: entry(job).get("mended", 0) >= 1)
    assert path.read_bytes() == sound
    result = goes_on(job, run, go)
    (warning,) = [it for it in result.report["warnings"] if it["code"] == "OL-403"]
    assert "mended" in warning["reason"] and path.name in warning["entity"], warning


@pytest.mark.parametrize(("levels", "kind"), ROTS)
def test_what_is_lost_is_made_again(job: Job, levels: str, kind: str) -> None:
    job.beyond = levels.rpartition(",")[2]
    run, go, _ = paused(job, *OFTEN, "--levels", levels)
    if kind == "shared":
        path = newest_of((job.home / "shared" / "containers").glob("*-n1*"))
    else:
        path = newest(job, 1, kind)
    sound = path.read_bytes()
    path.unlink()
    until("it is made again", lambda: entry(job).get("mended", 0) >= 1)
    assert path.read_bytes() == sound
    result = goes_on(job, run, go)
    (warning,) = [it for it in result.report["warnings"] if it["code"] == "OL-403"]
    assert "it is gone" in warning["reason"] and "made again" in warning["reason"], warning
    assert path.name in warning["entity"], warning


@pytest.mark.parametrize("levels", ["disk,partner", "disk,xor:3", "disk,shared"])
def test_what_was_removed_is_not_made_again(job: Job, levels: str) -> None:
    """Versions are replaced all the time, and looked for as often."""
    job.beyond = levels.rpartition(",")[2]
    often = ("--scrub-every", "10ms", "--scrub-rate", "1GiB", "--levels", levels)
    result = job.goes_on(*often, when=job.counts(12, job.beyond))
    assert result.report["warnings"] == [], result.err
    scrub = result.report["scrub"]
    assert scrub["read"] > 0 and scrub["damaged"] == 0, scrub
    # What is on its way to shared storage stays meanwhile, however much that is.
    kinds = ("containers", "partner", "parity") if job.beyond != "shared" else ()
    for node in range(job.nodes):
        for kind in kinds:
            left = job.containers(node, kind)
            assert len(left) <= 3, left


@pytest.mark.parametrize("levels", ["memory,disk,partner", "disk,xor:3"])
def test_a_replaced_node_makes_nothing_of_what_was_removed(job: Job, levels: str) -> None:
    """It knows decisions on versions that were removed before its time, and no removals."""
    job.beyond = levels.rpartition(",")[2]
    often = ("--scrub-every", "20ms", "--scrub-rate", "1GiB", "--levels", levels)
    job.hold(100, 60)
    fault = ("node:1@version=101",)
    counts = job.counts(12, job.beyond)
    result = job.goes_on(*often, when=lambda run: counts(run) and run_on(job, 2), inject=fault)
    assert [it["place"] for it in result.failures] == ["node:1"], result.err
    assert "OL-403" not in result.codes(), result.report["warnings"]


def run_on(job: Job, incarnation: int) -> bool:
    """The job runs in this incarnation, or a later one."""
    path = job.home / "report.json"
    return (
        path.exists()
        and max(json.loads(path.read_text())["incarnations"], default=0) >= incarnation
    )


def test_what_nothing_is_left_of_is_told_once(job: Job) -> None:
    run, go, version = paused(job, *OFTEN, "--levels", "disk,partner")
    path = newest(job, 1, "containers")
    (job.node(2) / "partner" / path.name).unlink()
    path.unlink()

    def unread() -> bool:
        found = [it for it in entry(job)["versions"] if it["version"] == version]
        return any(it["read_seconds"] is None for it in found)

    until("one at least is told", lambda: entry(job).get("damaged", 0) >= 1)
    until("the version is not whole", unread)
    result = goes_on(job, run, go)
    told = [it for it in result.report["warnings"] if it["code"] == "OL-403"]
    assert 1 <= len(told) <= 2 and all("it is gone" in it["reason"] for it in told), told


def test_what_was_mended_is_what_is_restored(job: Job) -> None:
    """Both copies of a node rot, one after the other, and then the first again."""
    run, go, version = paused(job, *OFTEN, "--levels", "disk,partner")
    own = newest(job, 1, "containers")
    kept = job.node(2) / "partner" / own.name
    for mended, path in enumerate([own, kept], start=1):
        damage(path)
        until("it is mended", lambda count=mended: entry(job)["mended"] >= count)
    run.signal(signal.SIGTERM)
    run.end()
    damage(own)
    go.touch()
    result = job.survive("--levels", "disk,partner", "--scrub-every", "off")
    assert set(result.said("restored")) == {version}


def test_what_nothing_mends_is_told_once(job: Job) -> None:
    run, go, version = paused(job, *OFTEN, "--levels", "disk,partner")
    path = newest(job, 1, "containers")
    damage(job.node(2) / "partner" / path.name)
    damage(path)
    until("both are told", lambda: entry(job).get("damaged", 0) >= 2)

    def unread() -> bool:
        found = [it for it in entry(job)["versions"] if it["version"] == version]
        return any(it["read_seconds"] is None for it in found)

    until("the version is not whole", unread)
    result = goes_on(job, run, go)
    told = [it for it in result.report["warnings"] if it["code"] == "OL-403"]
    assert len(told) == 2 and all("not be mended" in it["reason"] for it in told), told
    assert result.report["scrub"]["mended"] == 0


def test_it_can_be_switched_off_and_bad_words_are_refused(job: Job) -> None:
    run, go, _ = paused(job, "--scrub-every", "off")
    assert entry(job)["read"] == 0
    goes_on(job, run, go)
    for options, word in [
        (("--scrub-every", "soon"), "scrub-every"),
        (("--scrub-every", "0s"), "off"),
        (("--scrub-rate", "0"), "scrub-rate"),
    ]:
        result = job.run(*options)
        assert result.status == 64 and word in result.err, result.err
