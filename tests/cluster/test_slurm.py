"""Jobs inside a real Slurm allocation, whose machines are namespaces with a slurmd each."""

import json
import os
import re
import subprocess
import time
from pathlib import Path

from conftest import HEAT2D, MPICH, OUTLIVE, Cluster

SHAPE = ["192", "192"]
STEPS = "260"
RANKS = 6
# Three nodes and a spare; an allocation that outlives one of them.
ALLOCATION = ("salloc", "--quiet", "--no-kill", "-N", 4, "--ntasks-per-node=2")


def heat(output: Path, sleep_us: int = 12000, count: int = RANKS) -> list[object]:
    ranks = ["srun", "--mpi=pmi2", "-n", count, HEAT2D]
    return ["--", *ranks, *SHAPE, STEPS, output, "--sleep-us", sleep_us]


def undisturbed(cluster: Cluster) -> bytes:
    output = cluster.dir / "reference"
    words = [MPICH / "mpirun", "-n", "1", HEAT2D, *SHAPE, STEPS, output]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    return output.read_bytes()


OPTIONS = ["--hosts", "slurm", "--every", 20, "--dead-timeout", "4s"]


def steps(cluster: Cluster) -> dict[str, str]:
    """The steps that run, by name."""
    text = cluster.machines.run("room", "squeue", "--noheader", "--steps", "--format=%j %i")
    return dict(reversed(line.split()[::-1]) for line in text.splitlines() if line.strip())


def all_over(cluster: Cluster) -> None:
    """Waits until nothing of Slurm's jobs is left on any machine, and on into the next second: a
    slurmd refuses a job that is queued again if it starts in the second in which it was killed
    ("already killed, do not launch batch job"), and Slurm calls that the job's failure."""
    left = "pgrep -x slurmstepd || test $? = 1"
    until = time.monotonic() + 60
    while any(cluster.machines.run(name, "sh", "-c", left) for name in cluster.machines.names):
        assert time.monotonic() < until, "jobs of Slurm are left"
        time.sleep(0.1)
    time.sleep(1.1)


def test_the_ranks_step_is_killed_and_starts_again_from_memory(under_slurm: Cluster) -> None:
    output = under_slurm.dir / "field"
    run = under_slurm.start(*OPTIONS, *heat(output), within=ALLOCATION)
    under_slurm.wait_for(run, "version 80 stable on partner")
    step = steps(under_slurm)["heat2d"]
    # All of its processes at once, as the batch system does: agents have steps of their own.
    under_slurm.machines.run("room", "scancel", "--signal=KILL", step)
    report, text = under_slurm.end(run)
    assert output.read_bytes() == undisturbed(under_slurm), text
    assert "rebuilt from memory" in text and report["restarts"] == 1, text


def test_a_machine_that_is_gone_is_replaced_before_slurm_knows(under_slurm: Cluster) -> None:
    output = under_slurm.dir / "field"
    run = under_slurm.start(*OPTIONS, *heat(output), within=ALLOCATION)
    under_slurm.wait_for(run, "version 80 stable on partner")
    under_slurm.machines.power_off("n2")
    early = under_slurm.wait_for(run, "incarnation 2 started")
    # Slurm takes SlurmdTimeout, and more, to call it down.
    assert "Node failure on n2" not in early, early
    report, text = under_slurm.end(run)
    assert output.read_bytes() == undisturbed(under_slurm), early + text
    assert report["restarts"] == 1 and "rebuilt from partner" in early, early + text


def test_the_next_allocation_goes_on_where_one_ended(under_slurm: Cluster) -> None:
    output = under_slurm.dir / "field"
    run = under_slurm.start(*OPTIONS, *heat(output), within=ALLOCATION)
    under_slurm.wait_for(run, "version 80 stable on disk")
    under_slurm.machines.run("room", "scancel", "--user=root")
    run.communicate(timeout=60)
    all_over(under_slurm)
    report, text = under_slurm.end(under_slurm.start(*OPTIONS, *heat(output), within=ALLOCATION))
    assert output.read_bytes() == undisturbed(under_slurm), text
    assert "rebuilt from" in text and report["failures"] == [], text


def test_outside_of_an_allocation_it_says_so(under_slurm: Cluster) -> None:
    _, text = under_slurm.end(under_slurm.start(*OPTIONS, *heat(Path("/x"))), 64)
    assert "this is no allocation" in text and "salloc" in text, text


def kept(said: Path) -> list[int]:
    """The versions that came to shared storage."""
    return [int(v) for v in re.findall(r"version (\d+) stable on shared", said.read_text())]


def test_a_job_that_is_warned_and_queued_again_goes_on_without_its_machines_disks(
    under_slurm: Cluster,
) -> None:
    """As before the time limit: SIGUSR1 to the batch script, then the job is queued again."""
    output, said = under_slurm.dir / "field", under_slurm.dir / "said"
    script = under_slurm.dir / "script"
    # After the first version only the warning brings one to shared storage.
    words = [*OPTIONS, "--levels", "memory,disk,partner,shared/1000", *heat(output, 20000)]
    script.write_text(f"#!/bin/sh\nexec {under_slurm.line(*words)}\n")
    queue = ("sbatch", "--parsable", "--requeue", "--open-mode=append", f"--output={said}")
    job = under_slurm.machines.run("room", *queue, *ALLOCATION[2:], script).strip()
    under_slurm.wait_until("version 60 stable on partner", said)
    (first,) = kept(said)
    under_slurm.machines.run("room", "scancel", "--signal=USR1", "--batch", job)
    under_slurm.wait_until("SIGUSR1", said)
    until = time.monotonic() + 30
    while kept(said) == [first] and time.monotonic() < until:
        time.sleep(0.05)
    (_, warned) = kept(said)
    assert warned > first
    under_slurm.machines.run("room", "scontrol", "requeue", job)
    all_over(under_slurm)
    for name in under_slurm.machines.names:
        under_slurm.machines.run(name, "rm", "-rf", "/tmp/nodes")
    # Slurm lets two minutes pass, unless it is told otherwise while the job waits; on a busy
    # machine it may not hear of that, or hold the job.
    begin = f"scontrol release {job}; scontrol update JobId={job} StartTime=now || :"
    until = time.monotonic() + 240
    while "finished:" not in said.read_text() and time.monotonic() < until:
        under_slurm.machines.run("room", "sh", "-c", begin)
        time.sleep(0.5)
    text = said.read_text()
    if "finished:" not in text:
        text += under_slurm.machines.run("room", "scontrol", "show", "job", job)
    assert "finished:" in text, text
    assert output.read_bytes() == undisturbed(under_slurm), text
    assert f"version {warned} rebuilt from shared" in text, text


def test_a_killed_launcher_is_started_again_in_the_same_allocation(under_slurm: Cluster) -> None:
    """What srun left of it ends by itself; the second goes on from what disks hold."""
    output = under_slurm.dir / "field"
    again = ("sh", "-c", '"$@"; echo status $?; exec "$@"', "sh")
    run = under_slurm.start(*OPTIONS, *heat(output), within=(*ALLOCATION, *again))
    said = under_slurm.wait_for(run, "version 80 stable on disk")
    launcher = under_slurm.machines.run("room", "pgrep", "-o", "-x", "outlive").strip()
    under_slurm.machines.run("room", "kill", "-KILL", launcher)
    report, text = under_slurm.end(run)
    assert output.read_bytes() == undisturbed(under_slurm), said + text
    assert "status 137" in text and "rebuilt from disk" in text, said + text
    assert report["failures"] == [], said + text


def test_an_allocation_of_one_machine(under_slurm: Cluster) -> None:
    """No spare and no partner: it runs with what one node can have, and refuses the rest."""
    output = under_slurm.dir / "field"
    within = (*ALLOCATION[:4], 1, "--ntasks-per-node=4")
    ranks = heat(output, count=4)
    partner = ["--levels", "memory,partner"]
    _, text = under_slurm.end(under_slurm.start(*OPTIONS, *partner, *ranks, within=within), 64)
    assert "OL-100" in text and "needs two nodes" in text, text
    report, text = under_slurm.end(under_slurm.start(*OPTIONS, *ranks, within=within))
    assert output.read_bytes() == undisturbed(under_slurm), text
    assert report["nodes"] == 1 and report["checkpoints"]["stable"]["disk"] > 0, text


def test_a_batch_host_that_dies_takes_the_run_with_it_and_the_job_goes_on_when_sent_again(
    under_slurm: Cluster,
) -> None:
    """The first machine of the allocation has a node, and the supervisor. Slurm lets such a job
    run on without a head, so the other machines end what they have by themselves."""
    output, said = under_slurm.dir / "field", under_slurm.dir / "said"
    machines = under_slurm.machines
    script = under_slurm.dir / "script"
    script.write_text(f"#!/bin/sh\nexec {under_slurm.line(*OPTIONS, *heat(output, 20000))}\n")
    queue = ["sbatch", "--parsable", "--no-kill", "--open-mode=append", f"--output={said}"]
    job = machines.run("room", *queue, *ALLOCATION[3:], script).strip()
    under_slurm.wait_until("version 80 stable on partner", said)
    machines.power_off("n1")
    left = "ps -e -o args | grep -E 'outlive|heat2d' | grep -v -E 'grep|sh -c' || test $? = 1"
    until = time.monotonic() + 30
    while any(machines.run(name, "sh", "-c", left) for name in ("n2", "n3", "n4")):
        assert time.monotonic() < until, said.read_text()
        time.sleep(0.1)
    # Its user, or the time limit.
    machines.run("room", "scancel", job)
    machines.boot("n1")
    machines.wait_for_slurm()
    all_over(under_slurm)
    machines.run("room", *queue, *ALLOCATION[3:], script)
    under_slurm.wait_until("finished:", said)
    text = said.read_text()
    assert output.read_bytes() == undisturbed(under_slurm), text
    # What the machine kept is gone with it.
    assert re.search(r"version \d+ rebuilt from partner", text), text
    assert text.count("fresh start") == 1, text


# Three nodes, n1 and n2 under one switch and n3 under the other, and two spares there.
OVER_SWITCHES = ("salloc", "--quiet", "--no-kill", "-N", 5, "--ntasks-per-node=2")


def copies(cluster: Cluster, name: str) -> set[str]:
    """The nodes of which a machine keeps copies."""
    find = ("find", "/tmp/nodes", "-ignore_readdir_race", "-path", "*/partner/*", "-type", "f")
    files = cluster.machines.run(name, *find).split()
    return {found[1] for file in files if (found := re.search(r"-n(\d+)\.olc$", file))}


def test_copies_lie_under_another_switch_and_one_of_them_may_be_lost(
    under_switches: Cluster,
) -> None:
    """Both machines under a switch lose current at once. Without its switches the job would keep
    the copy of the first on the second."""
    output = under_switches.dir / "field"
    options = [*OPTIONS, "--spares", 2]
    run = under_switches.start(*options, *heat(output), within=OVER_SWITCHES)
    under_switches.wait_for(run, "version 80 stable on partner")
    assert [copies(under_switches, name) for name in ("n1", "n3")] == [{"2"}, {"0", "1"}]
    for name in ("n1", "n2"):
        under_switches.machines.power_off(name)
    report, text = under_switches.end(run)
    assert output.read_bytes() == undisturbed(under_switches), text
    assert report["domains"] == [0, 0, 2] and "rebuilt from partner" in text, text
    said = [line for line in text.splitlines() if "under s2, and counts as one under s1" in line]
    assert len(said) == 2, text


def test_nodes_under_one_switch_run_as_before_and_that_is_said(under_switches: Cluster) -> None:
    output = under_switches.dir / "field"
    within = (*OVER_SWITCHES[:4], 3, "--nodelist=n[3-5]", "--ntasks-per-node=2")
    # At a pace that leaves time for copies.
    run = under_switches.start(*OPTIONS, "--spares", 0, *heat(output), within=within)
    report, text = under_switches.end(run)
    assert text.count("all 3 nodes are under one switch, s2") == 1, text
    assert report["domains"] == [] and report["warnings"] == [], text
    assert report["checkpoints"]["stable"]["partner"] > 0, report
    # What the owner says is not asked of Slurm.
    options = [*OPTIONS, "--spares", 0, "--fresh", "--domains", "own", *heat(output, 0)]
    report, text = under_switches.end(under_switches.start(*options, within=within))
    assert report["domains"] == [0, 1, 2] and "switch" not in text, text
    # A controller that has nothing to say costs a warning, no job.
    (tools := under_switches.dir / "tools").mkdir()
    silent = 'case "$*" in *topology*) echo no answer >&2; exit 1 ;; esac'
    (tools / "scontrol").write_text(f'#!/bin/sh\n{silent}\nexec /usr/bin/scontrol "$@"\n')
    (tools / "scontrol").chmod(0o755)
    path = f"{tools}:{MPICH}:{os.environ['PATH']}"
    options = [*OPTIONS, "--spares", 0, "--fresh", *heat(output, 0)]
    report, text = under_switches.end(under_switches.start(*options, within=within, PATH=path))
    assert [warning["code"] for warning in report["warnings"]] == ["OL-600"], text
    assert report["domains"] == [] and text.count("not known: no answer (") == 1, text


def test_the_doctor_looks_at_the_machines_of_an_allocation(under_slurm: Cluster) -> None:
    store = ["--store", under_slurm.dir / "store", "--node-storage", "/tmp/nodes"]
    doctor = [*ALLOCATION, OUTLIVE, "doctor", *store, "--hosts", "slurm", "--json"]
    done = subprocess.run(
        under_slurm.machines.words("room", *doctor), capture_output=True, text=True, timeout=60
    )
    said = json.loads(done.stdout)
    assert [host["host"] for host in said["hosts"]] == under_slurm.machines.names, done
    for host in said["hosts"]:
        found = {check["name"]: check for check in host["checks"]}
        assert found["program"]["grade"] == found["way here"]["grade"] == "ok", host
        assert found["other hosts"]["found"].startswith("reaches 3 others"), host
        assert found["shared store"]["grade"] == "ok", host
    assert done.returncode == (69 if said["grade"] == "fail" else 0), done
    assert list(under_slurm.dir.rglob(".outlive-doctor-*")) == []
