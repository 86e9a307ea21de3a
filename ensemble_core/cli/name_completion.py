"""Names that a shell completes: jobs, groups, rules, tables and fields of a run; unknown jobs.

They are read from the run's file and from the text of its journal. A replay takes seconds if a run
is long.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from ensemble_core.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from ensemble_core.model.ensemble import Ensemble
    from ensemble_core.session.kept_run import KeptRun

#: Marks of lists of events that say which jobs exist and which have ended.
_MARKS = ('"submit"', '"clean"')
_LIFE = re.compile(r'"id":"([^"]+)","group":|"job","([^"]+)","clean"')


def _ensemble(kept: KeptRun) -> Ensemble:
    return kept.loading(kept.journal.texts()[-1])


def groups(kept: KeptRun) -> list[str]:
    """Return the job groups."""
    return [*_ensemble(kept).groups]


def tables(kept: KeptRun) -> list[str]:
    """Return the tables of results, and the generators."""
    ensemble = _ensemble(kept)
    return [*ensemble.tables, *ensemble.generators]


def rules(kept: KeptRun) -> list[str]:
    """Return the rules and instances."""
    ensemble = _ensemble(kept)
    return [*(rule.id for rule in ensemble.rules), *ensemble.instances]


def switchable(kept: KeptRun, enabled: bool) -> list[str]:
    """Return the rules and instances that are enabled, or those that are not."""
    ensemble = _ensemble(kept)
    on = {rule.id: rule.enabled for rule in ensemble.rules}
    on |= {name: each.enabled for name, each in ensemble.instances.items()}
    marks = ('"enable-rule"', '"disable-rule"', '"switch"')
    for row in kept.journal.rows(holding=marks, plain=True):
        for one in row.decisions or ():
            decision: Any = one
            if decision.get("type") in ("enable-rule", "disable-rule"):
                on |= dict.fromkeys(decision["rules"], decision["type"] == "enable-rule")
            elif decision.get("type") == "switch":
                on |= dict.fromkeys(decision["on"], True) | dict.fromkeys(decision["off"], False)
    return [name for name, each in on.items() if each is enabled]


def unfinished_jobs(kept: KeptRun) -> list[str]:
    """Return the attempts that are not over."""
    found: dict[str, None] = {}
    for text in kept.journal.texts_of_events(_MARKS):
        for made, ended in _LIFE.findall(text):
            if made:
                found[made] = None
            else:
                found.pop(ended, None)
    return [*found]


def _ended_jobs(kept: KeptRun) -> Iterator[tuple[str, str]]:
    """Yield each job that has ended at least once, with its outcome."""
    for group in kept.journal.job_groups():
        for found in kept.journal.job_rows(group):
            for index, _, row in found:
                yield f"{group}.{index}", row[1]


def _jobs_of(attempts: list[str]) -> dict[str, None]:
    """Return the jobs of these attempts: sim.3 for sim.3-1."""
    parts = (each.rpartition(".") for each in attempts)
    return dict.fromkeys(f"{group}.{number.partition('-')[0]}" for group, _, number in parts)


def lost_jobs(kept: KeptRun) -> list[str]:
    """Return the jobs that are over without success."""
    active = _jobs_of(unfinished_jobs(kept))
    return [job for job, outcome in _ended_jobs(kept) if outcome != "success" and job not in active]


def all_jobs(kept: KeptRun) -> list[str]:
    """Return all jobs."""
    active = _jobs_of(unfinished_jobs(kept))
    return [*dict.fromkeys([*(job for job, _ in _ended_jobs(kept)), *active])]


def no_such_job(kept: KeptRun, name: str, jobs: Collection[str]) -> UsageError:
    """Return the error that none of the run's ``jobs`` has this name."""
    shown = ", ".join([*jobs][:8]) + (f" … ({len(jobs)} jobs)" if len(jobs) > 8 else "")
    listed = f"its jobs: {shown or 'none so far'}"
    hint = did_you_mean(name, jobs, listed, form="did you mean {}?")
    return UsageError(f"run {kept.tag} has no job {name!r}", hint=hint, code="no-such-job")


def parameters(kept: KeptRun, group: str) -> list[str]:
    """Return what ``submit --set`` takes: the parameters of a group, with the sign ``=``."""
    found = _ensemble(kept).groups.get(group)
    return [] if found is None else [f"{name}=" for name in found.parameters]


def job_fields(kept: KeptRun) -> list[str]:
    """Return what ``retry --set`` takes: fields of a job, and single parameters."""
    names = dict.fromkeys(name for each in _ensemble(kept).groups.values() for name in each.names)
    return [*_definition(kept, "job-fields"), *(f"parameters.{name}=" for name in names)]


def settable(kept: KeptRun, group: str | None) -> list[str]:
    """Return what ``set`` takes: the fields of a group or, without one, groups and limits."""
    if group is not None:
        return [*_definition(kept, "group-fields"), "retry.times=", "retry.wait="]
    limits = [f"limits.{each}" for each in _definition(kept, "live-limits")]
    return [*groups(kept), *limits]


def _definition(kept: KeptRun, name: str) -> list[str]:
    from ensemble_core.config.schema import compose

    return [f"{each}=" for each in compose(kept.registry)["$defs"][name]["properties"]]
