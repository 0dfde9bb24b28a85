"""Checkpoints whose time is decided by what they cost and how often the job fails."""

import json
import re
import shutil
import signal
from pathlib import Path

import pytest
from harness import Job, Run, kill, processes, until


def policy(job: Job) -> dict:
    """What the running report says of it."""
    path = job.home / "report.json"
    return json.loads(path.read_text())["policy"] if path.exists() else {"mode": "", "levels": []}


def shortest(entry: dict) -> float:
    """The shortest interval in force, in seconds."""
    return min(level["seconds"] for level in entry["levels"] if level["seconds"])


def learned(entry: dict) -> bool:
    """The costs of all levels are known."""
    return entry["mode"] == "auto" and all(level["background_ms"] for level in entry["levels"])


def rank(job: Job) -> int:
    """A process of the program that another one has started."""
    found = processes(job.token).items()
    ours = {pid for pid, line in found if line.startswith(str(job.ring))}

    def parent(pid: int) -> int:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return int(stat.rsplit(")", 1)[1].split()[1])

    return next(pid for pid in ours if parent(pid) in ours)


def newest(job: Job) -> int:
    """The newest version that some level keeps."""
    return max(job.running("last").values(), default=-1)


def test_intervals_follow_the_failures_of_the_job_and_are_kept(job: Job) -> None:
    job.every, job.ranks, job.nodes = None, 2, 1
    enough = job.dir / "enough"
    program = job.program("--until", enough)
    run = job.start("-v", program=program)
    assert "every 10.0 s to all levels" in until("a report", lambda: policy(job).get("why"))
    calm = until("known costs", lambda: learned(policy(job)) and policy(job))
    for failures in range(1, 5):
        # Each has brought something: one that brings nothing would be waited for.
        before = newest(job)
        until("a newer version", lambda before=before: newest(job) > before)
        fail(job, run, failures)
    failing = until("four failures are known", lambda: policy(job)["failures"] == 4 and policy(job))
    assert shortest(failing) < shortest(calm), (calm, failing)
    assert [level["level"] for level in failing["levels"]] == ["memory", "disk"]
    assert failing["levels"][0]["failures"] == 4
    said = job.outlive("status")
    assert re.search(r"^checkpoints  .*every .*: 4 failures in ", said, re.M), said
    enough.touch()
    result = run.end()
    assert result.status == 0, result.err
    job.check(program)
    assert re.search(r"checkpoints: memory every |checkpoints: disk every ", result.err), result.err
    kept = json.loads((job.home / "job.json").read_text())["learned"]
    assert [failure["lost"] for failure in kept["failures"]] == ["process"] * 4
    # The next run of the job goes on with what is known.
    enough.unlink()
    run = job.start(program=program)
    entry = until("a report of the next run", lambda: policy(job)["failures"] == 4 and policy(job))
    assert learned(entry) or shortest(entry) < 10
    enough.touch()
    assert run.end().status == 0


def test_powers_are_kept_for_later_runs(job: Job) -> None:
    """A job that is started again without them saves energy still, until it is told not to."""
    job.every, job.nodes, job.ranks, job.steps = None, 1, 2, 20
    saved = "energy is saved (90000 W computing, 65000 W blocked)"
    powers = ("--watts-compute", "90kW", "--watts-checkpoint", "65kW")
    for words, kept in (
        (powers, True),
        ((), True),
        (("--watts-compute", "off"), False),
        ((), False),
    ):
        result = job.survive(*words, "--fresh")
        assert (saved in result.report["policy"]["why"]) == kept, (words, result.report["policy"])
        file = json.loads((job.home / "job.json").read_text())
        expected = {"compute": 90000.0, "checkpoint": 65000.0} if kept else None
        assert file.get("powers") == expected
    # What cannot be is told and not used.
    path = job.home / "job.json"
    file = json.loads(path.read_text()) | {"powers": {"compute": -1.0, "checkpoint": 2.0}}
    del file["checksum"]
    path.write_text(json.dumps(file))
    result = job.survive("--fresh")
    told = [entry for entry in result.report["warnings"] if "powers" in entry["reason"]]
    assert len(told) == 1 and "energy" not in result.report["policy"]["why"], result.report


def fail(job: Job, run: Run, failures: int) -> None:
    """Kills a rank and waits until the job runs again."""
    kill(rank(job))
    again = lambda: json.loads((job.home / "report.json").read_text())["restarts"] == failures  # noqa: E731
    until("a restart", lambda: again() or run.process.poll() is not None)
    assert run.process.poll() is None, run.text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--every", "10", "--interval", "auto"), "give one of them"),
        (("--levels", "memory,disk/2", "--interval", "auto"), "leave /2 out"),
        (("--every", "10", "--overhead-max", "1%"), "only --interval auto"),
        (("--overhead-max", "2"), "give percent"),
    ],
)
def test_what_cannot_be_is_refused(job: Job, options: tuple[str, ...], said: str) -> None:
    job.every = None
    result = job.run(*options)
    assert result.status == 64, result.err
    assert said in result.err


def test_what_is_given_is_explained(job: Job) -> None:
    result = job.survive()
    assert result.report["policy"]["mode"] == "every"
    assert result.report["policy"]["why"] == "at versions divisible by 10, as given"


def test_what_was_learned_and_makes_no_sense_is_told_and_not_used(job: Job) -> None:
    job.every, job.steps = None, 30
    job.survive()
    path = job.home / "job.json"
    file = json.loads(path.read_text())
    file["learned"] = {"seconds": -5.0, "since": 0.0, "failures": [], "levels": {}}
    del file["checksum"]
    path.write_text(json.dumps(file))
    result = job.survive()
    told = [entry for entry in result.report["warnings"] if "was learned" in entry["reason"]]
    assert len(told) == 1, result.report["warnings"]
    assert json.loads(path.read_text())["learned"]["seconds"] > 0


def test_a_batch_systems_warning_keeps_the_next_version_at_all_levels(job: Job) -> None:
    job.every, job.ranks, job.nodes = 1_000_000, 2, 2
    enough = job.dir / "enough"
    levels = ["--levels", "memory,disk,partner/1000000"]
    run = job.start("-v", *levels, program=job.program("--until", enough))
    until("the program runs", lambda: "joined" in run.text())
    assert job.running("last") == {}
    # To every process of the job, as Slurm may: none of ours dies of it.
    for number in ("keeper", "agent"):
        for pid in run.pids(number).values():
            kill(pid, signal.SIGUSR1)
    run.signal(signal.SIGUSR1)
    everywhere = {"memory", "disk", "partner"}
    until("a version at all levels", lambda: set(job.running("last")) == everywhere)
    enough.touch()
    result = run.end()
    assert result.failures == [] and "SIGUSR1" in run.text()


def test_a_warning_is_not_taken_for_heard_by_a_version_that_was_due_anyway(job: Job) -> None:
    job.every, job.ranks, job.nodes = 10, 2, 2
    enough = job.dir / "enough"
    # After the first version only the warning brings one to partners.
    levels = ["--levels", "memory,disk,partner/1000000"]
    run = job.start("-v", *levels, program=job.program("--until", enough))
    until("versions are taken", lambda: run.text().count("stable on disk") > 2)
    until("the first one is told", lambda: "partner" in job.running("last"))
    first = job.running("last")["partner"]
    run.signal(signal.SIGUSR1)
    until("another one at all levels", lambda: job.running("last")["partner"] > first)
    enough.touch()
    assert run.end().failures == []


def test_a_warning_is_heard_once_where_a_level_cannot_be_written(job: Job) -> None:
    job.every, job.ranks, job.nodes = 10, 6, 3
    enough = job.dir / "enough"
    levels = ["--levels", "memory,disk,partner/1000000,shared/1000000"]
    run = job.start("-v", *levels, program=job.program("--until", enough))
    until("versions are taken", lambda: run.text().count("stable on disk") > 2)
    until("the first one is everywhere", lambda: "shared" in job.running("last"))
    containers = job.home / "shared" / "containers"
    containers.rename(job.dir / "aside")
    # A file where a directory is expected keeps root out as well.
    containers.write_text("")
    # Which node is told first that it cannot write, and when, differs from one to the next.
    for warning in range(1, 9):
        run.signal(signal.SIGUSR1)
        until("it is heard", lambda warning=warning: run.text().count("SIGUSR1") == warning)
        seen = len(versions(run))
        until("versions after it", lambda seen=seen: len(versions(run)) >= seen + 5)
    enough.touch()
    result = run.end()
    assert "warning: OL-" in result.err, result.err
    # Those that nobody asked for are due at every tenth step. One that a rank had passed when it
    # was asked for comes to nothing, and the next is in its place.
    kept = [int(number) for number in re.findall(r"version (\d+) stable on disk", run.text())]
    assert len([version for version in kept if version % job.every]) <= 8, kept


def test_a_preempted_run_saves_what_it_can_and_the_next_one_goes_on(job: Job) -> None:
    job.every, job.ranks, job.nodes = None, 2, 1
    enough = job.dir / "enough"
    program = job.program("--until", enough)
    levels = ("--levels", "memory,shared", "--notice", "8s", "--kill-grace", "1s")
    run = job.start("-v", *levels, "--preempt-signal", "TERM", program=program)
    until("the program runs", lambda: "joined" in run.text())
    run.signal(signal.SIGTERM)
    # It is the notice of an end, not the end: a version at once, and a last one later.
    until("a version at once", lambda: "stable on shared" in run.text())
    result = run.end()
    assert result.status == 128 + signal.SIGTERM
    assert result.report["result"] == "interrupted" and result.failures == []
    assert "SIGTERM: preempted in 8.0 s" in result.err, result.err
    kept = [int(number) for number in re.findall(r"version (\d+) stable on shared", result.err)]
    assert len(kept) >= 2, result.err
    job.gone()
    assert preemptions(job) == (1, 0)
    # The next run is warned by a batch system, which ends it itself, or not after all.
    run = job.start("-v", *levels, program=program)
    until("it is restored", lambda: "joined" in run.text())
    run.signal(signal.SIGUSR1)
    until("it is learned at once", lambda: preemptions(job) == (2, 0))
    enough.touch()
    result = run.end()
    assert (result.status, result.failures) == (0, [])
    assert set(result.said("restored")) == {max(kept)}
    job.check(program)
    assert "2 preemptions in" in result.report["policy"]["why"]


def test_one_machine_of_many_that_is_taken_away_after_its_warning(job: Job) -> None:
    """Whoever hears that one machine will go sends SIGUSR1: the next version goes to all levels and
    nothing is ended. When the machine goes, a spare takes its place, and what was computed since
    that version is lost: nobody moves its ranks before."""
    job.every, job.ranks, job.nodes, job.spares = 1_000_000, 3, 3, 1
    enough = job.dir / "enough"
    program = job.program("--until", enough)
    run = job.start("-v", "--levels", "memory,disk,partner/1000000", program=program)
    until("the program runs", lambda: "joined" in run.text())
    assert job.running("last") == {}
    run.signal(signal.SIGUSR1)
    until("a version with a partner", lambda: "partner" in job.running("last"))
    kept = job.running("last")["partner"]
    shutil.rmtree(job.node(1))
    kill(run.pids("keeper")[1])
    until("the machine is lost", lambda: job.running("last") and "restored" in run.text())
    enough.touch()
    result = run.end()
    failure = result.failure()
    assert (result.status, failure["kind"], failure["place"]) == (0, "node", "node:1")
    assert (failure["level"], failure["version"]) == ("partner", kept)
    assert set(result.said("restored")) == {kept}
    job.check(program)


def preemptions(job: Job) -> tuple[int, int]:
    """Those that the job's file tells the next run of, and the failures."""
    kept = json.loads((job.home / "job.json").read_text()).get("learned", {})
    return len(kept.get("preemptions", [])), len(kept.get("failures", []))


def versions(run: Run) -> list[int]:
    """The versions that were captured, in their order."""
    return [int(number) for number in re.findall(r"version (\d+) captured", run.text())]
