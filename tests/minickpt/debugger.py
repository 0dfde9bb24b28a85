"""The emulator's debugger (QEMU's gdb stub): stops a processor at an instruction, goes on
instruction by instruction, lets one processor run while another stands.
"""

import socket
import time
from pathlib import Path

# What QEMU's `g` packet begins with on x86-64: 16 general registers, rip, eflags, six
# selectors of 4 bytes, then the bases of FS and GS and the other base of GS.
NAMES = "rax rbx rcx rdx rsi rdi rbp rsp r8 r9 r10 r11 r12 r13 r14 r15 rip".split()
BASES_AT = 17 * 8 + 7 * 4


class Debugger:
    """One connection; the machine stands whenever no call of `go` is under way."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(120)
        self.socket.connect(str(path))
        self.rest = b""
        # The machine stops for a debugger, and says so.
        self.receive()
        # The list of registers decides what `g` gives.
        self.ask("qSupported:multiprocess+;xmlRegisters=i386")
        self.ask("qXfer:features:read:target.xml:0,ffb")

    def send(self, text: str) -> None:
        """A packet."""
        data = text.encode()
        self.socket.sendall(b"$" + data + b"#%02x" % (sum(data) & 255))

    def receive(self) -> str:
        """The next packet."""
        while True:
            start = self.rest.find(b"$")
            end = self.rest.find(b"#", start)
            if start >= 0 and 0 <= end and end + 2 < len(self.rest):
                data, self.rest = self.rest[start + 1 : end], self.rest[end + 3 :]
                self.socket.sendall(b"+")
                return data.decode(errors="replace")
            more = self.socket.recv(65536)
            if not more:
                raise ConnectionError("the emulator has ended")
            self.rest += more

    def ask(self, text: str) -> str:
        """A packet and its answer."""
        self.send(text)
        return self.receive()

    def registers(self, cpu: int) -> dict[str, int]:
        """Of a processor that stands."""
        assert self.ask(f"Hgp1.{cpu + 1:x}") == "OK"
        data = bytes.fromhex(self.ask("g").replace("x", "0"))
        words = {n: int.from_bytes(data[i * 8 : i * 8 + 8], "little") for i, n in enumerate(NAMES)}
        for number, name in enumerate(("fs_base", "gs_base", "k_gs_base")):
            at = BASES_AT + number * 8
            words[name] = int.from_bytes(data[at : at + 8], "little")
        return words

    def stop_at(self, address: int) -> None:
        """Any processor stops there."""
        assert self.ask(f"Z1,{address:x},1") == "OK"

    def stop_no_more_at(self, address: int) -> None:
        """Undoes `stop_at`."""
        assert self.ask(f"z1,{address:x},1") == "OK"

    def go(self, cpu: int | None = None, step: bool = False) -> int:
        """All processors, or only one, until something stops: which one that was."""
        which = "" if cpu is None else f":p1.{cpu + 1:x}"
        said = self.ask(f"vCont;{'s' if step else 'c'}{which}")
        return int(said.split("thread:")[1].split(";")[0].split(".")[-1], 16) - 1

    def halt(self) -> None:
        """Stops a running machine."""
        self.socket.sendall(b"\x03")
        self.receive()

    def run(self, cpu: int) -> None:
        """One processor, without waiting for anything; `halt` ends it."""
        self.send(f"vCont;c:p1.{cpu + 1:x}")

    def close(self) -> None:
        """Lets the machine run, without a debugger."""
        self.send("D;1")
        time.sleep(0.1)
        self.socket.close()
