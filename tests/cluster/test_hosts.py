"""Jobs on machines of their own, reached by ssh: what ends there, and what goes on.

The machines are namespaces with an ssh server each; ranks are started by the MPI library's
own mpirun over ssh. Results are compared bit for bit with an undisturbed run.
"""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import HEAT2D, MPICH, OUTLIVE, Cluster
from skip import skip

SHAPE = ["192", "192"]
STEPS = "260"
RANKS = 6
HOSTS = "n1 slots=2\nn2 slots=2\nn3 slots=2\nn4 slots=2\n"


def heat(output: Path, sleep_us: int = 8000) -> list[object]:
    pace = ["--sleep-us", str(sleep_us)]
    return ["--", "mpirun", "-n", RANKS, HEAT2D, *SHAPE, STEPS, output, *pace]


def undisturbed(cluster: Cluster) -> bytes:
    output = cluster.dir / "reference"
    words = [MPICH / "mpirun", "-n", "1", HEAT2D, *SHAPE, STEPS, output]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    return output.read_bytes()


def options(cluster: Cluster, *more: object) -> list[object]:
    return ["--hosts", cluster.hosts(HOSTS), "--every", 20, "--dead-timeout", "4s", *more]


def processes(cluster: Cluster, name: str) -> str:
    text = cluster.machines.run(name, "ps", "-e", "-o", "args")
    return "\n".join(line for line in text.splitlines() if "<defunct>" not in line)


def wait_until_nothing_runs(cluster: Cluster, names: list[str]) -> None:
    """Nothing of a job is left: no keeper, no rank, no key."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        left = {name: processes(cluster, name) for name in names}
        if not any("outlive" in text or "heat2d" in text for text in left.values()):
            break
        time.sleep(0.05)
    else:
        pytest.fail(f"still there: {left}")
    for name in names:
        assert cluster.machines.run(name, "find", "/tmp", "-path", "*outlive-0/*") == ""


def test_a_node_that_is_killed_is_replaced_by_another_machine(cluster: Cluster) -> None:
    output = cluster.dir / "field"
    run = cluster.start(*options(cluster, "--inject", "node:1@version=130"), *heat(output))
    report, text = cluster.end(run)
    assert output.read_bytes() == undisturbed(cluster), text
    failure, *others = report["failures"]
    assert (failure["kind"], failure["place"]) == ("node", "node:1")
    # MPICH itself crashes now and then in a rank whose peer is gone (the kernel names libmpi.so,
    # at one place): that rank's end is told too, and costs nothing more.
    assert all("SIGSEGV" in other["cause"] for other in others), report["failures"]
    assert failure["version"] == 120 and report["restarts"] == 1, text
    # The spare has the lost node's slot, and its part from the partner.
    assert cluster.machines.run("n4", "ls", "/tmp/nodes/heat").split() == ["node-1", "owner"]
    wait_until_nothing_runs(cluster, ["n1", "n2", "n3", "n4"])
    # What lies on other machines is not called missing.
    choice = ["--job", "heat", "--store", cluster.dir / "store"]
    assert "newest       version 240 on partner" in cluster.tell(0, "status", *choice)
    assert "240" in cluster.tell(0, "status", *choice[2:])
    for words in (["list"], ["verify"], ["rehearse", "--lose", "node:1"]):
        said = cluster.tell(74, "checkpoints", *words, *choice)
        assert "OL-404" in said and "other machines (n1, n4, n3)" in said, said


@pytest.mark.parametrize("how", ["power off", "ends", "cable"])
def test_a_machine_that_is_gone_is_replaced(cluster: Cluster, how: str) -> None:
    """Without current, with a network that answers for it, and cut off but alive."""
    output = cluster.dir / "field"
    run = cluster.start(*options(cluster), *heat(output, 12000))
    cluster.wait_for(run, "version 80 stable on partner")
    {
        "power off": cluster.machines.power_off,
        "ends": cluster.machines.end,
        "cable": cluster.machines.cut,
    }[how]("n2")
    report, text = cluster.end(run)
    assert output.read_bytes() == undisturbed(cluster), text
    assert report["restarts"] >= 1 and report["result"] == "finished", text
    assert cluster.machines.run("n4", "ls", "/tmp/nodes/heat").split() == ["node-1", "owner"]
    if how == "cable":
        # What was cut off has ended itself: its lease was over before the spare began.
        wait_until_nothing_runs(cluster, ["n2"])
        cluster.machines.heal("n2")


@pytest.mark.parametrize("sealed", [False, True])
def test_a_machine_comes_back_from_a_memory_server(cluster: Cluster, sealed: bool) -> None:
    """One that pulls from the machines by itself, in the clear and encrypted."""
    output, address = cluster.dir / "field", "10.86.0.1:7070"
    store = cluster.dir / "store"
    words = ["--memory", "64MiB", "--listen", address, "--job", "heat", "--store", store]
    server = subprocess.Popen(
        cluster.machines.words("room", OUTLIVE, "memory-server", *words),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None and address in server.stdout.readline()
        more = ["--levels", "memory,disk,memory-server:3", "--memory-server", address]
        more += ["--encrypt", "true"] if sealed else []
        run = cluster.start(*options(cluster, *more), *heat(output, 12000))
        cluster.wait_for(run, "version 80 stable on memory-server:3")
        cluster.machines.power_off("n2")
        report, text = cluster.end(run)
    finally:
        server.kill()
        server.wait()
    assert output.read_bytes() == undisturbed(cluster), text
    assert "rebuilt from memory-server:3" in text and report["result"] == "finished", text


def test_a_killed_launcher_leaves_nothing_and_the_next_goes_on(cluster: Cluster) -> None:
    output = cluster.dir / "field"
    run = cluster.start(*options(cluster), *heat(output))
    cluster.wait_for(run, "version 80 stable on disk")
    launcher = cluster.machines.run("room", "pgrep", "-o", "-x", "outlive").strip()
    cluster.machines.run("room", "kill", "-KILL", launcher)
    run.communicate(timeout=30)
    wait_until_nothing_runs(cluster, ["n1", "n2", "n3"])
    # In another order: each slot is looked for where its storage is.
    cluster.hosts("n4 slots=2\nn3 slots=2\nn2 slots=2\nn1 slots=2\n")
    words = ["--hosts", cluster.dir / "hostfile", "--every", 20]
    report, text = cluster.end(cluster.start(*words, *heat(output)))
    assert output.read_bytes() == undisturbed(cluster), text
    assert "rebuilt from disk" in text and report["failures"] == [], text


def test_a_host_that_does_not_answer_at_the_start_is_passed_over(cluster: Cluster) -> None:
    cluster.machines.end("n1")
    output = cluster.dir / "field"
    report, text = cluster.end(cluster.start(*options(cluster), *heat(output, 0)))
    assert output.read_bytes() == undisturbed(cluster), text
    assert "n1 cannot be reached" in text, text
    assert report["failures"][0]["place"] == "node:0"


def test_hosts_are_looked_at_before_a_run(cluster: Cluster) -> None:
    """A healthy cluster, a way that is cut, a machine that does not answer, another store."""
    store = cluster.dir / "store"
    store.mkdir()
    doctor = ["doctor", "--store", store, "--hosts", cluster.hosts(HOSTS), "--within", "15s"]
    well = json.loads(cluster.tell(0, *doctor, "--json"))
    assert [host["host"] for host in well["hosts"]] == ["n1", "n2", "n3", "n4"]
    for host in well["hosts"]:
        checks = {check["name"]: check for check in host["checks"]}
        assert "fail" not in {check["grade"] for check in host["checks"]}, host
        assert checks["other hosts"]["found"].startswith("reaches 3 others")
        assert checks["shared store"]["grade"] == "ok" and "within" in checks["clock"]["found"]
        for name in ("node storage", "shared writes"):
            assert "written and synced in" in checks[name]["found"], host
    assert well["checks"] == []
    cluster.machines.drop(("n2", "n3"))
    cluster.machines.end("n4")
    said = cluster.tell(69, *doctor)
    # Where nothing passes one way, no connection is made either way.
    assert "n2: does not reach n3 (" in said and "n3: does not reach n2 (" in said, said
    assert "FAIL  answer         n4: the command that connects has ended" in said, said
    assert "4 hosts: " in said
    cluster.machines.run("n1", "mount", "-t", "tmpfs", "tmpfs", store)
    assert "warn  shared store   n1: " in cluster.tell(69, *doctor)
    # Where versions are to lie that all share is asked from here.
    nowhere = ["--object-store", "ftp://bucket/jobs"]
    said = cluster.tell(69, *doctor, *nowhere)
    assert "FAIL  object store   this machine: " in said, said
    assert list(store.iterdir()) == [], "nothing is left"


def test_only_some_ports_are_open_between_hosts(cluster: Cluster) -> None:
    """A firewall lets through ssh, the ports of Outlive and those of MPI."""
    if shutil.which("nft") is None:
        skip("machines", "no nft")
    cluster.machines.open_only("22", "20000-20019", "21000-21099")
    (cluster.dir / "store").mkdir()
    doctor = ["doctor", "--store", cluster.dir / "store", "--hosts", cluster.hosts(HOSTS)]
    said = cluster.tell(69, *doctor, "--within", "15s")
    assert "connect to this machine, at any port or at those of --ports" in said, said
    ports = ["--ports", "20000-20019"]
    assert cluster.tell(0, *doctor, *ports, "--json").count("reaches 3 others") == 4
    # MPICH is told its own.
    own = {"MPIEXEC_PORT_RANGE": "21000:21099"}
    own |= {"FI_TCP_PORT_LOW_RANGE": "21000", "FI_TCP_PORT_HIGH_RANGE": "21099"}
    output = cluster.dir / "field"
    plan = ["--inject", "node:1@version=130"]
    run = cluster.start(*options(cluster, *ports, *plan), *heat(output), **own)
    report, text = cluster.end(run)
    assert output.read_bytes() == undisturbed(cluster), text
    assert len(report["failures"]) >= 1 and report["restarts"] == 1, text


def test_hosts_reach_each_other_by_the_newer_protocol(cluster: Cluster) -> None:
    """Outlive's own ways lead over IPv6, those of ssh and MPI over IPv4."""
    names = {"room": 1} | {name: 10 + int(name[1:]) for name in cluster.machines.names}
    for name, number in names.items():
        device = "br0" if name == "room" else "eth0"
        address = ["address", "add", f"fd00:86::{number}/64", "dev", device, "nodad"]
        cluster.machines.run(name, "ip", "-6", *address)
    network = ["--network", "fd00:86::/64"]
    (cluster.dir / "store").mkdir()
    doctor = ["doctor", "--store", cluster.dir / "store", "--hosts", cluster.hosts(HOSTS)]
    found = cluster.tell(0, *doctor, *network, "--json")
    assert "from fd00:86::11 to fd00:86::1" in found and found.count("reaches 3 others") == 4
    output = cluster.dir / "field"
    plan = ["--inject", "node:1@version=130"]
    run = cluster.start(*options(cluster, *network, *plan), *heat(output))
    cluster.wait_for(run, "version 40 captured")
    assert "[fd00:86::12]" in cluster.machines.run("n1", "ss", "-tnp")
    report, text = cluster.end(run)
    assert output.read_bytes() == undisturbed(cluster), text
    assert len(report["failures"]) >= 1 and report["restarts"] == 1, text


def test_a_host_without_the_program_is_brought_it(cluster: Cluster) -> None:
    more = ["--remote-executable", "/nowhere/outlive"]
    output = cluster.dir / "field"
    report, text = cluster.end(cluster.start(*options(cluster, *more), *heat(output, 0)))
    assert output.read_bytes() == undisturbed(cluster), text
    assert report["failures"] == [], text
    # The spare was not needed, and has none.
    assert cluster.machines.run("n1", "find", "/var/tmp", "-name", "outlive") != ""
    assert cluster.machines.run("n4", "find", "/var/tmp", "-name", "outlive") == ""


def test_a_host_that_takes_no_program_is_named(cluster: Cluster) -> None:
    for name in cluster.machines.names:
        # Others may write there: no place for a program.
        cluster.machines.run(name, "mkdir", "-m", "777", "/var/tmp/outlive-0")
    more = ["--remote-executable", "/nowhere/outlive"]
    report, text = cluster.end(cluster.start(*options(cluster, *more), *heat(Path("/x"))), 69)
    assert "OL-504" in text and " has no program /nowhere/outlive" in text, text
    assert "--remote-executable" in text, text
    assert report["result"] == "failed"


def test_two_names_of_one_machine_are_refused(cluster: Cluster) -> None:
    cluster.hosts(f"n1\n{cluster.machines.address('n1')}\n")
    words = ["--hosts", cluster.dir / "hostfile", "--spares", 0]
    _, text = cluster.end(cluster.start(*words, *heat(Path("/x"))), 69)
    assert "two names mean one host" in text, text


def test_a_launcher_that_stood_still_goes_on_with_the_same_machines(cluster: Cluster) -> None:
    output = cluster.dir / "field"
    run = cluster.start(*options(cluster), *heat(output, 40000))
    cluster.wait_for(run, "version 80 stable on disk")
    launcher = cluster.machines.run("room", "pgrep", "-o", "-x", "outlive").strip()
    cluster.machines.run("room", "kill", "-STOP", launcher)
    # Nobody answers for it: each machine ends what it runs by itself.
    wait_until_nothing_runs(cluster, ["n1", "n2", "n3"])
    cluster.machines.run("room", "kill", "-CONT", launcher)
    # What brought it into the room stopped with it.
    run.send_signal(signal.SIGCONT)
    _, text = cluster.end(run)
    assert output.read_bytes() == undisturbed(cluster), text
    # From their disks: no machine was lost.
    assert "rebuilt from disk" in text and "a spare" not in text, text


def test_an_interrupt_ends_everything_everywhere(cluster: Cluster) -> None:
    run = cluster.start(*options(cluster), *heat(cluster.dir / "field", 20000))
    cluster.wait_for(run, "version 40 stable on partner")
    launcher = cluster.machines.run("room", "pgrep", "-o", "-x", "outlive").strip()
    cluster.machines.run("room", "kill", "-TERM", launcher)
    _, text = cluster.end(run, 128 + signal.SIGTERM)
    wait_until_nothing_runs(cluster, ["n1", "n2", "n3"])
    assert "interrupted" in text, text


def test_a_rank_that_stands_still_on_another_machine_is_named(cluster: Cluster) -> None:
    output = cluster.dir / "field"
    bound = ["--on-hang", "restart", "--hang-timeout", "2s"]
    run = cluster.start(*options(cluster, *bound), *heat(output))
    cluster.wait_for(run, "version 80 stable on partner")
    cluster.machines.run("n2", "pkill", "-STOP", "-n", "-x", "heat2d")
    report, text = cluster.end(run)
    assert output.read_bytes() == undisturbed(cluster), text
    (entry,) = report["hangs"]
    places = {place["does"]: place["ranks"] for place in entry["places"]}
    (stopped,) = [ranks for does, ranks in places.items() if does.startswith("stopped in ")]
    # Of the second machine.
    assert stopped in ("2", "3") and entry["silent_nodes"] == [], entry
    assert sum(place["count"] for place in entry["places"]) == RANKS, entry
    assert [failure["kind"] for failure in report["failures"]] == ["hang"], report
    stacks = Path(entry["file"]).read_text()
    assert all(f"\nrank {rank} on node {rank // 2}: process " in stacks for rank in range(RANKS))
