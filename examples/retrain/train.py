"""A random forest that learns from the rows in ``rows/`` which simulations fail.

Prints {"rows": …, "failures": …, "accuracy": …}; the accuracy is that of trees that did not see the
row. Writes up to 24 new points at which it expects no failure to ``safe.jsonl``, one per line.
"""

import glob
import json
import os
import random
import sys

try:
    from sklearn.ensemble import RandomForestClassifier
except ImportError as error:
    sys.exit(f"{error}; needs: pip install scikit-learn")

rows = []
for name in glob.glob("rows/*.json"):
    with open(name) as file:
        rows.append(json.load(file))
rows.sort(key=lambda row: (row["k"], row["dt"]))
known = [(row["k"], row["dt"]) for row in rows]
failed = [row["failed"] for row in rows]
told = {"rows": len(rows), "failures": sum(failed), "accuracy": 0.0}
if 0 < sum(failed) < len(rows):
    forest = RandomForestClassifier(100, oob_score=True, random_state=0).fit(known, failed)
    told["accuracy"] = float(forest.oob_score_)
    draw = random.Random(1)
    new = [(round(draw.uniform(0.8, 1.2), 3), round(draw.uniform(0.5, 2.8), 3)) for _ in range(200)]
    risks = forest.predict_proba(new)[:, 1]
    safe = [point for point, risk in zip(new, risks, strict=True) if risk <= 0.1]
    with open("safe.jsonl.new", "w") as file:
        for k, dt in safe[:24]:
            print(json.dumps({"k": k, "dt": dt}), file=file)
    os.replace("safe.jsonl.new", "safe.jsonl")
print(json.dumps(told))
