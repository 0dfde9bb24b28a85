"""Failures of a LANL system as a record for `outlive plan --trace`.

    python3 bench/failures/lanl.py FAILURES.csv[.xz] SYSTEM [--half first|second] > trace.csv

Reads the failure data that Los Alamos National Laboratory released as LA-UR-05-7318 (22
systems, 1996 to 2005). Times there are local, without saying which of the two hours is
meant when clocks are set back: the first is taken. Hardware and facilities count as fatal
(the node is lost with its storage), all other causes as light. A repair lasts for the minutes
of `Down Time`, which no clock changes; without them until `Prob Fixed`; without either its end
is not known. Lines that say the same of the same node are one failure, written down twice.
"""

import argparse
import csv
import datetime
import io
import lzma
import sys
import zoneinfo

ZONE = zoneinfo.ZoneInfo("America/Denver")
COLUMNS = (
    "System",
    "nodenumz",
    "Prob Started",
    "Prob Fixed",
    "Down Time",
    "Hardware",
    "Facilities",
)

Failure = tuple[datetime.datetime, int, datetime.datetime | None, str]
"""Start, node, end if it is known, `fatal` or `light`."""


class Refused(Exception):
    """What is wrong with the file."""


def moment(text: str) -> datetime.datetime:
    """A local time as a moment in UTC."""
    local = datetime.datetime.strptime(text.strip(), "%m/%d/%Y %H:%M")
    return local.replace(tzinfo=ZONE).astimezone(datetime.UTC)


def rows_of(file: str) -> list[dict]:
    """All lines of the file, by the names of its header."""
    with open(file, "rb") as raw:
        data = raw.read()
    if file.endswith(".xz"):
        data = lzma.decompress(data)
    return list(csv.DictReader(io.StringIO(data.decode("latin-1"))))


def failure_of(row: dict) -> Failure:
    """The failure of a line."""
    start = moment(row["Prob Started"])
    minutes, fixed = row["Down Time"].strip(), row["Prob Fixed"].strip()
    end = None
    if minutes:
        end = start + datetime.timedelta(minutes=max(float(minutes), 0))
    elif fixed:
        end = max(moment(fixed), start)
    fatal = row["Hardware"].strip() or row["Facilities"].strip()
    return start, int(row["nodenumz"]), end, "fatal" if fatal else "light"


def records(rows: list[dict], system: str) -> list[Failure]:
    """A system's failures, ascending, each once."""
    lacking = [name for name in COLUMNS if rows and name not in rows[0]]
    if lacking:
        raise Refused(f"line 1: the header lacks {', '.join(lacking)}")
    found: dict[tuple, Failure] = {}
    for line, row in enumerate(rows, start=2):
        if row["System"] != system:
            continue
        try:
            failure = failure_of(row)
        except (ValueError, AttributeError) as error:
            raise Refused(f"line {line}: {error}") from error
        found.setdefault(tuple(row.values()), failure)
    if not found:
        raise Refused(f"no failures of system {system}")
    return sorted(found.values(), key=lambda one: (*one[:2], str(one[2]), one[3]))


def half_of(found: list[Failure], which: str) -> list[Failure]:
    """The failures before the middle of the record's time, or the others."""
    middle = found[0][0] + (found[-1][0] - found[0][0]) / 2
    return [one for one in found if (one[0] < middle) == (which == "first")]


def trace_of(found: list[Failure]) -> str:
    """The record as `outlive plan --trace` reads it."""

    def text(moment: datetime.datetime | None) -> str:
        return f"{moment:%Y-%m-%dT%H:%M:%SZ}" if moment else ""

    lines = [f"{text(start)},{node},{text(end)},{kind}" for start, node, end, kind in found]
    return "\n".join(["start,node,end,kind", *lines, ""])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("file")
    options.add_argument("system")
    options.add_argument("--half", choices=["first", "second"])
    chosen = options.parse_args()
    try:
        found = records(rows_of(chosen.file), chosen.system)
    except Refused as refused:
        sys.exit(f"{chosen.file}: {refused}")
    if chosen.half:
        found = half_of(found, chosen.half)
    print(trace_of(found), end="")


if __name__ == "__main__":
    main()
