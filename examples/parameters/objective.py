"""A measurement, with noise, of a function with two valleys, the deeper at x = 0.7572: -6.0207.

(6x - 2)^2 sin(12x - 4) on [0, 1] (Forrester, 2008), the noise normal with a width of 0.05. Prints
{"y": …}, which follows from x alone.
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
