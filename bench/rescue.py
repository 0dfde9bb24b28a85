"""What checkpoints cost a run, and what they save it when an error comes: deep-er, figure 8.

    python3 bench/rescue.py [--rounds 3] [--outlive PATH] [--dir DIR] [--json FILE]

examples/01-heat2d with 8 ranks on four emulated nodes does 100 iterations (each of --steps time
steps); a checkpoint is due every 10, an error comes at iteration 60. Four runs in turns, in an
order that turns too: without and with checkpoints, without and with the error. The error kills
rank 3; without checkpoints the job begins anew. Each result is compared with that of the first
run, byte by byte. Seconds are of the whole command, starting and ending included.

Needs the command, `make -C examples` and .deps/mpich. Medians, with least and most.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ITERATIONS, EVERY, ERROR_AT = 100, 10, 60
NEVER = 2**32 - 1
# With checkpoints, with the error.
RUNS = {
    "without checkpoints, no error": (False, False),
    "without checkpoints, error": (False, True),
    "with checkpoints, no error": (True, False),
    "with checkpoints, error": (True, True),
}


def run(options, directory, number, saves, fails):
    """Seconds, the report, and the field that was computed."""
    steps = options.steps
    here = directory / str(number)
    here.mkdir()
    line = [options.outlive, "run", "--quiet", "--job", "rescue", "--store", here / "store"]
    line += ["--report", here / "report.json", "--emulate-nodes", "4", "--spares", "1"]
    line += ["--levels", "memory,disk,partner", "--memory", "256MiB", "--backoff", "0"]
    line += ["--every", str(EVERY * steps if saves else NEVER)]
    if fails:
        line += ["--inject", f"rank:3@version={ERROR_AT * steps}"]
    line += ["--", ROOT / ".deps/mpich/bin/mpirun", "-n", "8", options.heat2d]
    line += [str(options.cells), str(options.cells), str(ITERATIONS * steps), here / "field"]
    start = time.perf_counter()
    subprocess.run([str(word) for word in line], check=True, stdout=subprocess.DEVNULL)
    took = time.perf_counter() - start
    report = json.loads((here / "report.json").read_text())
    return took, report, (here / "field").read_bytes()


def check(name, report, saves, fails):
    """What was meant to happen has happened; else the seconds mean nothing."""
    stable = report["checkpoints"]["stable"].get("partner", 0)
    if report["restarts"] != int(fails) or bool(stable) != saves:
        sys.exit(f"{name}: {report['restarts']} restarts, {stable} versions at partner")


def figures(seconds):
    """The table's percentages, of the medians: what checkpoints cost a run without an error,
    and what they save one with it."""
    plain, anew, costs, rescued = (statistics.median(seconds[name]) for name in RUNS)
    return {
        "overhead_percent": (costs / plain - 1) * 100,
        "saved_percent": (1 - rescued / anew) * 100,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="time steps of an iteration")
    parser.add_argument("--cells", type=int, default=1024, help="of the plate, on each side")
    parser.add_argument("--outlive", type=Path, default=ROOT / "target/release/outlive")
    parser.add_argument("--heat2d", type=Path, default=ROOT / "build/examples/heat2d")
    parser.add_argument("--dir", default=tempfile.gettempdir())
    parser.add_argument("--json", type=Path, help="writes the figures here too")
    options = parser.parse_args()
    if min(options.rounds, options.steps, options.cells) < 1:
        parser.error("--rounds, --steps and --cells are at least 1")
    for needed in (options.outlive, options.heat2d):
        if not needed.exists():
            parser.error(f"{needed} is not there: make build, make -C examples")

    seconds = {name: [] for name in RUNS}
    first = None
    names = list(RUNS)
    for turn in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=options.dir) as directory:
            for number in range(len(names)):
                name = names[(number + turn) % len(names)]
                took, report, field = run(options, Path(directory), number, *RUNS[name])
                check(name, report, *RUNS[name])
                first = first or field
                if field != first:
                    sys.exit(f"{name}: another result")
                seconds[name].append(took)
    print(
        f"heat2d, {options.cells} x {options.cells} cells, {ITERATIONS} iterations of "
        f"{options.steps} steps; {options.rounds} rounds; load {os.getloadavg()[0]:.1f}"
    )
    for name, values in seconds.items():
        median = statistics.median(values)
        print(f"{name:32} {median:7.2f} s  {min(values):7.2f}..{max(values):.2f}")
    found = figures(seconds)
    print(f"overhead of checkpoints          {found['overhead_percent']:7.1f} %")
    print(f"saved when the error comes       {found['saved_percent']:7.1f} %")
    if options.json:
        answer = {"seconds": seconds, "load": os.getloadavg()[0], **found}
        options.json.write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
