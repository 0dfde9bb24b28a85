"""Failures of five LANL systems: fits, and each method's plan on the years that it did not see.

    python3 bench/failures/replay.py FAILURES.csv[.xz] [--outlive PATH] [--json]

For systems 2, 16, 18, 19 and 20 of LA-UR-05-7318: a record is made as by `lanl.py`; `outlive
plan --train 0.5` takes rates from the first half of its time, plans, and replays the second
half. The job runs on all nodes; its costs are assumed, for the record has none: 8 GB a node,
1 GB/s to the node's own storage, 0.4 GB/s to a partner, 0.05 GB/s for each node to files that
all share, two minutes for a restart.
"""

import argparse
import json
import math
import pathlib
import subprocess
import tempfile

import lanl

SYSTEMS = {"2": 49, "16": 16, "18": 1024, "19": 1024, "20": 512}

MACHINE = """\
name = "system {system}"
[nodes]
count = {nodes}
mtbf = "1 year"
[[servers]]
name = "files"
count = 1
[[levels]]
kind = "local"
write = "1 GB/s"
read = "1 GB/s"
[[levels]]
kind = "partner"
distance = {distance}
write = "0.4 GB/s"
read = "0.4 GB/s"
[[levels]]
kind = "shared"
servers = "files"
write = "{shared} GB/s"
read = "{shared} GB/s"
"""

JOB = """\
name = "all of system {system}"
nodes = {nodes}
work = "60 days"
checkpoint = "8 GB"
restart = "120 s"
"""


def plan(outlive: str, rows: list, system: str, place: pathlib.Path) -> dict:
    """What `outlive plan` says of a system."""
    nodes = SYSTEMS[system]
    values = {
        "system": system,
        "nodes": nodes,
        "distance": max(1, nodes // 2),
        "shared": f"{0.05 * nodes:.2f}",
    }
    trace = lanl.trace_of(lanl.records(rows, system))
    (place / "trace.csv").write_text(trace, encoding="utf-8")
    (place / "machine.toml").write_text(MACHINE.format(**values), encoding="utf-8")
    (place / "job.toml").write_text(JOB.format(**values), encoding="utf-8")
    words = [outlive, "plan", "--compare", "all", "--train", "0.5", "--json"]
    for option in ("machine", "job"):
        words += [f"--{option}", str(place / f"{option}.toml")]
    words += ["--trace", str(place / "trace.csv")]
    return json.loads(subprocess.check_output(words, text=True))


def fits(answers: dict) -> None:
    """Prints the fits."""
    head = (
        "system",
        "failures",
        "every",
        "between failures: Weibull shape",
        "p: exponential, Weibull, lognormal",
        "variance over mean a day",
        "repair: median, sigma",
        "p",
        "neighbours within 10 min: found, by chance (p)",
    )
    print(f"| {' | '.join(head)} |")
    print("|---" * len(head) + "|")
    for system, answer in answers.items():
        trace = answer["trace"]
        between = {fit["distribution"]: fit for fit in trace["between"]}
        repair = {fit["distribution"]: fit for fit in trace["repair"]}["lognormal"]
        mu, sigma = repair["parameters"]
        kinds = ("exponential", "Weibull", "lognormal")
        cells = (
            system,
            str(trace["failures"]),
            f"{trace['machine_mtbf_seconds'] / 3600:.1f} h",
            f"{between['Weibull']['parameters'][0]:.2f}",
            ", ".join(f"{between[kind]['p']:.3f}" for kind in kinds),
            f"{trace['dispersion_per_day']:.1f}",
            f"{math.exp(mu) / 60:.0f} min, {sigma:.2f}",
            f"{repair['p']:.3f}",
            f"{trace['neighbour_pairs']}, {trace['neighbour_pairs_expected']:.1f}"
            f" ({trace['neighbour_p']:.3f})",
        )
        print(f"| {' | '.join(cells)} |")


def replays(answers: dict) -> None:
    """Prints what each plan lost."""
    names = [one["name"] for one in next(iter(answers.values()))["trace"]["replay"]]
    print("\nNode-hours lost in the second half, +- half the 95 % interval;")
    print("below, more than this plan:\n")
    print("| system | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for system, answer in answers.items():
        found = {one["name"]: one for one in answer["trace"]["replay"]}
        cells = []
        for name in names:
            one = found.get(name)
            if one is None:
                cells.append("no plan")
                continue
            more = (
                ""
                if name == "this plan"
                else (f"<br>{100 * one['more']:+.1f} +- {100 * one['more_half_width']:.1f} %")
            )
            cells.append(
                f"{one['node_hours_lost']:,.0f} +- {one['half_width']:,.0f}"
                f" ({100 * one['share']:.2f} %){more}"
            )
        print(f"| {system} | " + " | ".join(cells) + " |")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("file")
    options.add_argument("--outlive", default="outlive")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    rows = lanl.rows_of(chosen.file)
    answers = {}
    with tempfile.TemporaryDirectory() as place:
        for system in SYSTEMS:
            answers[system] = plan(chosen.outlive, rows, system, pathlib.Path(place))
    if chosen.json:
        print(json.dumps(answers, indent=2))
        return
    fits(answers)
    replays(answers)


if __name__ == "__main__":
    main()
