"""Times the kernels, two ways in turn, and prints medians as JSON lines.

    python3 bench/nas/run.py sessions [--class W] [--rounds 7] [--ranks 4]
    python3 bench/nas/run.py threads [--class S] [--rounds 5] [--threads 8,64,512] -- COMMAND...
    python3 bench/nas/run.py wrapped  [--class W] [--rounds 5] -- COMMAND...

`sessions` runs CG, EP, IS and LU with and without reliable sessions; `threads` runs CG with
more and more threads, `wrapped` all kernels, behind COMMAND (a launcher that protects memory)
and without it. The two ways alternate within each round, so that other load on the
machine meets both. A kernel makes its threads before its clock starts, as the NAS benchmarks do
by an iteration that is not timed: what that takes is printed beside. Overheads are medians of the
rounds' ratios: of processor time (all ranks, user and system), which other load disturbs little,
and of wall time. Needs `make -C bench/nas`.
"""

import argparse
import json
import os
import resource
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build/nas"
BOUND_S = 600
ALL = ["bt", "cg", "ep", "ft", "is", "lu", "mg", "sp", "ua"]


@dataclass(frozen=True)
class Times:
    """Of one run, in seconds."""

    wall: float
    processor: float
    team: float
    """In which its threads were made, before the clock of the kernel starts."""


def children_s() -> float:
    """Processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def times_of(output: str, processor: float) -> Times:
    """The kernel's own wall time; a run that is not verified does not count."""
    result = json.loads(output.splitlines()[-1])
    if not result["verified"]:
        raise SystemExit(f"not verified: {output}")
    return Times(float(result["seconds"]), processor, float(result["team_s"]))


def threaded(command: list[str], threads: int) -> Times:
    before = children_s()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=BOUND_S, check=True
    )
    return times_of(done.stdout, children_s() - before)


def ranked(command: list[str], ranks: int, sessions: bool) -> Times:
    """One job on loopback; rank 0's wall time."""
    before = children_s()
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(ranks)]
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    with tempfile.TemporaryDirectory() as name:
        key, hosts = Path(name, "key"), Path(name, "hosts")
        key.write_bytes(secrets.token_bytes(32))
        key.chmod(0o600)
        hosts.write_text("".join(f"127.0.0.1:{port}\n" for port in ports))
        jobs = []
        for rank in range(ranks):
            environment = {
                **os.environ,
                "OUTLIVE_COMM_RANK": str(rank),
                "OUTLIVE_COMM_HOSTS": str(hosts),
                "OUTLIVE_COMM_KEY": str(key),
                "OUTLIVE_COMM_SESSIONS": str(int(sessions)),
            }
            pipe = subprocess.PIPE
            jobs.append(
                subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
            )
        outputs = [job.communicate(timeout=BOUND_S) for job in jobs]
    if any(job.returncode for job in jobs):
        raise SystemExit("".join(err for _, err in outputs))
    return times_of(outputs[0][0], children_s() - before)


def report(name: str, pairs: list[tuple[Times, Times]], **more: object) -> None:
    """`pairs` are (without, with) of each round."""
    line: dict[str, object] = {"kernel": name, **more}
    for kind in ("processor", "wall"):
        both = [(float(getattr(a, kind)), float(getattr(b, kind))) for a, b in pairs]
        ratios = sorted(after / before for before, after in both)
        line |= {
            f"{kind}_without_s": round(statistics.median(before for before, _ in both), 4),
            f"{kind}_with_s": round(statistics.median(after for _, after in both), 4),
            f"{kind}_overhead_percent": round(100 * (statistics.median(ratios) - 1), 1),
            f"{kind}_spread_percent": [round(100 * (ratios[n] - 1), 1) for n in (0, -1)],
        }
    if more.get("threads"):
        medians = [1e3 * statistics.median(pair[way].team for pair in pairs) for way in (0, 1)]
        line |= {"team_without_ms": round(medians[0], 2), "team_with_ms": round(medians[1], 2)}
    print(json.dumps({**line, "load": round(os.getloadavg()[0], 1)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=["sessions", "threads", "wrapped"])
    parser.add_argument("--class", dest="size", default="W")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--threads", default="8,16,32,64,128,256,512")
    parser.add_argument("--kernels", default="")
    arguments, wrapper = parser.parse_known_args()
    if wrapper[:1] == ["--"]:
        wrapper = wrapper[1:]
    size, rounds = arguments.size, range(arguments.rounds)
    if arguments.what == "sessions":
        for name in (arguments.kernels or "cg,ep,is,lu").split(","):
            program = [str(BUILT / f"{name}-ranks"), size]
            pairs = []
            for number in rounds:
                order = [False, True] if number % 2 == 0 else [True, False]
                times = {on: ranked(program, arguments.ranks, on) for on in order}
                pairs.append((times[False], times[True]))
            report(name.upper(), pairs, size=size, ranks=arguments.ranks)
    elif not wrapper:
        sys.exit(f"{arguments.what} needs -- COMMAND")
    elif arguments.what == "threads":
        program = [str(BUILT / "cg"), size]
        for threads in [int(text) for text in arguments.threads.split(",")]:
            pairs = [
                (threaded(program, threads), threaded([*wrapper, *program], threads))
                for _ in rounds
            ]
            report("CG", pairs, size=size, threads=threads)
    else:
        for name in (arguments.kernels or ",".join(ALL)).split(","):
            program = [str(BUILT / name), size]
            pairs = [(threaded(program, 2), threaded([*wrapper, *program], 2)) for _ in rounds]
            report(name.upper(), pairs, size=size, threads=2)


if __name__ == "__main__":
    main()
