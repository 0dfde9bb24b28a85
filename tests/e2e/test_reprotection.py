"""What a lost node had kept is made again on the one that takes its place, and is told until it is
there."""

import json
import re

from harness import Job

NODES = 4
LEVELS = ("--levels", "memory,disk,partner,xor:4", "--every", "1000000", "--keep", "64")


def status(job: Job) -> dict:
    return json.loads(job.outlive("status", "--json"))


def made_again(job: Job) -> list[dict]:
    """What the report of the run under way says that is done."""
    try:
        report = json.loads((job.home / "report.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return []
    return [it for it in report["reprotections"] if it["seconds"] is not None]


def events(job: Job) -> list[dict]:
    lines = (job.home / "view" / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def versions(job: Job, node: int, kind: str) -> set[int]:
    """Of which a node keeps such a file."""
    names = (path.name for path in job.containers(node, kind))
    return {int(re.search(r"-v(\d+)-", name).group(1)) for name in names}


def test_what_a_lost_node_had_kept_is_made_again_and_told(job: Job) -> None:
    job.nodes, job.ranks, job.steps = NODES, 2 * NODES, 200
    result = job.goes_on(
        *LEVELS,
        program=("--force", 20, "--wait", "node-loss"),
        inject=("node:1@version=70",),
        when=lambda _: made_again(job),
    )
    (entry,) = result.report["reprotections"]
    assert (entry["node"], entry["incarnation"], entry["version"]) == (1, 2, 60), entry
    # Its own container, that of the node before it, and its parity.
    assert entry["copies"] == entry["copies_total"] == 3, entry
    assert entry["bytes"] == entry["bytes_total"] > 0 and entry["seconds"] > 0, entry
    for kind in ("containers", "partner", "parity"):
        assert 60 in versions(job, 1, kind), kind

    told = [it for it in events(job) if it["kind"].startswith("reprotect")]
    assert [it["kind"] for it in told] == ["reprotecting", "reprotected"], told
    began, ended = told
    assert began["node"] == ended["node"] == 1 and began["version"] == 60
    # Its group gives nothing back before its container is there. Node 2 has its copy at node 3, and
    # node 3 at node 0; that of node 0 was lost with it.
    assert began["not_survived"] == [0], began
    assert ended["copies"] == entry["copies"] and ended["bytes"] == entry["bytes"]
    # Once all is there nothing is lacking; how long it took stays.
    assert status(job)["reprotection"] is None
    text = job.outlive("status")
    assert re.search(r"^protected +node 1 in incarnation 2: \d+ copies, .* in ", text, re.M), text
    assert "made again" not in text


def test_after_that_the_next_loss_is_survived(job: Job) -> None:
    """Of the version that was restored, by the node of which only the lost one had kept a copy."""
    job.nodes, job.ranks, job.steps = NODES, 2 * NODES, 200
    job.levels = "memory,disk,partner"
    result = job.goes_on(
        "--every",
        "1000000",
        "--spares",
        "2",
        program=("--force", 60),
        inject=("node:1@version=70", "node:0@version=90"),
        when=lambda _: len(made_again(job)) == 2,
    )
    assert [it["node"] for it in made_again(job)] == [1, 0]
    assert [it["version"] for it in result.failures] == [60, 60], result.err


def test_nothing_is_told_where_no_node_was_lost(job: Job) -> None:
    result = job.survive(inject=("rank:1@version=40",))
    assert result.report["reprotections"] == []
    assert "protected" not in job.outlive("status")
