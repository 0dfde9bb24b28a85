"""A page of the documentation as its reader would follow it.

The page is what is run: its programs are saved, its commands carried out in order, and
what they print is compared with what the page shows. Conventions of the pages:

- An indented block is commands for the shell. Variables that it exports stay.
- A fenced block in a language is a file if it is a whole program (see tests/snippets.py):
  the one that ``Save this as `NAME` `` names before it, else the first file with such a suffix
  in the next commands.
- A fenced block without a language, or ``text``, after commands is what they print, in
  part: ``...`` is any number of lines, and numbers, times and paths may be others.
- `` `pkill -9 -x NAME` `` in the text after commands is done while they run.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from snippets import SUFFIX, WHOLE  # noqa: E402

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$\n?", re.M | re.S)
NAMED = re.compile(r"[Ss]ave this as `([^`]+)`")
KILLED = re.compile(r"`pkill -9 -x (\w+)`")


@dataclass
class Step:
    """One thing that a reader does."""

    line: int
    kind: str
    """``file``, ``commands`` or ``prints``."""
    text: str
    name: str = ""
    """Of the file; of the program that is killed meanwhile."""


def steps(page: str, files: bool = True) -> list[Step]:
    """What a reader does, in order; without ``files`` no program is saved."""
    found: list[Step] = []
    for line, kind, text in blocks(page):
        if kind == "prose":
            if (killed := KILLED.search(text)) and found and found[-1].kind == "commands":
                found[-1].name = killed[1]
        elif kind == "commands":
            found.append(Step(line, kind, text))
        elif kind in ("", "text"):
            if found and found[-1].kind == "commands":
                found.append(Step(line, "prints", text))
        elif files and kind in WHOLE and WHOLE[kind] in text:
            found.append(Step(line, "file", text, SUFFIX[kind]))
    prose = page.splitlines()
    for nth, step in enumerate(found):
        if step.kind == "file":
            step.name = file_name(step, prose[: step.line - 1], found[nth + 1 :])
    return found


def blocks(page: str) -> list[tuple[int, str, str]]:
    """(line, language or ``prose`` or ``commands``, text), in order."""
    found: list[tuple[int, str, str]] = []
    last = 0
    for fence in FENCE.finditer(page):
        found += indented(page, last, fence.start())
        found.append((page.count("\n", 0, fence.start()) + 1, fence[1], fence[2]))
        last = fence.end()
    return found + indented(page, last, len(page))


def indented(page: str, start: int, end: int) -> list[tuple[int, str, str]]:
    """Commands and prose between two fences."""
    found: list[tuple[int, str, str]] = []
    line = page.count("\n", 0, start) + 1
    was_list = False
    for paragraph in re.split(r"(\n{2,})", page[start:end]):
        lines = paragraph.split("\n")
        body = [one for one in lines if one.strip()]
        commands = body and all(one.startswith("    ") for one in body) and not was_list
        if body:
            kind = "commands" if commands else "prose"
            text = "\n".join(one[4:] if commands else one for one in body)
            if commands and found and found[-1][1] == "commands":
                found[-1] = (found[-1][0], kind, found[-1][2] + "\n" + text)
            else:
                found.append((line, kind, text))
            if not commands:
                was_list = body[0].lstrip().startswith(("- ", "* ", "1. "))
        line += paragraph.count("\n")
    return found


def file_name(step: Step, before: list[str], after: list[Step]) -> str:
    """Under which name a program is saved."""
    for line in reversed([line for line in before if line.strip()][-3:]):
        if named := NAMED.search(line):
            return named[1]
    for other in after:
        words = re.findall(rf"(?<![\w./-])[\w.-]+\.{step.name}\b", other.text)
        if other.kind == "commands" and words:
            return words[0]
    raise ValueError(f"line {step.line}: nothing names this program; write: Save this as `NAME`")


NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def shape(line: str) -> str:
    """A line without what varies: numbers, digests, spaces, directories."""
    line = re.sub(r"(?:/[\w.+-]+)+/(?=[\w.+-])", "/", line)
    line = re.sub(r"\b[0-9a-f]{16}\b", "DIGEST", line)
    # When an outsider killed it is known or not: the agent or the launcher may see it first.
    line = re.sub(r"(rank:\d+ lost: .*); detected in .*", r"\1", line)
    line = NUMBER.sub("N", line)
    line = re.sub(r"\bN (?:ns|us|ms|s|min|h)\b", "N s", line)
    line = re.sub(r"\bN (?:[KMGT]i)?B\b", "N B", line)
    return " ".join(line.split())


def differs(shown: str, printed: str) -> str:
    """The first line that is shown and was not printed, in order; or nothing.

    A line that ends with a backslash goes on in the next.
    """
    said = [shape(line) for line in re.sub(r"\\\n", " ", printed).splitlines()]
    at, free = 0, True
    for line in re.sub(r"\\\n", " ", shown).splitlines():
        want = shape(line)
        if want == "..." or not want:
            free = free or want == "..."
            continue
        while at < len(said) and (free or not said[at]) and said[at] != want:
            at += 1
        if at == len(said) or said[at] != want:
            got = said[at] if at < len(said) else "the end"
            return f"shown: {line.strip()!r}; printed there: {got!r}"
        at, free = at + 1, False
    return ""


def transcript(page: str, name: str) -> str:
    """What stands between ``<!-- NAME... -->`` and ``<!-- end of NAME -->``."""
    match = re.search(rf"<!-- {name}.*?-->\n```\n(.*?)^```\n<!-- end of {name}", page, re.M | re.S)
    assert match, f"no {name}"
    return match[1]
