"""``ensemble version``: prints the installed version."""

from __future__ import annotations

import platform
import sys

import click


def text() -> str:
    """Return the line that ``ensemble version`` and ``ensemble --version`` print."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        number = installed("ensemble-core")
    except PackageNotFoundError:
        number = "(not installed)"
    return f"ensemble {number}, Python {platform.python_version()}, {sys.platform}"


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(text())
