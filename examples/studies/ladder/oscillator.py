"""The lowest energy of the anharmonic oscillator p^2 + x^2 + g x^4 in a basis of n functions.

The basis functions are the even states of the harmonic oscillator, so the energy falls towards the
exact one as n grows (Ritz). Prints ``E``.
"""

import argparse
import json

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--g", type=float, required=True)
parser.add_argument("--n", type=int, required=True, help="functions of the basis")
given = parser.parse_args()

size = 2 * given.n + 4
x = np.diag(np.sqrt(np.arange(1, size) / 2), 1)
x += x.T
x4 = np.linalg.matrix_power(x, 4)
H = np.diag(2.0 * np.arange(size) + 1) + given.g * x4
even = np.arange(0, 2 * given.n, 2)  # the truncation of x affects only higher states
print(json.dumps({"n": given.n, "E": float(np.linalg.eigvalsh(H[np.ix_(even, even)])[0])}))
