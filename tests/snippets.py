#!/usr/bin/env python3
"""Writes the whole programs of the documentation to a directory.

    python3 tests/snippets.py DIRECTORY

A fenced block marked ``c``, ``cpp``, ``fortran`` or ``python`` is a whole program if it has
a main function or opens a job by itself. Prints the files, so that they can be compiled.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(c|cpp|fortran|python)\n(.*?)^```$", re.M | re.S)
WHOLE = {"c": "int main(", "cpp": "int main(", "fortran": "program ", "python": "import outlive"}
SUFFIX = {"c": "c", "cpp": "cpp", "fortran": "f90", "python": "py"}


def programs(text: str) -> list[tuple[str, str]]:
    """The whole programs of a page, as (language, source)."""
    return [(kind, code) for kind, code in BLOCK.findall(text) if WHOLE[kind] in code]


def main() -> int:
    """The command."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    found = 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        for number, (kind, code) in enumerate(programs(page.read_text(encoding="utf-8")), 1):
            path = directory / f"{page.stem}-{number}.{SUFFIX[kind]}"
            path.write_text(code, encoding="utf-8")
            print(path)
            found += 1
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
