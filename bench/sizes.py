"""How long a checkpoint takes against the bytes of a rank and the number of nodes.

    python3 bench/sizes.py [--nodes 2,4,8] [--kilobytes 80,300,1200,5000,20000] [--versions 5]
                           [--levels memory,disk,partner] [--outlive PATH] [--dir DIR] [--json FILE]

Table 1 of HPC-Colony (2006), for two of the examples with one rank on each emulated node: heat2d
(C, two dimensions) and heat-fortran (one dimension), of as many cells as make a rank's bytes. A
program offers a version in each step, and waits between steps, so that few are left out. What is
told is of the report: for how long a version blocked its ranks, and the time from its capture
until each level had it, means over the versions. All nodes share the cores and the disk of this
machine: what rises with their number here is that, and not the protocol, whose messages
docs/measured/scale.md has.

Needs the command, `make -C examples`, .deps/mpich and, for heat-fortran, the system's mpirun.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "build/examples"
STRIDE = 10  # steps between two versions
SLEEP_US = 20_000  # of a step
CELLS_MAX = 32_768  # of heat2d, on each side


def sides(cells: int) -> tuple[int, int]:
    """Of a plate of about so many cells: the sides are alike."""
    side = max(1, min(CELLS_MAX, round(cells**0.5)))
    return side, max(1, min(CELLS_MAX, round(cells / side)))


def heat2d(cells: int, steps: int, result: Path) -> list:
    """A command line that computes so many cells."""
    line = [EXAMPLES / "heat2d", *sides(cells), steps, result, "--sleep-us", SLEEP_US]
    return [ROOT / ".deps/mpich/bin/mpirun", "-n", "{ranks}", *line]


def heat_fortran(cells: int, steps: int, result: Path) -> list:
    """The same of a rod."""
    line = [EXAMPLES / "heat-fortran", cells, steps, result, SLEEP_US]
    mpirun = shutil.which("mpirun") or "mpirun"
    return [mpirun, "--oversubscribe", "--allow-run-as-root", "-n", "{ranks}", *line]


PROGRAMS = {"heat2d": heat2d, "heat-fortran": heat_fortran}


def run(options, program: str, nodes: int, kilobytes: int, place: Path) -> dict:
    """One run; a row of the table."""
    cells = max(nodes, nodes * kilobytes * 1000 // 8)
    # The first versions make slots and files, and are not worth more than one.
    steps = (options.versions + 1) * STRIDE + STRIDE // 2
    report = place / "report.json"
    command = PROGRAMS[program](cells, steps, place / "result")
    line = [options.outlive, "run", "--quiet", "--job", "sizes", "--store", place / "store"]
    line += ["--report", report, "--emulate-nodes", nodes, "--spares", 0]
    line += ["--levels", options.levels, "--every", STRIDE, "--"]
    words = [str(word).replace("{ranks}", str(nodes)) for word in (*line, *command)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    said = json.loads(report.read_text())["checkpoints"]
    levels = options.levels.split(",")
    if said["taken"] < 2 or not all(said["stable"].get(level) for level in levels):
        sys.exit(f"{program}, {nodes} nodes, {kilobytes} kB: too few versions: {said}")
    return {
        "program": program,
        "nodes": nodes,
        "kilobytes": round(said["bytes"] / said["taken"] / nodes / 1000, 1),
        "versions": said["taken"],
        "blocked_ms": said["blocked_ms_sum"] / said["taken"],
        "kept_ms": {level: said["kept_ms"][level] / said["stable"][level] for level in levels},
    }


def numbers(text: str) -> list[int]:
    """Of a list with commas."""
    found = [int(word) for word in text.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError("at least 1 each")
    return found


def parse() -> argparse.Namespace:
    """The command line, with what it needs there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=numbers, default=[2, 4, 8])
    parser.add_argument("--kilobytes", type=numbers, default=[80, 300, 1200, 5000, 20000])
    parser.add_argument("--versions", type=int, default=5, help="of each run")
    parser.add_argument("--levels", default="memory,disk,partner")
    parser.add_argument("--outlive", type=Path, default=ROOT / "target/release/outlive")
    parser.add_argument("--dir", default=tempfile.gettempdir())
    parser.add_argument("--json", type=Path, help="writes the rows here too")
    options = parser.parse_args()
    if options.versions < 1:
        parser.error("--versions is at least 1")
    for needed in (options.outlive, *(EXAMPLES / name for name in PROGRAMS)):
        if not needed.exists():
            parser.error(f"{needed} is not there: make build, make -C examples")
    return options


def main() -> None:
    """The table."""
    options = parse()
    levels = options.levels.split(",")
    print(f"load {os.getloadavg()[0]:.1f} at the beginning; means over the versions, in ms")
    heads = ["program", "nodes", "kB a rank", "versions", "blocked", *levels]
    print("  ".join(f"{head:>12}" for head in heads))
    rows = []
    for program in PROGRAMS:
        for nodes in options.nodes:
            for kilobytes in options.kilobytes:
                with tempfile.TemporaryDirectory(dir=options.dir) as place:
                    row = run(options, program, nodes, kilobytes, Path(place))
                rows.append(row)
                times = [row["blocked_ms"], *(row["kept_ms"][level] for level in levels)]
                words = [program, nodes, row["kilobytes"], row["versions"]]
                words += [f"{value:.1f}" for value in times]
                print("  ".join(f"{word!s:>12}" for word in words), flush=True)
    print(f"load {os.getloadavg()[0]:.1f} at the end")
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
