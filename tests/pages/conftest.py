"""An installation, as the pages have it made, and a directory to follow them in."""

import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "e2e"), str(Path(__file__).parent)]
from harness import TOKEN, kill, processes, until  # noqa: E402
from own_tmp import own_tmp as own_tmp  # noqa: E402
from pages import Step, differs  # noqa: E402
from skip import skip  # noqa: E402

BOUND_S = 120.0
# What the suites before this one have done; the rest is carried out.
DONE = {"make deps": "", "make build": "", "make python": ""}
# An agent may be so late on a busy machine that it counts as silent for a while.
SLOW = re.compile(r"^.* s  node \d+ (silent for|heard again).*\n", re.M)
HURRIED = "count python python3 python3.11"


class Reader:
    """Somebody who follows a page."""

    def __init__(self, work: Path, home: Path) -> None:
        self.work = work
        self.token = uuid.uuid4().hex
        self.exports = work / ".exports"
        self.printed = ""
        self.everything: list[tuple[str, str]] = []
        """Commands, and what each block of them printed."""
        path = f"{ROOT}/.deps/mpich/bin:{os.environ['PATH']}"
        mine = {k: v for k, v in os.environ.items() if not k.startswith(("OUTLIVE_", "PKG_CONFIG"))}
        self.environment = mine | {"HOME": str(home), "PATH": path, TOKEN: self.token}
        self.environment |= {"NO_COLOR": "1", "XDG_RUNTIME_DIR": str(work)}
        self.environment |= {"LD_LIBRARY_PATH": f"{home}/.local/lib"}

    def do(self, step: Step) -> None:
        """One step of the page."""
        if step.kind == "file":
            (self.work / step.name).write_text(step.text, encoding="utf-8")
        elif step.kind == "prints":
            wrong = differs(step.text, SLOW.sub("", self.printed))
            assert not wrong, f"line {step.line}: {wrong}\n{self.printed}"
        else:
            self.commands(step)

    def commands(self, step: Step) -> None:
        """Commands in a shell; all must end well."""
        lines = step.text.splitlines()
        text = "\n".join(f": '{line}'" if line.strip() in DONE else line for line in lines)
        # What is done in a clone is done in ours; the rest in a directory of the reader.
        clone = any(line.startswith("make ") for line in lines)
        exports = f". '{self.exports}' 2>/dev/null || true"
        script = (
            f"set -e\n{exports}\n{text}\nexport -p | grep -v ' LD_PRELOAD=' >'{self.exports}'\n"
        )
        with open(self.work / ".printed", "w+b") as out:
            shell = subprocess.Popen(
                ["/bin/bash", "-c", script],
                cwd=ROOT if clone else self.work,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            printed = self.work / ".printed"
            if step.name:
                until("some steps", lambda: "step 10" in printed.read_text("utf-8", "replace"), 60)
                pids = self.named(step.name)
                assert pids, f"nothing runs that is named {step.name}"
                for pid in pids:
                    kill(pid)
            try:
                status = shell.wait(BOUND_S)
            except subprocess.TimeoutExpired:
                shell.kill()
                status = "nothing: it hangs"
        self.printed = printed.read_text("utf-8", "replace")
        self.everything.append((step.text, self.printed))
        assert status == 0, f"line {step.line}: ended with {status}\n{step.text}\n{self.printed}"

    def named(self, name: str) -> list[int]:
        """As pkill -x finds them, among the processes of this reader only."""
        found = []
        for pid in processes(self.token):
            try:
                if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                    found.append(pid)
            except OSError:
                continue
        return found

    def gone(self) -> None:
        """Nothing of it is left."""
        end = time.monotonic() + 10
        while left := processes(self.token):
            if time.monotonic() > end:
                for pid in left:
                    kill(pid)
                raise AssertionError(f"left behind: {left}")
            time.sleep(0.01)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home directory with an installation in .local."""
    if not (ROOT / "target/release/outlive").exists():
        skip("install", "nothing is built; make build")
    home = tmp_path_factory.mktemp("home")
    done = subprocess.run(
        [ROOT / "scripts/install.sh", home / ".local"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return home


@pytest.fixture
def reader(tmp_path: Path, home: Path) -> Iterator[Reader]:
    """A reader with an empty directory, but for what the pages take from the clone."""
    (tmp_path / ".deps").symlink_to(ROOT / ".deps")
    if (ROOT / "build/examples/heat2d").exists():
        (tmp_path / "heat2d").symlink_to(ROOT / "build/examples/heat2d")
    hurry = tmp_path / ".hurry.so"
    words = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(hurry)]
    words += [str(Path(__file__).with_name("hurry.c")), "-ldl"]
    subprocess.run(words, check=True)
    reader = Reader(tmp_path, home)
    reader.environment |= {"LD_PRELOAD": str(hurry), "PAGES_HURRIED": HURRIED}
    yield reader
    reader.gone()
    shutil.rmtree(tmp_path / "store", ignore_errors=True)
