"""Failures of a LANL system as a record for `outlive plan --trace`.

    python3 bench/failures/lanl.py FAILURES.csv[.xz] SYSTEM [--half first|second] > trace.csv

Reads the failure data that Los Alamos National Laboratory released as LA-UR-05-7318 (22
systems, 1996 to 2005). Times there are local, without saying which of the two hours is
meant when clocks are set back: the first is taken. Hardware and facilities count as fatal
(the node is lost with its storage), all other causes as light.
"""

import argparse
import csv
import datetime
import io
import lzma
import sys
import zoneinfo

ZONE = zoneinfo.ZoneInfo("America/Denver")


def moment(text: str) -> datetime.datetime:
    """A local time as a moment in UTC."""
    local = datetime.datetime.strptime(text.strip(), "%m/%d/%Y %H:%M")
    return local.replace(tzinfo=ZONE).astimezone(datetime.UTC)


def records(rows: "csv.DictReader", system: str) -> list[tuple]:
    """Start, node, end and kind of a system's failures, ascending."""
    found = []
    for row in rows:
        if row["System"] != system:
            continue
        start = moment(row["Prob Started"])
        minutes = float(row["Down Time"] or 0)
        fatal = row["Hardware"].strip() or row["Facilities"].strip()
        end = start + datetime.timedelta(minutes=max(minutes, 0))
        found.append((start, int(row["nodenumz"]), end, "fatal" if fatal else "light"))
    return sorted(found)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("file")
    options.add_argument("system")
    options.add_argument("--half", choices=["first", "second"])
    chosen = options.parse_args()
    with open(chosen.file, "rb") as raw:
        data = raw.read()
    if chosen.file.endswith(".xz"):
        data = lzma.decompress(data)
    rows = csv.DictReader(io.StringIO(data.decode("latin-1")))
    found = records(rows, chosen.system)
    if not found:
        sys.exit(f"no failures of system {chosen.system}")
    middle = found[0][0] + (found[-1][0] - found[0][0]) / 2
    if chosen.half:
        found = [one for one in found if (one[0] < middle) == (chosen.half == "first")]
    print("start,node,end,kind")
    for start, node, end, kind in found:
        print(f"{start:%Y-%m-%dT%H:%M:%SZ},{node},{end:%Y-%m-%dT%H:%M:%SZ},{kind}")


if __name__ == "__main__":
    main()
