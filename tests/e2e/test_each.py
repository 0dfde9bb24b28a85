"""A command that is started once on each node: plain processes, each the rank of its node's number.
With machines of their own: tests/cluster; with torchrun: tests/torchrun."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import ROOT
from harness import OUTLIVE
from skip import skip

STEPS = 300


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = OUTLIVE.parent / "liboutlive.so"
    if not OUTLIVE.exists() or not library.exists():
        skip("outlive-run", "the command is not built; make build")
    built = tmp_path_factory.mktemp("walk")
    for name in ("liboutlive.so", "liboutlive.so.0"):
        (built / name).symlink_to(library)
    words = ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"]
    words += [ROOT / "tests/cluster/programs/walk.c", "-I", ROOT / "crates/client/include"]
    words += ["-o", built / "walk", "-L", built, "-loutlive", f"-Wl,-rpath,{built}"]
    subprocess.run(words, check=True, timeout=60)
    return built / "walk"


def start(walk: Path, dir: Path, *options: str, pause_us: int = 5000) -> subprocess.Popen[str]:
    words = [OUTLIVE, "run", "--store", dir / "store", "--emulate-nodes", "3", "--every", "20"]
    words += ["--report", dir / "report.json", "-v", *options, "--start", "each"]
    return subprocess.Popen(
        [*words, "--", walk, dir / "digest", str(STEPS), str(pause_us)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def digests(dir: Path) -> list[str]:
    return [(dir / f"digest.{rank}").read_text() for rank in range(3)]


def undisturbed(walk: Path, dir: Path) -> list[str]:
    dir.mkdir()
    for rank in range(3):
        variables = {"OUTLIVE_NODE_RANK": str(rank), "OUTLIVE_NODES": "3"}
        words = [walk, dir / "digest", str(STEPS), "0"]
        subprocess.run(words, env=variables, check=True, capture_output=True, timeout=60)
    return digests(dir)


@pytest.mark.parametrize("what", ["node", "rank", "agent"])
def test_what_is_lost_comes_back(walk: Path, tmp_path: Path, what: str, seed: int) -> None:
    chance = random.Random(seed)
    plan = f"{what}:{chance.randrange(3)}@version={chance.randrange(60, 200)}"
    run = start(walk, tmp_path, "--inject", plan)
    text, _ = run.communicate(timeout=120)
    assert run.returncode == 0, text
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["restarts"] == (0 if what == "agent" else 1), text
    assert digests(tmp_path) == undisturbed(walk, tmp_path / "reference"), text


def test_an_interrupt_reaches_all_of_them(walk: Path, tmp_path: Path) -> None:
    run = start(walk, tmp_path, pause_us=100_000)
    assert run.stdout is not None
    said = []
    for line in run.stdout:
        said.append(line)
        if "version 20 stable" in line:
            break
    run.send_signal(signal.SIGTERM)
    text, _ = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGTERM, "".join(said) + text
    until = time.monotonic() + 10
    while left := [pid for pid in os.listdir("/proc") if pid.isdigit() and is_walk(pid, walk)]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


def is_walk(pid: str, walk: Path) -> bool:
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")) == walk
    except OSError:
        return False


def test_the_first_status_that_is_bad_is_the_jobs(tmp_path: Path) -> None:
    if not OUTLIVE.exists():
        skip("outlive-run", "the command is not built; make build")
    script = '[ "$OUTLIVE_NODE_RANK" = 1 ] && exit 7; exec sleep 600'
    words = ["--store", tmp_path / "store", "--emulate-nodes", "3", "--max-restarts", "0"]
    words += ["--start", "each", "--", "sh", "-c", script]
    done = subprocess.run([OUTLIVE, "run", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--start", "all", "--", "true"], "'all' is neither once nor each"),
        (["--emulate-nodes", "2", "--", "torchrun", "--nnodes=3", "x.py"], "--nnodes 3"),
        (["--hosts", "flux", "--job", "x", "--", "true"], "flux hostlist"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, words: list[str], said: str) -> None:
    if not OUTLIVE.exists():
        skip("outlive-run", "the command is not built; make build")
    run = [OUTLIVE, "run", "--store", tmp_path / "store", *words]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert done.returncode == 64 and said in done.stderr, done.stderr
    assert not (tmp_path / "store").exists(), "nothing is begun"
