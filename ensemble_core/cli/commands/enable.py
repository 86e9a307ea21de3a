"""``ensemble enable RUN RULE…``: switches rules of a run under way on."""

from __future__ import annotations

import click

from ensemble_core.cli.asking import switch_rules
from ensemble_core.cli.options import json_option, run_argument, state_option

__all__ = ["enable"]


@click.command()
@run_argument
@click.argument("rules", metavar="RULE...", nargs=-1, required=True)
@state_option
@json_option
def enable(run: str, rules: tuple[str, ...], state: str | None, as_json: bool) -> int:
    """Switch rules of a run under way on, as the action 'enable' of a rule does.

    The run's journal keeps who asked for it: 'ensemble events' and 'ensemble why' show it.
    """
    return switch_rules("enable", run, rules, state, as_json)
