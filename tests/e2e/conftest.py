"""What the end-to-end tests share: the built test program, and a job of its own."""

import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]
from harness import LEFT_S, OUTLIVE, Job
from own_tmp import own_tmp as own_tmp
from seed import seed as seed
from skip import skip


def pytest_configure(config: pytest.Config) -> None:
    """Tests run beside each other but for those that change the machine, keep it busy on
    purpose or measure it."""
    config.addinivalue_line("markers", "alone: nothing may run beside it")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A test that fails shows what its job said and where it stands, before its processes are
    ended: who reads it may have no other trace of it."""
    outcome = yield
    report = outcome.get_result()
    job = getattr(item, "funcargs", {}).get("job")
    if report.failed and report.when == "call" and isinstance(job, Job):
        report.sections += job.stands()


@pytest.fixture(scope="session", autouse=True)
def signals() -> None:
    """Who runs the tests in the background, or under nohup, has them ignore signals, and so
    would the command. One that is caught here is back at its default there."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.fixture(scope="session")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test program, built against the library beside the command."""
    if not OUTLIVE.exists():
        skip("outlive-run", "the command is not built; make build")
    library = OUTLIVE.parent / "liboutlive.so"
    if not library.exists():
        skip("liboutlive", "the library is not built; make build")
    built = tmp_path_factory.mktemp("ring")
    (built / "liboutlive.so").symlink_to(library)
    (built / "liboutlive.so.0").symlink_to(library)
    source = Path(__file__).parent / "programs" / "ring.c"
    words = ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]
    words += ["-I", str(ROOT / "crates" / "client" / "include"), str(source)]
    words += ["-o", str(built / "ring"), "-L", str(built), "-loutlive"]
    subprocess.run(words, check=True, timeout=60)
    return built / "ring"


@pytest.fixture
def job(tmp_path: Path, ring: Path) -> Iterator[Job]:
    """A job of 6 ranks on 3 nodes; afterwards nothing of it may be left."""
    job = Job(tmp_path, ring, uuid.uuid4().hex)
    yield job
    job.gone(LEFT_S)
