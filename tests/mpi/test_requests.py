"""Waits and tests on requests of every kind: under the layer they come to what the native
library alone comes to. The layer waits in its own way where it survives deaths."""

from pathlib import Path

from conftest import Mpi, library

STEPS = 400


def lines(mpi: Mpi, program: Path, seed: int, where: Path, **how: object) -> list[str]:
    ended = mpi.start(2, program, seed, STEPS, where, bound=240, **how)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    both = [Path(f"{where}.{rank}").read_text().splitlines() for rank in (0, 1)]
    assert [len(one) for one in both] == [STEPS, STEPS]
    return both[0] + both[1]


def test_requests_end_as_under_the_native_library(mpi: Mpi, tmp_path: Path, seed: int) -> None:
    program = mpi.build("requests.c", tmp_path)
    native = lines(mpi, program, seed, tmp_path / "native", preload=False)
    ways: list[dict[str, object]] = [{"RAIL": "tcp"}]
    if mpi == library("openmpi"):
        ways.append({"options": ("--with-ft", "ulfm")})
    for way in ways:
        layer = lines(mpi, program, seed, tmp_path / "layer", VERBOSE="1", **way)
        for alone, under in zip(native, layer, strict=True):
            assert under == alone, f"{way}"
