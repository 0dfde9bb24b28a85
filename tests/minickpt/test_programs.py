"""Unmodified programs from Debian over two deaths: what they wrote into a file is what
they write undisturbed, byte by byte.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import HERE, LONG, prepare
from machine import WORK, Machine, with_libraries
from skip import skip
from survival import scenario, survive

Make = Callable[..., Machine]
pytestmark = pytest.mark.skipif(not LONG, reason="in make test-minickpt")

PYTHON = Path("/usr/bin/python3")
# Files in it are written through to their metadata at each write. NumPy keeps from what
# emulators of 2022 do not do well: with it eigenvalues do not converge there, protected or not.
SOURCES = {
    "python": "floats.py",
    "numpy": "arrays.py",
    "asyncio": "loop.py",
    "sqlite": "database.py",
}
OUT = """
export NPY_DISABLE_CPU_FEATURES="AVX2 FMA3"
export PYTHONHOME=/usr PYTHONPATH=/usr/lib/python3/dist-packages OMP_WAIT_POLICY=passive
export DATABASE=/dax/out/database
[ $BOOT = 1 ] && mkdir /dax/out && chattr +S /dax/out
"""
# Calls in flight are made at least once: a line may be there twice, one after the other.
SAME = """
uniq /dax/out/kept >/tmp/kept
lines=$(grep -c end /tmp/kept)
echo "UNDISTURBED from here"
{words} /dax/never $lines >/dax/out/alone
cmp /tmp/kept /dax/out/alone && echo "SAME $lines $(sha256sum </tmp/kept)" || echo "BAD output"
"""


FORKS = 'NEXT="--fork copy $NEXT"\n'
# A call on a socket that was under way would cost it the socket, as the reference says.
PAUSE = "touch /dax/stop.pause; usleep 2000000"
# Two more lines than there were: it runs.
MORE = """
lines=$(grep -c end /dax/out/kept)
for i in $(seq 600); do
    [ $(grep -c end /dax/out/kept) -ge $((lines + 2)) ] && break
    usleep 100000
done
[ $i -lt 600 ] || echo "BAD no more lines"
"""


@pytest.fixture(scope="session")
def packages() -> Path:
    """Packages of Debian, unpacked."""
    prepare("packages")
    return WORK / "debian"


def modules(environment: dict[str, str], program: str, path: str) -> list[Path]:
    """The files of python3 that a program imports, and the libraries that it maps."""
    if not PYTHON.exists():
        skip("minickpt", "Debian's python3 is not installed")
    ask = f"import sys\nsys.path[:0] = [{path!r}]\nsys.argv = ['x', '/dev/null/x', '1']\n"
    ask += f"exec(compile(open({program!r}).read(), 'program', 'exec'))\n"
    ask += "import encodings.latin_1, encodings.ascii\n"
    ask += "for m in list(sys.modules.values()): print('FILE', getattr(m, '__file__', None))\n"
    ask += "for line in open('/proc/self/maps'): print('FILE', line.split()[-1])\n"
    said = subprocess.run(
        [PYTHON, "-I", "-S", "-c", ask],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    ).stdout
    found = {Path(name) for name in re.findall(r"^FILE (/.*)", said, re.M)}
    return sorted(p for p in found if p.is_file())


def debian_python(program: Path, packages: Path) -> dict[str, Path]:
    """Debian's python3, NumPy, and those of their files that the program needs."""
    libraries = packages / "usr/lib/x86_64-linux-gnu"
    places = ":".join(str(libraries / part) for part in ("", "blas", "lapack"))
    environment = {"LD_LIBRARY_PATH": places}
    dist = packages / "usr/lib/python3/dist-packages"
    held = with_libraries(PYTHON.resolve())
    for path in modules(environment, str(program), str(dist)):
        if "python3" not in str(path) and ".so" in path.name:
            # Its loader knows it by its soname, in its usual place.
            held.setdefault(f"lib/x86_64-linux-gnu/{soname(path)}", path)
        else:
            base = packages if path.is_relative_to(packages) else Path("/")
            held[str(path.relative_to(base))] = path
    held[program.name] = program
    # It is there as bin/ already: the next kernel's memory is small.
    del held[f"usr/bin/{PYTHON.resolve().name}"]
    return held


def soname(library: Path) -> str:
    """By which others name a library."""
    said = subprocess.run(
        ["objdump", "-p", library], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"SONAME\s+(\S+)", said)
    return found[1] if found else library.name


def go(source: Path) -> Path:
    """A program of Go, with its collector and its own waiting for events."""
    place = shutil.which("go") or "/usr/local/go/bin/go"
    if not Path(place).exists():
        skip("minickpt", "Go is not installed")
    built = WORK / "programs-go" / source.stem
    built.parent.mkdir(exist_ok=True)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}
    words = [place, "build", "-o", str(built), str(source)]
    subprocess.run(words, check=True, env=environment, cwd=source.parent)
    return built


def of(program: str, packages: Path) -> tuple[str, dict[str, Path]]:
    """The words that start a program, and its files."""
    programs = HERE / "programs"
    if program == "shell":
        files = {**with_libraries(Path("/bin/dash")), "loop.sh": programs / "loop.sh"}
        return "/bin/dash /loop.sh", files
    if program in SOURCES:
        source = programs / SOURCES[program]
        binary = PYTHON.resolve().name
        return f"/bin/{binary} -S /{source.name}", debian_python(source, packages)
    if program == "go":
        return "/bin/collect", {"bin/collect": go(programs / "collect.go")}
    threads = program.removeprefix("openmp-")
    return f"/bin/omp {threads}", with_libraries(WORK / "dynamic/omp")


@pytest.mark.parametrize(
    "program",
    ["shell", "python", "numpy", "openmp-8", "openmp-512", "go", "asyncio", "sqlite"],
)
def test_a_file_is_what_it_would_be(
    machine: Make, outlive: dict[str, Path], packages: Path, program: str
) -> None:
    """A shell, Python with floats, NumPy with its libraries, OpenMP with eight threads
    and with 512, Go with its collector, an event loop of Python, SQLite whose locks other
    processes meet: their file after two deaths equals that of a run without any.
    """
    words, files = of(program, packages)
    files |= with_libraries(Path("/usr/bin/chattr"))
    text = scenario(
        f"{words} /dax/stop >/dax/out/kept",
        ["null", "panic"],
        early=OUT + "rm -f /dax/stop.pause\n" + (FORKS if program == "sqlite" else ""),
        before=MORE + (PAUSE if program == "asyncio" else ""),
        last=MORE,
        after=SAME.format(words=words),
    )
    with machine(text, extra={**outlive, **files}) as m:
        survive(m, 2, 400)
        assert int(m.expect(r"^SAME (\d+) [0-9a-f]{64}", 300)[1]) >= 6
        print(m.expect_past("^SAME .*")[0])


# What is typed before the first death, between them, and after the last. The last
# undoes what was typed before the second death: vi's memory of changes is kept too.
KEYS = [
    "ione\rtwo\x1b:w\rothree\x1b:w! /dax/out/mark1\r",
    "ofour\x1bofive\x1b:w! /dax/out/mark2\r",
    "u:w! /dax/out/mark3\rosix\x1b:wq\r",
]
VI = "/bin/vim.tiny -u NONE -i NONE"


def test_vi_goes_on_where_it_was(machine: Make, outlive: dict[str, Path], packages: Path) -> None:
    """vi of Debian on a terminal: text that was never written, and what it can undo."""
    files = with_libraries(packages / "usr/bin/vim.tiny")
    files |= with_libraries(Path("/usr/bin/chattr"))
    # Its terminal is as it set it, after a death too.
    typed = """
    until stty -a </dev/console | grep -qe -icanon; do usleep 100000; done
    echo; echo "TYPE $BOOT"
    until [ -s /dax/out/mark$BOOT ]; do usleep 100000; done
    """
    after = f"""
    stty sane </dev/console
    {VI} /dax/out/alone </dev/console >/dev/console & P=$!
    until stty -a </dev/console | grep -qe -icanon; do usleep 100000; done
    echo; echo "TYPE undisturbed"
    wait $P
    cmp /dax/out/text /dax/out/alone || echo "BAD output"
    echo; echo "SAME $(tr '\\n' , </dax/out/text)"
    """
    text = scenario(
        f"{VI} /dax/out/text </dev/console >/dev/console",
        ["null", "panic"],
        early=OUT + "export TERM=ansi\n",
        before=typed,
        last=typed,
        after=after,
    )
    with machine(text, extra={**outlive, **files}) as m:
        for boot, part in enumerate(KEYS, 1):
            m.expect(f"TYPE {boot}", 240)
            m.send(part)
        m.expect("EXIT 0", 120)
        m.expect("TYPE undisturbed", 60)
        m.send("".join(KEYS))
        assert m.expect(r"SAME (\S*)", 60)[1] == "one,two,three,four,six,"
