"""A job of four processes on several machines, joined by a network, goes on when the
kernels of its machines die: with the result of an undisturbed run.
"""

import secrets
import socket
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import LONG, ROOT, SOAK
from machine import WORK, Machine, network_modules, with_libraries

Make = Callable[..., Machine]
RANKS = 4
ROUNDS, BYTES, PAUSE_MS = 70, 20000, 100

# The words of a death are typed on the console.
SCENARIO = """
for module in /modules/net/*.ko; do insmod $module; done
ifconfig lo 127.0.0.1 up
ifconfig eth0 10.17.0.{node} netmask 255.255.255.0 up || echo BAD network
mkdir -p /dax/memory
cp /key /tmp/key && chmod 600 /tmp/key
export OUTLIVE_COMM_HOSTS=/hosts OUTLIVE_COMM_KEY=/tmp/key
NEXT="--kernel /dax/boot/vmlinuz --initrd /dax/boot/initrd --line-from /next-line"
NEXT="--memory /dax/memory $NEXT"
if [ $BOOT = 1 ]; then
    outlive minickpt run $NEXT -- /bin/ranks {first} {count} /bin/ring {words} & P=$!
else
    outlive minickpt restore $NEXT & P=$!
fi
until omkctl query | grep -qE "state (empty|acked).* registered [1-9]"; do
    usleep 200000
    kill -0 $P 2>/dev/null || break
done
[ $BOOT = 1 ] || omkctl times
echo; echo "NODE READY $BOOT"
# Without a time limit: one that is over between two letters leaves half a word.
(while read -r kind; do outlive-inject $kind; done) </dev/console & R=$!
wait $P; status=$?; kill $R; echo; echo "EXIT $status"
"""


@pytest.fixture(scope="session")
def ring(prepared: None) -> Path:
    """The program of the tests of sessions, and its digest without any death."""
    library = ROOT / "target/release/liboutlive_sessions.a"
    assert library.exists(), "run make build first"
    built = WORK / "dynamic/ring"
    command = ["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]
    command += ["-I", str(ROOT / "crates/sessions/include"), str(ROOT / "tests/sessions/ring.c")]
    command += [str(library), "-o", str(built), "-lpthread", "-ldl", "-lm"]
    subprocess.run(command, check=True)
    return built


def undisturbed(ring: Path, directory: Path) -> str:
    """The digest that four processes on this machine print."""
    sys.path.insert(0, str(ROOT / "tests/sessions"))
    # pylint: disable-next=import-outside-toplevel
    from ranks import Job, value

    return value(Job(directory, [str(ring), str(ROUNDS), str(BYTES)], RANKS).finish()[0])


class Hub:
    """The wire between machines, on loopback: a datagram is a frame, which goes to all
    others.
    """

    def __init__(self, nodes: int) -> None:
        held = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(nodes)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        self.nodes = [one.getsockname() for one in held]
        for one in held:
            one.close()
        self.wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.wire.bind(("127.0.0.1", 0))
        self.wire.settimeout(1.0)
        self.thread = threading.Thread(target=self._carry, daemon=True)
        self.open = True

    def __enter__(self) -> "Hub":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.open = False
        self.thread.join()
        self.wire.close()

    def _carry(self) -> None:
        while self.open:
            # A machine that is not there yet, or nothing to carry.
            with suppress(OSError):
                frame, source = self.wire.recvfrom(65536)
                for node in self.nodes:
                    if node != source:
                        self.wire.sendto(frame, node)

    def options(self, node: int) -> tuple[str, ...]:
        """The network card of a machine."""
        port, mine = self.wire.getsockname()[1], self.nodes[node][1]
        return (
            *("-netdev", f"socket,id=n,udp=127.0.0.1:{port},localaddr=127.0.0.1:{mine}"),
            *("-device", f"virtio-net-pci,netdev=n,romfile=,mac=52:54:00:17:00:{node + 1:02x}"),
        )


@dataclass
class Clock:
    """When rank 0 ended its rounds, by the clock of this machine."""

    at: dict[int, float]

    def added(self, deaths: list[int]) -> list[float]:
        """Seconds that each death added: the time of its round and the next ones until
        the pace is usual again, less the usual.
        """
        rounds = sorted(self.at)
        gaps = {b: self.at[b] - self.at[a] for a, b in pairwise(rounds)}
        usual = statistics.median(gaps.values())
        spans = zip(deaths, [*deaths[1:], ROUNDS], strict=True)
        return [
            sum(gap - usual for r, gap in gaps.items() if start < r <= end) for start, end in spans
        ]


def shared_out(nodes: int) -> list[range]:
    """The ranks of each machine: neighbours together, the first machines one more."""
    ends = [-(-RANKS * n // nodes) for n in range(nodes + 1)]
    return [range(start, end) for start, end in pairwise(ends)]


def run(make: Make, tmp_path: Path, files: dict[str, Path], victims: list[int], nodes: int) -> str:
    """The job on `nodes` machines; machine v dies at rounds 10, 20, ... for v in victims.
    Prints the times, gives the digest.
    """
    deaths = [10 + 12 * n for n in range(len(victims))]
    with Hub(nodes) as hub, ExitStack() as stack:
        machines = []
        for node, ranks in enumerate(shared_out(nodes)):
            words = f"{ROUNDS} {BYTES} {PAUSE_MS}"
            text = SCENARIO.format(node=node + 1, first=ranks.start, count=len(ranks), words=words)
            directory = tmp_path / f"node{node}"
            options = hub.options(node)
            machine = make(text, directory=directory, cpus=1, extra=files, options=options)
            machines.append(stack.enter_context(machine))
        first = machines[0]
        for machine in machines:
            machine.expect("NODE READY 1", 240)
        clock = Clock({})
        boots = [1] * nodes
        waits = list(zip(deaths, victims, strict=True))
        while ROUNDS - 1 not in clock.at:
            number = int(first.expect(r"round (\d+)\s*$", 240, never="BAD|EXIT|OL-")[1])
            clock.at[number] = first.lines[first.read_to - 1][0]
            if waits and number >= waits[0][0]:
                _, victim = waits.pop(0)
                boots[victim] += 1
                machines[victim].send("panic\n")
        digest = first.expect(r"digest [0-9a-f]{16}", 120)[0]
        for machine, boot in zip(machines, boots, strict=True):
            machine.expect("EXIT 0", 120, never="BAD|EXIT [1-9]|OL-")
            machine.expect_past(f"NODE READY {boot}")
    added = ", ".join(f"{seconds:.2f}" for seconds in clock.added(deaths)) if deaths else "nothing"
    print(
        f"{nodes} machines, deaths of {victims}: {clock.at[ROUNDS - 1] - clock.at[0]:.2f} s from "
        f"the first round to the last; the deaths added, in s: {added}"
    )
    return digest


@pytest.mark.skipif(not LONG, reason="in make test-minickpt")
@pytest.mark.parametrize(
    ("victims", "nodes"),
    # None; one to four on the same machine, two to four in turn; three and four machines.
    [
        ([], 2),
        *(([1] * n, 2) for n in (1, 2, 3, 4)),
        *(([0, 1, 0, 1][:n], 2) for n in (2, 3, 4)),
        ([0, 1, 2, 0], 3),
        ([0, 1, 2, 3], 4),
        *([([1, 1, 1, 1], 4)] if SOAK else []),
    ],
    ids=lambda value: "".join(map(str, value)) or "none" if isinstance(value, list) else None,
)
def test_a_job_goes_on_when_its_machines_die(
    machine: Make,
    outlive: dict[str, Path],
    ring: Path,
    tmp_path: Path,
    victims: list[int],
    nodes: int,
) -> None:
    """Rings, reductions and exchanges over reliable sessions, whose machines die."""
    key, hosts = tmp_path / "key", tmp_path / "hosts"
    key.write_bytes(secrets.token_bytes(32))
    places = [(node, rank) for node, ranks in enumerate(shared_out(nodes)) for rank in ranks]
    lines = [f"10.17.0.{node + 1}:{7000 + rank}\n" for node, rank in places]
    hosts.write_text("".join(lines), encoding="ascii")
    files = {**outlive, **network_modules(), **with_libraries(ring), "key": key, "hosts": hosts}
    assert run(machine, tmp_path, files, victims, nodes) == undisturbed(ring, tmp_path / "calm")
