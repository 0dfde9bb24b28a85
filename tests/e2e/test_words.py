"""All that is said: nothing in an undisturbed run, each failure once, and no more.

Every line on standard error, the log of agents and launcher (OUTLIVE_LOG=warn) among
them, must be one that is listed for what happened; so a new line that is false, or told
twice, fails here, whoever adds it.
"""

import os
import random
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from harness import Job, Result, until

SHORT = ("--suspect-timeout", "700ms", "--dead-timeout", "2500ms", "--heartbeat", "50ms")
ALL = "memory,disk,partner,shared/2"

TIME = r" +[0-9.]+ s  "
MS = r"[0-9.]+ m?s"
# What is said in any run that did not end as if nothing had happened.
END = rf"{TIME}finished: .*"
INJECTED = rf"{TIME}injected.*"
SPARE = rf"{TIME}a spare takes the place of node {{node}}; \d+ left"
REBUILT = rf"{TIME}version \d+ rebuilt( from {{level}})? in {MS}"
LOST = (
    rf"{TIME}node:{{node}} lost: its keeper ended \(.*\); "
    rf"its storage is {{storage}}; detected in {MS}"
)
SILENT = rf"{TIME}node {{node}} silent for {MS}"


def lines(*patterns: str, **values: object) -> dict[str, int]:
    """Patterns, each of at most one line."""
    return {pattern.format(**values): 1 for pattern in patterns}


def log_of(result: Result) -> list[str]:
    """Lines of the log: agents and launcher write it to standard error."""
    return [line for line in result.err.splitlines() if re.match(r"\d{4}-\d\d-\d\dT", line)]


def only(result: Result, allowed: dict[str, int]) -> None:
    """Each line is allowed, and not more often than that."""
    left = dict(allowed)
    for line in result.err.splitlines():
        found = next((p for p in left if left[p] > 0 and re.fullmatch(p, line)), None)
        assert found, f"not expected, or once too often:\n  {line}\nin all:\n{result.err}"
        left[found] -= 1


def told(result: Result, *patterns: str) -> None:
    """Each of these was said."""
    for pattern in patterns:
        assert re.search(pattern, result.err), f"{pattern} is missing in:\n{result.err}"


@pytest.mark.alone
@pytest.mark.parametrize("load", [False, True])
def test_an_undisturbed_run_says_nothing(job: Job, seed: int, load: bool) -> None:
    draw = random.Random(seed)
    job.extra["OUTLIVE_LOG"] = "warn"
    burners = [
        subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"], env=job.environment())
        for _ in range((os.cpu_count() or 2) if load else 0)
    ]
    try:
        for _ in range(6):
            job.nodes = draw.randint(1, 5)
            job.ranks = draw.choice([1, job.nodes, 2 * job.nodes, job.nodes + 1])
            job.steps = draw.choice([30, 120, 200])
            job.sleep_us = draw.choice([500, 2000, 4000])
            job.every = draw.choice([1, 7, 10])
            levels = draw.choice(["memory,disk,partner", "memory", "disk,partner", ALL])
            if job.nodes == 1:
                levels = levels.replace(",partner", "")
            what = f"seed {seed}: {job.nodes} nodes, {job.ranks} ranks, {levels}"
            shutil.rmtree(job.store, ignore_errors=True)
            # The program does not cut it off: that of more ranks would stay behind its end.
            job.result.unlink(missing_ok=True)
            result = job.survive("--levels", levels)
            assert result.err == "", f"{what}\n{result.err}"
            assert result.report["warnings"] == [], what
            assert result.failures == [] and result.report["errors"] == [], what
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def kept_at(level: str) -> dict[str, int]:
    """A version is given up at a level: the first, and the count."""
    return {
        rf"{TIME}version \d+ given up on {level}: .*": 1,
        rf"{TIME}version \d+ kept on {level} again; \d+ in a row were given up": 1,
        rf"{TIME}\d+ versions in a row given up on {level}, the last: version \d+": 1,
    }


FULL = rf"{TIME}warning: OL-401 no space left: \S+/node-1/\S+: write: .*; free space there, .*"
FULL_RECORD = rf"{TIME}warning: OL-401 no space left: \S+/node-1\S*: create: .*; free space there.*"
LOGGED = r"\S+  WARN .*node=1 error=OL-401 no space left: .*"
# The same warning once more is counted.
MORE = rf"{TIME}warning: OL-401 .*/node-1/\S+: \w+: .*: and \d+ more .*"
FULL_DISK = {MORE: 1, FULL: 1, LOGGED: 2, FULL_RECORD: 1, END: 1, INJECTED: 1}
FULL_DISK |= kept_at("disk") | kept_at("partner")

CASES = {
    "a full disk": (
        (),
        ("full:node:1@version=25",),
        FULL_DISK,
        ("OL-401",),
    ),
    "a disk that is full for a while": (
        (),
        ("full:node:1@version=25,for=150ms",),
        FULL_DISK,
        (),
    ),
    "a lost rank": (
        (),
        ("rank:4@version=75",),
        lines(
            INJECTED, rf"{TIME}rank:4 lost: signal 9 \(SIGKILL\); detected in {MS}", REBUILT, END,
            level="memory",
        ),
        ("rank:4 lost", "rebuilt from memory"),
    ),
    "a rank lost before anything was committed": (
        (),
        ("rank:0@version=2",),
        lines(
            INJECTED,
            rf"{TIME}rank:0 lost: signal 9 \(SIGKILL\); detected in {MS}",
            rf"{TIME}nothing was committed yet: begins anew",
            END,
        ),
        ("begins anew",),
    ),
    "a lost node": (
        (),
        ("node:1@version=75",),
        lines(INJECTED, LOST, SPARE, REBUILT, END, node=1, storage="gone", level="partner"),
        ("node:1 lost", "a spare", "rebuilt from partner"),
    ),
    "a lost keeper": (
        (),
        ("keeper:1@version=75",),
        lines(
            INJECTED, LOST, rf"{TIME}node 1 is started again, with its storage", REBUILT, END,
            node=1, storage="kept", level="disk",
        ),
        ("node:1 lost", "rebuilt from disk"),
    ),
    "a node and its partner lost at once": (
        ("--levels", ALL),
        ("node:1@version=75", "node:2@version=75"),
        {INJECTED: 2, END: 1}
        | lines(LOST, SPARE, node=1, storage="gone")
        | lines(LOST, SPARE, node=2, storage="gone")
        | {rf"{TIME}version \d+ rebuilt from shared in {MS}(; \d newer could not be used)?": 1},
        ("node:1 lost", "node:2 lost", "rebuilt from shared"),
    ),
    "a frozen node": (
        SHORT,
        ("freeze:node:1@version=75",),
        lines(
            INJECTED, SILENT, rf"{TIME}node:1 lost: silent for .*; fenced; suspected .*", SPARE,
            REBUILT, END, node=1, level="partner",
        ),
        ("node:1 lost: silent",),
    ),
    "a node frozen for a while": (
        SHORT,
        ("freeze:node:1@version=45,for=1400ms",),
        lines(INJECTED, SILENT, rf"{TIME}node 1 heard again", node=1),
        ("heard again",),
    ),
    "a node cut off for a while": (
        SHORT,
        ("partition:node:1@version=45,for=1000ms",),
        lines(INJECTED, SILENT, rf"{TIME}node 1 heard again", node=1),
        (),
    ),
    "a killed agent": (
        (),
        ("agent:1@version=45",),
        lines(
            INJECTED,
            r"\S+  WARN .*agent died status=signal: 9 \(SIGKILL\) in_a_row=0",
            rf"{TIME}agent of node 1 started anew \(1\); the job goes on",
        )
        # Until it is there again its neighbour's copies find nobody.
        | kept_at("partner"),
        ("started anew",),
    ),
    "a damaged copy": (
        (),
        ("corrupt:node:1@version=72", "keeper:1@version=78"),
        {
            INJECTED: 2,
            rf"{TIME}warning: OL-403 stored bytes are damaged: \S+/node-1/containers/\S+: .*": 1,
            r"\S+  WARN .*node=1 error=OL-403 .*": 1,
            # The keeper is six versions behind it, and on a busy machine faster.
            rf"{TIME}warning: OL-301 agent did not answer in time: node 1: its agent ended .*": 1,
        }
        | lines(
            LOST, rf"{TIME}node 1 is started again, with its storage", END, node=1, storage="kept"
        )
        | {rf"{TIME}version \d+ rebuilt from (disk|partner) in {MS}": 1},
        ("node:1 lost",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_failure_is_told_once_and_nothing_else(job: Job, case: str) -> None:
    options, faults, allowed, needed = CASES[case]
    job.steps = 200
    job.extra["OUTLIVE_LOG"] = "warn"
    # What the failure is to find: stable on shared storage where that is in use.
    if not any("full" in fault or "version=2" in fault for fault in faults):
        survives = "all-nodes" if ALL in options else "node-loss"
        job.hold(43, 20, survives)
        job.hold(71, 50, survives)
    result = job.survive(*options, inject=faults)
    only(result, allowed)
    told(result, *needed)
    # The report holds what the terminal was told.
    for warning in result.report["warnings"]:
        assert f"warning: {warning['code']}" in result.err, warning


@pytest.mark.parametrize("node", [0, 1])
def test_an_agent_killed_while_a_copy_is_sent(job: Job, node: int) -> None:
    """Its neighbour's copy breaks off, or its own: no file is cut off, and no device at fault."""
    job.nodes, job.ranks, job.cells, job.steps = 2, 2, 350_000, 60
    job.sleep_us = 50_000
    job.extra["OUTLIVE_LOG"] = "warn"
    # A copy of 2.8 MB takes longer than a second from then on.
    slow = "slow:node:1@version=5,rate=2MiB"
    result = job.survive("--every", "5", inject=(slow, f"agent:{node}@1900ms"))
    died = lines(
        r"\S+  WARN .*agent died status=signal: 9 \(SIGKILL\) in_a_row=0",
        rf"{TIME}agent of node {node} started anew \(1\); the job goes on",
        END,
    )
    only(result, died | {INJECTED: 2} | kept_at("partner") | kept_at("disk"))
    assert result.report["warnings"] == [], result.err


def test_strangers_leave_room_for_real_warnings(job: Job) -> None:
    job.hold(60, 0)
    job.hold(100, 85, "process")
    door = job.dir / "door"
    job.steps = 120
    program = job.program("--pause", 65, door)
    run = job.start(program=program, inject=("full:node:1@version=80",))
    until("the pause", Path(f"{door}.reached").exists)
    agent = run.pids("agent")[1]
    ports = listening(agent)
    for _ in range(100):
        for port in ports:
            with socket.create_connection(("127.0.0.1", port), 5) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\nHost: outlive\r\n\r\n" * 8)
                stranger.settimeout(5)
                try:
                    while stranger.recv(4096):
                        pass
                except OSError:
                    pass
    door.touch()
    result = run.end()
    assert result.status == 0, result.err
    warnings = result.report["warnings"]
    assert "OL-401" in {warning["code"] for warning in warnings}, result.err
    strangers = [w for w in warnings if "127.0.0.1" in w["entity"]]
    assert 1 <= len(strangers) <= 8, strangers
    # As many lines, and some with a count.
    said = [line for line in result.err.splitlines() if "127.0.0.1" in line]
    assert len(said) <= 16, "\n".join(said)


def listening(pid: int) -> list[int]:
    """The ports on which a process listens."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(link.readlink().name)
        except OSError:
            continue
    ports = []
    for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        words = row.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
            ports.append(int(words[1].split(":")[1], 16))
    assert ports
    return ports
