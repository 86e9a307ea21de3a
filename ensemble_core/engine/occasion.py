"""Occasions, firings, open requests and stops: what the parts of the engine hand to one another.

Plain data, kept by the run's state where it outlasts an event; made by ``engine`` and
``rule_evaluation``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from ensemble_core.engine.job_record import JobRecord, Link
from ensemble_core.engine.rule_index import RuleState
from ensemble_core.engine.scopes import Scope
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import Call, Resize, Terminate
from ensemble_core.model.events import Event

__all__ = ["Occasion", "Origin", "Pending", "Step", "Steps", "Stop"]

Asked = TypeVar("Asked", Call, Resize)

#: A method and its arguments. It is called with the event after them, and returns ``Steps``.
Step: TypeAlias = tuple[Any, ...]
#: What follows, first to last; see ``agenda``. ``None``: nothing, not even a metric rule.
Steps: TypeAlias = Sequence[Step] | None


class Occasion(NamedTuple):
    """Occasion that wakes rules: an event, our job that it concerns, and fields of the event's own
    beside those that the job and its event have; for an instance of a rule with ``each``, the index
    or slice that it is about."""

    event: Event
    record: JobRecord | None = None
    fields: Mapping[str, Any] = NOTHING
    scope: Scope | None = None


@dataclass(slots=True, eq=False)
class Origin:
    """The firing that a decision comes from; plain data. Plans see it as an ``EngineFiring``.

    ``number`` counts the firings of the whole run, ``link`` is its place in a chain of them, and
    ``fields`` is what conditions and messages may speak of.
    """

    rule_state: RuleState
    number: int
    link: Link
    occasion: Occasion
    fields: Mapping[str, Any]

    @property
    def rule(self) -> str:
        """The rule's id."""
        return self.rule_state.rule.id

    @property
    def mark(self) -> dict[str, Any]:
        """Fields by which each of its decisions says where it comes from."""
        return {"rule": self.rule, "firing": self.number}

    @property
    def job(self) -> str | None:
        """Our id of the event's job, if it has one that is ours."""
        record = self.occasion.record
        return None if record is None else record.job.id

    def knowing(self, fields: Mapping[str, Any]) -> Origin:
        """The same firing, with these fields beside those that it has."""
        return replace(self, fields={**self.fields, **fields})


@dataclass(frozen=True, slots=True)
class Pending(Generic[Asked]):
    """A call or a resize that was decided and has no answer yet. Firings that follow from the
    answer go on from ``link``."""

    origin: Origin
    link: Link
    decision: Asked

    def retry(self) -> Pending[Asked]:
        """The same request once more: who knows it answers, and does not carry it out twice. Its
        rule may have another id since the file changed."""
        attempt = self.decision.attempt + 1
        return Pending(
            self.origin,
            self.link,
            replace(self.decision, rule=self.origin.rule, attempt=attempt),
        )


@dataclass(slots=True, eq=False)
class Stop:
    """A stop that is in force: what was decided, the events since, and the jobs of which the last
    is among these."""

    decision: Terminate
    deferred: list[Event] = field(default_factory=list)
    over: dict[str, None] = field(default_factory=dict)
