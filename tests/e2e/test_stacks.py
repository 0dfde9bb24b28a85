"""What the ranks of a job, and other processes, are doing: `outlive stacks`."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from harness import OUTLIVE, Job, until

PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

volatile unsigned long count;

static __attribute__((noinline)) void spins_for_ever(int depth)
{
    if (depth) {
        spins_for_ever(depth - 1);
        count++;
    }
    for (;;)
        count++;
}

static __attribute__((noinline)) long waits_for_a_byte(int from)
{
    char byte;
    return read(from, &byte, 1) + (long)count;
}

static void *reader(void *pipe)
{
    return (void *)waits_for_a_byte(*(int *)pipe);
}

int main(void)
{
    int both[2];
    pthread_t thread;

    if (pipe(both) || pthread_create(&thread, NULL, reader, both))
        return 1;
    puts("ready");
    fflush(stdout);
    spins_for_ever(3);
}
"""


def stacks(*words: object, status: int = 0) -> dict:
    command = [str(OUTLIVE), "stacks", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout) if status == 0 else {"err": done.stderr}


def functions(thread: dict) -> list[str]:
    return [frame["function"] or "" for frame in thread["frames"]]


@pytest.fixture
def program(tmp_path: Path, request: pytest.FixtureRequest):
    """A loop and a blocked read, built with these options."""
    source, built = tmp_path / "spin.c", tmp_path / "spin"
    source.write_text(PROGRAM)
    subprocess.run(["cc", *request.param, "-pthread", "-o", built, source], check=True)
    with subprocess.Popen([built], stdout=subprocess.PIPE) as running:
        try:
            assert running.stdout and running.stdout.readline() == b"ready\n"
            # The line comes before the call that wrote it returns.
            before = used(running.pid)
            until("it spins", lambda: used(running.pid) > before + 1)
            until("its thread reads", lambda: any(map(reads, threads(running.pid))))
            yield running
        finally:
            running.kill()


@pytest.mark.parametrize(
    "program",
    [
        ("-O0", "-g"),
        ("-O2", "-fomit-frame-pointer"),
        ("-O2", "-g", "-static"),
        ("-O2", "-no-pie", "-fno-asynchronous-unwind-tables", "-fno-omit-frame-pointer"),
    ],
    indirect=True,
    ids=["debug", "optimised", "static", "frame-pointers"],
)
def test_a_loop_and_a_blocked_read(program: subprocess.Popen, request) -> None:
    (found,) = stacks(program.pid)["processes"]
    assert found["rank"] is None and found["incomplete"] == [], found
    first = next(it for it in found["threads"] if it["tid"] == program.pid)
    names = functions(first)
    assert names.count("spins_for_ever") == 4 and "main" in names, names
    assert first["state"] == "R" and first["call"] is None, first
    (second,) = [it for it in found["threads"] if it["tid"] != program.pid]
    assert "waits_for_a_byte" in functions(second), second
    assert second["call"].startswith("read(3: pipe:["), second
    lines = [frame["source"] for frame in first["frames"] if frame["source"]]
    if "-g" in request.node.callspec.params["program"]:
        assert all(line["file"].endswith("spin.c") for line in lines[:4]) and lines, first


@pytest.mark.parametrize("program", [("-O1",)], indirect=True)
def test_a_stopped_process_stays_stopped_and_a_running_one_runs(
    program: subprocess.Popen,
) -> None:
    os.kill(program.pid, signal.SIGSTOP)
    until("it has stopped", lambda: state(program.pid) == "T")
    (found,) = stacks(program.pid)["processes"]
    assert functions(found["threads"][0])[0] == "spins_for_ever", found
    # Left by its tracer it wakes up in the kernel, and stops again before it computes.
    until("it is stopped again", lambda: state(program.pid) == "T")
    os.kill(program.pid, signal.SIGCONT)
    for _ in range(20):
        stacks(program.pid)
    before = used(program.pid)
    time.sleep(0.3)
    assert state(program.pid) == "R" and used(program.pid) > before


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]


def threads(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def reads(thread: Path) -> bool:
    """True if it is in a call of read (on x86-64 number 0)."""
    return (thread / "syscall").read_text().split()[0] == "0"


def used(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()[11])


def test_all_ranks_of_a_job(job: Job) -> None:
    door = job.dir / "door"
    run = job.start(program=job.program("--pause", 45, door))
    until("the pause", Path(f"{door}.reached").exists)
    where = ("--job", "test", "--store", job.store)
    found = stacks(*where)["processes"]
    assert [entry["rank"] for entry in found] == list(range(job.ranks)), found
    nodes = [entry["node"] for entry in found]
    assert nodes == sorted(nodes) and set(nodes) == set(range(job.nodes)), nodes
    for entry in found:
        assert "main" in functions(entry["threads"][0]), entry
    text = subprocess.run([str(OUTLIVE), "stacks", *where], capture_output=True, text=True).stdout
    assert f"rank {job.ranks - 1} on node {job.nodes - 1}: process " in text, text
    door.touch()
    assert run.end().status == 0
    job.check()
    assert "does not run on this machine" in stacks(*where, status=74)["err"]


def test_what_is_not_there(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    said = stacks(gone.pid, status=74)["err"]
    assert "OL-404" in said and str(gone.pid) in said, said
    assert "no job is stored there" in stacks("--store", tmp_path, status=74)["err"]
