"""Options that several commands share, declared once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["executor_option", "plugin_option", "set_option"]

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
