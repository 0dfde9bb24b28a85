"""What programs do: regions that change, files, forced checkpoints, sizes."""

import pytest
from harness import Job, logged

SURVIVE = {
    "memory": "process",
    "disk": "node-crash",
    "partner": "node-loss",
    "shared": "all-nodes",
}


@pytest.mark.parametrize("what,code", [("more", 103), ("larger", 104), ("fewer", 105)])
def test_regions_that_do_not_fit(job: Job, what: str, code: int) -> None:
    job.hold(55, 0)
    job.steps = 60
    job.survive()
    result = job.run(program=job.program("--regions", what))
    assert result.status != 0 and f"-{code} OL-{code}" in result.out
    assert f"OL-{code}" in result.codes(), result.report["warnings"]
    # The same again is not tried again and again.
    assert result.report["restarts"] <= 1
    forgiving = job.run(program=job.program("--regions", what, "--forgive"))
    assert forgiving.status == 0, forgiving.err


def test_another_number_of_ranks(job: Job) -> None:
    job.hold(55, 0)
    job.steps = 60
    job.survive()
    job.ranks = 9
    result = job.run()
    assert result.status == 65 and "OL-201" in result.codes("errors") | result.codes()
    job.ranks = 6
    assert len(set(job.survive().said("restored"))) == 1


def test_more_staging_than_this_machine_has_is_told(job: Job) -> None:
    job.steps = 20
    result = job.survive("--memory", "64TiB")
    (short,) = [it for it in result.report["warnings"] if it["code"] == "OL-311"]
    assert short["entity"] == "this machine", short
    # Of all nodes together.
    assert short["reason"].startswith("memory: staging may take 192.0 TiB, "), short


def test_one_rank_on_one_node(job: Job) -> None:
    job.hold(74, 0, "process")
    job.nodes, job.ranks = 1, 1
    result = job.survive(inject=("rank:0@version=75",))
    assert result.failure()["level"] == "memory"


def test_one_rank_on_four_nodes(job: Job) -> None:
    job.hold(74, 0)
    job.nodes, job.ranks = 4, 1
    result = job.survive(inject=("node:0@version=75",))
    assert result.failure()["level"] == "partner"


def test_more_nodes_than_ranks(job: Job) -> None:
    job.nodes, job.ranks = 5, 3
    result = job.survive(inject=("node:1@version=45", "node:3@version=85"))
    assert len(result.failures) == 2


def test_thirty_ranks(job: Job) -> None:
    job.hold(74, 0)
    job.ranks, job.sleep_us = 30, 8000
    result = job.survive(inject=("node:1@version=75",))
    assert result.failure()["level"] == "partner"


def test_a_region_of_no_bytes(job: Job) -> None:
    job.survive(program=job.program("--empty"), inject=("node:1@version=75",))


def test_nothing_but_a_region_of_no_bytes(job: Job) -> None:
    job.hold(74, 0)
    result = job.run(program=job.program("--only-empty"), inject=("rank:1@version=75",))
    assert result.status == 0, result.err
    assert result.failure()["version"] is not None


def test_regions_of_64_mib(job: Job) -> None:
    job.hold(49, 0)
    job.nodes, job.ranks, job.cells, job.steps, job.sleep_us = 2, 2, 8 << 20, 60, 40_000
    result = job.survive("--memory", "300MiB", inject=("node:1@version=50",), bound_s=100)
    assert result.failure()["place"] == "node:1"
    assert result.failure()["version"] is not None, result.err


def test_regions_that_grow(job: Job) -> None:
    job.hold(74, 30)
    result = job.survive(program=job.program("--grow"), inject=("node:1@version=75",))
    assert result.failure()["version"] >= 30, result.err


def test_files_survive(job: Job) -> None:
    job.hold(74, 0)
    result = job.survive(program=job.program("--files"), inject=("node:1@version=75",))
    assert result.failure()["version"] is not None
    assert not result.said("file") and not result.said("route")


@pytest.mark.parametrize("last", SURVIVE)
def test_forced_checkpoints_are_waited_for(job: Job, last: str) -> None:
    program = job.program("--force", 15, "--wait", SURVIVE[last])
    levels = list(SURVIVE)
    used = ",".join(levels[: levels.index(last) + 1])
    result = job.survive("--every", "1000000", "--levels", used, program=program)
    assert result.said("committed").count(15) == job.ranks, result.out + result.err
    assert not result.said("wait")


def test_forced_checkpoints_with_nodes_without_ranks(job: Job) -> None:
    job.nodes, job.ranks, job.steps = 5, 3, 60
    result = job.survive(
        "--every", "1000000", program=job.program("--force", "20", "--wait", "node-loss")
    )
    assert sorted(set(result.said("committed"))) == [0, 20, 40], result.out


def test_a_node_without_ranks_that_learns_late_that_it_has_none(job: Job) -> None:
    # Its agent, started anew, is asked to join before the launcher says how many ranks
    # there are.
    job.nodes, job.ranks, job.steps = 5, 3, 60
    program = job.program("--force", "20", "--wait", "node-loss")
    result = job.survive("--every", "1000000", program=program, inject=("agent:4@version=20",))
    assert result.failures == []
    assert sorted(set(result.said("committed"))) == [0, 20, 40], result.out


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", ["flush:prepared", "prepared:persist", "prepared:send"])
def test_the_agent_of_a_node_without_ranks_dies_while_it_writes(
    job: Job, point: str, nth: int
) -> None:
    # Nothing at its node would tell it of the version: the coordinator asks again.
    job.nodes, job.ranks, job.steps = 5, 3, 240
    program = job.program("--force", "20", "--wait", "node-loss")
    inject = (f"agent:4@phase={point},nth={nth}",)
    result = job.survive("--every", "1000000", program=program, inject=inject)
    assert result.failures == []
    # Until the agent is there again a neighbour's copy may be cut off, by which a version is
    # given up at this level: then a wait for it says so at once. All others are committed.
    assert "-106" not in result.out, result.out
    versions = range(0, 240, 20)
    missing = [version for version in versions if version not in result.said("committed")]
    assert set(result.said("committed")) <= set(versions), result.out
    in_a_row = range(missing[0], missing[-1] + 1, 20) if missing else []
    assert missing == list(in_a_row) and 220 not in missing, result.out


def test_forced_checkpoints_and_a_lost_node(job: Job) -> None:
    program = job.program("--force", 15, "--wait", "node-loss")
    result = job.survive("--every", "1000000", program=program, inject=("node:1@version=70",))
    assert result.failure()["version"] == 60


def test_forced_and_wanted_checkpoints_mixed(job: Job) -> None:
    job.hold(65, 40)
    program = job.program("--force", 7, "--wait", "process")
    result = job.survive(program=program, inject=("rank:3@version=66",))
    assert result.failure()["version"] >= 40
    # What is armed and withdrawn keeps no slot from what is forced.
    assert "OL-301" not in result.codes() and "OL-301" not in result.out, result.err


def test_a_wait_while_agents_die(job: Job) -> None:
    program = job.program("--force", 15, "--wait", "node-loss")
    faults = ("agent:0@version=31", "agent:1@version=61", "agent:2@version=91")
    result = job.survive("--every", "1000000", program=program, inject=faults)
    assert result.failures == []
    assert result.said("committed").count(105) == job.ranks, result.out


def test_calls_every_100_microseconds(job: Job) -> None:
    job.hold(4990, 2500)
    job.ranks, job.nodes, job.steps, job.sleep_us = 4, 2, 8000, 100
    result = job.survive("--every", "500", inject=("node:1@version=5000",))
    assert result.failure()["version"] >= 2500, result.err


def test_an_interval(job: Job) -> None:
    job.hold(199, 0)
    job.steps = 250
    result = job.survive(
        "--every", "1000000", "--interval", "100ms", inject=("rank:1@version=200",)
    )
    assert result.failure()["version"] is not None


@pytest.mark.parametrize("policy", [("--every", "1000"), ("--interval", "100ms")])
def test_versions_that_leave_numbers_out(job: Job, policy: tuple[str, str]) -> None:
    job.hold(74, 40)
    # As a program that offers each hundredth iteration.
    program = job.program("--scale", "100", "--files")
    job.every = None
    inject = ("node:1@version=7500", "rank:4@version=11000")
    result = job.survive(*policy, program=program, inject=inject)
    assert [failure["kind"] for failure in result.failures] == ["node", "rank"]
    assert min(result.said("restored")) >= 40, result.out
    assert result.report["checkpoints"]["aborted"] <= 2, result.report["checkpoints"]


def test_versions_without_a_pattern(job: Job) -> None:
    job.hold(149, 50)
    job.steps, job.every = 200, None
    result = job.survive(
        "--interval",
        "50ms",
        program=job.program("--irregular", "--scale", "37"),
        inject=(f"node:2@version={150 * 37}",),
    )
    assert min(result.said("restored")) >= 50, result.out


def test_forced_versions_past_an_armed_one(job: Job) -> None:
    job.every = None
    program = job.program("--scale", "10", "--force", "7", "--sleep-us", "6000")
    result = job.survive("--interval", "30ms", program=program)
    # What is forced is taken, whatever is armed meanwhile.
    taken = result.report["checkpoints"]["taken"]
    assert taken >= job.steps // 7, result.report["checkpoints"]


def test_ranks_that_offer_unequal_versions_are_told(job: Job) -> None:
    job.every, job.steps = None, 1500
    program = job.program("--scale", "10", "--unequal")
    result = job.run("--interval", "50ms", program=program)
    assert result.status == 0, result.err
    assert "OL-501" in result.codes(), result.report["warnings"]
    assert "same versions" in result.err


@pytest.mark.parametrize("levels", ["memory", "disk", "partner", "shared", "disk,partner"])
def test_levels_alone(job: Job, levels: str) -> None:
    every = levels.split(",")
    job.hold(74, 30, SURVIVE[every[-1]])
    enough = job.counts(5, *every)
    result = job.goes_on("--levels", levels, when=enough, inject=("rank:1@version=75",))
    assert result.failure()["version"] >= 30, result.err
    for level in every:
        assert result.report["checkpoints"]["stable"][level] >= 5, result.err


def test_records_are_collected_where_memory_is_the_only_level(job: Job) -> None:
    job.steps = 1500
    enough = job.counts(120, "memory")
    result = job.goes_on("--levels", "memory", "--every", "2", when=enough)
    stable = result.report["checkpoints"]["stable"]["memory"]
    logs = [path.read_bytes() for path in job.home.rglob("decisions-*.log")]
    commits = sum(data[at + 10] == 3 for data in logs for at, _ in logged(data))
    # A node keeps those of 64 versions for reports, two that may be restored, 16 that go
    # together, and what came since it last looked.
    assert stable >= 120 and 0 < commits <= 90 * job.nodes, (stable, commits)


def test_too_little_memory_for_two_slots(job: Job) -> None:
    job.cells = 100_000
    result = job.survive("--memory", "1MiB")
    assert result.failures == [] and "OL-302" in result.codes(), result.err


def test_memory_for_one_slot_is_staging(job: Job) -> None:
    job.hold(149, 20)
    # 6 ranks of 60,000 cells on 3 nodes: 0.96 MB a node and slot.
    job.cells, job.steps = 60_000, 200
    options = ("--memory", "1500KiB")
    result = job.goes_on(*options, when=job.counts(3, "partner"), inject=("node:1@version=150",))
    assert "OL-302" in result.codes() and "one slot" in result.err, result.err
    assert result.failure()["version"] >= 20 and result.failure()["level"] == "partner"
    stable = result.report["checkpoints"]["stable"]
    assert stable["partner"] >= 3 and "memory" not in stable, stable


def test_forced_checkpoints_that_follow_each_other_wait_for_a_slot(job: Job) -> None:
    job.steps, job.cells = 60, 100_000
    program = job.program("--force", 1)
    result = job.survive("--every", "1000000", program=program)
    assert result.report["checkpoints"]["taken"] >= 55, result.err
    assert "OL-301" not in result.codes() and "OL-301" not in result.out, result.err


def test_a_program_that_forgets_to_close(job: Job) -> None:
    result = job.survive(program=job.program("--no-close"))
    assert result.failures == []


def test_a_busy_program(job: Job) -> None:
    job.ranks, job.nodes = 2, 2
    job.survive(program=job.program("--busy"), inject=("node:1@version=75",))


def test_a_program_that_is_not_protected(job: Job) -> None:
    result = job.run(program=["/bin/sh", "-c", "exit 0"])
    assert result.status == 0
    result = job.run("--max-restarts", "0", program=["/bin/sh", "-c", "exit 7"])
    assert result.status == 7


def test_encrypted(job: Job) -> None:
    job.hold(74, 0)
    result = job.survive("--encrypt", inject=("node:1@version=75",))
    assert result.failure()["level"] == "partner"
