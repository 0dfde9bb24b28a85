"""What a program waits for: a save with Outlive beside other ways, in one run.

    python3 bench/peers.py [--mib 512] [--rounds 5] [--dir DIR]

Two processes hold half of the memory each, touched before. The other ways are those
that a Python program has at hand: numpy.save with fsync, and a fork whose child writes
while the parent goes on (and pays for each page that it writes again). `memcpy` is the
limit. Medians, with least and most; needs numpy and target/release/outlive.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = 2


def copy(state, target, _path):
    np.copyto(target, state)


def numpy_save(state, _target, path):
    with open(path, "wb") as file:
        np.save(file, state)
        file.flush()
        os.fsync(file.fileno())


def fork_save(state, target, path):
    """Blocked: the fork, and the faults of the next sweep over the memory."""
    child = os.fork()
    if child == 0:
        numpy_save(state, target, path)
        os._exit(0)
    start = time.perf_counter()
    state += 1  # what the program does next; timed against the same without a child
    sweep = time.perf_counter() - start
    return child, sweep


def worker(number, mib, directory, barrier, results):
    state = np.ones((mib << 20) // PROCESSES // 8)
    target = np.ones_like(state)
    path = os.path.join(directory, f"state-{number}.npy")

    def timed(way):
        barrier.wait()
        start = time.perf_counter()
        way(state, target, path)
        return time.perf_counter() - start

    def sweep():
        barrier.wait()
        start = time.perf_counter()
        state.__iadd__(1)
        return time.perf_counter() - start

    def forked():
        barrier.wait()
        start = time.perf_counter()
        child, after = fork_save(state, target, path)
        total = time.perf_counter() - start
        os.waitpid(child, 0)
        return total - after, after

    while True:
        barrier.wait()
        figures = {"memcpy": timed(copy), "numpy.save, fsync": timed(numpy_save)}
        plain = sweep()
        fork, after = forked()
        figures["fork, child writes"] = fork + max(0.0, after - plain)
        results.put(figures)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", default=tempfile.gettempdir())
    options = parser.parse_args()

    rows: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        barrier = multiprocessing.Barrier(PROCESSES + 1)
        pairs = multiprocessing.Barrier(PROCESSES)
        results = multiprocessing.Queue()

        class Steps:
            """The first wait of a round is with the parent, the others among workers."""

            def __init__(self):
                self.count = 0

            def wait(self):
                (barrier if self.count % 5 == 0 else pairs).wait()
                self.count += 1

        workers = [
            multiprocessing.Process(
                target=worker, args=(n, options.mib, directory, Steps(), results), daemon=True
            )
            for n in range(PROCESSES)
        ]
        for process in workers:
            process.start()
        for _ in range(options.rounds + 1):
            barrier.wait()
            each = [results.get() for _ in workers]
            for name in each[0]:
                rows.setdefault(name, []).append(max(figures[name] for figures in each) * 1e3)
        for process in workers:
            process.terminate()
            process.join()
        command = [ROOT / "target/release/outlive", "bench", "save", "--json"]
        command += ["--mib", str(options.mib), "--rounds", str(options.rounds)]
        command += ["--dir", directory]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
        ours = json.loads(output)

    blocked = next(row for row in ours["rows"] if row["what"].startswith("blocked"))
    limit = blocked["limit"]
    print(f"{options.mib} MiB in {PROCESSES} processes; load {os.getloadavg()[0]:.1f}")
    print(f"{'':28} {'blocked ms':>11} {'min..max':>15} {'to memcpy':>10}")

    def show(name, median, low, high, ratio):
        print(f"{name:28} {median:11.1f} {low:7.0f}..{high:<6.0f} {ratio:10.2f}")

    stat = blocked["ours"]
    show("outlive", stat["median"], stat["min"], stat["max"], blocked["ratio"])
    show("  memcpy beside it", limit["median"], limit["min"], limit["max"], 1.0)
    base = rows["memcpy"][1:]
    for name, values in rows.items():
        values = values[1:]  # the first round touches files and pages
        ratio = statistics.median(v / b for v, b in zip(values, base, strict=True))
        show(name, statistics.median(values), min(values), max(values), ratio)


if __name__ == "__main__":
    main()
