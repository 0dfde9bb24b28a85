"""Partners that take turns: a node that is lost with the partner of its newest version has the one
before."""

import json
import re
import shutil

from harness import Job

LEVELS = ("--levels", "memory,disk,partner")
NODES = 5


def holders(job: Job) -> dict[int, dict[int, int]]:
    """Of each version: who keeps the copy of which node."""
    found: dict[int, dict[int, int]] = {}
    for holder in range(job.nodes):
        for path in job.containers(holder, "partner"):
            version, owner = map(int, re.search(r"-v(\d+)-n(\d+)\.", path.name).groups())
            assert owner != holder and owner not in found.setdefault(version, {}), path
            found[version][owner] = holder
    return found


def test_a_node_that_is_lost_with_its_partner_has_an_older_version(job: Job) -> None:
    job.nodes, job.ranks, job.steps = NODES, 2 * NODES, 240
    # Each version is forced and committed before the next, however slow the machine is.
    words = ("--force", 10, "--wait", "node-loss")
    options = (*LEVELS, "--partners", "4", "--keep", "16", "--every", "1000000")
    result = job.survive(*options, program=job.program(*words))
    newest = result.report["checkpoints"]["last"]["partner"]
    kept = holders(job)
    whole = {version: by for version, by in kept.items() if len(by) == NODES}
    assert newest in whole and len(whole) >= 8, kept
    for by in whole.values():
        assert len(set(by.values())) == NODES, "none keeps the copies of two others"
    assert len({by[1] for by in whole.values()}) > 1, "they turn"
    lost = {1, whole[newest][1]}
    left = [version for version, by in whole.items() if all(by[node] not in lost for node in lost)]
    assert left and newest not in left
    for node in lost:
        shutil.rmtree(job.node(node))
    rehearsed = json.loads(job.outlive("checkpoints", "rehearse", "--json"))
    assert rehearsed["rebuilt"][1] == max(left), rehearsed
    job.steps = 360
    # What turns is said by records, and not by the next run.
    result = job.survive(*LEVELS, "--partners", "2")
    assert set(result.said("restored")) == {max(left)}, result.err


def test_a_replaced_node_gets_back_what_it_kept_for_others(job: Job) -> None:
    """And another that is lost before a new version comes back of it."""
    job.nodes, job.ranks = NODES, 2 * NODES
    job.hold(44, 40)
    options = (*LEVELS, "--partners", "4", "--every", "1000000", "--spares", "2")
    faults = ("node:1@version=45", "node:3@version=60")
    result = job.survive(*options, program=job.program("--force", 40), inject=faults)
    places = [failure["place"] for failure in result.failures]
    assert places == ["node:1", "node:3"], result.err
    assert [failure["version"] for failure in result.failures] == [40, 40], result.err


def test_by_default_a_node_has_one_partner(job: Job) -> None:
    job.nodes, job.ranks = NODES, 2 * NODES
    job.hold(115, 100)
    job.survive(*LEVELS, "--keep", "8")
    kept = holders(job)
    assert kept and all(
        (owner + 1) % NODES == holder for by in kept.values() for owner, holder in by.items()
    )
