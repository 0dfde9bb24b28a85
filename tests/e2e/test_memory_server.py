"""A memory server as a process of its own, used and killed. No time is asserted: whatever hangs
ends at the bound of a command, which fails the test."""

import json
import os
import random
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import BOUND_S, OUTLIVE, until
from test_json import documented, fields

MIB = 1 << 20
TRANSPORTS = ["tcp", "shared"]


class Servers:
    """Servers and clients of a test; what is left of them when it ends is killed."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.processes: list[subprocess.Popen] = []
        self.run("memory", "key", "job.key")

    def run(self, *words: str, given: bytes = b"") -> subprocess.CompletedProcess:
        """A command to its end."""
        return subprocess.run(
            [OUTLIVE, *words],
            cwd=self.place,
            env=self.environment(),
            input=given,
            capture_output=True,
            timeout=BOUND_S,
        )

    def environment(self) -> dict[str, str]:
        """Without a configuration of the user's."""
        home = {"HOME": str(self.place), "XDG_CONFIG_HOME": str(self.place / "config")}
        return {**os.environ, **home}

    def start(self, *words: str) -> subprocess.Popen:
        """A command that is left to itself."""
        process = subprocess.Popen(
            [OUTLIVE, *words],
            cwd=self.place,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    def server(self, *words: str) -> tuple[subprocess.Popen, str]:
        """A server, and where it is."""
        words = words or ("--memory", "32MiB", "--job", "job=job.key")
        process = self.start("memory-server", "--json", *words)
        text = b""
        while not text.endswith(b"\n}\n"):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            text += line
        return process, json.loads(text)["address"]

    def expose(self, *files: str) -> tuple[subprocess.Popen, str]:
        """A process that servers may pull from."""
        process = self.start("memory", "expose", *self.who(), *files)
        return process, process.stdout.readline().decode().strip()

    def who(self, job: str = "job", key: str = "job.key") -> list[str]:
        """Words that say for which job."""
        return ["--job", job, "--key", key]

    def end(self) -> None:
        """Kills what is left."""
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """See `Servers`."""
    all_of_them = Servers(tmp_path)
    yield all_of_them
    all_of_them.end()


def well(done: subprocess.CompletedProcess) -> bytes:
    """What a command that went well has said."""
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def ill(done: subprocess.CompletedProcess, code: int) -> str:
    """What a command with this error has said."""
    said = done.stderr.decode()
    assert done.returncode != 0
    assert f"OL-{code} " in said, said
    assert "remedy: " in said
    return said


def randomly(random_: random.Random, length: int) -> bytes:
    """Bytes that are not alike."""
    return random_.randbytes(length)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_is_put_is_got_in_whole_and_in_part(
    servers: Servers, seed: int, transport: str
) -> None:
    """And a ring gives its messages in their order."""
    dice = random.Random(seed)
    _, address = servers.server()
    at = ["--server", address, *servers.who(), "--transport", transport]
    data = randomly(dice, 3 * MIB + 7)
    (servers.place / "data").write_bytes(data)
    well(servers.run("memory", "put", *at, "--allocate", "r", "data"))
    assert well(servers.run("memory", "get", *at, "r")) == data
    offset, length = dice.randrange(MIB), dice.randrange(MIB)
    part = ["--offset", str(offset), "--length", str(length)]
    assert well(servers.run("memory", "get", *at, "r", *part)) == data[offset : offset + length]
    well(servers.run("memory", "put", *at, "r", "--offset", str(offset), given=b"other"))
    data = data[:offset] + b"other" + data[offset + 5 :]
    well(servers.run("memory", "get", *at, "r", "out"))
    assert (servers.place / "out").read_bytes() == data
    well(servers.run("memory", "allocate", *at, "--ring", "queue", "1MiB"))
    messages = [randomly(dice, dice.choice([0, 1, 100_000])) for _ in range(4)]
    for message in messages:
        well(servers.run("memory", "push", *at, "queue", given=message))
    for message in messages:
        assert well(servers.run("memory", "pop", *at, "queue")) == message
    ill(servers.run("memory", "pop", *at, "queue", "--timeout", "10ms"), 106)
    assert well(servers.run("memory", "wait", *at, "r", "--after", "1")) == b"2\n"
    ill(servers.run("memory", "wait", *at, "r", "--timeout", "10ms"), 106)
    ill(servers.run("memory", "get", *at, "r", "--offset", "1GiB", "--length", "1"), 100)
    well(servers.run("memory", "delete", *at, "r"))
    ill(servers.run("memory", "get", *at, "r"), 404)


def test_jobs_are_kept_apart_and_within_their_quotas(servers: Servers) -> None:
    """A key is needed, and gives one's own job alone."""
    well(servers.run("memory", "key", "other.key"))
    assert stat.S_IMODE((servers.place / "other.key").stat().st_mode) == 0o600
    jobs = ["--job", "job=job.key", "--job", "other=other.key", "--quota", "other=1MiB"]
    server, address = servers.server("--memory", "8MiB", *jobs)
    job = ["--server", address, *servers.who()]
    other = ["--server", address, *servers.who("other", "other.key")]
    well(servers.run("memory", "put", *job, "--allocate", "r", given=b"mine"))
    ill(servers.run("memory", "get", *other, "r"), 404)
    ill(servers.run("memory", "allocate", *other, "r", "2MiB"), 401)
    ill(servers.run("memory", "allocate", *job, "big", "9MiB"), 401)
    well(servers.run("memory", "allocate", *other, "r", "1MiB"))
    assert well(servers.run("memory", "get", *job, "r")) == b"mine"
    for job_, key in [("job", "other.key"), ("other", "job.key"), ("none", "job.key")]:
        wrong = ["--server", address, *servers.who(job_, key)]
        ill(servers.run("memory", "list", *wrong), 306)
    # Nobody who looks at processes or logs sees a key.
    key = (servers.place / "job.key").read_bytes()
    seen = Path(f"/proc/{server.pid}/cmdline").read_bytes()
    seen += Path(f"/proc/{server.pid}/environ").read_bytes()
    assert key not in seen and key.hex().encode() not in seen


def test_a_store_has_its_jobs_keys(servers: Servers) -> None:
    """A job under `outlive run` has a key; it needs no other."""
    store = servers.place / "store"
    (store / "heat").mkdir(parents=True)
    (servers.place / "job.key").rename(store / "heat" / "key")
    _, address = servers.server("--memory", "1MiB", "--job", "heat", "--store", "store")
    at = ["--server", address, "--job", "heat", "--store", "store"]
    well(servers.run("memory", "put", *at, "--allocate", "r", given=b"x"))
    (store / "heat" / "key").chmod(0o644)
    ill(servers.run("memory", "list", *at), 402)


def test_json_is_as_documented(servers: Servers) -> None:
    """Field by field."""
    process, address = servers.server("--memory", "1MiB", "--job", "job=job.key")
    at = ["--server", address, *servers.who()]
    well(servers.run("memory", "put", *at, "--allocate", "r", given=b"x"))
    shown = json.loads(well(servers.run("memory", "list", *at, "--json")))
    assert fields(shown) == documented()["outlive.memory/1"]
    assert shown["direct"] and shown["regions"][0]["puts"] == 1
    assert (shown["used_bytes"], shown["free_bytes"]) == (4096, MIB - 4096)
    one = json.loads(well(servers.run("memory", "stat", *at, "r", "--json")))
    assert one["regions"] == shown["regions"]
    assert "1.0 MiB" in well(servers.run("memory", "list", *at)).decode()
    process.terminate()
    process.wait(timeout=BOUND_S)
    words = ("--memory", "1MiB", "--job", "job=job.key", "--quota", "job=4K")
    started = servers.start("memory-server", "--json", *words)
    text = b"".join(iter(lambda: started.stdout.readline(), b"}\n")) + b"}"
    assert fields(json.loads(text)) == documented()["outlive.memory-server/1"]


def test_what_cannot_be_is_refused(servers: Servers) -> None:
    """Before anything is served."""
    start = ["memory-server", "--job", "job=job.key"]
    said = ill(servers.run(*start, "--memory", "1000TiB"), 100)
    assert "free on this machine" in said
    ill(servers.run(*start, "--memory", "1MiB", "--quota", "none=1K"), 100)
    ill(servers.run(*start, "--memory", "1MiB", "--silence", "0"), 100)
    ill(servers.run("memory-server", "--memory", "1MiB", "--job", "job=none"), 404)
    ill(servers.run("memory-server", "--memory", "1MiB"), 100)
    _, address = servers.server()
    ill(servers.run(*start, "--memory", "1MiB", "--listen", address), 307)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_parity_of_what_the_server_pulls_gives_back_a_lost_source(
    servers: Servers, seed: int, transport: str
) -> None:
    """Three processes expose files; one of them is killed, and its file comes from the parity."""
    dice = random.Random(seed)
    _, address = servers.server()
    at = ["--server", address, *servers.who(), "--transport", transport]
    files = {f"node-{nth}": randomly(dice, MIB + dice.randrange(MIB)) for nth in range(3)}
    exposed = {}
    for name, data in files.items():
        (servers.place / name).write_bytes(data)
        exposed[name] = servers.expose(name)
    longest = max(map(len, files.values()))
    well(servers.run("memory", "allocate", *at, "parity", str(longest)))
    sources = {name: f"{exposed[name][1]}/{name}@0+{len(data)}" for name, data in files.items()}
    words = [word for source in sources.values() for word in ("--from", source)]
    well(servers.run("memory", "sum", *at, "parity", *words))
    total = 0
    for data in files.values():
        total ^= int.from_bytes(data, "little")
    assert well(servers.run("memory", "get", *at, "parity")) == total.to_bytes(longest, "little")
    lost = dice.choice(list(files))
    exposed[lost][0].kill()
    exposed[lost][0].wait()
    # With the lost one it fails, and says which it was; what was there is not touched.
    said = ill(servers.run("memory", "sum", *at, "parity", *words), 308)
    assert exposed[lost][1] in said
    sources[lost] = "parity"
    words = [word for source in sources.values() for word in ("--from", source)]
    well(servers.run("memory", "allocate", *at, "back", str(longest)))
    well(servers.run("memory", "sum", *at, "back", *words))
    back = well(servers.run("memory", "get", *at, "back", "--length", str(len(files[lost]))))
    assert back == files[lost]


def puts_of(servers: Servers, at: list[str], name: str) -> int:
    """How often a region was put."""
    shown = json.loads(well(servers.run("memory", "stat", *at, name, "--json")))
    return shown["regions"][0]["puts"]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_every_client_of_a_server_that_ends_is_told(servers: Servers, end: signal.Signals) -> None:
    """Those that wait, write, take and pull, over both ways; and those that come later."""
    server, address = servers.server()
    at = ["--server", address, *servers.who()]
    well(servers.run("memory", "allocate", *at, "r", "8MiB"))
    well(servers.run("memory", "allocate", *at, "never-put", "1"))
    well(servers.run("memory", "allocate", *at, "queue", "1MiB", "--ring"))
    waiting = []
    for transport in TRANSPORTS:
        to = [*at, "--transport", transport, "--timeout", "1h"]
        waiting.append(servers.start("memory", "wait", *to, "never-put"))
        waiting.append(servers.start("memory", "pop", *to, "queue"))
    # Clients that never stop putting and getting, until they fail.
    big = servers.place / "big"
    big.write_bytes(bytes(8 * MIB))
    _, source = servers.expose("big")
    well(servers.run("memory", "allocate", *at, "parity", "8MiB"))
    loop = 'while "$0" "$@"; do :; done'
    for transport in TRANSPORTS:
        to = [*at, "--transport", transport]
        for words in (
            ["put", *to, "r", "big"],
            ["get", *to, "r", "/dev/null"],
            ["sum", *to, "parity", "--from", f"{source}/big", "--from", "r"],
        ):
            command = ["sh", "-c", f"{loop}; exit 1", str(OUTLIVE), "memory", *words]
            process = subprocess.Popen(
                command,
                cwd=servers.place,
                env=servers.environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            servers.processes.append(process)
            waiting.append(process)
    until(
        "some puts and sums went well",
        lambda: all(puts_of(servers, at, name) > 2 for name in ("r", "parity")),
    )
    server.send_signal(end)
    for process in waiting:
        _, said = process.communicate(timeout=BOUND_S)
        assert process.returncode != 0
        assert b"OL-310 memory server lost" in said, (process.args, said)
    assert server.wait(timeout=BOUND_S) == (0 if end == signal.SIGTERM else -end)
    ill(servers.run("memory", "list", *at), 310)


def test_a_server_that_is_stopped_is_lost_within_the_bound(servers: Servers) -> None:
    """It neither answers nor closes: silence is judged."""
    server, address = servers.server()
    at = ["--server", address, *servers.who(), "--silence", "300ms"]
    well(servers.run("memory", "allocate", *at, "r", "1MiB"))
    waits = servers.start("memory", "wait", *at, "r", "--timeout", "1h", "--after", "0")
    until("it waits", lambda: waiting_clients(server.pid) == 1)
    server.send_signal(signal.SIGSTOP)
    _, said = waits.communicate(timeout=BOUND_S)
    assert b"OL-310 memory server lost" in said
    ill(servers.run("memory", "list", *at), 310)
    server.send_signal(signal.SIGCONT)
    well(servers.run("memory", "put", *at, "r", given=b"x"))


def waiting_clients(pid: int) -> int:
    """Threads of a server that serve somebody."""
    names = (name.read_text().strip() for name in Path(f"/proc/{pid}/task").glob("*/comm"))
    return sum(name == "memory-client" for name in names)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_client_that_is_killed_in_the_middle_leaves_no_half(
    servers: Servers, seed: int, transport: str
) -> None:
    """What it wrote is either whole, or said to be incomplete, or not there; others go on."""
    dice = random.Random(seed)
    _, address = servers.server()
    at = ["--server", address, *servers.who(), "--transport", transport]
    size = 16 * MIB
    well(servers.run("memory", "allocate", *at, "r", str(size)))
    for value in range(1, 7):
        (servers.place / "file").write_bytes(bytes([value]) * size)
        process = servers.start("memory", "put", *at, "r", "file")
        # At any point of its life.
        for _ in range(dice.randrange(12)):
            os.sched_yield()
            Path(f"/proc/{process.pid}/stat").read_text()
        process.kill()
        process.communicate()
        got = servers.run("memory", "get", *at, "r")
        if got.returncode == 0:
            assert got.stdout == got.stdout[:1] * size
        else:
            ill(got, 409)
            shown = json.loads(well(servers.run("memory", "stat", *at, "r", "--json")))
            assert shown["regions"][0]["incomplete"] == [[0, size]]
    well(servers.run("memory", "put", *at, "r", "file"))
    assert well(servers.run("memory", "get", *at, "r")) == bytes([6]) * size
