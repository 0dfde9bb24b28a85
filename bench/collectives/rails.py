#!/usr/bin/env python3
"""Our frames between two processes of this machine, over the rails TCP and UCX, against
UCX's own active messages (ucx_perftest) over the same transport, which is the limit.

    bench/collectives/rails.py [ROUNDS] [BLOCKS]

Each figure is the median over BLOCKS (5) runs, in turns, of the median of ROUNDS (2000)
round trips, fewer for long messages. All run on the first two cores that this process may
use. The last column is UCX's limit by our time over UCX: 1 is the limit.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "target/release/examples/rails"
SIZES = [8, 1024, 8192, 65536, 1 << 20, 4 << 20]
# Shared memory with error handling is what a rail that must survive can use at most.
TRANSPORTS = {
    "tcp": {"UCX_TLS": "tcp,self"},
    "sm": {"UCX_TLS": "sm,self", "UCX_MM_ERROR_HANDLING": "y"},
}
BOUND = 300


def rounds_of(size: int, rounds: int) -> int:
    return max(50, min(rounds, rounds * 65536 // size))


def ours(rail: str, size: int, rounds: int, variables: dict[str, str]) -> float:
    line = [str(PROGRAM), rail, str(size), str(rounds_of(size, rounds))]
    ended = subprocess.run(
        line, env=os.environ | variables, capture_output=True, text=True, check=True, timeout=BOUND
    )
    return float(json.loads(ended.stdout)["latency_us"])


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def limit(size: int, rounds: int, variables: dict[str, str], cores: list[int]) -> float:
    """The median one-way time of ucx_perftest, in microseconds."""
    environment = os.environ | variables
    count = rounds_of(size, rounds)
    options = ["-p", str(free_port()), "-e"]
    serving = subprocess.Popen(
        ["ucx_perftest", *options, "-c", str(cores[-1])],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    line = ["ucx_perftest", "127.0.0.1", *options, "-c", str(cores[0]), "-t", "ucp_am_lat"]
    line += ["-s", str(size), "-n", str(count), "-w", str(count // 10), "-f", "-v"]
    try:
        end = time.monotonic() + 30
        while True:
            ended = subprocess.run(
                line, env=environment, capture_output=True, text=True, timeout=BOUND
            )
            if ended.returncode == 0 or serving.poll() is not None or time.monotonic() > end:
                break
        ended.check_returncode()
    finally:
        if serving.poll() is None:
            serving.terminate()
        serving.wait()
    return float(ended.stdout.splitlines()[-1].split(",")[1])


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    blocks = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    build = "cargo build --release --locked -p outlive-network --features ucx --example rails"
    subprocess.run(build.split(), cwd=ROOT, check=True)
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)
    load = Path("/proc/loadavg").read_text().split()[0]
    print(f"{blocks} runs of {rounds} round trips, cores {cores}, load {load}")
    print("one way, us, and MB/s")
    head = f"{'bytes':>8} {'rail TCP':>17} {'UCX':>5} {'rail UCX':>17}"
    print(f"{head} {'its limit':>17} {'ratio':>6}")
    for size in SIZES:
        for name, variables in TRANSPORTS.items():
            turns = [
                (
                    ours("tcp", size, rounds, {}),
                    ours("ucx", size, rounds, variables),
                    limit(size, rounds, variables, cores),
                )
                for _ in range(blocks)
            ]
            columns = [statistics.median(column) for column in zip(*turns, strict=True)]
            tcp, ucx, raw = (f"{time:9.2f} {size / time:7.0f}" for time in columns)
            ratio = columns[2] / columns[1]
            print(f"{size:>8} {tcp} {name:>5} {ucx} {raw} {ratio:6.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
