"""Copies in shared storage that are made of what lies in node storage."""

import json
import re
import time
from pathlib import Path

import pytest
from harness import Job, Run, damage, kill, until

LEVELS = "memory,disk,shared"
RARELY = ("--every", "1000000")


@pytest.fixture(autouse=True)
def shares(job: Job) -> None:
    job.levels, job.beyond = LEVELS, "shared"


def shared(job: Job, version: int) -> dict[str, bytes]:
    """The copies of a version in the shared directory."""
    found = (job.home / "shared" / "containers").glob(f"[!.]*-v{version}-*")
    return {path.name: path.read_bytes() for path in found}


def paused(job: Job, *more: str) -> tuple[Run, Path]:
    """A job that waits after a forced version."""
    go = job.dir / "go"
    run = job.start(*RARELY, *more, program=job.program("--force", 40, "--pause", 45, go))
    until("it waits", lambda: (job.dir / "go.reached").exists())
    return run, go


@pytest.mark.parametrize("made_of", ["disk", "memory"])
def test_what_is_slow_to_share_holds_up_no_version(job: Job, made_of: str) -> None:
    """Unless it is asked for: then each version keeps its memory until it is shared."""
    job.levels = "memory,disk,shared/2"
    before = []

    def enough(_: Run) -> bool:
        stable = job.running("stable")
        if stable.get("shared", 0) == 0:
            before.append(stable.get("disk", 0))
        return stable.get("shared", 0) >= 2 and stable.get("disk", 0) >= 8

    result = job.goes_on("--shared-rate", "16KiB", "--shared-from", made_of, when=enough)
    assert result.report["warnings"] == [], result.err
    assert max(before) >= 6 if made_of == "disk" else max(before) <= 3, before


def test_all_nodes_together_write_no_faster_than_they_may(job: Job) -> None:
    job.cells, began = 2000, time.monotonic()
    run, go = paused(job, "--shared-rate-job", "60KiB")
    until("it is shared", lambda: job.stable("shared") == 40, 60)
    took = time.monotonic() - began
    go.touch()
    assert run.end().status == 0
    longest = max(len(data) for data in shared(job, 40).values())
    assert took >= 0.9 * longest / (20 << 10) > 2, (took, longest)


def status(job: Job) -> dict:
    """What `outlive status` says as JSON."""
    return json.loads(job.outlive("status", "--json"))


def test_status_shows_what_is_on_its_way_and_nothing_when_all_has_come(job: Job) -> None:
    job.cells = 2000
    run, go = paused(job, "--shared-rate", "4KiB")

    def comes() -> list[dict]:
        # Version 0 comes before it, and has ended when this one begins.
        found = [it for it in status(job)["transfers"] if it["version"] == 40 and it["since"]]
        return found if any(0 < it["bytes"] < it["bytes_total"] for it in found) else []

    found = until("a transfer is under way", comes)
    lengths = {
        int(path.stem.split("-n")[1]): path.stat().st_size
        for n in range(3)
        for path in job.containers(n)
        if "-v40-" in path.name
    }
    for it in found:
        assert (it["incarnation"], it["host"]) == (1, None)
        assert it["bytes_total"] == lengths[it["node"]]
        assert 0 <= it["bytes"] <= it["bytes_total"] and it["age_ms"] >= 0
        # A bound that holds, and one read ahead of it.
        seconds = max(it["age_ms"] / 1e3, 1e-3)
        assert it["bytes_per_second"] * seconds <= (4 << 10) * seconds + (1 << 20)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", it["since"])
    text = job.outlive("status")
    assert re.search(r"^transfer +version 40 of node \d to shared storage: .* of .*iB", text, re.M)
    until("it comes further", lambda: further(job, found))
    until("it is shared", lambda: job.stable("shared") == 40, 60)
    until("nothing is told", lambda: status(job)["transfers"] == [])
    assert "transfer" not in job.outlive("status")
    go.touch()
    assert run.end().status == 0
    assert status(job)["transfers"] == []


def further(job: Job, before: list[dict]) -> bool:
    """A node has handed on more than it had, or has ended."""
    now = {it["node"]: it["bytes"] for it in status(job)["transfers"] if it["version"] == 40}
    return any(now.get(it["node"], it["bytes_total"] + 1) > it["bytes"] for it in before)


def test_what_an_agent_had_begun_the_next_one_ends(job: Job) -> None:
    """Of the version that is on its way no memory is left: newer ones have it."""
    job.levels = "memory,disk,shared/1000"
    killed: list[int] = []
    written: list[int] = []

    def shares(run: Run) -> bool:
        last = job.running("last")
        if not killed and last.get("disk", 0) >= 60:
            assert "shared" not in last, last
            # Where a job begins slowly, its first version may be a later one.
            written.append(last["disk"])
            # Not the coordinator's: what it had not decided, it would give up.
            killed.extend(pid for node, pid in run.pids("agent").items() if node != 0)
            for pid in killed:
                kill(pid)
        return "shared" in last

    result = job.goes_on("--shared-rate", "6KiB", when=shares)
    first = result.report["checkpoints"]["last"]["shared"]
    assert first <= written[0] and len(killed) == 2, result.err
    assert result.failures == [], result.err
    assert len(shared(job, first)) == job.nodes
    job.outlive("checkpoints", "verify")


def test_what_rots_before_it_is_shared_is_not(job: Job) -> None:
    """It is found as it is read: the version is given up there, and nowhere else."""
    job.cells = 2000
    run, go = paused(job, "--shared-rate", "16KiB")
    until("it is on the disk", lambda: job.stable("disk") == 40)
    (path,) = [path for path in job.containers(1) if "-v40-" in path.name]
    damage(path, 0.9)
    warned = lambda: "OL-403" in (job.home / "report.json").read_text()  # noqa: E731
    until("the damage is told", warned)
    go.touch()
    result = run.end()
    assert result.status == 0, result.err
    (found,) = [it for it in result.report["warnings"] if it["code"] == "OL-403"]
    assert path.name in found["entity"], found
    assert path.name not in shared(job, 40)


def test_what_comes_no_further_is_given_up(job: Job) -> None:
    """A bound below what the rate allows for one step."""
    run, go = paused(job, "--shared-rate", "1KiB", "--commit-timeout", "500ms")
    given_up = lambda: "has taken nothing of its copy" in run.text()  # noqa: E731
    until("it is given up", given_up)
    until("it is on the disk", lambda: job.stable("disk") == 40)
    go.touch()
    result = run.end()
    assert result.status == 0 and "shared" not in result.report["checkpoints"]["last"], result.err


@pytest.mark.parametrize(
    "words", [("--shared-rate", "0"), ("--shared-from", "tape"), ("--shared-rate-job", "x")]
)
def test_bounds_that_mean_nothing_are_refused(job: Job, words: tuple[str, str]) -> None:
    result = job.run(*words)
    assert result.status == 64 and words[0].removeprefix("--") in result.err, result.err
