#!/usr/bin/env python3
"""A measured background load: keeps a core busy for a share of each 20 ms, until it is ended.

bench/collectives/load.py SHARE
"""

import os
import sys
import time

PERIOD_S = 0.02


def main() -> None:
    share, parent = float(sys.argv[1]), os.getppid()
    while os.getppid() == parent:
        end = time.perf_counter() + share * PERIOD_S
        while time.perf_counter() < end:
            pass
        time.sleep((1 - share) * PERIOD_S)


if __name__ == "__main__":
    main()
