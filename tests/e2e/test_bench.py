"""`outlive bench agents`, `levels` and `tiers`: real agents, and what is measured of them."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import OUTLIVE, TOKEN, processes, until
from skip import skip
from test_full_disk import small
from test_json import documented, fields

NODES = 3
BYTES = 1 << 20
LEVELS = ["memory", "disk", "partner", "xor:4", "rs:2+2", "memory-server:4", "shared"]
# Bytes from memory to memory, over the network and to storage, for each protected byte.
MOVES = {
    "memory": (1, 0, 0),
    "disk": (1, 0, 1),
    "partner": (1, 1, 2),
    "xor:4": (1, 1, 1 + 1 / 3),
    "rs:2+2": (1, 1.5, 2),
    "memory-server:4": (1, 1, 1),
    "shared": (1, 0, 1),
}


def bench(*words: str, status: int = 0) -> subprocess.CompletedProcess:
    """`outlive bench` with these words, to its end."""
    if not OUTLIVE.exists():
        skip("outlive-run", "the command is not built; make build")
    line = [str(OUTLIVE), "bench", *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def test_what_agents_send_is_counted_and_the_job_recovers() -> None:
    done = bench("agents", "--nodes", str(NODES), "--json")
    rows = json.loads(done.stdout)["rows"]
    counts = [row["ours"] for row in rows if row["what"].strip() == "a node: messages"]
    assert len(counts) == 3, rows
    opening, checkpoint, recovery = (count["min"] for count in counts)
    # The least that there can be, as docs/design/scale.md has it, but for what is written down
    # there as said on the way: three levels, each prepared, committed, acknowledged and stable.
    assert opening >= 8 and checkpoint >= 4 + 4 * 3 and recovery >= 8, counts
    (connections,) = (row["ours"] for row in rows if row["what"].startswith("connections"))
    assert NODES - 1 <= connections["min"] and connections["max"] <= 6, connections
    took = [row["ours"]["median"] for row in rows if "it took" in row["what"]]
    assert len(took) == 3 and min(took) > 0, rows


def test_each_level_has_a_line_that_is_true_of_itself(tmp_path: Path) -> None:
    words = ("--bytes", f"{BYTES}B", "--versions", "1", "--ranks", "4", "--nodes", "4")
    done = bench("levels", *words, "--dir", str(tmp_path), "--json")
    table = json.loads(done.stdout)
    assert fields(table) == documented()["outlive.bench.levels/1"]
    assert list(tmp_path.iterdir()) == [], "nothing is left"
    assert (table["bytes"], table["nodes"], table["ranks"]) == (BYTES, 4, 4)
    assert [line["level"] for line in table["levels"]] == LEVELS
    for line in table["levels"]:
        moves = [line["moves"][way] for way in ("memory", "link", "disk")]
        assert moves == pytest.approx(MOVES[line["level"]])
        rate, limit = line["bytes_per_second"], line["limit_bytes_per_second"]
        assert rate["n"] == limit["n"] == line["longer_ms"]["n"] == 1
        assert rate["median"] * line["seconds"]["median"] == pytest.approx(BYTES)
        assert line["ratio"] == pytest.approx(rate["median"] / limit["median"])
        # The limit is the slowest of the floors, over what the level must move there.
        ways = {
            way: line["floors"][way]["median"] / line["moves"][way]
            for way in ("memory", "link", "disk")
            if line["moves"][way]
        }
        assert limit["median"] == pytest.approx(min(ways.values()))
        assert line["limit_is"] == min(ways, key=lambda way: ways[way])
        used = line["processor_seconds_per_gb"]
        assert used["ranks"] > 0 and used["agents"] > 0 and used["launcher"] >= 0
        assert (used["server"] > 0) == line["level"].startswith("memory-server"), line
        # Files are at least the bytes that the scheme keeps, and heads and tables beside them.
        if line["level"] == "memory":
            assert line["stored_bytes"] is None
        else:
            least = line["moves"]["disk"] * BYTES
            assert least <= line["stored_bytes"] <= 1.3 * least + (1 << 18), line
        longer = line["run_seconds"]["median"] - line["run_without_seconds"]["median"]
        assert line["longer_ms"]["median"] == pytest.approx(longer * 1e3, abs=1e-3)
    # The level whose parities a server computes, beside the one whose nodes do.
    (pair,) = table["compared"]
    ours, beside = (
        next(line for line in table["levels"] if line["level"] == pair[which])
        for which in ("level", "beside")
    )
    assert (ours["level"], beside["level"]) == ("memory-server:4", "xor:4")
    node = [
        sum(line["processor_seconds_per_gb"][who] for who in ("ranks", "agents"))
        for line in (ours, beside)
    ]
    assert pair["node_time_saved"] == pytest.approx(1 - node[0] / node[1])
    rates = [line["bytes_per_second"]["median"] for line in (ours, beside)]
    assert pair["bandwidth_ratio"] == pytest.approx(rates[0] / rates[1])


def test_a_level_by_name_and_options_of_a_run(tmp_path: Path) -> None:
    words = ("--levels", "xor:3,disk", "--nodes", "3", "--bytes", "96KiB", "--versions", "1")
    done = bench("levels", *words, "--run-option=--keep=3", "--store", str(tmp_path))
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:2] for line in lines if line[:1] in (["xor:3"], ["disk"])] == [
        ["xor:3", "domain"],
        ["disk", "node-crash"],
    ]
    assert "ratio" in done.stdout and "Buddy" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--levels tape", "'tape' is no checkpoint level"),
        ("--levels disk,disk", "given twice"),
        ("--levels partner --nodes 1", "needs two nodes"),
        ("--levels xor:4 --nodes 3", "needs at least 4 nodes"),
        ("--levels rs:4+2 --nodes 5", "needs at least 6 nodes"),
        ("--nodes 0", "nodes"),
        ("--nodes 4 --ranks 3", "ranks"),
        ("--ranks 0", "ranks"),
        ("--bytes 0B", "too few"),
        ("--bytes 12", "bytes"),
        ("--bytes 9000000TiB", "of memory"),
        ("--bytes 99999999999999TiB", "too large"),
        ("--versions 0", "versions"),
    ],
)
def test_what_means_nothing_is_refused_before_anything_begins(
    words: str, says: str, tmp_path: Path
) -> None:
    done = bench("levels", *words.split(), "--dir", str(tmp_path), status=64)
    assert says in done.stderr and "remedy" in done.stderr and done.stdout == "", done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    with small(tmp_path / "disk", "size=8m"):
        yield tmp_path / "disk"


def test_what_storage_has_no_room_for_is_refused_before_a_job_begins(small_disk: Path) -> None:
    words = ("--levels", "partner", "--bytes", "4MiB", "--dir", str(small_disk))
    done = bench("levels", *words, status=74)
    assert "OL-401" in done.stderr and "fewer --bytes" in done.stderr, done.stderr
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("what", ["levels --levels disk", "tiers"])
def test_an_interrupt_leaves_nothing(what: str, tmp_path: Path) -> None:
    if not OUTLIVE.exists():
        skip("outlive-run", "the command is not built; make build")
    token = f"bench-{what.split()[0]}-{os.getpid()}"
    line = [str(OUTLIVE), "bench", *what.split(), "--versions", "500", "--bytes", "1MiB"]
    child = subprocess.Popen(
        [*line, "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {TOKEN: token},
        process_group=0,
    )
    try:
        # A file is renamed or removed while it is looked for: then it is looked for again.
        until("something is stored", lambda: stored(tmp_path) or child.poll() is not None)
        assert child.poll() is None
        os.killpg(child.pid, signal.SIGINT)  # as Ctrl-C on a terminal
        assert child.wait(60) != 0
    finally:
        child.kill()
        child.wait()
    until("no process is left", lambda: not processes(token))
    until("no file is left", lambda: not list(tmp_path.iterdir()))


def stored(below: Path) -> bool:
    """A container is there."""
    return any(name.endswith(".olc") for _, _, names in os.walk(below) for name in names)


def test_ways_to_shared_storage(tmp_path: Path) -> None:
    words = ("--bytes", f"{BYTES}B", "--versions", "1", "--shared-rate", "2MiB")
    done = bench("tiers", *words, "--dir", str(tmp_path), "--json")
    table = json.loads(done.stdout)
    assert fields(table) == documented()["outlive.bench.tiers/1"]
    assert list(tmp_path.iterdir()) == [], "nothing is left"
    assert (table["bytes"], table["shared_bytes_per_second"]) == (BYTES, 2 << 20)
    ways = {line["way"]: line for line in table["ways"]}
    assert list(ways) == ["direct", "synchronous", "node-storage", "background"]
    for line in ways.values():
        blocked, shared = line["blocked_seconds"]["median"], line["shared_seconds"]["median"]
        # The rate is a bound that holds; nobody waits for longer than all of it.
        assert 0 < blocked <= shared and shared >= 0.9 * BYTES / (2 << 20)
        rate = line["shared_bytes_per_second"]["median"]
        assert rate == pytest.approx(BYTES / shared)
    for way in ("direct", "synchronous"):
        assert ways[way]["blocked_seconds"] == ways[way]["shared_seconds"]
    assert ways["direct"]["node_seconds"] is None
    stored = ways["node-storage"]
    assert stored["blocked_seconds"] == stored["node_seconds"]
    assert ways["background"]["blocked_seconds"]["max"] <= stored["node_seconds"]["max"]
    assert "waits until" in bench("tiers", *words, "--dir", str(tmp_path)).stdout


@pytest.mark.parametrize("rate", ["0B", "fast", "-1MiB"])
def test_a_rate_that_means_nothing_is_refused(rate: str, tmp_path: Path) -> None:
    done = bench("tiers", f"--shared-rate={rate}", "--dir", str(tmp_path), status=64)
    assert "shared-rate" in done.stderr and "remedy" in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []
