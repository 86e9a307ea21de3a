"""Tests of hostile members: they may only report their jobs, resources, requested outcomes, and
problems.

A holder of a member's token can send any message of the protocol. None may affect another member's
jobs, steer the run, or make the journal unreadable.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ensemble_service.access import Identity
from ensemble_service.agent import Agent
from ensemble_service.channel import open_channel
from ensemble_service.client import ServiceClient
from ensemble_service.member_proxy import MemberProxy, RunContext
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.remote_executor import RemoteExecutor
from ensemble_service.router import Router
from ensemble_service.server import Settings, serving
from ensemble_service.tokens import TokenFile
from ensemble_service.wire import from_jobs
from ensemble_testing import Story, wait_until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ensemble_core import (
    Emit,
    Event,
    Executor,
    ExecutorLost,
    Job,
    JobEvent,
    Observed,
    Problem,
    ResizeOutcome,
    Resources,
    Run,
    UsageError,
)
from ensemble_core.model import events as every
from ensemble_core.model.decisions import Call

NOW = 1_000_000.0
MINE, ANOTHERS, NOBODYS = "t.1", "t.2", "t.9"


class Steered:
    """A member used by a run. It has job ``t.1`` and the request ``r-1``."""

    def __init__(self, *capabilities: str, offsets: tuple[int, int] = (0, 0)) -> None:
        self.told: list[Event] = []
        self.gauges: set[str] = set()
        self.stale: list[str] = []
        self.clocks: list[tuple[str, int, int]] = []
        self.sent: list[pb.Call] = []
        self.now = NOW
        numbers = itertools.count(1)
        self.proxy = MemberProxy(
            "default/a",
            RunContext(
                run="r",
                epoch=1,
                number=lambda: next(numbers),
                send=lambda message: self.sent.append(message.call),
                tell=self.told.extend,
                clock=lambda: self.now,
                gauges=lambda paths, when: self.gauges.update(paths),
                stale=lambda member, reason: self.stale.append(reason),
                elsewhere=lambda member, job: job == ANOTHERS,
                ahead=lambda *all_of_it: self.clocks.append(all_of_it),
                shared=("/x",),
            ),
            offsets,
        )
        self.first = 1
        self.proxy.connected()
        opened = pb.Opened(life="l", kept_from=1, capabilities=capabilities)
        self.answer(opened=opened)
        self.submit(MINE)
        self.proxy.resize("r-1", 1, "wait")
        self.told.clear()

    def submit(self, name: str) -> None:
        job = Job(id=name, group="t", index=int(name.partition(".")[2]), command=("x",))
        self.proxy.submit(from_jobs([job]), [name])

    def answer(self, **what: Any) -> None:
        call = self.sent[-1]
        answer = pb.Answer(run="r", member="default/a", epoch=1, id=call.id, **what)
        self.proxy.answered(answer, time.monotonic())

    def say(self, *messages: pb.Event) -> list[Event]:
        """Send events. Return those that reach the run, except warnings about the member."""
        seen = len(self.told)
        batch = pb.Batch(run="r", member="default/a", life="l", first=self.first, events=messages)
        self.first += len(messages)
        self.proxy.received(batch)
        return [e for e in self.told[seen:] if e.type != "problem" or e not in self.warnings()]

    def warnings(self) -> list[Problem]:
        return [
            event
            for event in self.told
            if isinstance(event, Problem)
            and event.level == "warning"
            and not event.message.startswith("member default/a: ")
        ]


def raw(data: Any, timestamp: float = NOW) -> pb.Event:
    """Return an event as any program with the member's token could send it."""
    text = data if isinstance(data, str) else json.dumps(data)
    return pb.Event(timestamp=timestamp, data=text)


def of(event: Event) -> pb.Event:
    return raw(event.to_json(), event.timestamp)


#: For each type, events that would affect the run or another member's job.
HARMFUL: dict[type[Event], list[Event]] = {
    every.Started: [every.Started(NOW, {"nodes.up": 9.0})],
    every.Resumed: [every.Resumed(NOW, {}, (MINE, ANOTHERS))],
    every.JobEvent: [
        JobEvent(NOW, ANOTHERS, "finish", {"status": 0}),
        JobEvent(NOW, NOBODYS, "start"),
        JobEvent(NOW, "ƒabc", "start", ours=False),
    ],
    every.Observed: [Observed(NOW, ANOTHERS, "o", {"loss": 0.0}), Observed(NOW, NOBODYS, "o", {})],
    every.Resources: [Resources(NOW, {"nodes.up\nx": 1.0})],
    every.TimerElapsed: [
        every.TimerElapsed(NOW, "heartbeat"),
        every.TimerElapsed(NOW, "retry", "r"),
    ],
    every.ResizeOutcome: [ResizeOutcome(NOW, "r-2", "granted", 99)],
    every.CallReturned: [
        every.CallReturned(
            NOW, "call-1", ({"action": {"name": "submit", "options": {"command": ["rm"]}}},)
        )
    ],
    every.CallFailed: [every.CallFailed(NOW, "call-1", "no")],
    every.Delivered: [every.Delivered(NOW, ("notice-1",), "bell")],
    every.Signalled: [every.Signalled(NOW, "signal-1", "no")],
    every.Identified: [every.Identified(NOW, {MINE: ["0" * 32, "s"]}, unchanged=(ANOTHERS,))],
    every.LookedUp: [every.LookedUp(NOW, {MINE: "r1/g.0"}, (ANOTHERS,))],
    every.StopRequested: [every.StopRequested(NOW, "because", 0)],
    every.Requested: [
        every.Requested(NOW, "root", {"name": "submit", "label": "g", "command": ["rm"]})
    ],
    every.ExecutorLost: [ExecutorLost(NOW, "flux", "gone")],
    every.PluginEvent: [every.PluginEvent(NOW, "disk-full", {}, MINE)],
    every.Problem: [Problem(NOW, "not cancelled", "error", (ANOTHERS,))],
}

#: Events that a member may send.
HONEST: list[Event] = [
    JobEvent(NOW, MINE, "start", {"workdir": "/x", "stdout": "out"}),
    Observed(NOW, MINE, "o", {"loss": 0.5, "other": math.inf}, 3),
    ResizeOutcome(NOW, "r-1", "denied", None, "no"),
]


def test_these_tests_cover_every_type_of_event() -> None:
    assert set(HARMFUL) == set(Event.kinds.values())


@pytest.mark.parametrize("event", HONEST, ids=lambda event: event.type)
def test_a_member_may_report_its_own_jobs_and_requested_outcomes(event: Event) -> None:
    steered = Steered()
    assert steered.say(of(event)) == [event]
    assert not steered.warnings()


def test_a_member_may_report_its_resources_and_problems() -> None:
    steered = Steered("strangers")
    steered.say(of(Resources(NOW, {"nodes.up": 3.0})))
    assert steered.gauges == {"nodes.up"}
    (problem,) = steered.say(of(Problem(NOW, "full\n  \x1b[2Jhint", "error", (MINE, ANOTHERS))))
    assert problem == Problem(NOW, "member default/a: full [2Jhint", "error", (MINE,))
    stranger = JobEvent(NOW, "ƒabc", "start", ours=False)
    assert steered.say(of(stranger)) == [stranger]  # its executor sees them, as declared


@pytest.mark.parametrize(
    "event", list(itertools.chain.from_iterable(HARMFUL.values())), ids=lambda event: event.type
)
def test_no_other_event_of_a_member_reaches_the_run(event: Event) -> None:
    steered = Steered()
    told = [steered.say(of(event)) for _ in range(5)]
    for events in told:
        for each in events:  # a problem is reported, but cancels no job
            assert isinstance(each, Problem)
            assert not each.jobs
    if not isinstance(event, (Problem, ResizeOutcome, ExecutorLost)) and getattr(
        event, "job", ""
    ) not in (NOBODYS,):
        (warning,) = steered.warnings()  # one warning, with the sender and a hint
        assert "default/a" in warning.message
        assert "hint:" in warning.message


def test_a_guessed_call_id_answers_no_call() -> None:
    """The ids of calls are not random, so a member can guess them. It gains nothing."""
    told = Story(
        "jobs: [{name: t, command: x, count: 2}]\n"
        "rules:\n"
        "  - {trigger: start, action: {name: submit, label: t}}\n"
        "  - {trigger: job-success, name: t, action: {name: custom, label: decide}}\n"
        "custom: |\n  def decide(**_): ...\n"
    )
    told.start()
    (call,) = (each for each in told.play(MINE) if isinstance(each, Call))
    more = ({"action": {"name": "submit", "label": "t"}},)
    answers = [every.CallReturned(NOW, call.call, more), every.CallFailed(NOW, call.call, "no")]
    steered = Steered("strangers")
    passed = [event for answer in answers for event in steered.say(of(answer))]
    assert not [event for event in passed if not isinstance(event, Problem)]
    assert "which members may not send" in steered.warnings()[0].message
    assert told.submitted(told.tell(answers[0])) == ["t.2", "t.3"]  # the id was right


SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from([MINE, ANOTHERS, "r-1", "granted", "error", 10**30, -1, "\ud800", "a\nb"]),
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = sorted({name for kind in Event.kinds.values() for name in kind.__dataclass_fields__})


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(Event.kinds)),
    st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=6),
    st.one_of(st.floats(), st.just(NOW)),
    st.sampled_from([(), ("strangers",)]),
)
def test_events_of_a_member_that_reach_the_run_fit_its_journal(
    kind: str, fields: dict[str, Any], timestamp: float, capabilities: tuple[str, ...]
) -> None:
    steered = Steered(*capabilities)
    for event in steered.say(raw({"type": kind, **fields}, timestamp)):
        assert isinstance(event, (JobEvent, Observed, ResizeOutcome, Problem))
        assert math.isfinite(event.timestamp)
        assert event.timestamp <= NOW + 5
        if isinstance(event, (JobEvent, Observed)):
            assert event.job == MINE or (not getattr(event, "ours", True) and capabilities)
        if isinstance(event, ResizeOutcome):
            assert event.request == "r-1"
        if isinstance(event, Problem):
            assert not {ANOTHERS, NOBODYS}.intersection(event.jobs)
        text = event.to_json()
        text.encode("utf-8")
        assert Event.from_dict(json.loads(text)).to_json() == text
        for value in event.to_dict().values():
            str(value).encode("utf-8")  # fails for a lone surrogate, which cannot be printed
    for warning in steered.warnings():
        for line in warning.message.splitlines():
            assert line.isprintable()


@pytest.mark.parametrize(
    "message",
    [
        raw('{"type":"job","job":"t.1","name":"x","context":{"a":' + "[" * 150 + "]" * 150 + "}}"),
        raw("[" * 100_000),
        raw('{"type":"job","job":"t.1","name":"start","context":{"x":"' + "x" * 1_100_000 + '"}}'),
        raw({"type": "job", "job": MINE, "name": "finish", "context": {"status": "0"}}),
        raw({"type": "job", "job": MINE, "name": "start", "context": {"workdir": 3}}),
        raw({"type": "job", "job": MINE, "name": "x" * 400}),
        raw({"type": "job", "job": MINE, "name": "start"}, math.nan),
        raw({"type": "job", "job": MINE, "name": "start"}, math.inf),
        raw({"type": "job", "job": MINE, "name": "start"}, -1.0),
        raw({"type": "job", "job": MINE, "name": "start", "ours": "yes"}),
        raw({"type": "observed", "job": MINE, "observer": "o", "values": {"a": "warm"}}),
        raw({"type": "observed", "job": MINE, "observer": "o", "values": {"a": True}}),
        raw({"type": "observed", "job": MINE, "observer": "o", "values": {"a": 10**400}}),
        raw({"type": "observed", "job": MINE, "observer": "o", "values": {}, "clock": "1"}),
        raw({"type": "problem", "message": ["x"]}),
        raw({"type": "resize-outcome", "request": "r-1", "outcome": "granted", "size": 1.5}),
        raw({"type": []}),
    ],
)
def test_types_and_sizes_of_received_events_are_checked(message: pb.Event) -> None:
    steered = Steered()
    assert not steered.say(message)
    assert "something that is not an event" in steered.warnings()[0].message
    good = JobEvent(NOW, MINE, "start")
    assert steered.say(of(good)) == [good]  # later events arrive


@pytest.mark.parametrize(
    "places",
    [
        {"stdout": "/home/user/.ssh/id_ed25519"},
        {"stderr": "/home/user/secret"},
        {"workdir": "/home/user"},
        {"workdir": "/home/user", "stdout": "secret"},
        {"workdir": "/x", "stdout": "../home/user/secret"},
        {"workdir": "/x/../home", "stdout": "/x/out"},
        {"workdir": "/x", "stdout": "/xy/out"},
        {"stdout": "../../../etc/passwd"},
        {"stdout": "out"},
        {"stdout": "/proc/self/environ", "at_member": {}},
    ],
)
def test_a_member_cannot_make_the_run_read_its_files_as_output(places: Any) -> None:
    steered = Steered()
    (event,) = steered.say(of(JobEvent(NOW, MINE, "start", {**places, "host": "n1"})))
    places.pop("at_member", None)
    assert isinstance(event, JobEvent)
    context = dict(event.context)
    assert (context.pop("host"), context.pop("at_member")) == (
        "n1",
        places,
    )  # reported, but never read
    workdir = context.pop("workdir", "/x")
    read = [os.path.normpath(os.path.join(workdir, path)) for path in (workdir, *context.values())]
    assert all(path == "/x" or path.startswith("/x/") for path in read)


def test_files_in_a_shared_folder_are_read() -> None:
    steered = Steered()
    for places in ({"workdir": "/x"}, {"workdir": "/x/y/", "stdout": "../out", "stderr": "/x/err"}):
        start = JobEvent(NOW, MINE, "start", places)
        assert steered.say(of(start)) == [start]
    # The job's folder may be anywhere if its output is in the expected place.
    start = JobEvent(NOW, MINE, "start", {"workdir": "/home/user", "stdout": "../../x/out"})
    (event,) = steered.say(of(start))
    assert isinstance(event, JobEvent)
    assert event.context["stdout"] == "/x/out"
    assert "workdir" not in event.context
    forged = JobEvent(NOW, MINE, "start", {"workdir": "/x", "at_member": {"stdout": "/y"}})
    assert steered.say(of(forged)) == [JobEvent(NOW, MINE, "start", {"workdir": "/x"})]


@pytest.mark.parametrize("folder", ["/", "//", "/x/..", "relative"])
def test_a_shared_folder_needs_an_absolute_path_below_the_root(folder: str) -> None:
    with pytest.raises(UsageError, match="invalid folder for 'shared'"):
        RemoteExecutor(shared=[folder])


def test_a_withdrawn_or_unsent_job_is_not_the_members() -> None:
    steered = Steered()
    for number in range(100, 140):  # more calls than the window allows
        steered.submit(f"t.{number}")
    assert not steered.say(of(JobEvent(NOW, "t.139", "finish", {"status": 0})))


def test_an_answer_to_another_question_loses_no_job() -> None:
    steered = Steered()
    steered.submit("t.7")
    steered.answer(found=pb.Found(jobs={"t.7": False, ANOTHERS: True}))
    assert set(steered.proxy.jobs) == {MINE, "t.7"}
    assert not steered.proxy.found
    assert steered.say(of(JobEvent(NOW, "t.7", "finish", {"status": 0})))


def test_floods_are_bounded_and_important_events_pass() -> None:
    steered = Steered()
    for _ in range(3):
        steered.say(*[of(JobEvent(NOW, MINE, "memo")) for _ in range(4_000)])
    assert len([e for e in steered.told if isinstance(e, JobEvent)]) == 10_000
    last = [JobEvent(NOW, MINE, "finish", {"status": 0}), JobEvent(NOW, MINE, "clean")]
    assert steered.say(*map(of, last)) == last
    steered.say(*[of(Problem(NOW, f"n {number}")) for number in range(1_000)])
    assert len([e for e in steered.told if isinstance(e, Problem)]) < 200
    steered.say(*[of(Resources(NOW, {f"g.{number}": 1.0})) for number in range(3_000)])
    steered.proxy.tick(time.monotonic())
    assert len(steered.gauges) == 1_000
    for number in range(3_000):
        steered.say(of(Resources(NOW, {"g.1": float(number)})))
    steered.proxy.tick(time.monotonic())
    assert steered.proxy.gauges["g.1"] == 2_999.0


# -- the clock ------------------------------------------------------------------------------------


def test_times_of_a_member_are_limited_to_the_controllers_with_one_warning() -> None:
    steered = Steered()
    hour = 3_600.0
    (first,) = steered.say(of(JobEvent(NOW + hour, MINE, "start")))
    assert NOW - 1 <= first.timestamp <= NOW
    steered.now += 10.0
    (later,) = steered.say(of(JobEvent(NOW + hour + 10, MINE, "finish", {"status": 0})))
    assert later.timestamp - first.timestamp == 10.0
    (warning,) = steered.warnings()
    assert "3600 s ahead" in warning.message
    assert steered.clocks == [("default/a", 3_600, 3_600)]


def test_a_later_controller_misses_no_event_of_a_member_whose_clock_is_ahead() -> None:
    steered = Steered(offsets=(3_600, 3_600))
    seen = NOW - 100.0
    steered.proxy.reattach({"t.5": seen})
    asked = steered.sent[-1].reattach.jobs
    assert dict(asked) == {"t.5": seen + 3_600}
    assert not steered.say(of(JobEvent(seen + 3_600, "t.5", "start")))  # seen before
    (news,) = steered.say(of(JobEvent(seen + 3_601, "t.5", "finish", {"status": 0})))
    assert news.timestamp == seen + 1


def test_a_clock_that_runs_too_fast_does_not_affect_the_runs_time() -> None:
    steered = Steered()
    for power in range(3, 11):
        for event in steered.say(of(JobEvent(NOW + 10.0**power, MINE, "memo"))):
            assert event.timestamp <= steered.now + 5
    for _ in range(40):
        for event in steered.say(of(JobEvent(5e10, MINE, "memo"))):
            assert event.timestamp <= steered.now + 5
    assert len(steered.clocks) <= 20


# -- the end of a run ------------------------------------------------------------------------------


def test_a_member_that_loses_its_queue_is_reopened_and_the_run_continues() -> None:
    steered = Steered()
    assert not steered.say(of(ExecutorLost(NOW, "flux", "gone\nforged", "start it")))
    assert not steered.proxy.open
    (warning,) = steered.warnings()
    assert "executor flux of member default/a lost its queue: gone forged" in warning.message
    steered.proxy.tick(time.monotonic() + 10)
    assert steered.sent[-1].WhichOneof("what") == "open"


class Idle(Executor):
    """Executor that accepts jobs and reports nothing. ``emits`` collects its event callbacks."""

    capabilities = frozenset({"submit", "cancel", "reattach", "detach"})

    def __init__(self, emits: list[Emit], found: bool) -> None:
        self._emits, self._found = emits, found

    def open(self, run: Run, emit: Emit) -> None:
        self._emits.append(emit)

    def submit(self, jobs: Sequence[Job]) -> None:
        self._emits[-1]([JobEvent(time.time(), job.id, "submit") for job in jobs])

    def cancel(self, jobs: Sequence[str]) -> None:
        """Do nothing."""

    def reattach(self, jobs: Any) -> dict[str, bool]:
        return dict.fromkeys(jobs, self._found)

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def two_members(tmp_path: Path) -> Any:
    """Yield functions for runs on an honest member ``a`` and a hostile member ``b``.

    ``begin()`` opens a run, and ``speak`` sends arbitrary events as ``b``. The executor of ``b``
    claims to know every job.
    """
    settings = Settings(state=tmp_path / "service", port=0, grace=1)
    file = TokenFile(settings.token_path)
    tokens = {name: file.add("member", name)[0] for name in ("a", "b")}
    token, _ = file.add("controller", "default")
    speak: list[Emit] = []
    opened: list[RemoteExecutor] = []
    with serving(settings) as service:
        channel: Callable[[str], Any] = lambda text: open_channel(  # noqa: E731
            "127.0.0.1", service.port, token=text
        )
        agents = [
            Agent(
                f"default/{name}",
                partial(Idle, speak if name == "b" else [], name == "b"),
                tmp_path / name,
                partial(channel, tokens[name]),
                "service",
            )
            for name in ("a", "b")
        ]

        def begin() -> tuple[RemoteExecutor, list[Event]]:
            events: list[Event] = []
            run = RemoteExecutor(
                default="a", members=["a", "b"], channel=partial(channel, token), patience=5
            )
            at = Run("run-1", tmp_path / "out", time.time, tmp_path / "state", "0123456789abcdef")
            run.open(at, events.extend)
            opened.append(run)
            return run, events

        try:
            for agent in agents:
                agent.start()
                assert agent.wait_connected(10)
            yield begin, speak
        finally:
            for run in opened:
                run.close()
            for agent in agents:
                agent.stop()


def test_a_members_token_runs_no_command_on_another_member(two_members: Any) -> None:
    begin, speak = two_members
    run, events = begin()
    run.submit([Job(id="t.1", group="t", index=1, command=("x",), executor="a")])
    wait_until(lambda: events and speak)
    before = list(events)
    speak[-1]([each for group in HARMFUL.values() for each in group if each.type != "job"])
    speak[-1]([JobEvent(time.time(), "t.1", "finish", {"status": 0})])
    wait_until(lambda: any("lost its queue" in getattr(e, "message", "") for e in events))
    wait_until(lambda: any("not submitted to it" in getattr(e, "message", "") for e in events))
    assert {event.type for event in events[len(before) :]} <= {"problem", "resources"}


def test_after_a_resume_a_member_cannot_claim_another_members_jobs(two_members: Any) -> None:
    begin, _ = two_members
    run, events = begin()
    run.submit(
        [
            Job(id="t.1", group="t", index=1, command=("x",), executor="a"),
            Job(id="u.1", group="u", index=1, command=("x",), executor="b"),
        ]
    )
    wait_until(lambda: len([e for e in events if isinstance(e, JobEvent)]) == 2)
    run.close()
    run, _ = begin()
    # b claims to know every job; a has forgotten its jobs.
    assert run.reattach({"t.1": 1.0, "u.1": 1.0}) == {"t.1": False, "u.1": True}


def test_one_member_alone_cannot_claim_that_a_run_was_taken_over(two_members: Any) -> None:
    begin, _ = two_members
    run, events = begin()
    with run._lock:
        run._members["default/b"]._disown(pb.Fault(message="x\ny", code="stale"), time.monotonic())
    assert not any(isinstance(event, ExecutorLost) for event in events)
    run.submit([Job(id="t.1", group="t", index=1, command=("x",), executor="a")])
    wait_until(lambda: any(isinstance(event, JobEvent) for event in events))


# -- status of members ----------------------------------------------------------------------------


def test_a_member_cannot_forge_rows_of_the_status() -> None:
    router = Router()
    mine = Identity("member", "default", "default/a")
    forged = "local\ndefault/b  alive  1 s ago\x1b[2J"
    link = router.join(
        mine, pb.Hello(member="default/a", executor=forged, host=forged, version="9" * 999), 0.0
    )
    state = router.members["default/a"]
    for told in (state.executor, state.host, state.version):
        assert told.isprintable()
        assert len(told) <= 200
    beat = pb.Beat(groups=[pb.Group(name=forged), pb.Group(name="sim")])
    beat.gauges[forged] = beat.metrics[forged] = 1.0
    router.from_member(link, pb.FromMember(beat=beat), 0.0)
    assert [group.name for group in state.groups] == ["sim"]
    assert not {**state.gauges, **state.metrics}


def test_a_members_huge_heartbeat_leaves_the_status_readable(tmp_path: Path) -> None:
    chosen = Settings(state=tmp_path, port=0, grace=1)
    file = TokenFile(chosen.token_path)
    token, _ = file.add("admin")
    with serving(chosen) as service:
        for number in range(60):
            name = f"default/m{number:02}"
            who = Identity("member", "default", name)
            link = service.router.join(who, pb.Hello(member=name), time.time())
            beat = pb.Beat()
            for at in range(20_000 if number < 2 else 900):
                beat.gauges[f"{at:050}"] = beat.metrics[f"{at:050}"] = 1.0
            service.router.from_member(link, pb.FromMember(beat=beat), time.time())
            state = service.router.members[name]
            assert len(state.gauges) <= 1_000
            assert state.left_out == (38_000 if number < 2 else 0)
        with ServiceClient(port=service.port, token=token, timeout=150) as client:
            names = [each.member for each in client.status()]
    assert names == [f"default/m{number:02}" for number in range(60)]
