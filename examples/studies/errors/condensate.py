"""The ground state of a Bose gas in a harmonic trap, by self-consistent iteration.

Solves -u''/2 + (x^2/2 + g u^2) u = mu u in one dimension (Gross and Pitaevskii), with walls at
-box and box. ``Fast`` mixes half of the new density into the old one in each step, ``Normal`` a
tenth. ``All`` descends along the gradient of the energy, which is slow but always converges. The
exit code of every failure is 1; the output says which one it was:

    ERROR: not converged       the density sloshes, and all steps were used
    ERROR: box too small       the gas touches the walls
    ERROR: grid too coarse     the virial theorem does not hold
"""

import argparse
import sys

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--g", type=float, required=True, help="how strongly atoms repel one another")
parser.add_argument("--algo", choices=["Fast", "Normal", "All"], default="Fast")
parser.add_argument("--box", type=float, default=6.0, help="half of its length")
parser.add_argument("--points", type=int, default=32)
parser.add_argument("--steps", type=int, default=400)
given = parser.parse_args()

# Sine functions vanish at the walls, and their kinetic energy is exact.
n, h = given.points, 2 * given.box / (given.points + 1)
grid = np.arange(1, n + 1)
x = h * grid - given.box
sines = np.sqrt(2 / (n + 1)) * np.sin(np.pi * np.outer(grid, grid) / (n + 1))
kinetic = sines @ np.diag((np.pi * grid / (2 * given.box)) ** 2 / 2) @ sines
u = np.exp(-(x**2) / 2) / np.pi**0.25


def hamiltonian(density: np.ndarray) -> np.ndarray:
    return kinetic + np.diag(x**2 / 2 + given.g * density)


for step in range(given.steps):
    if given.algo == "All":
        found = np.linalg.solve(np.eye(n) + 0.5 * hamiltonian(u**2), u) ** 2
        found /= h * found.sum()
        change, part = h * abs(found - u**2).sum(), 1.0
    else:
        found = np.linalg.eigh(hamiltonian(u**2))[1][:, 0] ** 2 / h
        change, part = h * abs(found - u**2).sum(), 0.5 if given.algo == "Fast" else 0.1
    u = np.sqrt((1 - part) * u**2 + part * found)
    if step % 20 == 0:
        print(f"step {step} change= {change:.2e}", flush=True)
    if change < 1e-10:
        break
else:
    sys.exit(print("ERROR: not converged") or 1)
T, V, G = h * u @ kinetic @ u, h * (x**2 * u**2).sum() / 2, h * given.g * (u**4).sum() / 2
virial = abs(2 * T - 2 * V + G) / (T + V + G)
if u[0] ** 2 + u[-1] ** 2 > 1e-10:
    sys.exit(print(f"ERROR: box too small, density at its walls= {u[0] ** 2:.1e}") or 1)
if virial > 1e-6:
    sys.exit(print(f"ERROR: grid too coarse, virial= {virial:.1e}") or 1)
print(f"converged in {step} steps: mu= {T + V + 2 * G:.8f} E= {T + V + G:.8f} virial= {virial:.0e}")
