"""Stands for a simulation: an oscillator, whose energy grows without bound if its step is large."""

import json
import sys
import time

step, x, v = float(sys.argv[1]), 1.0, 0.0
for _ in range(60):
    x, v = x + step * v, v - step * x
    print(json.dumps({"energy": x * x + v * v}), flush=True)  # flush: or rules see it at the end
    time.sleep(0.02)
