"""``ensemble metrics RUN [PATH…]``: prints a run's metrics."""

from __future__ import annotations

import click

from ensemble_core.cli.error_format import errors_as_json, usage_errors
from ensemble_core.cli.options import KeptRun, run_argument, state_option
from ensemble_core.cli.table_output import in_batches, output_options, write_table
from ensemble_core.journal.metric_history import metric_of_rows
from ensemble_core.metrics.store import parse_path


@click.command()
@run_argument
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@state_option
@output_options
def metrics(
    run: str, paths: tuple[str, ...], state: str | None, form: str | None, output: str | None
) -> None:
    """Show the metrics of a run: those that it computed, or those with the given paths.

    RUN is the run's tag, a unique prefix or suffix of it, or 'last'. PATH is, for example,
    mean.sim-duration or count.sim.success. Statistics of job output that no rule uses are shown
    only if their path is given. A metric without a value is shown empty.
    """
    with errors_as_json(form == "json"), KeptRun(state, run, whole=True) as kept:
        engine = kept.recover(compare=False).engine
        ensemble = engine.state.ensemble
        for path in paths:
            with usage_errors():
                parse_path(path, ensemble.groups, ensemble.statistics)
        values = engine.snapshot()

        def value(path: str) -> float | None:
            found = values.get(path)
            if found is not None:
                return found
            return metric_of_rows(kept.journal, kept.jobs, ensemble, path)

        rows = ({"metric": path, "value": value(path)} for path in paths or sorted(values))
        names = ("metric", "value")
        write_table(names, in_batches(names, rows), form, output)
