"""One rung of successive halving: a neural network learns a function from noisy examples.

One hidden layer (tanh), stochastic gradient descent with momentum. ``config`` is the seed of the
random step size, momentum, width and weight decay. Rung r trains until 3^r epochs are done, and
continues from the file of the rung below. Prints ``loss``, the mean square error on examples that
are not trained on. It cannot be below 0.01, the noise.
"""

import argparse
import json
import os

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--config", type=int, required=True)
parser.add_argument("--rung", type=int, required=True)
given = parser.parse_args()

draw = np.random.default_rng([1, given.config])
rate = 10 ** draw.uniform(-4, 0)
momentum = draw.uniform(0, 0.95)
width = int(2 ** draw.uniform(1, 6))
decay = 10 ** draw.uniform(-6, -2)

data = np.random.default_rng(0)
x = data.uniform(-1, 1, (3000, 2))
y = np.sin(3 * x[:, 0]) * np.cos(2 * x[:, 1]) + 0.1 * data.standard_normal(3000)
seen, unseen = slice(0, 2000), slice(2000, 3000)

before, after = (f"{given.config}-{rung}.npz" for rung in (given.rung - 1, given.rung))
if given.rung:
    weights = list(np.load(before).values())
    begin = 3 ** (given.rung - 1)
else:
    weights = [draw.normal(size=(2, width)) * 1.5, draw.normal(size=width)]
    weights += [draw.normal(size=width) / np.sqrt(width), np.zeros(1)]
    weights += [np.zeros_like(w) for w in weights]
    begin = 0


def output(rows: np.ndarray, w: list) -> tuple:
    hidden = np.tanh(rows @ w[0] + w[1])
    return hidden, hidden @ w[2] + w[3]


w, v = weights[:4], weights[4:]
for epoch in range(begin, 3**given.rung):
    order = np.random.default_rng([2, given.config, epoch]).permutation(2000).reshape(-1, 20)
    for batch in order:
        rows = x[batch]
        hidden, found = output(rows, w)
        wrong = 2 * (found - y[batch]) / len(batch)
        with np.errstate(all="ignore"):  # a diverged network has loss nan, so it is never the best
            back = np.outer(wrong, w[2]) * (1 - hidden**2)
            gradient = [rows.T @ back, back.sum(axis=0), hidden.T @ wrong, np.array([wrong.sum()])]
            for i in range(4):
                v[i] = momentum * v[i] - rate * (gradient[i] + decay * w[i])
                w[i] = w[i] + v[i]
with open(f"{after}.new", "wb") as file:
    np.savez(file, *w, *v)
os.replace(f"{after}.new", after)
with np.errstate(all="ignore"):
    loss = float(((output(x[unseen], w)[1] - y[unseen]) ** 2).mean())
print(json.dumps({"loss": loss, "epochs": 3**given.rung, "rate": rate, "width": width}))
