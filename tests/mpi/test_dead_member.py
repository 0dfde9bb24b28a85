"""What each MPI call comes to while a member is dead: the table of the reference page, cell
by cell. A job in which everyone has answered is ended; one that does not answer hangs."""

import os
import random
import re
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from conftest import LIBRARY, ROOT, SHIELD, Mpi, library

PAGE = ROOT / "docs/reference/mpi-dead-member.md"
HANGS_S, BOUND_S = 3.0, 60.0  # a hang is given up after the first, an answer after the second
HANGS_TRIED = 4
SURVIVORS = 3
COLUMNS = {
    "Open MPI": ("openmpi", False),
    "Open MPI + layer": ("openmpi", True),
    "MPICH": ("mpich", False),
    "MPICH + layer": ("mpich", True),
    "ABI + layer": ("mpich-abi", True),
}
SAID = re.compile(r"rank \d+ \S+ (result|error)\n")


def command(mpi: Mpi, program: Path, call: str, layer: bool) -> list[str]:
    words = [str(program), call]
    if mpi.name == "openmpi":
        options, rail = ["--with-ft", "ulfm"], "mpi"
    else:
        options, rail = ["-disable-auto-cleanup"], "tcp"
        words = [str(SHIELD), *words]
    if layer:
        words = ["env", f"LD_PRELOAD={LIBRARY}", f"OUTLIVE_COLLECTIVES_RAIL={rail}", *words]
    return [*mpi.run, *options, "-n", str(SURVIVORS + 1), *words]


def outcomes(line: list[str], wanted: set[str]) -> set[str]:
    """What the survivors' calls came to; whoever says nothing hangs. A launcher that ends by
    itself before is a failure of the test: nothing was tried."""
    bound = HANGS_S if "hang" in wanted else BOUND_S
    with tempfile.TemporaryFile("w+") as errors:
        job = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
        assert job.stdout is not None
        text, end = "", time.monotonic() + bound
        try:
            while len(SAID.findall(text)) < SURVIVORS and time.monotonic() < end:
                ready, _, _ = select.select([job.stdout], [], [], 0.1)
                if ready:
                    more = os.read(job.stdout.fileno(), 4096)
                    if not more:
                        errors.seek(0)
                        pytest.fail(f"the launcher ended by itself; it said {errors.read()!r}")
                    text += more.decode()
        finally:
            # The launcher ends what it started; its own group is what is left.
            job.terminate()
            try:
                job.wait(timeout=10)
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(job.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            job.wait(timeout=10)
    found = SAID.findall(text)
    return set(found) | ({"hang"} if len(found) < SURVIVORS else set())


def table() -> dict[str, dict[str, set[str]]]:
    """Column, then call, then what may happen."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    heads, _, *rows = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)
    assert heads[1:] == list(COLUMNS), heads
    cells = {head: {} for head in COLUMNS}
    for row in rows:
        for head, cell in zip(heads[1:], row[1:], strict=True):
            cells[head][row[0].strip("`")] = set(cell.replace(" or ", " ").split())
    return cells


def tried(cells: dict[str, set[str]], seed: int) -> dict[str, set[str]]:
    """All that answer; of those that may hang, which takes its time, some. All in the soak."""
    hanging = [call for call, wanted in cells.items() if "hang" in wanted]
    if os.environ.get("OUTLIVE_MPI") == "long" or len(hanging) <= HANGS_TRIED:
        return cells
    left_out = set(hanging) - set(random.Random(seed).sample(hanging, HANGS_TRIED))
    return {call: wanted for call, wanted in cells.items() if call not in left_out}


@pytest.mark.parametrize("column", COLUMNS)
def test_the_table_is_what_happens(tmp_path: Path, column: str, seed: int) -> None:
    name, layer = COLUMNS[column]
    mpi = library(name)
    program = mpi.build("table.c", tmp_path)
    cells = table()[column]
    assert len(cells) >= 15
    for call, wanted in tried(cells, seed).items():
        found = outcomes(command(mpi, program, call, layer), wanted)
        assert found <= wanted, f"{column}, {call}: {found}, not {wanted}"


@pytest.mark.parametrize("name", ["openmpi", "mpich"])
def test_a_launcher_that_is_not_told_ends_the_job(tmp_path: Path, name: str) -> None:
    mpi = library(name)
    program = mpi.build("table.c", tmp_path)
    ended = mpi.start(4, program, "Recv-any-source", preload=False)
    assert ended.returncode != 0
    assert not SAID.findall(ended.stdout)
