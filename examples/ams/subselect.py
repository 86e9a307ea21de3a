"""Select rows of ``data/``: without near duplicates, evenly spread, at most ``--most``.

Writes ``selected.json``, sorted by x. Prints {"candidates": …, "kept": …}.
"""

import argparse
import glob
import json
import os

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--most", type=int, default=40, help="rows")
parser.add_argument("--apart", type=float, default=0.01, help="least distance in x")
given = parser.parse_args()

candidates = []
for name in glob.glob("data/*.json"):
    with open(name) as file:
        candidates.append(json.load(file))
rows: list = []
for row in sorted(candidates, key=lambda row: row["x"]):
    if not rows or row["x"] - rows[-1]["x"] >= given.apart:
        rows.append(row)
if len(rows) > given.most:
    step = (len(rows) - 1) / (given.most - 1)
    rows = [rows[round(i * step)] for i in range(given.most)]
with open("selected.json.new", "w") as file:
    json.dump(rows, file)
os.replace("selected.json.new", "selected.json")
print(json.dumps({"candidates": len(candidates), "kept": len(rows)}))
