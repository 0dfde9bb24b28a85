"""torchrun on machines of their own: one torchrun on each, started by ssh or in steps of Slurm.

A machine with two of the four ranks loses current; the spare takes its place. The weights, losses
and random numbers of all ranks are those of an undisturbed run.
"""

import sys
from pathlib import Path

import pytest
from conftest import ROOT, Cluster
from test_hosts import wait_until_nothing_runs

sys.path.insert(0, str(ROOT / "tests" / "torchrun"))
import places

STEPS = 60
OPTIONS = ["--every", 10, "--dead-timeout", "6s"]
ALLOCATION = ("salloc", "--quiet", "--no-kill", "-N", 3, "--ntasks-per-node=2")


def train(output: Path, *torchrun: str) -> list[object]:
    words = ["torchrun", *torchrun, "--nproc_per_node=2"]
    return ["--", *words, places.TRAIN, output, "--steps", STEPS, "--sleep-ms", 100]


def paths(cluster: Cluster) -> dict[str, str]:
    return places.variables(cluster.dir)


@pytest.mark.parametrize("lost", ["n1", "n2"])
def test_a_machine_of_torchrun_is_replaced(cluster: Cluster, lost: str) -> None:
    """Also the first, where the others meet."""
    more = paths(cluster)
    output = cluster.dir / "output"
    hosts = cluster.hosts("n1\nn2\nn3\n")
    run = cluster.start("--hosts", hosts, *OPTIONS, *train(output, "--nnodes=2"), **more)
    cluster.wait_for(run, "version 20 stable on partner")
    cluster.machines.power_off(lost)
    report, text = cluster.end(run)
    assert report["restarts"] == 1 and "rebuilt from partner" in text, text
    assert places.results(output) == places.undisturbed(cluster.dir, more, STEPS), text
    wait_until_nothing_runs(cluster, [name for name in ("n1", "n2", "n3") if name != lost])


def test_a_machine_of_an_allocation_is_replaced(under_slurm: Cluster) -> None:
    more = paths(under_slurm)
    output = under_slurm.dir / "output"
    words = ["--hosts", "slurm", *OPTIONS, *train(output)]
    run = under_slurm.start(*words, within=ALLOCATION, **more)
    under_slurm.wait_for(run, "version 20 stable on partner")
    under_slurm.machines.power_off("n2")
    report, text = under_slurm.end(run)
    assert report["restarts"] == 1 and "rebuilt from partner" in text, text
    assert places.results(output) == places.undisturbed(under_slurm.dir, more, STEPS), text


def test_a_machine_that_is_cut_off_ends_its_torchrun_by_itself(cluster: Cluster) -> None:
    """Nobody can tell it to: the process that stands for the launcher there ends it, with its
    own lease, before the spare begins."""
    more = paths(cluster)
    output = cluster.dir / "output"
    hosts = cluster.hosts("n1\nn2\nn3\n")
    run = cluster.start("--hosts", hosts, *OPTIONS, *train(output), **more)
    cluster.wait_for(run, "version 20 stable on partner")
    cluster.machines.cut("n2")
    said = cluster.wait_for(run, "incarnation 2 started")
    left = cluster.machines.run("n2", "ps", "-e", "-o", "args")
    assert "torch" not in left and "outlive" not in left, said + left
    report, text = cluster.end(run)
    cluster.machines.heal("n2")
    assert report["result"] == "finished", text
    assert places.results(output) == places.undisturbed(cluster.dir, more, STEPS), text


def test_another_rendezvous_is_refused(cluster: Cluster) -> None:
    hosts = cluster.hosts("n1\nn2\n")
    words = ["--hosts", hosts, "--spares", 0, *train(Path("/x"), "--rdzv_backend=c10d")]
    said = cluster.tell(64, "run", "--job", "t", "--store", cluster.dir / "store", *words)
    assert "OL-100" in said and "leave --rdzv-backend and --rdzv-endpoint out" in said, said


def test_a_plain_process_on_each_node_is_a_rank(cluster: Cluster) -> None:
    """No launcher at all: two processes of one program, started by outlive alone. One of them
    fails: the others are ended too, and all start again."""
    output = cluster.dir / "said"
    script = cluster.dir / "script"
    script.write_text(
        "#!/bin/sh\n"
        f'echo "$(hostname) $OUTLIVE_NODE_RANK/$OUTLIVE_NODES $1" >> {output}\n'
        # It fails when the other has said its line, not before.
        '[ "$OUTLIVE_NODE_RANK" = 0 ] && [ "$OUTLIVE_INCARNATION" = 1 ] && {\n'
        f"  until grep -q 1/2 {output}; do sleep 0.05; done\n"
        "  exit 3\n"
        "}\n"
        '[ "$OUTLIVE_INCARNATION" = 1 ] && exec sleep 600\n'
        "exit 0\n"
    )
    script.chmod(0o755)
    hosts = cluster.hosts("n1\nn2\n")
    options = ["--hosts", hosts, "--spares", 0, "--start", "each", "--backoff", 0]
    report, text = cluster.end(cluster.start(*options, "--", script, "a b"))
    assert sorted(output.read_text().splitlines()) == sorted(["n1 0/2 a b", "n2 1/2 a b"] * 2), text
    assert report["restarts"] == 1 and "n1: the command ended with exit code 3" in text, text
    left = cluster.machines.run("n2", "ps", "-e", "-o", "args")
    assert "sleep 600" not in left and "outlive" not in left, left
