"""What is rehearsed before a loss is what happens after it: jobs of ten nodes at rest, of which
some lose all that they stored, and that are started again.

The whole of it, byte by byte, is `crates/vault/tests/losses.rs`; what nodes decide,
`crates/simulator/tests/losses.rs`. This is a sample with the processes that run; all protections,
and more losses of each, with OUTLIVE_LOSSES=all."""

import json
import os
import random
import shutil

from harness import Job

NODES = 10
LOST_MAX = 4
# Each protection with whether a loss leaves it whole: written down once more, and not asked.
GROUPED = {"xor:3": (3, 1), "xor:5": (5, 1), "rs:2+2": (4, 2), "rs:3+2": (5, 2), "rs:6+4": (10, 4)}
PROTECTIONS = ("partner", *GROUPED)
ALL = os.environ.get("OUTLIVE_LOSSES") == "all"


def survives(level: str, lost: set[int]) -> bool:
    if level == "partner":
        return all((node + 1) % NODES not in lost for node in lost)
    members, tolerated = GROUPED[level]
    groups = NODES // members
    return all(sum(n % groups == group for n in lost) <= tolerated for group in range(groups))


def drawn(level: str, chance: random.Random, survived: bool) -> set[int]:
    """Some nodes whose loss is survived, or is not."""
    while True:
        lost = set(chance.sample(range(NODES), chance.randint(1, LOST_MAX)))
        if survives(level, lost) == survived:
            return lost


def rehearsed(job: Job, lost: set[int]) -> dict:
    words = [word for node in sorted(lost) for word in ("--lose", f"node:{node}")]
    return json.loads(job.outlive("checkpoints", "rehearse", *words, "--json", status=None))


def test_what_is_rehearsed_is_what_happens(job: Job, seed: int) -> None:
    chance = random.Random(seed)
    levels = PROTECTIONS if ALL else chance.sample(PROTECTIONS, 1)
    for level in levels:
        job.nodes, job.ranks, job.beyond, job.cells = NODES, NODES, level, 200
        job.holds.clear()
        shutil.rmtree(job.store, ignore_errors=True)
        newest = job.half_done(60)
        kept = job.dir / "kept"
        shutil.copytree(job.home, kept)
        # Nothing can make up for the loss of all of a group of ten with four parities here.
        tolerates_all = level == "rs:6+4"
        wanted = [True, False] * (4 if ALL else 1)
        for survived in (it for it in wanted if it or not tolerates_all):
            lost = drawn(level, chance, survived)
            shutil.rmtree(job.home)
            shutil.copytree(kept, job.home)
            loses(job, level, lost, newest if survived else None)
        shutil.rmtree(kept)


def loses(job: Job, level: str, lost: set[int], expected: int | None) -> None:
    """The nodes lose what they stored, after it was rehearsed, and the job is started again."""
    what = f"{level} without {sorted(lost)}"
    found = rehearsed(job, lost)
    for node in lost:
        shutil.rmtree(job.node(node))
    result = job.run("--levels", f"disk,{level}", program=job.program())
    if expected is None:
        assert found["rebuilt"] is None and not found["survives"], f"{what}: {found}"
        assert result.status == 80, f"{what}: {result.err}"
        (error,) = result.report["errors"]
        assert error["code"] == "OL-500", error
        named = any(f"node {node}" in error["reason"] for node in lost)
        assert named, f"{what}: {error}"
        return
    assert found["rebuilt"] and found["rebuilt"][1] == expected, f"{what}: {found}"
    assert result.status == 0, f"{what}: {result.err}"
    assert set(result.said("restored")) == {expected}, f"{what}: {result.err}"
    job.check(job.program())
