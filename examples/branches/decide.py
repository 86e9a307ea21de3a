"""Custom action of the rule ``at-rest``: chooses the analysis by the word in the job's file."""

import json
from pathlib import Path

from ensemble_core import Action


def choose(job, **kwargs):
    state = json.loads((Path(job["workdir"]) / "state.json").read_text())
    group = {"swings": "frequency", "creeps": "decay"}[state["motion"]]
    parameters = {"of": job["index"]}
    return Action({"name": "submit", "label": group, "with": {"parameters": parameters}})
