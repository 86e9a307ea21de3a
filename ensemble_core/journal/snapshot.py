"""Snapshots (checkpoints) of the engine as bytes, so that a resume need not handle every event.

What the ensemble file and the plugins define (rules, groups' bindings, statistics) is named, not
copied: it is looked up in the ensemble that the state is read for. Everything else is pickled. A
state is only read by what wrote it: the ``maker`` of a snapshot says which versions those were.
Written by the runtime, read by ``replay``.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, ClassVar

from ensemble_core.engine.engine import Engine
from ensemble_core.engine.state import State
from ensemble_core.metrics.series import StatisticSpec
from ensemble_core.model.codec import layout
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.jobs import Job
from ensemble_core.model.rules import BoundRule

__all__ = ["FORMAT", "dump", "load"]

#: Changes whenever the engine's state changes its shape.
FORMAT = 8


def _proxy(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


def _job(*values: Any) -> Job:
    return Job(**dict(zip(layout(Job).names, values, strict=True)))


class _Pickler(pickle.Pickler):
    """Names what the ensemble holds, and pickles the rest."""

    def __init__(self, file: io.BytesIO, ensemble: Ensemble) -> None:
        super().__init__(file, protocol=5)
        self._own = {id(rule): rule.id for rule in ensemble.rules}
        self.dispatch_table = copyreg.dispatch_table.copy()
        self.dispatch_table[MappingProxyType] = lambda proxy: (_proxy, (dict(proxy),))
        self.dispatch_table[Job] = lambda job: (_job, layout(Job).values(job))
        self.dispatch_table[Ensemble] = lambda _: (_named, ("ensemble", None, None))
        self.dispatch_table[StatisticSpec] = lambda spec: (_named, ("statistic", spec.name, None))
        self.dispatch_table[BoundRule] = self._rule

    def _rule(self, rule: BoundRule) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if id(rule) in self._own:
            return _named, ("rule", rule.id, None)
        return _named, ("joined", rule.id, dict(rule.spec))


class _Reading:
    """The ensemble that a state is being read for."""

    ensemble: ClassVar[Ensemble | None] = None
    rules: ClassVar[dict[str, BoundRule]] = {}


def _named(kind: str, name: str | None, spec: Any) -> Any:
    """What a state names. Called by the unpickler."""
    ensemble = _Reading.ensemble
    if ensemble is None:
        raise pickle.UnpicklingError("a state can only be read with its ensemble")
    if kind == "ensemble":
        return ensemble
    if kind == "statistic":
        return ensemble.statistics[str(name)]
    if kind == "rule":
        return _Reading.rules[str(name)]
    return ensemble.binder.rule(spec, str(name))


def dump(engine: Engine) -> bytes | None:
    """The state of an engine; ``None`` where a plugin's statistic cannot be kept."""
    file = io.BytesIO()
    try:
        _Pickler(file, engine.state.ensemble).dump(engine.state)
    except Exception:  # whatever a plugin's statistic raises: the run goes on without a snapshot
        return None
    return file.getvalue()


def load(state: bytes, ensemble: Ensemble) -> Engine | None:
    """The engine whose state :func:`dump` wrote; ``None`` where it cannot be read any more."""
    _Reading.ensemble = ensemble
    _Reading.rules = {rule.id: rule for rule in ensemble.rules}
    try:
        kept = pickle.loads(state)  # noqa: S301  (the run's owner wrote it, in the owner's folder)
    except Exception:  # whatever a plugin's statistic raises: the events themselves are there
        return None
    finally:
        _Reading.ensemble = None
        _Reading.rules = {}
    return Engine(kept) if isinstance(kept, State) else None
