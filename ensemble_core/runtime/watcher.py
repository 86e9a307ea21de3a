"""Watchers of a run, and its outcome: what the controller tells those who run it.

``display.feed`` implements it for the console, the live table and ``--json``; the commands and the
Python API read the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ensemble_core.engine.report import Report
from ensemble_core.model.decisions import Decision
from ensemble_core.model.events import Event

__all__ = ["Outcome", "Watcher"]


class Watcher:
    """Whoever watches a run: the console, a progress display.

    Called on the engine's thread, in order; must be quick. ``tick`` comes at most every 0.2 s, and
    only while something changes, where ``wants_ticks`` is set.
    """

    wants_ticks = False

    def event(self, event: Event) -> None:
        """An event, before the engine has worked it in."""

    def decision(self, decision: Decision) -> None:
        """A decision, before it is performed."""

    def tick(self, report: Report) -> None:
        """How the run stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended, or was left. ``seconds`` is its length; ``natural`` that it ended by itself.

    ``over``: nothing is left to do for a later controller. ``stopped``: a resume goes on with it.
    ``left``: jobs that go on in the queue.
    """

    exit_code: int
    reason: str
    natural: bool
    seconds: float
    report: Report
    tag: str
    over: bool = True
    stopped: bool = False
    left: int = 0

    @property
    def state(self) -> Literal["ended", "stopped", "limited", "interrupted"]:
        """As ``ensemble runs`` says it."""
        if self.over or self.stopped:
            return "ended" if self.over else "stopped"
        if not self.natural:
            return "interrupted"
        return "limited" if self.exit_code == 4 else "stopped"
