"""Generator that suggests points from an Optuna study.

The study is in memory only. A resumed run rebuilds the study from its journal.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TextIO

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

_LOG = logging.getLogger("optuna")
_CONSTRAINTS = "constraints"
#: User attribute with a trial's constraint values. Before Optuna 5, the sampler takes a function
#: that reads this attribute.
_SET_CONSTRAINT: Any = getattr(Trial, "set_constraint", None)


class OptunaGenerator(Generator):
    """Optuna study as a generator of points."""

    def __init__(self, vocs: Vocs, options: Mapping[str, Any]) -> None:
        _keep_off_the_terminal()
        self._vocs = vocs
        self._distributions = {each.name: _distribution(each) for each in vocs.variables}
        self._conditional = any(each.when for each in vocs.variables)
        self._trials: dict[int, Trial] = {}
        self._next = 0
        self._study = optuna.create_study(
            directions=[*vocs.objectives.values()],
            sampler=_sampler(vocs, options),
            pruner=_construct(optuna.pruners, PRUNERS[options["pruner"]], options["pruner_options"])
            if vocs.prunes
            else optuna.pruners.NopPruner(),
        )

    def suggest(self, count: int) -> Sequence[Mapping[str, Any]]:
        """Return the next points."""
        return [self._values(self._next_trial()) for _ in range(count)]

    def _next_trial(self) -> Trial:
        trial = self._trials[self._next] = self._ask()
        self._next += 1
        return trial

    def _ask(self) -> Trial:
        """Return a new trial with a value for each variable that applies."""
        if not self._conditional:
            return self._study.ask(self._distributions)
        trial = self._study.ask()
        known: dict[str, Any] = {}
        for each in self._vocs.variables:
            known[each.name] = _suggest(trial, each) if each.applies(known) else ""
        return trial

    def _values(self, trial: Trial) -> dict[str, Any]:
        return {**dict.fromkeys(self._vocs.names, ""), **trial.params}

    def _active(self, point: Point) -> dict[str, Any]:
        """Return the parameters of a point whose variables apply."""
        given = point.parameters
        return {each.name: given[each.name] for each in self._vocs.variables if each.applies(given)}

    def ingest(self, points: Sequence[Point]) -> None:
        """Report finished points to the study."""
        for point in points:
            own = point.number >= 0
            trial = self._trials.pop(point.number) if own else self._add_trial(point)
            if point.values:
                self._constrain(trial, point.values)
                self._study.tell(trial, [point.values[name] for name in self._vocs.objectives])
            elif point.state == "pruned":
                self._study.tell(trial, state=TrialState.PRUNED)
            else:
                self._study.tell(trial, state=TrialState.FAIL)

    def _add_trial(self, point: Point) -> Trial:
        """Return a trial of the study for a point of another generator."""
        self._study.enqueue_trial(self._active(point))
        return self._ask()

    def _constrain(self, trial: Trial, values: Mapping[str, float]) -> None:
        """Record by how much a trial violates each constraint."""
        missed = {
            name: each.violation(values[name]) for name, each in self._vocs.constraints.items()
        }
        if _SET_CONSTRAINT is None:
            trial.set_user_attr(_CONSTRAINTS, [*missed.values()])
            return
        for name, violation in missed.items():
            _SET_CONSTRAINT(trial, name, violation)

    def prune(self, readings: Sequence[Reading]) -> Collection[int]:
        """Report intermediate values of jobs. Return the points that the pruner stops."""
        found = set()
        for point, step, value in readings:
            trial = self._trials.get(point)
            if trial is not None:
                trial.report(value, int(step))
                if trial.should_prune():
                    found.add(point)
        return found

    def resume(self, exchanges: Sequence[Exchange]) -> None:
        """Repeat all recorded calls: a study with the same seed suggests the same points.

        If the study suggests other points (with another version of Optuna), it gets the recorded
        points as trials. A recorded point outside the variables of a changed file becomes a failed
        trial.
        """
        for told, readings, suggested in exchanges:
            self.ingest(told)
            self.prune(readings)
            for point in suggested:
                trial = self._next_trial()
                if self._values(trial) != dict(point.parameters):
                    self._study.tell(trial, state=TrialState.FAIL)
                    if self._vocs.refused(point.parameters) is not None:
                        del self._trials[point.number]
                        continue
                    self._next -= 1
                    self._study.enqueue_trial(self._active(point))
                    self._next_trial()


def _keep_off_the_terminal() -> None:
    """Send what Optuna logs, and its warnings, to Python's logging only (logger ``optuna``)."""
    optuna.logging.disable_default_handler()
    optuna.logging.enable_propagation()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if not _LOG.handlers:
        _LOG.addHandler(logging.NullHandler())  # otherwise, Python prints warnings
        show = warnings.showwarning

        def log(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if "optuna" in filename or category.__module__.startswith("optuna"):
                _LOG.warning("%s: %s", category.__name__, message)
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = log


def _distribution(variable: Variable) -> BaseDistribution:
    if variable.values:
        return CategoricalDistribution(variable.values)
    if variable.whole:
        return IntDistribution(int(variable.low), int(variable.high), step=int(variable.step or 1))
    return FloatDistribution(variable.low, variable.high, log=variable.log, step=variable.step)


def _suggest(trial: Trial, variable: Variable) -> Any:
    name, low, high, step = variable.name, variable.low, variable.high, variable.step
    if variable.values:
        return trial.suggest_categorical(name, variable.values)
    if variable.whole:
        return trial.suggest_int(name, int(low), int(high), step=int(step or 1))
    return trial.suggest_float(name, low, high, log=variable.log, step=step)


def _sampler(vocs: Vocs, options: Mapping[str, Any]) -> optuna.samplers.BaseSampler:
    name = SAMPLERS[options["sampler"]]
    given = {"seed": options["seed"], **options["sampler_options"]}
    takes = inspect.signature(getattr(optuna.samplers, name)).parameters
    if vocs.constraints and "constraints_func" in takes and _SET_CONSTRAINT is None:
        given["constraints_func"] = _constraints
    if "consider_pruned_trials" in takes and vocs.prunes:
        given.setdefault("consider_pruned_trials", True)
    sampler: optuna.samplers.BaseSampler = _construct(optuna.samplers, name, given)
    return sampler


def _constraints(trial: FrozenTrial) -> Sequence[float]:
    found: Sequence[float] = trial.user_attrs.get(_CONSTRAINTS, ())
    return found


def _construct(module: Any, name: str, arguments: Mapping[str, Any]) -> Any:
    try:
        return getattr(module, name)(**arguments)
    except (TypeError, ValueError) as error:
        raise EnsembleError(
            f"Optuna's {name} rejected these options: {error}",
            hint=f"see the arguments of {name} in Optuna's documentation",
            code="bad-value",
        ) from error
