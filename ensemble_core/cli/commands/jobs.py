"""``ensemble jobs RUN``: lists the jobs of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import click

from ensemble_core.cli.error_format import errors_as_json, usage_errors
from ensemble_core.cli.name_completion import groups
from ensemble_core.cli.options import KeptRun, complete_names, run_argument, state_option
from ensemble_core.cli.table_output import output_options, write_table
from ensemble_core.display.column_types import Batch
from ensemble_core.errors import UsageError
from ensemble_core.journal.job_rows import TIMES
from ensemble_core.model import conditions
from ensemble_core.model.causes import CAUSES
from ensemble_core.model.conditions import Condition
from ensemble_core.model.expressions import check_names


@click.command()
@run_argument
@state_option
@click.option(
    "--group",
    metavar="GROUP",
    help="Only jobs of this group.",
    shell_complete=complete_names(groups),
)
@click.option(
    "--outcome",
    type=click.Choice(["active", "success", "failed", "cancelled"]),
    help="Only jobs with this outcome; active: unfinished jobs.",
)
@click.option("--cause", type=click.Choice(CAUSES), help="Only jobs with this cause.")
@click.option(
    "--where",
    metavar="CONDITION",
    help="Only jobs that match this condition, such as 'T > 2.2 and attempts > 1'.",
)
@click.option("--attempts", is_flag=True, help="Show one row per attempt, including retried ones.")
@output_options
def jobs(
    run: str,
    state: str | None,
    group: str | None,
    outcome: str | None,
    cause: str | None,
    where: str | None,
    attempts: bool,
    form: str | None,
    output: str | None,
) -> None:
    """List the jobs of a run.

    RUN is the run's tag, a unique prefix or suffix of it, or 'last'. Each job has one row; --where
    can use every column. With --attempts, each attempt has one row. The column 'attempts' then
    contains the attempt's number, from 1, and 'core_hours' covers only this attempt.
    """
    with errors_as_json(form == "json"), KeptRun(state, run, whole=True) as kept:
        with usage_errors():
            condition = (
                None if where is None else conditions.parse(where, has_value=False, key="where")
            )
        with closing(kept.jobs(attempts=attempts)) as history:
            if group is not None and group not in history.groups:
                raise UsageError(
                    f"the run has no job group {group!r}",
                    hint=f"its groups are {', '.join(history.groups)}",
                    code="no-such-group",
                )
            if condition is not None:
                with usage_errors():
                    check_names(condition.text, condition.names, history.names)
            wanted = {"group": group, "outcome": outcome, "cause": cause}
            chosen = {name: value for name, value in wanted.items() if value is not None}

            def asked() -> Iterator[Batch]:
                places = [(history.names.index(name), value) for name, value in chosen.items()]
                for batch in history.batches():
                    rows = [
                        row
                        for row in zip(*batch, strict=True)
                        if all(row[at] == value for at, value in places)
                    ]
                    if condition is not None:
                        rows = [row for row in rows if holds(condition, row)]
                    if rows:
                        yield list(zip(*rows, strict=True))

            def holds(condition: Condition, row: Sequence[Any]) -> bool:
                known = zip(history.names, row, strict=True)
                there = {name: value for name, value in known if value is not None}
                return condition.holds(None, there, lambda path: None)

            if kept.state == "interrupted":
                kept.warn(
                    f"the end of run {kept.tag} is not recorded, and it has no controller\n"
                    f"  hint: 'ensemble resume {kept.tag}' asks the queue for its unfinished jobs"
                )
            batches = asked if chosen or condition is not None else history.batches
            write_table(history.names, batches, form, output, TIMES, history.kinds)
