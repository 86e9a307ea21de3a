"""The frequency of a pendulum that swings, or the slower rate of one that creeps.

Takes ``WHAT OF``: ``frequency`` or ``decay``, and the index of the job whose folder it looks into.
"""

import json
import sys
from math import log, pi

what, of = sys.argv[1:]
with open(f"{of}/state.json") as file:
    state = json.load(file)
with open(f"{of}/swing.jsonl") as file:
    rows = [json.loads(line) for line in file]
if what == "frequency":  # half a turn from one crossing to the next
    print(json.dumps({"omega": pi * state["crossings"] / rows[-1]["time"]}))
else:  # the energy falls twice as fast as x
    first, last = rows[len(rows) // 2 - 1], rows[-1]
    ratio = first["energy"] / last["energy"]
    print(json.dumps({"rate": log(ratio) / 2 / (last["time"] - first["time"])}))
