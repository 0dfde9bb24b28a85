#!/usr/bin/env python3
"""The long test: random failures, and none where there are none.

    scripts/soak.py [--minutes 30] [--calm-minutes 20] [--seed S]

First one job without any failure goes on for --calm-minutes while every core computes
something else: no node may be suspected, nothing given up, nothing restarted (no false
alarm). Then turns of two kinds, until the time is over: heat2d with one to three random
injections, whose result must be that of an undisturbed run bit for bit; and heat2d
without injections while every core computes something else, whose report must name
no failure (no false alarm). Prints the seed of each turn; `--seed S` repeats from
there. Stops at the first violation and keeps its directory.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTLIVE = ROOT / "target" / "release" / "outlive"
MPIRUN = ROOT / ".deps" / "mpich" / "bin" / "mpirun"
HEAT2D = ROOT / "build" / "examples" / "heat2d"
STEPS = 600
TURN_BOUND_S = 300
KINDS = ("node", "node", "rank", "agent")  # the weights of the draw


def injections(chance: random.Random, nodes: int, ranks: int) -> list[str]:
    """One to three failures, far enough apart that each finds a protected job."""
    specs = []
    for base in sorted(chance.sample((100, 250, 400), chance.randint(1, 3))):
        version = base + chance.randrange(50)
        kind = chance.choice(KINDS)
        if kind == "agent":  # an agent has no version of its own; steps last 5 ms
            specs.append(f"agent:{chance.randrange(nodes)}@{version * 5}ms")
        else:
            place = chance.randrange(ranks if kind == "rank" else nodes)
            specs.append(f"{kind}:{place}@version={version}")
    return specs


def heat2d(
    work: Path,
    specs: list[str],
    ranks: int,
    nodes: int,
    steps: int = STEPS,
    bound_s: float = TURN_BOUND_S,
) -> dict:
    """One protected run; gives its report. Raises if it fails or takes too long."""
    command = [OUTLIVE, "run", "--job", "soak", "--store", work / "store", "--every", "20"]
    command += ["--emulate-nodes", nodes, "--spares", 3, "--report", work / "report.json"]
    for spec in specs:
        command += [spec] if spec.startswith("--") else ["--inject", spec]
    command += ["--", MPIRUN, "-n", ranks, HEAT2D, 256, 256, steps, work / "result.bin"]
    command += ["--sleep-us", 5000]
    with open(work / "log", "wb") as log:
        subprocess.run(
            [str(word) for word in command],
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=bound_s,
            check=True,
        )
    return json.loads((work / "report.json").read_text())


@contextlib.contextmanager
def full_load() -> Iterator[None]:
    """Every core computes something else meanwhile."""
    load = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for process in load:
            process.kill()
            process.wait()


def calm(minutes: float, work: Path) -> str:
    """One long job under full load, without a failure; raises if one is reported."""
    # The job has a part of the cores: how fast it goes is found by a short run.
    begun = time.monotonic()
    with full_load():
        heat2d(work, [], 8, 4)
        seconds = time.monotonic() - begun
        steps = max(STEPS, int(STEPS * minutes * 60 / seconds))
        report = heat2d(work, ["--fresh"], 8, 4, steps, bound_s=minutes * 60 * 4 + TURN_BOUND_S)
    said = (work / "log").read_text("utf-8", "replace")
    assert report["failures"] == [] and report["restarts"] == 0, f"false alarm: {report}"
    assert "silent" not in said, "a node was suspected"
    codes = {warning["code"] for warning in report["warnings"]}
    assert "OL-304" not in codes, f"a node was missed: {report['warnings']}"
    assert report["agent_restarts"] == 0, "an agent was restarted"
    return f"no failure in {report['seconds'] / 60:.1f} minutes under full load"


def turn(seed: int, work: Path, reference: bytes) -> str:
    """One turn; gives what was done, or raises AssertionError."""
    chance = random.Random(seed)
    ranks, nodes = chance.choice(((8, 4), (4, 4), (6, 3), (4, 2)))
    if chance.random() < 0.25:
        with full_load():
            report = heat2d(work, [], ranks, nodes)
        assert report["failures"] == [], f"false alarm: {report['failures']}"
        done = "no failure under full load"
    else:
        specs = injections(chance, nodes, ranks)
        report = heat2d(work, specs, ranks, nodes)
        fatal = sorted(spec.split("@")[0] for spec in specs if not spec.startswith("agent"))
        places = sorted(failure["place"] for failure in report["failures"])
        assert places == fatal, f"injected {specs}, reported {places}"
        done = " ".join(specs)
    assert report["result"] == "finished", f"the report says: {report['result']}"
    assert (work / "result.bin").read_bytes() == reference, "the result differs"
    return f"{ranks} ranks, {nodes} nodes: {done}"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--calm-minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    if args.calm_minutes > 0:
        work = Path(tempfile.mkdtemp(prefix="outlive-soak-"))
        try:
            print(f"PASS calm: {calm(args.calm_minutes, work)}", flush=True)
        except (AssertionError, subprocess.SubprocessError, OSError, ValueError) as error:
            print(f"FAIL calm: {error}; kept: {work}", flush=True)
            return 1
        shutil.rmtree(work)
    end = time.monotonic() + 60.0 * args.minutes
    turns = 0
    with tempfile.TemporaryDirectory() as directory:
        reference = Path(directory) / "reference.bin"
        command = [MPIRUN, "-n", 1, HEAT2D, 256, 256, STEPS, reference]
        subprocess.run([str(word) for word in command], check=True, timeout=TURN_BOUND_S)
        wanted = reference.read_bytes()
    while time.monotonic() < end:
        seed = args.seed + turns
        work = Path(tempfile.mkdtemp(prefix="outlive-soak-"))
        try:
            print(f"PASS seed {seed}: {turn(seed, work, wanted)}", flush=True)
        except (AssertionError, subprocess.SubprocessError, OSError, ValueError) as error:
            print(f"FAIL seed {seed}: {error}; kept: {work}", flush=True)
            return 1
        shutil.rmtree(work)
        turns += 1
    print(f"{turns} passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
