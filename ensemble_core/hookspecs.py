"""Every hook of Ensemble, typed: this file is the manual for plugin authors.

A plugin is a module (or any object) with functions of the names below, each marked
``@hookimpl``. It is found through the entry-point group ``ensemble``::

    [project.entry-points.ensemble]
    notify = "ensemble_notify"

or given as a single file: ``ensemble run --plugin ./notify.py study.yaml``.

Hooks are called once, when plugins are loaded, and return records: a name, one line of summary, a
JSON Schema of the options, and how to build the thing. The objects that records build do the work.
Arguments may be added to hooks in later versions, never changed or removed without notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import pluggy

from ensemble_core.executor import Executor
from ensemble_core.jobs import Job
from ensemble_core.metrics import Statistic, StatisticSpec, TimedStatistic
from ensemble_core.observer import Observer
from ensemble_core.rules import Action, Plan, Rule, Trigger

__all__ = [
    "PROJECT",
    "ActionPlugin",
    "CallContext",
    "ExecutorPlugin",
    "ObserverPlugin",
    "StatisticPlugin",
    "TriggerPlugin",
    "hookimpl",
    "hookspec",
]

PROJECT = "ensemble"

_F = TypeVar("_F", bound=Callable[..., Any])

hookspec: Callable[[_F], _F] = pluggy.HookspecMarker(PROJECT)
#: Marks a function as a hook of a plugin.
hookimpl: Callable[[_F], _F] = pluggy.HookimplMarker(PROJECT)

_NOTHING: Mapping[str, Any] = MappingProxyType({})

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorPlugin:
    """The record of an executor.

    ``options`` is a JSON Schema of an object: what ``--option KEY=VALUE`` and ``--slots`` may set.
    ``build`` is given the checked options. ``capabilities`` are those of the executor it builds.
    ``available`` says whether it can work here and why or why not, without side effects; where no
    executor is named, the available one of highest ``priority`` is used.
    """

    name: str
    summary: str
    build: Callable[[Mapping[str, Any]], Executor]
    capabilities: frozenset[str] = frozenset({"submit", "cancel"})
    options: Schema = field(default_factory=lambda: _NOTHING)
    shared: bool = False
    available: Callable[[], tuple[bool, str]] | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerPlugin:
    """The record of a trigger.

    ``options`` are properties that a rule with this trigger may have beside ``trigger``, ``name``,
    ``when``, ``action`` and the other keys of every rule. ``name_means`` says what the rule's
    ``name`` is: a job group, a metric's path, or nothing (then it is refused). ``fields`` are
    names that the rule's ``when`` may use beside those of every event. ``build`` is given the
    rule's ``name`` and its checked options.
    """

    name: str
    summary: str
    build: Callable[[str | None, Mapping[str, Any]], Trigger]
    options: Schema = field(default_factory=lambda: _NOTHING)
    name_means: Literal["group", "metric"] | None = None
    fields: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a slow action's ``run`` gets.

    ``options`` are the action's checked options, ``event`` the event that led here and ``job`` the
    job it concerns, both as plain data; ``metrics`` reads metrics by path
    (``context.metrics["mean.lammps-duration"]``); ``handle`` is the executor's.
    """

    options: Mapping[str, Any]
    event: Mapping[str, Any]
    rule: Rule
    action: Action
    metrics: Mapping[str, float]
    job: Mapping[str, Any] | None = None
    ensemble: str = ""
    handle: object = None


Outcome = Action | Rule | Iterable[Action | Rule] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPlugin:
    """The record of an action: exactly one of ``run`` and ``plan``.

    ``run`` may be slow (a file, a mail, a remote call): it is called off the engine's thread with a
    :class:`CallContext` and returns ``None``, an action, a rule, or a list of these, which is what
    is then done. ``plan`` is pure and quick, and returns decisions at once.

    ``options`` is a JSON Schema of an object: what may stand beside ``name`` in the file. A
    property may say ``"x-ensemble": "group"`` (or ``rule``, ``metric``, ``function``): its value is
    then checked to name one. ``needs`` are capabilities that the executor must have.
    """

    name: str
    summary: str
    run: Callable[[CallContext], Outcome] | None = None
    plan: Plan | None = None
    options: Schema = field(default_factory=lambda: _NOTHING)
    needs: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticPlugin:
    """The record of a statistic, a streaming reducer: ``NAME.GROUP-VARIABLE``.

    ``build`` is given the checked ``options`` (the file's ``statistics:`` part may set them) and
    returns an object with ``update(value)`` and ``get()``; one whose value depends on when values
    came sets ``timed`` and has ``update(value, timestamp)`` and ``get(timestamp)``. Where that
    depends on the options, ``timed_when`` says so of them. ``default`` statistics are kept for
    every group and variable; others where something asks for them.

    Only finite numbers are handed on, so a statistic need not fear NaN. The objects are copied
    (:func:`copy.deepcopy`) to answer "what if these values came too", and must not look at a clock.
    """

    name: str
    summary: str
    build: Callable[[Mapping[str, Any]], Statistic | TimedStatistic]
    options: Schema = field(default_factory=lambda: _NOTHING)
    timed: bool = False
    default: bool = False
    timed_when: Callable[[Mapping[str, Any]], bool] | None = None

    def spec(self, options: Mapping[str, Any] = _NOTHING, name: str | None = None) -> StatisticSpec:
        """The statistic with these checked options, known as ``name`` (default: its own)."""
        return StatisticSpec(
            name=name or self.name,
            build=partial(self.build, options),
            timed=self.timed or (self.timed_when is not None and self.timed_when(options)),
            default=self.default and name in (None, self.name),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverPlugin:
    """The record of an observer, a reader of jobs' output: ``observe: {NAME: {OPTION: …}}``.

    ``build`` is given the job and its checked options. ``variables``, given the options, are the
    names of the values it can yield, so that a misspelt metric path is refused; ``None`` means that
    this cannot be known before.
    """

    name: str
    summary: str
    build: Callable[[Job, Mapping[str, Any]], Observer]
    options: Schema = field(default_factory=lambda: _NOTHING)
    variables: Callable[[Mapping[str, Any]], frozenset[str] | None] | None = None


@hookspec
def ensemble_executors() -> Iterable[ExecutorPlugin]:  # type: ignore[empty-body]
    """Executors: adapters to a queue."""


@hookspec
def ensemble_triggers() -> Iterable[TriggerPlugin]:  # type: ignore[empty-body]
    """Triggers: what wakes a rule."""


@hookspec
def ensemble_actions() -> Iterable[ActionPlugin]:  # type: ignore[empty-body]
    """Actions: what a rule does."""


@hookspec
def ensemble_metrics() -> Iterable[StatisticPlugin]:  # type: ignore[empty-body]
    """Statistics: streaming reducers over a variable of a job group."""


@hookspec
def ensemble_observers() -> Iterable[ObserverPlugin]:  # type: ignore[empty-body]
    """Observers: readers of jobs' output."""
