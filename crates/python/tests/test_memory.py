"""The client of a memory server, against a server that runs."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import outlive
import outlive.memory
import pytest
from conftest import BOUND_S, binary
from outlive.memory import Source, connect


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path, subprocess.Popen]]:
    """Where it is, its job's key, and its process."""
    key = tmp_path / "key"
    subprocess.run([binary(), "memory", "key", key], check=True, timeout=BOUND_S)
    words = ["memory-server", "--memory", "8MiB", "--job", f"job={key}"]
    process = subprocess.Popen([binary(), *words], stdout=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().split()[2].rstrip(":")
        yield address, key, process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("transport", ["tcp", "shared", "auto"])
def test_put_get_wait_and_rings(server, transport: str) -> None:
    """All calls, over each way."""
    address, key, _ = server
    data = bytes(range(256)) * 400
    with connect(address, "job", key, transport=transport) as memory:
        assert memory.direct == (transport != "tcp")
        assert memory.allocate("r", len(data))
        assert not memory.allocate("r", len(data))
        memory.put("r", bytearray(data))
        assert memory.get("r") == data
        memory.put("r", memoryview(b"abcd")[::2].tobytes(), 10)
        assert memory.get("r", 9, 4) == data[9:10] + b"ac" + data[12:13]
        assert memory.wait("r", 1) == 2
        with pytest.raises(outlive.Error) as late:
            memory.wait("r", 2, timeout=0.01)
        assert late.value.code == 106
        memory.allocate("ring", 1 << 20, ring=True)
        memory.push("ring", data)
        assert memory.pop("ring") == data
        memory.allocate("sum", len(data))
        memory.sum("sum", [Source("r", len(data)), Source("r", len(data))], len(data))
        assert memory.get("sum") == bytes(len(data))
        assert [one.name for one in memory.regions()] == ["r", "ring", "sum"]
        region = memory.stat("r")
        assert (region.kind, region.bytes, region.incomplete) == ("plain", len(data), [])
        about = memory.about()
        assert (about.memory, about.free) == (8 << 20, (8 << 20) - about.used)
        memory.delete("r")
        with pytest.raises(outlive.Error) as gone:
            memory.get("r")
        assert gone.value.code == 404
    with pytest.raises(outlive.Error) as closed:
        memory.about()
    assert closed.value.code == 101


def test_a_lost_server_is_an_error(server) -> None:
    """Also for the next calls, and for who connects."""
    address, key, process = server
    memory = connect(address, "job", key)
    memory.allocate("r", 10)
    process.kill()
    process.wait()
    for _ in range(2):
        with pytest.raises(outlive.Error) as lost:
            memory.put("r", b"x")
        assert lost.value.code == 310
    with pytest.raises(outlive.Error) as lost:
        connect(address, "job", key)
    assert lost.value.code == 310


def test_wrong_arguments_are_refused(server, tmp_path: Path) -> None:
    """Each with its code."""
    address, key, _ = server
    other = tmp_path / "other"
    subprocess.run([binary(), "memory", "key", other], check=True, timeout=BOUND_S)
    for job, file, transport, code in [
        ("job", other, "auto", 306),
        ("none", key, "auto", 306),
        ("job", tmp_path / "none", "auto", 404),
        ("job", key, "pigeon", 100),
    ]:
        with pytest.raises(outlive.Error) as wrong:
            connect(address, job, file, transport=transport)
        assert wrong.value.code == code
    with connect(address, "job", key) as memory, pytest.raises(outlive.Error) as beyond:
        memory.allocate("r", 9 << 20)
    assert beyond.value.code == 401
