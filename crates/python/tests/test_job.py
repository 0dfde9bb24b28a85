"""The job: unprotected, in children, and under `outlive run` with real SIGKILL."""

import multiprocessing
import pickle
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import outlive
import pytest
from conftest import BOUND_S, PROGRAMS, Protected, mpich
from outlive import _native


@pytest.fixture
def job() -> outlive.Job:
    """A job without an agent."""
    return outlive.open(rank=2, ranks=5)


def raised(code: int, call: object, *arguments: object, **named: object) -> outlive.Error:
    """The error of this code that a call must raise."""
    with pytest.raises(outlive.Error) as caught:
        call(*arguments, **named)
    assert caught.value.code == code
    return caught.value


# ---- without an agent ----


def test_unprotected_everything_succeeds_and_saves_nothing(job: outlive.Job) -> None:
    state = {"x": np.ones(3), "n": 1}
    assert (job.rank, job.ranks, repr(job)) == (2, 5, "<outlive.Job rank 2 of 5>")
    assert job.restore(state, default=3) == 3
    assert job.restore() == 0
    for step in range(3):
        assert not job.wanted(step)
        assert job.checkpoint(step, state) is False
    assert job.checkpoint(3, state, now=True) is False
    job.wait(3)
    job.wait(3, survives="node-loss", timeout=0.0)
    path = Path(job.route(4, "a.txt"))
    path.write_text("x")
    status = job.status()
    assert not status.is_protected and status.taken == status.failed == 0
    everything = ("process", "node-crash", "node-loss", "domain", "all-nodes")
    assert status.version_surviving == dict.fromkeys(everything)
    assert status.levels == {}
    assert job.last_error is None
    job.close()
    job.close()


def test_steps_count(job: outlive.Job) -> None:
    assert list(job.steps({}, 3)) == [0, 1, 2]
    assert list(job.steps({}, 6, start=4)) == [4, 5]
    assert list(job.steps({}, 2, start=4)) == []


def test_errors_of_the_program_are_raised(job: outlive.Job) -> None:
    assert not job.checkpoint(5)
    raised(102, job.checkpoint, 5)
    raised(102, job.checkpoint, 4, now=True)
    raised(102, job.wanted, 4)
    for version in (-1, 1 << 64, (1 << 64) - 1):
        raised(100, job.checkpoint, version)
    for version in ("7", 7.0, None):
        with pytest.raises(TypeError):
            job.checkpoint(version)
    assert not job.checkpoint(np.int64(6))
    for unknown in ("fire", "partner", ""):
        raised(100, job.wait, 1, unknown)
    raised(100, job.wait, 1, timeout=-1.0)
    raised(100, outlive.open, timeout=float("nan"))
    raised(200, outlive.open, rank=3, ranks=3)
    with pytest.raises(TypeError):
        outlive.Job()


def test_a_state_that_cannot_be_stored_is_refused_at_the_first_start(job: outlive.Job) -> None:
    error = raised(109, job.restore, {"ok": 1, "no": object()})
    assert error.entity == "region 'no'" and str(error).startswith("OL-109 value cannot be stored")
    last = job.last_error
    assert last is not None and str(last) == str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    frozen = np.zeros(3)
    frozen.setflags(write=False)
    raised(109, job.restore, [frozen])


def test_declared_buffers(job: outlive.Job) -> None:
    buffer = bytearray(10)
    job.protect("a", buffer)
    job.protect("b", np.zeros((2, 2), order="F"))
    job.protect("empty", bytearray())
    assert (job.status().regions, job.status().bytes) == (3, 42)
    with pytest.raises(BufferError):
        buffer.append(1)
    job.protect("a", bytearray(1))
    buffer.append(1)
    job.unprotect("a")
    raised(103, job.unprotect, "a")
    raised(100, job.protect, "", bytearray(1))
    raised(100, job.protect, "gaps", np.zeros((4, 4))[::2, ::2])
    raised(109, job.protect, "bytes", b"abc")
    raised(109, job.protect, "int", 5)


def test_a_closed_job_is_not_open() -> None:
    with outlive.open() as job:
        job.protect("a", buffer := bytearray(1))
        job.checkpoint(1)
    buffer.append(1)
    raised(101, job.checkpoint, 2)
    raised(101, job.checkpoint, 2, now=True)
    raised(101, job.restore, {})
    raised(101, job.status)
    assert job.last_error is None and job.rank == 0
    with pytest.raises(ZeroDivisionError), outlive.open():
        raise ZeroDivisionError


class Trap(dict):
    """A state that must not be looked at."""

    def items(self) -> None:
        raise AssertionError("the state was walked")


def test_a_skipped_call_walks_nothing_and_keeps_nothing(job: outlive.Job) -> None:
    state = Trap(x=1)
    job.checkpoint(0, state)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()
        for step in range(1, 100):
            job.checkpoint(step, state)
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert now - before[0] < 500 and peak - before[0] < 1_000
    with pytest.raises(AssertionError):
        job.restore(state)


def in_a_child(job: outlive.Job, queue: "multiprocessing.Queue[int]") -> None:
    try:
        job.checkpoint(10)
    except outlive.Error as error:
        queue.put(error.code)


def test_a_forked_child_is_refused(job: outlive.Job) -> None:
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[int] = context.Queue()
    child = context.Process(target=in_a_child, args=(job, queue))
    child.start()
    assert queue.get(timeout=30) == 101
    child.join(30)
    assert child.exitcode == 0
    assert job.checkpoint(10) is False


def test_the_module_does_not_carry_the_name_of_the_library() -> None:
    # Under the name of the C library the loader would give it to C programs in its place.
    file = _native.__file__
    told = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True)
    assert "NEEDED" in told.stdout and "liboutlive" not in told.stdout


def test_the_header_is_there() -> None:
    assert "outlive_open" in (Path(outlive.include_dir()) / "outlive.h").read_text()


# ---- under outlive run ----


def alone(program: str, *arguments: str, launcher: tuple[str, ...] = ()) -> list[str]:
    """The digests of an undisturbed run without protection."""
    command = [*launcher, sys.executable, str(PROGRAMS / program), *arguments]
    out = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=True)
    return digests(out.stdout)


def digests(output: str) -> list[str]:
    """Those of all ranks; mpirun may put what two of them say at once into one line."""
    return sorted(re.findall(r"digest \d+ [0-9a-f]{64}", output))


NODES = ["--emulate-nodes", "2", "--spares", "1", "--every", "10"]


@pytest.mark.parametrize("threads", [[], ["threads"]], ids=["one thread", "threads"])
def test_a_nested_state_survives_a_lost_node(protected: Protected, threads: list[str]) -> None:
    calm = alone("nested.py", "200", "0", launcher=mpich(2))
    report, output = protected.run(
        [*NODES, "--inject", "node:1@version=120"],
        *("nested.py", "200", "10", *threads),
        launcher=mpich(2),
    )
    failure = injected(report)
    assert (failure["place"], failure["level"]) == ("node:1", "partner")
    assert f"restored {failure['version']} failed 0 error None" in output
    assert digests(output) == calm


def test_a_nested_state_survives_a_lost_rank(protected: Protected) -> None:
    calm = alone("nested.py", "150", "0")
    report, output = protected.run(
        ["--every", "10", "--inject", "rank:0@version=90"], "nested.py", "150", "10"
    )
    failure = injected(report)
    assert (failure["place"], failure["level"]) == ("rank:0", "memory")
    assert digests(output) == calm


LOST_NODE = ["--emulate-nodes", "2", "--spares", "1", "--inject", "node:0@version=4"]
LOST_RANK = ["--inject", "rank:0@version=4"]


def injected(report: dict) -> dict:
    """The failure that was injected, and the only one that the programs did not choose:
    one of them ends, and is started again, if a forced save finds no free slot."""
    (failure,) = [one for one in report["failures"] if one["injected"]]
    return failure


def begun(output: str, end: str = "") -> int:
    """Ranks that went on from version 3, or from 4: the injection that is met when 4 is
    offered may strike just after its capture."""
    return len(re.findall(rf"from [34] {re.escape(end)}", output))


def test_another_state_is_named_and_left_alone(protected: Protected) -> None:
    report, output = protected.run(LOST_RANK, "parts.py", "mismatch")
    assert injected(report)["version"] in (3, 4)
    assert begun(output) == begun(output, "n 15 a [15.0, 15.0, 15.0]") == 1


def test_a_state_that_does_not_fit_is_in_the_report(protected: Protected) -> None:
    report, _ = protected.run(LOST_RANK, "parts.py", "unfit", fails=True)
    codes = {one["code"] for one in report["warnings"] + report["errors"]}
    assert "OL-104" in codes, report
    assert report["restarts"] <= 2  # the same is not tried again and again


def test_a_failed_save_raises_nothing(protected: Protected) -> None:
    _, output = protected.run([], "parts.py", "failing")
    assert "failed 2" in output


@pytest.mark.parametrize("lost", ["node", "rank"])
def test_declared_buffers_survive(protected: Protected, lost: str) -> None:
    options, survives = (LOST_NODE, "node-loss") if lost == "node" else (LOST_RANK, "node-crash")
    report, output = protected.run(options, "parts.py", "declared", survives, launcher=mpich(2))
    assert injected(report)["level"] == ("partner" if lost == "node" else "memory")
    numbers = [[15.0] * 3] * 2
    end = f"{{'n': 15}} {numbers} {bytes([4, 6, 2, 3])!r}"
    assert begun(output) == begun(output, end) == 2


def test_a_routed_file_survives_a_lost_node(protected: Protected) -> None:
    report, output = protected.run(LOST_NODE, "parts.py", "routed", "node-loss", launcher=mpich(2))
    assert injected(report)["version"] in (3, 4)
    version = injected(report)["version"]
    assert output.count(f"from {version}") == 2 <= output.count(f"file step {version}")


def test_children_do_not_disturb(protected: Protected) -> None:
    report, output = protected.run(LOST_RANK, "parts.py", "forking")
    assert injected(report)["version"] in (3, 4)
    assert begun(output) == begun(output, "[15.0, 15.0, 15.0]") == 1


def test_a_wait_lets_other_threads_run(protected: Protected) -> None:
    _, output = protected.run([], "parts.py", "threaded")
    assert "counted" in output


def test_a_second_handle_and_a_forked_child_are_refused(protected: Protected) -> None:
    report, output = protected.run(["--max-restarts", "0"], "handles.py")
    said = {line.split()[0]: line.split(maxsplit=2)[1:] for line in output.splitlines()}
    pid, code = said["first"][0], said["first"][1]
    assert (code, said["third"]) == ("0", ["0"]), output
    assert said["second"][0] == said["child"][0] == "200", output
    assert "open in this process" in said["second"][1]
    assert f"process {pid}," in said["child"][1], output
    assert "OL-200" in {warning["code"] for warning in report["warnings"]}
