"""A rule with each built-in trigger fires."""

from __future__ import annotations

import pytest
from ensemble_testing import Story

from ensemble_core.model.decisions import Call, Resize
from ensemble_core.model.events import CallReturned, JobEvent, Observed, ResizeOutcome
from ensemble_core.plugin.discovery import discover

REGISTRY = discover()
BUILTIN_TRIGGERS = sorted(
    record.name
    for plugin in REGISTRY.plugins
    if plugin.builtin
    for record in plugin.records.get("trigger", ())
)


def story(rules: str) -> Story:
    return Story(
        f"""
logging: {{heartbeat: 30}}
jobs: [{{name: sim, command: sim, count: 3, observe: {{json-lines: {{}}}}}}]
rules:
  - {{id: go, trigger: start, action: {{name: submit, label: sim}}}}
{rules}
"""
    )


@pytest.mark.parametrize("trigger", BUILTIN_TRIGGERS)
def test_every_trigger_can_fire(trigger: str) -> None:
    extra = {
        "metric": "name: count.sim.success,",
        "interval": "seconds: 5,",
        "silent": "seconds: 5,",
        "bad-node": "failures: 1,",
    }.get(trigger, "")
    rule = f"  - {{id: it, trigger: {trigger}, {extra} action: {{name: log, message: x}}}}"
    told = story("" if trigger.startswith("generator-") else rule)
    told.start()
    event = trigger.removeprefix("job-")
    if trigger.startswith("resize-"):
        grown = story(
            f"  - {{trigger: job-start, action: {{name: grow}}}}\n"
            f"  - {{id: it, trigger: {trigger}, action: {{name: log, message: x}}}}"
        )
        grown.start()
        (asked,) = (one for one in grown.begin("sim.0") if isinstance(one, Resize))
        grown.tell(ResizeOutcome(grown.now, asked.request, event.removeprefix("resize-")))  # type: ignore[arg-type]
        told = grown
    elif trigger == "job-cancel":
        told.job("sim.0", "submit")
        told.cancel("sim.0")
    elif trigger == "bad-node":
        told.job("sim.0", "submit", "alloc")
        told.job("sim.0", "start", host="n1")
        told.end("sim.0", status=256)
    elif trigger in ("job-fail", "job-lost"):
        told.play("sim.0", status=256)
    elif trigger == "limit":
        told = Story(
            "limits: {jobs: 1}\njobs: [{name: sim, command: x, count: 2}]\n"
            "rules:\n  - {trigger: start, action: {name: submit, label: sim}}\n"
            "  - {id: it, trigger: limit, action: {name: log, message: x}}\n"
        )
        told.start()
    elif trigger.startswith("generator-"):
        told = Story(
            "jobs: [{name: sim, command: 'x {x}', observe: {json-lines: {fields: [E]}}, "
            "result: {E: last.E}}]\n"
            "generators: [{name: search, use: grid, group: sim, variables: {x: {values: [1]}}, "
            "objectives: {E: minimize}}]\n"
            f"rules: [{{id: it, trigger: {trigger}, action: {{name: log, message: x}}}}]\n"
        )
        (call,) = (one for one in told.start() if isinstance(one, Call))
        told.tell(CallReturned(told.now, call.call, ({"point": {"x": 1}},)))
        told.begin("sim.0")
        told.observe("sim.0", E=1.0)
        (call,) = (one for one in told.end("sim.0") if isinstance(one, Call))
        told.tell(CallReturned(told.now, call.call))
    elif trigger in ("idle", "end"):
        for job in ("sim.0", "sim.1", "sim.2"):
            told.play(job)
    else:
        told.job("sim.0", "submit", "validate", "depend", "priority", "alloc", "start")
        if event == "unsuspend":
            told.suspend("sim.0")
        if trigger.startswith("job-") and event not in (
            "sched",
            "run",
            "cleanup",
            "inactive",
            "success",
        ):
            told.tell(JobEvent(told.now, "sim.0", event, {"status": 0, "severity": 1}))
        told.tell(Observed(told.now, "sim.0", "json-lines", {"T": 1.0}))
        told.wait(6)
        told.job("sim.0", "finish", status=0)
        told.job("sim.0", "free", "clean")
        told.wait(60)
    assert "it" in told.fired()
