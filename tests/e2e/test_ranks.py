"""What a rank may be: one living process, of a bounded number, with any memory."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import ROOT, Job, Result, Run, kill, until
from skip import skip

LONG = os.environ.get("OUTLIVE_RANKS") == "long"
"""As in the soak: sizes that take minutes, and gigabytes."""
SHORT = ("--suspect-timeout", "300ms", "--dead-timeout", "1500ms", "--heartbeat", "100ms")
MISUSE = Path(__file__).parent / "programs" / "misuse.py"


def misuse(*words: object) -> list[str]:
    """The command line of a case."""
    return [sys.executable, str(MISUSE), *(str(word) for word in words)]


def lines(result: Result, *first: str) -> list[list[str]]:
    """What the program said that begins with these words."""
    said = [line.split() for line in result.out.splitlines()]
    return [words for words in said if tuple(words[: len(first)]) == first]


def single(job: Job) -> Job:
    """One node, and nothing but what the case does."""
    job.nodes, job.ranks, job.every = 1, 1, None
    return job


def fortran(job: Job, case: str) -> list[str]:
    """The same cases in Fortran."""
    if not shutil.which("gfortran"):
        skip("gfortran", "gfortran is not installed")
    module, program = ROOT / "crates" / "client" / "fortran" / "outlive.f90", job.dir / "handles"
    words = ["gfortran", "-std=f2008", "-J", job.dir, module]
    words += [Path(__file__).parent / "programs" / "handles.f90", "-o", program]
    words += ["-L", job.ring.parent, "-loutlive"]
    subprocess.run([str(word) for word in words], check=True, timeout=60)
    return [str(program), case]


LANGUAGES = {"c": lambda job, case: misuse(case), "fortran": fortran}
"""Rust's is in crates/cli/tests/handles.rs, Python's in crates/python/tests."""


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_second_handle_in_one_process(job: Job, language: str) -> None:
    result = single(job).run(program=LANGUAGES[language](job, "twice"))
    assert result.status == 0, result.err
    (first,), (second,), (third,) = (
        lines(result, "open", which) for which in ("first", "second", "third")
    )
    assert (first[2], second[2], third[2]) == ("0", "-200", "0"), result.out
    assert "open in this process" in " ".join(second)
    assert "OL-200" in result.codes()


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_forked_child_that_opens_anew(job: Job, language: str) -> None:
    result = single(job).run(program=LANGUAGES[language](job, "fork"))
    assert result.status == 0, result.err
    (parent,), (child,) = (lines(result, "open", which) for which in ("parent", "child"))
    assert (parent[2], child[2]) == ("0", "-200"), result.out
    assert f"process {parent[3]}," in " ".join(child), result.out


def test_processes_without_variables_of_a_launcher(job: Job) -> None:
    single(job)
    words = " ".join(misuse("alone", job.dir))
    run = job.start(
        "--max-restarts", "0", program=["sh", "-c", f"{words} & {words} & {words} & wait"]
    )
    until("three processes", lambda: len(list(job.dir.glob("opened-*"))) == 3)
    (job.dir / "go").touch()
    result = run.end()
    opened = lines(result, "open", "alone")
    (holder,) = (words for words in opened if words[2] == "0")
    refused = [words for words in opened if words[2] == "-200"]
    assert len(refused) == 2, result.out
    for words in refused:
        assert f"process {holder[3]}," in " ".join(words), result.out
        assert "OUTLIVE_RANK" in " ".join(words)
    assert "OL-200" in result.codes()
    assert "OUTLIVE_RANK" in result.err


def test_a_rank_that_becomes_another_program(job: Job) -> None:
    result = single(job).run(program=misuse("again"))
    assert result.status == 0, result.err
    assert [words[2] for words in lines(result, "open")] == ["0", "0"], result.out


def test_a_rank_that_is_a_zombie_is_succeeded(job: Job) -> None:
    result = single(job).run(program=misuse("heir"))
    assert [words[2] for words in lines(result, "open", "heir")] == ["0"], result.out


def test_more_ranks_than_a_node_can_have(job: Job) -> None:
    result = single(job).run("--max-restarts", "0", program=misuse("ranks", 2**31 - 1))
    ((_, _, code, *why),) = lines(result, "open", "ranks")
    assert code == "-200" and "16384" in " ".join(why), result.out


def test_memory_that_takes_long_to_make_silences_nobody(job: Job) -> None:
    # Pages come at 8 MiB a second: 24 MiB take twice the silence after which a
    # node is given up.
    single(job)
    result = job.run(
        *SHORT,
        "--levels",
        "memory",
        program=misuse("large", 24 << 20),
        inject=("slow:node:0@0s,rate=8MiB",),
    )
    assert result.status == 0, result.out + result.err
    assert lines(result, "forced") == [["forced", "1"]], result.out
    assert lines(result, "committed") == [["committed", "0"]], result.out
    assert result.report["restarts"] == 0 and not result.failures
    assert not result.codes() & {"OL-301", "OL-304"}, result.report["warnings"]


def heard(job: Job, result: Result) -> None:
    """A forced capture was committed, and its node never missed."""
    assert result.status == 0, result.out + result.err
    assert lines(result, "forced") == [["forced", "1"]], result.out
    assert lines(result, "committed") == [["committed", "0"]], result.out
    assert result.report["restarts"] == 0 and not result.failures, result.err
    # Nor was the thread that answers busy for longer than a heartbeat (OL-301).
    assert result.report["warnings"] == [] and "silent" not in result.err, result.err
    assert result.report["checkpoints"]["last"]["disk"] == 1, result.report["checkpoints"]
    job.outlive("checkpoints", "verify", bound_s=120)


@pytest.mark.parametrize("mib", [3072 if LONG else 192])
def test_a_large_forced_capture_silences_nobody(job: Job, mib: int) -> None:
    memory = ("--memory", f"{2 * mib + 64}MiB", "--levels", "memory,disk")
    heard(job, single(job).run(*memory, program=misuse("large", mib << 20), bound_s=300))


@pytest.mark.parametrize("count", [1 << 16])
def test_many_regions_silence_nobody(job: Job, count: int) -> None:
    options = ("--levels", "memory,disk")
    heard(job, single(job).run(*options, program=misuse("many", count), bound_s=300))


@pytest.mark.parametrize("nodes", [1, 2])
def test_who_forces_after_another_rank_has_left_waits_for_no_bound(job: Job, nodes: int) -> None:
    job.nodes, job.ranks, job.every = nodes, 2, None
    first, second = (shlex.join(misuse("leaves", rank, job.dir / "left")) for rank in (0, 1))
    result = job.run(program=["sh", "-c", f"{second} & {first}; wait"])
    assert result.status == 0, result.out + result.err
    assert lines(result, "together") == [["together", "1", "0"]] * 2, result.out
    # Given up at once: a bound would be told as -106.
    (alone,) = lines(result, "alone")
    assert alone[1:3] == ["1", "-501"], result.out


def test_who_leaves_leaves_what_it_has_captured(job: Job) -> None:
    """Two ranks of one node capture the job's last version, one after the other."""
    job.nodes, job.ranks, job.every = 1, 2, None
    first, second = (shlex.join(misuse("last", rank, job.dir / "left")) for rank in (0, 1))
    result = job.run(program=["sh", "-c", f"{second} & {first}; wait"])
    assert result.status == 0, result.out + result.err
    assert lines(result, "last") == [["last", "1"]] * 2, result.out
    (safe,) = lines(result, "safe")
    assert safe[1] == "0", result.out


def slabs(run: Run, *nodes: int) -> list[Path]:
    """The descriptors of all slabs that the keepers of these nodes hold, or of all."""
    found = []
    for node, pid in run.pids("keeper").items():
        if nodes and node not in nodes:
            continue
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            if "memfd:outlive-slab" in os.readlink(entry):
                found.append(entry)
    return found


@pytest.mark.parametrize("offset,field", [(8, "the job"), (20, "the rank"), (48, "the table")])
def test_a_damaged_head_of_a_slab_costs_that_copy_only(job: Job, offset: int, field: str) -> None:
    # All ranks have taken 60, and nothing is on its way, when memory is written over.
    job.hold(60, 60)
    pause = job.dir / "pause"
    program = job.program("--pause", 63, pause)
    run = job.start(program=program, inject=("rank:1@version=64",))
    until("the pause", Path(f"{pause}.reached").exists)
    until("it is on disk", lambda: job.running("last").get("disk") == 60)
    for slab in slabs(run):
        with slab.open("r+b") as file:
            file.seek(offset)
            file.write(b"\xa5\x5a\xa5\x5a")
    pause.touch()
    result = run.end()
    assert result.status == 0, result.out + result.err
    job.check(program)
    failure = result.failure()
    assert (failure["version"], failure["level"]) == (60, "disk"), result.err
    assert "OL-204" in result.codes() and "OL-900" not in result.codes(), field


def test_memory_that_was_overwritten_is_not_written_again_by_a_new_agent(job: Job) -> None:
    """A version is safe on disk and on its way to shared storage when something writes over it."""
    job.levels, job.beyond, job.cells = "memory,disk,shared", "shared", 2000
    pause = job.dir / "pause"
    program = job.program("--force", 40, "--pause", 45, pause)
    slow = ("--every", "1000000", "--shared-rate", "16KiB", "--shared-from", "memory")
    run = job.start(*slow, program=program, inject=("rank:1@version=61",))
    until("the pause", Path(f"{pause}.reached").exists)
    until("it is on disk", lambda: job.running("last").get("disk") == 40)
    (container,) = (path for path in job.containers(1) if "-v40-" in path.name)
    before = container.read_bytes()
    for slab in slabs(run, 1):
        with slab.open("r+b") as file:
            file.seek(13_000)
            file.write(b"\xa5\x5a" * 64)
    kill(run.pids("agent")[1])
    until("it is seen", lambda: "OL-204" in run.text())
    assert container.read_bytes() == before
    pause.touch()
    result = run.end()
    assert result.status == 0, result.out + result.err
    job.check(program)
    failure = result.failure()
    assert (failure["version"], failure["level"]) == (40, "disk"), result.err


def test_a_restore_into_read_only_memory(job: Job) -> None:
    result = single(job).run(program=misuse("read_only", job.dir))
    assert result.status == 0, result.out + result.err
    refused, restored = lines(result, "restore")
    assert refused[1] == "-100" and "'second'" in " ".join(refused), result.out
    assert restored[1] == "4" and lines(result, "untouched", "True"), result.out
    assert lines(result, "there", "True"), result.out
