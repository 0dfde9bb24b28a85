"""Parity over groups of nodes: one node of each group may be lost, its bytes are made of what
the others have."""

import json

import pytest
from harness import HARMS, Job, damage, hurt, newest_of

LEVELS = ("--levels", "memory,disk,xor:4")


def four(job: Job) -> Job:
    job.nodes, job.ranks, job.beyond = 4, 8, "xor:4"
    return job


def test_nothing_fails(job: Job) -> None:
    result = four(job).goes_on(*LEVELS, when=job.counts(5, "memory", "disk", "xor:4"))
    assert result.failures == [] and result.report["warnings"] == [], result.err
    for node in range(4):
        assert job.containers(node, "parity"), node
        assert not job.containers(node, "partner")


def test_a_killed_node_comes_back_from_its_group(job: Job) -> None:
    four(job).hold(74, 50)
    for node in (2, 0):
        result = job.survive(*LEVELS, "--fresh", inject=(f"node:{node}@version=75",))
        failure = result.failure()
        assert (failure["kind"], failure["place"]) == ("node", f"node:{node}")
        assert failure["level"] == "xor:4" and 50 <= failure["version"] <= 74
        assert failure["rejected"] == []


def test_the_replaced_node_is_protected_again(job: Job) -> None:
    """Another node is lost before a new version could be taken."""
    four(job).hold(44, 0)
    options = (*LEVELS, "--every", "1000000")
    program = job.program("--force", 40)
    result = job.survive(
        *options, program=program, inject=("node:1@version=45", "node:3@version=60")
    )
    places = [failure["place"] for failure in result.failures]
    assert places == ["node:1", "node:3"], result.err
    assert [failure["version"] for failure in result.failures] == [40, 40], result.err


def test_two_nodes_of_a_group_are_more_than_it_survives(job: Job) -> None:
    four(job).hold(74, 0)
    result = job.run(*LEVELS, inject=("node:1@version=75", "node:2@version=75"))
    assert result.status == 80, result.err
    (error,) = result.report["errors"]
    assert error["code"] == "OL-500", error
    what = "2 of the 4 nodes of a group of xor:4 have lost what they stored (node 1, node 2)"
    assert what in error["reason"] and "and it tolerates 1" in error["reason"], error


def test_a_node_of_each_of_two_groups(job: Job) -> None:
    job.nodes, job.ranks = 6, 6
    job.hold(74, 50)
    faults = ("node:0@version=75", "node:3@version=75")
    result = job.survive("--levels", "disk,xor:3", inject=faults)
    assert {failure["level"] for failure in result.failures} <= {"xor:3", None}
    assert result.report["restarts"] <= 2, result.err


def test_no_parity_is_left_where_partners_serve_too(job: Job) -> None:
    four(job).hold(74, 50)
    levels = ("--levels", "memory,disk,partner,xor:4,shared/3")
    result = job.survive(*levels, inject=("node:1@version=75",))
    assert result.failure()["level"] == "partner"


def test_what_is_rehearsed_and_verified_is_what_happens(job: Job) -> None:
    four(job).goes_on(*LEVELS, when=job.counts(4, "xor:4"))
    rehearsed = json.loads(job.outlive("checkpoints", "rehearse", "--lose", "node:2", "--json"))
    assert "xor:4" in json.dumps(rehearsed)
    job.outlive("checkpoints", "rehearse", "--lose", "node:1", "--lose", "node:2", status=80)
    job.outlive("checkpoints", "verify")
    newest = newest_of(job.containers(3, "parity"))
    damage(newest)
    assert newest.name in job.outlive("checkpoints", "verify", status=65)


@pytest.mark.parametrize("how", HARMS)
def test_a_container_is_made_from_the_group_at_the_next_run(job: Job, how: str) -> None:
    newest = four(job).half_done(120)
    for path in job.containers(2):
        hurt(path, how)
    rehearsed = job.outlive("checkpoints", "rehearse", "--json", status=None)
    assert json.loads(rehearsed)["rebuilt"][1] == newest, rehearsed
    result = job.survive("--levels", "disk,xor:4")
    assert set(result.said("restored")) == {newest}, result.err


def test_a_container_and_a_parity_that_both_rot_cost_the_version(job: Job) -> None:
    newest = four(job).half_done(120)
    name = next(path for path in job.containers(2) if f"-v{newest}-" in path.name)
    damage(name)
    # The parity of the second of its segments.
    damage(next(path for path in job.containers(1, "parity") if f"-v{newest}-" in path.name))
    result = job.survive("--levels", "disk,xor:4")
    (restored,) = set(result.said("restored"))
    assert restored < newest
    assert "OL-500" in result.err and name.name in result.err, result.err


def test_parities_alone_and_other_levels_at_the_next_run(job: Job) -> None:
    """What was protected by one level is restored by a run that has others."""
    newest = four(job).half_done(120)
    result = job.survive("--levels", "memory,disk,partner")
    assert set(result.said("restored")) == {newest}, result.err


def test_groups_that_cannot_be_laid_are_refused(job: Job) -> None:
    job.nodes = 3
    result = job.run(*LEVELS)
    assert result.status == 64 and "at least 4 nodes" in result.err, result.err
    four(job)
    result = job.run(*LEVELS, "--domains", "0,0,1,2")
    assert result.status == 64 and "failure domain has 2 nodes" in result.err, result.err
    result = job.run("--levels", "disk,xor:2")
    assert result.status == 64 and "xor:G" in result.err, result.err
