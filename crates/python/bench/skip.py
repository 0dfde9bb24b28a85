"""Nanoseconds of a skipped checkpoint, called from Python.

    outlive run --interval 1h -- python crates/python/bench/skip.py

(or without ``outlive run``: the path is the same). The loop around the call is measured
beside it and taken off; medians of several runs.
"""

import statistics
import time

import numpy as np
import outlive

CALLS = 1_000_000
RUNS = 7


def per_call(loop: object) -> float:
    """Median nanoseconds of one turn."""
    times = []
    for run in range(RUNS):
        start = time.perf_counter_ns()
        loop(range(run * CALLS + 1, (run + 1) * CALLS + 1))
        times.append((time.perf_counter_ns() - start) / CALLS)
    return statistics.median(times)


def main() -> None:
    """Measures and prints."""
    job = outlive.open()
    state = {"layers": [{"weight": np.zeros((64, 64))} for _ in range(1000)]}
    job.restore(state)

    def empty(versions: range) -> None:
        for _ in versions:
            pass

    def identity(versions: range) -> None:
        call = abs
        for version in versions:
            call(version)

    def skipped(versions: range) -> None:
        for version in versions:
            job.checkpoint(version, state)

    loop = per_call(empty)
    builtin = per_call(identity) - loop
    call = per_call(skipped) - loop
    status = job.status()
    print(
        f"a skipped checkpoint of 1000 arrays: {call:.0f} ns "
        f"(abs() of the same int: {builtin:.0f} ns); "
        f"protected {status.is_protected}, taken {status.taken} of {RUNS * CALLS}"
    )
    job.close()


if __name__ == "__main__":
    main()
