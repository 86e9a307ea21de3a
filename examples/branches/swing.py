"""A damped pendulum by Euler's method: x' = v, v' = -x - damping * v, from x = 1 at rest.

Prints a row for each unit of time: {"time": …, "energy": …}. Euler's method adds energy; if ``dt``
is larger than the damping, it adds more than the damping removes. At the end, writes to
``state.json`` whether the pendulum swings or creeps. The exit code is 2 if the damping is negative,
and 75 (EX_TEMPFAIL) in the first attempt of a job with ``--busy 1``, as if no licence were free.
"""

import argparse
import json
import os
import sys
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--damping", type=float, required=True)
parser.add_argument("--dt", type=float, required=True, help="time step")
parser.add_argument("--until", type=float, required=True, help="time at which it stops")
parser.add_argument("--busy", type=int, default=0)
given = parser.parse_args()

if given.damping < 0:
    sys.exit(2)
if given.busy and os.environ.get("ENSEMBLE_ATTEMPT", "0") == "0":
    sys.exit(75)

x, v, crossings = 1.0, 0.0, 0
steps = round(1 / given.dt)
for row in range(round(given.until)):
    for _ in range(steps):
        before = x
        x, v = x + given.dt * v, v - given.dt * (x + given.damping * v)
        crossings += x * before < 0
    print(json.dumps({"time": row + 1, "energy": (x * x + v * v) / 2}), flush=True)
    time.sleep(0.005)  # slow enough to watch

with open("state.json.new", "w") as file:
    json.dump({"motion": "swings" if crossings else "creeps", "crossings": crossings}, file)
os.replace("state.json.new", "state.json")
