"""A spring of stiffness k: 200 steps of leapfrog, which is unstable if dt sqrt(k) > 2.

Prints {"failed": 0 or 1, "drift": …} with the relative drift of the energy. Writes the parameters
and ``failed`` to ``rows/INDEX.json``, for failures as well. The exit code of a failure is 3.
"""

import argparse
import json
import os
import sys
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--k", type=float, required=True)
parser.add_argument("--dt", type=float, required=True)
parser.add_argument("--index", type=int, required=True)
given = parser.parse_args()

x, v = 1.0, 0.0
drift = 0.0
for _ in range(200):
    v -= given.k * x * given.dt / 2
    x += v * given.dt
    v -= given.k * x * given.dt / 2
    drift = max(drift, abs(v * v / given.k + x * x - 1))
    if drift > 1e6:
        break
time.sleep(0.1)
failed = int(drift > 1e6)
os.makedirs("rows", exist_ok=True)
with open(f"rows/{given.index}.new", "w") as file:
    json.dump({"k": given.k, "dt": given.dt, "failed": failed}, file)
os.replace(f"rows/{given.index}.new", f"rows/{given.index}.json")
print(json.dumps({"failed": failed, "drift": drift}))
sys.exit(3 if failed else 0)
