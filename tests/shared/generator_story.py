"""A run with generators, driven event by event."""

from __future__ import annotations

from typing import Any

from ensemble_testing import Story

from ensemble_core.model.decisions import Call, Decision
from ensemble_core.model.events import Event
from ensemble_core.runtime.function_calls import order_of
from ensemble_core.runtime.generator_calls import GeneratorCalls, MakeSuggestion

__all__ = ["Told"]


class Told(Story):
    """Story that carries out the calls of generators. ``calls``: all calls so far."""

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.calls: list[Call] = []
        self.open: list[Call] = []
        self.renew()

    def renew(self) -> None:
        """Build all generators again, as the next controller does."""
        self.maker = GeneratorCalls(self.ensemble.generators, lambda event: None, lambda: self.now)

    def tell(self, event: Event) -> list[Decision]:
        decisions = super().tell(event)
        asked = [one for one in decisions if isinstance(one, Call) and one.kind == "generator"]
        self.calls += asked
        self.open += asked
        return decisions

    def order(self, call: Call) -> MakeSuggestion:
        order = order_of(self.engine, call)
        assert isinstance(order, MakeSuggestion)
        return order

    def answer(self) -> list[Decision]:
        """Carry out all open calls, and return the decisions."""
        decided: list[Decision] = []
        while self.open:
            call = self.open.pop(0)
            decided += self.tell(self.maker.outcome(self.order(call)))
        return decided

    def finish(self, job: str, energy: float = 0.0, peak: float = 0.0, status: int = 0) -> None:
        """Play a job that prints one row."""
        self.begin(job)
        self.observe(job, energy=energy, peak=peak)
        self.end(job, status=status)
        self.answer()

    def active(self) -> list[str]:
        return self.engine.state.active()

    def parameters(self) -> list[tuple[Any, ...]]:
        points = self.engine.state.generators["search"].points
        return [tuple(point.parameters.values()) for point in points]
