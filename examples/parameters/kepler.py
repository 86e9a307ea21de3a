"""The residual of Kepler's equation, E - e sin E = M, at a guess of E.

With e = 0.9 and M = 0.5, the solution is the place of a comet some time after its perihelion.
``--between A B`` tries the midpoint. Prints {"E": …, "f": …} with f = E - e sin E - M, which grows
with E.
"""

import argparse
import json
from math import sin

parser = argparse.ArgumentParser(description=__doc__)
tried = parser.add_mutually_exclusive_group(required=True)
tried.add_argument("--at", type=float)
tried.add_argument("--between", type=float, nargs=2)
given = parser.parse_args()

E = given.at if given.between is None else sum(given.between) / 2
print(json.dumps({"E": E, "f": E - 0.9 * sin(E) - 0.5}))
