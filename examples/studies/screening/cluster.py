"""A cluster of 13 Lennard-Jones atoms: minimizes the energy of a random structure.

``--seed`` determines the structure. ``--phase cheap`` takes 60 steps downhill; ``exact`` continues
until the forces vanish; ``modes`` also computes the curvatures there (six of them belong to rigid
motions). Prints the energy ``E``; in ``exact`` and ``modes`` the largest force; in ``modes`` the
lowest curvature of all other motions, which is positive at a minimum.
"""

import argparse
import json

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--phase", choices=["cheap", "exact", "modes"], required=True)
parser.add_argument("--atoms", type=int, default=13)
given = parser.parse_args()

LEFT, RIGHT = np.triu_indices(given.atoms, 1)


def energy(x: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the energy and its gradient."""
    d = x[LEFT] - x[RIGHT]
    r2 = np.maximum((d * d).sum(axis=1), 0.25)
    s6 = 1 / r2**3
    pull = (-24 * (2 * s6 * s6 - s6) / r2)[:, None] * d
    gradient = np.zeros_like(x)
    np.add.at(gradient, LEFT, pull)
    np.add.at(gradient, RIGHT, -pull)
    return float(4 * (s6 * s6 - s6).sum()), gradient


def downhill(x: np.ndarray, steps: int) -> np.ndarray:
    """Minimize by FIRE: atoms roll downhill, and stop if it goes up (Bitzek and others, 2006)."""
    v, dt, mix, good = np.zeros_like(x), 0.005, 0.1, 0
    for _ in range(steps):
        f = -energy(x)[1]
        size = np.sqrt((f * f).sum())
        if size < 1e-9:
            break
        if (f * v).sum() > 0:
            v = (1 - mix) * v + mix * f * np.sqrt((v * v).sum()) / size
            good += 1
            if good > 5:
                dt, mix = min(1.1 * dt, 0.03), 0.99 * mix
        else:
            v, dt, mix, good = 0 * v, dt / 2, 0.1, 0
        v = v + dt * f
        move = dt * v
        x = x + move * min(1, 0.1 / np.abs(move).max())
    return x


random = np.random.default_rng(given.seed)
x = random.normal(size=(given.atoms, 3))
x *= (1.5 * random.random((given.atoms, 1)) ** (1 / 3)) / np.linalg.norm(x, axis=1, keepdims=True)
x = downhill(x, 60 if given.phase == "cheap" else 20000)
E, gradient = energy(x)
row = {"E": E}
if given.phase != "cheap":
    row["force"] = float(np.abs(gradient).max())
if given.phase == "modes":
    flat, step = x.ravel(), 1e-5
    hessian = np.array(
        [
            (
                energy((flat + step * unit).reshape(x.shape))[1]
                - energy((flat - step * unit).reshape(x.shape))[1]
            ).ravel()
            / (2 * step)
            for unit in np.eye(flat.size)
        ]
    )
    curvatures = np.linalg.eigvalsh((hessian + hessian.T) / 2)
    row["lowest"] = float(sorted(curvatures, key=abs)[6])
print(json.dumps(row))
