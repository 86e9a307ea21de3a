"""Reports rows with which a job that continues an earlier attempt repeats the attempt's rows."""

from __future__ import annotations

from ensemble_core.engine.job_record import JobRecord
from ensemble_core.engine.state import State
from ensemble_core.model.decisions import Log
from ensemble_core.model.events import Observed


def report_repeated_rows(state: State, record: JobRecord, event: Observed, replaced: bool) -> None:
    """Report, once for the group, that rows of an attempt that continues repeat earlier ones.

    If the last step that the earlier attempt had printed has other values now, statistics over
    several jobs have values that the restart has discarded. This is a warning. If the rows
    were not ``replaced``, so have those of the job.
    """
    table, observer = state.table.groups[record.job.group], event.observer
    repeated, before = record.index.repeated, record.index.before
    if repeated is None:
        return
    last = repeated[observer]
    if not table.reported_repeats:
        table.reported_repeats = True
        message = (
            f"{record.job.id} continues an earlier attempt, which had printed rows up to "
            f"{last:.15g}: rows up to there "
            + (
                "replace those of the earlier attempt in the statistics of the job, and are "
                "skipped by rules and by the statistics of the group"
                if replaced
                else "are skipped as repetitions"
            )
            + f" ({observer}: clock)"
        )
        state.out.append(Log(message=message, level="info"))
    if event.clock == last and not table.reported_differences and before is not None:
        for name, value in event.values.items():
            old = before.get(name, value)
            if old != value and not (old != old and value != value):
                table.reported_differences = True
                message = (
                    f"{record.job.id} printed {name}={value:.15g} at {last:.15g}, where the "
                    f"earlier attempt had printed {old:.15g}: the restart does not repeat its "
                    f"steps, and statistics {'over the group' if replaced else 'of the job'} "
                    f"such as max and mean have the earlier values ({observer}: clock)"
                )
                state.out.append(Log(message=message, level="warning"))
                return
