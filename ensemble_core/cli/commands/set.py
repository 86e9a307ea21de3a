"""``ensemble set RUN GROUP FIELD=VALUE…``: changes a job group in a live run."""

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
def set(  # noqa: A001 - name of the command
    run: str, group: str, fields: tuple[str, ...], state: str | None, as_json: bool
) -> int:
    """Change fields of a job group in a live run, like the action 'set'.

    Jobs that are submitted later get these fields, such as nodes=4 duration=10m. The run's journal
    records who made the request.
    """
    values = given_values(fields, "nodes=4")
    return request(run, state, as_json, {"name": "set", "label": group, "with": values})
