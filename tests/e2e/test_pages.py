"""Programs that were not changed get huge pages under `outlive pages run`, and compute the same.
No time is asserted."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from harness import OUTLIVE, ROOT, until
from skip import skip
from test_json import documented, fields

MIB = 1 << 20
ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
STRICT = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"]
PR_SET_THP_DISABLE = 41


def chosen() -> str:
    """How transparent huge pages are switched on; empty: there are none."""
    text = ENABLED.read_text() if ENABLED.exists() else ""
    return text.partition("[")[2].partition("]")[0]


def needs_pages() -> None:
    """Skips where no program could have one."""
    if chosen() not in ("always", "madvise"):
        skip("transparent-huge-pages", f"they are not to be had: '{chosen()}'")


def compile_into(place: Path, source: Path, *words: str) -> Path:
    """Builds a program."""
    subprocess.run(["cc", *STRICT, *words, str(source), "-o", str(place)], check=True, timeout=60)
    return place


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with memory of every kind."""
    if not OUTLIVE.exists():
        skip("outlive-run", "the command is not built; make build")
    place = tmp_path_factory.mktemp("huge") / "huge"
    return compile_into(place, Path(__file__).parent / "programs" / "huge.c", "-pthread")


def run(*words: object, **more) -> subprocess.CompletedProcess:
    """Runs a command to its end."""
    command = [str(word) for word in words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **more)


def pages(*words: object, **more) -> subprocess.CompletedProcess:
    """`outlive pages`."""
    return run(OUTLIVE, "pages", *words, **more)


def parts_of(*words: object) -> tuple[dict[str, dict], list[str]]:
    """The memory of a program that waits, by kind, and what it printed until then."""
    command = [str(word) for word in words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as running:
        printed = []
        while not (line := running.stdout.readline()).startswith("pid "):
            assert line, "it ended"
            printed.append(line)
        status = json.loads(pages("status", "--pid", line.split()[1], "--json").stdout)
        running.stdin.write("\n")
        running.stdin.close()
        assert running.wait(timeout=60) == 0
    return {part["kind"]: part for part in status["process"]["parts"]}, printed


def test_memory_of_every_kind_becomes_huge_and_the_sums_stay(program: Path) -> None:
    needs_pages()
    plain, printed = parts_of(program, "wait")
    if chosen() == "madvise":  # otherwise it is huge anyway
        assert all(part["huge_bytes"] == 0 for part in plain.values()), plain
    huge, same = parts_of(OUTLIVE, "pages", "run", "--text", "copy", "--", program, "wait")
    assert same == printed
    # All but the ends. Of 48 MiB of data and bss, 64 MiB in mappings, 8 MiB of text; free memory
    # may be in pieces, where other tests run.
    for kind, mib in (("data", 40), ("mappings", 48), ("text", 4)):
        assert huge[kind]["huge_bytes"] >= mib * MIB, (kind, huge)


@pytest.mark.parametrize("options", [(), ("--text", "copy"), ("--least", "64KiB", "--text", "no")])
def test_what_programs_do_with_memory_has_the_same_results(
    program: Path, options: tuple[str, ...], tmp_path: Path
) -> None:
    plain = run(program)
    report = tmp_path / "report.json"
    huge = pages("run", *options, "--report", report, "--", program)
    assert (huge.returncode, huge.stdout) == (plain.returncode, plain.stdout)
    assert (plain.returncode, "parent 1" in plain.stdout) == (7, True)
    said = json.loads(report.read_text())
    # Before exec and after; the process that was forked only ended.
    assert (said["exit_status"], said["begun"], said["programs"]) == (
        7,
        2,
        [["exe", 1], ["huge", 1]],
    )
    assert "outlive: pages: " in huge.stderr
    assert fields(said) == documented()["outlive.pages-run/1"]
    for kind in ("data", "bss"):
        fate = said[kind]
        assert fate["done_bytes"] == fate["fits_bytes"] > 2 * 10 * MIB, said
    if options == ("--text", "copy"):
        assert said["text"]["done_bytes"] >= 2 * 6 * MIB, said
    if "no" in options:
        assert said["text"]["done_bytes"] == 0, said


def test_python_has_huge_pages_and_the_same_result() -> None:
    needs_pages()
    words = [
        "python3",
        "-c",
        "b = bytearray(64 << 20); b[5::4096] = b'x' * 16384; print(hash(bytes(b)))",
    ]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    plain, huge = run(*words, env=environment), pages("run", "--", *words, env=environment)
    assert plain.returncode == huge.returncode == 0, huge.stderr
    assert plain.stdout == huge.stdout


def test_what_the_user_has_set_stays_and_works(tmp_path: Path) -> None:
    source = tmp_path / "own.c"
    source.write_text(
        "#include <stdio.h>\n"
        '__attribute__((constructor)) static void hello(void) { puts("the user\'s"); }\n'
    )
    own = compile_into(tmp_path / "own.so", source, "-shared", "-fPIC")
    environment = os.environ | {"LD_PRELOAD": str(own), "GLIBC_TUNABLES": "glibc.malloc.check=0"}
    words = ["sh", "-c", "echo $LD_PRELOAD; echo $GLIBC_TUNABLES"]
    done = run(OUTLIVE, "pages", "run", "-q", "--", *words, env=environment)
    lines = [line for line in done.stdout.splitlines() if line != "the user's"]
    assert done.stdout.count("the user's") >= 1
    assert lines[0].startswith(f"{own}:/") and lines[0].endswith("liboutlive_pages.so")
    assert lines[1] == "glibc.malloc.check=0:glibc.malloc.hugetlb=1"
    environment["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=0"
    done = run(OUTLIVE, "pages", "run", "-q", "--", *words, env=environment)
    assert "glibc.malloc.hugetlb=0\n" in done.stdout and "hugetlb=1" not in done.stdout


def test_programs_that_take_no_library_are_told_and_run(tmp_path: Path, program: Path) -> None:
    source = tmp_path / "static.c"
    source.write_text("int main(void) { return 5; }\n")
    static = compile_into(tmp_path / "static", source, "-static")
    done = pages("run", "--", static)
    assert (done.returncode, "linked statically" in done.stderr) == (5, True), done.stderr
    privileged = tmp_path / "privileged"
    shutil.copy(static, privileged)
    privileged.chmod(0o4755)
    done = pages("run", "--", privileged)
    assert (done.returncode, "set-user-ID" in done.stderr) == (5, True), done.stderr


def test_huge_pages_that_are_forbidden_are_told_and_nothing_else_changes(program: Path) -> None:
    libc = ctypes.CDLL(None)
    forbid = {"preexec_fn": lambda: libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)}
    done = pages("run", "--", program, **forbid)
    assert (done.returncode, done.stdout) == (7, run(program).stdout)
    assert "forbidden" in done.stderr
    status = json.loads(pages("status", "--json", **forbid).stdout)
    assert status["machine"]["transparent"]["forbidden"] is True


def test_an_ordinary_user_has_them_too(program: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        return  # as all tests here
    place = tmp_path / "own"
    place.mkdir()
    os.chown(place, 65534, 65534)
    command = place / "outlive"
    shutil.copy(OUTLIVE, command)
    # All that pytest has made, however many processes it has.
    for path in (*tmp_path.parents, tmp_path, *program.parents):
        if path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(0o755)
    user = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": place}
    environment = os.environ | {"TMPDIR": str(place), "HOME": str(place)}
    report = place / "report.json"
    words = [command, "pages", "run", "--report", report, "--", program]
    done = run(*words, env=environment, **user)
    assert done.returncode == 7, done.stderr
    assert json.loads(report.read_text())["begun"] == 2
    refused = run(command, "pages", "status", "--pid", "1", env=environment, **user)
    assert (refused.returncode, "OL-402" in refused.stderr) == (74, True), refused.stderr
    # One that becomes another user meanwhile still finds the library.
    if shutil.which("setpriv"):
        become = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        shared = os.environ | {"TMPDIR": str(tmp_path)}
        done = pages("run", "--", *become, program, env=shared)
        assert (done.returncode, "ld.so" in done.stderr) == (7, False), done.stderr


def test_status_and_signals_are_the_programs_own() -> None:
    assert pages("run", "--", "sh", "-c", "kill -TERM $$").returncode == 128 + signal.SIGTERM
    words = [
        OUTLIVE,
        "pages",
        "run",
        "--",
        "sh",
        "-c",
        "trap 'exit 6' TERM; echo ready; while :; do sleep 0.1; done",
    ]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=60) == 6
    missing = pages("run", "--", "no-such-program-here")
    assert (missing.returncode, "OL-505" in missing.stderr) == (127, True)


def test_what_was_left_running_goes_on(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    done = pages(
        "run", "-q", "--", "sh", "-c", f"(sleep 0.5; echo later > {mark}) > /dev/null 2>&1 &"
    )
    assert done.returncode == 0
    until("what was left running goes on", lambda: mark.exists() and mark.read_text() == "later\n")


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_library_compiles_without_a_warning(compiler: str, tmp_path: Path) -> None:
    if not shutil.which(compiler):
        skip(f"pages-{compiler}", f"no {compiler}")
    source = ROOT / "crates" / "node" / "c" / "pages.c"
    words = [compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fPIC"]
    done = run(*words, "-c", source, "-o", tmp_path / "pages.o")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_library_can_be_had_for_settings_of_ones_own(tmp_path: Path, program: Path) -> None:
    library = tmp_path / "lib.so"
    done = pages("library", library)
    assert f"LD_PRELOAD={library} GLIBC_TUNABLES=" in done.stderr
    account = tmp_path / "account"
    account.touch()
    environment = {"LD_PRELOAD": str(library), "OUTLIVE_PAGES_REPORT": str(account)}
    assert run(program, env=os.environ | environment).stdout == run(program).stdout
    assert account.read_text().startswith("begin ")


def test_data_stays_where_threads_could_write_it(tmp_path: Path) -> None:
    library = tmp_path / "early.c"
    library.write_text(
        "#include <pthread.h>\n#include <unistd.h>\n"
        "static void *rest(void *none) { for (;;) pause(); return none; }\n"
        "__attribute__((constructor)) static void early(void)\n"
        "{ pthread_t thread; pthread_create(&thread, 0, rest, 0); }\n"
        "int given(void) { return 3; }\n"
    )
    compile_into(tmp_path / "libearly.so", library, "-shared", "-fPIC", "-pthread")
    source = tmp_path / "late.c"
    source.write_text(
        "extern int given(void);\nint data[4 << 20] = {1};\n"
        "int main(int count, char **words) { (void)words; return data[count] + given(); }\n"
    )
    rest = ["-L", str(tmp_path), "-learly", f"-Wl,-rpath,{tmp_path}"]
    built = tmp_path / "late"
    subprocess.run(["cc", *STRICT, str(source), "-o", str(built), *rest], check=True, timeout=60)
    report = tmp_path / "report.json"
    assert pages("run", "--report", report, "--", built).returncode == 3
    data = json.loads(report.read_text())["data"]
    assert (data["done_bytes"], data["fits_bytes"] > 10 * MIB) == (0, True)
    assert "threads" in data["reasons"][0]


def test_reserved_pages_are_taken_where_there_are_some_and_else_the_line_is_said(
    program: Path,
) -> None:
    pools = json.loads(pages("status", "--json").stdout)["machine"]["pools"]
    free = sum(p["free"] - p["reserved"] for p in pools if p["bytes"] == 2 * MIB)
    done = pages("run", "--hugetlbfs", "--", program)
    if free == 0 and not any(pool["overcommit"] for pool in pools):
        assert (done.returncode, done.stdout) == (74, "")
        assert "OL-404" in done.stderr and "nr_hugepages" in done.stderr
    elif free >= 200:  # enough for both sides of its fork
        assert (done.returncode, done.stdout) == (7, run(program).stdout)
