"""A rank that uses the C library as it should not be used: `misuse.py CASE WORDS...`.

Says what each call gave, a line each, and ends with 0 if it could go on.
"""

import ctypes
import mmap
import os
import sys
import threading
import time
from pathlib import Path

library = ctypes.CDLL("liboutlive.so")
library.outlive_last_error.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
library.outlive_close.argtypes = [ctypes.c_void_p]
for call in ("protect", "restore", "checkpoint", "checkpoint_now", "wait"):
    getattr(library, f"outlive_{call}").argtypes = {
        "protect": [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t],
        "restore": [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)],
        "checkpoint": [ctypes.c_void_p, ctypes.c_uint64],
        "checkpoint_now": [ctypes.c_void_p, ctypes.c_uint64],
        "wait": [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint32],
    }[call]


def say(*words: object) -> None:
    """One line, at once."""
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


class Options(ctypes.Structure):
    """outlive_options."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("rank", ctypes.c_int32),
        ("ranks", ctypes.c_int32),
        ("timeout_ms", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    ]


class Job:
    """A handle, or what became of the attempt to get one."""

    def __init__(self, rank: int = -1, ranks: int = 0, timeout_ms: int = 0) -> None:
        options = Options(ctypes.sizeof(Options), rank, ranks, timeout_ms, 0)
        self.handle = ctypes.c_void_p()
        self.code = library.outlive_open(ctypes.byref(options), ctypes.byref(self.handle))

    def why(self) -> str:
        """The last error."""
        text = ctypes.create_string_buffer(2000)
        library.outlive_last_error(self.handle, text, len(text))
        return text.value.decode()

    def protect(self, name: str, address: int, size: int) -> int:
        """outlive_protect."""
        return library.outlive_protect(self.handle, name.encode(), address, size)

    def restore(self) -> tuple[int, int]:
        """outlive_restore."""
        version = ctypes.c_uint64()
        return library.outlive_restore(self.handle, ctypes.byref(version)), version.value

    def checkpoint(self, version: int) -> int:
        """outlive_checkpoint."""
        return library.outlive_checkpoint(self.handle, version)

    def checkpoint_now(self, version: int) -> int:
        """outlive_checkpoint_now."""
        return library.outlive_checkpoint_now(self.handle, version)

    def wait(self, version: int, timeout_ms: int = 20_000) -> int:
        """outlive_wait, for what survives the process."""
        return library.outlive_wait(self.handle, version, 1, timeout_ms)

    def close(self) -> int:
        """outlive_close."""
        return library.outlive_close(ctypes.byref(self.handle))


def opened(what: str, job: Job) -> Job:
    """Says how an attempt to open ended."""
    say("open", what, job.code, os.getpid(), job.why() if job.code else "")
    return job


def memory(size: int) -> tuple[mmap.mmap, int]:
    """Memory of its own, and its address."""
    pages = mmap.mmap(-1, size)
    return pages, ctypes.addressof(ctypes.c_char.from_buffer(pages))


def until(file: Path) -> None:
    """Waits for a file that the test makes."""
    end = time.monotonic() + 50
    while not file.exists():
        if time.monotonic() > end:
            sys.exit(9)
        time.sleep(0.005)


def twice() -> None:
    """A second handle; then one after the first was closed."""
    first = opened("first", Job())
    opened("second", Job())
    say("close", first.close())
    opened("third", Job()).close()


def fork() -> None:
    """A forked child opens anew."""
    first = opened("parent", Job())
    child = os.fork()
    if child == 0:
        opened("child", Job())
        os._exit(0)
    os.waitpid(child, 0)
    say("close", first.close())


def alone(directory: str) -> None:
    """Processes without variables of a launcher, which all live at the same time."""
    job = opened("alone", Job())
    Path(directory, f"opened-{os.getpid()}").touch()
    until(Path(directory, "go"))
    if job.code == 0:
        job.close()


def again() -> None:
    """Becomes another program, which opens anew: the same process, and the rank."""
    opened("before", Job())
    os.execv(sys.executable, [sys.executable, __file__, "once"])


def once() -> None:
    """Opens and closes."""
    opened("after", Job()).close()


def heir() -> None:
    """The rank dies and is not reaped; another process is that rank then."""
    child = os.fork()
    if child == 0:
        opened("dead", Job())
        os._exit(0)
    # Dead, but a zombie still.
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    opened("heir", Job()).close()


def large(size: str) -> None:
    """A forced checkpoint of much memory, of which nobody knew before."""
    job = opened("large", Job(timeout_ms=30_000))
    version = job.restore()[1]
    _, address = memory(int(size))
    job.protect("large", address, int(size))
    say("forced", job.checkpoint_now(version + 1), job.why())
    say("committed", job.wait(version + 1), job.why())
    job.close()


def many(count: str) -> None:
    """A forced checkpoint of many small regions."""
    job = opened("many", Job(timeout_ms=30_000))
    _, address = memory(int(count))
    for region in range(int(count)):
        job.protect(f"region {region}", address + region, 1)
    say("forced", job.checkpoint_now(1), job.why())
    say("committed", job.wait(1), job.why())
    job.close()


def leaves(rank: str, left: str) -> None:
    """Of two ranks the second leaves the job; the first forces a version afterwards."""
    job = opened("rank", Job(int(rank), 2))
    _, address = memory(4096)
    job.protect("field", address, 4096)
    say("together", job.checkpoint_now(1), job.wait(1))
    if rank == "0":
        while not Path(left).exists():
            time.sleep(0.01)
        say("alone", job.checkpoint_now(2), job.wait(2), job.why())
    job.close()
    if rank == "1":
        Path(left).touch()


def last(rank: str, left: str) -> None:
    """Two ranks force the job's last version; the first has left when the second comes to it."""
    job = opened("rank", Job(int(rank), 2))
    _, address = memory(4096)
    job.protect("field", address, 4096)
    say("together", job.checkpoint_now(1), job.wait(1))
    if rank == "1":
        while not Path(left).exists():
            time.sleep(0.01)
    say("last", job.checkpoint_now(2))
    if rank == "1":
        say("safe", job.wait(2), job.why())
    job.close()
    if rank == "0":
        Path(left).touch()


def ranks(count: str) -> None:
    """Rank 0 of so many."""
    opened("ranks", Job(0, int(count)))


def replaced(again: str) -> None:
    """Goes on with another buffer than the one that it has protected; `again`: protects that."""
    job = opened("replaced", Job())
    kept = [memory(size) for size in (4096, 1 << 16, 1 << 16)]
    step, field, other = (address for _, address in kept)
    job.protect("step", step, 8)
    job.protect("field", field, 1 << 16)
    for version in range(1, 15):
        if version == 9:
            field = other
            if again == "again":
                job.protect("field", field, 1 << 16)
        ctypes.c_uint64.from_address(step).value = version
        ctypes.c_uint64.from_address(field + 4096).value = version
        job.checkpoint_now(version)
        job.wait(version)
    job.close()


def census(number: str, element: str) -> None:
    """Works on numbers of which one in versions 5 and 6 is none; is killed at 7, once."""
    job = opened("census", Job())
    kept = [memory(size) for size in (1 << 16, 4096)]
    field, step = (address for _, address in kept)
    job.protect("step", step, 8)
    job.protect("field", field, 1 << 16)
    if element != "none":
        say("describe", library.outlive_describe(job.handle, b"field", int(element)), job.why())
    first, last = job.restore()
    say("restore", first, last, ctypes.c_double.from_address(field + 24).value)
    for version in range(last + 1, 10):
        if version == 7 and first != 4:
            os._exit(1)
        bad = version in (5, 6) and first != 4
        ctypes.c_uint64.from_address(step).value = version
        ctypes.c_double.from_address(field + 24).value = float(number) if bad else 1.0 / version
        say("version", version, job.checkpoint_now(version), job.wait(version))
    job.close()


def numbers() -> None:
    """Two regions, of which one is described; what one of three versions holds is in part none."""
    job = opened("numbers", Job())
    kept = [memory(size) for size in (9 << 20, 4096)]
    field, step = (address for _, address in kept)
    job.protect("step", step, 8)
    job.protect("field", field, 9 << 20)
    say("describe", library.outlive_describe(job.handle, b"field", 4), job.why())
    for version in range(1, 4):
        for at, number in ((3, "nan"), (4, "-inf"), ((9 << 17) - 1, "nan")):
            value = float(number) if version == 2 else 1.0 / version
            ctypes.c_double.from_address(field + 8 * at).value = value
        ctypes.c_uint64.from_address(step).value = version
        say("version", version, job.checkpoint_now(version), job.wait(version))
    job.close()


def torn(tries: str) -> None:
    """Writes to a region while it is captured, so often at most; then captures it in peace."""
    job = opened("torn", Job())
    kept = [memory(size) for size in (4096, 1 << 24)]
    still, field = (address for _, address in kept)
    job.protect("still", still, 4096)
    job.protect("field", field, 1 << 24)
    libc, over = ctypes.CDLL(None), threading.Event()
    libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

    def write() -> None:
        value = 0
        while not over.is_set():
            value = value % 250 + 1
            libc.memset(field, value, 1 << 24)

    thread = threading.Thread(target=write)
    thread.start()
    version = 0
    while version < int(tries):
        version += 1
        code = job.checkpoint_now(version)
        if code != 1:
            say("torn", code, job.why())
            break
        job.wait(version)
    over.set()
    thread.join()
    say("version", job.checkpoint_now(version + 1), job.wait(version + 1))
    job.close()


def read_only(directory: str) -> None:
    """Restores into memory that it may not write."""
    job = opened("rank", Job())
    pages, address = memory(8192)
    file = Path(directory, "pages")
    if not file.exists():
        file.write_bytes(bytes(8192))
        pages[:] = b"x" * 8192
        job.protect("first", address, 4096)
        job.protect("second", address + 4096, 4096)
        say("forced", job.checkpoint_now(1), job.wait(1))
        os._exit(1)
    job.protect("first", address, 4096)
    with file.open("rb") as opened_file:
        mapped = mmap.mmap(opened_file.fileno(), 8192, prot=mmap.PROT_READ)
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    target = libc.mmap(None, 8192, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANON, -1, 0)
    job.protect("second", target, 4096)
    say("restore", job.restore()[0], job.why())
    say("untouched", pages[:4096] == bytes(4096))
    job.protect("second", address + 4096, 4096)
    say("restore", job.restore()[0])
    say("there", pages[:] == b"x" * 8192)
    job.close()
    mapped.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
