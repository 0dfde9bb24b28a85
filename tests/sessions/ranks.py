"""A job of a few ranks on loopback, and a network between them that misbehaves."""

import json
import os
import random
import secrets
import select
import socket
import subprocess
import threading
from pathlib import Path

BOUND_S = 120
"""No job here needs longer; what hangs is ended and shown."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at, and that the kernel gives to no outgoing connection."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    held: list[socket.socket] = []
    while len(held) < count:
        try:
            port = first // 2 + secrets.randbelow(first // 2)
            held.append(socket.create_server(("127.0.0.1", port)))
        except OSError:
            continue
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


class Job:
    """`program` as `size` processes. `seen[r][s]` is the port at which rank r finds rank s."""

    def __init__(
        self,
        directory: Path,
        program: list[str],
        size: int = 4,
        seen: list[list[int]] | None = None,
        ports: list[int] | None = None,
        **variables: object,
    ) -> None:
        self.ports = ports or free_ports(size)
        directory.mkdir(parents=True, exist_ok=True)
        key = directory / "key"
        key.write_bytes(secrets.token_bytes(32))
        key.chmod(0o600)
        self.ranks: list[subprocess.Popen[str]] = []
        for rank in range(size):
            hosts = directory / f"hosts-{rank}"
            lines = seen[rank] if seen else self.ports
            hosts.write_text("".join(f"127.0.0.1:{port}\n" for port in lines))
            environment = {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "OUTLIVE_COMM_RANK": str(rank),
                "OUTLIVE_COMM_HOSTS": str(hosts),
                "OUTLIVE_COMM_KEY": str(key),
                "OUTLIVE_COMM_GIVE_UP_S": "60",
                **{f"OUTLIVE_COMM_{name}": str(value) for name, value in variables.items()},
            }
            self.ranks.append(
                subprocess.Popen(
                    program,
                    env=environment,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )

    def finish(self) -> tuple[str, list[dict[str, int]]]:
        """Standard output of rank 0 and each rank's counts; every rank must end well."""
        outputs = []
        try:
            for rank in self.ranks:
                outputs.append(rank.communicate(timeout=BOUND_S))
        finally:
            for rank in self.ranks:
                rank.kill()
        errors = [err for _, err in outputs]
        assert [rank.returncode for rank in self.ranks] == [0] * len(self.ranks), errors
        return outputs[0][0], [counts(err) for err in errors]


def counts(stderr: str) -> dict[str, int]:
    words = next(line for line in stderr.splitlines() if line.startswith("rank ")).split()[2:]
    return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)}


def value(stdout: str) -> str:
    """The digest of the ring, or a kernel's value and verdict."""
    last = stdout.splitlines()[-1]
    if last.startswith("{"):
        result = json.loads(last)
        assert result["verified"], last
        return f"{result['value']!r}"
    assert last.startswith("digest "), last
    return last


class Proxy:
    """Forwards a port to another and cuts connections after random numbers of bytes:
    at once with what is in flight, or by forwarding nothing more while both ends stay open."""

    def __init__(self, target: int, seed: int, mean_bytes: int, cuts_max: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.target = target
        self.random = random.Random(seed)
        self.mean_bytes = mean_bytes
        self.left = cuts_max
        self.cuts = 0
        self.held: list[socket.socket] = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                caller, _ = self.listener.accept()
                called = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                continue
            threading.Thread(target=self.forward, args=(caller, called), daemon=True).start()

    def forward(self, caller: socket.socket, called: socket.socket) -> None:
        budget = int(self.random.expovariate(1 / self.mean_bytes))
        silent = self.random.random() < 0.2
        try:
            while True:
                ready, _, _ = select.select([caller, called], [], [])
                for source in ready:
                    data = source.recv(65536)
                    if not data:
                        raise ConnectionResetError
                    if len(data) > budget and self.left > 0:
                        self.left -= 1
                        self.cuts += 1
                        if silent:
                            # Half of it arrives, then nothing, and nobody is told.
                            self.held += [caller, called]
                            return
                        raise ConnectionResetError
                    budget -= len(data)
                    (called if source is caller else caller).sendall(data)
        except OSError:
            caller.close()
            called.close()
