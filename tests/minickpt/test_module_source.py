"""Rules for the C of the kernel module that no compiler checks.

Each rule is a function from text to violations, tried on a planted one too.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "kernel/minickpt"

# What a dying kernel must not do: allocate, sleep, or wait for a lock that a
# stopped processor may hold.
FORBIDDEN = (
    r"k[mzvc]\w*alloc|vmalloc|alloc_pages\w*|kfree|get_free_page\w*|"
    r"mutex_lock\w*|spin_lock\w*|raw_spin_lock\w*|read_lock|write_lock|down\w*|rcu_read_lock|"
    r"task_lock|mmap_read_lock|lock_task_sighand|wait_event\w*|msleep|schedule\w*|d_path|"
    r"copy_(?:from|to)_user|get_user|put_user|fget|mas_\w+|find_vma"
)


def dying_functions(source: str) -> list[tuple[str, str]]:
    """(name, body) of every function marked __dying that is defined here."""
    found = []
    for match in re.finditer(r"^[\w *]*__dying[\w *]*?\*?(\w+)\([^;{]*\)\n\{", source, re.M):
        end = source.index("\n}\n", match.end())
        found.append((match[1], source[match.end() : end]))
    return found


def dying_violations(name: str, source: str) -> list[str]:
    """Forbidden calls in dying functions."""
    code = re.sub(r"/\*.*?\*/", "", source, flags=re.S)
    return [
        f"{name}: {function}() calls {call}"
        for function, body in dying_functions(code)
        for call in re.findall(rf"(?<![\w.>])((?:{FORBIDDEN}))\(", body)
    ]


def style_violations(name: str, source: str) -> list[str]:
    """The kernel's coding style, as far as lines show it."""
    lines = source.splitlines()
    found = [] if "SPDX-License-Identifier: " in lines[0] else [f"{name}: no SPDX line"]
    for number, line in enumerate(lines, 1):
        columns = len(line.expandtabs(8))
        # A message stays in one piece, so that it can be searched for.
        if columns > 100 and '"' not in line:
            found.append(f"{name}:{number}: {columns} columns")
        if line != line.rstrip():
            found.append(f"{name}:{number}: blanks at the end")
        if re.match(r" {8}", line):
            found.append(f"{name}:{number}: indented by blanks")
        if re.search(r"(?<!:)//", line) and number > 1:
            found.append(f"{name}:{number}: a // comment")
    if len(lines) > 500:
        found.append(f"{name}: {len(lines)} lines")
    return found


def sources() -> list[Path]:
    """All C of the kernel directory."""
    return sorted(p for kind in ("c", "h") for p in (ROOT / "kernel").rglob(f"*.{kind}"))


def test_a_dying_kernel_allocates_nothing_and_takes_no_lock() -> None:
    """In the module, and on a planted violation."""
    count = 0
    for path in sources():
        source = path.read_text(encoding="utf-8")
        assert not dying_violations(path.name, source)
        count += len(dying_functions(source))
    assert count > 40
    planted = (
        "static u32 __dying bad(struct a *b)\n{\n\tspin_lock(&b->lock);\n\tkmalloc(1, 2);\n}\n"
    )
    assert len(dying_violations("x.c", planted)) == 2


def test_style() -> None:
    """In the module, and on planted violations."""
    for path in sources():
        assert not style_violations(path.name, path.read_text(encoding="utf-8"))
    assert len(style_violations("x.c", "int a;\n        b; // c \n")) == 4


def test_the_abi_has_no_types_of_changing_size() -> None:
    """Structures of the ABI keep their sizes: images outlive modules."""
    places = (ROOT / "kernel/include/uapi").glob("outlive_minickpt*.h")
    header = "".join(path.read_text(encoding="utf-8") for path in places)
    words = dict.fromkeys(re.findall(r"^struct (omk_\w+) \{", header, re.M))
    assert {"omk_super", "omk_image", "omk_rec", "omk_process", "omk_thread", "omk_special"} <= set(
        words
    )
    assert not re.findall(r"^\t(?:int|long|char \*|size_t|void)\b", header, re.M)
