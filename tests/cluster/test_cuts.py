"""Links between machines that are cut at random, one way or both, and heal again.

A job has one spare, and every cut of a run touches one machine: whatever is decided, the run
ends by itself with the bits of an undisturbed one. ``OUTLIVE_CUTS`` runs (default 4).
"""

import os
import random
import shutil
import time

import pytest
from conftest import Cluster
from skip import skip
from test_hosts import heat, options, undisturbed, wait_until_nothing_runs

RUNS = int(os.environ.get("OUTLIVE_CUTS", "4"))
KINDS = ["machine", "link", "launcher"]
TIMES_S = [0.1, 0.5, 1, 2, 4, 5, 8]
EVER = 1000


def ways(
    chance: random.Random, kind: str, victim: str, names: list[str]
) -> tuple[str, list[tuple[str, str]]]:
    """What is cut of a machine: its word, and each way that nothing passes any more."""
    others = [name for name in [*names, "room"] if name != victim]
    if kind == "link":
        others = [chance.choice([name for name in others if name != "room"])]
    elif kind == "launcher":
        others = ["room"]
    direction = chance.choice(["both ways", "from it", "to it"])
    cut = []
    for other in others:
        if direction != "to it":
            cut.append((victim, other))
        if direction != "from it":
            cut.append((other, victim))
    return f"{victim} and {', '.join(others)}, {direction}", cut


@pytest.mark.parametrize("nth", range(RUNS))
def test_links_that_are_cut_at_random(cluster: Cluster, seed: int, nth: int) -> None:
    if shutil.which("nft") is None:
        skip("machines", "no nft")
    chance = random.Random(f"{seed} {nth}")
    machines = cluster.machines
    output = cluster.dir / "field"
    victim = chance.choice(machines.names[:3])
    run = cluster.start(*options(cluster), *heat(output, 16000))
    said = cluster.wait_for(run, "version 40 stable on partner")
    begun = time.monotonic()
    events = []
    for _ in range(chance.randint(1, 3)):
        events.append((chance.choice(KINDS), chance.choice([*TIMES_S, EVER])))
    # A fourth of the runs lose their machine for certain: a cut that cuts nothing is noticed.
    lost = nth % 4 == 0
    for kind, for_s in [("machine", EVER)] if lost else events:
        word, cut = ways(chance, kind, victim, machines.names)
        print(f"{time.monotonic() - begun:.1f} s: {word}, for {for_s} s")
        machines.drop(*cut)
        if for_s == EVER:
            break
        time.sleep(for_s)
        machines.drop()
        time.sleep(chance.choice([0, 0.2, 1, 3]))
    report, text = cluster.end(run)
    print(said + text)
    machines.drop()
    assert output.read_bytes() == undisturbed(cluster), text
    assert report["result"] == "finished", text
    assert not lost or report["restarts"] >= 1, text
    wait_until_nothing_runs(cluster, machines.names)


@pytest.mark.parametrize("ways_cut", ["both ways", "one way"])
def test_a_link_that_is_cut_for_good_costs_one_of_its_machines(
    cluster: Cluster, ways_cut: str
) -> None:
    if shutil.which("nft") is None:
        skip("machines", "no nft")
    machines = cluster.machines
    one, other = machines.names[1:3]
    output = cluster.dir / "field"
    run = cluster.start(*options(cluster), *heat(output, 16000))
    cluster.wait_for(run, "version 40 stable on partner")
    # Neighbours of the program: their ranks wait for each other, and the launcher hears both.
    back = [(other, one)] if ways_cut == "both ways" else []
    machines.drop((one, other), *back)
    report, text = cluster.end(run)
    machines.drop()
    assert output.read_bytes() == undisturbed(cluster), text
    assert report["result"] == "finished", text
    assert report["restarts"] == 1, text
    assert report["failures"][0]["place"] == "node:2", text
    assert "do not reach each other" in text, text
    wait_until_nothing_runs(cluster, machines.names)
