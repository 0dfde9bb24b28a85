"""Reed-Solomon parities over groups of nodes: as many nodes of each group may be lost as the level
says, at once or one after the other."""

import json
import time
from pathlib import Path

import pytest
from harness import HARMS, Job, Run, changed, damage, hurt, kill, newest_of, until

LEVEL = "rs:4+2"
LEVELS = ("--levels", f"memory,disk,{LEVEL}")
RARELY = ("--every", "1000000")


def six(job: Job) -> Job:
    job.nodes, job.ranks, job.spares, job.beyond = 6, 6, 4, LEVEL
    return job


def lose(run: Run, *nodes: int) -> None:
    """All of them at once."""
    keepers = run.pids("keeper")
    for node in nodes:
        kill(keepers[node])


def of_version(files: list[Path], version: int, since: int = 0) -> list[Path]:
    named = [path for path in files if f"-v{version}-" in path.name]
    return [path for path in named if changed(path) > since]


def test_nothing_fails(job: Job) -> None:
    result = six(job).goes_on(*LEVELS, when=job.counts(5, "memory", "disk", LEVEL))
    assert result.failures == [] and result.report["warnings"] == [], result.err
    for node in range(6):
        # Two blocks of a quarter of the longest container, in whole pages, and a header.
        parity = job.containers(node, "parity")[-1]
        assert parity.name.endswith(".rs4+2.olp"), parity
        longest = max(path.stat().st_size for path in job.containers(node))
        blocks = (parity.stat().st_size - 4096) // 2
        assert blocks % 4096 == 0 and 0 <= 4 * blocks - longest < 4 * 4096, (blocks, longest)
        assert not job.containers(node, "partner")


@pytest.mark.parametrize("nodes", [(1, 2), (5, 0), (3,)])
def test_lost_nodes_come_back_from_their_group(job: Job, nodes: tuple[int, ...]) -> None:
    six(job).hold(74, 50)
    faults = tuple(f"node:{node}@version=75" for node in nodes)
    result = job.survive(*LEVELS, inject=faults)
    places = sorted(failure["place"] for failure in result.failures)
    assert places == sorted(f"node:{node}" for node in nodes), result.err
    last = result.failures[-1]
    assert last["level"] == LEVEL and 50 <= last["version"] <= 74, last
    assert all(failure["rejected"] == [] for failure in result.failures), result.err


def test_replaced_nodes_are_protected_again(job: Job) -> None:
    """Two others are lost before a new version could be taken."""
    door = six(job).dir / "door"
    run = job.start(*LEVELS, *RARELY, program=job.program("--force", 40, "--pause", 45, door))
    until("the program stands still", Path(f"{door}.reached").exists)
    until("version 40", lambda: job.stable() >= 40)
    since = time.time_ns()
    lose(run, 1, 2)
    for node in (1, 2):
        for kind in ("containers", "parity"):
            until(
                f"{kind} of node {node} again",
                lambda node=node, kind=kind: of_version(job.containers(node, kind), 40, since),
            )
    lose(run, 3, 4)
    until("another start", lambda: set(run.pids("keeper")) == set(range(6)))
    door.touch()
    result = run.end()
    assert result.status == 0, result.err
    job.check()
    places = [failure["place"] for failure in result.failures]
    assert sorted(places) == ["node:1", "node:2", "node:3", "node:4"], result.err
    assert {failure["version"] for failure in result.failures} == {40}, result.err


def test_three_nodes_of_a_group_are_more_than_it_survives(job: Job) -> None:
    six(job).hold(74, 0)
    faults = tuple(f"node:{node}@version=75" for node in (0, 2, 5))
    result = job.run(*LEVELS, inject=faults)
    assert result.status == 80, result.err
    (error,) = result.report["errors"]
    assert error["code"] == "OL-500", error
    what = f"3 of the 6 nodes of a group of {LEVEL} have lost what they stored"
    assert what in error["reason"] and "and it tolerates 2" in error["reason"], error
    assert "(node 0, node 2, node 5)" in error["reason"], error


def test_what_is_rehearsed_and_verified_is_what_happens(job: Job) -> None:
    six(job).goes_on(*LEVELS, when=job.counts(4, LEVEL))
    lost = ("--lose", "node:2", "--lose", "node:5")
    rehearsed = json.loads(job.outlive("checkpoints", "rehearse", *lost, "--json"))
    assert LEVEL in json.dumps(rehearsed)
    job.outlive("checkpoints", "rehearse", *lost, "--lose", "node:1", status=80)
    job.outlive("checkpoints", "verify")
    newest = newest_of(job.containers(3, "parity"))
    # A bit of its second block.
    damage(newest, 0.9)
    assert newest.name in job.outlive("checkpoints", "verify", status=65)


@pytest.mark.parametrize("kind", ["containers", "parity"])
@pytest.mark.parametrize("how", HARMS)
def test_what_rots_beside_a_lost_node_is_left_out(job: Job, kind: str, how: str) -> None:
    """Of two members: all of one, and something of another. That a container has rotted is found
    as it is read; that a parity has, when the sum is not what was committed."""
    job.nodes, job.ranks, job.beyond = 4, 4, "rs:2+2"
    newest = job.half_done(120)
    for path in job.containers(2) + job.containers(2, "parity"):
        path.unlink()
    for path in of_version(job.containers(0, kind), newest):
        hurt(path, how)
    rehearsed = json.loads(job.outlive("checkpoints", "rehearse", "--json", status=None))
    assert rehearsed["rebuilt"][1] == newest, rehearsed
    result = job.survive("--levels", "disk,rs:2+2")
    assert set(result.said("restored")) == {newest}, result.err


def test_all_of_three_that_rot_cost_the_version(job: Job) -> None:
    job.nodes, job.ranks, job.beyond = 4, 4, "rs:2+2"
    newest = job.half_done(120)
    for node in (0, 1, 2):
        for path in of_version(job.containers(node) + job.containers(node, "parity"), newest):
            data = path.read_bytes()
            path.write_bytes(data[:4096] + bytes(byte ^ 0xFF for byte in data[4096:]))
    result = job.survive("--levels", "disk,rs:2+2")
    (restored,) = set(result.said("restored"))
    assert restored < newest
    assert "OL-500" in result.err and f"-v{newest}-" in result.err, result.err


def test_other_levels_at_the_next_run(job: Job) -> None:
    """What was protected by one level is restored by a run that has others, and the other way
    round."""
    newest = six(job).half_done(120)
    for node in (0, 4):
        for path in job.containers(node):
            path.unlink()
    job.beyond = "partner"
    result = job.survive("--levels", "memory,disk,partner")
    assert set(result.said("restored")) == {newest}, result.err
    job.steps, job.beyond = 160, LEVEL
    result = job.survive("--levels", f"disk,{LEVEL}")
    assert min(result.said("restored")) > newest, result.err


def test_levels_that_make_no_sense_are_refused(job: Job) -> None:
    job.nodes = 5
    result = job.run(*LEVELS)
    assert result.status == 64 and "at least 6 nodes" in result.err, result.err
    six(job)
    result = job.run(*LEVELS, "--domains", "0,0,1,2,3,4")
    assert result.status == 64 and "failure domain has 2 nodes" in result.err, result.err
    result = job.run("--levels", "disk,rs:4+1")
    assert result.status == 64 and "use xor:5" in result.err, result.err
    result = job.run("--levels", "disk,rs:4")
    assert result.status == 64 and "rs:K+M" in result.err, result.err
