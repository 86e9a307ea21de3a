"""``ensemble set RUN [GROUP] FIELD=VALUE…``: changes a job group, or limits, of a live run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ensemble_core.cli.control_requests import given_fields, request
from ensemble_core.cli.name_completion import settable
from ensemble_core.cli.options import complete_names, json_option, run_argument, state_option
from ensemble_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ensemble_core.session.kept_run import KeptRun


def _names(kept: KeptRun, changes: Sequence[str]) -> list[str]:
    """Return what can follow: after a group its fields, otherwise groups and limits."""
    if changes and changes[-1] == "=":
        return []  # a value, in a shell whose words end at this sign
    group = changes[0] if changes and not changes[0].startswith("limits.") else None
    return settable(kept, group)


@click.command()
@run_argument
@click.argument(
    "changes",
    metavar="[GROUP] FIELD=VALUE...",
    nargs=-1,
    required=True,
    shell_complete=complete_names(_names, "changes"),
)
@state_option
@json_option
def set(run: str, changes: tuple[str, ...], state: str | None, as_json: bool) -> int:  # noqa: A001 - name of the command
    """Change fields of a job group, or limits, of a live run.

    Jobs that are not in the queue yet, and further attempts, get the fields, such as nodes=4
    duration=10m. The fields at_once, uses and retry (retry.times=6) apply to all jobs that are not
    over. Without GROUP, limits of the run change: limits.core_hours=500. The run's journal records
    who made the request.
    """
    group, *fields = changes
    if "=" in group:
        group, fields = "", [*changes]
    values = given_fields(fields, "nodes=4" if group else "limits.core_hours=500")
    if group and "limits" not in values:
        if not fields:
            raise UsageError(
                f"nothing to set in {group!r}", hint="for example: nodes=4", code="bad-override"
            )
        return request(run, state, as_json, {"name": "set", "label": group, "with": values})
    if group or values.keys() != {"limits"}:
        other = next((each for each in values if each != "limits"), "")
        raise UsageError(
            f"{other!r} is not a limit of the run"
            if not group
            else f"limits are those of the run, not of {group!r}",
            hint="write 'ensemble set RUN GROUP FIELD=VALUE' or "
            "'ensemble set RUN limits.NAME=VALUE'",
            code="bad-override",
        )
    return request(run, state, as_json, {"name": "set", **values})
