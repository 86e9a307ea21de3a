"""A model in the controller that learns from each simulation when it ends.

A function's memory is lost when the run is resumed. So the model is stored in ``online.pickle`` in
the jobs' folder, with the indices of the simulations that it has learnt from. If the controller is
killed during a call, the function is called again; the indices prevent learning twice.
"""

import os
import pickle
from pathlib import Path
from random import Random

from river.naive_bayes import GaussianNB

from ensemble_core import Action


def learn(job, **kwargs):
    """Learn from this simulation, and return the next one."""
    file = Path(job["workdir"]) / "online.pickle"
    try:
        model, seen = pickle.loads(file.read_bytes())  # noqa: S301  (written by this function)
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
    """Return a random time step that a trusted model does not expect to fail."""
    for _ in range(100):
        dt = round(random.uniform(0.5, 2.8), 3)
        if not trusted or model.predict_proba_one({"dt": dt}).get(True, 0) < 0.2:
            return dt
    return 0.5
