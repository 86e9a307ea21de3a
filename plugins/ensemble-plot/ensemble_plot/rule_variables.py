"""Which variables a picture shows where nobody said: those that the run's rules speak of.

Called by ``ensemble plot``, which has the ensemble bound from the journal's text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core import EnsembleError
from ensemble_core.cli.toolkit import parse_path

if TYPE_CHECKING:
    from ensemble_core.cli.toolkit import BoundRule, Ensemble

__all__ = ["spoken_of"]


def spoken_of(
    ensemble: Ensemble, added: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, tuple[str, ...]]:
    """For each rule, by id and in order, the names that it speaks of, in the order of its text.

    They are names of variables, of an event's fields and of parameters alike: what a name is, the
    journal's rows tell. ``added`` are rules, by id, that joined while the run was under way.
    """
    rules = list(ensemble.rules)
    for name, spec in (added or {}).items():
        try:
            rules.append(ensemble.binder.rule(spec, name))
        except EnsembleError:  # it was bound when it was added; other plugins may be installed now
            continue
    return {rule.id: _names(rule, ensemble) for rule in rules}


def _names(rule: BoundRule, ensemble: Ensemble) -> tuple[str, ...]:
    found: dict[str, None] = {}
    paths = []
    condition = rule.condition
    if rule.trigger.metric is not None:
        paths.append(rule.trigger.metric)
    if condition is not None:
        text = condition.text
        for name in sorted(condition.names, key=lambda name: (text.find(name), name)):
            found[name] = None
        paths += sorted(condition.metrics, key=lambda path: (text.find(path), path))
    for path in paths:
        try:
            metric = parse_path(path, ensemble.groups, ensemble.statistics)
        except EnsembleError:
            continue
        if metric.kind == "series" and metric.group:
            found[metric.variable] = None
    return tuple(found)
