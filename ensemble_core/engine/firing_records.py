"""Records of firings: the match that led to one, its origin, and requests that await an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from ensemble_core.engine.job_record import JobRecord, Link
from ensemble_core.engine.rule_index import RuleState
from ensemble_core.engine.scopes import Scope
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import Call, Resize, Terminate
from ensemble_core.model.events import Event
from ensemble_core.quick_dataclass import dataclass, replace

Asked = TypeVar("Asked", Call, Resize)

#: A method and its arguments. The method gets these arguments and the event, and returns ``Steps``.
Step: TypeAlias = tuple[Any, ...]
#: The steps that follow, in order (see ``agenda``). ``None`` means that no steps follow, and that
#: no metric rules have to be considered.
Steps: TypeAlias = Sequence[Step] | None


class Match(NamedTuple):
    """An event that fits the triggers of some rules, with its job if it is ours, and extra fields.

    For an instance of a rule with ``each``, ``scope`` is the instance's index or slice.
    """

    event: Event
    record: JobRecord | None = None
    fields: Mapping[str, Any] = NOTHING
    scope: Scope | None = None


@dataclass(slots=True, eq=False)
class Origin:
    """The firing that made a decision, as plain data."""

    rule_state: RuleState
    #: Number of the firing in the run.
    number: int
    link: Link
    match: Match
    #: Fields for conditions and messages.
    fields: Mapping[str, Any]

    @property
    def rule(self) -> str:
        """The id of the rule."""
        return self.rule_state.rule.id

    @property
    def decision_fields(self) -> dict[str, Any]:
        """The fields of a decision that identify its origin."""
        return {"rule": self.rule, "firing": self.number}

    @property
    def job(self) -> str | None:
        """Our id of the event's job, or ``None`` if the event has no job of this run."""
        record = self.match.record
        return None if record is None else record.job.id

    def with_fields(self, fields: Mapping[str, Any]) -> Origin:
        """Return the same origin with additional fields."""
        return replace(self, fields={**self.fields, **fields})


@dataclass(frozen=True, slots=True)
class PendingRequest(Generic[Asked]):
    """A call or resize request that has not been answered yet.

    Firings that the answer causes continue the chain of ``link``.
    """

    origin: Origin
    link: Link
    decision: Asked

    def retry(self) -> PendingRequest[Asked]:
        """Return the request as a repeated one; its receiver ignores duplicates.

        It gets the present id of its rule, which a change of the file may have changed.
        """
        attempt = self.decision.attempt + 1
        return PendingRequest(
            self.origin,
            self.link,
            replace(self.decision, rule=self.origin.rule, attempt=attempt),
        )


@dataclass(slots=True, eq=False)
class Stop:
    """A stop that is in effect."""

    decision: Terminate
    #: The events that a resume will handle.
    deferred: list[Event] = field(default_factory=list)
    #: The jobs that ended in these events.
    over: dict[str, None] = field(default_factory=dict)
