"""The scenarios of the conformance suite as MPI jobs: on the rail over MPI's own messages
and over TCP and UCX, processes that really die, against what the simulator says of each."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, SHIELD, library, with_ucx

LINES = (ROOT / "crates/collectives/tests/conformance.jsonl").read_text().splitlines()
SCENARIOS = [json.loads(line) for line in LINES]
# OUTLIVE_MPI=long, as in the soak: all of them on each rail.
SHARE = {} if os.environ.get("OUTLIVE_MPI") == "long" else {"mpi": 4, "tcp": 4, "ucx": 8}
"""On a rail one scenario of so many, others with each seed: each is a job. The suite in Rust
runs all of them, over TCP and UCX."""
FAMILIES = sorted({scenario["family"] for scenario in SCENARIOS})


def got(text: str) -> dict[str, list[Any]]:
    """What each rank printed: of each call the sum and the absent, or None."""
    ranks: dict[str, list[Any]] = {}
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("got ")]
    for rank, _, total, *absent in sorted(lines, key=lambda words: int(words[1])):
        value = None if total == "-" else [int(total), [int(other) for other in absent]]
        ranks.setdefault(rank, []).append(value)
    return ranks


def ends(scenario: dict[str, Any]) -> set[int]:
    """Who ends in the middle of the job; what it printed before is not compared."""
    return {rank for rank in (scenario["dies"], scenario.get("leaves")) if rank is not None}


def scenarios(family: str, *, deaths: bool | None) -> list[dict[str, Any]]:
    """Those of a family; with deaths, without, or both. Two ranks have a way of their own."""

    def wanted(scenario: dict[str, Any]) -> bool:
        dying = bool(scenario["dead"]) or bool(ends(scenario))
        return scenario["family"] == family and deaths in (None, dying)

    return [scenario for scenario in SCENARIOS if wanted(scenario)]


def words(scenario: dict[str, Any]) -> list[object]:
    dead = ",".join(map(str, scenario["dead"])) or "-"
    late, dies = (-1 if scenario[key] is None else scenario[key] for key in ("late", "dies"))
    at = scenario.get("at", 0)
    leaves = -1 if scenario.get("leaves") is None else scenario["leaves"]
    line = [scenario["kind"], scenario["root"], scenario["calls"], dead, late, dies]
    return [*line, at, leaves]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("name", "rail", "deaths"),
    [
        ("openmpi", "mpi", None),
        ("mpich", "mpi", False),
        ("mpich", "tcp", None),
        ("mpich", "ucx", None),
    ],
)
def test_mpi_jobs_come_to_the_simulated_outcome(
    tmp_path: Path, name: str, rail: str, deaths: bool | None, family: str, seed: int
) -> None:
    mpi = with_ucx(name) if rail == "ucx" else library(name)
    program = mpi.build("conform.c", tmp_path, linked=True)
    options = {"openmpi": ("--with-ft", "ulfm"), "mpich": ("-disable-auto-cleanup",)}[name]
    shield = [SHIELD] if name == "mpich" and rail != "mpi" else []
    ran = scenarios(family, deaths=deaths)
    assert len(ran) >= 16
    share = SHARE.get(rail, 1)
    for scenario in ran[seed % share :: share]:
        trees = str(scenario.get("trees", 0))
        settings = {"": family, "RAIL": rail, "FAILURES": "1", "TREES": trees}
        line = [*shield, program, *words(scenario)]
        ended = mpi.start(scenario["processes"], *line, options=options, preload=False, **settings)
        gone = {str(rank) for rank in ends(scenario)}
        came = {rank: calls for rank, calls in got(ended.stdout).items() if rank not in gone}
        assert came == scenario["outcome"], f"{scenario}\n{ended.stdout}\n{ended.stderr}"
