"""Three coordinators on three machines: one is cut off, one is lost with its machine, and what then
is alone gives no turns.

The jobs run in the room, on storage that they and the machines see. Their results are compared bit
for bit with a calm run.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import BOUND_S, OUTLIVE, ROOT, Cluster
from skip import skip

RING = ROOT / "tests" / "e2e" / "programs" / "ring.c"
# Ranks, steps and cells: what its result follows from.
SIZES = ["2", "120", "50000"]


class Coordinators:
    """Members 1 to 3 on machines n1 to n3."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.store = cluster.dir / "store"
        self.store.mkdir()
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        for member in (1, 2, 3):
            self.start(member)
            self.until(
                f"member {member} begins", lambda m=member: f"member {m} of 3" in self.said(m)
            )

    def machine(self, member: int) -> str:
        return f"n{member}"

    def log(self, member: int) -> Path:
        return self.cluster.dir / f"member-{member}.err"

    def said(self, member: int) -> str:
        return self.log(member).read_text()

    def start(self, member: int) -> None:
        """The first of those that nobody is: all before it run."""
        machines, name = self.cluster.machines, self.machine(member)
        words = [OUTLIVE, "coordinator", "--store", self.store, "--members", "3"]
        words += ["--bind", machines.address(name)]
        with self.log(member).open("ab") as log:
            self.running[member] = subprocess.Popen(machines.words(name, *words), stderr=log)

    def state(self) -> dict:
        """What the one that serves knows."""
        path = self.store / ".coordinator" / "state.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def given(self) -> int:
        return self.state().get("turns", {}).get("accepted", 0)

    def serves(self, member: int) -> bool:
        """Whether it says so."""
        text = self.said(member)
        return text.rfind("coordinating ") > text.rfind("coordinates no more")

    def leader(self, but: int = 0) -> int:
        """The member that serves, if it is not that one."""
        member = self.state().get("member", 0)
        return member if member in self.running and member != but and self.serves(member) else 0

    def until(self, what: str, true: Callable[[], object]) -> object:
        end = time.monotonic() + BOUND_S
        while not (found := true()):
            texts = {path.name: path.read_text() for path in self.cluster.dir.glob("*.err")}
            assert time.monotonic() < end, f"never: {what}: {self.state()} {texts}"
            time.sleep(0.05)
        return found

    def turns_go_on(self, who: str) -> None:
        """Of both jobs together."""
        before = self.given()
        self.until(f"turns of {who}", lambda: self.given() >= before + 4)


@pytest.fixture
def coordinators(cluster: Cluster) -> Iterator[Coordinators]:
    if shutil.which("nft") is None:
        skip("machines", "no nft")
    found = Coordinators(cluster)
    yield found
    for process in found.running.values():
        process.kill()
        process.wait(10)


def program(cluster: Cluster, result: str, *options: object) -> list[str]:
    """The test program with the library that lies beside the command."""
    built = cluster.dir / "ring"
    if not built.exists():
        library = OUTLIVE.parent / "liboutlive.so"
        if not library.exists():
            skip("liboutlive", "the library is not built; make build")
        for name in ("liboutlive.so", "liboutlive.so.0"):
            (cluster.dir / name).symlink_to(library)
        words = ["cc", "-std=gnu11", "-O1", "-pthread", RING, "-o", built, "-L", cluster.dir]
        words += ["-I", ROOT / "crates" / "client" / "include", "-loutlive"]
        words += [f"-Wl,-rpath,{cluster.dir}"]
        subprocess.run(words, check=True, timeout=60)
    return [str(word) for word in (built, cluster.dir / result, *SIZES, *options)]


def start(cluster: Cluster, job: str) -> subprocess.Popen[bytes]:
    """A job of the store in the room, which learns when to save, and does so often, until it is
    enough."""
    options = ["--job", job, "--store", cluster.dir / "store", "--emulate-nodes", "1"]
    options += ["--levels", "memory,shared", "--redo-max", "2s"]
    options += ["--report", cluster.dir / f"{job}.json", "-v"]
    until = ["--sleep-us", 4000, "--until", cluster.dir / "enough"]
    words = [OUTLIVE, "run", *options, "--", *program(cluster, f"{job}.result", *until)]
    with (cluster.dir / f"{job}.err").open("wb") as said:
        return subprocess.Popen(
            cluster.machines.words("room", *words),
            cwd=cluster.dir,
            env=os.environ | {"HOME": "/root"},
            stdout=said,
            stderr=said,
        )


def kept(cluster: Cluster, job: str) -> int:
    """Versions of a job in shared storage, as far as its report says."""
    path = cluster.dir / "store" / job / "report.json"
    report = json.loads(path.read_text()) if path.exists() else {}
    return report.get("checkpoints", {}).get("stable", {}).get("shared", 0)


def test_three_machines_coordinate_though_one_is_cut_off_and_one_is_lost(
    cluster: Cluster, coordinators: Coordinators
) -> None:
    machines = cluster.machines
    runs = {job: start(cluster, job) for job in ("a", "b")}
    both = lambda: {job["name"] for job in coordinators.state().get("jobs", [])} == {"a", "b"}  # noqa: E731
    coordinators.until("both jobs are known", both)
    coordinators.turns_go_on("both")
    # Nothing of the one that serves passes any more, to the jobs neither. It lives: no turns of it.
    first = coordinators.leader()
    assert first
    since = coordinators.given()
    machines.cut(coordinators.machine(first))
    second = coordinators.until("another serves", lambda: coordinators.leader(but=first))
    coordinators.until("who is cut off stops", lambda: not coordinators.serves(first))
    assert coordinators.given() >= since, "what was known is known"
    coordinators.until("both jobs have found it", both)
    coordinators.turns_go_on("the two that are left")
    # It comes back, follows, and is needed: the machine of the one that serves is lost.
    machines.heal(coordinators.machine(first))
    follows = f"member {first} of 3: member {second} coordinates"
    coordinators.until("it follows", lambda: follows in coordinators.said(first))
    since = coordinators.given()
    machines.power_off(coordinators.machine(second))
    coordinators.running.pop(second).wait(10)
    third = coordinators.until("a third time", lambda: coordinators.leader(but=second))
    assert coordinators.given() >= since
    coordinators.until("both jobs have found it", both)
    coordinators.turns_go_on("those two")
    # One alone gives no turn, and the jobs go by their own plans to their ends.
    (other,) = set(coordinators.running) - {third}
    machines.end(coordinators.machine(other))
    coordinators.running.pop(other).wait(10)
    coordinators.until("it stops", lambda: not coordinators.serves(third))
    last, numbers = coordinators.given(), {job: kept(cluster, job) for job in runs}
    for job in runs:
        alone = f"{job} goes on alone"
        coordinators.until(alone, lambda job=job: kept(cluster, job) >= numbers[job] + 2)
    assert coordinators.given() == last
    calm = program(cluster, "calm")
    subprocess.run(calm, check=True, capture_output=True, timeout=60)
    (cluster.dir / "enough").touch()
    for job, run in runs.items():
        assert run.wait(BOUND_S) == 0, (cluster.dir / f"{job}.err").read_text()
        result = (cluster.dir / f"{job}.result").read_bytes()
        assert result == (cluster.dir / "calm").read_bytes()
        assert json.loads((cluster.dir / f"{job}.json").read_text())["restarts"] == 0
