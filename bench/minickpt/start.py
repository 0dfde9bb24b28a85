#!/usr/bin/env python3
"""What protection costs programs that start others all the time, and the rest: the same command
alone and under `outlive minickpt run --native`, in turn. Nothing dies here.

    bench/minickpt/start.py [--outlive PROGRAM] [--memory DIR] [--runs N] [NAME...]

The memory lies on tmpfs unless DIR says otherwise. `--native` adds mappings in files, the filter
and the stops, but no O_DSYNC: that is measured by itself, by writes to the directory of this run.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A process that starts true(1) a hundred times by vfork, as posix_spawn does it.
SPAWN = "import subprocess\nfor _ in range(100): subprocess.run(['/bin/true'], check=True)\n"
SOURCE = '#include <stdio.h>\nint main(void) { puts("x"); return 0; }\n'
GO = 'package main\n\nimport "fmt"\n\nfunc main() { fmt.Println("x") }\n'
SUM = "x = 0\nfor i in range(4_000_000): x += i * i\n"


def commands(scratch: Path) -> dict[str, list[str]]:
    """What is there of the programs, by name."""
    (scratch / "x.c").write_text(SOURCE, encoding="ascii")
    (scratch / "x.go").write_text(GO, encoding="ascii")
    python = sys.executable
    all_ = {
        "true": ["/bin/true"],
        "spawn-100": [python, "-c", SPAWN],
        "python": [python, "-c", "import json, argparse"],
        "gcc": ["gcc", "-O2", "-o", str(scratch / "x"), str(scratch / "x.c")],
        "go-build": ["go", "build", "-o", str(scratch / "y"), str(scratch / "x.go")],
        "java": ["java", "-XX:-UsePerfData", "-version"],
        "sum": [python, "-c", SUM],
        "sort": ["sort", "-R", "--random-source=/bin/bash", "/usr/include/stdio.h"],
    }
    return {name: words for name, words in all_.items() if shutil.which(words[0])}


def timed(words: list[str]) -> float:
    """Seconds of one run."""
    start = time.monotonic()
    done = subprocess.run(words, capture_output=True, check=False)
    took = time.monotonic() - start
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.returncode}\n{done.stderr.decode()[-2000:]}")
    return took


def durable(directory: Path) -> tuple[float, float]:
    """Seconds of a write of 4 KiB, without and with O_DSYNC."""
    found = []
    for more in (0, os.O_DSYNC):
        fd = os.open(directory / "durable", os.O_RDWR | os.O_CREAT | os.O_TRUNC | more, 0o600)
        start = time.monotonic()
        for _ in range(300):
            os.write(fd, b"x" * 4096)
        found.append((time.monotonic() - start) / 300)
        os.close(fd)
    return found[0], found[1]


def main() -> None:
    """Measures and prints a line each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--outlive", default=str(ROOT / "target/release/outlive"))
    parser.add_argument("--memory", default="/dev/shm")
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=given.memory) as memory,
        tempfile.TemporaryDirectory(dir="/var/tmp") as scratch,
    ):
        said = Path(scratch) / "said"
        protect = [given.outlive, "minickpt", "run", "--native", "--fork", "copy"]
        protect += ["--memory", memory, "--report", str(said), "--"]
        print(f"{'program':12} {'alone ms':>9} {'kept ms':>9} {'ratio':>6}  stops")
        for name, words in commands(Path(scratch)).items():
            if given.names and name not in given.names:
                continue
            pairs = [(timed(words), timed([*protect, *words])) for _ in range(given.runs + 1)][1:]
            alone, kept = (statistics.median(side) for side in zip(*pairs, strict=True))
            counts = json.loads(said.read_text(encoding="ascii"))["counts"]
            stops = " ".join(f"{key} {value}" for key, value in counts.items() if value)
            print(f"{name:12} {alone * 1e3:9.1f} {kept * 1e3:9.1f} {kept / alone:6.2f}  {stops}")
        plain, synced = durable(Path(scratch))
        print(f"a write of 4 KiB in /var/tmp: {plain * 1e6:.0f} us, O_DSYNC {synced * 1e6:.0f} us")


if __name__ == "__main__":
    main()
