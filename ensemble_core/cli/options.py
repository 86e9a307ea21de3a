"""Options that several commands share, declared once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = [
    "check_showing",
    "executor_option",
    "plugin_option",
    "set_option",
    "showing_options",
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


def showing_options(function: _F) -> _F:
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


def check_showing(*, debug: bool, quiet: bool, as_json: bool) -> None:
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
