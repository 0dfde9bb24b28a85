"""The launcher itself: killed, interrupted, started twice, given nonsense."""

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import termios
from pathlib import Path

import pytest
from harness import LEFT_S, OUTLIVE, ROOT, Job, Run, kill, processes, until
from skip import skip


def paused(job: Job, step: int = 65) -> tuple[Run, list[str], Path]:
    """A run whose program waits at a step for a file."""
    door = job.dir / "door"
    job.hold(step - 5, 30)
    program = job.program("--pause", step, door)
    run = job.start(program=program)
    until("the pause", Path(f"{door}.reached").exists)
    return run, program, door


def test_a_killed_launcher_leaves_nothing_and_the_next_run_goes_on(job: Job) -> None:
    run, program, door = paused(job)
    newest = job.settled(30)
    assert len(run.pids("keeper")) == len(run.pids("agent")) == job.nodes
    run.signal(signal.SIGKILL)
    run.process.wait(5)
    job.gone(LEFT_S)
    door.touch()
    result = job.survive(program=program)
    assert set(result.said("restored")) == {newest}


def test_processes_say_what_they_are(job: Job) -> None:
    run, _, door = paused(job)
    for kind in ("keeper", "agent"):
        found = run.pids(kind)
        assert sorted(found) == list(range(job.nodes))
        for node, pid in found.items():
            line = processes(job.token)[pid]
            assert line == f"outlive: {kind} job test node {node}"
            assert Path(f"/proc/{pid}/comm").read_text().strip() == f"outlive-{kind}"
    door.touch()
    assert run.end().status == 0


def test_everything_killed_at_once_and_the_next_run_goes_on(job: Job) -> None:
    run, program, door = paused(job)
    newest = job.settled(30)
    for pid in [run.process.pid, *processes(job.token)]:
        kill(pid)
    run.process.wait(5)
    job.gone(LEFT_S)
    door.touch()
    result = job.survive(program=program)
    assert set(result.said("restored")) == {newest}


def test_a_killed_launcher_after_a_lost_node(job: Job) -> None:
    job.hold(44, 0)
    job.hold(80, 50)
    door = job.dir / "door"
    program = job.program("--pause", 85, door)
    run = job.start(program=program, inject=("node:1@version=45",))
    until("the pause", Path(f"{door}.reached").exists)
    newest = job.settled(50)
    run.signal(signal.SIGKILL)
    run.process.wait(5)
    job.gone(LEFT_S)
    door.touch()
    result = job.survive(program=program)
    # On a busy machine a newer one may have become stable since.
    (restored,) = set(result.said("restored"))
    assert restored >= newest


def test_two_runs_of_one_job_at_once(job: Job) -> None:
    run, _, door = paused(job)
    report = job.report
    other = job.dir / "other.json"
    words = (OUTLIVE, "run", "--job", "test", "--store", job.store, "--report", other, "--", "true")
    second = Run(Job(job.dir, job.ring, job.token), [str(word) for word in words])
    second.process.wait(10)
    text = second.text()
    assert second.process.returncode == 75 and "OL-502" in text, text
    assert str(run.process.pid) in text
    door.touch()
    result = run.end()
    assert result.status == 0 and report.exists()
    job.check(job.program())


def test_a_second_run_after_success(job: Job) -> None:
    job.hold(55, 50)
    job.steps = 60
    first = job.survive()
    newest = first.report["checkpoints"]["last"]["partner"]
    assert first.said("fresh") and newest >= 50
    second = job.survive()
    assert set(second.said("restored")) == {newest}
    third = job.survive("--fresh")
    assert third.said("fresh") and not third.said("restored")


def test_fresh_takes_effect_once(job: Job) -> None:
    job.hold(44, 20)
    job.survive()
    result = job.survive("--fresh", inject=("rank:1@version=45",))
    (restored,) = set(result.said("restored"))
    assert result.said("fresh") and 20 <= restored < 45


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_goes_on_later(job: Job, number: int) -> None:
    run, program, door = paused(job)
    newest = job.settled(30)
    run.signal(number)
    result = run.end(20)
    assert result.status == 128 + number
    assert result.report["result"] == "interrupted"
    job.gone()
    door.touch()
    result = job.survive(program=program)
    assert set(result.said("restored")) == {newest}


def test_two_interrupts_end_a_program_that_ignores_them(job: Job) -> None:
    run = job.start("--kill-grace", "30s", program=["/bin/sh", "-c", "trap '' INT; sleep 60"])
    until("the command", lambda: "sleep 60" in processes(job.token).values())
    run.signal(signal.SIGINT)
    until("the first", lambda: "once more" in run.text())
    run.signal(signal.SIGINT)
    assert run.end(10).status == 130


def test_a_command_that_is_not_there(job: Job) -> None:
    result = job.run(program=["/no/such/program"], bound_s=10)
    assert result.status == 127 and "OL-505" in result.err and "/no/such/program" in result.err
    assert result.report["result"] == "failed" and result.report["exit_status"] == 127
    assert result.codes("errors") == {"OL-505"} and result.report["errors"][0]["remedy"]
    result = job.run(program=[str(job.dir)], bound_s=10)
    assert result.status == 127 and "OL-505" in result.err


def test_a_run_that_is_refused_is_in_the_report(job: Job) -> None:
    # An older report there must not be taken for this run's.
    job.steps = 20
    job.survive()
    for options, status, code in (
        (("--levels", "tape"), 64, "OL-100"),
        (("--config", str(job.dir / "none")), 78, "OL-600"),
        (("--emulate-nodes", "2"), 64, "OL-100"),
    ):
        result = job.run(*options, bound_s=10)
        assert result.status == result.report["exit_status"] == status, result.err
        assert result.report["result"] == "failed" and result.codes("errors") == {code}


def test_the_terminals_interrupt_reaches_a_command_that_reads_elsewhere(job: Job) -> None:
    # Its input is no terminal, so it has a group of its own, and hears of it by us.
    heard, ready = job.dir / "heard", job.dir / "ready"
    script = f"trap 'touch {heard}; exit 0' INT; touch {ready}; while :; do sleep 0.05; done"
    words = [str(OUTLIVE), "run", "--store", str(job.store), "--kill-grace", "60s", "--"]
    master, slave = pty.openpty()

    def on_the_terminal() -> None:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [*words, "/bin/sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        env=job.environment(),
        preexec_fn=on_the_terminal,
    )
    try:
        until("the command", ready.exists)
        os.write(master, b"\x03")
        assert process.wait(20) == 130
        assert heard.exists()
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(slave)


def test_a_command_that_dies_at_once(job: Job) -> None:
    result = job.run(program=job.program("--die-always", 9))
    assert "OL-506" in result.codes("errors") and result.status == 9
    result = job.run(program=["/bin/false"])
    assert "OL-506" in result.codes("errors") and result.status == 1
    assert "without outlive" in result.err


def test_restarts_are_bounded(job: Job) -> None:
    job.hold(64, 50)
    faults = tuple(f"rank:1@version={version}" for version in (25, 45, 65))
    result = job.run("--max-restarts", "2", inject=faults)
    assert result.status == 79 and result.codes("errors") == {"OL-503"}
    assert len(result.failures) == 3
    # Nothing is lost: the next run ends it.
    assert min(job.survive().said("restored")) >= 50


def test_no_restart_is_permitted(job: Job) -> None:
    result = job.run("--max-restarts", "0", inject=("rank:1@version=45",))
    assert result.status == 137 and len(result.failures) == 1


def test_no_spare_is_left(job: Job) -> None:
    job.hold(44, 0)
    job.hold(74, 50)
    result = job.run("--spares", "1", inject=("node:1@version=45", "node:2@version=75"))
    assert result.status == 69 and result.codes("errors") == {"OL-504"}
    assert "--spares" in result.err or "spares" in result.report["errors"][0]["remedy"]
    assert result.report["seconds"] < 20
    assert min(job.survive().said("restored")) >= 50


def test_a_store_that_cannot_be_written(job: Job) -> None:
    blocker = job.dir / "file"
    blocker.write_text("not a directory")
    words = [str(OUTLIVE), "run", "--store", str(blocker / "store"), "--", "true"]
    run = Run(job, words)
    assert run.process.wait(10) == 74
    assert "OL-404" in run.text() or "OL-400" in run.text()
    if os.geteuid() == 0:
        skip("read-only-store", "root writes everywhere")
    job.store.mkdir(mode=0o500)
    run = Run(job, [str(OUTLIVE), "run", "--store", str(job.store), "--", "true"])
    assert run.process.wait(10) == 74
    assert "OL-402" in run.text()


@pytest.mark.parametrize(
    "options",
    [
        ("--no-such-option",),
        ("--emulate-nodes", "0"),
        ("--every", "soon"),
        ("--levels", "tape"),
        ("--inject", "node:7@5s"),
        ("--inject", "melt:node:1@5s"),
        ("--inject", "rank:1@phase=commit:send"),
        ("--inject", "node:1@version=x"),
        ("--memory", "12"),
        ("--dead-timeout", "1ms"),
        ("--job", "../up"),
    ],
)
def test_nonsense_on_the_command_line(job: Job, options: tuple[str, ...]) -> None:
    run = Run(job, [str(w) for w in (OUTLIVE, "run", "--store", job.store, *options, "--", "true")])
    assert run.process.wait(10) == 64, run.text()
    assert run.text().strip()
    assert not job.store.exists()


def test_a_report_that_cannot_be_written(job: Job) -> None:
    result = job.run("--report", str(job.dir / "no" / "dir" / "r.json"), bound_s=10)
    assert result.status == 74 and "r.json" in result.err


def test_a_report_that_cannot_be_written_at_the_end_does_not_spoil_the_job(job: Job) -> None:
    folder, door = job.dir / "reports", job.dir / "door"
    folder.mkdir()
    program = job.program("--pause", 65, door)
    run = job.start("--report", str(folder / "report.json"), program=program)
    until("the pause", Path(f"{door}.reached").exists)
    shutil.rmtree(folder)
    door.touch()
    result = run.end()
    assert result.status == 0 and "OL-404" in result.err, result.err
    job.check(program)


def test_another_number_of_nodes(job: Job) -> None:
    job.steps = 40
    job.survive()
    job.nodes = 2
    result = job.run()
    assert result.status != 0 and "nodes" in result.err


def test_a_fork_that_hides_is_found(job: Job) -> None:
    # A daemon that leaves group and session would outlive the job.
    script = "setsid sh -c 'sleep 77 & sleep 77' >/dev/null 2>&1 & exit 0"
    assert job.run(program=["/bin/sh", "-c", script]).status == 0
    job.gone(2)


def test_nodes_of_a_killed_launcher_are_ended_before_the_next_begin(job: Job) -> None:
    run, program, door = paused(job)
    newest = job.settled(30)
    old = {**run.pids("keeper"), **{-1 - n: pid for n, pid in run.pids("agent").items()}}
    # Frozen keepers do not notice that their launcher is gone.
    for pid in old.values():
        kill(pid, signal.SIGSTOP)
    run.signal(signal.SIGKILL)
    run.process.wait(5)
    door.touch()
    result = job.survive(program=program)
    assert set(result.said("restored")) == {newest}
    assert not [pid for pid in old.values() if pid in processes(job.token)]


def test_the_configuration_of_the_documentation_is_understood(job: Job) -> None:
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    blocks = re.findall(r"^```toml\n(.*?)^```$", page, re.M | re.S)
    assert blocks
    for block in blocks:
        file = job.dir / "config.toml"
        file.write_text(block)
        words = [OUTLIVE, "config", "explain", "--config", file, "--json"]
        done = subprocess.run(words, capture_output=True, text=True, env=job.environment())
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        origins = [value["origin"] for value in told["values"]]
        lines = [line for line in block.splitlines() if "=" in line]
        assert sum(str(file) in origin for origin in origins) == len(lines), told
