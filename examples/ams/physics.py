"""The physics, slow on purpose: y = x sin x. Writes ``data/INDEX.json`` and prints it."""

import argparse
import json
import os
import time
from math import sin

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--x", type=float, required=True)
parser.add_argument("--index", type=int, required=True)
given = parser.parse_args()

time.sleep(0.3)
row = json.dumps({"x": given.x, "y": given.x * sin(given.x)})
os.makedirs("data", exist_ok=True)
with open(f"data/{given.index}.new", "w") as file:
    file.write(row)
os.replace(f"data/{given.index}.new", f"data/{given.index}.json")
print(row)
