"""``ensemble set RUN GROUP FIELD=VALUE…``: changes a job group of a run under way."""

from __future__ import annotations

import click

from ensemble_core.cli.control_requests import given_values, request
from ensemble_core.cli.options import json_option, run_argument, state_option

__all__ = ["set"]


@click.command()
@run_argument
@click.argument("group", metavar="GROUP")
@click.argument("fields", metavar="FIELD=VALUE...", nargs=-1, required=True)
@state_option
@json_option
def set(  # noqa: A001 - the command is called so
    run: str, group: str, fields: tuple[str, ...], state: str | None, as_json: bool
) -> int:
    """Change a job group of a run under way, as the action 'set' of a rule does.

    Jobs that are submitted from then on have these fields: nodes=4 duration=10m. The run's journal
    keeps who asked for it.
    """
    values = given_values(fields, "nodes=4")
    return request(run, state, as_json, {"name": "set", "label": group, "with": values})
