"""`outlive status` and `outlive checkpoints` beside a running job and after it."""

import json
import re
from pathlib import Path

from harness import Job, damage, newest_of, until


def documents(job: Job) -> dict[str, dict]:
    """What each command says as JSON."""
    say = lambda *words: json.loads(job.outlive(*words, "--json"))  # noqa: E731
    return {
        "status": say("status"),
        "list": say("checkpoints", "list"),
        "verify": say("checkpoints", "verify"),
        "rehearse": say("checkpoints", "rehearse", "--lose", "node:2"),
    }


def test_beside_a_running_job_and_after(job: Job) -> None:
    job.hold(60, 30)
    door = job.dir / "door"
    program = job.program("--pause", 65, door)
    run = job.start(program=program)
    until("the pause", Path(f"{door}.reached").exists)
    newest = job.settled(30)
    assert f'"version": {newest}' in job.outlive("checkpoints", "list", "--json")
    said = documents(job)
    assert said["status"]["running"] and said["status"]["pid"] == run.process.pid
    door.touch()
    result = run.end()
    assert result.status == 0
    said = documents(job)
    assert not said["status"]["running"]
    assert said["status"]["report"]["result"] == "finished"
    newest = str(result.report["checkpoints"]["last"]["partner"])
    assert newest in job.outlive("checkpoints", "list")
    assert job.outlive("checkpoints", "show", newest)
    assert "finished" in job.outlive("status") or "ended well" in job.outlive("status")
    job.check(program)


def test_damage_is_found(job: Job) -> None:
    job.hold(100, 50)
    job.survive()
    newest = newest_of(job.containers(1))
    damage(newest)
    text = job.outlive("checkpoints", "verify", status=65)
    assert newest.name in text
    # Another copy is left: the loss of that node is survived, that of its partner not.
    job.outlive("checkpoints", "rehearse", "--lose", "node:1")


def test_versions_that_were_never_captured(job: Job) -> None:
    # Ranks that never offer the same version: what is called for is given up.
    job.every, job.steps = None, 300
    result = job.run("--interval", "50ms", program=job.program("--scale", "10", "--unequal"))
    assert result.status == 0, result.err
    every = json.loads(job.outlive("checkpoints", "list", "--all", "--json"))["versions"]
    gone = {entry["version"] for entry in every if not entry["captured"]}
    assert gone, every
    stored = {entry["version"] for entry in job.checkpoints()}
    assert not gone & stored, (gone, stored)
    rows = [line.split() for line in job.outlive("checkpoints", "list", "--all").splitlines()]
    said = {int(row[0]) for row in rows if row[-2:] == ["given", "up"]}
    assert said == gone, rows
    one = min(gone)
    shown = job.outlive("checkpoints", "show", one)
    assert re.match(rf"version {one} of incarnation 1: given up, ", shown), shown
    assert "committed" not in shown and " at node" not in shown, shown


def test_no_version_is_stored(job: Job) -> None:
    job.steps, job.every = 20, None
    job.survive("--interval", "1h")
    assert "no version is stored" in job.outlive("checkpoints", "list")
    assert job.checkpoints() == []
    said = job.outlive("checkpoints", "show", status=74)
    assert "OL-404 not found: job test: no version is stored" in said, said
    said = job.outlive("checkpoints", "show", "12", status=74)
    assert "OL-404 not found: version 12: there is no record of it" in said, said


def test_what_is_not_there(job: Job) -> None:
    job.steps = 30
    job.survive()
    assert "OL-404" in job.outlive("checkpoints", "show", "999", status=74)
    assert "OL-100" in job.outlive("checkpoints", "rehearse", "--lose", "node:9", status=64)
