"""How the ensemble service is reached, as options of every command that asks it.

``ensemble run``, ``resume`` and ``cancel`` hand them to the executor, whose options have the same
names; ``ensemble member start`` and ``ensemble-server status`` connect themselves. Where the
authority is looked for by itself, ``service.channel`` knows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["reaching_options", "service_options", "told"]

_F = TypeVar("_F", bound=Callable[..., Any])


def _whole(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A path that means the same in another folder: a run may be taken up again elsewhere."""
    if value is None:
        return None
    if not value.strip():  # of a variable that is not set: nothing else is to be taken for it
        raise click.BadParameter("it names no file.", ctx, param)
    return os.path.abspath(os.path.expanduser(value))


def _options(function: _F, *, host: str | None, port: int | None) -> _F:
    shown = host is not None
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
            default=port,
            show_default=shown,
            type=click.IntRange(1, 65535),
            help="Its port.",
        ),
        click.option(
            "--host",
            metavar="HOST",
            default=host,
            show_default=shown,
            help="Where the ensemble service is.",
        ),
    ):
        function = option(function)
    return function


def service_options(function: _F) -> _F:
    """``--host``, ``--port``, ``--token-file``, ``--ca`` and ``--insecure``, for who connects."""
    return _options(function, host="localhost", port=50051)


def reaching_options(function: _F) -> _F:
    """The same without defaults, for who hands them to an executor: it has its own."""
    return _options(function, host=None, port=None)


def told(**given: object) -> dict[str, object]:
    """Of these options those that were said: for ``choose.read_options``."""
    return {name: value for name, value in given.items() if value not in (None, False)}
