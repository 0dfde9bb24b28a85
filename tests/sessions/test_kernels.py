"""The kernels of the NAS kind meet the published values, or their own invariants."""

import json
import os
import subprocess
from pathlib import Path

import pytest

KERNELS = ["bt", "cg", "ep", "ft", "is", "lu", "mg", "sp", "ua"]


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Threads that spin would wait for processors that others use.
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
    return subprocess.run(
        [program, *arguments], env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_class_s_is_verified(built: Path, kernel: str) -> None:
    done = run(built / kernel, "S")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["kernel"] == kernel.upper()
    assert result["verified"] is True
    assert result["seconds"] > 0


def test_the_verification_can_fail(built: Path, tmp_path: Path) -> None:
    """A kernel whose arithmetic is wrong by one part in a million is not verified."""
    source = Path(__file__).resolve().parents[2] / "bench/nas"
    planted = {
        "cg.c": ("w->r[i] -= alpha * w->q[i];", "w->r[i] -= 1.000001 * alpha * w->q[i];"),
        "is.c": ("local[w->mine[i] - w->first]++;", "local[w->mine[i] - w->first] += i != 5;"),
        "mg.c": ("{-3.0 / 8, 1.0 / 32,", "{-3.000001 / 8, 1.0 / 32,"),
        "ft.c": ("#define ALPHA 1e-6", "#define ALPHA 1.000001e-6"),
        "ep.c": ("double a = u * scale,", "double a = 1.000001 * u * scale,"),
        "lu.c": ("#define OMEGA 1.2", "#define OMEGA 1.200001"),
        "bt.c": ("sweep(f, axis);", "sweep(f, axis ? axis : 1);"),
        "sp.c": ("#define HALF_ROOT 0.7071067", "#define HALF_ROOT 0.7071068"),
        "ua.c": ("sum += m->weight[e] * (x[i]", "sum += 1.1 * m->weight[e] * (x[i]"),
    }
    for name, (right, wrong) in planted.items():
        text = (source / name).read_text()
        assert right in text, name
        (tmp_path / name).write_text(text.replace(right, wrong))
        command = ["cc", "-O1", "-std=c11", "-fopenmp", "-I", str(source), str(tmp_path / name)]
        command += [str(source / "common.c"), str(source / "flow.c"), "-lm"]
        subprocess.run([*command, "-o", str(tmp_path / "wrong")], check=True)
        done = run(tmp_path / "wrong", "S")
        assert done.returncode == 1, name
        assert json.loads(done.stdout)["verified"] is False, name


def test_a_class_that_is_not_is_refused(built: Path) -> None:
    done = run(built / "bt", "Z")
    assert done.returncode == 64
    assert "one of SWA" in done.stderr
