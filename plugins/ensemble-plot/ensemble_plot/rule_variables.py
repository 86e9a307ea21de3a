"""Variables that the rules of a run use: by default, ``ensemble plot`` shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ensemble_core import EnsembleError
from ensemble_core.cli.toolkit import parse_path

if TYPE_CHECKING:
    from ensemble_core.cli.toolkit import BoundRule, Ensemble


def variables_of_rules(
    ensemble: Ensemble,
    added: Mapping[str, Mapping[str, Any]] | None = None,  # rules added during the run, by id
) -> dict[str, tuple[str, ...]]:
    """Return the variables that each rule uses, by rule id.

    They include event fields and parameters that the rule's condition uses.
    """
    rules = list(ensemble.rules)
    for name, spec in (added or {}).items():
        try:
            rules.append(ensemble.binder.rule(spec, name))
        except EnsembleError:  # a plugin that the rule needs may be missing
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
            found[metric.variable.removeprefix("rows.")] = None
    return tuple(found)
