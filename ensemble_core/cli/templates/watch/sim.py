"""Example program: an oscillator whose energy diverges if the time step is too large."""

import json
import sys
import time

step, x, v = float(sys.argv[1]), 1.0, 0.0
for _ in range(60):
    x, v = x + step * v, v - step * x
    print(json.dumps({"energy": x * x + v * v}), flush=True)  # flush, so that rules see it at once
    time.sleep(0.02)
