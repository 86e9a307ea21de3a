"""Ensemble: runs many jobs on HPC queues and steers them by rules.

Programs import the public names from this package. The code of a name is loaded at its first use,
because importing everything would be slow.
"""

from __future__ import annotations

TYPE_CHECKING = False  # like typing.TYPE_CHECKING; importing typing takes too long
if TYPE_CHECKING:
    from ensemble_core.api.handle import EnsembleRun as EnsembleRun
    from ensemble_core.api.rows import Rows as Rows
    from ensemble_core.api.start import load as load
    from ensemble_core.api.start import open_run as open_run
    from ensemble_core.api.start import run as run
    from ensemble_core.config.document import Document as Document
    from ensemble_core.config.yaml_reader import read_yaml as read_yaml
    from ensemble_core.errors import EnsembleError as EnsembleError
    from ensemble_core.errors import ExecutorError as ExecutorError
    from ensemble_core.errors import FileErrors as FileErrors
    from ensemble_core.errors import Location as Location
    from ensemble_core.errors import PluginError as PluginError
    from ensemble_core.errors import UsageError as UsageError
    from ensemble_core.errors import closest as closest
    from ensemble_core.errors import did_you_mean as did_you_mean
    from ensemble_core.errors import no_such as no_such
    from ensemble_core.errors import raised_at as raised_at
    from ensemble_core.metrics.series import Statistic as Statistic
    from ensemble_core.metrics.series import TimedStatistic as TimedStatistic
    from ensemble_core.metrics.store import MetricsView as MetricsView
    from ensemble_core.model.causes import CAUSES as CAUSES
    from ensemble_core.model.causes import ENVIRONMENT_FAILED as ENVIRONMENT_FAILED
    from ensemble_core.model.causes import Cause as Cause
    from ensemble_core.model.decisions import Decision as Decision
    from ensemble_core.model.decisions import WhenBusy as WhenBusy
    from ensemble_core.model.events import Event as Event
    from ensemble_core.model.events import ExecutorLost as ExecutorLost
    from ensemble_core.model.events import JobEvent as JobEvent
    from ensemble_core.model.events import Observed as Observed
    from ensemble_core.model.events import PluginEvent as PluginEvent
    from ensemble_core.model.events import Problem as Problem
    from ensemble_core.model.events import ResizeOutcome as ResizeOutcome
    from ensemble_core.model.events import Resources as Resources
    from ensemble_core.model.expressions import Expression as Expression
    from ensemble_core.model.expressions import expression as expression
    from ensemble_core.model.generators import Constraint as Constraint
    from ensemble_core.model.generators import Exchange as Exchange
    from ensemble_core.model.generators import Generator as Generator
    from ensemble_core.model.generators import Point as Point
    from ensemble_core.model.generators import Reading as Reading
    from ensemble_core.model.generators import Variable as Variable
    from ensemble_core.model.generators import Vocs as Vocs
    from ensemble_core.model.job_group import JobGroup as JobGroup
    from ensemble_core.model.jobs import Job as Job
    from ensemble_core.model.jobs import JobState as JobState
    from ensemble_core.model.numbers import as_text as as_text
    from ensemble_core.model.numbers import read_number as read_number
    from ensemble_core.model.placeholders import escape_braces as escape_braces
    from ensemble_core.model.placeholders import unescape_braces as unescape_braces
    from ensemble_core.model.rules import Action as Action
    from ensemble_core.model.rules import Firing as Firing
    from ensemble_core.model.rules import Rule as Rule
    from ensemble_core.model.rules import Trigger as Trigger
    from ensemble_core.plugin.discovery import executor_record as executor_record
    from ensemble_core.plugin.discovery import observer_record as observer_record
    from ensemble_core.plugin.executor import Emit as Emit
    from ensemble_core.plugin.executor import Executor as Executor
    from ensemble_core.plugin.executor import Rendered as Rendered
    from ensemble_core.plugin.executor import Run as Run
    from ensemble_core.plugin.executor import VirtualAnswer as VirtualAnswer
    from ensemble_core.plugin.executor import VirtualExecutor as VirtualExecutor
    from ensemble_core.plugin.executor import VirtualPilots as VirtualPilots
    from ensemble_core.plugin.executor import VirtualTurn as VirtualTurn
    from ensemble_core.plugin.executor import check_new as check_new
    from ensemble_core.plugin.executor import job_environment as job_environment
    from ensemble_core.plugin.executor import shell_line as shell_line
    from ensemble_core.plugin.executor import start_folder as start_folder
    from ensemble_core.plugin.executor import wrong_command as wrong_command
    from ensemble_core.plugin.hookspecs import ActionPlugin as ActionPlugin
    from ensemble_core.plugin.hookspecs import AlgorithmPlugin as AlgorithmPlugin
    from ensemble_core.plugin.hookspecs import AlgorithmView as AlgorithmView
    from ensemble_core.plugin.hookspecs import CallContext as CallContext
    from ensemble_core.plugin.hookspecs import EnvironmentPlugin as EnvironmentPlugin
    from ensemble_core.plugin.hookspecs import ExecutorPlugin as ExecutorPlugin
    from ensemble_core.plugin.hookspecs import Fragment as Fragment
    from ensemble_core.plugin.hookspecs import GeneratorPlugin as GeneratorPlugin
    from ensemble_core.plugin.hookspecs import ObserverPlugin as ObserverPlugin
    from ensemble_core.plugin.hookspecs import ResizerPlugin as ResizerPlugin
    from ensemble_core.plugin.hookspecs import SourcePlugin as SourcePlugin
    from ensemble_core.plugin.hookspecs import SourceView as SourceView
    from ensemble_core.plugin.hookspecs import StatisticPlugin as StatisticPlugin
    from ensemble_core.plugin.hookspecs import TriggerPlugin as TriggerPlugin
    from ensemble_core.plugin.hookspecs import hookimpl as hookimpl
    from ensemble_core.plugin.observer import UNREADABLE as UNREADABLE
    from ensemble_core.plugin.observer import Observer as Observer
    from ensemble_core.plugin.observer import Row as Row
    from ensemble_core.plugin.resizer import Resized as Resized
    from ensemble_core.plugin.resizer import Resizer as Resizer
    from ensemble_core.posix import private_folder as private_folder
    from ensemble_core.posix import shared_storage as shared_storage

    __version__: str
else:
    _HOMES = {
        "api.handle": "EnsembleRun",
        "api.rows": "Rows",
        "api.start": "load open_run run",
        "config.document": "Document",
        "config.yaml_reader": "read_yaml",
        "errors": (
            "EnsembleError ExecutorError FileErrors Location PluginError UsageError closest "
            "did_you_mean no_such raised_at"
        ),
        "metrics.series": "Statistic TimedStatistic",
        "metrics.store": "MetricsView",
        "model.causes": "CAUSES ENVIRONMENT_FAILED Cause",
        "model.decisions": "Decision WhenBusy",
        "model.events": (
            "Event ExecutorLost JobEvent Observed PluginEvent Problem ResizeOutcome Resources"
        ),
        "model.expressions": "Expression expression",
        "model.generators": "Constraint Exchange Generator Point Reading Variable Vocs",
        "model.job_group": "JobGroup",
        "model.jobs": "Job JobState",
        "model.numbers": "as_text read_number",
        "model.placeholders": "escape_braces unescape_braces",
        "model.rules": "Action Firing Rule Trigger",
        "plugin.discovery": "executor_record observer_record",
        "plugin.executor": (
            "Emit Executor Rendered Run VirtualAnswer VirtualExecutor VirtualPilots VirtualTurn "
            "check_new job_environment shell_line start_folder wrong_command"
        ),
        "plugin.hookspecs": (
            "ActionPlugin AlgorithmPlugin AlgorithmView CallContext EnvironmentPlugin "
            "ExecutorPlugin Fragment GeneratorPlugin ObserverPlugin ResizerPlugin "
            "SourcePlugin SourceView StatisticPlugin TriggerPlugin hookimpl"
        ),
        "plugin.observer": "UNREADABLE Observer Row",
        "plugin.resizer": "Resized Resizer",
        "posix": "private_folder shared_storage",
    }
    _HOME = {name: home for home, names in _HOMES.items() for name in names.split()}
    __all__ = sorted([*_HOME, "__version__"])

    def __getattr__(name):
        from importlib import import_module

        if name in _HOME:
            value = getattr(import_module(f"ensemble_core.{_HOME[name]}"), name)
        elif name == "__version__":
            from importlib.metadata import version

            value = version("ensemble-core")
        else:
            raise AttributeError(f"module 'ensemble_core' has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
