#!/usr/bin/env python3
"""Diffusion against Zoltan, Scotch and METIS, in one run.

    bench/balance/run.py                  a quick run (a few minutes)
    bench/balance/run.py --soak           Shock and Cloud at full size, 96 to 6144
    bench/balance/run.py --install        first installs the libraries (Debian, root)

Every peer starts from the same RCB partition and goes on from its own result of
the step before. Time: ours is the model that the documentation describes (rounds
x (L + 2o) + bytes x G + operations x measured time of one); a peer's is its
sequential processor time divided by the number of processes, as if it scaled
perfectly.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGES = [
    "libtrilinos-zoltan-dev",
    "libptscotch-dev",
    "libscotch-dev",
    "libmetis-dev",
    "libopenmpi-dev",
]
PEERS = [
    "zoltan-rcb",
    "zoltan-hsfc",
    "zoltan-phg",
    "zoltan-phg-repartition",
    "scotch",
    "scotch-remap",
    "metis",
]
REPARTITIONING = ("zoltan-phg-repartition", "scotch-remap")
# What a migrated task weighs against a cut edge, in the libraries that can be told.
PRICES = (0.1, 1, 10, 100)


def sh(*command, **options):
    return subprocess.run([str(c) for c in command], check=True, text=True, **options)


def build(where):
    sh(
        "cargo",
        "build",
        "--release",
        "-p",
        "outlive-balance",
        "--example",
        "bench-balance",
        cwd=ROOT,
    )
    meta = sh(
        "cargo", "metadata", "--no-deps", "--format-version=1", cwd=ROOT, stdout=subprocess.PIPE
    )
    ours = (
        pathlib.Path(json.loads(meta.stdout)["target_directory"]) / "release/examples/bench-balance"
    )
    peers = where / "peers"
    headers = ["-I/usr/include/trilinos", "-I/usr/include/scotch"]
    libraries = ["-ltrilinos_zoltan", "-lscotch", "-lscotcherr", "-lmetis", "-lm"]
    sh(
        "mpicc.openmpi",
        "-O2",
        "-Wall",
        "-Wextra",
        *headers,
        HERE / "peers.c",
        "-o",
        peers,
        *libraries,
    )
    return ours, peers


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--soak", action="store_true")
    parser.add_argument("--scenario", nargs="*", default=["shock", "cloud"])
    parser.add_argument("--processes", nargs="*", type=int)
    parser.add_argument("--shrink", type=int)
    parser.add_argument("--first", type=int, default=80)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--tolerance", type=float, default=0.02)
    parser.add_argument("--peers", nargs="*", default=PEERS)
    parser.add_argument("--timeout", type=float, default=3600)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.install:
        sh("apt-get", "install", "-y", "--no-install-recommends", *PACKAGES)
    shrink = options.shrink or (1 if options.soak else 2)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        where = pathlib.Path(folder)
        ours, peers = build(where)
        for scenario in options.scenario:
            quick = [96, 768] if scenario == "shock" else [96]
            soak = [384, 1536, 6144] if scenario == "shock" else [96, 384, 768]
            first = min(options.first, 60) if scenario == "cloud" else options.first // shrink
            steps = options.steps or (10 if options.soak else 4)
            for count in options.processes or (soak if options.soak else quick):
                common = [
                    "--folder",
                    where / scenario,
                    "--scenario",
                    scenario,
                    "--processes",
                    count,
                    "--first",
                    first,
                    "--steps",
                    steps,
                    "--shrink",
                    shrink,
                ]
                rows = run(ours, peers, common, options, where)
                report(scenario, count, rows, options)
                results += [
                    dict(scenario=scenario, processes=count, who=who, **row)
                    for who, row in rows.items()
                ]
    if options.json:
        print(json.dumps(results))


def run(ours, peers, common, options, where):
    def text(*command):
        return sh(*command, stdout=subprocess.PIPE).stdout

    folder, count, first, steps = common[1], common[5], common[7], common[9]
    text(ours, *common, "export")
    rows = {}
    for price in ("0.1", "0.5"):
        done = text(
            ours, *common, "ours", "--tolerance", options.tolerance, "--migration-price", price
        )
        rows[f"ours, price {price}"] = json.loads(done)
    variants = [
        (peer, price)
        for peer in options.peers
        for price in (PRICES if peer in REPARTITIONING else [1])
    ]
    for peer, price in variants:
        name = f"{peer} {price}" if peer in REPARTITIONING else peer
        out = where / peer
        out.mkdir(exist_ok=True)
        try:
            command = [peers, folder, peer, count, first, steps, options.tolerance, out, price]
            seconds = float(
                sh(*command, stdout=subprocess.PIPE, timeout=options.timeout).stdout.split()[-1]
            )
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        row = json.loads(text(ours, *common, "judge", "--parts", out))
        row["seconds_max_per_process"] = seconds / count
        row["seconds_sequential"] = seconds
        rows[name] = row
    return rows


def report(scenario, count, rows, options):
    fields = ["imbalance", "migration", "edge_cut_max", "edge_cut_total"]
    print(f"\n{scenario}, {count} processes, tolerance {options.tolerance}")
    print(f"{'':26}" + "".join(f"{field:>16}" for field in fields) + f"{'ms a process':>16}")
    for who, row in rows.items():
        line = "".join(f"{row[field]:16.4f}" for field in fields)
        print(f"{who:26}{line}{1e3 * row['seconds_max_per_process']:16.4f}")
    mine = rows["ours, price 0.1"]
    again = {who: row for who, row in rows.items() if who.startswith(REPARTITIONING)}
    others = {who: row for who, row in rows.items() if not who.startswith("ours")}
    if again:
        who = min(again, key=lambda peer: again[peer]["migration"])
        goal(
            "migration against the best repartitioning peer",
            mine["migration"],
            again[who]["migration"],
            who,
        )
    if others:
        who = min(others, key=lambda peer: others[peer]["edge_cut_max"])
        goal(
            "largest edge-cut against the best peer",
            mine["edge_cut_max"],
            others[who]["edge_cut_max"],
            who,
        )
    if "scotch" in rows:
        theirs = rows["scotch"]["seconds_max_per_process"]
        goal(
            "time (ms) against Scotch / processes",
            1e3 * mine["seconds_max_per_process"],
            1e3 * theirs,
            "scotch",
        )
    sys.stdout.flush()


def goal(what, ours, peer, who):
    ratio = f"{peer / ours:.2f}" if ours else "inf"
    print(f"  {what}: ours {ours:.4f}, {who} {peer:.4f}, peer/ours {ratio}")


if __name__ == "__main__":
    main()
