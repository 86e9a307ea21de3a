"""Retry policy of a job group (the key ``retry``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from typing import Any

from ensemble_core.model.codec import NOTHING
from ensemble_core.model.conditions import Condition
from ensemble_core.model.evaluated_options import changed_fields, evaluate_options
from ensemble_core.quick_dataclass import dataclass

#: Names by which a condition refers to the cause of a failure.
_CAUSE_NAMES = frozenset({"cause", "cancelled_by", "type"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """A job group's ``retry``: when, how often and with which changes a failed job is retried."""

    times: int  #: Maximum number of retries of a job.
    when: Condition | None = None  #: The job is retried if this is true for the failed attempt.
    wait: float | str = 0.0  #: Seconds, or an expression.
    #: Changes to the group's fields.
    fields: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    reads: frozenset[str] = frozenset()  #: ``STAT.NAME`` references in the policy's expressions.
    metrics: frozenset[str] = frozenset()  #: Metric paths in the policy's expressions.
    resume: bool = False  #: Whether statistics continue over the attempts.

    @property
    def computes(self) -> bool:
        """True if the changes or the wait may have expressions."""
        return bool(self.fields) or isinstance(self.wait, str)

    def names_cancels(self, parameters: Collection[str]) -> bool:
        """Return True if the policy's condition is about the cause of a failure.

        Only then, a job that others have cancelled is retried. ``parameters`` are those of the job:
        such a name in the condition is a parameter.
        """
        names = frozenset() if self.when is None else self.when.names
        return not _CAUSE_NAMES.isdisjoint(names - set(parameters))

    def evaluate(
        self, known: Mapping[str, Any], metric: Callable[[str], float | None]
    ) -> tuple[Mapping[str, Any], float]:
        """Return the changed fields and the wait in seconds for a retry.

        ``known`` has the fields of the failed attempt. Raises :class:`EnsembleError` if a value is
        missing.
        """
        wait = evaluate_options(self.wait, known, metric)
        return changed_fields(self.fields, known, metric), max(0.0, float(wait))
