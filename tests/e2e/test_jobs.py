"""All jobs of a store: listed, deleted, found finished; jobs without a name."""

import json
import os
import pty
import subprocess
from pathlib import Path

from harness import OUTLIVE, Job, kill, until


def say(job: Job, *words: object, status: int = 0) -> subprocess.CompletedProcess:
    """A command about the store, and not about one job."""
    words = tuple(str(word) for word in (OUTLIVE, *words, "--store", job.store))
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=20,
        env=job.environment(),
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == status, f"{words}\n{done.stdout}{done.stderr}"
    return done


def jobs(job: Job, command: str = "status") -> dict[str, dict]:
    """What the list says, by name."""
    answer = json.loads(say(job, command, "--json").stdout)
    assert answer["schema"] == "outlive.jobs/1" and answer["store"] == str(job.store)
    return {line["name"]: line for line in answer["jobs"]}


def test_all_jobs_of_a_store_are_listed(job: Job) -> None:
    job.hold(55, 40)
    job.steps = 60
    newest = job.survive().report["checkpoints"]["last"]["partner"]
    failing = ("--job", "failing", "--max-restarts", "0")
    assert say(job, "run", *failing, status=64)  # no command
    words = [OUTLIVE, "run", "--store", job.store, *failing, "--", "false"]
    assert subprocess.run(words, env=job.environment(), capture_output=True).returncode != 0
    door = job.dir / "door"
    program = job.program("--pause", 45, door)
    words = [OUTLIVE, "run", "--store", job.store, "--job", "other", "--every", "10", "--"]
    running = subprocess.Popen([*words, *program], env=job.environment(), stderr=subprocess.DEVNULL)
    try:
        until("the pause", Path(f"{door}.reached").exists)
        found = jobs(job)
        assert next(iter(found)) == "other", "what changed last comes first"
        assert {name: line["state"] for name, line in found.items()} == {
            "test": "ended-well",
            "failing": "failed",
            "other": "running",
        }
        assert found["other"]["pid"] == running.pid and found["other"]["exit_status"] is None
        test = found["test"]
        assert (test["version"], test["level"], test["exit_status"]) == (newest, "partner", 0)
        assert test["disk_bytes"] > sum(path.stat().st_size for path in job.containers(0))
        assert found["failing"]["version"] is None and found["failing"]["exit_status"] == 1
        # What was under way at the pause becomes stable meanwhile.
        until("one answer", lambda: jobs(job, "checkpoints") == jobs(job))
        for command in ("status", "checkpoints"):
            text = say(job, command).stdout
            assert all(len(line) <= 80 for line in text.splitlines()), text
            assert "ended well" in text and "running" in text and "failed (1)" in text
        door.touch()
        assert running.wait(30) == 0
    finally:
        running.kill()
        running.wait()
    assert jobs(job)["other"]["state"] == "ended-well"


def test_a_job_is_deleted_after_a_question(job: Job) -> None:
    job.hold(35, 0)
    job.steps = 40
    outside = job.dir / "scratch"
    job.survive("--node-storage", str(outside))
    (outside / "test" / "notes").write_text("the user's own")
    refused = say(job, "checkpoints", "delete", "test", status=64).stderr
    assert "--yes" in refused and jobs(job)["test"]["version"]

    def answer(text: str) -> tuple[int, str]:
        master, slave = pty.openpty()
        words = [OUTLIVE, "checkpoints", "delete", "test", "--store", job.store]
        asked = subprocess.Popen(
            words, stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        os.close(slave)
        os.write(master, text.encode())
        said = asked.communicate(timeout=20)[0]
        os.close(master)
        return asked.returncode, said

    status, said = answer("\n")
    assert status == 1 and "nothing was deleted" in said and str(outside / "test") in said
    assert jobs(job)["test"]["version"]
    status, said = answer("y\n")
    assert status == 0 and "job test deleted" in said, said
    assert jobs(job) == {} and not job.home.exists()
    assert [path.name for path in (outside / "test").iterdir()] == ["notes"]
    for name in (["test"], ["--job", "test"]):  # either way to name it
        gone = say(job, "checkpoints", "delete", *name, "--yes", status=74).stderr
        assert "OL-404" in gone and "job test" in gone, gone
    assert "no job is stored" in say(job, "status").stdout


def test_a_running_job_is_not_deleted(job: Job) -> None:
    door = job.dir / "door"
    program = job.program("--pause", 45, door)
    run = job.start(program=program)
    until("the pause", Path(f"{door}.reached").exists)
    refused = say(job, "checkpoints", "delete", "test", "--yes", status=75).stderr
    assert "OL-502" in refused and str(run.process.pid) in refused
    door.touch()
    assert run.end().status == 0
    job.check(program)


def test_a_killed_deletion_leaves_a_job_that_is_whole_or_plainly_being_deleted(job: Job) -> None:
    job.steps = 40
    job.survive()
    for n in range(3000):  # so that a deletion takes a while
        (job.node(n % job.nodes) / "files" / str(n)).write_text("x")
    words = [OUTLIVE, "checkpoints", "delete", "test", "--yes", "--store", job.store]
    deleting = subprocess.Popen(words, env=job.environment())
    until("its begin", lambda: (job.home / "deleting").exists() or not job.home.exists())
    kill(deleting.pid)
    deleting.wait()
    if job.home.exists():
        assert jobs(job)["test"]["state"] == "being-deleted"
        assert "being deleted" in say(job, "checkpoints").stdout
        assert "being deleted" in job.outlive("checkpoints", "list", status=75)
        result = job.run()
        assert result.status == 75 and "checkpoints delete test" in result.err
        deleted = json.loads(say(job, "checkpoints", "delete", "test", "--yes", "--json").stdout)
        assert deleted["job"] == "test" and deleted["directories"] == [str(job.home)]
    assert jobs(job) == {}
    assert job.survive().said("fresh")


def test_a_finished_job_says_so_when_its_command_is_repeated(job: Job) -> None:
    job.hold(55, 0)
    job.steps = 60
    assert "ended well on" not in job.survive().err
    # A version that is asked for while the one before is written is left out.
    newest = job.checkpoints()[0]["version"]
    again = job.survive()
    assert set(again.said("restored")) == {newest}
    assert "job test ended well on 20" in again.err
    assert f"it goes on from version {newest}; --fresh begins anew" in again.err
    fresh = job.survive("--fresh")
    assert fresh.said("fresh") and "ended well on" not in fresh.err
    # One that failed is gone on with without a word.
    result = job.run("--max-restarts", "0", program=["/bin/sh", "-c", "exit 3"])
    assert result.status == 3 or result.status == 79
    assert "ended well on" not in job.survive().err


def test_a_job_without_a_name_leaves_nothing_when_it_ends_well(job: Job) -> None:
    job.hold(40, 0)
    (job.dir / "here").mkdir()
    report = job.dir / "report.json"

    def run(*options: object, program: list[str]) -> subprocess.CompletedProcess:
        fixed = ("--emulate-nodes", 2, "--every", 10, "--report", report)
        words = [OUTLIVE, "run", *fixed, *options, "--", *program]
        words = [str(word) for word in words]
        environment = job.environment()
        return subprocess.run(
            words, cwd=job.dir / "here", env=environment, capture_output=True, text=True, timeout=60
        )

    outside = job.dir / "here" / "scratch"
    for more in ((), ("--node-storage", outside)):
        done = run(*more, program=job.program())
        assert done.returncode == 0, done.stderr
        assert json.loads(report.read_text())["checkpoints"]["taken"] > 0
        assert list((job.dir / "here").iterdir()) == []
        job.check()
    # One that cannot begin leaves nothing either.
    done = run("--report", job.dir / "no" / "r.json", program=["true"])
    assert done.returncode != 0 and list((job.dir / "here").iterdir()) == []
    # What fails stays, and says how to go on: to the letter.
    door = job.dir / "door"
    program = job.program("--pause", 45, door)
    words = [
        "/bin/sh",
        "-c",
        f"{' '.join(program)} & while ! test -e {door}.reached; do sleep 0.05"
        f"; done; sleep 0.5; kill -9 $!; exit 7",
    ]
    done = run("--max-restarts", 0, program=words)
    assert done.returncode == 7, done.stderr
    lines = done.stderr.splitlines()
    named = next(line for line in lines if "to go on:" in line).split()[-1]
    deletes = next(line for line in lines if "to delete it:" in line).split("it: ")[1].split()
    door.touch()
    more = run("--job", named, program=program)
    assert more.returncode == 0 and "restored" in more.stdout, more.stdout + more.stderr
    assert (job.dir / "here" / "outlive-store" / named).exists()
    deleted = subprocess.run([OUTLIVE, *deletes[1:], "--yes"], cwd=job.dir / "here", text=True)
    assert deleted.returncode == 0
    assert list((job.dir / "here" / "outlive-store").iterdir()) == []
