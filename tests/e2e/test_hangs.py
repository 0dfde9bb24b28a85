"""Jobs whose ranks live and come no further: where they are is told, and what is asked is done."""

import os
import signal
from pathlib import Path

import pytest
from harness import Job, until

BOUND = ("--hang-timeout", "2s")
# Who hangs, and after how many versions; the others wait for it, all in one function.
HUNG, AT = 4, 25
# What a node of the last test writes takes longer than the bound at this rate.
RATE = "1MiB"


def hanging(job: Job, how: str) -> list[str]:
    """The program, of which one rank hangs in its first start after 25 versions, one of which is
    kept."""
    job.hold(20, 10, "process")
    return job.program("--hang", AT, HUNG, how)


def the_hang(job: Job, report: dict) -> dict:
    """The only one, whose stacks are written."""
    (entry,) = report["hangs"]
    assert entry["version"] == AT and not entry["learnt"], entry
    assert entry["still_seconds"] >= 2.0 and entry["silent_nodes"] == [], entry
    assert Path(entry["file"]) == job.home.resolve() / "hang-1.txt"
    alone, others = entry["places"]
    assert (alone["ranks"], alone["count"]) == (str(HUNG), 1), entry
    assert others["does"].startswith("waiting in pthread_barrier_wait"), entry
    assert others["count"] == job.ranks - 1, entry
    return entry


@pytest.mark.parametrize(
    ("how", "does"),
    [
        ("loop", "running in spins_for_ever"),
        ("read", "waiting in read, called by reads_for_ever"),
    ],
)
def test_who_hangs_is_named_and_the_job_goes_on_from_a_version(
    job: Job, how: str, does: str
) -> None:
    program = hanging(job, how)
    result = job.survive("--on-hang", "restart", *BOUND, program=program)
    entry = the_hang(job, result.report)
    assert entry["places"][0]["does"] == does, entry
    assert (entry["action"], entry["resumed_seconds"]) == ("restart", None)
    (line,) = [line for line in result.err.splitlines() if "no progress for" in line]
    assert f"after version {AT} (bound: 2.0 s, as given): rank {HUNG} {does}; ranks 0-3, 5" in line
    assert line.endswith(entry["file"])
    text = Path(entry["file"]).read_text()
    for rank in range(job.ranks):
        assert f"\nrank {rank} on node {rank * job.nodes // job.ranks}: process " in text, text
    assert does.split()[-1] in text.split(f"\nrank {HUNG} on ")[1].split("\nrank ")[0], text
    failure = result.failure()
    assert (failure["kind"], failure["place"]) == ("hang", "job"), failure
    assert result.report["restarts"] == 1 and 10 <= failure["version"] <= AT
    assert entry["file"] in failure["cause"]
    # Each start told where it went on from, and the second one did not hang.
    assert len(result.said("fresh") + result.said("restored")) == 2 * job.ranks


def test_a_job_that_is_to_be_killed_ends_with_a_code(job: Job) -> None:
    program = hanging(job, "loop")
    result = job.run("--on-hang", "kill", *BOUND, program=program)
    assert result.status == 81, result.err
    entry = the_hang(job, result.report)
    (error,) = result.report["errors"]
    assert error["code"] == "OL-508" and entry["file"] in error["remedy"], error
    assert "OL-508" in result.err and result.report["restarts"] == 0
    # The same command goes on; this start does not hang. What was written stays.
    job.survive("--on-hang", "kill", "--hang-timeout", "20s", program=program)
    assert (job.home / "hang-1.txt").exists()
    assert "OL-508" not in job.outlive("status")


def test_what_goes_on_again_is_told_and_left_alone(job: Job) -> None:
    """A rank that was stopped."""
    run = job.start(*BOUND, program=hanging(job, "stop"))
    until("it is told", lambda: "all stacks: " in run.text())
    until("it is written down", (job.home / "hang-1.txt").exists)
    (pid,) = stopped(job)
    os.kill(pid, signal.SIGCONT)
    result = run.end()
    assert result.status == 0 and result.report["restarts"] == 0, result.err
    entry = the_hang(job, result.report)
    assert entry["places"][0]["does"] == "stopped in raise, called by stops", entry
    assert entry["action"] == "report" and entry["resumed_seconds"] >= 2.0, entry
    (line,) = [line for line in result.err.splitlines() if "come forward again" in line]
    assert "the bound is " in line
    assert result.err.count("no progress for") == 1
    job.check()


def test_long_steps_and_a_long_wait_are_no_hang(job: Job) -> None:
    """The job runs for longer than the bound, and ranks wait for a version for longer than it."""
    job.steps, job.sleep_us, job.cells = 5, 500_000, 200_000
    slow = f"slow:node:1@version=3,rate={RATE}"
    program = job.program("--force", 4, "--wait", "all-nodes")
    options = ("--on-hang", "kill", *BOUND, "--every", "100", "--levels", "shared")
    result = job.survive(*options, program=program, inject=(slow,))
    assert result.report["hangs"] == [] and result.report["restarts"] == 0
    assert len(result.said("committed")) == 2 * job.ranks


def test_a_command_that_no_rank_joins_is_told_and_left_alone(job: Job) -> None:
    """It may be a program that works for long, or one that never opens the library."""
    enough = job.dir / "enough"
    waits = f"while [ ! -e {enough} ]; do sleep 0.05; done"
    run = job.start("--join-timeout", "2s", program=["sh", "-c", waits])
    until("it is told", lambda: "OL-509" in run.text())
    until("it is written down", (job.home / "hang-1.txt").exists)
    until("status tells it", lambda: "ranks did not join for" in job.outlive("status"))
    assert "OL-509" in job.outlive("logs")
    top = job.outlive("top", "--once")
    assert "the first rank to join: none for" in top and "see hang-1.txt" in top, top
    enough.touch()
    result = run.end()
    assert result.status == 0 and result.report["restarts"] == 0, result.err
    assert result.codes() == {"OL-509"} and result.err.count("OL-509") == 1, result.err
    (entry,) = result.report["hangs"]
    assert entry["joining"] and entry["action"] == "report", entry
    assert (entry["places"], entry["resumed_seconds"]) == ([], None), entry
    shell = entry["processes"][0]
    assert shell["command"].startswith("sh -c while") and shell["count"] == 1, entry
    assert f"{shell['command']} ({shell['pid']}) " in result.err
    assert f"\nprocess {shell['pid']} (sh -c" in (job.home / "hang-1.txt").read_text()


def test_a_start_that_no_rank_joins_is_ended_and_the_next_goes_on(job: Job) -> None:
    hangs_first = '[ "$OUTLIVE_INCARNATION" != 1 ] || exec sleep 1000; exec "$@"'
    program = ["sh", "-c", hangs_first, "sh", *job.program()]
    result = job.run("--join-timeout", "2s", "--on-hang", "restart", program=program)
    assert result.status == 0, result.err
    job.check()
    failure = result.failure()
    assert (failure["kind"], failure["place"], failure["version"]) == ("hang", "job", None)
    assert "no rank has joined for 2.0 s" in failure["cause"], failure
    (entry,) = result.report["hangs"]
    assert entry["joining"] and entry["action"] == "restart", entry
    assert entry["processes"][0]["command"] == "sleep 1000", entry
    assert result.report["restarts"] == 1 and len(result.said("fresh")) == job.ranks


def test_a_start_that_no_rank_joins_may_end_the_job(job: Job) -> None:
    program = ["sh", "-c", "exec sleep 1000"]
    result = job.run("--join-timeout", "2s", "--on-hang", "kill", program=program)
    assert result.status == 81, result.err
    (error,) = result.report["errors"]
    assert error["code"] == "OL-509" and "hang-1.txt" in error["remedy"], error


def stopped(job: Job) -> list[int]:
    """Ranks that are, by the file of the hang."""
    lines = (job.home / "hang-1.txt").read_text().splitlines()
    pids = [int(line.split(": process ")[1].split()[0]) for line in lines if ": process " in line]
    return [pid for pid in pids if state(pid) == "T"]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
