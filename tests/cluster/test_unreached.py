"""Machines that reach no port of the launcher's: a firewall on its side lets nothing in, while ssh
leads from it to them. Agents speak to it over ssh then; to each other they speak by TCP."""

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import OUTLIVE, ROOT, Cluster
from skip import skip
from test_hosts import wait_until_nothing_runs

HOSTS = "n1\nn2\nn3\n"
STEPS = 400


def walk(cluster: Cluster) -> Path:
    """A program whose ranks need no MPI, which would want to reach the launcher's machine too."""
    library = OUTLIVE.parent / "liboutlive.so"
    if not library.exists():
        skip("machines", "the library is not built; make build")
    for name in ("liboutlive.so", "liboutlive.so.0"):
        (cluster.dir / name).symlink_to(library)
    source = Path(__file__).parent / "programs" / "walk.c"
    words = ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", source]
    words += ["-I", ROOT / "crates" / "client" / "include", "-o", cluster.dir / "walk"]
    words += ["-L", cluster.dir, "-loutlive", f"-Wl,-rpath,{cluster.dir}"]
    subprocess.run(words, check=True, timeout=60)
    return cluster.dir / "walk"


def digests(output: Path) -> dict[str, str]:
    return {path.suffix: path.read_text() for path in sorted(output.parent.glob("digest.?"))}


def undisturbed(program: Path, into: Path) -> dict[str, str]:
    for rank in range(2):
        variables = {"OUTLIVE_NODE_RANK": str(rank), "OUTLIVE_NODES": "2"}
        words = [program, into / "digest", str(STEPS), "0"]
        subprocess.run(words, env=variables, check=True, capture_output=True, timeout=60)
    return digests(into / "digest")


def options(cluster: Cluster) -> list[object]:
    levels = ["--levels", "memory,disk,partner", "--every", 20, "--dead-timeout", "4s"]
    return ["--hosts", cluster.hosts(HOSTS), "--start", "each", *levels]


@pytest.mark.parametrize("how", ["none", "power off", "agent", "rank", "cable"])
def test_a_launcher_that_lets_nobody_in(cluster: Cluster, how: str) -> None:
    """Nothing happens, a machine loses current, an agent, a rank, or the cable is pulled."""
    if shutil.which("nft") is None:
        skip("machines", "no nft")
    program, output = walk(cluster), cluster.dir / "digest"
    machines = cluster.machines
    machines.close_room()
    store = cluster.dir / "store"
    store.mkdir()
    doctor = ["doctor", "--store", store, "--hosts", cluster.hosts(HOSTS), "--within", "20s"]
    said = cluster.tell(0, *doctor)
    assert said.count("warn  way here") == 1 and "over the connection that starts it" in said, said
    run = cluster.start(*options(cluster), "--", program, output, STEPS, 20000)
    said = cluster.wait_for(run, " stable on partner")
    # Each machine has connections with the room at its own ssh server, and no others.
    for name in ("n1", "n2"):
        found = machines.run(name, "ss", "-Htn", "state", "established", "dst", "10.86.0.1")
        assert found and all(line.split()[2].endswith(":22") for line in found.splitlines()), found
    {
        "none": lambda: None,
        "power off": lambda: machines.power_off("n2"),
        "agent": lambda: machines.run("n2", "pkill", "-KILL", "-f", " agent "),
        "rank": lambda: machines.run("n2", "pkill", "-KILL", "-x", "walk"),
        "cable": lambda: machines.cut("n2"),
    }[how]()
    report, text = cluster.end(run)
    text = said + text
    assert text.count("spoken to over the connection by which this was started") >= 2, text
    (cluster.dir / "reference").mkdir()
    assert digests(output) == undisturbed(program, cluster.dir / "reference"), text
    kinds = [failure["kind"] for failure in report["failures"]]
    expected = {"none": [], "agent": [], "rank": ["rank"]}.get(how, ["node"])
    assert kinds == expected, text
    assert report["restarts"] == len(expected), text
    assert ("agent of node 1 started anew" in text) == (how == "agent"), text
    if how in ("power off", "cable"):
        assert "rebuilt from partner" in text, text
        machines.heal("n2")
    wait_until_nothing_runs(cluster, ["n1", "n3"])
