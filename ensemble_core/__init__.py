"""Ensemble runs many jobs steered by rules: events in, decisions out.

These are the public names, for plugins and for functions in ensemble files. They are imported when
first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # For type checkers only: at run time ``plugin/known_distributions.json`` says where it is.
    from ensemble_service.client import ServiceClient

    from ensemble_core.errors import (
        EnsembleError,
        ExecutorError,
        FileErrors,
        Location,
        PluginError,
        UsageError,
    )
    from ensemble_core.journal.filesystem import shared_storage
    from ensemble_core.metrics.series import Statistic, TimedStatistic
    from ensemble_core.metrics.store import MetricsView
    from ensemble_core.model.decisions import Decision, WhenBusy
    from ensemble_core.model.events import (
        Event,
        ExecutorLost,
        JobEvent,
        Observed,
        PluginEvent,
        Problem,
        ResizeOutcome,
        Resources,
    )
    from ensemble_core.model.expressions import Expression, expression
    from ensemble_core.model.jobs import Job, JobGroup, JobState
    from ensemble_core.model.rules import Action, Firing, Rule, Trigger
    from ensemble_core.plugin.discovery import executor_record
    from ensemble_core.plugin.executor import Emit, Executor, Run
    from ensemble_core.plugin.hookspecs import (
        ActionPlugin,
        CallContext,
        ExecutorPlugin,
        ObserverPlugin,
        ResizerPlugin,
        StatisticPlugin,
        TriggerPlugin,
        hookimpl,
    )
    from ensemble_core.plugin.observer import Observer, Row
    from ensemble_core.plugin.resizer import Resized, Resizer

    __version__: str
else:
    _HOMES = {
        "model.decisions": ("Decision", "WhenBusy"),
        "errors": (
            "EnsembleError",
            "ExecutorError",
            "FileErrors",
            "Location",
            "PluginError",
            "UsageError",
        ),
        "model.events": (
            "Event",
            "ExecutorLost",
            "JobEvent",
            "Observed",
            "PluginEvent",
            "Problem",
            "ResizeOutcome",
            "Resources",
        ),
        "plugin.executor": ("Emit", "Executor", "Run"),
        "model.expressions": ("Expression", "expression"),
        "plugin.hookspecs": (
            "ActionPlugin",
            "CallContext",
            "ExecutorPlugin",
            "ObserverPlugin",
            "ResizerPlugin",
            "StatisticPlugin",
            "TriggerPlugin",
            "hookimpl",
        ),
        "model.jobs": ("Job", "JobGroup", "JobState"),
        "metrics.store": ("MetricsView",),
        "metrics.series": ("Statistic", "TimedStatistic"),
        "plugin.observer": ("Observer", "Row"),
        "plugin.discovery": ("executor_record",),
        "plugin.resizer": ("Resized", "Resizer"),
        "model.rules": ("Action", "Firing", "Rule", "Trigger"),
        "journal.filesystem": ("shared_storage",),
    }
    _HOME = {name: home for home, names in _HOMES.items() for name in names}

    def __getattr__(name):
        from importlib import import_module

        if name in _HOME:
            value = getattr(import_module(f"ensemble_core.{_HOME[name]}"), name)
        elif name == "__version__":
            from importlib.metadata import version

            value = version("ensemble-core")
        elif name == "__all__":  # for "import *", which cannot do without one of them
            from ensemble_core.plugin.known import is_missing

            value = [each for each in _PUBLIC if each in _HOME or not is_missing(each)]
        elif name in _PUBLIC:
            from ensemble_core.plugin.known import import_public

            value = import_public(name)
        else:
            raise AttributeError(f"module 'ensemble_core' has no attribute {name!r}")
        if name != "__all__":
            globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__getattr__("__all__")})


__all__ = [
    "Action",
    "ActionPlugin",
    "CallContext",
    "Decision",
    "Emit",
    "EnsembleError",
    "Event",
    "Executor",
    "ExecutorError",
    "ExecutorLost",
    "ExecutorPlugin",
    "Expression",
    "FileErrors",
    "Firing",
    "Job",
    "JobEvent",
    "JobGroup",
    "JobState",
    "Location",
    "MetricsView",
    "Observed",
    "Observer",
    "ObserverPlugin",
    "PluginError",
    "PluginEvent",
    "Problem",
    "ResizeOutcome",
    "Resized",
    "Resizer",
    "ResizerPlugin",
    "Resources",
    "Row",
    "Rule",
    "Run",
    "ServiceClient",
    "Statistic",
    "StatisticPlugin",
    "TimedStatistic",
    "Trigger",
    "TriggerPlugin",
    "UsageError",
    "WhenBusy",
    "__version__",
    "executor_record",
    "expression",
    "hookimpl",
    "shared_storage",
]

if not TYPE_CHECKING:
    _PUBLIC = __all__
    del __all__  # what is there of it depends on what is installed
