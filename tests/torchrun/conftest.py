"""What the tests with PyTorch share."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]
import places
from seed import seed
from skip import skip

__all__ = ["seed"]

OUTLIVE = Path(os.environ.get("OUTLIVE_BIN", ROOT / "target" / "release" / "outlive"))
BOUND_S = 300


@dataclass
class Training:
    """A job of four ranks of torchrun on two nodes of this machine."""

    dir: Path
    variables: dict[str, str]
    job: str = field(default_factory=lambda: uuid.uuid4().hex)

    def run(self, torchrun: list[str], *options: str, status: int = 0) -> tuple[dict, str]:
        """`outlive run -- torchrun ... train.py`: its report and what it said."""
        report = self.dir / "report.json"
        words = ["--job", self.job, "--store", self.dir / "store", "--emulate-nodes", "2"]
        words += ["--report", report, "-v", *options, "--", "torchrun", *torchrun]
        done = subprocess.run(
            [OUTLIVE, "run", *words, places.TRAIN, self.output, "--steps", "60"],
            env=os.environ | self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BOUND_S,
        )
        assert done.returncode == status, done.stdout
        return json.loads(report.read_text()), done.stdout

    @property
    def output(self) -> Path:
        return self.dir / "output"

    def results(self) -> dict[str, str]:
        return places.results(self.output)

    def undisturbed(self) -> dict[str, str]:
        return places.undisturbed(self.dir, self.variables, 60)


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    if not OUTLIVE.exists():
        skip("outlive-run", "the command is not built; make build")
    yield Training(tmp_path, places.variables(tmp_path))
