"""Options that say how the ensemble service is reached, of the commands that connect themselves:
``ensemble member start`` and ``ensemble server status``.

``ensemble run``, ``resume`` and ``cancel`` hand the same to the executor: flags that its option
schema marks. Where the authority is looked for by itself, ``channel`` knows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["service_options"]

_F = TypeVar("_F", bound=Callable[..., Any])


def _whole(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A path that means the same in another folder."""
    if value is None:
        return None
    if not value.strip():  # of a variable that is not set: nothing else is to be taken for it
        raise click.BadParameter("it names no file.", ctx, param)
    return os.path.abspath(os.path.expanduser(value))


def service_options(function: _F) -> _F:
    """``--host``, ``--port``, ``--token-file``, ``--ca`` and ``--insecure``, for who connects."""
    for option in (
        click.option(
            "--insecure",
            is_flag=True,
            help="Speak plaintext, also to another machine: everyone on the way can read the "
            "token.",
        ),
        click.option(
            "--ca",
            metavar="FILE",
            type=click.Path(),
            callback=_whole,
            help="The authority to check the service by.  [default: $ENSEMBLE_CA; of a service on "
            "this machine, the ca.crt in its own folder]",
        ),
        click.option(
            "--token-file",
            metavar="FILE",
            type=click.Path(),
            callback=_whole,
            help="A file with the token.  [default: $ENSEMBLE_TOKEN, or the file "
            "$ENSEMBLE_TOKEN_FILE]",
        ),
        click.option(
            "--port",
            metavar="PORT",
            default=50051,
            show_default=True,
            type=click.IntRange(1, 65535),
            help="Its port.",
        ),
        click.option(
            "--host",
            metavar="HOST",
            default="localhost",
            show_default=True,
            help="Where the ensemble service is.",
        ),
    ):
        function = option(function)
    return function
