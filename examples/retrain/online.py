"""A streaming model in the controller: it learns from one simulation at a time, when that ends.

What a function keeps in Python's memory is gone when the run is resumed, so the model lies beside
the jobs, in ``online.pickle``, with the indices that it has learnt from: a function that was under
way when the controller was killed is called again, and is not to learn twice.
"""

import os
import pickle
from pathlib import Path
from random import Random

from river.naive_bayes import GaussianNB

from ensemble_core import Action


def learn(job, **kwargs):
    """Learn from this simulation, and return the next."""
    file = Path(job["workdir"]) / "online.pickle"
    try:
        model, seen = pickle.loads(file.read_bytes())  # noqa: S301  (what this wrote)
    except FileNotFoundError:
        model, seen = GaussianNB(), set()
    if job["index"] not in seen:
        model.learn_one({"dt": job["parameters"]["dt"]}, job["exit_code"] != 0)
        seen.add(job["index"])
        new = file.with_suffix(".new")
        new.write_bytes(pickle.dumps((model, seen)))
        os.replace(new, file)
    dt = choose(model, Random(job["index"]), trusted=len(seen) >= 16)
    sweep = {"parameters": {"dt": dt}}
    return Action({"name": "submit", "label": "sim", "with": sweep})


def choose(model, random, trusted):
    """A time step at random, as long as the model does not expect that one to fail."""
    for _ in range(100):
        dt = round(random.uniform(0.5, 2.8), 3)
        if not trusted or model.predict_proba_one({"dt": dt}).get(True, 0) < 0.2:
            return dt
    return 0.5
