"""``ensemble submit RUN GROUP``: submits jobs in a live run."""

from __future__ import annotations

from typing import Any

import click

from ensemble_core.cli.control_requests import given_values, request
from ensemble_core.cli.name_completion import groups, parameters
from ensemble_core.cli.options import complete_names, json_option, run_argument, state_option


@click.command()
@run_argument
@click.argument("group", metavar="GROUP", shell_complete=complete_names(groups))
@click.option(
    "--set",
    "values",
    metavar="NAME=VALUE",
    multiple=True,
    help="A parameter's value or list of values: T=2.5, T=[2.5,2.6]. May be repeated.",
    shell_complete=complete_names(parameters, "group"),
)
@click.option("--count", type=click.IntRange(min=1), help="Number of jobs per combination.")
@state_option
@json_option
def submit(
    run: str,
    group: str,
    values: tuple[str, ...],
    count: int | None,
    state: str | None,
    as_json: bool,
) -> int:
    """Submit jobs in a live run, in addition to those that its rules submit.

    The jobs are those that the file defines for the group; --set replaces the values of a
    parameter. The run's limits apply. The run's journal records who made the request.
    """
    fields: dict[str, Any] = {}
    if values:
        fields["parameters"] = given_values(values, "T=2.5", "--set")
    if count is not None:
        fields["count"] = count
    action = {"name": "submit", "label": group}
    return request(run, state, as_json, {**action, "with": fields} if fields else action)
