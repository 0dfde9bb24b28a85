"""database.py STOP [LINES]: SQLite, whose locks others must meet. In each round this process has
the database alone for a while; a child, which must be told that it is locked, asks for it. A
line says how many rows there are. Until STOP is there, or so many lines.
"""

import os
import sqlite3
import sys
import time

PLACE = os.environ.get("DATABASE", ":memory:")


def open_it() -> sqlite3.Connection:
    """A connection that waits for nobody."""
    return sqlite3.connect(PLACE, isolation_level=None, timeout=0)


def is_locked() -> bool:
    """Asks for the database as another process."""
    if PLACE == ":memory:":
        return True
    pid = os.fork()
    if pid == 0:
        try:
            open_it().execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            os._exit(0 if "locked" in str(error) else 2)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def main() -> None:
    """Rounds of one row each."""
    if PLACE != ":memory:" and os.path.exists(PLACE):
        os.remove(PLACE)
    base = open_it()
    base.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, text TEXT)")
    lines = int(sys.argv[2]) if len(sys.argv) > 2 else -1
    number = 0
    while number != lines and not (lines < 0 and os.path.exists(sys.argv[1])):
        number += 1
        base.execute("BEGIN EXCLUSIVE")
        base.execute("INSERT INTO rows VALUES (?, ?)", (number, "x" * number))
        time.sleep(0.1)
        if not is_locked():
            print("BAD database: another process got it", flush=True)
            sys.exit(1)
        base.execute("COMMIT")
        count = base.execute("SELECT count(*), sum(length(text)) FROM rows").fetchone()
        print(*count, "end", flush=True)


main()
