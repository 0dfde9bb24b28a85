"""What checkpoints add to a program: runs without and with them, in turns.

    python3 bench/paired.py [--rounds 5] [--every 50] [--dir DIR] [-- COMMAND ...]

Both runs are under `outlive run` on four emulated nodes; without means that no version is
ever due. The command is by default examples/01-heat2d with 8 ranks of 1 MiB, which keeps all
cores busy (`make -C examples`). Medians, with least and most; needs target/release/outlive.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAT2D = [ROOT / ".deps/mpich/bin/mpirun", "-n", "8", ROOT / "build/examples/heat2d"]
HEAT2D += ["1024", "1024", "1000", "field.bin"]
NEVER = 2**32 - 1


def run(command, every, directory, number):
    """Seconds, and the versions that were committed."""
    report = directory / f"report-{number}.json"
    line = [ROOT / "target/release/outlive", "run", "--quiet", "--job", f"paired-{number}"]
    line += ["--store", directory / "store", "--report", report, "--emulate-nodes", "4"]
    line += ["--levels", "memory,disk,partner", "--every", str(every), "--memory", "64MiB"]
    start = time.perf_counter()
    subprocess.run([*line, "--", *command], check=True, cwd=directory, stdout=subprocess.DEVNULL)
    took = time.perf_counter() - start
    return took, json.loads(report.read_text())["checkpoints"]["stable"].get("partner", 0)


def show(name, values, unit):
    median = statistics.median(values)
    print(f"{name:34} {median:8.3g} {unit:3} {min(values):8.3g}..{max(values):.3g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--dir", default=tempfile.gettempdir())
    parser.add_argument("command", nargs="*", default=HEAT2D)
    options = parser.parse_args()

    pairs = []
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        for number in range(options.rounds):
            # Without, with; with, without: a drift of the machine hits both.
            order = [NEVER, options.every] if number % 2 == 0 else [options.every, NEVER]
            took = {
                every: run(options.command, every, Path(directory), f"{number}-{every}")
                for every in order
            }
            pairs.append((took[NEVER][0], *took[options.every]))
    print(f"{options.rounds} pairs; load {os.getloadavg()[0]:.1f}")
    show("without checkpoints", [without for without, _, _ in pairs], "s")
    show("with", [took for _, took, _ in pairs], "s")
    show("  versions committed", [committed for _, _, committed in pairs], "")
    added = [(took - without) * 1e3 / max(count, 1) for without, took, count in pairs]
    show("  added by each", added, "ms")
    show("  added, of the run", [took / without * 100 - 100 for without, took, _ in pairs], "%")


if __name__ == "__main__":
    main()
