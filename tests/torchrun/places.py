"""Where the tests find PyTorch, the package ``outlive`` and the training program."""

import os
import socket
import subprocess
from pathlib import Path

from skip import skip

ROOT = Path(__file__).resolve().parents[2]
TORCH = Path(os.environ.get("OUTLIVE_TORCH", ROOT / ".deps" / "torch"))
TRAIN = Path(__file__).with_name("train.py")
RANKS = 4


def variables(into: Path) -> dict[str, str]:
    """What a program with both needs; the test is skipped where one is not there. ``into`` gets
    a directory with the package alone: beside it lie others than torch wants."""
    torchrun = TORCH / "bin" / "torchrun"
    if not torchrun.exists():
        skip("torch", "no .deps/torch; make deps-torch fetches it")
    given = os.environ.get("OUTLIVE_PACKAGE")
    if given is None:
        python = ROOT / ".deps" / "python" / "bin" / "python"
        find = "import outlive; print(outlive.__path__[0])"
        found = subprocess.run([python, "-c", find], capture_output=True, text=True)
        if found.returncode != 0:
            skip("torch", "no package outlive in .deps/python; make python")
        given = found.stdout.strip()
    packages = into / "packages"
    packages.mkdir(exist_ok=True)
    (packages / "outlive").symlink_to(given)
    path = f"{TORCH / 'bin'}:{os.environ['PATH']}"
    return {"PATH": path, "PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1"}


def alone() -> list[str]:
    """Options of a torchrun for all ranks, which meets nobody else's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return [f"--nproc_per_node={RANKS}", "--master_addr=127.0.0.1", f"--master_port={port}"]


def results(output: Path) -> dict[str, str]:
    """What each rank has written."""
    return {path.name: path.read_text() for path in sorted(output.glob("rank-?"))}


def undisturbed(into: Path, more: dict[str, str], steps: int) -> dict[str, str]:
    """The results of the program under torchrun alone, which protects nothing."""
    output = into / "reference"
    words = ["torchrun", *alone(), TRAIN, output]
    done = subprocess.run(
        [*words, "--steps", str(steps)],
        env=os.environ | more,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = results(output)
    assert len(found) == RANKS, done.stdout
    return found
