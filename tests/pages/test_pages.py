"""The tutorial and the pages for languages, followed word by word."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Reader
from pages import differs, shape, steps, transcript
from skip import skip


def follow(reader: Reader, page: str) -> None:
    """Everything that the page says."""
    all_steps = steps((ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert any(step.kind == "file" for step in all_steps)
    assert any("outlive run" in step.text for step in all_steps)
    for step in all_steps:
        reader.do(step)


def installed(reader: Reader, home: Path) -> None:
    """What a page takes for granted that follows the installation."""
    reader.environment["PATH"] = f"{home}/.local/bin:{reader.environment['PATH']}"
    reader.environment["PKG_CONFIG_PATH"] = f"{home}/.local/lib/pkgconfig"


def test_the_tutorial(reader: Reader) -> None:
    done = subprocess.run(
        [ROOT / ".deps/python/bin/python", "-c", "import outlive"], capture_output=True
    )
    if done.returncode != 0:
        skip("outlive-python", "the package is not built; make python")
    follow(reader, "tutorial.md")
    # What it says in words: the same digits however often it was killed, and from where.
    sums: dict[str, set[str]] = {}
    hurts = 0
    for commands, printed in reader.everything:
        for line in commands.replace("\\\n", " ").splitlines():
            program = "python" if "python" in line else "count"
            found = re.findall(r"^sum (\S+)$", printed, re.M)
            if found:
                sums.setdefault(program, set()).add(found[-1])
            hurt = "--inject rank" in line or line.startswith("outlive run --job count --every")
            hurts += hurt
            if hurt:
                assert re.search(r"rank:?\s?0.* lost", printed), printed
                assert re.search(r"version \d+ (restored|rebuilt|is in memory)", printed), printed
            if "--report report.json" in line:
                report = json.loads((reader.work / "report.json").read_text())
                assert [failure["level"] for failure in report["failures"]] == ["partner"], report
    assert all(len(values) == 1 for values in sums.values()), sums
    assert hurts >= 3, "nobody is killed any more"
    assert "count" in sums and "python" in sums, sums
    assert {float(*values) for values in sums.values()} == {float(*sums["count"])}, sums


@pytest.mark.parametrize("page", ["how-to/cpp.md", "how-to/fortran.md"])
def test_a_language(reader: Reader, home: Path, page: str) -> None:
    if "fortran" in page and not shutil.which("gfortran"):
        skip("gfortran", "gfortran is not installed")
    installed(reader, home)
    follow(reader, page)


# Whether MPICH's mpirun still says that a rank was killed, before it is ended itself, is a race;
# so is whether a rank that it then killed is seen before the loss of a node is known,
# and whether an agent is so late on a busy machine that it counts as silent for a while.
NOT_OURS = re.compile(
    r"^(=+|=   .*|YOUR APPLICATION TERMINATED .*|This typically refers .*|Please see the FAQ .*"
    r"|.* s  rank:\d+ lost: signal 9 \(SIGKILL\).*"
    r"|.* s  node \d+ (silent for|heard again).*)\n",
    re.M,
)


def test_the_transcript_of_the_readme() -> None:
    """What `make demo` prints has the shape that the README shows."""
    done = subprocess.run(
        [ROOT / "scripts/demo.sh"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    shown = transcript((ROOT / "README.md").read_text(encoding="utf-8"), "transcript")
    printed = NOT_OURS.sub("", done.stdout)
    wrong = differs("...\n" + shown, printed)
    assert not wrong, f"{wrong}\n{done.stdout}"


README_RUNS = ("outlive simulate ",)


def test_the_commands_of_the_readme(reader: Reader, home: Path) -> None:
    """Those that need nothing but the installation."""
    installed(reader, home)
    ran = 0
    for step in steps((ROOT / "README.md").read_text(encoding="utf-8"), files=False):
        if step.kind == "commands" and step.text.startswith(README_RUNS):
            reader.do(step)
            ran += 1
    assert ran > 0


def test_the_parser_and_the_comparison() -> None:
    page = (
        "# T\n\nSave this as `a.c`:\n\n```c\nint main(void) {}\n```\n\n"
        "```python\nimport outlive\n```\n\nRun:\n\n    cc a.c\n    ./a.out\n\n"
        "```\nstep 1 at 0.5 s\n...\nend\n```\n\nIn another terminal: `pkill -9 -x a`.\n\n"
        "- a list\n\n    goes on\n\n"
        "Now:\n\n    python b.py\n\nwith `pkill -9 -x b`\n"
    )
    found = [(step.kind, step.name) for step in steps(page)]
    want = [("file", "a.c"), ("file", "b.py"), ("commands", ""), ("prints", "")]
    assert found == [*want, ("commands", "b")]
    assert shape("digest c12eafb777a3a984") == shape("digest 00000000000000ab")
    assert shape("kept /tmp/x/y/file: 12.5 ms") == shape("kept /home/file:  3 ms")
    assert not differs("a 1\n...\nc 2\n", "a 7\nb\nb\nc 8\n")
    assert differs("a 1\nc 2\n", "a 7\nb\nc 8\n")
    assert differs("a\n...\nd\n", "a\nb\n")
    assert not differs("...\nb \\\n  c\n", "a\nb c\n")
    with pytest.raises(ValueError, match="nothing names"):
        steps("```c\nint main(void) {}\n```\n")
    assert sys.version_info >= (3, 9)
