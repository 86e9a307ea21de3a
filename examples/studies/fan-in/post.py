"""The mean escape time at one temperature, from the files of the simulations in this folder."""

import argparse
import glob
import json

import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--T", type=float, required=True)
given = parser.parse_args()

times = []
for name in sorted(glob.glob("*.jsonl")):
    with open(name) as file:
        times += [json.loads(line)["time"] for line in file]
error = float(np.std(times, ddof=1) / np.sqrt(len(times)))
print(json.dumps({"T": given.T, "time": float(np.mean(times)), "error": error}))
