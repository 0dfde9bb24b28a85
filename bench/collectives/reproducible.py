#!/usr/bin/env python3
"""What `outlive run --reproducible` costs: native Reduce and Allreduce with it and without it.

    bench/collectives/reproducible.py [--ranks N] [--rounds N] [--blocks N]

Each round runs the same job with and without the option, in turns, so that a change of the
machine's speed hits both. Prints for each MPI library in .deps, collective and size the median
of the rounds' medians and the median of the rounds' ratios.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
OUTLIVE = Path(os.environ.get("OUTLIVE_BIN", ROOT / "target/release/outlive"))
OPTIONS = {"mpich": [], "openmpi": ["--allow-run-as-root", "--oversubscribe"]}
Figures = dict[tuple[str, int], float]


def measure(words: list[object]) -> Figures:
    """Nanoseconds of each collective and size."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    found = {}
    for line in done.stdout.splitlines():
        if line.startswith(("reduce ", "allreduce ")):
            call, size, _, _, native, _, _, again, *_ = line.split()
            # Without the layer both columns are the native library.
            found[call, int(size)] = (float(native) + float(again)) / 2
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2, help="ranks of each job (2)")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of jobs (5)")
    parser.add_argument("--blocks", type=int, default=9, help="blocks of each kind in a job (9)")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        for mpi, options in OPTIONS.items():
            place = ROOT / ".deps" / mpi / "bin"
            if not (place / "mpicc").exists():
                print(f"{mpi}: not in .deps, run make deps")
                continue
            program = Path(work) / f"pair-{mpi}"
            source = ROOT / "bench/collectives/pair.c"
            subprocess.run([place / "mpicc", "-O2", source, "-o", program], check=True)
            pin = int(wanted.ranks <= 2)
            command = [place / "mpirun", *options, "-n", wanted.ranks, program, pin, wanted.blocks]
            rounds: list[tuple[Figures, Figures]] = []
            for _ in range(wanted.rounds):
                run = [OUTLIVE, "run", "--store", Path(work) / "store"]
                plain, fixed = (
                    measure([*run, *option, "--", *command]) for option in ([], ["--reproducible"])
                )
                rounds.append((plain, fixed))
            load = Path("/proc/loadavg").read_text().split()[0]
            print(f"{mpi}, {wanted.ranks} ranks, load {load}")
            for call, size in rounds[0][0]:
                pairs = [(plain[call, size], fixed[call, size]) for plain, fixed in rounds]
                plain, fixed = (median(column) for column in zip(*pairs, strict=True))
                ratio = median(fixed / plain for plain, fixed in pairs)
                print(
                    f"{call:<9} {size:>7} B  default {plain:>10.0f} ns"
                    f"  reproducible {fixed:>10.0f} ns  ratio {ratio:.3f}"
                )


if __name__ == "__main__":
    main()
