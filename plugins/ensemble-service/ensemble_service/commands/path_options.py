"""Where the service keeps things, as options of several ``ensemble-server`` commands."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ensemble_core.cli.toolkit import state_folder

__all__ = [
    "Finite",
    "service_folder",
    "state_option",
    "tls_folder",
    "tls_option",
    "token_path",
    "tokens_option",
]

_F = TypeVar("_F", bound=Callable[..., Any])

_STATE = "$ENSEMBLE_STATE/service, or below the user's own folder"


class Finite(click.FloatRange):
    """A number within a range. ``nan`` is in none, though no comparison says so."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number that can be meant.", param, ctx)
        return number


def state_option(function: _F) -> _F:
    """``--state DIR``."""
    return click.option(
        "--state",
        metavar="DIR",
        type=click.Path(),
        help=f"Where the service keeps what it needs.  [default: {_STATE}]",
    )(function)


def tls_option(function: _F) -> _F:
    """``--tls-dir DIR``."""
    return click.option(
        "--tls-dir",
        metavar="DIR",
        type=click.Path(),
        help="The folder of the certificates.  [default: tls in the folder of --state]",
    )(function)


def tokens_option(function: _F) -> _F:
    """``--tokens FILE``."""
    return click.option(
        "--tokens",
        metavar="FILE",
        type=click.Path(),
        help="The file of tokens.  [default: tokens.json in the folder of --state]",
    )(function)


def service_folder(given: str | None) -> Path:
    """The service's state folder."""
    if given:
        return Path(given).expanduser().absolute()

    return state_folder(None) / "service"


def tls_folder(given: str | None, state: str | None) -> Path:
    """The folder of the certificates."""
    return Path(given).expanduser().absolute() if given else service_folder(state) / "tls"


def token_path(given: str | None, state: str | None) -> Path:
    """The file of tokens."""
    if given:
        return Path(given).expanduser().absolute()
    return service_folder(state) / "tokens.json"
