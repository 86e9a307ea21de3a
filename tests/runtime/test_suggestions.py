"""Calls of generators and their suggestions."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ensemble_core.engine.generator_state import SuggestCall
from ensemble_core.model.decisions import Call
from ensemble_core.model.events import CallFailed, CallReturned, Event
from ensemble_core.model.generators import (
    Exchange,
    Generator,
    GeneratorSpec,
    Point,
    Variable,
    Vocs,
)
from ensemble_core.runtime.generator_calls import GeneratorCalls, MakeSuggestion

X = Variable(name="x", low=-5.0, high=5.0)
N = Variable(name="n", low=1, high=9, step=2)
KIND = Variable(name="kind", values=("a", "b"))


class Fixed(Generator):
    """Generator that always suggests the same point."""

    def __init__(self, point: Mapping[str, Any]) -> None:
        self._point = point

    def suggest(self, count: int) -> Sequence[Mapping[str, Any]]:
        return [self._point]


def spec(generator: Generator, timeout: float = 600.0) -> GeneratorSpec:
    return GeneratorSpec(
        name="search",
        use="fixed",
        group="sim",
        vocs=Vocs(variables=(X, N, KIND), objectives={"E": "minimize"}),
        build=lambda purpose: generator,
        timeout=timeout,
    )


def outcome(found: GeneratorSpec, before: Sequence[Exchange] = ()) -> Event:
    calls = GeneratorCalls({found.name: found}, lambda event: None, lambda: 0.0)
    call = Call(call="call-1", kind="generator", name=found.name, options={})
    try:
        return calls.outcome(MakeSuggestion(SuggestCall(call, 1, (), ()), before, len(before)))
    finally:
        calls.close()


@pytest.mark.parametrize(
    ("suggested", "submitted"),
    [
        ({"x": 5.0 + 1e-9, "n": 9.0 + 1e-9, "kind": "a"}, {"x": 5.0, "n": 9, "kind": "a"}),
        ({"x": -5.0 - 1e-9, "n": 1 - 1e-9, "kind": "b"}, {"x": -5.0, "n": 1, "kind": "b"}),
        ({"x": 1.25, "n": 3, "kind": "b", "_id": 7}, {"x": 1.25, "n": 3, "kind": "b", "_id": 7}),
    ],
)
def test_a_number_outside_its_range_by_rounding_is_clipped(
    suggested: Mapping[str, Any], submitted: Mapping[str, Any]
) -> None:
    told = outcome(spec(Fixed(suggested)))
    assert isinstance(told, CallReturned)
    assert told.result == ({"point": submitted},)


def test_a_number_outside_its_range_is_an_error() -> None:
    told = outcome(spec(Fixed({"x": 5.0 + 1e-6, "n": 9, "kind": "a"})))
    assert isinstance(told, CallFailed)
    assert "x = 5.000001: it is from -5 to 5" in told.error


class Stuck(Generator):
    """Generator that hangs until the test is over."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def suggest(self, count: int) -> Sequence[Mapping[str, Any]]:
        self.over.wait()
        return []


def test_a_hanging_generator_times_out() -> None:
    stuck = Stuck()
    try:
        told = outcome(spec(stuck, timeout=0.2))
    finally:
        stuck.over.set()
    assert isinstance(told, CallFailed)
    assert told.error == "gave no answer within 0.2 s"


class Quick(Fixed):
    """Generator that never hangs."""

    quick = True
    threads: tuple[threading.Thread, ...] = ()

    def suggest(self, count: int) -> Sequence[Mapping[str, Any]]:
        self.threads = (*self.threads, threading.current_thread())
        return super().suggest(count)


@pytest.mark.parametrize("kind", [Quick, Fixed])
def test_a_quick_generator_is_called_without_a_thread(kind: type[Fixed]) -> None:
    """Ten thousand points take a third longer if each call goes through another thread."""
    generator = Quick({"x": 1.0, "n": 1, "kind": "a"})
    generator.quick = kind.quick  # type: ignore[misc]
    found = spec(generator)
    calls = GeneratorCalls({found.name: found}, lambda event: None, lambda: 0.0)
    call = Call(call="call-1", kind="generator", name=found.name, options={})
    for _ in range(2):
        calls.outcome(MakeSuggestion(SuggestCall(call, 1, (), ()), (), 0))
    calls.close()
    assert (generator.threads[1] is threading.current_thread()) == kind.quick


class Slow(Fixed):
    """Generator whose calls together take longer than the timeout of one call."""

    def resume(self, exchanges: Sequence[Exchange]) -> None:
        threading.Event().wait(1.0)


def test_a_resume_has_the_timeouts_of_all_repeated_calls() -> None:
    """Restoring a study of 10,000 points takes minutes, even if each call took under a second."""
    point = {"x": 1.0, "n": 3, "kind": "a"}
    before = [Exchange((), (), (Point(number=i, parameters=point),)) for i in range(10_000)]
    told = outcome(spec(Slow(point), timeout=0.2), before)
    assert isinstance(told, CallReturned)


def test_a_very_long_timeout_of_a_resume_is_accepted() -> None:
    before = [Exchange((), (), ())] * 400
    month = 30 * 86_400.0
    told = outcome(spec(Fixed({"x": 1.0, "n": 3, "kind": "a"}), timeout=12 * month), before)
    assert isinstance(told, CallReturned)


class Buried(Stuck):
    """Generator that hangs in a resume until the test is over."""

    def resume(self, exchanges: Sequence[Exchange]) -> None:
        self.over.wait()


def test_a_hanging_resume_times_out() -> None:
    stuck = Buried()
    try:
        told = outcome(spec(stuck, timeout=0.1), [Exchange((), (), ())])
    finally:
        stuck.over.set()
    assert isinstance(told, CallFailed)
    assert told.error == "gave no answer within 0.2 s"


class Counted(Fixed):
    """Generator that records the exchanges of its resume."""

    record: Sequence[Exchange] = ()

    def resume(self, exchanges: Sequence[Exchange]) -> None:
        self.record = exchanges


def test_points_that_a_changed_file_rejects_are_counted_but_not_ingested() -> None:
    fit, unfit = (
        Point(number=number, parameters={"x": x, "n": 3, "kind": "a"}, values={"E": 1.0})
        for number, x in enumerate((1.0, 7.0))
    )
    generator = Counted({**fit.parameters})
    outcome(spec(generator), [Exchange((), (), (fit, unfit)), Exchange((fit, unfit), (), ())])
    assert generator.record == [Exchange((), (), (fit, unfit)), Exchange((fit,), (), ())]
