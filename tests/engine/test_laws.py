"""The engine's laws, for random ensembles and random events (hypothesis).

After every event, the story itself checks that there are no decisions after ``terminate``, that no
rule fires more often than its repetitions, and that counts are conserved.
"""

from __future__ import annotations

import json
import random
from typing import NamedTuple

import pytest
import yaml
from ensemble_testing import Story
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ensemble_core.engine.engine import Engine
from ensemble_core.engine.rule_trace import RuleTracer
from ensemble_core.engine.timers import Timer
from ensemble_core.journal.event_encoding import decisions_text, event_text, list_text, rows_of
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.decisions import Call, Resize
from ensemble_core.model.events import CallFailed, CallReturned, Event, ResizeOutcome, Resources

GROUPS = ("a", "b", "c-d")
PATHS = [f"count.{group}.{counter}" for group in GROUPS for counter in ("success", "submitted")]
PATHS += [f"{stat}.{group}-duration" for group in GROUPS for stat in ("mean", "p90", "max")]
PATHS += ["mean.a-pending", "queue.run", "count.a.failed", "count.b.cancelled", "rate.a-duration"]

actions = st.one_of(
    st.fixed_dictionaries({"name": st.just("submit"), "label": st.sampled_from(GROUPS)}),
    st.fixed_dictionaries({"name": st.just("cancel"), "label": st.sampled_from(GROUPS)}),
    st.just({"name": "log", "message": "x"}),
    st.just({"name": "grow", "value": 2}),
    st.just({"name": "custom", "label": "function"}),
    st.fixed_dictionaries(
        {
            "name": st.just("set"),
            "label": st.sampled_from(GROUPS),
            "with": st.fixed_dictionaries({"count": st.integers(1, 3)}),
        }
    ),
    st.fixed_dictionaries(
        {"name": st.sampled_from(["enable", "disable"]), "rules": st.sampled_from(["r0", "r1"])}
    ),
)
seldom_terminate = st.one_of(
    *[actions] * 12, st.fixed_dictionaries({"name": st.just("terminate"), "exit_code": st.just(3)})
)
whens = st.one_of(
    st.integers(0, 6),
    st.builds("{} {}".format, st.sampled_from([">", ">=", "<=", "==", "!="]), st.integers(0, 8)),
    st.builds("< {}".format, st.integers(1, 8)),  # a count below 0 is refused
    st.just("> 1 and < 5"),
    st.just('value > 2 or metric("count.a.success") > 3'),
)
common = {
    "repetitions": st.integers(1, 6),
    "action": st.lists(seldom_terminate, min_size=1, max_size=3),
}
job_rules = st.fixed_dictionaries(
    {
        "trigger": st.sampled_from(
            [
                "job-submit",
                "job-start",
                "job-finish",
                "job-success",
                "job-fail",
                "job-cancel",
                "job-clean",
                "job-run",
                "job-exception",
            ]
        ),
        **common,
    },
    optional={"backoff": st.one_of(st.integers(0, 3), st.just("5s")), "when": st.just("index > 1")},
)
beat_rules = st.fixed_dictionaries({"trigger": st.just("heartbeat"), **common})
metric_rules = st.fixed_dictionaries(
    {"trigger": st.just("metric"), "name": st.sampled_from(PATHS), **common},
    optional={"when": whens, "backoff": st.integers(0, 2)},
)
interval_rules = st.fixed_dictionaries(
    {"trigger": st.just("interval"), "seconds": st.integers(1, 20), **common}
)


@st.composite
def ensembles(draw: st.DrawFn) -> str:
    """Draw an ensemble file."""
    rules = draw(
        st.lists(
            st.one_of(*[job_rules] * 3, *[metric_rules] * 3, interval_rules, beat_rules), max_size=8
        )
    )
    for number, rule in enumerate(rules):
        rule["id"] = f"r{number}"
        for action in rule["action"]:
            if action["name"] in ("enable", "disable") and len(rules) < 2:
                action.clear()
                action.update({"name": "log", "message": "x"})
    start = [{"name": "submit", "label": group} for group in GROUPS]
    limits = {"chain": draw(st.integers(2, 30)), "jobs": 200}
    if draw(st.booleans()):
        limits["submits_per_second"] = draw(st.integers(1, 5))
    return yaml.safe_dump(
        {
            "logging": {"heartbeat": draw(st.sampled_from([3, 30]))},
            "limits": limits,
            "jobs": [
                {"name": group, "command": "x", "count": draw(st.integers(1, 4))}
                for group in GROUPS
            ],
            "rules": [{"trigger": "start", "action": start}, *rules],
            "custom": "def function(**kwargs):\n    return None\n",
        }
    )


def tell(story: Story, seed: int, events: int = 90) -> None:
    """Send a random but possible sequence of events, with a varying number of nodes."""
    chance = random.Random(seed)
    waiting, running, clearing = set[str](), set[str](), set[str]()
    outstanding: list[object] = []

    def note(decisions: list[object]) -> None:
        waiting.update(story.submitted(decisions))  # type: ignore[arg-type]
        outstanding.extend(one for one in decisions if isinstance(one, (Call, Resize)))

    note(list(story.start()))
    for _ in range(events):
        pick = chance.random()
        decided: list[object] = []
        if outstanding and pick < 0.2:
            one = outstanding.pop(chance.randrange(len(outstanding)))
            if isinstance(one, Call):
                spec = {"action": {"name": "submit", "label": chance.choice(GROUPS)}}
                result = (spec,) * chance.randrange(2)
                failed = chance.random() < 0.1
                decided += story.tell(
                    CallFailed(story.now, one.call, "no")
                    if failed
                    else CallReturned(story.now, one.call, result)
                )
            elif isinstance(one, Resize):
                outcome = chance.choice(["granted", "denied", "timeout", "undelivered"])
                decided += story.tell(ResizeOutcome(story.now, one.request, outcome, 3))
        elif waiting and pick < 0.5:
            job = chance.choice(sorted(waiting))
            waiting.discard(job)
            if chance.random() < 0.15:
                decided += story.cancel(job)
            else:
                running.add(job)
                decided += story.begin(job, pending=chance.random() * 9)
        elif running and pick < 0.75:
            job = chance.choice(sorted(running))
            running.discard(job)
            if chance.random() < 0.15:
                decided += story.cancel(job)
            else:
                clearing.add(job)
                status = 0 if chance.random() < 0.7 else 256
                decided += story.job(job, "finish", after=chance.random() * 30, status=status)
        elif clearing and pick < 0.9:
            job = chance.choice(sorted(clearing))
            clearing.discard(job)
            decided += story.job(job, "release", "free", "clean")
            if chance.random() < 0.3:
                decided += story.job(job, "clean", "finish")  # late duplicates
        elif pick < 0.93:
            nodes = {"nodes.free": chance.randrange(3), "nodes.up": chance.randrange(2, 9)}
            decided += story.tell(Resources(story.now, nodes))
        else:
            decided += story.wait(chance.random() * 10)
        note(decided)


class Handled(NamedTuple):
    """Decisions of the engine on one event, and its next timer."""

    #: The event with its decisions, as a line of the journal.
    line: str
    decisions: str | None
    timer: Timer | None


def replayed(story: Story) -> list[Handled]:
    """Check that another engine makes the same decisions, and return them.

    Both engines report after every event, because a report stores values that no rule has read.
    """
    again, handled = Engine(story.ensemble), []
    decided: list[object] = []
    for event in story.events:
        decisions = again.handle(Event.from_dict(json.loads(json.dumps(event.to_dict()))))
        decided += [decision.to_dict() for decision in decisions]
        line = event_text(event, decisions)
        handled.append(Handled(line, decisions_text(decisions), again.next_timer()))
        again.report()
    assert json.dumps(decided) == json.dumps([one.to_dict() for one in story.decisions])
    assert again.report() == story.engine.report()
    return handled


def check_submits(story: Story) -> None:
    """Check that jobs are submitted once and that nothing is decided after ``terminate``."""
    jobs = story.submitted()
    assert len(jobs) == len(set(jobs))
    kinds = [decision.type for decision in story.decisions]
    assert kinds.count("terminate") <= 1
    if "terminate" in kinds:
        after = kinds[kinds.index("terminate") + 1 :]
        assert not {"submit", "fired", "call", "resize"} & set(after)


def check_resumes(story: Story, handled: list[Handled], seed: int, snapshots: float) -> None:
    """Check that an engine with events from a journal makes the same decisions.

    At about ``snapshots`` random events, it is replaced by one from its snapshot.
    """
    chance, again = random.Random(seed), Engine(story.ensemble)
    for seq, (line, decisions, timer) in enumerate(handled, start=1):
        if chance.random() < snapshots / len(handled):
            state = dump(again)
            assert state is not None
            loaded = load(state, story.ensemble)
            assert loaded is not None
            again = loaded
        (row,) = rows_of(seq, seq, list_text([line]))
        assert row.decisions == decisions
        assert decisions_text(again.handle(row.event())) == decisions
        assert again.next_timer() == timer
        again.report()
    assert again.report() == story.engine.report()


def check_the_same_file(story: Story, text: str) -> None:
    """Check that a run that continues with the same file keeps its counts and rules."""
    engine = Engine(story.ensemble)
    for event in story.events[: len(story.events) // 2]:
        engine.handle(event)
    before = engine.report()
    engine.reconfigure(Story(text).ensemble)
    after = engine.report()
    assert after.groups == before.groups
    assert [(r.id, r.fired, r.enabled, r.state) for r in after.rules] == [
        (r.id, r.fired, r.enabled, r.state) for r in before.rules
    ]


def check_tracers(story: Story, handled: list[Handled]) -> None:
    """Check that a tracer sees each firing and changes nothing."""
    for traced in list(story.engine.state.rules.states)[1:3]:
        engine = Engine(story.ensemble)
        tracer, fired = RuleTracer(engine, traced), 0
        for event, each in zip(story.events, handled, strict=True):
            assert decisions_text(engine.handle(event)) == each.decisions
            fired += sum(verdict.kind == "fired" for verdict in tracer.verdicts)
        assert fired == story.fired().count(traced)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(text=ensembles(), seed=st.integers(0, 2**32))
def test_every_law_holds_in_random_stories(text: str, seed: int) -> None:
    story = Story(text)
    tell(story, seed)
    check_submits(story)
    handled = replayed(story)
    check_resumes(story, handled, seed, snapshots=4)
    check_the_same_file(story, text)
    check_tracers(story, handled)


#: Each algorithm of the core, with its options.
ALGORITHMS = {
    "workload-demand": "{groups: [a, b], order: random, every: 1, checks: 1, keep: true}",
    "random-selection": "{groups: [a, b], at_once: 3, seed: 5, scale: true, every: 4, checks: 2}",
    "workload-success": "{group: c-d, successes: 40, at_once: 3, valid: duration < 20}",
    "select-fastest-runtime": "{groups: [a, b], at_once: 3, statistic: median}",
    "select-longest-runtime": "{groups: [b, a], at_once: 3}",
    "cheapest-member": "{at_once: 4, members: [{group: a, price: 2}, {group: b, price: 0.5}]}",
}
STUDY = """
jobs:
  - {name: a, command: 'x {x}', parameters: {x: {from: 1, to: 25}}}
  - {name: b, command: x, nodes: 2, count: 25}
  - {name: c-d, command: x}
use:
  - {algorithm: NAME, as: first, with: OPTIONS}
  - {algorithm: workload-success, as: then, enabled: false, with: {group: c-d, successes: 30}}
rules:
  - trigger: job-success
    when: metric("count.a.success") + metric("count.c-d.success") > 8
    action: {name: switch, to: then}
"""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_resumed_algorithm_makes_the_same_decisions(name: str) -> None:
    text = STUDY.replace("NAME", name).replace("OPTIONS", ALGORITHMS[name])
    story = Story(text)
    tell(story, seed=7, events=250)
    kinds = [decision.type for decision in story.decisions]
    assert {"submit", "switch"} <= {*kinds}
    check_submits(story)
    check_resumes(story, replayed(story), seed=7, snapshots=30)
