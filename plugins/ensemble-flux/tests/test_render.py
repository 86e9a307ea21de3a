"""Tests of rendering: the jobspec of a job, without this process's environment."""

from __future__ import annotations

import json

from ensemble_flux import ensemble_executors

from ensemble_core import Job


def test_a_job_is_rendered_as_the_jobspec_that_flux_takes() -> None:
    (record,) = ensemble_executors()
    assert record.render is not None
    job = Job(id="a.3", group="a", index=3, command=("sim", "x"), nodes=2, tasks=4, duration=60.0)
    made = record.render(job, {"queue": "batch"})
    assert made.media_type == "application/json"
    jobspec = json.loads(made.text)
    assert jobspec["version"] == 1
    assert jobspec["tasks"][0]["command"] == ["sim", "x"]
    assert jobspec["resources"][0]["count"] == 2
    system = jobspec["attributes"]["system"]
    assert (system["duration"], system["queue"]) == (60.0, "batch")
    assert "PATH" not in system["environment"]
    assert record.render(job, {"queue": "batch"}) == made
