"""The laws of attempts, indices, slices and idle rules, for random events (hypothesis).

Ensembles are built from checked rules and groups. The tests count jobs and considered rules
themselves, and compare these counts with those of the engine.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_testing import Story
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ensemble_core.engine.engine import Engine
from ensemble_core.engine.firing_records import Match
from ensemble_core.engine.name_values import all_fields, named_fields
from ensemble_core.engine.rule_index import RuleState
from ensemble_core.engine.scopes import Slice
from ensemble_core.journal.event_encoding import decisions_text
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.metrics.store import COUNTS
from ensemble_core.model.conditions import parse
from ensemble_core.model.decisions import Call, Decision, Log, Retry, Submit
from ensemble_core.model.ensemble import Binder, Ensemble, Limits
from ensemble_core.model.events import (
    CallFailed,
    CallReturned,
    Event,
    ExecutorLost,
    JobEvent,
    Resumed,
    StopRequested,
    TimerElapsed,
)
from ensemble_core.model.expressions import EVENT_FIELDS, expression
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.retry_policy import RetryPolicy
from ensemble_core.model.rules import BoundAction, BoundRule, Trigger

Spec = Mapping[str, Any]

#: Only the start and ``vary`` submit jobs of ``v``.
GROUPS = ("a", "b", "v")

EMPTY = Story(
    "jobs: [{name: a, command: x}]\nrules: [{trigger: start, action: {name: submit, label: a}}]"
).ensemble


def plan_of(spec: Spec) -> BoundAction:
    """Return a checked action with these options."""
    name = spec["name"]

    def plan(firing: Any, _: Any) -> Iterable[Decision]:
        if name == "submit":
            yield firing.submit(spec["label"])
        elif name == "retry":
            fields = {"parameters": {"T": spec["T"]}} if "T" in spec else {}
            yield firing.retry(fields, wait=spec["wait"], resume=spec["resume"])
        elif name == "vary":
            yield from firing.vary(spec["parameters"], label="v")
        elif name == "cancel":
            yield firing.cancel(firing.active(spec["label"]))
        elif name == "set":
            yield firing.set_group(spec["label"], {"at_once": spec["at_once"]})
        elif name == "call":
            yield firing.call("function")
        elif name == "terminate":
            yield firing.terminate(3)
        elif name in ("enable", "disable"):
            yield getattr(firing, name)([f"r{number}" for number in range(8)])
        else:
            yield firing.log("x")

    return BoundAction(name=name, plan=plan, varies=("v",) if name == "vary" else ())


def rule_of(spec: Spec, rule_id: str) -> BoundRule:
    """Return a checked rule with these keys."""
    each, group = spec.get("each"), spec.get("group")
    trigger: dict[str, Any] = {"events": (spec["trigger"],)}
    if isinstance(group, list):
        trigger["groups"] = tuple(group)
    elif "metric" in spec:
        trigger = {"metric": spec["metric"]}
    else:
        trigger["group"] = group
    return BoundRule(
        id=spec.get("id", rule_id),
        trigger=Trigger(**trigger),
        actions=tuple(map(plan_of, spec["action"])),
        condition=parse(spec["when"], has_value=False) if "when" in spec else None,
        repetitions=spec.get("repetitions", 1),
        enabled=spec.get("enabled", True),
        backoff=spec.get("backoff", 0),
        checks=spec.get("for", 1),
        each=tuple(each) if isinstance(each, list) else each,
        reads=frozenset(spec.get("reads", ())),
        retries=any(action["name"] == "retry" for action in spec["action"]),
        concerns_failure=spec["trigger"] == "job-fail",
        spec=dict(spec),
    )


def group_of(group: JobGroup, fields: Spec) -> JobGroup:
    changed = dict(fields)
    if "parameters" in changed:
        merged = {name: tuple(values) for name, values in changed["parameters"].items()}
        changed["parameters"] = {**group.parameters, **merged}
    return dataclasses.replace(group, **changed)


def ensemble_of(drawn: Spec) -> Ensemble:
    """Return the ensemble of a drawn specification."""
    groups = {}
    for name in drawn.get("names", GROUPS):
        more = drawn["groups"].get(name, {})
        groups[name] = JobGroup(
            name=name,
            command=("x", "{T}"),
            parameters={"T": tuple(more.get("T", (1, 2)))},
            count=more.get("count", 1),
            replicated=True,
            urgency=16,
            at_once=more.get("at_once"),
            result={"E": expression("last.x"), "word": expression('"w"', texts=True)},
            reads=frozenset({"last.x"}),
            retry=RetryPolicy(times=more["retry"]) if "retry" in more else None,
        )
    start = [{"name": "submit", "label": name} for name in groups]
    rules = [rule_of({"trigger": "start", "action": start}, "start")]
    rules += [rule_of(spec, f"r{number}") for number, spec in enumerate(drawn["rules"])]
    return dataclasses.replace(
        EMPTY,
        groups=groups,
        rules=tuple(rules),
        binder=Binder(
            rule=rule_of,
            action=lambda spec: plan_of(spec),
            group=group_of,
        ),
        limits=Limits(jobs=150, chain=20, submits_per_second=drawn.get("rate")),
        functions=frozenset({"function"}),
    )


# -- random ensembles --------------------------------------------------------------------------

labels = st.sampled_from(GROUPS)
plain_actions = st.one_of(
    st.fixed_dictionaries({"name": st.just("submit"), "label": st.sampled_from(["a", "b"])}),
    st.fixed_dictionaries({"name": st.just("cancel"), "label": labels}),
    st.fixed_dictionaries(
        {
            "name": st.just("set"),
            "label": labels,
            "at_once": st.sampled_from([None, 1, 3]),
        }
    ),
    st.just({"name": "call"}),
    st.just({"name": "log"}),
    st.sampled_from([{"name": "enable"}, {"name": "disable"}]),
)
seldom = st.one_of(*[plain_actions] * 20, st.just({"name": "terminate"}))
varies = st.fixed_dictionaries(
    {
        "name": st.just("vary"),
        "parameters": st.fixed_dictionaries(
            {"T": st.lists(st.sampled_from([1, 1.0, 2.5, "1", 3, 4.0]), min_size=1, max_size=3)}
        ),
    }
)
retries = st.fixed_dictionaries(
    {
        "name": st.just("retry"),
        "wait": st.sampled_from([0.0, 0.0, 7.0]),
        "resume": st.booleans(),
    },
    optional={"T": st.sampled_from([1, 5])},
)
whens = st.sampled_from(
    ["count.submitted > 1", "mean.x > 1", "max.x > 3 or count.lost > 0", "index >= 0"]
)
job_rules = st.fixed_dictionaries(
    {
        "trigger": st.sampled_from(
            ["job-success", "job-fail", "job-cancel", "job-finish", "job-clean"]
        ),
        "group": st.one_of(st.none(), labels),
        "each": st.sampled_from([None, "job", "job"]),
        "repetitions": st.integers(1, 3),
        "action": st.lists(st.one_of(retries, retries, varies, seldom), min_size=1, max_size=2),
    },
    optional={"backoff": st.integers(0, 2)},
)
over_rules = st.fixed_dictionaries(
    {
        "trigger": st.sampled_from(["job-done", "job-lost", "observed"]),
        "group": labels,
        "each": st.sampled_from([None, "job", ["T"]]),
        "repetitions": st.integers(1, 4),
        "action": st.lists(st.one_of(varies, seldom), min_size=1, max_size=2),
    },
    optional={"when": whens, "for": st.integers(1, 3), "backoff": st.integers(0, 2)},
)
idle_rules = st.fixed_dictionaries(
    {
        "trigger": st.just("idle"),
        "group": st.one_of(st.none(), labels, st.just(["a", "v"])),
        "repetitions": st.integers(1, 5),
        "action": st.lists(seldom, min_size=1, max_size=2),
    },
    optional={"enabled": st.booleans()},
)
slice_rules = st.fixed_dictionaries(
    {
        "trigger": st.just("idle"),
        "group": st.one_of(labels, st.just(["a", "v"])),
        "each": st.just(["T"]),
        "repetitions": st.integers(1, 3),
        "action": st.lists(st.one_of(varies, seldom), min_size=1, max_size=2),
    },
    optional={"when": st.sampled_from(["mean.x > 1", "count.done >= 1"])},
)
metric_rules = st.fixed_dictionaries(
    {
        "trigger": st.just("metric"),
        "metric": st.sampled_from(
            ["count.a.done", "count.v.open", "count.b.lost", "mean.a-E", "count.v.submitted"]
        ),
        "repetitions": st.integers(1, 3),
        "action": st.lists(seldom, min_size=1, max_size=2),
    }
)
groups = st.fixed_dictionaries(
    {},
    optional={
        "T": st.lists(st.sampled_from([1, 2, 2.5, "x"]), min_size=1, max_size=3, unique=True),
        "count": st.integers(1, 2),
        "at_once": st.integers(1, 3),
        "retry": st.integers(1, 2),
    },
)


@st.composite
def drawings(draw: st.DrawFn) -> Spec:
    some = st.one_of(job_rules, job_rules, over_rules, idle_rules, slice_rules, metric_rules)
    rules = draw(st.lists(some, min_size=1, max_size=8))
    for rule in rules:
        if "when" in rule:
            names = parse(rule["when"], has_value=False).names
            rule["reads"] = sorted(name for name in names if "." in name)
    drawn = {"rules": rules, "groups": {name: draw(groups) for name in GROUPS}}
    if draw(st.integers(0, 3)) == 0:
        drawn["rate"] = 2.0
    return drawn


# -- independent checks ------------------------------------------------------------------------


class Watched(Story):
    """Story that checks some of its engine's internal calls."""

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__(ensemble)
        self.texts: list[str | None] = []
        self.indices: Counter[str] = Counter()
        self.attempts: Counter[str] = Counter()
        self.combinations: dict[str, list[tuple[Any, ...]]] = {}
        self.instances: Counter[Any] = Counter()
        self.emptied: dict[Any, int] = {}
        self.looks: list[tuple[str, Event]] = []
        self.in_queue: Counter[str] = Counter()
        table, rules = self.engine.state.table, self.engine._rules
        add, consider, free = table.add, rules.consider, table.free

        def watched_add(job: Any, *rest: Any, **more: Any) -> None:
            self.attempts[job.group] += 1
            if job.attempt == 0:
                self.indices[job.group] += 1
                found = self.combinations.setdefault(job.group, [])
                found.append((job.parameters.get("T"), job.replica))
            add(job, *rest, **more)

        def watched_consider(state: RuleState, match: Match) -> None:
            before = len(self.fired(self.engine.state.out))
            every = all_fields(self.ensemble, match)
            names = {*every, *EVENT_FIELDS, "x", "T"}
            assert named_fields(names, self.ensemble, *match) == every
            if state.rule.trigger.events == ("idle",):
                self.look_at_idle(state, match)
            consider(state, match)
            if state.rule.each is not None:
                fired = self.fired(self.engine.state.out)[before:]
                self.count_instance(state, match, fired)

        def watched_free(group: Any, now: float) -> Any:
            found = free(group, now)
            handed = [(-job.urgency, job.index, job.attempt) for job, *_ in found]
            assert handed == sorted(handed, key=lambda key: key[0])
            left = [-job.urgency for job, *_ in group.held.values()]
            assert not handed or not left or handed[-1][0] <= min(left)
            most = group.group.at_once
            handed_over = sum(r.job.group == group.group.name for r in table.records.values())
            handed_over -= len(group.held)
            assert not found or most is None or handed_over <= most
            return found

        table.add, table.free = watched_add, watched_free  # type: ignore[method-assign]
        rules.consider = watched_consider  # type: ignore[method-assign]

    def look_at_idle(self, state: RuleState, match: Match) -> None:
        """Check that an idle rule is considered once each time that all its jobs are over."""
        scope, engine = match.scope, self.engine.state
        assert not engine.calls
        if isinstance(scope, Slice):
            still_open, ever = scope.open, scope.ever
            key: Any = (state.rule.id, tuple(scope.parameters.items()))
        else:
            names = state.rule.groups or tuple(engine.table.groups)
            still_open = sum(engine.metrics.count(name, "open") for name in names)
            ever, key = sum(self.indices[name] for name in names), state.rule.id
        assert not still_open
        assert ever > self.emptied.get(key, 0), f"{key} was considered twice"
        self.emptied[key] = ever
        self.looks.append((state.rule.id, match.event))

    def count_instance(self, state: RuleState, match: Match, fired: list[str]) -> None:
        scope, record = match.scope, match.record
        if state.rule.id not in fired:
            return
        if state.rule.each == "job":
            assert record is not None
            key: Any = (record.job.group, record.job.index)
        elif isinstance(scope, Slice):
            key = tuple(scope.parameters.values())
        else:
            assert record is not None
            key = tuple(record.job.parameters[name] for name in state.rule.each or ())
        self.instances[state.rule.id, key] += 1
        assert self.instances[state.rule.id, key] <= state.rule.repetitions

    def tell(self, event: Event) -> list[Decision]:
        decisions = super().tell(event)
        self.texts.append(decisions_text(decisions))
        state = self.engine.state
        unsettled = [*state.table.records.values()]
        unsettled += [index.record for index in state.attempts.values()]
        asked = [each.origin.match.record for each in state.calls.values()]
        unsettled += [each.index.record for each in asked if each and not each.index.over]
        for name in state.metrics.counts:
            counts = {counter: state.metrics.count(name, counter) for counter in COUNTS}
            ever = counts["open"] + counts["done"] + counts["lost"]
            assert ever == self.indices[name], (name, counts)
            still_open = {each.job.index for each in unsettled if each.job.group == name}
            assert counts["open"] == len(still_open), (name, counts, still_open)
            over = counts["success"] + counts["failed"]
            assert counts["finished"] == over
            assert counts["submitted"] == over + counts["cancelled"] + counts["active"]
            assert counts["submitted"] == self.attempts[name]
            group = state.table.groups[name]
            here = [r for r in state.table.records.values() if r.job.group == name]
            assert counts["active"] == sum(each.outcome is None for each in here)
            if group.group.at_once is not None:
                taken = state.table.slots.used.get(("at_once", name), 0)
                assert taken == len(here) - len(group.held)
            for each in group.tables:
                assert all(one.open >= 0 for one in each.slices.values())
        for one in decisions:
            assert not isinstance(one, Log) or "cannot handle an event" not in one.message, one
            assert not isinstance(one, Log) or "raised" not in one.message, one
        return decisions


def tell(story: Story, seed: int, events: int = 110, *, begun: bool = False) -> None:
    """Send a random sequence of events, with the errors that a queue may make."""
    chance = random.Random(seed)
    waiting, running, clearing = dict[str, bool](), list[str](), list[str]()
    if begun:
        waiting.update((job, True) for job, _ in story.engine.in_queue())
    calls: list[Call] = []
    lost = False

    def note(decisions: Iterable[Decision]) -> None:
        for one in decisions:
            if isinstance(one, Submit):
                waiting.update((job.id, False) for job in one.jobs)
            if isinstance(one, Call) and one.attempt == 1:
                calls.append(one)

    def take(some: Any) -> str:
        job = chance.choice(sorted(some))
        some.pop(job) if isinstance(some, dict) else some.remove(job)
        return str(job)

    note([] if begun else story.start())
    for _ in range(events):
        pick, decided = chance.random(), list[Decision]()
        known = story.engine.state.table.records
        for some in (running, clearing):
            some[:] = [job for job in some if job in known]
        for job in [job for job in waiting if job not in known]:
            del waiting[job]
        if lost and pick < 0.3:
            absent = tuple(job for job, heard in waiting.items() if not heard)
            lost = False
            decided += story.tell(Resumed(story.now, {}, absent))
        elif pick < 0.02:
            lost = story.engine.state.ended is None or lost
            decided += story.tell(ExecutorLost(story.now, "fake", "gone"))
        elif pick < 0.04:
            absent = tuple(job for job, heard in waiting.items() if not heard)
            decided += story.tell(Resumed(story.now, {}, absent))
            lost = False
        elif pick < 0.045:
            decided += story.tell(StopRequested(story.now))
        elif calls and pick < 0.2:
            call = calls.pop(chance.randrange(len(calls)))
            result = chance.choice(
                [
                    (),
                    ({"action": {"name": "submit", "label": "a"}},),
                    ({"action": {"name": "retry", "wait": 0.0, "resume": False}},),
                    (
                        {
                            "rule": {
                                "trigger": "job-done",
                                "group": "v",
                                "each": ["T"],
                                "reads": ["count.done"],
                                "when": "count.done > 1",
                                "action": [{"name": "log"}],
                            }
                        },
                    ),
                ]
            )
            returned: Event = CallReturned(story.now, call.call, result)
            if chance.random() < 0.1:
                returned = CallFailed(story.now, call.call, "no")
            decided += story.tell(returned)
        elif waiting and pick < 0.45:
            job = take(waiting)
            if chance.random() < 0.2:
                decided += story.cancel(job)
            else:
                running.append(job)
                decided += story.begin(job, pending=chance.random() * 3)
        elif running and pick < 0.55:
            decided += story.observe(chance.choice(sorted(running)), x=chance.choice([1, 2.5, 4]))
        elif running and pick < 0.75:
            job = take(running)
            if chance.random() < 0.15:
                decided += story.cancel(job)
            else:
                clearing.append(job)
                status = 0 if chance.random() < 0.6 else 256
                decided += story.job(job, "finish", after=chance.random() * 9, status=status)
        elif clearing and pick < 0.92:
            job = take(clearing)
            decided += story.job(job, "clean")
            if chance.random() < 0.3:
                decided += story.job(job, "clean", "finish", "exception")
        elif pick < 0.95:
            odd = chance.choice(
                [
                    JobEvent(story.now, "a.0-9", "finish", {"status": 0}),
                    JobEvent(story.now, "a.0", "submit", {}),
                    JobEvent(story.now, "v.1", "exception", {"severity": "x", "type": None}),
                    JobEvent(story.now, "b.0", "finish", {"status": "zero", "cause": 3}),
                    TimerElapsed(story.now, "attempt", "a.0-1"),
                    TimerElapsed(story.now, "attempt", "nothing"),
                    CallReturned(story.now, "call-999", ()),
                    CallFailed(story.now, "call-999", "no"),
                ]
            )
            decided += story.tell(odd)
        else:
            decided += story.wait(chance.random() * 9)
        note(decided)


# -- the laws ----------------------------------------------------------------------------------


def check_retries_and_variations(story: Watched) -> None:
    """Check that an end causes at most one retry, and that ``vary`` repeats no combination."""
    retried = Counter(one.job for one in story.decisions if isinstance(one, Retry))
    assert not retried or max(retried.values()) == 1
    found = [(type(T) is str, T, replica) for T, replica in story.combinations.get("v", [])]
    assert len(found) == len(set(found))


def check_replay(story: Watched) -> None:
    """Check that a replay makes the same decisions, even if it skips no check of idle rules."""
    again = Engine(story.ensemble)
    index = again.state.rules.index
    for event, text in zip(story.events, story.texts, strict=True):
        index.new_idle = index.broad_idle > 0
        handed = Event.from_dict(json.loads(json.dumps(event.to_dict())))
        assert decisions_text(again.handle(handed)) == text
    assert again.report() == story.engine.report()


def check_gauges(story: Watched, seed: int) -> None:
    """Check that a gauge does not depend on when it is first read."""
    often, late, chance = Engine(story.ensemble), Engine(story.ensemble), random.Random(seed)
    for number, event in enumerate(story.events):
        if number % 8 == 0:
            often.snapshot()
        often.handle(event)
        late.handle(event)
        if chance.random() < 0.02:
            assert dict(late.snapshot()) == dict(often.snapshot())
    assert dict(late.snapshot()) == dict(often.snapshot())


def check_snapshots_and_the_same_file(story: Watched, drawn: Spec, seed: int) -> None:
    """Check that neither snapshots nor continuing with the same file change a decision."""
    chance, again = random.Random(seed), Engine(story.ensemble)
    joined = any(one.type == "add-rule" for one in story.decisions)
    for event, text in zip(story.events, story.texts, strict=True):
        pick = chance.random()
        if pick < 0.02:
            loaded = load(dump(again), story.ensemble)
            assert loaded is not None or joined
            again = loaded or again
        elif pick < 0.035:
            again.reconfigure(ensemble_of(drawn))
        assert decisions_text(again.handle(event)) == text


@settings(suppress_health_check=list(HealthCheck))
@given(drawn=drawings(), seed=st.integers(0, 2**32))
def test_laws_of_attempts_indices_and_slices_hold(drawn: Spec, seed: int) -> None:
    story = Watched(ensemble_of(drawn))
    tell(story, seed)
    check_retries_and_variations(story)
    check_replay(story)
    check_gauges(story, seed)
    check_snapshots_and_the_same_file(story, drawn, seed)


@settings(suppress_health_check=list(HealthCheck))
@given(drawn=drawings(), other=drawings(), seed=st.integers(0, 2**32))
def test_laws_hold_after_a_change_of_the_file(drawn: Spec, other: Spec, seed: int) -> None:
    story = Watched(ensemble_of(drawn))
    tell(story, seed, 40)
    changed = {**other, "names": ("a", "v", "new", "b")}
    story.instances.clear()
    story.emptied.clear()
    story._fired.clear()  # generated IDs now belong to other rules
    story.engine.reconfigure(ensemble_of(changed))
    story.tell(Resumed(story.now, {}, ()))
    if story.engine.state.ended is None:
        tell(story, seed + 1, 40, begun=True)
