"""The public toolkit for commands of plugins: what ``ensemble``'s own commands are made of.

A plugin brings a command by an entry point of the group ``ensemble.commands`` that names a click
command (``bell = "ensemble_bell.command:bell"``). What it imports of Ensemble is the names of
``ensemble_core``, and those here. Importing this module loads click and little else: what a
function needs beyond that, it imports when it is called.

- **Options**: ``executor_option``, ``key_value_option``, ``plugin_option``, ``state_option``,
  ``json_option``, ``run_argument`` (with ``complete_runs`` for shells). ``load_plugins`` finds the
  plugins, ``choose_executor`` and ``read_options`` make of the options what
  ``build_executor`` and ``build_resizer`` take.
- **A kept run**: ``KeptRun`` opens one by its tag, with its folder, its journal (``JournalRow`` for
  each event and what was decided on it; ``Decision.from_dict`` reads one of these), its ensemble
  and its plugins. ``state_folder`` is where runs are kept. A damaged journal raises
  ``JournalError``.
- **Output**: ``print_line``, ``to_json``, ``format_table``, ``format_time``, ``format_duration``,
  ``format_size``, ``shorten``; ``printable`` for text that came from a job; ``style_of`` says
  whether a stream shows colors, ``terminal_width`` how wide it is.
- **Errors**: raise ``ensemble_core.EnsembleError`` or its ``UsageError``. ``CommandGroup`` is a
  group whose errors, exit codes and suggestions are those of ``ensemble``, for a program of its
  own; ``errors_as_json`` prints errors as JSON too; ``print_error`` and ``print_warning`` go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ensemble_core.cli.command_group import CommandGroup
from ensemble_core.cli.error_format import errors_as_json, print_error, print_warning
from ensemble_core.cli.executor_choice import (
    ExecutorChoice,
    build_executor,
    build_resizer,
    choose_executor,
    read_options,
)
from ensemble_core.cli.json_lines import to_json
from ensemble_core.cli.kept_run import KeptRun
from ensemble_core.cli.options import (
    complete_runs,
    executor_option,
    json_option,
    key_value_option,
    load_plugins,
    plugin_option,
    run_argument,
    state_option,
)
from ensemble_core.cli.text_style import (
    TextStyle,
    format_duration,
    format_size,
    format_table,
    format_time,
    print_line,
    printable,
    shorten,
    style_of,
    terminal_width,
)

if TYPE_CHECKING:
    from ensemble_core.journal.codec import Row as JournalRow
    from ensemble_core.journal.reader import Journal, JournalError
    from ensemble_core.journal.run_store import state_folder
    from ensemble_core.metrics.store import parse_path
    from ensemble_core.model.decisions import AddRule, Fired, Submit
    from ensemble_core.model.ensemble import Ensemble
    from ensemble_core.model.rules import BoundRule
    from ensemble_core.plugin.registry import Registry
else:
    #: Imported when they are used: journals need SQLite, decisions all of the model.
    _LATER = {
        "AddRule": ("model.decisions", "AddRule"),
        "BoundRule": ("model.rules", "BoundRule"),
        "Ensemble": ("model.ensemble", "Ensemble"),
        "Fired": ("model.decisions", "Fired"),
        "Journal": ("journal.reader", "Journal"),
        "JournalError": ("journal.reader", "JournalError"),
        "JournalRow": ("journal.codec", "Row"),
        "Registry": ("plugin.registry", "Registry"),
        "Submit": ("model.decisions", "Submit"),
        "parse_path": ("metrics.store", "parse_path"),
        "state_folder": ("journal.run_store", "state_folder"),
    }

    def __getattr__(name):
        from importlib import import_module

        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home, known_as = _LATER[name]
        value = getattr(import_module(f"ensemble_core.{home}"), known_as)
        globals()[name] = value
        return value


__all__ = [
    "AddRule",
    "BoundRule",
    "CommandGroup",
    "Ensemble",
    "ExecutorChoice",
    "Fired",
    "Journal",
    "JournalError",
    "JournalRow",
    "KeptRun",
    "Registry",
    "Submit",
    "TextStyle",
    "build_executor",
    "build_resizer",
    "choose_executor",
    "complete_runs",
    "errors_as_json",
    "executor_option",
    "format_duration",
    "format_size",
    "format_table",
    "format_time",
    "json_option",
    "key_value_option",
    "load_plugins",
    "parse_path",
    "plugin_option",
    "print_error",
    "print_line",
    "print_warning",
    "printable",
    "read_options",
    "run_argument",
    "shorten",
    "state_folder",
    "state_option",
    "style_of",
    "terminal_width",
    "to_json",
]
