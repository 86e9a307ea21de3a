"""The energy of the hydrogen atom in a basis of Gaussian functions exp(-a r^2).

The best mixture for the given exponents a is a small eigenvalue problem. Prints ``E`` in Hartree,
which is above the exact energy, -1/2, for all exponents (Ritz).
"""

import argparse
import json

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("exponents", type=float, nargs="+")
a = np.array(parser.parse_args().exponents)

total = np.add.outer(a, a)
overlap = (np.pi / total) ** 1.5
hamiltonian = 3 * np.multiply.outer(a, a) / total * overlap - 2 * np.pi / total
# Two nearly equal functions count once.
sizes, vectors = np.linalg.eigh(overlap / np.sqrt(np.outer(overlap.diagonal(), overlap.diagonal())))
basis = (vectors / np.sqrt(np.maximum(sizes, 1e-12)))[:, sizes > 1e-10]
basis /= np.sqrt(overlap.diagonal())[:, None]
print(json.dumps({"E": float(np.linalg.eigvalsh(basis.T @ hamiltonian @ basis)[0])}))
