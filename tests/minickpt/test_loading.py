"""Programs start and libraries are loaded while the kernel dies: their memory is what their
files hold, and memory that was given back holds zeroes.
"""

import random
import re
from collections.abc import Callable
from pathlib import Path

from conftest import SOAK
from machine import WORK, Machine, with_libraries
from survival import scenario, survive

Make = Callable[..., Machine]

NO_SEQUENCES = "export GLIBC_TUNABLES=glibc.pthread.rseq=0"
# Where a program died, on the serial line.
FAULTS = "\necho 1 >/proc/sys/debug/exception-trace; echo 7 >/proc/sys/kernel/printk"
LIBRARIES = ("libstdc++.so.6", "libgomp.so.1", "libgcc_s.so.1")


def with_loading(outlive: dict[str, Path]) -> tuple[dict[str, Path], list[str]]:
    """Files of the machine, and the libraries that the program loads."""
    files = {**outlive, **with_libraries(WORK / "dynamic/loading")}
    libraries = [f"lib/x86_64-linux-gnu/{name}" for name in LIBRARIES]
    for name in libraries:
        files[name] = (Path("/") / name).resolve()
    return files, [f"/{name}" for name in libraries]


def test_deaths_while_files_are_mapped(machine: Make, outlive: dict[str, Path], seed: int) -> None:
    """Three deaths (200 in the soak) at moments of the seed, in a loop of exec and dlopen.

    A page that was copied for a mapping, or dropped, and that the file system had not yet
    committed, was not there after the death ("unsupported version 0 of Verneed record"), or
    had come back.
    """
    draw = random.Random(seed)
    deaths = 200 if SOAK else 3
    kinds = [draw.choice(["null", "panic"]) for _ in range(deaths)]
    # In this time many programs start; and it is shorter than the journal's own period.
    moments = " ".join(str(draw.randrange(300_000, 2_500_000)) for _ in kinds)
    files, libraries = with_loading(outlive)
    words = f"/bin/loading /dax/stop {' '.join(libraries)}"
    before = f'usleep $(echo "{moments}" | cut -d" " -f$BOOT)'
    text = scenario(words, kinds, early=NO_SEQUENCES + FAULTS, before=before)
    with machine(text, extra=files) as m:
        survive(m, deaths)
        rounds = [int(n) for _, line in m.lines for n in re.findall(r"loading ok (\d+)", line)]
        assert rounds and rounds == sorted(rounds), rounds


def test_deaths_behind_calls_on_memory(machine: Make, outlive: dict[str, Path]) -> None:
    """The program kills the kernel itself, right behind mmap, madvise and mremap: what these
    calls made is there.

    It has no restartable sequences: for those the kernel itself writes to the program's memory
    when it comes out of such a call, and this write commits by luck what is open.
    """
    files, libraries = with_loading(outlive)
    words = f"/bin/loading /dax/stop die {libraries[0]}"
    before = "read -r never </dev/console"
    text = scenario(words, ["own"] * 3, early=NO_SEQUENCES, before=before)
    with machine(text, extra=files) as m:
        survive(m, 3)
        m.expect_past("loading ok 3")
