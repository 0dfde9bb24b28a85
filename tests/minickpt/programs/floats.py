"""Floats whose every bit depends on all before, a line each 20 sweeps, until
the file argv[1] is there or argv[2] lines are printed.
"""

import math
import os
import sys

x = [0.1 * i for i in range(64)]
line = 0
lines = int(sys.argv[2]) if len(sys.argv) > 2 else sys.maxsize
while line < lines and not os.path.exists(sys.argv[1]):
    for _ in range(20):
        x = [
            math.sin(1.7 * v) + 0.5 * math.sqrt(abs(w))
            for v, w in zip(x, [*x[1:], x[0]], strict=True)
        ]
    line += 1
    print("line", line, sum(x).hex(), "end", flush=True)
