"""Tests of the protocol between controller and member, with all kinds of broken connections.

Every job must be submitted once, and every event must arrive once and in order.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ensemble_service import certificates, hosted_run
from ensemble_service.agent import Agent
from ensemble_service.client import ServiceClient, open_channel, read_token
from ensemble_service.connection import Connection
from ensemble_service.member_proxy import MemberProxy
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.remote_executor import RemoteExecutor
from ensemble_service.server import Settings, serving
from ensemble_service.tokens import TokenFile
from ensemble_testing import wait_until
from remote_world import LIFE, RUN_ID, Queue, QueueExecutor, World, ids, jobs

from ensemble_core import (
    Event,
    ExecutorError,
    ExecutorLost,
    JobEvent,
    Observed,
    Problem,
    ResizeOutcome,
    Resources,
    Run,
    UsageError,
)

# -- each event once ---------------------------------------------------------------------------


def test_constantly_breaking_connections_lose_and_repeat_nothing(world: World) -> None:
    world.agent("a")
    controller = world.run("run-chaos")
    chance = random.Random(5)
    numbers = range(400)
    for begin in range(0, 400, 20):
        controller.executor.submit(jobs(*range(begin, begin + 20)))
        broken: list[Connection[Any, Any]] = chance.choice(
            [
                [world.agents["a"]._connection],
                [controller.executor._connection],
                [world.agents["a"]._connection, controller.executor._connection],
                [],
            ]
        )
        for connection in broken:
            connection.drop()
        time.sleep(chance.uniform(0, 0.15))
    controller.over(*ids(*numbers))

    assert Counter(world.queues["a"].submits) == Counter(ids(*numbers))
    for job in ids(*numbers):
        assert controller.names(job) == LIFE


def test_constantly_ending_agents_lose_and_repeat_nothing(world: World) -> None:
    world.agent("a")
    world.queues["a"].pace = 0.05
    controller = world.run("run-agents")
    for turn in range(5):
        controller.executor.submit(jobs(*range(turn * 20, turn * 20 + 20)))
        time.sleep(0.05 * turn)
        world.leave("a")
        controller.executor.submit(jobs(*range(100 + turn * 20, 100 + turn * 20 + 20)))
        world.agent("a")
    controller.over(*ids(*range(200)))

    assert Counter(world.queues["a"].submits) == Counter(ids(*range(200)))
    for job in ids(*range(200)):
        assert controller.names(job) == LIFE


@pytest.mark.parametrize("arrived", [False, True], ids=["on its way", "not acknowledged"])
def test_rows_and_problems_of_a_killed_agent_arrive_once(
    world: World, monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    controller = world.held("run-rows", 1)
    monkeypatch.setattr(MemberProxy, "_acknowledge", lambda *_: None)

    def say(*numbers: int) -> None:
        now = time.time()
        events: list[Event] = [Observed(now, "t.1", "o", {"x": float(n)}) for n in numbers]
        world.queues["a"].listeners[-1].say(*events, Problem(now, f"problem {numbers}"))

    def rows() -> list[float]:
        return [each.values["x"] for each in list(controller.events) if isinstance(each, Observed)]

    say(1, 2)
    if arrived:
        controller.wait(lambda: rows() == [1, 2], "the rows")
    else:
        monkeypatch.setattr(hosted_run.HostedRun, "batch", lambda _: None)
        say(3)
    for turn in (4, 5):  # events that the second life resends are not new in the third
        world.kill()
        if turn == 4 and not arrived:
            monkeypatch.undo()
            monkeypatch.setattr(MemberProxy, "_acknowledge", lambda *_: None)
        world.agent()
        lives = turn - 2
        wait_until(lambda lives=lives: len(world.queues["a"].listeners) == lives)  # type: ignore[misc]
        say(turn)
        controller.wait(lambda turn=turn: turn in rows(), "the row of another life")  # type: ignore[misc]
    wanted = [1, 2, 4, 5] if arrived else [1, 2, 3, 4, 5]
    assert rows() == wanted
    said = [text.rpartition("problem ")[2] for text in controller.problems() if "problem (" in text]
    assert said == ["(1, 2)", *(f"({n},)" for n in wanted[2:])]
    kept = world.folder / "a" / "runs" / f"run-rows.{RUN_ID}" / "unacknowledged"
    assert kept.stat().st_size
    monkeypatch.undo()
    say(6)
    wait_until(lambda: not kept.stat().st_size)


def test_rows_of_a_finished_run_are_not_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = world.held("run-over", 1)
    monkeypatch.setattr(MemberProxy, "_acknowledge", lambda *_: None)
    world.queues["a"].listeners[-1].say(Observed(time.time(), "t.1", "o", {"x": 1.0}))
    kept = world.folder / "a" / "runs" / f"run-over.{RUN_ID}" / "unacknowledged"
    wait_until(kept.exists)
    controller.executor.close()
    wait_until(lambda: not kept.exists())


def test_a_later_controller_gets_exactly_what_the_earlier_one_had_not_seen(world: World) -> None:
    first = world.held("run-later", 1, 2)
    queue = world.queues["a"]
    newest = {"t.1": 0.0, "t.2": queue.events["t.2"][-1].timestamp}
    # The controller dies here, and the member continues to send.
    first.die()
    queue.held = False
    wait_until(lambda: queue.events["t.1"][-1].name == "clean")

    second = world.run("run-later")
    assert second.executor.reattach({**newest, "t.9": 0.0}) == {
        "t.1": True,
        "t.2": True,
        "t.9": False,
    }
    second.over("t.1", "t.2")
    assert second.names("t.1") == LIFE
    assert second.names("t.2") == LIFE[1:]


def test_jobs_of_a_queue_that_has_ended_with_its_allocation_are_interrupted(world: World) -> None:
    """A job that had begun has failed with its node."""
    controller = world.held("run-gone", 1, 2)
    queue = world.queues["a"]
    world.leave()
    queue.forget_all()
    queue.new, queue.unsure = True, ["t.2"]
    world.agent()
    controller.over("t.1", "t.2")
    told = [event for event in controller.events if isinstance(event, JobEvent)]
    assert {e.job: e.context["type"] for e in told if e.name == "exception"} == {
        "t.1": "interrupted",
        "t.2": "node-failure",
    }


def test_a_dead_controllers_calls_cannot_arrive_after_its_successors_question(world: World) -> None:
    agent = world.agent("a")
    first = world.run("run-late")
    epoch = first.executor._membership.epoch
    second = world.run("run-late")

    # The first controller learns that the run was taken over, and stops.
    first.wait(lambda: any(isinstance(event, ExecutorLost) for event in first.events), "the end")
    with pytest.raises(ExecutorError) as caught:
        first.executor.submit(jobs(1))
    assert caught.value.code == "taken-over"

    wait_until(lambda: second.executor._members["default/a"].opened)
    # Simulates a delayed call: the service delivers it only now.
    call = pb.Call(run=f"run-late.{RUN_ID}", member="default/a", epoch=epoch, id=99)
    call.submit.jobs.add(data='{"id":"t.1","group":"t","index":1,"command":["x"]}')
    agent._on_message(pb.ToMember(call=call))
    second.executor.submit(jobs(2))
    second.over("t.2")
    assert world.queues["a"].submits == ["t.2"]


def test_a_restarted_agent_rejects_an_earlier_controller_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.agent("a")
    first = world.run("run-epoch")
    newer = world.run("run-epoch")
    world.leave("a")
    agent = world.agent("a")
    # The newer controller has reopened the run on the member and received its answer.
    wait_until(lambda: agent._hosted and newer.executor._members["default/a"].open)
    answers: list[pb.Answer] = []
    monkeypatch.setattr(agent._hosted[f"run-epoch.{RUN_ID}"], "_answer", answers.append)
    call = pb.Call(
        run=f"run-epoch.{RUN_ID}", member="default/a", epoch=first.executor._membership.epoch, id=7
    )
    call.open.SetInParent()
    agent._on_message(pb.ToMember(call=call))
    wait_until(lambda: answers)
    monkeypatch.undo()
    assert answers[0].fault.code == "stale"
    assert newer.executor._members["default/a"].opened


def test_a_repeated_call_is_answered_twice_and_carried_out_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = world.agent("a")
    controller = world.run("run-twice")
    hosted = agent._hosted[f"run-twice.{RUN_ID}"]
    answers: list[pb.Answer] = []
    monkeypatch.setattr(hosted, "_answer", answers.append)
    call = pb.Call(
        run=f"run-twice.{RUN_ID}",
        member="default/a",
        epoch=controller.executor._membership.epoch,
        id=1_000_001,
    )
    call.resize.request, call.resize.delta = "r", 1
    # Simulates the run's request, because a member may not report other outcomes.
    controller.executor._members["default/a"]._resizes["r"] = call.resize
    for _ in range(2):
        agent._on_message(pb.ToMember(call=call))
    wait_until(lambda: len(answers) == 2)
    assert answers[0] == answers[1]
    controller.wait(lambda: any(isinstance(e, ResizeOutcome) for e in controller.events))
    submit = pb.Call(
        run=f"run-twice.{RUN_ID}",
        member="default/a",
        epoch=controller.executor._membership.epoch,
        id=1_000_002,
    )
    submit.submit.jobs.add(data='{"id":"t.1","group":"t","index":1,"command":["x"]}')
    again = pb.Call()
    again.CopyFrom(submit)
    again.id += 1
    for each in (submit, again):
        agent._on_message(pb.ToMember(call=each))
    wait_until(lambda: len(answers) == 4)
    monkeypatch.undo()
    assert [answer.WhichOneof("what") for answer in answers[2:]] == ["done", "done"]
    assert world.queues["a"].submits == ["t.1"]
    assert [e for e in controller.events if isinstance(e, ResizeOutcome)] == [
        ResizeOutcome(pytest.approx(time.time(), abs=60), "r", "granted", 2)  # type: ignore[arg-type]
    ]


def test_events_beyond_the_limit_are_asked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted_run, "MOST", 100)
    world.agent("a")
    world.queues["a"].pace = 0.005
    controller = world.run("run-full")
    controller.executor.submit(jobs(*range(5)))
    controller.over(*ids(*range(5)))
    world.queues["a"].held = True
    controller.executor.submit(jobs(*range(10, 40)))
    controller.wait(lambda: controller.names("t.39"), "the submits")
    # The lock prevents acknowledgements while 30 jobs add 180 events.
    with controller.executor._lock:
        world.queues["a"].held = False
        wait_until(lambda: all(len(events) == 7 for events in world.queues["a"].events.values()))
    controller.over(*ids(*range(10, 40)))
    for job in ids(*range(10, 40)):
        assert controller.names(job) == LIFE
    assert len(world.queues["a"].submits) == 35


def test_jobs_of_a_queue_that_lost_its_memory_are_lost_or_resubmitted(world: World) -> None:
    controller = world.held("run-lost", 1)
    queue = world.queues["a"]
    world.leave("a")
    controller.executor.submit(jobs(2))
    queue.forget_all()
    queue.held = False
    world.agent("a")
    controller.over("t.1", "t.2")
    assert controller.names("t.1") == ["submit", "exception", "clean"]
    lost = [e for e in controller.events if isinstance(e, JobEvent) and e.name == "exception"]
    assert lost[0].context["type"] == "lost"
    assert controller.names("t.2") == LIFE
    assert queue.submits == ["t.1", "t.2"]


def test_jobs_submitted_to_a_queue_that_has_just_ended_run_when_it_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_service.member_proxy._AGAIN", 0.1)
    world.agent("a")
    queue = world.queues["a"]
    controller = world.run("run-ended")
    queue.ends = 2
    controller.executor.submit(jobs(1))
    controller.over("t.1")
    assert controller.names("t.1") == LIFE
    assert queue.submits == ["t.1"]


def test_a_member_forgets_its_ended_jobs_and_no_others(world: World) -> None:
    for name in ("a", "b"):
        world.agent(name)
    controller = world.run("run-forget", default="a")
    controller.executor.submit([*jobs(1, member="a"), *jobs(2, member="b")])
    controller.over("t.1", "t.2")
    controller.executor.forget(ids(1, 2))
    controller.executor.close()
    assert (world.queues["a"].forgotten, world.queues["b"].forgotten) == (["t.1"], ["t.2"])


def test_an_error_of_a_member_that_the_run_leaves_is_reported(world: World) -> None:
    world.agent("a")
    world.queues["a"].cannot_close = ExecutorError("2 Jobs remain")
    controller = world.run("run-left")
    controller.executor.submit(jobs(1))
    controller.over("t.1")
    with pytest.raises(ExecutorError, match="2 Jobs remain"):
        controller.executor.close()


def test_a_queue_that_cannot_answer_is_asked_until_it_can(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_service.member_proxy._AGAIN", 0.1)
    world.agent("a")
    queue = world.queues["a"]
    controller = world.run("run-mute")
    controller.executor.submit(jobs(1))
    world.leave("a")
    queue.mute = 2
    world.agent("a")
    controller.over("t.1")
    assert queue.mute == 0
    assert controller.names("t.1") == LIFE
    assert queue.submits == ["t.1"]
    assert any("ask me later" in problem for problem in controller.problems())


@pytest.mark.parametrize("later", [False, True])
def test_an_executor_that_cannot_reattach_gets_no_job_twice(
    world: World, later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueueExecutor, "capabilities", frozenset({"submit", "cancel"}))
    controller = world.held("run-blind", 1)
    if later:
        controller.die()
        assert world.run("run-blind").executor.reattach({"t.1": 0.0, "t.2": 0.0}) == {}
    else:
        world.leave("a")
        world.agent("a")
        controller.over("t.1")
        assert controller.names("t.1") == ["submit", "exception", "clean"]
    assert world.queues["a"].submits == ["t.1"]


# -- several members ------------------------------------------------------------------------------


def test_jobs_go_to_their_groups_member_and_gauges_are_summed(world: World) -> None:
    world.agent("a")
    world.agent("b")
    controller = world.run("run-two", default="a", members=["", "b"])
    assert controller.executor.resources() == {"nodes.up": 2.0, "nodes.free": 2.0}
    assert not controller.executor.sees_foreign_jobs
    controller.executor.submit([*jobs(1), *jobs(2, member="b"), *jobs(3, member="default/b")])
    controller.over(*ids(1, 2, 3))
    assert world.queues["a"].submits == ["t.1"]
    assert world.queues["b"].submits == ["t.2", "t.3"]
    world.queues["b"].listeners[0].say(Resources(time.time(), {"nodes.up": 5.0}))
    controller.wait(
        lambda: any(
            isinstance(e, Resources) and e.values == {"nodes.up": 6.0} for e in controller.events
        ),
        "the sum",
    )


def test_a_later_controller_asks_every_member_that_an_earlier_one_used(world: World) -> None:
    world.agent("a")
    world.agent("b")
    first = world.run("run-both", default="a")
    first.executor.submit([*jobs(1), *jobs(2, member="b")])
    first.over(*ids(1, 2))
    first.die()
    second = world.run("run-both", default="a")
    assert second.executor.reattach(dict.fromkeys(ids(1, 2, 3), 0.0)) == {
        "t.1": True,
        "t.2": True,
        "t.3": False,
    }
    second.over(*ids(1, 2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"members": ["zzz"]}, "member default/zzz is not connected"),
        ({"default": "x", "members": ["y"]}, "members default/x and default/y are not connected"),
        ({"members": [""]}, "--option default=a"),
        ({"name": "elsewhere"}, "no member of elsewhere is connected"),
    ],
)
def test_absent_members_are_listed_with_the_connected_ones(
    world: World, options: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_service.run_members._COMING", 0.2)
    world.agent("a")
    world.agent("b")
    with pytest.raises(ExecutorError) as caught:
        world.run("run-none", **options)
    assert words in str(caught.value)
    assert "default/a and default/b" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"members": ["b"]}, "for member default/b to"), ({}, "for a member of default to")],
)
def test_a_run_waits_briefly_for_returning_members_and_says_for_which(
    world: World,
    options: dict[str, object],
    words: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ensemble_service.run_members._COMING", 60.0)

    def told() -> int:
        return [words in record.getMessage() for record in caplog.records].count(True)

    def come() -> None:
        wait_until(told)
        world.agent("b")

    coming = threading.Thread(target=come)
    coming.start()
    try:
        controller = world.run("run-early", **options)
    finally:
        coming.join()
    controller.executor.submit(jobs(1, member="b"))
    controller.over("t.1")
    assert told() == 1


def test_a_misspelled_member_is_reported_with_a_suggestion(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_service.run_members._COMING", 0.1)
    world.agent("a")
    with pytest.raises(ExecutorError) as caught:
        world.run("run-typo", members=["aa"])
    assert caught.value.hint is not None
    assert "did you mean 'default/a'?" in caught.value.hint
    with pytest.raises(ExecutorError) as caught:
        world.run("run-other", members=["elsewhere"])
    assert "did you mean" not in str(caught.value)


def test_a_service_that_disconnects_while_members_are_awaited_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_service.run_members._COMING", 4.0)
    state = tmp_path / "service"
    token, _ = TokenFile(state / "tokens.json").add("controller", "default")
    stack = contextlib.ExitStack()
    service = stack.enter_context(serving(Settings(state=state, port=0)))
    executor = RemoteExecutor(
        members=["left"], channel=partial(open_channel, "127.0.0.1", service.port, token=token)
    )
    stopping = threading.Timer(0.5, stack.close)
    stopping.start()
    with pytest.raises(ExecutorError) as caught:
        executor.open(Run("run-0", tmp_path / "run", time.time), lambda events: None)
    stopping.join()
    assert "cannot be reached" in caught.value.what


def test_a_member_whose_queue_cannot_be_opened_reports_why_at_the_start(world: World) -> None:
    world.agent("a")
    world.queues["a"].refuse = ExecutorError("no queue here", hint="start it", code="no-queue")
    with pytest.raises(ExecutorError) as caught:
        world.run("run-refused")
    assert caught.value.what == "member default/a: no queue here"
    assert caught.value.hint == "start it"


def test_a_member_without_gauges_reports_that_and_joins_once_it_has_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.agent()
    mute = [True]
    gauges = QueueExecutor.resources

    def resources(executor: QueueExecutor) -> Mapping[str, float]:
        if mute:
            raise ExecutorError("the queue does not answer")
        return gauges(executor)

    monkeypatch.setattr(QueueExecutor, "resources", resources)
    with pytest.raises(ExecutorError, match="does not answer"):
        world.run("run-1")
    mute.clear()
    controller = world.run("run-2")
    controller.executor.submit(jobs(1))
    controller.over(*ids(1))


def test_a_gauge_that_is_not_a_number_does_not_silence_the_member(world: World) -> None:
    agent = world.agent()
    controller = world.run()
    queue = world.queues["a"]
    values: dict[str, Any] = {"nodes.up": None}
    queue.listeners[0].say(Resources(time.time(), values))
    before = world.service.router.members["default/a"].last_beat
    controller.executor.submit(jobs(1))
    controller.over(*ids(1))
    wait_until(lambda: world.service.router.members["default/a"].last_beat > before + 1)
    assert agent.wait_connected(0)
    with ServiceClient("127.0.0.1", world.port, token=world.controller) as client:
        (status,) = client.status("default/a")
    assert status.gauges["nodes.up"] == 1


def test_events_are_acknowledged_even_after_a_failure_of_the_timer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = world.agent()
    controller = world.run()
    tick, failed = MemberProxy.tick, threading.Event()

    def failing(steered: MemberProxy, now: float) -> None:
        if not failed.is_set():
            failed.set()
            raise ValueError("nobody thought of this")
        tick(steered, now)

    monkeypatch.setattr(MemberProxy, "tick", failing)
    assert failed.wait(60)
    controller.executor.submit(jobs(1))
    controller.over(*ids(1))
    wait_until(lambda: not len(agent._hosted[f"run-1.{RUN_ID}"].outbox))


def test_without_a_service_the_error_names_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ensemble_service.run_members._WELCOME", 0.5)
    executor = RemoteExecutor(host="127.0.0.1", port=1)
    with pytest.raises(ExecutorError) as caught:
        executor.open(Run("run-0", Path("nowhere"), time.time), lambda events: None)
    assert "the service at 127.0.0.1:1 cannot be reached" in str(caught.value)
    assert "check that it is running" in str(caught.value)


def test_two_agents_of_one_member_do_not_share_its_folder(world: World) -> None:
    world.agent("a")
    with pytest.raises(UsageError, match="member default/a is already running"):
        world.agent("a")


def test_the_status_of_a_member_counts_its_jobs(world: World) -> None:
    world.agent("a")
    controller = world.run("run-status")
    controller.executor.submit(jobs(1, 2))
    controller.over(*ids(1, 2))
    state = world.service.router.members["default/a"]
    wait_until(lambda: state.groups and state.groups[0].success == 2)
    assert state.alive
    assert state.runs == {f"run-status.{RUN_ID}"}
    assert state.gauges["nodes.up"] == 1
    assert state.gauges["queue.run"] == 0
    assert state.metrics["mean.t-duration"] >= 0
    controller.executor.close()
    wait_until(lambda: not state.runs)
    with contextlib.suppress(KeyError):
        assert not world.agents["a"]._hosted


def test_suspensions_requeues_and_who_cancelled_arrive_as_the_member_reports_them(
    world: World,
) -> None:
    controller = world.held("run-states", 1)
    told: list[tuple[str, dict[str, Any]]] = [
        ("alloc", {}),
        ("start", {"host": "n1"}),
        ("suspend", {"note": "gang scheduling"}),
        ("unsuspend", {}),
        ("requeue", {"restarts": 1, "note": "preempted"}),
        ("exception", {"type": "cancel", "severity": 0, "note": "by others", "by": "ann"}),
        ("clean", {}),
    ]
    for name, context in told:
        world.queues["a"].happen("t.1", name, context)
    controller.over("t.1")
    heard = [event for event in controller.events if isinstance(event, JobEvent)]
    assert [(event.name, dict(event.context)) for event in heard[1:]] == told


def test_a_person_cancels_a_runs_jobs_through_the_service(world: World) -> None:
    controller = world.held("run-cancel", 1, 2, 3)
    with ServiceClient("127.0.0.1", world.port, token=world.controller) as client:
        client.cancel("a", "run-cancel", ["t.1"])
        controller.over("t.1")
        assert controller.names("t.2") == ["submit"]
        client.cancel("a", "run-cancel")
        controller.over("t.2", "t.3")
    assert controller.names("t.2") == ["submit", "exception", "clean"]


def test_members_and_runs_connect_over_tls_with_tokens_from_files(tmp_path: Path) -> None:
    certificates.init(tmp_path / "tls", ["localhost"], days=2)
    settings = Settings(state=tmp_path / "service", tls=tmp_path / "tls", port=0, grace=1)
    tokens = TokenFile(settings.token_path)
    files = {}
    for role, name in (("member", "a"), ("controller", "default")):
        files[role] = tmp_path / f"{role}.token"
        files[role].write_text(tokens.add(role, name)[0] + "\n")  # type: ignore[arg-type]  # a role
    queue = Queue()
    authority = str(tmp_path / "tls" / "ca.crt")
    with serving(settings) as service:
        agent = Agent(
            "default/a",
            partial(QueueExecutor, queue),
            tmp_path / "a",
            lambda: open_channel(
                "localhost", service.port, token=read_token(str(files["member"])), ca=authority
            ),
            "service",
        )
        agent.start()
        executor = RemoteExecutor(
            host="localhost",
            port=service.port,
            ca=authority,
            token_file=str(files["controller"]),
        )
        events: list[Event] = []
        try:
            assert agent.wait_connected(60)
            executor.open(Run("run-tls", tmp_path, time.time), events.extend)
            executor.submit(jobs(1))
            wait_until(lambda: any(isinstance(e, JobEvent) and e.name == "clean" for e in events))
            # A member's token is not valid for a controller.
            wrong = RemoteExecutor(
                host="localhost",
                port=service.port,
                ca=authority,
                token_file=str(files["member"]),
            )
            with pytest.raises(ExecutorError, match="not allow this with your credential"):
                wrong.open(Run("run-wrong", tmp_path, time.time), events.extend)
        finally:
            executor.close()
            agent.stop()
            queue.close()
