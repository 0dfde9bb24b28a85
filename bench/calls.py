"""What the calls of a computing thread leave behind on its core.

A piece of work, then a packet over the loopback, again and again. Prints softirqs of the core, and
how much longer pieces took than the least.
"""

import os
import socket
import sys
import time


def counted(core: int) -> dict[str, int]:
    """Softirqs of a core so far."""
    with open("/proc/softirqs", encoding="ascii") as table:
        rows = [line.split() for line in table][1:]
    return {row[0].rstrip(":"): int(row[1 + core]) for row in rows}


def main() -> None:
    """Runs it."""
    pieces = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    core, took, calls = max(os.sched_getaffinity(0)), [], []
    before = counted(core)
    for _ in range(pieces):
        begun = time.perf_counter_ns()
        sum(range(20_000))
        done = time.perf_counter_ns()
        sender.sendto(b"x" * 1000, receiver.getsockname())
        receiver.recv(2000)
        took.append(done - begun)
        calls.append(time.perf_counter_ns() - done)
    after = counted(core)
    softirqs = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    took.sort()
    calls.sort()
    over = {
        part: round(100 * (took[pieces * part // 1000] / took[0] - 1), 1) for part in (500, 990)
    }
    print(f"softirqs on core {core}: {softirqs}")
    print(f"pieces over the least ({took[0] / 1e3:.0f} us): p50 {over[500]} %, p99 {over[990]} %")
    print(
        f"three calls: p50 {calls[pieces // 2] / 1e3:.1f} us,"
        f" p99 {calls[pieces * 99 // 100] / 1e3:.1f} us"
    )


main()
