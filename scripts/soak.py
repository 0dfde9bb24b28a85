#!/usr/bin/env python3
"""The long test: jobs hurt at random, and none hurt where none is.

    scripts/soak.py [--minutes 30 | --turns N] [--kind KIND]... [--seed S]
                    [--keep-going] [--calm-minutes 20]

First one job without any failure goes on for --calm-minutes while every core computes
something else: no node may be suspected, nothing given up, nothing restarted (no false
alarm). Then turns, until the time is over or so many were done: a seed decides what is
done to a job (tests/e2e/soak.py), and it must end within its bound with the bits of a
calm run, or with the true cause. Prints the seed of each turn; ``--turns 1 --seed S``
repeats it. Stops at the first violation, or with --keep-going goes on and sums them; the
directories of the failing turns are kept. So are their seeds, in tests/failed-seeds: they
are the first turns of the next run without --seed, until the file is removed.
"""

import argparse
import itertools
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT / "tests")]
import soak  # noqa: E402
from harness import OUTLIVE, Job, processes  # noqa: E402
from seed import failed, fresh, keep, runs  # noqa: E402

WRONG = (AssertionError, subprocess.SubprocessError, OSError, ValueError, KeyError)


def build(directory: Path) -> Path:
    """The test program, beside the library."""
    library = OUTLIVE.parent / "liboutlive.so"
    for name in ("liboutlive.so", "liboutlive.so.0"):
        (directory / name).symlink_to(library)
    job = Job(directory, directory / "ring", "build")
    return soak.build(job, "ring")


def calm(minutes: float, job: Job) -> str:
    """One long job under full load, without a failure."""
    # The job has a part of the cores: how fast it goes is found by a short run.
    begun = time.monotonic()
    with soak.full_load():
        job.survive()
        job.steps = max(job.steps, int(job.steps * minutes * 60 / (time.monotonic() - begun)))
        result = job.survive("--fresh", bound_s=minutes * 60 * 4 + 300)
    report = result.report
    assert report["failures"] == [] and report["restarts"] == 0, f"false alarm: {report}"
    assert report["agent_restarts"] == 0, "an agent was restarted"
    assert report["warnings"] == [], f"false alarm: {report['warnings']}"
    assert "silent" not in result.err, "a node was suspected"
    return f"no failure in {report['seconds'] / 60:.1f} minutes under full load"


def attempt(name: str, ring: Path, act) -> str:
    """Carries out one turn and prints how it ended; gives what was wrong, or nothing."""
    job = Job(Path(tempfile.mkdtemp(prefix="outlive-soak-")), ring, uuid.uuid4().hex)
    begun = time.monotonic()
    try:
        done = act(job)
        job.gone()
    except WRONG as error:
        for pid in processes(job.token):
            soak.kill(pid)
        (job.dir / "violation").write_text(traceback.format_exc())
        wrong = (str(error) or type(error).__name__).strip()
        print(f"FAIL {name}: {wrong}\n  kept: {job.dir}", flush=True)
        return wrong
    shutil.rmtree(job.dir)
    print(f"PASS {name}: {done} ({time.monotonic() - begun:.0f} s)", flush=True)
    return ""


def seeds(kept_as: str, first: int | None) -> Iterator[int]:
    """Those that failed before, then a row from a fresh one; or only that from the first."""
    if first is None:
        for seed in failed(kept_as):
            print(runs(kept_as, seed), flush=True)
            yield seed
        first = fresh()
    yield from itertools.count(first)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--turns", type=int, help="so many turns instead of minutes")
    parser.add_argument("--calm-minutes", type=float, default=0.0)
    parser.add_argument("--kind", action="append", choices=sorted(soak.TURNS))
    parser.add_argument("--seed", type=int)
    parser.add_argument("--keep-going", action="store_true")
    args = parser.parse_args()
    # A seed stands for another turn if it decides among other kinds.
    kept_as = " ".join(["scripts/soak.py", *(args.kind or ())])
    with tempfile.TemporaryDirectory(prefix="outlive-soak-ring-") as directory:
        ring = build(Path(directory))
        if args.calm_minutes > 0 and attempt(
            "calm", ring, lambda job: calm(args.calm_minutes, job)
        ):
            return 1
        end = time.monotonic() + 60.0 * args.minutes
        turns, wrong = 0, Counter[str]()
        for seed in seeds(kept_as, args.seed):
            if turns >= args.turns if args.turns else time.monotonic() >= end:
                break
            kind, chance = soak.drawn(seed, args.kind or list(soak.TURNS))
            turns += 1
            name = f"{kind} seed {seed}"
            if attempt(name, ring, lambda job, k=kind, c=chance: soak.TURNS[k](job, c)):
                print(f"  {keep(kept_as, seed)}", flush=True)
                wrong[kind] += 1
                if not args.keep_going:
                    break
    for kind, count in wrong.most_common():
        print(f"  {kind}: {count} failed")
    print(f"{turns - wrong.total()} passed, {wrong.total()} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
