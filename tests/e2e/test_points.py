"""A node or an agent dies at a named point of the commit protocol.

Whatever the point, the job ends with the right bits, and no version that was
committed before is lost: what is restored is never older than what was stable.
"""

import json
import re

import pytest
from harness import Job, Result

POINTS = [
    "prepared:persist",
    "prepared:send",
    "commit:persist",
    "commit:send",
    "stable:send",
    "flush:prepared",
]
# Reached with a forced capture, and with parities: they have tests of their own.
CAPTURES = ["capture:slab", "capture:taken"]
SEALED = "parity:sealed"
# Only the coordinator commits and says what is stable.
LEADS = ("commit:send", "stable:send")
# A node that is silent for so long is given up.
SHORT = ("--suspect-timeout", "500ms", "--dead-timeout", "1500ms", "--heartbeat", "50ms")
# The coordinator does not send itself what it prepared.
OTHERS = ("prepared:send",)


def stable_before(result: Result) -> int:
    """The newest version that the timeline called stable on the partners before the
    first failure, or -1."""
    newest = -1
    for line in result.err.splitlines():
        if "lost:" in line:
            break
        words = line.split()
        if words[-3:-1] == ["stable", "on"] and words[-1] == "partner":
            newest = int(words[-4])
    return newest


def places(point: str) -> list[int]:
    """Nodes that come to the point."""
    return [0] if point in LEADS else [1] if point in OTHERS else [0, 1]


def test_every_point_is_tried(job: Job) -> None:
    """A new point fails here until it stands in one of the lists above."""
    result = job.run(inject=("node:0@phase=no:such",))
    assert result.status == 64, result.err
    named = re.search(r"names none of the points (.*)", result.err)
    assert named, result.err
    tried = [*POINTS, *CAPTURES, SEALED]
    assert sorted(named[1].split(", ")) == sorted(tried), result.err


@pytest.mark.parametrize("point,node", [(p, n) for p in POINTS for n in places(p)])
def test_a_node_dies_at(job: Job, point: str, node: int) -> None:
    happened = lambda run: "injected: node" in run.text()  # noqa: E731
    result = job.goes_on("-v", when=happened, inject=(f"node:{node}@phase={point},nth=8",))
    failure = result.failure()
    assert failure["place"] == f"node:{node}" and failure["injected"], failure
    restored = failure["version"] if failure["version"] is not None else -1
    assert restored >= stable_before(result), result.err
    sound(job)


@pytest.mark.parametrize("point,node", [(p, n) for p in POINTS for n in places(p)])
def test_an_agent_dies_at(job: Job, point: str, node: int) -> None:
    fault = f"agent:{node}@phase={point},nth=8"
    saved = job.saves(100)
    # Saving goes on after the agent's return.
    when = lambda run: "started anew" in run.text() and saved(run)  # noqa: E731
    result = job.goes_on(when=when, inject=(fault,))
    assert result.failures == [] and result.report["agent_restarts"] == 1
    assert result.report["checkpoints"]["last"]["partner"] >= 100, result.err
    sound(job)


@pytest.mark.parametrize("nth", [3, 4])
@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("point", CAPTURES)
def test_an_agent_dies_in_a_forced_capture(job: Job, point: str, node: int, nth: int) -> None:
    # Its two ranks have captured version 0; at 10 one of them is inside, or both are.
    program = ("--force", 10, "--wait", "node-loss")
    fault = f"agent:{node}@phase={point},nth={nth}"
    saved = job.saves(110)
    result = job.goes_on("-v", "--every", "1000000", when=saved, program=program, inject=(fault,))
    assert result.failures == [] and result.report["agent_restarts"] == 1, result.err
    # What the new agent cannot take up is voted down: nobody waits for a bound.
    assert "-106" not in result.out and "OL-106" not in result.out, result.out
    assert "did not answer within its bound" not in result.err, result.err
    # Nor does it cost more than what came while the agent was away.
    committed = set(result.said("committed"))
    missing = sorted({*range(0, 120, 10)} - committed)
    in_a_row = list(range(missing[0], missing[-1] + 1, 10)) if missing else []
    assert missing == in_a_row, (missing, result.err)
    assert 110 in committed, result.err
    sound(job)


@pytest.mark.parametrize("point", POINTS)
def test_an_agent_dies_and_then_its_node(job: Job, point: str) -> None:
    job.steps = 160
    node = places(point)[0]
    faults = (f"agent:{node}@phase={point},nth=5", f"node:{node}@version=125")
    # Forced, so that the point is reached for certain before the node is lost.
    job.hold(124, 90)
    program = job.program("--force", 10)
    result = job.survive("--every", "1000000", program=program, inject=faults)
    assert result.failure()["version"] >= 90, result.err
    sound(job)


@pytest.mark.parametrize("who", ["node", "agent"])
def test_who_dies_between_its_container_and_its_parity(job: Job, who: str) -> None:
    job.nodes, job.ranks, job.beyond = 3, 3, "xor:3"
    levels = ("--levels", "memory,disk,xor:3")
    saved = job.saves(100)
    happened = "injected: node" if who == "node" else "started anew"
    when = lambda run: happened in run.text() and saved(run)  # noqa: E731
    fault = f"{who}:1@phase={SEALED},nth=6"
    result = job.goes_on("-v", *levels, when=when, inject=(fault,))
    if who == "agent":
        assert result.failures == [] and result.report["agent_restarts"] == 1, result.err
    else:
        # Two of three have what they sealed; the version before it is whole.
        assert result.failure()["place"] == "node:1", result.err
        assert (result.failure()["version"] or -1) >= 0, result.err
    sound(job)


@pytest.mark.parametrize(
    "fault",
    [
        "slow:node:1@phase=flush:prepared,nth=3,rate=10MiB",
        "full:node:1@phase=prepared:persist,nth=3,for=200ms",
        "partition:node:1@phase=prepared:send,nth=3,for=300ms",
        "freeze:node:1@phase=flush:prepared,nth=3,for=300ms",
    ],
)
def test_what_does_not_kill_lets_the_agent_go_on(job: Job, fault: str) -> None:
    # Longer than it takes to give up a node that falls silent at the point.
    job.steps = 800
    result = job.survive(*SHORT, inject=(fault,))
    assert result.report["injected"] == [fault]
    assert result.failures == [] and "silent" not in result.err.replace("silence", "")


def sound(job: Job) -> None:
    """Every byte stored is right, and the newest version has all its copies. Older
    ones may lack those that went with a node."""
    document = json.loads(job.outlive("checkpoints", "verify", "--json", status=None))
    checks = document["checks"]
    newest = max((check["incarnation"], check["version"]) for check in checks)
    for check in checks:
        error = check["error"]
        assert error is None or error["code"] == 404, check
        assert error is None or (check["incarnation"], check["version"]) != newest, check
    assert document["damaged_records"] == []
