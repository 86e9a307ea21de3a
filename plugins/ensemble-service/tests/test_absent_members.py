"""Tests of runs whose members are absent, away, late or misspelled."""

from __future__ import annotations

import threading
import time

import pytest
from ensemble_testing import wait_until
from remote_world import Queue, World, jobs

from ensemble_core import (
    ExecutorError,
    ResizeOutcome,
    Resources,
)


def test_jobs_for_an_absent_member_wait_and_can_be_cancelled(world: World) -> None:
    world.agent("a")
    controller = world.run("run-away")
    world.leave("a")
    wait_until(lambda: not controller.executor._members["default/a"].present)
    controller.executor.submit(jobs(1, 2))
    controller.executor.cancel(["t.1", "t.77"])
    assert controller.names("t.1") == ["submit", "exception", "clean"]
    world.agent("a")
    controller.over("t.2")
    assert world.queues["a"].submits == ["t.2"]


def test_a_resize_of_an_absent_member_is_sent_later(world: World) -> None:
    world.agent("a")
    controller = world.run("run-resize")
    controller.executor.resize("r1", 2)
    controller.wait(lambda: any(isinstance(e, ResizeOutcome) for e in controller.events))
    world.leave("a")
    wait_until(lambda: not controller.executor._members["default/a"].present)
    with pytest.raises(ExecutorError) as caught:
        controller.executor.resize("r2", 1)
    assert caught.value.transient


def test_a_long_absence_is_reported_once_and_so_is_the_return(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_service.run_members._MEMBER_AWAY", 0.1)
    world.agent("a")
    controller = world.run("run-tell")
    world.leave("a")
    controller.wait(controller.problems, "the word")
    world.agent("a")
    controller.wait(lambda: len(controller.problems()) == 2, "the other word")
    first, second = controller.problems()
    assert first.startswith("member default/a is disconnected")
    assert second == "member default/a is connected again"


def test_rules_see_which_groups_members_are_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_service.run_members._MEMBER_AWAY", 0.1)

    def told() -> list[float]:
        found = [event for event in controller.events if isinstance(event, Resources)]
        return [event.values["away.t"] for event in found if "away.t" in event.values]

    world.agent("a")
    controller = world.run("run-away-gauge")
    world.leave("a")
    controller.wait(controller.problems, "the word")
    assert told() == []  # it has no jobs there
    controller.executor.submit(jobs(1, 2))
    controller.executor.submit(jobs(3))
    controller.wait(told, "the gauge")
    world.agent("a")
    controller.over("t.3")
    controller.wait(lambda: len(told()) == 2, "the other value")
    assert told() == [1, 0]


@pytest.mark.parametrize("back", [True, False], ids=["back", "still away"])
def test_a_resumed_run_learns_which_members_are_away_now(
    world: World, back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal has the state at the time when the previous controller stopped."""
    monkeypatch.setattr("ensemble_service.run_members._MEMBER_AWAY", 0.1)
    world.agent("a")
    first = world.run("run-resumed-away")
    assert "away.t" not in first.executor.resources()  # it has no jobs there
    first.executor.submit(jobs(1))
    first.over("t.1")
    world.leave("a")
    first.wait(first.problems, "the word")
    first.executor.close()
    if back:
        world.agent("a")
    second = world.run("run-resumed-away")
    assert second.executor.resources()["away.t"] == (0 if back else 1)
    if not back:
        world.agent("a")
        second.wait(
            lambda: any(isinstance(e, Resources) and e.values.get("away.t") == 0
                        for e in second.events), "the word")  # fmt: skip
        assert second.executor.resources()["away.t"] == 0


def test_a_resumed_run_waits_for_its_member_and_finally_names_it(world: World) -> None:
    world.agent("a")
    first = world.run("run-patient")
    first.executor.submit(jobs(1))
    first.wait(lambda: first.names("t.1"), "submit")
    first.executor.close()
    world.leave("a")
    impatient = world.run("run-patient", patience=0.2)
    with pytest.raises(ExecutorError) as caught:
        impatient.executor.reattach({"t.1": 0.0})
    assert "member default/a is disconnected" in str(caught.value)
    assert "ensemble resume run-patient" in str(caught.value)
    impatient.executor.close()

    patient = world.run("run-patient")
    threading.Timer(0.3, world.agent).start()
    assert patient.executor.reattach({"t.1": 0.0}) == {"t.1": True}


def test_a_member_that_is_absent_at_the_start_only_delays_its_own_jobs(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ensemble_service.run_members._COMING", 0.1)
    monkeypatch.setattr("ensemble_service.run_members._MEMBER_AWAY", 0.1)
    world.agent("a")
    controller = world.run("run-without", members=["a", "b"])
    controller.executor.submit([*jobs(1, member="a"), *jobs(2, member="b")])
    controller.over("t.1")
    controller.wait(controller.problems, "the word")
    assert controller.names("t.2") == []
    world.agent("b")
    controller.over("t.2")
    (told,) = [each.getMessage() for each in caplog.records if "their jobs" in each.getMessage()]
    assert told.startswith("some members are not connected to the service at")
    assert told.endswith(
        "default/b; their jobs wait for them, other jobs start (connected: default/a)"
    )


def test_a_late_member_whose_queue_cannot_be_opened_is_reported_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_service.run_members._COMING", 0.1)
    monkeypatch.setattr("ensemble_service.member_proxy._AGAIN", 0.1)
    world.agent("a")
    controller = world.run("run-late", members=["a", "b"])
    world.queues["b"] = Queue()
    world.queues["b"].refuse = ExecutorError("no queue here", hint="start it", code="no-queue")
    world.agent("b")
    wait_until(lambda: controller.executor._members["default/b"].refusal)
    controller.executor.submit(jobs(1, member="b"))
    controller.wait(controller.problems, "the word")
    time.sleep(0.5)
    world.queues["b"].refuse = None
    controller.over("t.1")
    assert len([each for each in controller.problems() if "no queue here" in each]) == 1


def test_a_misspelled_member_is_not_waited_for_if_a_similar_one_is_connected(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Suggest a connected member only if no group uses it."""
    monkeypatch.setattr("ensemble_service.run_members._COMING", 0.1)
    world.agent("a")
    world.agent("b")
    with pytest.raises(ExecutorError, match="did you mean 'default/b'"):
        world.run("run-typo", members=["a", "bb"])
    world.run("run-alike", members=["a", "b", "bb"])
