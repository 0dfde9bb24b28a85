"""What the docs state of clusters in a bad state: a machine that comes back, two launchers, another
build, a launcher that is cut off from half of the machines. One-way cuts: ``test_cuts.py``."""

import shutil
import subprocess
import time

import pytest
from conftest import OUTLIVE, Cluster
from skip import skip
from test_hosts import heat, options, undisturbed, wait_until_nothing_runs
from test_unreached import STEPS as WALK_STEPS
from test_unreached import digests as walk_digests
from test_unreached import undisturbed as walk_undisturbed
from test_unreached import walk


@pytest.mark.parametrize("how", ["heals", "boots"])
def test_a_machine_that_comes_back_is_not_used_again(cluster: Cluster, how: str) -> None:
    """With all that it had, or with nothing: another has its place."""
    output = cluster.dir / "field"
    machines = cluster.machines
    run = cluster.start(*options(cluster), *heat(output, 24000))
    cluster.wait_for(run, "version 40 stable on partner")
    if how == "heals":
        machines.cut("n2")
    else:
        machines.power_off("n2")
    said = cluster.wait_for(run, "incarnation 2 started")
    if how == "heals":
        machines.heal("n2")
    else:
        machines.boot("n2")
    said += cluster.wait_for(run, "version 180 stable on partner")
    # It has ended what it had, and was given nothing new.
    assert "outlive" not in machines.run("n2", "ps", "-e", "-o", "args"), said
    report, text = cluster.end(run)
    assert output.read_bytes() == undisturbed(cluster), said + text
    assert report["restarts"] == 1, said + text
    assert machines.run("n4", "ls", "/tmp/nodes/heat").split() == ["node-1", "owner"]
    # In the next run it may be: the slot stays with the machine that has its data.
    words = [*options(cluster), *heat(output, 0)]
    report, text = cluster.end(cluster.start(*words))
    assert report["failures"] == [] and "version 240 rebuilt from disk" in text, text


def test_a_second_launcher_is_refused_and_disturbs_nothing(cluster: Cluster) -> None:
    """On another machine, with the same store."""
    output = cluster.dir / "field"
    run = cluster.start(*options(cluster), *heat(output))
    said = cluster.wait_for(run, "version 40 stable on partner")
    words = ["--job", "heat", "--store", cluster.dir / "store", *options(cluster), *heat(output)]
    second = subprocess.run(
        cluster.machines.words("n4", OUTLIVE, "run", *words),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert second.returncode == 75 and "OL-502" in second.stderr, second
    report, text = cluster.end(run)
    assert output.read_bytes() == undisturbed(cluster), said + text
    assert report["failures"] == [] and report["restarts"] == 0, said + text


def test_hosts_with_another_build_are_refused_by_name(cluster: Cluster) -> None:
    other = cluster.dir / "other"
    shutil.copy(OUTLIVE, other)
    # What follows a program's sections is nothing to the kernel, but another file.
    with open(other, "ab") as file:
        file.write(b"\0")
    more = ["--remote-executable", other]
    report, text = cluster.end(cluster.start(*options(cluster, *more), *heat(other)), 69)
    assert "n1 has another build of outlive" in text and "--remote-executable" in text, text
    assert report["result"] == "failed", text
    wait_until_nothing_runs(cluster, ["n1", "n2", "n3", "n4"])


def test_a_launcher_that_is_cut_off_from_half_of_the_machines(cluster: Cluster) -> None:
    """Two of three nodes, and there is one spare: the run ends, each machine ends what it has,
    and the same command goes on when they are reached again."""
    if shutil.which("nft") is None:
        skip("machines", "no nft")
    output = cluster.dir / "field"
    machines = cluster.machines
    run = cluster.start(*options(cluster), *heat(output, 16000))
    said = cluster.wait_for(run, "version 80 stable on partner")
    ways = [(a, b) for name in ("n2", "n3") for a, b in (("room", name), (name, "room"))]
    machines.drop(*ways)
    text, _ = run.communicate(timeout=90)
    assert run.returncode not in (0, None), said + text
    assert "OL-504" in text, said + text
    wait_until_nothing_runs(cluster, ["n1", "n2", "n3", "n4"])
    machines.drop()
    report, text = cluster.end(cluster.start(*options(cluster), *heat(output, 0)))
    assert output.read_bytes() == undisturbed(cluster), text
    assert report["failures"] == [] and "rebuilt from" in text, text


def test_ssh_that_does_not_let_us_in_is_named_and_nobody_is_asked(cluster: Cluster) -> None:
    machines = cluster.machines
    # One home for all: no machine takes the key any more.
    machines.run("n1", "sh", "-c", ": > /root/.ssh/authorized_keys")
    report, text = cluster.end(cluster.start(*options(cluster), *heat(cluster.dir / "x")), 69)
    assert "OL-504" in text and "Permission denied" in text, text
    assert report["result"] == "failed", text


def test_clocks_that_differ_and_a_name_that_means_the_machine_itself(cluster: Cluster) -> None:
    """One machine has been up for a month, by its own clock; to itself its name is 127.0.1.1, as
    Debian's installer writes it."""
    if shutil.which("nft") is None:
        skip("machines", "no nft")
    machines = cluster.machines
    machines.end("n2")
    machines.boot("n2", up_s=2_600_000)
    assert float(machines.run("room", "ssh", "n2", "cat", "/proc/uptime").split()[0]) > 2_600_000
    own = "grep -v n2 /etc/hosts > /tmp/own; echo 127.0.1.1 n2 >> /tmp/own"
    machines.run("n2", "sh", "-c", f"{own}; mount --bind /tmp/own /etc/hosts")
    assert "127.0.1.1" in machines.run("n2", "getent", "hosts", "n2")
    program, output = walk(cluster), cluster.dir / "digest"
    levels = ["--levels", "memory,disk,partner", "--every", 20, "--dead-timeout", "4s"]
    words = ["--hosts", cluster.hosts("n1\nn2\nn3\n"), "--start", "each", *levels]
    run = cluster.start(*words, "--", program, output, WALK_STEPS, 20000)
    said = cluster.wait_for(run, " stable on partner")
    # Cut off from the launcher alone, for shorter than its lease, then for good.
    machines.drop(("n2", "room"), ("room", "n2"))
    time.sleep(1.5)
    machines.drop()
    said += cluster.wait_for(run, " stable on partner")
    machines.cut("n2")
    report, text = cluster.end(run)
    (cluster.dir / "reference").mkdir()
    expected = walk_undisturbed(program, cluster.dir / "reference")
    assert walk_digests(output) == expected, said + text
    assert report["restarts"] == 1 and "rebuilt from partner" in text, said + text
    assert "outlive" not in machines.run("n2", "ps", "-e", "-o", "args"), text
