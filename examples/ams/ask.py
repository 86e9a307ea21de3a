"""Print the surrogate's answer at x: {"x": …, "y": …, "std": …}. Without a model, std is 1e9.

Reads ``model.npz`` in the current folder, which ``train.py`` writes. Needs numpy only.
"""

import argparse
import json

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--x", type=float, required=True)
given = parser.parse_args()

try:
    model = np.load("model.npz")
except FileNotFoundError:
    y, std = 0.0, 1e9
else:
    k = model["amplitude"] * np.exp(-0.5 * ((model["x"] - given.x) / model["length"]) ** 2)
    v = np.linalg.solve(model["L"], k)
    y = float(model["mean"] + model["scale"] * (k @ model["alpha"]))
    std = float(model["scale"] * np.sqrt(max(model["amplitude"] - v @ v, 0)))
print(json.dumps({"x": given.x, "y": y, "std": std}))
