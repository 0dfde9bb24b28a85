"""liboutlive_mpi.so with its own rail over UCX: right results, results after a real SIGKILL,
and what a job hears that cannot have it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import SHIELD, Mpi, library, with_ucx
from test_collectives import CHECKS, CORRECTED, DEATHS, KILLED, survivors

# Shared memory between processes is used where UCX is told to report its peers' failures.
TRANSPORTS = {
    "tcp": {"UCX_TLS": "tcp,self"},
    "sm": {"UCX_TLS": "sm,self", "UCX_MM_ERROR_HANDLING": "y"},
    "all": {"UCX_TLS": "all"},
}


@pytest.fixture(params=list(TRANSPORTS))
def transports(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TRANSPORTS[request.param].items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("name", ["mpich", "mpich-abi", "openmpi"])
def test_results_are_right(tmp_path: Path, name: str) -> None:
    mpi = with_ucx(name)
    program = mpi.build("correct.c", tmp_path)
    counts = set()
    for ranks, how in [(1, "ftco"), (3, "ftco"), (3, CORRECTED[0])]:
        ended = mpi.start(ranks, program, VERBOSE="1", RAIL="ucx", **{"": how})
        assert ended.returncode == 0, ended.stdout + ended.stderr
        many = "rank" if ranks == 1 else "ranks"
        assert f"for {ranks} {many} over UCX" in ended.stderr, ended.stderr
        counts.update(CHECKS.findall(ended.stdout))
    assert len(counts) == 2 and min(map(int, counts)) > 100, counts


@pytest.mark.usefixtures("transports")
@pytest.mark.parametrize("death", DEATHS, ids=str)
def test_a_killed_rank(tmp_path: Path, death: tuple[int, ...]) -> None:
    check_killed(with_ucx("mpich"), tmp_path, 4, death, {"": "ftco"})


@pytest.mark.parametrize("how", CORRECTED)
@pytest.mark.parametrize("death", KILLED, ids=str)
def test_a_killed_rank_is_corrected(tmp_path: Path, how: str, death: tuple[int, ...]) -> None:
    mpi = with_ucx("mpich")
    for failures in ["1", "0"]:
        check_killed(mpi, tmp_path, 8, death, {"": how, "FAILURES": failures})


def check_killed(
    mpi: Mpi, into: Path, ranks: int, death: tuple[int, ...], settings: dict[str, str]
) -> None:
    program = mpi.build("killed.c", into, linked=True)
    options = ("-disable-auto-cleanup",)
    ended = mpi.start(
        ranks, SHIELD, program, *death, options=options, preload=False, RAIL="ucx", **settings
    )
    want = {rank: death[2] for rank in range(ranks) if rank != death[0]}
    assert survivors(ended.stdout) == want, ended.stdout + ended.stderr


def test_late_is_not_dead(tmp_path: Path) -> None:
    mpi = with_ucx("mpich")
    program = mpi.build("killed.c", tmp_path, linked=True)
    for how in ["ftco", *CORRECTED]:
        ended = mpi.start(3, program, 0, 1000, 3, 1, 2, 300, preload=False, RAIL="ucx", **{"": how})
        assert survivors(ended.stdout) == {0: 3, 1: 3, 2: 3}, ended.stdout + ended.stderr


def test_what_ucx_lacks_is_named_and_the_native_library_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mpi = with_ucx("openmpi")
    program = mpi.build("correct.c", tmp_path)

    def said(**settings: str) -> str:
        ended = mpi.start(2, program, RAIL="ucx", **settings)
        assert ended.returncode == 0, ended.stderr
        assert "native collectives stay in use" in ended.stderr, ended.stderr
        return ended.stderr

    assert "OL-404" in said(UCX_LIBRARY="/nonexistent/libucp.so.0")
    old = tmp_path / "libold.so"
    source = "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c) { *a = 1; *b = *c = 2; }"
    (tmp_path / "old.c").write_text(source)
    compiler = shutil.which("cc") or "gcc"
    words = [compiler, "-shared", "-fPIC", "-o", str(old), str(tmp_path / "old.c")]
    subprocess.run(words, check=True, timeout=60)
    assert re.search("OL-305.*1.2.2", said(UCX_LIBRARY=str(old)))
    monkeypatch.setenv("UCX_TLS", "pigeon")
    assert re.search("OL-600.*pigeon", said())


def test_a_layer_without_ucx_says_so(tmp_path: Path) -> None:
    mpi = library("mpich")
    program = mpi.build("correct.c", tmp_path)
    ended = mpi.start(2, program, RAIL="ucx")
    assert ended.returncode == 0, ended.stderr
    assert re.search("OL-600.*built without UCX", ended.stderr), ended.stderr
