"""Implements ``ensemble run --dry-run``: shows what a run would submit, without submitting."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import TYPE_CHECKING

from ensemble_core.cli.json_output import to_json
from ensemble_core.display.text_style import count_of, print_line, printable
from ensemble_core.session.executor_choice import ExecutorChoice

if TYPE_CHECKING:
    from ensemble_core.model.ensemble import Ensemble
    from ensemble_core.model.jobs import Job

#: For how many groups the first job is shown.
_SHOWN = 3


def dry_run(
    ensemble: Ensemble, choice: ExecutorChoice, *, as_json: bool, every: bool = False
) -> int:
    """Print a preview of a few jobs, or of ``every`` job. Return the exit code."""
    from ensemble_core.engine.engine import Engine
    from ensemble_core.model.decisions import Call, Submit
    from ensemble_core.model.events import Started
    from ensemble_core.runtime.environment_wrapper import wrapped

    engine = Engine(ensemble, shared=choice.record.shared)
    decisions = engine.handle(Started(time.time(), {}))
    jobs = [job for each in decisions if isinstance(each, Submit) for job in each.jobs]
    counts = Counter(job.group for job in jobs)
    first: dict[str, Job] = {}
    for job in jobs:
        first.setdefault(job.group, job)
    if not as_json:
        print_line(printable(str(choice)))
        each = ", ".join(f"{count} of {group}" for group, count in counts.items())
        said = count_of(len(jobs), "job")
        print_line(f"dry run: the run would first submit {said}{f' ({each})' if each else ''}")
        called = dict.fromkeys(each.name for each in decisions if isinstance(each, Call))
        if called:
            print_line(f"not called in a dry run, so jobs may be missing here: {', '.join(called)}")
    for job in jobs if every else list(first.values())[:_SHOWN]:
        _show(wrapped(job, ensemble.environments), choice, as_json)
    _show_all_groups(ensemble, as_json)
    return 0


def _show_all_groups(ensemble: Ensemble, as_json: bool) -> None:
    """Print how many jobs and core-hours there would be if every group ran once.

    If jobs have time limits, the core-hours are an upper bound.
    """
    groups = ensemble.groups.values()
    parts = [part for group in groups for part in (group, *group.more)]
    known = [part for part in parts if part.duration]
    sizes = [part.own_size * (part.tasks or part.nodes) * part.cores_per_task for part in known]
    seconds = [size * part.duration for size, part in zip(sizes, known, strict=True)]
    hours = math.fsum(seconds) / 3600
    unlimited = list(dict.fromkeys(part.name for part in parts if not part.duration))
    asked = [group.name for group in groups if group.missing]
    total = sum(group.size for group in groups)
    if as_json:
        about = {"jobs": total, "core_hours": hours, "without_limit": unlimited, "asked": asked}
        print_line(to_json({"type": "every-group-once", **about}))
        return
    said = f"if every group ran once: {count_of(total, 'job')}"
    if known:
        said += f", at most {hours:.3g} core-hours by their time limits"
    if unlimited:
        said += f"; without a time limit ('duration'): {', '.join(unlimited)}"
    if asked:
        said += f"; number decided by rules: {', '.join(asked)}"
    print_line(printable(said))


def _show(job: Job, choice: ExecutorChoice, as_json: bool) -> None:
    from ensemble_core.config.schema import option_defaults
    from ensemble_core.session.executor_choice import rendered

    if choice.record.render is None:
        if not as_json:
            print_line(f"{job.id}: executor {choice.name} cannot show what it submits")
        return
    made = rendered(choice.record, job, option_defaults(choice.record.options, choice.options))
    if as_json:
        about = {"type": "job", "job": job.id, "media_type": made.media_type, "text": made.text}
        print_line(to_json(about))
        return
    print_line(f"{job.id} ({made.media_type}):")
    for line in made.text.splitlines():
        print_line(f"  {printable(line)}".rstrip())
