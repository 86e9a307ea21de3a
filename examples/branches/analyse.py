"""The frequency of a pendulum that swings, or the decay rate of one that creeps.

Arguments: ``frequency`` or ``decay``, and the index of the job whose files are read.
"""

import json
import sys
from math import log, pi

what, of = sys.argv[1:]
with open(f"{of}/state.json") as file:
    state = json.load(file)
with open(f"{of}/swing.jsonl") as file:
    rows = [json.loads(line) for line in file]
if what == "frequency":  # half a period between two crossings
    print(json.dumps({"omega": pi * state["crossings"] / rows[-1]["time"]}))
else:  # the energy decays twice as fast as x
    first, last = rows[len(rows) // 2 - 1], rows[-1]
    ratio = first["energy"] / last["energy"]
    print(json.dumps({"rate": log(ratio) / 2 / (last["time"] - first["time"])}))
