"""Trains a small network to tell two spirals apart, in numpy. Resumes from its checkpoint.

Prints a progress bar in the style of tqdm on standard error, and a dict for each epoch in the style
of Hugging Face on standard output. Writes ``checkpoint.npz`` after every tenth epoch and
``model.npz`` at the end, into its working folder.

train.py --rate 0.1 --width 32 --decay 0.0001 --seed 1 --epochs 300
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import zipfile

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, required=True)
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--decay", type=float, default=1e-4)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--epochs", type=int, default=300)
given = parser.parse_args()


def spirals(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points (count, 2) on two noisy spirals, and the spiral of each (count,), 0 or 1."""
    chance = np.random.default_rng(seed)
    which = np.arange(count) % 2
    turn = np.sqrt(chance.uniform(0.05, 1, count)) * 3 * np.pi
    along = np.stack([np.cos(turn + which * np.pi), np.sin(turn + which * np.pi)], axis=1)
    return along * turn[:, None] / 10 + chance.normal(0, 0.02, (count, 2)), which


def forward(weights: list[np.ndarray], x: np.ndarray) -> list[np.ndarray]:
    """Return the values of all layers; the last are the log-odds of spiral 1."""
    first = np.tanh(x @ weights[0] + weights[1])
    second = np.tanh(first @ weights[2] + weights[3])
    return [x, first, second, second @ weights[4] + weights[5]]


def loss(weights: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the mean cross-entropy and the accuracy."""
    odds = forward(weights, x)[-1][:, 0]
    return float(np.mean(np.logaddexp(0, odds) - y * odds)), float(np.mean((odds > 0) == y))


def gradients(weights: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Return the gradients of the loss."""
    x, first, second, odds = forward(weights, x)
    error = (1 / (1 + np.exp(-np.clip(odds, -500, 500))) - y[:, None]) / len(y)
    back = (error @ weights[4].T) * (1 - second**2)
    more = (back @ weights[2].T) * (1 - first**2)
    parts = [(x, more), (first, back), (second, error)]
    return [one for inputs, each in parts for one in (inputs.T @ each, each.sum(axis=0))]


x, y = spirals(1000, 0)
eval_x, eval_y = spirals(500, 1)
sizes = [2, given.width, given.width, 1]
chance = np.random.default_rng(given.seed)
weights = []
for inputs, outputs in itertools.pairwise(sizes):
    weights += [chance.normal(0, inputs**-0.5, (inputs, outputs)), np.zeros(outputs)]
moments = [np.zeros_like(each) for each in weights]
begin = 1
try:
    with np.load("checkpoint.npz") as saved:
        begin = int(saved["epoch"]) + 1
        arrays = [saved[f"arr_{n}"] for n in range(2 * len(weights))]
        weights, moments = arrays[: len(weights)], arrays[len(weights) :]
    print(f"resumes at epoch {begin}", file=sys.stderr)
except (FileNotFoundError, zipfile.BadZipFile):
    pass

for epoch in range(begin, given.epochs + 1):
    # The order of an epoch depends on the seed and the epoch alone, so that a resumed training
    # gives the same network as one that was not stopped.
    order = np.random.default_rng([given.seed, epoch]).permutation(len(x))
    for batch in np.split(order, 50):
        for weight, moment, slope in zip(
            weights, moments, gradients(weights, x[batch], y[batch]), strict=True
        ):
            moment *= 0.9
            moment -= given.rate * (slope + given.decay * weight)
            weight += moment
    value, accuracy = loss(weights, eval_x, eval_y)
    done = epoch / given.epochs
    bar = "█" * int(20 * done)
    print(
        f"\rtrain: {done:4.0%}|{bar:20}| {epoch}/{given.epochs} [loss={value:.4f}]",
        end="",
        file=sys.stderr,
        flush=True,
    )
    print(
        {"eval_loss": round(value, 6), "eval_accuracy": round(accuracy, 4), "epoch": epoch},
        flush=True,
    )
    if epoch % 10 == 0 or epoch == given.epochs:
        name = "checkpoint" if epoch < given.epochs else "model"
        np.savez(f"{name}.tmp.npz", *weights, *moments, epoch=epoch)
        os.replace(f"{name}.tmp.npz", f"{name}.npz")
print(file=sys.stderr)
