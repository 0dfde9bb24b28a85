"""liboutlive_mpi.so under each MPI: right results, and results after a real SIGKILL."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import SHIELD, Mpi, Shm, library

CORRECTED = ["corrected-tree", "corrected-gossip"]
CHECKS = re.compile(r"^checks (\d+)$", re.M)
SURVIVOR = re.compile(r"^rank (\d+): (\d+) rounds", re.M)


@pytest.mark.parametrize("ranks", [1, 3])
def test_results_are_those_of_the_native_library(mpi: Mpi, tmp_path: Path, ranks: int) -> None:
    program = mpi.build("correct.c", tmp_path)
    counts = set()
    for settings in [{"": "native"}, {"RAIL": "mpi"}, {"RAIL": "tcp"}]:
        ended = mpi.start(ranks, program, VERBOSE="1", **settings)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        served = "collectives for" in ended.stderr
        assert served == ("" not in settings), ended.stderr
        counts.update(CHECKS.findall(ended.stdout))
    assert len(counts) == 1, "the same checks ran over each"
    assert int(counts.pop()) > 1000


@pytest.mark.parametrize("how", CORRECTED)
def test_corrected_results_are_right(mpi: Mpi, tmp_path: Path, how: str) -> None:
    program = mpi.build("correct.c", tmp_path)
    counts = set()
    for settings in [
        {"": how, "RAIL": "tcp", "FAILURES": "2"},
        # Also what would go over the tree.
        {"": how, "RAIL": "mpi", "FAILURES": "0", "CORRECTED_BYTES": "1000000000"},
    ]:
        ended = mpi.start(8, program, VERBOSE="1", bound=240, **settings)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        failures = settings["FAILURES"]
        kept = f" {int(failures) + 2} trees kept," if how == "corrected-gossip" else ""
        served = f"outlive: {how}, f = {failures},{kept} collectives for 8"
        assert served in ended.stderr, "what was asked for serves"
        counts.update(CHECKS.findall(ended.stdout))
    assert len(counts) == 1, "the same checks ran over each"
    assert int(counts.pop()) > 1000


@pytest.mark.parametrize("ranks", [2, 5])
def test_gathered_results_are_those_of_the_native_library(
    mpi: Mpi, tmp_path: Path, seed: int, ranks: int
) -> None:
    large = () if mpi.name == "openmpi" else ("-DLARGE_COUNTS",)
    program = mpi.build("gathers.c", tmp_path, options=large)
    counts = set()
    for settings in [
        {"RAIL": "mpi"},
        {"RAIL": "tcp"},
        *({"": how, "RAIL": "tcp"} for how in CORRECTED),
    ]:
        ended = mpi.start(ranks, program, seed, 150, VERBOSE="1", **settings)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert f"collectives for {ranks}" in ended.stderr, ended.stderr
        counts.update(CHECKS.findall(ended.stdout))
    assert len(counts) == 1, "the same checks ran over each"
    assert int(counts.pop()) > 400


# Before the first of all, before each of the four, and at some time: victim, call, rounds.
GATHER_DEATHS = [(1, 0, 3), (2, 4, 3), (0, 5, 3), (3, 6, 3), (0, 7, 3), (0, -1, 0), (2, -1, 0)]


@pytest.mark.parametrize("death", GATHER_DEATHS, ids=str)
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("openmpi", "ftco"),
        ("mpich", "ftco"),
        ("mpich-abi", "ftco"),
        *(("mpich", how) for how in CORRECTED),
    ],
)
def test_a_killed_rank_among_those_who_gather(
    tmp_path: Path, seed: int, name: str, how: str, death: tuple[int, ...]
) -> None:
    mpi = library(name)
    program = mpi.build("gathers_killed.c", tmp_path, linked=True)
    own = name != "openmpi"
    options = ("-disable-auto-cleanup",) if own else ("--with-ft", "ulfm")
    words = [*((SHIELD,) if own else ()), program, *death, seed % 20_000]
    settings = {"": how} | ({"RAIL": "tcp"} if own else {})
    ended = mpi.start(4, *words, options=options, preload=False, **settings)
    want = {rank: death[2] for rank in range(4) if rank != death[0]}
    assert survivors(ended.stdout) == want, ended.stdout + ended.stderr


def survivors(text: str) -> dict[int, int]:
    return {int(rank): int(rounds) for rank, rounds in SURVIVOR.findall(text)}


# victim, before which collective, rounds, communicators, slow rank, its nap in ms
DEATHS = [(2, 4, 4, 2, -1), (0, 6, 4, 1, -1), (3, 5, 4, 3, 1, 30), (1, 3, 3, 1, -1)]


@pytest.mark.parametrize("death", DEATHS, ids=str)
def test_a_killed_rank_under_ulfm(tmp_path: Path, death: tuple[int, ...]) -> None:
    mpi = library("openmpi")
    program = mpi.build("killed.c", tmp_path, linked=True)
    ended = mpi.start(4, program, *death, options=("--with-ft", "ulfm"), preload=False)
    want = {rank: death[2] for rank in range(4) if rank != death[0]}
    assert survivors(ended.stdout) == want, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("name", "death"), [*(("mpich", death) for death in DEATHS), ("mpich-abi", DEATHS[0])], ids=str
)
def test_a_killed_rank_on_own_rails(tmp_path: Path, name: str, death: tuple[int, ...]) -> None:
    mpi = library(name)
    program = mpi.build("killed.c", tmp_path, linked=True)
    options = ("-disable-auto-cleanup",)
    ended = mpi.start(4, SHIELD, program, *death, options=options, preload=False, RAIL="tcp")
    want = {rank: death[2] for rank in range(4) if rank != death[0]}
    assert survivors(ended.stdout) == want, ended.stdout + ended.stderr


# Also rank 0, which puts the results together, in the first call of all and in a Bcast.
KILLED = [*DEATHS, (0, 0, 3, 1, -1), (0, 3, 3, 2, -1)]


@pytest.mark.parametrize("how", CORRECTED)
@pytest.mark.parametrize("death", KILLED, ids=str)
def test_a_killed_rank_is_corrected_under_ulfm(
    tmp_path: Path, how: str, death: tuple[int, ...]
) -> None:
    mpi = library("openmpi")
    program = mpi.build("killed.c", tmp_path, linked=True)
    options = ("--with-ft", "ulfm")
    ended = mpi.start(8, program, *death, options=options, preload=False, **{"": how})
    want = {rank: death[2] for rank in range(8) if rank != death[0]}
    assert survivors(ended.stdout) == want, ended.stdout + ended.stderr


@pytest.mark.parametrize("how", CORRECTED)
@pytest.mark.parametrize(
    ("name", "death"), [*(("mpich", death) for death in KILLED), ("mpich-abi", DEATHS[1])], ids=str
)
def test_a_killed_rank_is_corrected_on_own_rails(
    tmp_path: Path, name: str, how: str, death: tuple[int, ...]
) -> None:
    mpi = library(name)
    program = mpi.build("killed.c", tmp_path, linked=True)
    for failures in ["1", "0"]:  # with 0 it is more than is tolerated: asking mends it
        settings = {"": how, "RAIL": "tcp", "FAILURES": failures}
        options = ("-disable-auto-cleanup",)
        ended = mpi.start(8, SHIELD, program, *death, options=options, preload=False, **settings)
        want = {rank: death[2] for rank in range(8) if rank != death[0]}
        assert survivors(ended.stdout) == want, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("name", "options", "settings"),
    [
        ("mpich", ("-disable-auto-cleanup",), {"RAIL": "tcp"}),
        ("openmpi", ("--with-ft", "ulfm"), {}),
    ],
    ids=["mpich", "openmpi"],
)
def test_survivors_remove_the_shared_memory(
    tmp_path: Path, shm: Shm, name: str, options: tuple[str, ...], settings: dict[str, str]
) -> None:
    """Which the native finalisation would do, were it not left out after a death."""
    mpi = library(name)
    program = mpi.build("killed.c", tmp_path, linked=True)
    shield = (SHIELD,) if name == "mpich" else ()
    words = (*shield, program, *DEATHS[0])
    ended = mpi.start(4, *words, options=options, preload=False, shm=shm, **settings)
    assert len(survivors(ended.stdout)) == 3, ended.stdout + ended.stderr
    assert shm.names() == []


def test_a_pair_survives_its_other(tmp_path: Path) -> None:
    mpi = library("openmpi")
    program = mpi.build("killed.c", tmp_path, linked=True)
    ended = mpi.start(2, program, 1, 5, 4, 2, -1, options=("--with-ft", "ulfm"), preload=False)
    assert survivors(ended.stdout) == {0: 4}, ended.stdout + ended.stderr


def crashes(stderr: str) -> list[str]:
    """Stacks of ranks that crashed, but for the one crash that is MPICH's own: while it tells an
    error, as that of a rank from whose memory it could not read any more
    (docs/reference/mpi-collectives.md, "A crash at address 0")."""
    stacks = stderr.split("a rank crashed:\n")[1:]
    inner = (stack.partition("liboutlive")[0] for stack in stacks)
    return [stack for stack in inner if "(MPIR_Err_return_comm+" not in stack]


@pytest.mark.parametrize("rail", ["mpi", "tcp"])
def test_an_abort_ends_the_job_and_crashes_nobody(
    mpi: Mpi, tmp_path: Path, seed: int, rail: str
) -> None:
    program = mpi.build("abort.c", tmp_path)
    for turn in range(6):
        # Beside other work the others are met at other places.
        busy = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(turn % 3)]
        try:
            ended = mpi.start(4, program, (seed + turn) % 2**32, VERBOSE="1", RAIL=rail)
        finally:
            for one in busy:
                one.kill()
                one.wait()
        assert "collectives for 4" in ended.stderr, ended.stderr
        assert ended.returncode != 0
        assert not crashes(ended.stderr), ended.stderr


def test_late_is_not_dead(mpi: Mpi, tmp_path: Path) -> None:
    program = mpi.build("killed.c", tmp_path, linked=True)
    for how, rail in [("ftco", "mpi"), ("ftco", "tcp"), *((how, "tcp") for how in CORRECTED)]:
        settings = {"": how, "RAIL": rail}
        ended = mpi.start(3, program, 0, 1000, 3, 1, 2, 300, preload=False, **settings)
        assert survivors(ended.stdout) == {0: 3, 1: 3, 2: 3}, ended.stdout + ended.stderr


def test_wrong_settings_leave_the_native_library_and_are_named(tmp_path: Path) -> None:
    mpi = library("mpich")
    program = mpi.build("correct.c", tmp_path)
    for settings in [
        {"": "fast"},
        {"RAIL": "pigeon"},
        {"BOUND_MS": "-1"},
        {"": "corrected-tree", "MTBF_S": "3600"},
        {"": "corrected-gossip", "FAILURES": "2", "TREES": "2"},
        {"FAILURES": "1", "MTBF_S": "3600", "DURATION_S": "60"},
    ]:
        ended = mpi.start(1, program, **settings)
        assert ended.returncode == 0, ended.stderr
        assert "OL-600" in ended.stderr and "native collectives stay in use" in ended.stderr


def test_fortran(debian: Mpi, tmp_path: Path) -> None:
    for source in ["correct_f90.f90", "correct_f08.f90"]:
        program = debian.build(source, tmp_path)
        for ranks in [2, 3]:
            for rail in ["mpi", "tcp"]:
                ended = debian.start(ranks, program, VERBOSE="1", RAIL=rail)
                assert ended.returncode == 0, ended.stdout + ended.stderr
                assert "collectives for" in ended.stderr
                assert "fortran is right" in ended.stdout


if os.environ.get("OUTLIVE_MPI") == "long":  # it takes 10 GB

    @pytest.mark.parametrize("name", ["mpich", "openmpi"])
    def test_counts_above_an_int(tmp_path: Path, name: str) -> None:
        mpi = library(name)
        program = mpi.build("large.c", tmp_path, linked=True)
        ended = mpi.start(2, program, preload=False, VERBOSE="1", bound=400)
        assert "collectives for 2 ranks" in ended.stderr, ended.stderr
        assert ended.stdout == "all of 2151677955 bytes are right\n", ended.stdout + ended.stderr
