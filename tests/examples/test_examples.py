"""Each example undisturbed and disturbed; the results must be the same, bit for bit.

The version of an injection is a step; with --every 20 the newest version that is
committed before it is at most 40 steps older.
"""

from pathlib import Path

import pytest
from conftest import (
    ROOT,
    Protected,
    free_port,
    mpich,
    open_mpi,
    open_mpi_wheel,
    program,
    run,
)

HEAT2D = ["64", "96", "240"]
HEAT_FORTRAN = ["5000", "300"]
NBODY = ["120", "300"]
DIGITS = ["400"]
TRAIN = str(ROOT / "examples" / "02-digits" / "train.py")


def one_failure(report: dict, kind: str, place: str) -> dict:
    """The one failure of a report; it must be the one injected."""
    (failure,) = report["failures"]
    assert (failure["kind"], failure["place"], failure["injected"]) == (kind, place, True)
    assert failure["version"] is not None, "the job began anew"
    assert failure["version"] <= failure["at_version"]
    assert failure["rejected"] == []
    return failure


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 8])
def test_heat2d_is_the_same_on_any_number_of_ranks(tmp_path: Path, ranks: int) -> None:
    plain = program("heat2d-plain")
    run(*mpich(1), plain, *HEAT2D, tmp_path / "one")
    run(*mpich(ranks), plain, *HEAT2D, tmp_path / "many")
    assert (tmp_path / "many").read_bytes() == (tmp_path / "one").read_bytes()
    assert (tmp_path / "one").stat().st_size == 64 * 96 * 8


@pytest.mark.parametrize("shape", [("1", "1"), ("2", "3"), ("1", "6")])
def test_heat2d_with_more_ranks_than_cells(tmp_path: Path, shape: tuple[str, str]) -> None:
    plain = program("heat2d-plain")
    run(*mpich(1), plain, *shape, "50", tmp_path / "one")
    run(*mpich(7), plain, *shape, "50", tmp_path / "many")
    assert (tmp_path / "many").read_bytes() == (tmp_path / "one").read_bytes()


def test_nbody_is_the_same_on_any_number_of_threads(tmp_path: Path) -> None:
    plain = program("nbody-plain")
    for threads in (1, 2, 5):
        track = ["--trajectory", tmp_path / f"track{threads}", "--every", 50]
        run(plain, *NBODY, tmp_path / f"out{threads}", "--threads", threads, *track)
    for threads in (2, 5):
        for name in ("out", "track"):
            assert (tmp_path / f"{name}{threads}").read_bytes() == (
                tmp_path / f"{name}1"
            ).read_bytes()
    assert (tmp_path / "track1").stat().st_size == 6 * 120 * 3 * 8


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_heat_fortran_is_the_same_on_any_number_of_ranks(tmp_path: Path, ranks: int) -> None:
    plain = program("heat-fortran-plain")
    run(*open_mpi(1), plain, *HEAT_FORTRAN, tmp_path / "one")
    run(*open_mpi(ranks), plain, *HEAT_FORTRAN, tmp_path / "many")
    assert (tmp_path / "many").read_bytes() == (tmp_path / "one").read_bytes()


def test_heat2d_survives_a_lost_node(tmp_path: Path, protected: Protected) -> None:
    run(*mpich(8), program("heat2d-plain"), *HEAT2D, tmp_path / "calm")
    report = protected.run(
        [
            "--emulate-nodes",
            "4",
            "--spares",
            "1",
            "--every",
            "20",
            "--inject",
            "node:2@version=130",
        ],
        [*mpich(8), program("heat2d"), *HEAT2D, str(tmp_path / "rough"), "--sleep-us", "5000"],
    )
    failure = one_failure(report, "node", "node:2")
    assert failure["level"] == "partner"
    assert (tmp_path / "rough").read_bytes() == (tmp_path / "calm").read_bytes()


def test_heat2d_survives_a_lost_rank(tmp_path: Path, protected: Protected) -> None:
    run(*mpich(4), program("heat2d-plain"), *HEAT2D, tmp_path / "calm")
    report = protected.run(
        ["--emulate-nodes", "2", "--every", "20", "--inject", "rank:3@version=110"],
        [*mpich(4), program("heat2d"), *HEAT2D, str(tmp_path / "rough"), "--sleep-us", "5000"],
    )
    assert one_failure(report, "rank", "rank:3")["level"] == "memory"
    assert (tmp_path / "rough").read_bytes() == (tmp_path / "calm").read_bytes()


def test_heat2d_survives_under_another_mpi(tmp_path: Path, protected: Protected) -> None:
    run(*mpich(1), program("heat2d-plain"), *HEAT2D, tmp_path / "calm")
    rough = [program("heat2d-openmpi"), *HEAT2D, str(tmp_path / "rough"), "--sleep-us", "5000"]
    report = protected.run(
        [
            "--emulate-nodes",
            "2",
            "--spares",
            "1",
            "--every",
            "20",
            "--inject",
            "node:1@version=130",
        ],
        [*open_mpi_wheel(4), *rough],
    )
    one_failure(report, "node", "node:1")
    assert (tmp_path / "rough").read_bytes() == (tmp_path / "calm").read_bytes()


def test_nbody_and_its_trajectory_survive_a_lost_node(tmp_path: Path, protected: Protected) -> None:
    run(program("nbody-plain"), *NBODY, tmp_path / "calm", "--trajectory", tmp_path / "calm-track")
    report = protected.run(
        [
            "--emulate-nodes",
            "2",
            "--spares",
            "1",
            "--every",
            "20",
            "--inject",
            "node:0@version=150",
        ],
        [
            *(program("nbody"), *NBODY, str(tmp_path / "rough"), "--sleep-us", "5000"),
            *("--trajectory", str(tmp_path / "rough-track")),
        ],
    )
    one_failure(report, "node", "node:0")
    assert (tmp_path / "rough").read_bytes() == (tmp_path / "calm").read_bytes()
    assert (tmp_path / "rough-track").read_bytes() == (tmp_path / "calm-track").read_bytes()


def test_heat_fortran_survives_a_lost_node(tmp_path: Path, protected: Protected) -> None:
    run(*open_mpi(4), program("heat-fortran-plain"), *HEAT_FORTRAN, tmp_path / "calm")
    report = protected.run(
        [
            "--emulate-nodes",
            "2",
            "--spares",
            "1",
            "--every",
            "20",
            "--inject",
            "node:1@version=150",
        ],
        [*open_mpi(4), program("heat-fortran"), *HEAT_FORTRAN, str(tmp_path / "rough"), "5000"],
    )
    one_failure(report, "node", "node:1")
    assert (tmp_path / "rough").read_bytes() == (tmp_path / "calm").read_bytes()


def test_digits_learns_and_repeats(tmp_path: Path, python: str) -> None:
    for turn in ("first", "second"):
        address = f"127.0.0.1:{free_port()}"
        said = run(*mpich(4), python, TRAIN, *DIGITS, tmp_path / turn, DIGITS_ADDRESS=address)
        assert float(said.split("accuracy ")[1].split(" ")[0]) > 90.0
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_digits_survives_a_lost_node(tmp_path: Path, python: str, protected: Protected) -> None:
    address = f"127.0.0.1:{free_port()}"
    run(*mpich(4), python, TRAIN, *DIGITS, tmp_path / "calm", DIGITS_ADDRESS=address)
    report = protected.run(
        [
            "--emulate-nodes",
            "2",
            "--spares",
            "1",
            "--every",
            "20",
            "--inject",
            "node:1@version=270",
        ],
        [*mpich(4), python, TRAIN, *DIGITS, str(tmp_path / "rough"), "--sleep-ms", "10"],
        DIGITS_ADDRESS=address,
    )
    one_failure(report, "node", "node:1")
    assert (tmp_path / "rough").read_bytes() == (tmp_path / "calm").read_bytes()
