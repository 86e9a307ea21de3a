"""Public functions and classes for plugins that add commands to ``ensemble``.

A plugin adds a command with an entry point of the group ``ensemble.commands`` that names a click
command (``bell = "ensemble_bell.command:bell"``). The command may import the public names of
``ensemble_core`` and the names below.

- **Options**: use ``executor_option``, ``key_value_option``, ``plugin_option``, ``state_option``,
  ``json_option``, ``wall_option`` and ``run_argument`` (with ``complete_runs`` for shells).
  ``load_plugins`` finds the plugins. ``choose_executor`` and ``read_options`` convert options to
  arguments of ``build_executor`` and ``build_resizer``. ``rendered`` returns a job as its executor
  would submit it. ``find_profile`` returns a ``Profile`` for ``choose_executor`` and ``load_text``.
- **A stored run**: ``KeptRun`` opens a run by its tag, with its folder, journal, ensemble and
  plugins. A ``JournalRow`` is an event with its decisions; ``Decision.from_dict`` parses a
  decision. ``RunningTime`` sums how long a job ran, from its events. ``state_folder`` is the folder
  of all runs. A damaged journal raises ``JournalError``.
- **Why a rule fired**: ``Replay`` replays the events of a stored run. A ``RuleStory`` is the
  history of one rule. A ``RuleSpan`` summarizes events to which the rule reacted in the same way.
  ``describe_rule``, ``describe_span``, ``conclude`` (for one rule) and ``conclusions`` (for
  several) return texts.
- **An ensemble file**: ``load_file`` and ``load_text`` return an ``Ensemble``, or raise all errors
  with their positions. ``write_yaml`` converts data to YAML text. ``read_file`` reads a text file.
  ``option_defaults`` completes options by their schema. ``parse_duration`` parses a duration,
  and ``parse_size`` an amount of memory.
  ``is_private`` tells whether only the user can write to a file.
- **Another YAML file**: ``read_document`` returns a document: plain data with positions. A
  ``Context`` has the document, its schemas (``Validators``) and names (``Known``), and collects
  errors by the path of the value (``DocumentPath``). ``shown`` quotes a value in messages.
- **A run**: ``run_text`` runs a generated ensemble file like ``ensemble run``; ``resume_instead``
  implements ``--or-resume``.
- **A plugin's own runtime**, such as a simulation without a queue: ``RunSession`` displays a
  ``PreparedRun``, and ``ControlledRun`` stores it under a ``new_tag``. ``fit_tag`` turns a name
  into a valid tag. A ``Watcher`` receives the events of the run.
- **Python code in an ensemble file**: call ``require_code(ensemble, purpose)`` before a simulation
  or test. Pass the ``Purpose`` 'rehearse' if the user has allowed the code (``--run-code``),
  otherwise 'check', which raises an error if the code is needed.
- **Output**: use ``print_line``, ``to_json``, ``format_table``, ``format_time``,
  ``format_duration``, ``format_times``, ``format_size``, ``count_of`` and ``shorten``. Use
  ``printable`` for text from a job, ``style_of`` for the colors of a stream, and ``terminal_width``
  for its width. ``replace_file`` writes the file of an option such as ``-o``.
- **Errors**: raise ``ensemble_core.EnsembleError`` or its subclass ``UsageError``. ``CommandGroup``
  gives a plugin's own program the errors, exit codes and suggestions of ``ensemble``.
  ``errors_as_json`` also prints errors as JSON. ``print_error`` and ``print_warning`` print a
  message and continue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ensemble_core.cli.command_group import CommandGroup as CommandGroup
from ensemble_core.cli.error_format import errors_as_json as errors_as_json
from ensemble_core.cli.error_format import print_error as print_error
from ensemble_core.cli.error_format import print_warning as print_warning
from ensemble_core.cli.json_output import to_json as to_json
from ensemble_core.cli.options import Display as Display
from ensemble_core.cli.options import KeptRun as KeptRun
from ensemble_core.cli.options import complete_runs as complete_runs
from ensemble_core.cli.options import display_options as display_options
from ensemble_core.cli.options import executor_option as executor_option
from ensemble_core.cli.options import json_option as json_option
from ensemble_core.cli.options import key_value_option as key_value_option
from ensemble_core.cli.options import load_plugins as load_plugins
from ensemble_core.cli.options import plugin_option as plugin_option
from ensemble_core.cli.options import run_argument as run_argument
from ensemble_core.cli.options import set_option as set_option
from ensemble_core.cli.options import state_option as state_option
from ensemble_core.cli.options import wall_option as wall_option
from ensemble_core.cli.replaced_file import replace_file as replace_file
from ensemble_core.display.text_style import TextStyle as TextStyle
from ensemble_core.display.text_style import count_of as count_of
from ensemble_core.display.text_style import format_duration as format_duration
from ensemble_core.display.text_style import format_size as format_size
from ensemble_core.display.text_style import format_table as format_table
from ensemble_core.display.text_style import format_time as format_time
from ensemble_core.display.text_style import format_times as format_times
from ensemble_core.display.text_style import print_line as print_line
from ensemble_core.display.text_style import printable as printable
from ensemble_core.display.text_style import shorten as shorten
from ensemble_core.display.text_style import style_of as style_of
from ensemble_core.display.text_style import terminal_width as terminal_width
from ensemble_core.display.why_not_fired import why_not_fired as why_not_fired
from ensemble_core.session.executor_choice import ExecutorChoice as ExecutorChoice
from ensemble_core.session.executor_choice import build_executor as build_executor
from ensemble_core.session.executor_choice import build_resizer as build_resizer
from ensemble_core.session.executor_choice import choose_executor as choose_executor
from ensemble_core.session.executor_choice import read_options as read_options
from ensemble_core.session.executor_choice import rendered as rendered
from ensemble_core.session.profile_files import find_profile as find_profile

if TYPE_CHECKING:
    from ensemble_core.cli.commands.run import run_text as run_text
    from ensemble_core.cli.run_or_resume import resume_instead as resume_instead
    from ensemble_core.cli.run_session import RunSession as RunSession
    from ensemble_core.cli.why_text import Span, Story
    from ensemble_core.cli.why_text import conclude as conclude
    from ensemble_core.cli.why_text import conclusions as conclusions
    from ensemble_core.cli.why_text import describe_rule as describe_rule
    from ensemble_core.cli.why_text import describe_span as describe_span
    from ensemble_core.config.context import Context as Context
    from ensemble_core.config.context import Known as Known
    from ensemble_core.config.document import Document as Document
    from ensemble_core.config.document import Path
    from ensemble_core.config.document import shown as shown
    from ensemble_core.config.file_text import read_file as read_file
    from ensemble_core.config.loading import load
    from ensemble_core.config.loading import load_text as load_text
    from ensemble_core.config.profile import Profile as Profile
    from ensemble_core.config.schema import Validators as Validators
    from ensemble_core.config.schema import option_defaults as option_defaults
    from ensemble_core.config.yaml_reader import read_document as read_document
    from ensemble_core.config.yaml_reader import write_yaml as write_yaml
    from ensemble_core.journal.event_encoding import JournalRow as JournalRow
    from ensemble_core.journal.reader import Journal as Journal
    from ensemble_core.journal.reader import JournalError as JournalError
    from ensemble_core.journal.replay import Replay as Replay
    from ensemble_core.journal.run_folder import is_private as is_private
    from ensemble_core.journal.run_store import find_run as find_run
    from ensemble_core.journal.run_store import fit_tag as fit_tag
    from ensemble_core.journal.run_store import new_tag as new_tag
    from ensemble_core.journal.run_store import run_folders as run_folders
    from ensemble_core.journal.run_store import state_folder as state_folder
    from ensemble_core.metrics.store import parse_path as parse_path
    from ensemble_core.model.byte_sizes import memory_bytes
    from ensemble_core.model.decisions import AddRule as AddRule
    from ensemble_core.model.decisions import Call as Call
    from ensemble_core.model.decisions import Cancel as Cancel
    from ensemble_core.model.decisions import Fail as Fail
    from ensemble_core.model.decisions import Fired as Fired
    from ensemble_core.model.decisions import Submit as Submit
    from ensemble_core.model.durations import seconds
    from ensemble_core.model.ensemble import Ensemble as Ensemble
    from ensemble_core.model.jobs import RunningTime as RunningTime
    from ensemble_core.model.rules import BoundRule as BoundRule
    from ensemble_core.plugin.registry import Registry as Registry
    from ensemble_core.plugin.untrusted_code import Purpose as Purpose
    from ensemble_core.plugin.untrusted_code import require_code as require_code
    from ensemble_core.runtime.watcher import Outcome as Outcome
    from ensemble_core.runtime.watcher import Watcher as Watcher
    from ensemble_core.session.controlled_run import ControlledRun as ControlledRun
    from ensemble_core.session.inspection import Inspection as Inspection
    from ensemble_core.session.prepared_run import PreparedRun as PreparedRun

    DocumentPath = Path
    RuleSpan = Span
    RuleStory = Story
    load_file, parse_duration, parse_size = load, seconds, memory_bytes
else:
    #: Names that are imported when they are first used, because journals need SQLite and decisions
    #: need the whole model. ``NAME=ORIGINAL`` means that the module calls this name ORIGINAL.
    _HOMES = {
        "ensemble_core.cli.run_or_resume": "resume_instead",
        "ensemble_core.cli.commands.run": "run_text",
        "ensemble_core.session.prepared_run": "PreparedRun",
        "ensemble_core.session.controlled_run": "ControlledRun",
        "ensemble_core.cli.run_session": "RunSession",
        "ensemble_core.cli.why_text": (
            "RuleSpan=Span RuleStory=Story conclude conclusions describe_rule describe_span"
        ),
        "ensemble_core.config.context": "Context Known",
        "ensemble_core.config.document": "Document DocumentPath=Path shown",
        "ensemble_core.config.loading": "load_file=load load_text",
        "ensemble_core.config.profile": "Profile",
        "ensemble_core.config.yaml_reader": "read_document write_yaml",
        "ensemble_core.config.schema": "Validators option_defaults",
        "ensemble_core.config.file_text": "read_file",
        "ensemble_core.journal.event_encoding": "JournalRow",
        "ensemble_core.journal.run_folder": "is_private",
        "ensemble_core.journal.reader": "Journal JournalError",
        "ensemble_core.journal.replay": "Replay",
        "ensemble_core.journal.run_store": "find_run fit_tag new_tag run_folders state_folder",
        "ensemble_core.session.inspection": "Inspection",
        "ensemble_core.metrics.store": "parse_path",
        "ensemble_core.model.decisions": "AddRule Call Cancel Fail Fired Submit",
        "ensemble_core.model.durations": "parse_duration=seconds",
        "ensemble_core.model.ensemble": "Ensemble",
        "ensemble_core.model.rules": "BoundRule",
        "ensemble_core.model.jobs": "RunningTime",
        "ensemble_core.model.byte_sizes": "parse_size=memory_bytes",
        "ensemble_core.plugin.untrusted_code": "Purpose require_code",
        "ensemble_core.plugin.registry": "Registry",
        "ensemble_core.runtime.watcher": "Outcome Watcher",
    }
    _HOME = {
        name: (home, there or name)
        for home, names in _HOMES.items()
        for name, _, there in (each.partition("=") for each in names.split())
    }

    def __getattr__(name):
        from importlib import import_module

        if name in _HOME:
            home, there = _HOME[name]
            value = getattr(import_module(home), there)
            globals()[name] = value
            return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
