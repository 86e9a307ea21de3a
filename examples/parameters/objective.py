"""A noisy measurement of a function with two valleys; the minimum is -6.0207 at x = 0.7572.

The function is (6x - 2)^2 sin(12x - 4) on [0, 1] (Forrester, 2008), with normal noise of standard
deviation 0.05. Prints {"y": …}, which depends only on x.
"""

import argparse
import json
from math import sin
from random import Random

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--x", type=float, required=True)
given = parser.parse_args()

x = given.x
noise = Random(f"{x:.12g}").gauss(0, 0.05)
print(json.dumps({"y": (6 * x - 2) ** 2 * sin(12 * x - 4) + noise}))
