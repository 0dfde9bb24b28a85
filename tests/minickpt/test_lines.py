"""What the tests read on the serial line of a machine."""

from pathlib import Path

import pytest
from machine import Lines, Machine
from survival import went_on


def read(*lines: str) -> tuple[list[str], list[str]]:
    """The lines that came of these, and what a death cut off."""
    parted = Lines()
    return [parted.add(line) for line in lines], parted.cut


def test_a_message_of_the_kernel_parts_no_line() -> None:
    """Alone, in the middle of a line, at its end, and two in one line."""
    first, second = "[    1.234567] first", "[   12.345678] second"
    assert read("regs ok 16", first, "regs ok 32") == (["regs ok 16", first, "regs ok 32"], [])
    assert read(f"HANDED ON 22{first}", "99973") == ([first, "HANDED ON 2299973"], [])
    assert read(f"regs ok 16{first}", "") == ([first, "regs ok 16"], [])
    assert read(f"TI{first}", f"ME{second}", "S 1") == ([first, second, "TIMES 1"], [])


def test_what_a_death_cuts_off_is_no_line() -> None:
    """The next kernel's lines have nothing to do with it."""
    bug = "[    7.027773] BUG: kernel NULL pointer dereference"
    died = "[    7.040305] Kernel panic - not syncing: Fatal exception"
    lines, cut = read("regs ok 16", f"regs ok 3{bug}", died, "BOOT 2 ", "regs ok 48")
    assert (lines, cut) == (["regs ok 16", bug, died, "BOOT 2 ", "regs ok 48"], ["regs ok 3"])


@pytest.mark.parametrize(
    ("lines", "good"),
    [
        (["regs ok 16", "regs ok 32"], True),
        (["regs ok 16", "regs ok 48"], False),
        (["regs ok 16", "regs ok 16", "regs ok 32"], False),
        (["regs ok 16", "regs ok 3[    7.0] no message", "regs ok 48"], False),
        (["regs ok 16", "regs ok 3[    7.040305] Kernel panic", "regs ok 48"], True),
        (["regs ok 16", "regs ok 3[    7.040305] Kernel panic", "regs ok 64"], False),
        (["regs ok 16", "other[    7.040305] Kernel panic", "regs ok 48"], False),
    ],
)
def test_rounds_that_are_left_out(tmp_path: Path, lines: list[str], good: bool) -> None:
    """Only one that a death cut off may be missing."""
    m = Machine("", tmp_path)
    m.lines = [(0.0, m.parted.add(line)) for line in lines]
    if good:
        went_on(m, "regs ok", 16)
        return
    with pytest.raises(AssertionError):
        went_on(m, "regs ok", 16)
