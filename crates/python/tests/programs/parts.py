"""Small programs, each for one test; run under `outlive run`: parts.py NAME [SURVIVES]."""

import multiprocessing
import os
import sys
import threading
from pathlib import Path

import numpy as np
import outlive

SURVIVES = sys.argv[2] if len(sys.argv) > 2 else "node-crash"


def save(job: outlive.Job, version: int, state: object) -> None:
    """A checkpoint that is committed when this returns, unless it is the one restored."""
    if version == job.status().version_restored:
        return
    assert job.checkpoint(version, state, now=True), job.last_error
    job.wait(version, SURVIVES, timeout=60.0)
    status = job.status()
    newest = status.version_surviving[SURVIVES]
    assert newest is not None and newest >= version, status
    kept = [level.version for level in status.levels.values() if level.version is not None]
    assert max(kept) >= newest, status


def caught(call: object, *arguments: object, **named: object) -> outlive.Error:
    """The error that a call must raise."""
    try:
        call(*arguments, **named)
    except outlive.Error as error:
        return error
    raise AssertionError("nothing was raised")


def mismatch() -> None:
    """The second start has another state; then the right one."""
    job = outlive.open()
    state = {"a": np.zeros(3), "n": 0}
    try:
        job.restore()
    except outlive.Error as error:
        assert error.code == 105, error  # a state was saved
        other = {"a": np.full(3, 7.0), "b": np.full(2, 7.0), "n": 7}
        error = caught(job.restore, other)
        assert job.last_error is not None and job.last_error.code == error.code == 103
        assert error.entity == "region 'b'", error
        assert (other["a"] == 7.0).all() and other["n"] == 7
        assert caught(job.restore, {"a": np.zeros(3)}).code == 105
        assert caught(job.restore, {"a": np.zeros(4), "n": 0}).code == 104
    start = job.restore(state, default=1)
    for step in range(start, 6):
        save(job, step, state)
        state["a"] += step
        state["n"] += step
    print(f"from {start} n {state['n']} a {state['a'].tolist()}")
    job.close()


def unfit() -> None:
    """The second start has another shape, and ends by the exception."""
    job = outlive.open()
    state = {"a": np.zeros(3 if job.status().incarnation == 1 else 4)}
    for step in range(job.restore(state, default=1), 6):
        save(job, step, state)
    job.close()


def failing() -> None:
    """A save that fails raises nothing, and the next one is made."""
    job = outlive.open()
    state = {"x": np.arange(5.0)}
    job.restore(state)
    save(job, 1, state)
    state["bad"] = object()
    assert job.checkpoint(2, state, now=True) is False
    assert job.last_error is not None and job.last_error.code == 109
    assert job.last_error.entity == "region 'bad'", job.last_error
    assert (job.status().failed, job.status().taken) == (1, 1)
    assert caught(job.checkpoint, 2, state, now=True).code == 102
    assert caught(job.checkpoint, 1, state).code == 102
    del state["bad"]
    save(job, 3, state)

    class Stop:
        def state_dict(self) -> dict:
            raise KeyboardInterrupt

        def load_state_dict(self, state: dict) -> None: ...

    try:
        job.checkpoint(4, [Stop()], now=True)
        raise AssertionError("Ctrl-C was lost")
    except KeyboardInterrupt:
        pass

    class Curious(Stop):
        def state_dict(self) -> dict:
            return {"taken": job.status().taken}  # calls the job while it is walked

    assert job.checkpoint(5, [Curious()], now=True), job.last_error
    assert job.status().taken == 3
    print("failed", job.status().failed)
    job.close()


def declared() -> None:
    """Declared buffers, beside a state."""
    job = outlive.open()
    array, buffer, gone = np.zeros((2, 3), order="F"), bytearray(4), bytearray(1)
    state = {"n": 0}
    job.protect("array", array)
    job.protect("buffer", bytearray(9))
    job.protect("buffer", buffer)
    job.protect("gone", gone)
    try:
        buffer.append(1)
        raise AssertionError("a declared buffer was resized")
    except BufferError:
        pass
    job.unprotect("gone")
    gone.append(1)
    start = job.restore(state, default=1)
    for step in range(start, 6):
        save(job, step, state)
        array += step
        buffer[step % 4] += step
        state["n"] += step
    print(f"from {start} {state} {array.tolist()} {bytes(buffer)!r}")
    job.close()


def routed() -> None:
    """A file that the program writes by itself, and no state."""
    job = outlive.open()
    start = job.restore(default=1)
    if start > 1:
        # One string, for other ranks write to the same pipe.
        print(f"file {Path(job.route(start, 'data.txt')).read_text()}")
    for step in range(start, 6):
        if step > start or start == 1:
            Path(job.route(step, "data.txt")).write_text(f"step {step}")
        save(job, step, None)
    print(f"from {start}")
    job.close()


def child_of(job: outlive.Job) -> None:
    """What a forked child may do with the job: nothing."""
    assert caught(job.checkpoint, 1_000).code == 101
    assert caught(job.restore, {"x": 1}).code == 101
    assert job.rank == 0


def forking() -> None:
    """Children of every kind do not disturb the job."""
    job = outlive.open()
    state = {"x": np.zeros(3)}
    start = job.restore(state, default=1)
    for step in range(start, 6):
        save(job, step, state)
        state["x"] += step
        child = multiprocessing.get_context("fork").Process(target=child_of, args=(job,))
        child.start()
        child.join(30)
        assert child.exitcode == 0
        pid = os.fork()
        if pid == 0:  # ends as a program does, with its exit handlers
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    print(f"from {start} {state['x'].tolist()}")
    # open at the end: closed by the exit handler


def threaded() -> None:
    """A long wait of one thread lets the others run."""
    job = outlive.open()
    state = {"x": np.zeros(3)}
    job.restore(state)
    ended = threading.Event()
    seen: list[int] = []

    def wait() -> None:
        seen.append(caught(job.wait, 99, "process", timeout=1.0).code)
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    count = 0
    while not ended.is_set():
        count += 1
    thread.join()
    assert seen == [106] and count > 1_000
    save(job, 1, state)
    print("counted")
    job.close()


globals()[sys.argv[1]]()
