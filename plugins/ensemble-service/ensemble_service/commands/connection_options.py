"""Options for reaching the ensemble service, shared by ``ensemble member`` and ``ensemble server``.

``ensemble run``, ``resume`` and ``cancel`` get the same options from the schema of the executor
``remote``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])


def _absolute_path(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the absolute path, which stays valid if the working directory changes."""
    if value is None:
        return None
    if not value.strip():  # an unset shell variable must not select the default
        raise click.BadParameter("the file name is empty.", ctx, param)
    return os.path.abspath(os.path.expanduser(value))


def service_options(function: _F) -> _F:
    """Add ``--host``, ``--port``, ``--token-file``, ``--ca`` and ``--insecure`` to a command."""
    for option in (
        click.option(
            "--insecure",
            is_flag=True,
            help=(
                "Use plaintext to other machines too: anyone on the network path can read the "
                "token."
            ),
        ),
        click.option(
            "--ca",
            metavar="FILE",
            type=click.Path(),
            callback=_absolute_path,
            help=(
                "Certificate authority that must have signed the service's certificate.  [default: "
                "$ENSEMBLE_CA, or the ca.crt of a service on this machine]"
            ),
        ),
        click.option(
            "--token-file",
            metavar="FILE",
            type=click.Path(),
            callback=_absolute_path,
            help=(
                "File with the token.  [default: $ENSEMBLE_TOKEN, or the file $ENSEMBLE_TOKEN_FILE]"
            ),
        ),
        click.option(
            "--port",
            metavar="PORT",
            default=50051,
            show_default=True,
            type=click.IntRange(1, 65535),
            help="Port of the ensemble service.",
        ),
        click.option(
            "--host",
            metavar="HOST",
            default="localhost",
            show_default=True,
            help="Host of the ensemble service.",
        ),
    ):
        function = option(function)
    return function
