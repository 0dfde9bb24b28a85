"""Small and frequent checkpoints of a busy program: Outlive beside FTI and VeloC.

    python3 bench/small/run.py [--rounds 5] [--dir DIR]

Eight ranks of 1 MiB on four emulated nodes keep all cores busy; a checkpoint is due every
50 ms of work. All ways run in turns with the program as it is. FTI_DIR and VELOC_DIR are
where those are installed; one that is not there is left out by name. Outlive saves to memory,
disk and the partner's disk and reads back; FTI at its level 2 (own disk and partner's, with a
process of its own on each node); VeloC in the background to a local and a lasting directory,
without redundancy, for it tells nodes apart by their hosts' names. Needs
target/release/outlive and .deps/mpich.
"""

import argparse
import os
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MPI = ROOT / ".deps/mpich/bin"
RANKS, NODES, STEPS, EVERY, BYTES, UNIT_US = 8, 4, 750, 50, 1 << 20, 1000
ARGUMENTS = [str(word) for word in (STEPS, EVERY, BYTES, UNIT_US)]
FTI = """[Basic]
head = 1
node_size = 3
group_size = 4
inline_l2 = 0
ckpt_dir = {0}/local
glbl_dir = {0}/global
meta_dir = {0}/meta
ckpt_io = 1
verbosity = 3
[Advanced]
block_size = 1024
transfer_size = 16
general_tag = 2612
ckpt_tag = 711
stage_tag = 406
final_tag = 3107
local_test = 1
"""
VELOC = """scratch = {0}/scratch
persistent = {0}/persistent
mode = async
max_versions = 2
scratch_versions = 2
"""


def build(name, directory):
    """The program with one of them; None if that is not there."""
    line = [MPI / "mpicc", "-O2", "-g", ROOT / "bench/small/small.c", "-o", directory / name]
    if name == "outlive":
        lib = ROOT / "target/release"
        line += ["-DWITH_OUTLIVE", f"-I{ROOT}/crates/client/include"]
        line += [f"-L{lib}", "-loutlive", f"-Wl,-rpath,{lib}"]
    elif name in ("fti", "veloc"):
        home = os.environ.get(f"{name.upper()}_DIR")
        if not home:
            print(f"{name}: left out, no {name.upper()}_DIR")
            return None
        line += [f"-DWITH_{name.upper()}", f"-I{home}/include"]
        for lib in ("lib", "lib64"):
            line += [f"-L{home}/{lib}", f"-Wl,-rpath,{home}/{lib}"]
        line += ["-lfti"] if name == "fti" else ["-lveloc-client"]
    subprocess.run(line, check=True)
    return directory / name


def command(name, program, directory):
    """What to run, and what must run beside it."""
    for sub in ("local", "global", "meta", "scratch", "persistent"):
        (directory / sub).mkdir(parents=True)
    mpirun = [MPI / "mpirun", "-n", str(RANKS), program, *ARGUMENTS]
    if name == "outlive":
        run = [ROOT / "target/release/outlive", "run", "--quiet", "--job", "small"]
        run += ["--store", directory / "store", "--emulate-nodes", str(NODES)]
        run += ["--levels", "memory,disk,partner", "--every", str(EVERY), "--memory", "64MiB"]
        return [*run, "--", *mpirun], None
    config = directory / "config"
    if name == "fti":
        config.write_text(FTI.format(directory))
        mpirun[2] = str(RANKS + NODES)
        return [*mpirun, config], None
    if name == "veloc":
        config.write_text(VELOC.format(directory))
        return [*mpirun, config], [Path(os.environ["VELOC_DIR"]) / "bin/veloc-backend", config]
    return mpirun, None


def measure(name, program, directory):
    """Seconds of the loop, longest wait in ms, processor seconds of all processes."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        line, beside = command(name, program, Path(scratch))
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        env = dict(os.environ, PATH=f"{MPI}:{os.environ['PATH']}")
        if home := os.environ.get("VELOC_DIR"):
            env["LD_LIBRARY_PATH"] = f"{home}/lib:{home}/lib64"
            env["PATH"] += f":{home}/bin"
        backend = beside and subprocess.Popen(beside, env=env, stdout=subprocess.DEVNULL)
        done = subprocess.run(
            line, check=True, env=env, cwd=scratch, stdout=subprocess.PIPE, text=True
        )
        if backend:
            time.sleep(1)  # it writes what is left
            backend.terminate()
            backend.wait()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        figures = [line.split() for line in done.stdout.splitlines()]
        loop, wait = next(map(float, words) for words in figures if len(words) == 2)
        cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
        return loop, wait, cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", default=tempfile.gettempdir())
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as home:
        directory = Path(home)
        names = ["nothing", "outlive", "fti", "veloc"]
        programs = {name: build(name, directory) for name in names}
        programs = {name: program for name, program in programs.items() if program}
        results = {name: [] for name in programs}
        for number in range(options.rounds):
            # To and fro: a drift of the machine hits all.
            for name in list(programs)[:: 1 - 2 * (number % 2)]:
                results[name].append(measure(name, programs[name], directory))
    count = STEPS // EVERY
    print(f"{options.rounds} rounds of {count} checkpoints; load {os.getloadavg()[0]:.1f}")
    print("way        loop s   added ms   longest wait ms   processor ms")
    for name, runs in results.items():
        pairs = list(zip(runs, results["nothing"], strict=True))
        added = statistics.median((run[0] - bare[0]) * 1e3 / count for run, bare in pairs)
        cpu = statistics.median((run[2] - bare[2]) * 1e3 / count for run, bare in pairs)
        loop = statistics.median(run[0] for run in runs)
        wait = statistics.median(run[1] for run in runs)
        print(f"{name:8} {loop:8.3f} {added:10.1f} {wait:17.1f} {cpu:14.1f}")
    print("added and processor: more than with nothing, for each checkpoint, all nodes together")


if __name__ == "__main__":
    main()
