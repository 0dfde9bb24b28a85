"""Programs of four processes whose connections break in every way: the same results."""

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from ranks import BOUND_S, Job, Proxy, free_ports, value

RING = ["40", "60000"]
FAST: dict[str, Any] = {"HEARTBEAT_MS": 100, "SILENCE_MS": 800}


def calm(built: Path, directory: Path, name: str, *arguments: str) -> str:
    return value(Job(directory / "calm", [str(built / name), *arguments]).finish()[0])


@pytest.mark.parametrize("kernel", ["cg", "ep", "is", "lu"])
def test_kernels_give_the_same_value_with_broken_links(
    built: Path, tmp_path: Path, kernel: str, seed: int
) -> None:
    program = f"{kernel}-ranks"
    expected = calm(built, tmp_path, program, "S")
    bare = Job(tmp_path / "bare", [str(built / program), "S"], SESSIONS=0)
    assert value(bare.finish()[0]) == expected
    # EP has two calls of the library in all; the others thousands or hundreds.
    often = {"ep": 1, "is": 20}.get(kernel, 300)
    job = Job(tmp_path / "chaos", [str(built / program), "S"], CHAOS=f"{seed}:{often}")
    stdout, counts = job.finish()
    assert value(stdout) == expected
    assert sum(c["links"] for c in counts) > 12, "nothing broke"


def test_lost_descriptors_and_broken_links(built: Path, tmp_path: Path, seed: int) -> None:
    expected = calm(built, tmp_path, "ring", *RING)
    job = Job(tmp_path / "job", [str(built / "ring"), *RING], CHAOS=f"{seed}:8")
    stdout, counts = job.finish()
    assert value(stdout) == expected
    assert sum(c["rebirths"] for c in counts) > 0
    assert sum(c["links"] for c in counts) > 12


def test_a_network_that_cuts_anywhere(built: Path, tmp_path: Path, seed: int) -> None:
    expected = calm(built, tmp_path, "ring", *RING)
    ports = free_ports(4)
    proxies = [Proxy(port, seed + rank, 500_000, 6) for rank, port in enumerate(ports)]
    seen = [[p if r == s else proxies[s].port for s, p in enumerate(ports)] for r in range(4)]
    job = Job(tmp_path / "job", [str(built / "ring"), *RING], seen=seen, ports=ports, **FAST)
    stdout, counts = job.finish()
    assert value(stdout) == expected
    assert sum(proxy.cuts for proxy in proxies) > 5
    assert sum(c["links"] for c in counts) > 12


def abandoned(port: int) -> bool:
    """True if a peer has closed a connection that was made to `port`."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].split(":")[1], 16) == port and fields[3] == "08":
            return True
    return False


def test_a_process_that_is_stopped_until_its_peers_hang_up(built: Path, tmp_path: Path) -> None:
    expected = calm(built, tmp_path, "ring", *RING)
    job = Job(tmp_path / "job", [str(built / "ring"), *RING, "5"], **FAST)
    stdout = job.ranks[0].stdout
    assert stdout is not None
    first = stdout.readline()
    assert first.startswith("round 0")
    job.ranks[1].send_signal(signal.SIGSTOP)
    bound = time.monotonic() + BOUND_S
    while not abandoned(job.ports[1]):
        assert time.monotonic() < bound, "the peers never hung up"
    job.ranks[1].send_signal(signal.SIGCONT)
    rest, counts = job.finish()
    assert value(rest) == expected
    assert sum(c["silences"] for c in counts) > 0
    assert counts[1]["absences"] > 0


def test_a_peer_that_dies_is_told_with_its_code(built: Path, tmp_path: Path) -> None:
    job = Job(tmp_path, [str(built / "ring"), "1000000", "1000"], GIVE_UP_S=3)
    stdout = job.ranks[0].stdout
    assert stdout is not None
    assert stdout.readline().startswith("round 0")
    job.ranks[2].kill()
    _, err = job.ranks[3].communicate(timeout=BOUND_S)
    assert job.ranks[3].returncode == 69
    assert "OL-303 node lost: rank 2: no connection for" in err
    assert "give_up" in err
    for rank in job.ranks:
        rank.kill()
        rank.communicate()


def test_what_is_missing_is_named(built: Path) -> None:
    run = subprocess.run([built / "ring", "1", "1"], env={}, capture_output=True, text=True)
    assert run.returncode == 69
    assert "OL-200 rank unknown: option OUTLIVE_COMM_RANK: is not set" in run.stderr
