"""Seeing a job: `outlive top`, `logs`, `trace`, `report --html` and metrics, of one job that loses
a node, while it runs and afterwards."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path

from harness import OUTLIVE, Job, until
from test_json import documented, fields

VOID = {"meta", "br"}
LEVELS = {"memory", "disk", "partner"}
LINE = re.compile(r"outlive_[a-z_]+\{([a-z]+=\"[^\"]*\",?)+\} -?[0-9.e+]+")
BOUND_S = 20.0


class Page(HTMLParser):
    """Elements that are open, and what the page says."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: defaultdict[str, int] = defaultdict(int)
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element that has an end."""
        self.note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """It loads nothing and runs nothing."""
        self.seen[f"{tag}.{dict(attrs).get('class', '')}"] += 1
        links = {"src", "href", "onload", "onclick"} & {name for name, _ in attrs}
        assert not links, f"{tag} has {links}"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without one."""
        self.note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        """It is the one that was opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """What is read."""
        self.words.append(data)


def ask(job: Job, *words: str) -> str:
    """What a command says of the job."""
    line = [OUTLIVE, *words, "--store", str(job.store)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=job.environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


def terminal(job: Job) -> tuple[int, int]:
    """`outlive top` on a terminal of 24 rows and 80 columns: its process and the other end."""
    pid, fd = pty.fork()
    if pid == 0:
        termios.tcsetwinsize(0, (24, 80))
        environment = job.environment() | {"TERM": "xterm"}
        line = [str(OUTLIVE), "top", "--job", "test", "--store", str(job.store)]
        os.execve(line[0], line, environment)
    return pid, fd


def shown(fd: int, wanted: str, text: str = "") -> str:
    """Reads until this is on the terminal; everything so far."""
    end = time.monotonic() + BOUND_S
    while wanted not in text:
        assert select.select([fd], [], [], max(0.0, end - time.monotonic()))[0], text
        try:
            text += os.read(fd, 65536).decode()
        except OSError:  # the terminal's other end is closed
            break
    assert wanted in text, text
    return text


def check_metrics(path: Path, failures: int) -> None:
    """Each line is a comment or a sample, and samples say what is so."""
    text = path.read_text()
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert samples and all(LINE.fullmatch(line) for line in samples), text
    assert f'outlive_job_failures_total{{job="test",kind="node"}} {failures}' in samples
    assert path.stat().st_mode & 0o777 == 0o644


def check_trace(trace: dict, ranks: int, nodes: int, failures: list[dict]) -> None:
    """Spans are of known nodes, none is negative, and on each thread they nest."""
    events = trace["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == [*(f"node {n}" for n in range(nodes)), "outlive run test"]
    named = [e for e in events if e["name"] == "thread_name"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in named}
    spans = defaultdict(list)
    for event in events:
        assert {"name", "ph", "ts", "pid", "tid"} <= set(event)
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0, event
            spans[event["pid"], event["tid"]].append(event)
    for thread, found in spans.items():
        open_until: list[float] = []
        for event in sorted(found, key=lambda e: (e["ts"], -e["dur"])):
            while open_until and open_until[-1] <= event["ts"] + 2e-3:
                open_until.pop()
            end = event["ts"] + event["dur"]
            assert not open_until or end <= open_until[-1] + 2e-3, (threads[thread], event)
            open_until.append(end)
    work = {threads[thread] for thread in spans}
    captures = {f"rank {rank}: capture" for rank in range(ranks)}
    levels = {f"{level}: {what}" for level in ("disk", "partner") for what in ("write", "commit")}
    assert work >= captures | levels | {"command", "recovery"}
    lost = [e["name"] for e in events if e["ph"] == "i" and e["s"] == "g"]
    assert lost == [f"{failure['place']} lost" for failure in failures]
    recoveries = [e for e in events if e["name"].startswith("recovery from")]
    assert len(recoveries) == len(failures)


def test_a_job_that_loses_a_node_is_seen_while_it_runs_and_afterwards(job: Job) -> None:
    metrics = job.dir / "metrics"
    metrics.mkdir()
    prom = metrics / "outlive-test.prom"
    job.hold(40, 0)
    enough = job.dir / "enough"
    program = job.program("--until", enough)
    run = job.start("--metrics", str(metrics), program=program, inject=("node:2@version=60",))
    top: dict = {}

    def is_back() -> bool:
        """The job goes on without the node that it lost."""
        if not (job.home / "view" / "live.json").exists():
            return False
        top.update(json.loads(ask(job, "top", "--job", "test", "--json")))
        seen = top["jobs"][0]
        live = seen["live"]
        if seen["state"] != "running" or not live or live["incarnation"] != 2:
            return False
        stable = [live["stable"], *(node["stable"] for node in live["nodes"])]
        return live["joined"] == 6 and all(set(one) == LEVELS for one in stable)

    until("the second incarnation", is_back)
    live = top["jobs"][0]["live"]
    assert [node["state"] for node in live["nodes"]] == ["up"] * 3
    assert live["spares_left"] == 1 and live["restarts"] == 1
    assert fields(top) == documented()["outlive.top/1"]

    # On a terminal, ended by a key and by a signal: it is as it was.
    for end in ("q", "SIGTERM"):
        pid, fd = terminal(job)
        text = shown(fd, "q quit")
        assert "incarnation 2" in text and "node:2" in text
        assert text.startswith("\x1b[?1049h")
        if end == "q":
            os.write(fd, b"q")
        else:
            os.kill(pid, signal.SIGTERM)
        shown(fd, "\x1b[?1049l", text)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == (0 if end == "q" else 128 + signal.SIGTERM)
        os.close(fd)
    assert "node:2" in ask(job, "top", "--once")

    follower = subprocess.Popen(
        [OUTLIVE, "logs", "--follow", "--job", "test", "--store", str(job.store)],
        stdout=subprocess.PIPE,
        text=True,
        env=job.environment(),
    )
    enough.touch()
    result = run.end()
    assert result.status == 0, result.err
    job.check(program)
    failure = result.failure()
    followed, _ = follower.communicate(timeout=BOUND_S)
    check_metrics(prom, 1)

    words = ask(job, "logs", "--job", "test")
    for wanted in ("run of ", "node:2 lost", "a spare takes the place of node 2", "finished: 1"):
        assert wanted in words and wanted in followed, wanted
    assert "version" not in ask(job, "logs", "--job", "test", "--node", "1", "--quiet")
    assert "written on partner" in ask(job, "logs", "--job", "test", "--node", "1", "--spans")

    trace = json.loads(ask(job, "trace", "--job", "test"))
    check_trace(trace, job.ranks, job.nodes, [failure])

    page = Page()
    page.feed(ask(job, "report", "--job", "test", "--html", "-"))
    page.close()
    assert not page.open
    said = " ".join(page.words)
    assert failure["cause"] in said and "node:2" in said and failure["level"] in said
    assert page.seen["g.failure"] == 1 and page.seen["script."] == 0
    for part in ("detect", "fence", "rebuild", "relaunch"):
        assert page.seen[f"rect.{part}"] >= 2, part  # in the timeline and in the table

    # The lines themselves are as they are described.
    for name in ("events", "spans"):
        lines = (job.home / "view" / f"{name}.jsonl").read_text().splitlines()
        first, *rest = (json.loads(line) for line in lines)
        assert set(first) == documented()["outlive.events/1 run"]
        if name == "spans":
            assert set().union(*rest) == documented()["outlive.events/1 spans"]
        else:
            assert all({"at", "kind", "words"} <= set(line) for line in rest)


def test_what_cannot_be_seen_is_said(job: Job) -> None:
    def refused(*words: str) -> str:
        line = [OUTLIVE, *words, "--store", str(job.store)]
        env = job.environment()
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, env=env)
        assert done.returncode, words
        return done.stderr

    job.store.mkdir()
    for words in (
        ("top", "--job", "none"),
        ("logs", "--job", "none"),
        ("trace", "--job", "none"),
        ("report", "--job", "none", "--html", "-"),
    ):
        assert "OL-404" in refused(*words) and "remedy:" in refused(*words)
    no_report = job.dir / "no.json"
    no_report.write_text('{"schema":"other/1"}')
    line = [OUTLIVE, "report", str(no_report), "--html", "-"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, cwd=job.dir)
    assert done.returncode == 65 and "outlive.report/1" in done.stderr
    # A directory for numbers that is not there is said before anything starts.
    result = job.start("--metrics", str(job.dir / "none" / "x.prom")).end()
    assert result.status == 74 and "x.prom" in result.err
