"""NumPy arrays through BLAS, LAPACK, FFT, sorting and random numbers: a line with the
digest of all their bytes a step, until the file argv[1] is there or argv[2] lines are
printed. Every step starts from the arrays of the one before.
"""

import hashlib
import os
import sys

import numpy as np

random = np.random.Generator(np.random.PCG64(7))
a = random.standard_normal((48, 48))
digest = hashlib.sha256()
line = 0
lines = int(sys.argv[2]) if len(sys.argv) > 2 else sys.maxsize
while line < lines and not os.path.exists(sys.argv[1]):
    b = a @ a.T + 48 * np.eye(48)
    x = np.linalg.solve(b, random.standard_normal((48, 4)))
    spectrum = np.abs(np.fft.rfft(a.ravel()))
    values = np.linalg.eigvalsh(b)
    order = np.argsort(spectrum, kind="stable")
    a = np.tanh(0.3 * a + x @ x.T) + 1e-3 * np.roll(a, int(order[-1]) % 48)
    for array in (a, x, spectrum, values, order):
        digest.update(np.ascontiguousarray(array).tobytes())
    line += 1
    print("line", line, digest.hexdigest(), "end", flush=True)
