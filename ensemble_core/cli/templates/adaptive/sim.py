"""Example program: a quantity with a transition at x = 2.3 and fluctuations near it."""

import json
import math
import random
import sys

x, seed = float(sys.argv[1]), int(sys.argv[2])
width = 0.3 * math.exp(-(((x - 2.3) / 0.5) ** 2))
m = 1 / (1 + math.exp(8 * (x - 2.3))) + random.Random(seed).gauss(0, width)
print(json.dumps({"m": m}))
