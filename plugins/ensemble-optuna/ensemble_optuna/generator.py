"""The generator: one Optuna study in memory, asked and told as Optuna's own ask-and-tell loop is.

Built by the record of ``ensemble_optuna``; what the run has on record is the study's storage.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, Trial, TrialState

from ensemble_core import EnsembleError, Exchange, Generator, Point, Reading, Variable, Vocs
from ensemble_optuna import PRUNERS, SAMPLERS

__all__ = ["OptunaGenerator"]

_CONSTRAINTS = "constraints"
#: How Optuna 5 is told of constraints; before, a function of the sampler's asked for them.
_SET_CONSTRAINT: Any = getattr(Trial, "set_constraint", None)


class OptunaGenerator(Generator):
    """Asks an Optuna study for points."""

    def __init__(self, vocs: Vocs, options: Mapping[str, Any]) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._vocs = vocs
        self._distributions = {each.name: _distribution(each) for each in vocs.variables}
        self._trials: dict[int, Trial] = {}
        self._next = 0
        self._study = optuna.create_study(
            directions=[*vocs.objectives.values()],
            sampler=_sampler(vocs, options),
            pruner=_made(optuna.pruners, PRUNERS[options["pruner"]], options["pruner_options"])
            if vocs.prunes
            else optuna.pruners.NopPruner(),
        )

    def suggest(self, count: int) -> Sequence[Mapping[str, Any]]:
        """The next points."""
        return [self._ask().params for _ in range(count)]

    def _ask(self) -> Trial:
        trial = self._trials[self._next] = self._study.ask(self._distributions)
        self._next += 1
        return trial

    def ingest(self, points: Sequence[Point]) -> None:
        """Tell the study what became of points."""
        for point in points:
            own = point.number >= 0
            trial = self._trials.pop(point.number) if own else self._learn(point)
            if point.values:
                self._constrain(trial, point.values)
                self._study.tell(trial, [point.values[name] for name in self._vocs.objectives])
            elif point.state == "pruned":
                self._study.tell(trial, state=TrialState.PRUNED)
            else:
                self._study.tell(trial, state=TrialState.FAIL)

    def _learn(self, point: Point) -> Trial:
        """A trial of the study for a point of another generator."""
        self._study.enqueue_trial(dict(point.parameters))
        return self._study.ask(self._distributions)

    def _constrain(self, trial: Trial, values: Mapping[str, float]) -> None:
        """Say by how much the constraints are missed."""
        missed = {
            name: each.violation(values[name]) for name, each in self._vocs.constraints.items()
        }
        if _SET_CONSTRAINT is None:
            trial.set_user_attr(_CONSTRAINTS, [*missed.values()])
            return
        for name, violation in missed.items():
            _SET_CONSTRAINT(trial, name, violation)

    def prune(self, readings: Sequence[Reading]) -> Collection[int]:
        """Report what jobs have come to; those that the pruner stops."""
        found = set()
        for point, step, value in readings:
            trial = self._trials.get(point)
            if trial is not None:
                trial.report(value, int(step))
                if trial.should_prune():
                    found.add(point)
        return found

    def resume(self, exchanges: Sequence[Exchange]) -> None:
        """Ask and tell all again: a study with the same seed gives the same points. One that does
        not (another version of Optuna) is given those on record. A point that a changed file has
        no place for failed."""
        for told, readings, suggested in exchanges:
            self.ingest(told)
            self.prune(readings)
            for point in suggested:
                trial = self._ask()
                if trial.params != dict(point.parameters):
                    self._study.tell(trial, state=TrialState.FAIL)
                    if self._vocs.refused(point.parameters) is not None:
                        del self._trials[point.number]
                        continue
                    self._next -= 1
                    self._study.enqueue_trial(dict(point.parameters))
                    self._ask()


def _distribution(variable: Variable) -> BaseDistribution:
    if variable.values:
        return CategoricalDistribution(variable.values)
    if variable.whole:
        return IntDistribution(int(variable.low), int(variable.high), step=int(variable.step or 1))
    return FloatDistribution(variable.low, variable.high, log=variable.log, step=variable.step)


def _sampler(vocs: Vocs, options: Mapping[str, Any]) -> optuna.samplers.BaseSampler:
    name = SAMPLERS[options["sampler"]]
    given = {"seed": options["seed"], **options["sampler_options"]}
    takes = inspect.signature(getattr(optuna.samplers, name)).parameters
    if vocs.constraints and "constraints_func" in takes and _SET_CONSTRAINT is None:
        given["constraints_func"] = _constraints
    if "consider_pruned_trials" in takes and vocs.prunes:
        given.setdefault("consider_pruned_trials", True)
    sampler: optuna.samplers.BaseSampler = _made(optuna.samplers, name, given)
    return sampler


def _constraints(trial: FrozenTrial) -> Sequence[float]:
    found: Sequence[float] = trial.user_attrs.get(_CONSTRAINTS, ())
    return found


def _made(module: Any, name: str, arguments: Mapping[str, Any]) -> Any:
    try:
        return getattr(module, name)(**arguments)
    except (TypeError, ValueError) as error:
        raise EnsembleError(
            f"Optuna's {name} cannot be made with these options: {error}",
            hint="its arguments are those of Optuna's documentation",
            code="bad-value",
        ) from error
