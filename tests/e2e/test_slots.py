"""Service work of the agents in slots, and a daemon of the user's own."""

import json
import subprocess
from pathlib import Path

from harness import OUTLIVE, Job, kill, until

SLOTS = ("--service-slots", "400ms/100ms")


def state(pid: int) -> str:
    """As the kernel says: T stands still; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except OSError:
        return ""


def status(job: Job, *words: str) -> str:
    """What `outlive status` says."""
    line = [OUTLIVE, "status", "--store", str(job.store), "--job", "test", *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=job.environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_daemon_stands_still_between_slots_and_ends_with_its_agent_and_its_job(job: Job) -> None:
    pids = job.dir / "pids"
    pids.mkdir()
    enough = job.dir / "enough"
    # It writes its number whole: somebody reads it meanwhile.
    command = f'cd {pids} && echo $$ > $$.new && mv $$.new "node-$OUTLIVE_NODE" && exec sleep 600'
    run = job.start(*SLOTS, "--daemon", command, program=job.program("--until", enough))

    def daemon(node: int) -> int:
        file = pids / f"node-{node}"
        return int(file.read_text()) if file.exists() else 0

    nodes = range(job.nodes)
    until("each node has one", lambda: all(daemon(node) for node in nodes))
    for node in nodes:
        for _ in range(2):
            until("it stands still", lambda node=node: state(daemon(node)) == "T")
            until("it goes on", lambda node=node: state(daemon(node)) == "S")

    def clocks() -> list[dict]:
        found = (job.home / "view" / "live.json").exists()
        return json.loads(status(job, "--json"))["clocks"] if found else []

    until("all know the coordinator's clock", lambda: len(clocks()) == job.nodes - 1)
    assert all(clock["error_ns"] > 0 for clock in clocks())
    assert "\nslots        clocks are known to " in status(job)
    # One that is killed with its agent while it stands still: the next agent has another.
    first = daemon(1)
    until("it stands still", lambda: state(first) == "T")
    kill(run.pids("agent")[1])
    until("it is gone with its agent", lambda: state(first) in ("", "Z"))
    until("there is another", lambda: daemon(1) != first and state(daemon(1)) == "T")
    last = [daemon(node) for node in nodes]
    enough.touch()
    result = run.end()
    assert result.status == 0, result.err
    assert [state(pid) for pid in last] == [""] * job.nodes


def test_a_daemon_that_ends_is_told_and_the_job_goes_on(job: Job) -> None:
    enough = job.dir / "enough"
    program = job.program("--until", enough)
    run = job.start("--daemon", "echo broken; exit 3", program=program)

    def told() -> list[str]:
        report = json.loads(status(job, "--json"))["report"] if job.home.exists() else None
        warnings = report["warnings"] if report else []
        return [it["reason"] for it in warnings if it["code"] == "OL-505"]

    until("its end is told", told)
    assert all("exit status: 3" in reason for reason in told())
    enough.touch()
    result = run.end()
    assert result.status == 0, result.err
    assert "OL-505" in result.codes()


def test_what_is_put_off_to_slots_is_done(job: Job) -> None:
    enough = job.dir / "enough"
    job.every = 500  # A copy lives long enough to be read again.
    words = ("--scrub-every", "200ms", "--health-interval", "200ms", "--levels", "disk,shared")
    program = job.program("--until", enough)
    run = job.start(*SLOTS, *words, program=program)
    live = job.home / "view" / "live.json"

    def done() -> bool:
        if not live.exists():
            return False
        answer = json.loads(status(job, "--json"))
        report, health = answer["report"], answer["health"]
        if not (report and report["scrub"] and health):
            return False
        known = all(it["verdict"] != "unknown" for it in health)
        return known and "shared" in report["checkpoints"]["last"] and report["scrub"]["read"] > 0

    until("sensors and copies are read, and copies written", done)
    enough.touch()
    assert run.end().status == 0
