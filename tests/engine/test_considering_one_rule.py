"""A rule that is added, enabled, changed or switched on is considered alone.

Other rules on its metric are not, because their metric was not updated.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from ensemble_testing import Story

from ensemble_core.engine.rule_trace import RuleTracer
from ensemble_core.model.decisions import Call, Fired
from ensemble_core.model.events import CallReturned, Requested, Resources, Resumed, StopRequested

LOG = "action: {name: log, message: x}"
HEAD = f"""
jobs: [{{name: sim, command: x, observe: {{key-value: {{fields: [T]}}}}}}]
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}
  - {{id: count, trigger: metric, name: METRIC, when: "> 50", repetitions: unlimited, {LOG}}}
  - {{id: held, trigger: metric, name: METRIC, when: "> 50", for: 4, {LOG}}}
  - {{id: each, trigger: metric, name: METRIC, when: value > 50 and value < 1000,
     repetitions: unlimited, backoff: 1, {LOG}}}
"""
COOL = f'{{id: cool, trigger: metric, name: METRIC, when: "<= 50", {LOG}}}\n'
COLD = COOL.replace("{id", "{enabled: false, id")
HOT = '  - {id: hot, trigger: metric, name: METRIC, when: "> 50", action: ACTION}\n'


def request(name: str) -> Callable[[Story], None]:
    def ask(story: Story) -> None:
        story.tell(Requested(story.now, "user", {"name": name, "rules": "cool"}))

    return ask


def return_rule(story: Story) -> None:
    (call,) = (each for each in story.decisions if isinstance(each, Call))
    action = {"name": "log", "message": "x"}
    spec = {"id": "cool", "trigger": "metric", "name": "last.sim-T", "when": "<= 50"}
    story.tell(CallReturned(story.now, call.call, ({"rule": {**spec, "action": action}},)))


def reconfigure(old: str, new: str) -> Callable[[Story], None]:
    def change(story: Story) -> None:
        story.tell(StopRequested(story.now, then="keep"))
        text = (HEAD + "  - " + COOL).replace(old, new).replace("METRIC", "last.sim-T")
        story.engine.reconfigure(Story(text).ensemble)
        story.tell(Resumed(story.now))

    return change


#: How a rule comes to be considered: the rest of the file, and what happens after the value 55.
WAYS: dict[str, tuple[str, Callable[[Story], None] | None]] = {
    "enable": (HOT.replace("ACTION", "{name: enable, rules: cool}") + f"  - {COLD}", None),
    "switch": (
        HOT.replace("ACTION", "{name: switch, to: late}")
        + f"use:\n  - {{as: early, rules: [{COOL.strip().replace('<= 50', '> 1000')}]}}\n"
        f"  - {{as: late, enabled: false, rules: [{COOL.strip()}]}}\n",
        None,
    ),
    "a request to enable": (f"  - {COLD}", request("enable")),
    "a request to disable": (f"  - {COOL}", request("disable")),
    "a rule that a function returns": (
        HOT.replace("ACTION", "{name: custom, label: f}") + "custom: |\n  def f(**kw): ...\n",
        return_rule,
    ),
    "a new rule of an accepted change": ("", reconfigure("", "")),
    "a changed rule of an accepted change": (f"  - {COOL}", reconfigure("<= 50", "<= 45")),
}


@pytest.mark.parametrize("way", WAYS)
def test_other_rules_on_the_metric_do_not_fire_again(way: str) -> None:
    rest, happens = WAYS[way]
    story = Story((HEAD + rest).replace("METRIC", "last.sim-T"))
    story.start()
    story.begin("sim.0")
    for value in (40, 55, 60, 57, 58, 45):
        story.observe("sim.0", {"T": value})
        if value == 55 and happens is not None:
            happens(story)
    fired = [(each.rule, each.value) for each in story.decisions if isinstance(each, Fired)]
    of = {name: [value for rule, value in fired if rule == name] for name, _ in fired}
    assert of["count"] == [55, 60, 57, 58]
    assert of["held"] == [58]
    assert of["each"] == [55, 57]


@pytest.mark.parametrize(
    "metric", ["queue.sched", "mean.sim-T", "count.sim.success", "sum.sim-duration"]
)
def test_a_rule_that_is_enabled_is_considered_whatever_its_metric_is(metric: str) -> None:
    text = (HEAD + "  - " + COLD.replace("<= 50", ">= 0")).replace("METRIC", metric)
    story = Story(text.replace("> 50", ">= 0").replace("value > 50", "value >= 0"))
    story.start({"queue.sched": 4.0})
    story.begin("sim.0")
    story.observe("sim.0", {"T": 60})
    if metric.startswith(("count", "sum")):
        story.job("sim.0", "finish", after=1, status=0)
    before = story.fired().count("count")
    assert before >= 1
    tracer = RuleTracer(story.engine, "cool")
    decided = story.tell(Requested(story.now, "user", {"name": "enable", "rules": "cool"}))
    assert story.fired(decided) == ["cool"]
    assert [each.kind for each in tracer.verdicts] == ["fired"]
    assert story.fired().count("count") == before


def test_a_look_at_one_rule_is_counted_for_this_rule_only() -> None:
    story = Story((HEAD + f"  - {COLD}").replace("METRIC", "last.sim-T"))
    story.start()
    story.begin("sim.0")
    story.observe("sim.0", {"T": 60})
    woken = {each.id: each.triggered for each in story.engine.report().rules}
    tracer = RuleTracer(story.engine, "cool")
    request("enable")(story)
    assert [each.kind for each in tracer.verdicts] == ["condition"]
    after = {each.id: each.triggered for each in story.engine.report().rules}
    assert after == {**woken, "cool": woken["cool"] + 1}


def test_what_others_do_to_a_rule_never_changes_how_often_another_fires() -> None:
    """Random rows, gauges and requests about one rule, compared with a run without requests."""
    random_ = random.Random(7)
    for _ in range(40):
        seen = []
        plan = [
            (random_.choice(["T", "T", "free"]), random_.randint(30, 70), random_.random() < 0.5)
            for _ in range(30)
        ]
        for asks in (False, True):
            metric = "queue.sched" if plan[0][2] else "last.sim-T"
            story = Story((HEAD + f"  - {COLD}").replace("METRIC", metric))
            story.start({"queue.sched": 4.0})
            story.begin("sim.0")
            for name, value, ask in plan:
                if name == "T":
                    story.observe("sim.0", {"T": value})
                else:
                    story.tell(Resources(story.now, {"queue.sched": float(value)}))
                if ask and asks:
                    request("enable" if value % 2 else "disable")(story)
            fired = [each for each in story.decisions if isinstance(each, Fired)]
            seen.append([(each.rule, each.value) for each in fired if each.rule != "cool"])
        assert seen[0] == seen[1]
