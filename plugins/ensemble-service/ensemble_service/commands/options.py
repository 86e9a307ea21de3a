"""Options that several commands share: where the service is, and where it keeps its files.

``ensemble run``, ``resume`` and ``cancel`` get the options for reaching the service from the schema
of the executor ``remote``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ensemble_core.cli.toolkit import state_folder

_F = TypeVar("_F", bound=Callable[..., Any])

_STATE = "$ENSEMBLE_STATE/service, or the user's state folder"


class Finite(click.FloatRange):
    """Click type of a finite number within a range."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


state_option = click.option(
    "--state",
    metavar="DIR",
    type=click.Path(),
    help=f"Folder for the service's state.  [default: {_STATE}]",
)


tls_option = click.option(
    "--tls-dir",
    metavar="DIR",
    type=click.Path(),
    help="Folder for the certificates.  [default: tls in the folder of --state]",
)


tokens_option = click.option(
    "--tokens",
    metavar="FILE",
    type=click.Path(),
    help="File with the tokens.  [default: tokens.json in the folder of --state]",
)


def service_folder(given: str | None) -> Path:
    """Return the service's state folder."""
    if given:
        return Path(given).expanduser().absolute()

    return state_folder(None) / "service"


def tls_folder(given: str | None, state: str | None) -> Path:
    """Return the folder of the certificates."""
    return Path(given).expanduser().absolute() if given else service_folder(state) / "tls"


def token_path(given: str | None, state: str | None) -> Path:
    """Return the file of tokens."""
    if given:
        return Path(given).expanduser().absolute()
    return service_folder(state) / "tokens.json"


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
