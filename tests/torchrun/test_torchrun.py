"""torchrun on two nodes of this machine, with two ranks each: what is lost comes back, and the
weights, losses and random numbers of all ranks are those of a run that nothing happened to."""

import random
import socket

import places
import pytest
from conftest import Training

# As torchrun takes them in all its versions.
TWO = ["--nnodes=2", "--nproc_per_node=2"]
MEETING = ["--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=job"]


def test_a_node_is_lost(training: Training, seed: int) -> None:
    version = random.Random(seed).randrange(25, 55)
    node = seed % 2
    options = ["--every", "10", "--spares", "1", "--inject", f"node:{node}@version={version}"]
    report, text = training.run(TWO, *options)
    assert [failure["kind"] for failure in report["failures"]][:1] == ["node"], text
    assert report["restarts"] == 1 and "rebuilt from partner" in text, text
    # Each rank began twice, and the second time not at the beginning.
    for rank in range(4):
        assert text.count(f"rank {rank} of 4, from ") == 2, text
        assert text.count(f"rank {rank} of 4, from 0\n") == 1, text
    assert training.results() == training.undisturbed(), text


@pytest.mark.parametrize("kind", ["static", "c10d"])
def test_a_rank_is_killed_where_torchrun_restarts_too(training: Training, kind: str) -> None:
    """Its own restarts do no harm: one supervisor restarts all ranks, from one version."""
    meeting = []
    if kind == "c10d":
        # Whoever comes first is the first node.
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        meeting = [word.format(port=port) for word in MEETING]
    options = ["--every", "10", "--inject", "rank:2@version=33"]
    report, text = training.run([*TWO, *meeting, "--max_restarts=3"], *options)
    assert report["restarts"] == 1 and report["failures"][0]["kind"] == "rank", text
    assert "rebuilt from memory" in text, text
    assert training.results() == training.undisturbed(), text


def test_one_torchrun_for_all_ranks_of_a_machine(training: Training) -> None:
    options = ["--every", "10", "--inject", "node:1@version=33"]
    report, text = training.run(places.alone(), *options)
    assert report["restarts"] == 1 and report["result"] == "finished", text
    assert training.results() == training.undisturbed(), text


def test_other_nodes_than_there_are_are_refused(training: Training) -> None:
    report, text = training.run(["--nnodes=3", "--nproc_per_node=2"], status=64)
    assert "--nnodes 3, and the job has 2 nodes" in text, text
    assert report["result"] == "refused" or report["failures"] == [], text
