"""Stands for a solver: Newton's method for a square root, which needs iterations enough."""

import json
import sys

x, iterations = float(sys.argv[1]), int(sys.argv[2])
guess = 1e6
for _ in range(iterations):
    guess = (guess + x / guess) / 2
converged = abs(guess * guess - x) < 1e-9 * x
print(json.dumps({"converged": int(converged)}))
sys.exit(0 if converged else 4)
