"""Options that say where the service keeps its files, shared by ``ensemble-server`` commands."""

from __future__ import annotations

import math
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
