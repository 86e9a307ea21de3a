"""Example program: estimates the energy at x. More samples give a more accurate estimate."""

import json
import random
import sys

x, samples = float(sys.argv[1]), int(sys.argv[2])
chance = random.Random(f"{x} {samples}")
noise = sum(chance.gauss(0, 0.2) for _ in range(samples)) / samples
print(json.dumps({"energy": (x - 1.7) ** 2 + noise}))
