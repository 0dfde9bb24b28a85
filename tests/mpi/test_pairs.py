"""Communicators of two: over shared memory, over messages, and after a real SIGKILL."""

from pathlib import Path

import pytest
from conftest import Mpi, library

SHARED = "two of a communicator, over shared memory"
MESSAGES = "two of a communicator, over MPI messages"


def right(
    mpi: Mpi, program: Path, *words: object, options: tuple[str, ...] = (), **settings: str
) -> str:
    ended = mpi.start(2, program, *words, options=options, bound=240, VERBOSE="1", **settings)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "right" in ended.stdout, ended.stdout + ended.stderr
    return ended.stderr


def test_pairs_are_right_with_and_without_shared_memory(mpi: Mpi, tmp_path: Path) -> None:
    program = mpi.build("pair.c", tmp_path)
    assert SHARED in right(mpi, program, "data")
    assert SHARED not in right(mpi, program, "data", SHARED_MEMORY="off")
    correct = mpi.build("correct.c", tmp_path)
    for settings in [{}, {"SHARED_MEMORY": "off"}]:
        ended = mpi.start(2, correct, VERBOSE="1", bound=240, **settings)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert (SHARED in ended.stderr) == (not settings), ended.stderr


def test_memory_is_bounded_and_given_back(mpi: Mpi, tmp_path: Path) -> None:
    program = mpi.build("pair.c", tmp_path)
    said = right(mpi, program, "comms", 100)
    assert SHARED in said and "64 others share memory" in said


@pytest.mark.parametrize("rank", [0, 1])
def test_what_cannot_be_shared_goes_by_messages(mpi: Mpi, tmp_path: Path, rank: int) -> None:
    program = mpi.build("pair.c", tmp_path)
    said = right(mpi, program, "full", rank)
    assert SHARED not in said
    assert said.count(MESSAGES) == 2, said


def test_threads_and_requests(mpi: Mpi, tmp_path: Path) -> None:
    program = mpi.build("pair.c", tmp_path)
    for what in ["threads", "requests"]:
        right(mpi, program, what)


def test_calls_that_differ_are_errors(mpi: Mpi, tmp_path: Path) -> None:
    program = mpi.build("pair.c", tmp_path)
    assert SHARED in right(mpi, program, "differs")
    assert SHARED in right(mpi, program, "bound", BOUND_MS="300")


@pytest.mark.parametrize("shared", ["on", "off"])
@pytest.mark.parametrize("when", [1500, 7001, 50021, -11, -34])
def test_a_rank_killed_in_the_middle(tmp_path: Path, shared: str, when: int) -> None:
    mpi = library("openmpi")
    program = mpi.build("pair_killed.c", tmp_path, linked=True)
    options = ("--with-ft", "ulfm")
    settings = {"SHARED_MEMORY": shared, "VERBOSE": "1"}
    ended = mpi.start(2, program, when, options=options, preload=False, **settings)
    assert "alone at the end of" in ended.stdout, ended.stdout + ended.stderr
    assert (SHARED in ended.stderr) == (shared == "on"), ended.stderr
