"""Options and arguments that several commands share, declared once, and the plugins they name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ensemble_core.plugin.registry import Registry

__all__ = [
    "check_display",
    "complete_runs",
    "display_options",
    "executor_option",
    "json_option",
    "key_value_option",
    "load_plugins",
    "plugin_option",
    "run_argument",
    "set_option",
    "state_option",
]

_F = TypeVar("_F", bound=Callable[..., Any])


def plugin_option(function: _F) -> _F:
    """``--plugin FILE``, any number of times."""
    return click.option(
        "--plugin",
        "plugins",
        metavar="FILE",
        multiple=True,
        type=click.Path(),
        help="Load a plugin from a Python file. May be repeated.",
    )(function)


def display_options(function: _F) -> _F:
    """How a run is shown: ``--debug``, ``--quiet``, ``--json``, ``--progress``."""
    for option in (
        click.option(
            "--progress/--no-progress",
            default=None,
            help="Whether to keep a live table on a terminal.  [default: on a terminal]",
        ),
        click.option(
            "--json", "as_json", is_flag=True, help="Print one event or decision a line, as JSON."
        ),
        click.option(
            "-q", "--quiet", is_flag=True, help="Print nothing but errors and failed jobs."
        ),
        click.option("--debug", is_flag=True, help="Print every event."),
    ):
        function = option(function)
    return function


def check_display(*, debug: bool, quiet: bool, as_json: bool) -> None:
    """Refuse what contradicts itself."""
    if quiet and (debug or as_json):
        raise click.UsageError(f"--quiet and --{'debug' if debug else 'json'} exclude each other")


def set_option(function: _F) -> _F:
    """``--set KEY=VALUE``, any number of times."""
    return click.option(
        "--set",
        "overrides",
        metavar="KEY=VALUE",
        multiple=True,
        help="Override a value of the file, for example jobs.sleep.count=3. May be repeated.",
    )(function)


def executor_option(function: _F) -> _F:
    """``--executor NAME``."""
    return click.option(
        "--executor",
        metavar="NAME",
        help="The queue to run on; 'ensemble plugins list' shows which there are.",
    )(function)


def key_value_option(what: str) -> Callable[[_F], _F]:
    """``-o KEY=VALUE``, any number of times, as ``options``: for ``read_options``."""
    return click.option("-o", "--option", "options", metavar="KEY=VALUE", multiple=True, help=what)


state_option = click.option(
    "--state",
    metavar="DIR",
    type=click.Path(),
    help="Where runs are kept.  [default: $ENSEMBLE_STATE, or the user's own folder]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def complete_runs(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The runs that a shell may complete to, newest first."""
    from click.shell_completion import CompletionItem

    from ensemble_core.errors import EnsembleError
    from ensemble_core.journal.run_store import folders, state_folder

    try:
        names = [folder.name for folder in reversed(folders(state_folder(ctx.params.get("state"))))]
    except EnsembleError:
        return []
    return [CompletionItem(name) for name in ["last", *names] if name.startswith(incomplete)]


run_argument = click.argument("run", metavar="RUN", shell_complete=complete_runs)


def load_plugins(files: Sequence[str], *, warn: bool = True) -> Registry:
    """The installed plugins and those in ``files``; what is wrong with any is said once."""
    from ensemble_core.cli.error_format import print_warning
    from ensemble_core.plugin.discovery import discover

    # A file is to be executed once, also where its executors' flags were looked for before.
    ctx = click.get_current_context(silent=True)
    loaded = {} if ctx is None else ctx.meta.setdefault("ensemble.plugins", {})
    registry = loaded.get(tuple(files)) or discover(files)
    loaded[tuple(files)] = registry
    for text in registry.warnings if warn else ():
        print_warning(text)
    return registry
