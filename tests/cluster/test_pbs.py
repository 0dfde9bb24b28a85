"""Jobs inside a PBS job: its file of hosts, as PBS writes it, and the variables that go with it.

There is no PBS server: what outlive takes from PBS is that file. mpirun reads it too, where it is
built for PBS (Open MPI's is), and starts ranks by ssh.
"""

import subprocess
import tempfile
from pathlib import Path

import pytest
from conftest import HEAT2D, MPICH, ROOT, Cluster
from skip import skip

SHAPE = ["192", "192"]
STEPS = "260"
RANKS = 6
OPENMPI = ROOT / ".deps" / "openmpi" / "bin"


def variables(cluster: Cluster, path: Path) -> dict[str, str]:
    """Three nodes and a spare, two processes each."""
    nodes = cluster.dir / "1234.server"
    nodes.write_text("".join(f"{name}\n{name}\n" for name in ("n1", "n2", "n3", "n4")))
    return {
        "PATH": f"{path}:/usr/local/bin:/usr/bin:/bin",
        "PBS_NODEFILE": str(nodes),
        "PBS_JOBID": "1234.server",
        "PBS_ENVIRONMENT": "PBS_BATCH",
        # Ranks run as root here, as everything in this room does.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


@pytest.mark.parametrize("library", ["mpich", "openmpi"])
def test_a_host_of_the_job_that_is_gone_is_replaced(cluster: Cluster, library: str) -> None:
    path, program = MPICH, HEAT2D
    if library == "openmpi":
        path, program = OPENMPI, HEAT2D.with_name("heat2d-openmpi")
        if not program.exists():
            skip("machines", f"no {program.name}; make deps examples")
    output = cluster.dir / "field"
    options = ["--hosts", "pbs", "--every", 20, "--dead-timeout", "4s"]
    words = ["--", "mpirun", "-n", RANKS, program, *SHAPE, STEPS, output, "--sleep-us", 8000]
    # Open MPI names its files by process numbers, which are the same in each such room, and leaves
    # them where a machine is switched off: not where another room may look.
    with tempfile.TemporaryDirectory(prefix="pbs-") as scratch:
        more = variables(cluster, path) | {"TMPDIR": scratch}
        run = cluster.start(*options, *words, **more)
        early = cluster.wait_for(run, "version 80 stable on partner")
        cluster.machines.power_off("n2")
        report, text = cluster.end(run)
    assert report["restarts"] == 1 and "rebuilt from partner" in text, early + text
    reference = cluster.dir / "reference"
    alone = [MPICH / "mpirun", "-n", "1", HEAT2D, *SHAPE, STEPS, reference]
    subprocess.run(alone, check=True, capture_output=True, timeout=60)
    assert output.read_bytes() == reference.read_bytes(), early + text


def test_outside_of_a_job_it_says_so(cluster: Cluster) -> None:
    options = ["--job", "heat", "--store", cluster.dir / "store", "--hosts", "pbs"]
    said = cluster.tell(64, "run", *options, "--", "true")
    assert "PBS_NODEFILE is not set" in said and "qsub" in said, said
