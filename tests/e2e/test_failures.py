"""Ranks, nodes, agents and keepers are killed, alone, together and again."""

from pathlib import Path

import pytest
from harness import Job, kill, until

ALL = "memory,disk,partner,shared/2"


def test_nothing_fails(job: Job) -> None:
    every_level = job.counts(5, "memory", "disk", "partner")
    result = job.goes_on(when=every_level)
    assert result.failures == [] and result.report["restarts"] == 0
    assert result.report["warnings"] == [], result.err
    stable = result.report["checkpoints"]["stable"]
    assert stable["memory"] == stable["disk"] == stable["partner"] >= 5


def test_nothing_fails_and_every_version_is_forced(job: Job) -> None:
    result = job.survive("--every", "1000000", program=job.program("--force", 10))
    assert result.failures == [] and result.report["warnings"] == [], result.err
    stable = result.report["checkpoints"]["stable"]
    assert stable["memory"] == stable["disk"] == stable["partner"] == 12, result.err


def test_what_is_forced_goes_as_far_as_it_is_waited_for(job: Job) -> None:
    """Whatever the policy has armed that very version for."""
    program = job.program("--force", 10, "--wait", "all-nodes")
    levels = "memory,disk/4,partner/4,shared/100"
    result = job.survive("--levels", levels, "--every", "10", program=program)
    forced = range(0, job.steps, 10)
    assert sorted(result.said("committed")) == sorted([*forced] * job.ranks), result.out
    assert result.report["checkpoints"]["stable"]["shared"] == len(forced), result.err


def test_a_killed_rank(job: Job) -> None:
    job.hold(74, 50)
    result = job.survive(inject=("rank:4@version=75",))
    failure = result.failure()
    assert (failure["kind"], failure["place"], failure["level"]) == ("rank", "rank:4", "memory")
    # By its end, not by a silence.
    assert failure["injected"] and "SIGKILL" in failure["cause"], failure
    assert failure["at_version"] == 75 and 50 <= failure["version"] <= 74
    assert set(result.said("restored")) == {failure["version"]}
    assert failure["rejected"] == []


def test_a_rank_that_fails_by_itself(job: Job) -> None:
    result = job.survive(program=job.program("--die", 55, 1, 17))
    failure = result.failure()
    assert failure["kind"] in ("rank", "command") and not failure["injected"]
    assert "17" in failure["cause"], failure


@pytest.mark.parametrize("node", [0, 1, 2])
def test_a_killed_node(job: Job, node: int) -> None:
    job.hold(74, 50)
    result = job.survive(inject=(f"node:{node}@version=75",))
    failure = result.failure()
    assert (failure["kind"], failure["place"]) == ("node", f"node:{node}")
    assert failure["level"] == "partner" and "keeper ended" in failure["cause"], failure
    assert failure["at_version"] == 75 and 50 <= failure["version"] <= 74
    assert failure["rejected"] == []
    # With the coordinator goes what only it knew: a decision that was not stable yet.
    assert node == 0 or not failure["uncertain"]


def test_two_nodes_one_after_the_other(job: Job) -> None:
    job.hold(44, 0)
    result = job.survive(inject=("node:1@version=45", "node:2@version=85"))
    assert [failure["place"] for failure in result.failures] == ["node:1", "node:2"]
    assert all(failure["version"] is not None for failure in result.failures)


def test_the_same_node_twice(job: Job) -> None:
    job.hold(44, 0)
    result = job.survive(inject=("node:0@version=45", "node:0@version=85"))
    assert [failure["place"] for failure in result.failures] == ["node:0", "node:0"]


def test_a_node_and_its_partner_fall_back_to_shared_storage(job: Job) -> None:
    # At version 75, with 70 stable on shared storage for certain.
    program = job.program("--force", 10, "--wait", "all-nodes")
    faults = ("node:1@version=75", "node:2@version=75")
    options = ("--levels", ALL, "--every", "1000000")
    result = job.survive(*options, program=program, inject=faults)
    assert {failure["place"] for failure in result.failures} == {"node:1", "node:2"}
    last = result.failures[-1]
    assert last["level"] == "shared" and last["version"] is not None, result.err
    # The first opening after it succeeds: what is collected then keeps its records.
    assert result.report["incarnations"] == [1, 2], result.err


@pytest.mark.parametrize("how", ["unreadable", "unmounted"])
def test_shared_storage_is_out_of_reach_while_two_nodes_are_lost(job: Job, how: str) -> None:
    """Nothing is decided without sight: neither that all is lost, nor for an older version."""
    door = job.dir / "door"
    program = job.program("--force", 10, "--wait", "all-nodes", "--pause", 65, door)
    options = ("--levels", ALL, "--every", "1000000", "--backoff", "300ms")
    faults = ("node:1@version=70", "node:2@version=70")
    run = job.start(*options, program=program, inject=faults)
    until("the pause", Path(f"{door}.reached").exists)
    until("a version", lambda: job.stable("shared") >= 60)
    shared, away = job.home / "shared", job.dir / "away"
    shared.rename(away)
    if how == "unreadable":
        shared.touch()
    door.touch()
    until("the refusal", lambda: "cannot read the shared directory" in run.text())
    shared.unlink(missing_ok=True)
    away.rename(shared)
    result = run.end()
    assert result.status == 0, result.err
    job.check(program)
    assert set(result.said("restored")) == {60}, result.err
    # An outage of what all share is no node's fault.
    assert {failure["place"] for failure in result.failures} == {"node:1", "node:2"}


def test_a_node_and_its_partner_without_shared_storage(job: Job) -> None:
    job.hold(74, 0)
    result = job.run(inject=("node:1@version=75", "node:2@version=75"))
    assert result.status == 80, result.err
    (error,) = result.report["errors"]
    assert error["code"] == "OL-500"
    assert "OL-500" in result.err and error["remedy"]
    assert "fresh" in error["remedy"]


def test_another_node_dies_while_the_first_is_rebuilt(job: Job) -> None:
    job.hold(74, 0)
    job.nodes, job.ranks = 4, 8
    run = job.start(inject=("node:0@version=75",))
    # The moment the new agent of node 0 is there, the node that is no neighbour dies.
    before = until("agents", lambda: len(run.pids("agent")) == 4 and run.pids("agent"))
    until("the replacement", lambda: run.pids("agent").get(0, before[0]) != before[0])
    kill(run.pids("keeper")[2])
    result = run.end()
    assert result.status == 0, result.err
    job.check()
    assert {failure["place"] for failure in result.failures} == {"node:0", "node:2"}


@pytest.mark.parametrize("node", [0, 1])
def test_a_killed_agent_does_not_stop_the_job(job: Job, node: int) -> None:
    result = job.goes_on(when=job.saves(100), inject=(f"agent:{node}@version=45",))
    assert result.failures == [] and result.report["restarts"] == 0
    assert result.report["agent_restarts"] == 1
    # Checkpoints go on.
    assert result.report["checkpoints"]["last"]["partner"] >= 100, result.err


def test_an_agent_killed_again_and_again(job: Job) -> None:
    job.steps = 240
    faults = tuple(f"agent:{v % 3}@version={v}" for v in (30, 61, 92, 120, 151, 182))
    result = job.goes_on(when=job.saves(220), inject=faults)
    assert result.failures == [] and result.report["agent_restarts"] == len(faults)
    assert result.report["checkpoints"]["last"]["partner"] >= 220, result.err


def test_a_node_lost_after_its_agent_was_restarted(job: Job) -> None:
    job.hold(114, 80)
    job.steps = 160
    result = job.survive(inject=("agent:1@version=45", "node:2@version=115"))
    assert result.failure()["place"] == "node:2"
    assert result.failure()["version"] >= 80, result.err


def test_a_killed_keeper(job: Job) -> None:
    job.hold(74, 50)
    result = job.survive(inject=("keeper:1@version=75",))
    failure = result.failure()
    assert failure["place"] == "node:1"
    # The memory is gone with the keeper, the disk is not.
    assert failure["level"] == "disk" and failure["version"] >= 50


def test_everything_of_a_node_killed_from_outside(job: Job) -> None:
    enough = job.dir / "enough"
    program = job.program("--until", enough)
    run = job.start(program=program)
    until(
        "a checkpoint", lambda: (job.node(1) / "partner").exists() and job.containers(1, "partner")
    )
    keepers, agents = run.pids("keeper"), run.pids("agent")
    kill(keepers[1])
    kill(agents[1])
    until("the loss", lambda: "node:1 lost" in run.text())
    enough.touch()
    result = run.end()
    assert result.status == 0, result.err
    job.check(program)
    assert result.failure()["place"] == "node:1"


def test_every_rank_killed_at_once(job: Job) -> None:
    job.hold(74, 0)
    faults = tuple(f"rank:{rank}@version=75" for rank in range(job.ranks))
    result = job.survive(inject=faults)
    assert result.report["restarts"] == 1
    assert result.failures[0]["level"] == "memory"


def test_failures_of_every_kind_in_one_run(job: Job) -> None:
    job.hold(39, 0)
    job.steps = 300
    result = job.survive(
        inject=(
            "rank:2@version=40",
            "node:1@version=90",
            "agent:0@version=130",
            "keeper:2@version=170",
            "rank:5@version=210",
            "node:0@version=250",
        )
    )
    places = [failure["place"] for failure in result.failures]
    assert places == ["rank:2", "node:1", "node:2", "rank:5", "node:0"]
    assert all(failure["version"] is not None for failure in result.failures)


def test_a_stopped_rank_goes_on(job: Job) -> None:
    result = job.survive(inject=("freeze:rank:2@version=40,for=300ms",))
    assert result.failures == []


def test_no_descriptor_of_outlive_reaches_the_command(job: Job) -> None:
    result = job.run(program=["/bin/ls", "-l", "/proc/self/fd"])
    assert result.status == 0
    assert not any(word in result.out for word in ("memfd", "lock", "socket", "eventpoll"))


def test_a_failure_domain_of_two_nodes(job: Job) -> None:
    job.hold(74, 50)
    # Partners lie in the other domain: both nodes of one may go at once.
    job.nodes, job.ranks, job.spares = 4, 8, 4
    both = ("node:0@version=75", "node:1@version=75")
    result = job.survive("--domains", "0,0,1,1", inject=both)
    assert {failure["place"] for failure in result.failures} == {"node:0", "node:1"}
    assert result.failures[-1]["level"] == "partner"
    assert result.failures[-1]["version"] >= 50


@pytest.mark.parametrize("domains", ["0,0", "0,0,0", "0,x,1"])
def test_failure_domains_that_make_no_sense(job: Job, domains: str) -> None:
    result = job.run("--domains", domains)
    assert result.status == 64 and "domains" in result.err and "OL-" in result.err
