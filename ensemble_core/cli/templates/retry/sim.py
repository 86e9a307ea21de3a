"""Example program: a square root by Newton's method, which fails with too few iterations."""

import json
import sys

x, iterations = float(sys.argv[1]), int(sys.argv[2])
guess = 1e6
for _ in range(iterations):
    guess = (guess + x / guess) / 2
converged = abs(guess * guess - x) < 1e-9 * x
print(json.dumps({"converged": int(converged)}))
sys.exit(0 if converged else 4)
