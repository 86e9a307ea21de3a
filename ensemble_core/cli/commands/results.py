"""``ensemble results RUN [TABLE]``: prints a table of results."""

from __future__ import annotations

from contextlib import closing

import click

from ensemble_core.cli import name_completion
from ensemble_core.cli.error_format import errors_as_json, print_warning
from ensemble_core.cli.options import KeptRun, complete_names, run_argument, state_option
from ensemble_core.cli.table_output import in_batches, output_options, write_table
from ensemble_core.journal.job_rows import TIMES


@click.command()
@run_argument
@click.argument("table", required=False, shell_complete=complete_names(name_completion.tables))
@state_option
@output_options
def results(
    run: str, table: str | None, state: str | None, form: str | None, output: str | None
) -> None:
    """Show a table of a run's results.

    RUN is the run's tag, a unique prefix or suffix of it, or 'last'. TABLE is a name under
    'results:' in the ensemble file, or the name of a generator, to show its points, best first.
    Without TABLE, each job has a row with its outcome, times, core-hours, result, and the last
    value of each column that it printed.
    """
    with errors_as_json(form == "json"), KeptRun(state, run, whole=True) as kept:
        if table is None:
            with closing(kept.jobs()) as history:
                write_table(history.names, history.batches, form, output, TIMES, history.kinds)
            if form is None and output is None:
                _mention_tables(kept, run)
            return
        engine = kept.recover(compare=False).engine
        names, rows = engine.table(table)
        summary = engine.state.ensemble.tables.get(table)
        if summary is None:  # points of a generator
            write_table(names, in_batches(names, rows), form, output)
            return
        write_table(names, in_batches(names, rows), form, output, missing="-")
        for warning in engine.tables().warnings(table):
            print_warning(warning)
        if summary.percent is not None and not rows:
            print_warning(f"{table} has no rows (top: {summary.percent:g}%, rounded down)")


def _mention_tables(kept: KeptRun, run: str) -> None:
    """Say on stderr which other tables the run has."""
    ensemble = kept.loading(kept.journal.texts()[-1])
    tables = [*ensemble.tables, *ensemble.generators]
    if tables:
        hint = f"ensemble results {run} TABLE"
        click.echo(f"other tables: {', '.join(tables)} (show one with: {hint})", err=True)
