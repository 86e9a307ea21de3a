"""Implements ``ensemble validate --resolved``: prints the values of a run and their sources."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from ensemble_core import config
from ensemble_core.config.file_text import read
from ensemble_core.config.listed_sources import BUILT_IN, ResolvedValue
from ensemble_core.config.schema import defaults
from ensemble_core.display.text_style import format_table, print_line, printable, style_of
from ensemble_core.model.option_values import leaves

if TYPE_CHECKING:
    from ensemble_core.plugin.registry import Registry
    from ensemble_core.session.executor_choice import ExecutorChoice


def print_resolved(
    file: str,
    registry: Registry,
    choice: ExecutorChoice,
    *,
    named: bool,
    flags: Collection[str],
    overrides: Sequence[str],
    allow_idle: bool,
    as_json: bool,
) -> int:
    """Print the values. Raises :class:`EnsembleError` for an invalid file.

    ``named`` says whether the executor was given on the command line, and ``flags`` which of its
    options were.
    """
    text = read(file)
    ensemble = config.load_text(
        text,
        registry,
        file=file,
        executor=choice.record,
        options=choice.options,
        overrides=list(overrides),
        must_begin=not allow_idle,
        profile=choice.profile,
    )
    for warning in ensemble.warnings:
        click.echo(style_of(sys.stderr).warning(printable(warning)), err=True)
    values = [
        *_executor_values(choice, named, flags),
        *config.resolved(
            text,
            registry,
            file=file,
            overrides=list(overrides),
            attached=ensemble.attached,
            profile=choice.profile,
        ),
    ]
    if as_json:
        rows = [{"key": key, "value": value, "source": source} for key, value, source, _ in values]
        profile = choice.profile.name if choice.profile else None
        click.echo(json.dumps({"profile": profile, "values": rows}, indent=2))
        return 0
    print_line(f"profile: {choice.profile.name if choice.profile else 'none'}")
    for line in format_table([(each.key, each.shown, each.source) for each in values]):
        print_line(printable(line))
    return 0


def _executor_values(
    choice: ExecutorChoice, named: bool, flags: Collection[str]
) -> Iterator[ResolvedValue]:
    profile, source = choice.profile, "--executor" if named else BUILT_IN
    if not named and profile is not None and profile.executor is not None:
        source = str(profile.at("executor"))
    yield ResolvedValue.of("executor", choice.name, source)
    for path, value in leaves(defaults(choice.record.options, choice.options)):
        source = BUILT_IN
        if path[0] in flags:
            source = "-o"
        elif path[0] in choice.options and profile is not None:
            source = str(profile.at("options", *path))
        yield ResolvedValue.of(".".join(("options", *path)), value, source)
