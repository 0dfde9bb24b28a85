"""An emulated machine for tests: a stock Debian kernel, an initial file system
made here, and assertions on what it prints on its serial line.

The memory is parted as docs/design/minickpt-kernel.md says: ordinary memory, protected
memory (/dev/pmem0, an ext4 with DAX on /dax), and the area of the module.
"""

import os
import re
import select
import stat
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build/minickpt"
HERE = Path(__file__).resolve().parent

MEMORY_MIB = 1024
PMEM_AT_MIB, PMEM_MIB = 512, 248
AREA_AT_MIB, AREA_MIB = 760, 8
CRASH_MIB = 128
# What makes the kernel die of what it would otherwise survive badly.
PANIC_LINE = (
    "oops=panic softlockup_panic=1 nmi_watchdog=panic hung_task_panic=1 crash_kexec_post_notifiers"
)
COMMON_LINE = (
    # An emulator on a busy machine may be late for the kernel's timer test.
    f"console=ttyS0 quiet {PANIC_LINE} tsc=reliable no_timer_check nokaslr panic=-1 "
    f"memmap={PMEM_MIB}M!{PMEM_AT_MIB}M memmap={AREA_MIB}M${AREA_AT_MIB}M crashkernel={CRASH_MIB}M"
)
# The next kernel is told of all memory again, not only of its crash area; and
# an elfcorehdr that is none makes it an ordinary kernel, not one for a dump.
NEXT_LINE = (
    f"{COMMON_LINE} memmap={PMEM_AT_MIB - 1}M@1M "
    f"memmap={MEMORY_MIB - AREA_AT_MIB - AREA_MIB - 1}M@{AREA_AT_MIB + AREA_MIB}M "
    "reset_devices elfcorehdr=0xffffffffffffffff"
)
MODULES = ("libnvdimm", "nd_btt", "nd_pmem", "nd_e820")
# In the order of their dependencies. Checksums by instruction, as on every machine where
# udev or systemd loads modules: the other way is half of what a journal's commit costs.
FILE_SYSTEM = (
    *("lib/crc16", "crypto/crc32c_generic", "arch/x86/crypto/crc32c-intel"),
    *("fs/mbcache", "fs/jbd2/jbd2", "fs/ext4/ext4"),
)


class Failure(AssertionError):
    """A line that was awaited did not come; carries the end of the log."""


def cpio(entries: Iterable[tuple[str, int, bytes]]) -> bytes:
    """A "newc" archive, which the kernel unpacks, of (name, mode, data)."""
    out = bytearray()
    for number, (name, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        raw = name.encode() + b"\0"
        fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0]
        out += b"070701" + b"".join(b"%08x" % value for value in fields) + raw
        out += b"\0" * (-len(out) % 4) + data
        out += b"\0" * (-len(out) % 4)
    return bytes(out)


def release() -> str:
    """Of the kernel that prepare.sh fetched: its choice, or what OUTLIVE_KERNEL says."""
    named = os.environ.get("OUTLIVE_KERNEL")
    return named or (WORK / "release").read_text(encoding="ascii").strip()


def files() -> dict[str, Path]:
    """What every initial file system holds: name in it -> file here."""
    modules = WORK / "root/lib/modules" / release() / "kernel"
    held = {f"modules/{name}.ko": modules / f"drivers/nvdimm/{name}.ko" for name in MODULES}
    for number, name in enumerate(FILE_SYSTEM):
        # Some flavours have them built in.
        if (path := modules / f"{name}.ko").exists():
            held[f"modules/fs/{number}.ko"] = path
    for name in ("outlive_minickpt", "outlive_inject"):
        held[f"modules/{name}.ko"] = WORK / f"module/{release()}/minickpt/{name}.ko"
    for program in sorted((WORK / "programs").iterdir()):
        held[f"bin/{program.name}"] = program
    held["init"] = HERE / "init.sh"
    busybox = next(p for p in ("/bin/busybox", "/usr/bin/busybox") if os.path.exists(p))
    held["bin/busybox"] = Path(busybox)
    return held


# In the order of their dependencies.
NETWORK = (
    *("virtio/virtio_ring", "virtio/virtio", "virtio/virtio_pci_modern_dev"),
    *("virtio/virtio_pci_legacy_dev", "virtio/virtio_pci"),
    *("failover", "net/net_failover", "net/virtio_net"),
)


def network_modules() -> dict[str, Path]:
    """What a node of a network needs: modules/net/NN.ko in the order of loading."""
    root = WORK / "root/lib/modules" / release() / "kernel"
    places = {"failover": root / "net/core/failover.ko"}
    found = {name: places.get(name, root / f"drivers/{name}.ko") for name in NETWORK}
    return {f"modules/net/{n:02}.ko": path for n, path in enumerate(found.values())}


def disk_modules() -> dict[str, Path]:
    """What a disk of its own needs: modules/disk/NN.ko in the order of loading."""
    root = WORK / "root/lib/modules" / release() / "kernel/drivers"
    names = [f"virtio/{name.removeprefix('virtio/')}" for name in NETWORK if "virtio/" in name]
    found = [root / f"{name}.ko" for name in (*names, "block/virtio_blk")]
    return {f"modules/disk/{n:02}.ko": path for n, path in enumerate(found) if path.exists()}


def with_libraries(program: Path) -> dict[str, Path]:
    """A dynamically linked program with its loader and libraries, at their paths."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    found = {f"bin/{program.name}": program}
    for path in re.findall(r"(/\S+) \(0x", said):
        found[path.lstrip("/")] = Path(path)
    return found


def initrd(scenario: str, extra: Mapping[str, Path], line: str, to: Path) -> Path:
    """Writes the initial file system of the first boot. It carries the next
    kernel and the initial file system of that, which init puts on /dax.
    """
    directories = {"proc", "sys", "dev", "dax", "tmp", "boot"}

    def read(wanted: Mapping[str, Path]) -> list[tuple[str, int, bytes]]:
        for name in wanted:
            parts = name.split("/")[:-1]
            directories.update("/".join(parts[: i + 1]) for i in range(len(parts)))
        return [(n, stat.S_IFREG | 0o755, path.read_bytes()) for n, path in wanted.items()]

    entries = read({**files(), **extra})
    once = read(with_libraries(Path("/sbin/mke2fs")))
    entries.append(("scenario.sh", stat.S_IFREG | 0o755, scenario.encode()))
    entries.append(("next-line", stat.S_IFREG | 0o644, f"{NEXT_LINE} {line}".encode()))
    entries.append(("area", stat.S_IFREG | 0o644, f"{AREA_AT_MIB << 20} {AREA_MIB << 20}".encode()))
    folders = [(d, stat.S_IFDIR | 0o755, b"") for d in sorted(directories)]
    inner = cpio([*folders, *entries])
    kernel = (WORK / "root/boot" / f"vmlinuz-{release()}").read_bytes()
    outer = cpio(
        [
            *folders,
            *entries,
            *once,
            ("boot/initrd", stat.S_IFREG | 0o644, inner),
            ("boot/vmlinuz", stat.S_IFREG | 0o644, kernel),
        ]
    )
    to.write_bytes(outer)
    return to


def two_nodes() -> tuple[str, ...]:
    """Options of a machine with four processors on two NUMA nodes: two on each, and half of
    the memory. All that is reserved lies on node 1.
    """
    half = MEMORY_MIB // 2
    assert PMEM_AT_MIB >= half
    words: list[str] = []
    for node in range(2):
        words += ("-object", f"memory-backend-ram,id=m{node},size={half}M")
        words += ("-numa", f"node,nodeid={node},cpus={2 * node}-{2 * node + 1},memdev=m{node}")
    return tuple(words)


@dataclass
class Machine:
    """A machine that runs `scenario` (a shell script, see init.sh) at each boot.

    A scenario sees $BOOT (1 for the first) and prints; the test awaits lines.
    """

    scenario: str
    directory: Path
    cpus: int = 2
    extra: Mapping[str, Path] = field(default_factory=dict)
    line: str = ""
    options: tuple[str, ...] = ()
    lines: list[tuple[float, str]] = field(default_factory=list)
    read_to: int = 0

    def __enter__(self) -> "Machine":
        self.directory.mkdir(parents=True, exist_ok=True)
        image = initrd(self.scenario, self.extra, self.line, self.directory / "initrd")
        accel = os.environ.get("OUTLIVE_QEMU_ACCEL", "tcg")
        # No fast byte copies: the emulator makes them byte by byte, and where an earlier
        # kernel's code lay, it looks for translated code at each byte. A thread for each
        # processor has a trap too. (Both: docs/design/minickpt-kernel.md.)
        command = [
            os.environ.get("OUTLIVE_QEMU", "qemu-system-x86_64"),
            *("-accel", accel, "-machine", "q35", "-cpu", "max,-erms", "-smp", str(self.cpus)),
            *("-m", str(MEMORY_MIB), "-nographic", "-no-reboot", "-nodefaults"),
            *("-serial", "stdio", "-monitor", "none"),
            *("-kernel", str(WORK / "root/boot" / f"vmlinuz-{release()}")),
            *("-initrd", str(image), "-append", f"{COMMON_LINE} {self.line}"),
            *self.options,
            *os.environ.get("OUTLIVE_QEMU_MORE", "").split(),
        ]
        self.log = (self.directory / "serial.log").open("w", encoding="utf-8")
        self.started = time.monotonic()
        # pylint: disable=consider-using-with
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.rest = b""
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()
        (self.directory / "initrd").unlink(missing_ok=True)

    def _read(self, until: float) -> bool:
        """Takes what the machine printed; False at its end or at `until`."""
        out = self.process.stdout
        assert out is not None
        left = until - time.monotonic()
        if left <= 0 or not select.select([out], [], [], left)[0]:
            return False
        data = os.read(out.fileno(), 65536)
        if not data:
            return False
        now = time.monotonic() - self.started
        *whole, self.rest = (self.rest + data).split(b"\n")
        for line in whole:
            text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1bc|\r", "", line.decode(errors="replace"))
            self.lines.append((now, text))
            self.log.write(f"{now:8.2f} {text}\n")
        self.log.flush()
        return True

    def expect(
        self, pattern: str, timeout_s: float = 90.0, never: str = "BAD|Bad |Segmentation"
    ) -> re.Match[str]:
        """The next line that holds `pattern`; fails at one that holds `never`,
        at the machine's end and after `timeout_s` of this machine's time.
        """
        until = time.monotonic() + timeout_s
        alive = True
        while True:
            while self.read_to < len(self.lines):
                _, line = self.lines[self.read_to]
                self.read_to += 1
                if found := re.search(pattern, line):
                    return found
                if never and re.search(never, line):
                    # What follows says more.
                    while len(self.lines) < self.read_to + 40 and self._read(time.monotonic() + 1):
                        pass
                    raise Failure(f"awaiting {pattern!r}: {line}\n{self.tail()}")
            if not alive:
                raise Failure(f"{pattern!r} did not come\n{self.tail()}")
            alive = self._read(until)

    def expect_past(self, pattern: str) -> re.Match[str]:
        """The first line so far that holds `pattern`."""
        for _, line in self.lines:
            if found := re.search(pattern, line):
                return found
        raise Failure(f"{pattern!r} did not come\n{self.tail()}")

    def send(self, text: str) -> None:
        """Types on the serial line."""
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def tail(self, count: int = 60) -> str:
        """The last lines of the log, with seconds since the start."""
        return "\n".join(f"{at:8.2f} {line}" for at, line in self.lines[-count:])

    def when(self, pattern: str, nth: int = 1) -> float:
        """Seconds from the start to the nth line that holds `pattern`."""
        times = [at for at, line in self.lines if re.search(pattern, line)]
        return times[nth - 1]
