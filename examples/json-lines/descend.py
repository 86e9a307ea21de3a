"""Descends the slope of x * x from x = 1, and prints each step as a JSON object."""

import argparse
import json
import time

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rate", type=float, required=True, help="step size; above 1 it diverges")
rate = parser.parse_args().rate

print(f"walking with rate {rate}")  # other text is ignored
x = 1.0
for step in range(2000):
    # Without flush, lines stay in a buffer, and rules see them only after the job.
    print(json.dumps({"step": step, "loss": x * x}), flush=True)
    if x * x < 1e-6:
        break
    x -= rate * 2 * x
    time.sleep(0.05)
else:
    raise SystemExit("did not converge")
