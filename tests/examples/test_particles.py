"""Example 05: balancing inside a real MPI program that is killed, and the recorder of graphs.

What a run costs is not tested here (examples/05-drifting-particles/README.md has
figures); that who owns a cell changes nothing but the time is.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest
from conftest import MPICH, OUTLIVE, ROOT, Protected, mpich, run
from skip import skip

EXAMPLE = ROOT / "examples" / "05-drifting-particles"
BINDING = ROOT / "crates" / "balance-mpi"
RELEASE = ROOT / "target" / "release"
LIBRARY = RELEASE / "liboutlive_balance_mpi.a"
SMALL = ["--steps", 20, "--cells", 24, "--particles", 20000]


def compiled(*words: object) -> None:
    compiler = MPICH.parent / "mpicc"
    if not compiler.exists():
        skip("mpich", "no .deps/mpich; make deps")
    strict = ["-O2", "-std=c11", "-Wall", "-Wextra", "-Werror"]
    done = subprocess.run([compiler, *strict, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def built(into: Path, *words: object) -> Path:
    if not LIBRARY.exists():
        skip("balance-mpi", f"{LIBRARY.relative_to(ROOT)} is not built; make build")
    sources = [EXAMPLE / "particles.c", BINDING / "c" / "outlive_balance_mpi.c"]
    include = [f"-I{BINDING / folder}" for folder in ("include", "c")]
    include.append(f"-I{ROOT / 'crates/client/include'}")
    compiled(*include, *sources, LIBRARY, "-lpthread", "-ldl", "-lm", *words, "-o", into)
    return into


@pytest.fixture(scope="module")
def particles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (RELEASE / "liboutlive.so.0").exists():
        skip("liboutlive", "target/release/liboutlive.so.0 is not built; make build")
    library = [f"-L{RELEASE}", "-loutlive", f"-Wl,-rpath,{RELEASE}"]
    return built(tmp_path_factory.mktemp("particles") / "particles", *library)


def field(said: str, name: str) -> str:
    found = re.search(rf"\b{name} (\S+)", said)
    assert found, said
    return found[1]


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 7, 8])
def test_who_owns_a_cell_changes_nothing_but_the_time(particles: Path, ranks: int) -> None:
    alone = run(*mpich(1), particles, "--balance", 0, *SMALL)
    many = run(*mpich(ranks), particles, "--balance", 5, *SMALL)
    assert field(many, "checksum") == field(alone, "checksum")
    assert int(field(many, "moved")) > 0, many


def test_without_the_library_it_is_the_same_program(particles: Path, tmp_path: Path) -> None:
    plain = built(tmp_path / "plain", "-DNO_OUTLIVE")
    said = run(*mpich(4), plain, "--balance", 5, *SMALL)
    assert field(said, "checksum") == field(run(*mpich(4), particles, *SMALL), "checksum")


@pytest.mark.parametrize("lost", [["rank:2@version=7"], ["node:1@version=6", "node:2@version=13"]])
def test_cells_that_moved_are_restored_where_they_were(
    particles: Path, tmp_path: Path, protected: Protected, lost: list[str]
) -> None:
    """State that changes its size with every step, and owners that balancing changed."""
    undisturbed = run(*mpich(6), particles, "--balance", 4, *SMALL)
    inject = [word for one in lost for word in ("--inject", one)]
    options = ["--emulate-nodes", "3", "--spares", "2", "--every", "2", *inject]
    said = tmp_path / "said"
    program = ["sh", "-c", f'"$@" >"{said}.$PMI_RANK"', "sh", str(particles)]
    pace = ["--sleep-us", "60000"]
    words = [str(word) for word in ("--balance", 4, *SMALL)]
    report = protected.run(options, [*mpich(6), *program, *words, *pace])
    assert len(report["failures"]) == len(lost)
    assert all(failure["version"] > 0 for failure in report["failures"]), report["failures"]
    last = Path(f"{said}.0").read_text()
    assert field(last, "checksum") == field(undisturbed, "checksum")
    assert field(last, "moved") == field(undisturbed, "moved")


def test_what_the_recorder_sees_can_be_balanced(particles: Path, tmp_path: Path) -> None:
    recorder = tmp_path / "librecorder.so"
    compiled("-shared", "-fPIC", ROOT / "crates/mpi/c/recorder.c", "-o", recorder)
    command = ["env", f"OUTLIVE_RECORD={tmp_path / 'run'}", f"LD_PRELOAD={recorder}", particles]
    recorded = run(*mpich(6), *command, "--balance", 0, *SMALL)
    plain = run(*mpich(6), particles, "--balance", 0, *SMALL)
    assert field(recorded, "checksum") == field(plain, "checksum")
    said = json.loads((tmp_path / "run.json").read_text())
    assert said["ranks"] == 6
    assert all(sum(phases) > 0 for phases in said["computing_seconds"])
    # Strips of cells: particles pass between strips that touch.
    assert {(0, 1), (1, 0), (4, 5)} <= {(one["from"], one["to"]) for one in said["sent"]}
    assert all(one["bytes"] > 0 and one["messages"] > 0 for one in said["sent"])
    graph, parts = tmp_path / "run.graph", tmp_path / "parts"
    done = run(OUTLIVE, "balance", "--graph", graph, "--parts", 2, "--parts-out", parts, "--json")
    placed = [int(line) for line in parts.read_text().split()]
    assert len(placed) == 6 and set(placed) == {0, 1}
    # Weights are the microseconds that each rank computed.
    lines = graph.read_text().splitlines()[1:]
    weights = [int(line.split()[0]) for line in lines]
    pairs = list(zip(weights, placed, strict=True))
    loads = [sum(weight for weight, at in pairs if at == part) for part in (0, 1)]
    assert json.loads(done)["imbalance"] == pytest.approx(max(loads) / (sum(loads) / 2) - 1)
