"""Parses and evaluates filters in names: ``mean.U(L == 16)`` is the mean of U where L is 16.

In a formula, a name with its filter is a single name.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from ensemble_core.late_pattern import late_pattern
from ensemble_core.metrics.recent_counts import WITHIN
from ensemble_core.metrics.store import split_filter
from ensemble_core.model import conditions
from ensemble_core.model.conditions import Condition
from ensemble_core.model.expressions import called
from ensemble_core.model.formula_compiler import refused
from ensemble_core.model.jobs import Job
from ensemble_core.quick_dataclass import dataclass

#: Prefix of a name that makes it cover the whole group or table instead of the rule's slice or job.
ALL = "all."
#: Fields that every filter may use in addition to the job's parameters.
ATTEMPT_NAMES = ("index", "replica", "attempt")


class NameParts(NamedTuple):
    """The parts of a name ``all.STAT.NAME(CONDITION)``."""

    #: True with ``all.``: covers the whole group or table, not only the rule's slice or job.
    whole: bool
    path: str  #: ``STAT.NAME``
    condition: str


def split_name(name: str) -> NameParts:
    """Split a name into its parts.

    >>> split_name("all.max.binder.T(gap > 0)")
    NameParts(whole=True, path='max.binder.T', condition='gap > 0')
    """
    base, condition = split_filter(name)
    return NameParts(base.startswith(ALL), base.removeprefix(ALL), condition)


def attempt_fields(job: Job) -> dict[str, Any]:
    """Return the fields of an attempt that filters can use before the job has any output.

    A parameter hides another field with the same name.
    """
    own = {"index": job.index, "replica": job.replica, "attempt": job.attempt}
    return {**own, **job.parameters}


@dataclass(frozen=True)
class Filter:
    """A parsed filter."""

    condition: Condition
    names: tuple[str, ...]  #: The fields that the filter uses.
    #: Fields for which nan counts as a missing value: all except arguments of ``isnan`` and
    #: ``isinf``.
    not_nan: frozenset[str]

    def passes(self, known: Mapping[str, Any]) -> bool:
        """Return True if the condition is true for these fields. A missing value or nan makes it
        not true.
        """
        for name in self.not_nan:
            value = known.get(name)
            if value is not None and value != value:
                known = {**known, name: None}
        return self.condition.evaluate(None, known, _no_metric) not in (None, False, 0)


def _no_metric(path: str) -> None:
    return None


#: Common mistakes in place of ``NAME(CONDITION)``: ``NAME where CONDITION``, ``NAME[CONDITION]``.
_OTHERWISE = late_pattern(r"([\w.-]+)(?:\s+where\s+(.+)|\[(.+)\])")


def split_condition(text: str, key: str) -> tuple[str, str]:
    """Split ``NAME(CONDITION)`` into the name and the condition, which is empty without a filter.

    ``key`` is the key in the file, for error messages. Raises :class:`EnsembleError`.

    >>> split_condition("ising(T>2)", "of"), split_condition("ising", "of")
    (('ising', 'T > 2'), ('ising', ''))
    """
    otherwise = _OTHERWISE.fullmatch(text.strip())
    if otherwise is not None:
        better = f"{otherwise[1]}({otherwise[2] or otherwise[3]})"
        raise refused(f"{key!r} has an invalid filter", f"write {better}")
    name, bracket, inner = text.strip().partition("(")
    if not bracket:
        return name, ""
    if not inner.endswith(")") or not inner[:-1].strip():
        raise refused(f"{key!r} does not parse: {text!r}", f"write {name}(CONDITION)")
    tree = filter_of(inner[:-1], key).condition.tree
    assert tree is not None
    return name, ast.unparse(tree)


@lru_cache(maxsize=4096)
def filter_of(text: str, key: str = "filter") -> Filter:
    """Return the filter for a condition.

    Raises :class:`EnsembleError` if the condition is invalid.
    """
    if text.startswith(WITHIN):
        better = f"metric('count.GROUP.failed({text})')"
        raise refused("a count within a time is a metric of a group", f"write {better}")
    condition = conditions.parse(text, has_value=False, key=key)
    conditions.check_nan(condition, ())
    asked = {
        part.id
        for node in ast.walk(condition.tree or ast.Constant(0))
        if isinstance(node, ast.Call) and called(node) in ("isnan", "isinf")
        for part in ast.walk(node)
        if isinstance(part, ast.Name)
    }
    return Filter(condition, condition.sorted_names, frozenset(condition.names - asked))


@lru_cache(maxsize=4096)
def filter_in(name: str) -> Filter:
    """Return the filter in the name ``NAME(CONDITION)``."""
    return filter_of(split_filter(name)[1])
