"""``ensemble run --dry-run``: what would be submitted at the start, and what the queue would be
handed for the first jobs. Nothing is submitted, opened or kept.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ensemble_core.cli.executor_choice import ExecutorChoice
from ensemble_core.cli.json_lines import to_json
from ensemble_core.cli.text_style import count_of, print_line, printable

if TYPE_CHECKING:
    from ensemble_core.model.ensemble import Ensemble
    from ensemble_core.model.jobs import Job

__all__ = ["dry_run"]

#: Jobs that are shown: the first of each group, of so many groups.
_SHOWN = 3


def dry_run(ensemble: Ensemble, choice: ExecutorChoice, *, as_json: bool) -> int:
    """Show it; the exit code."""
    from ensemble_core.engine.engine import Engine
    from ensemble_core.model.decisions import Submit
    from ensemble_core.model.events import Started

    engine = Engine(ensemble, shared=choice.record.shared)
    decisions = engine.handle(Started(time.time(), {}))
    first: dict[str, Job] = {}
    counts: dict[str, int] = {}
    for decision in decisions:
        for job in decision.jobs if isinstance(decision, Submit) else ():
            first.setdefault(job.group, job)
            counts[job.group] = counts.get(job.group, 0) + 1
    if not as_json:
        print_line(printable(str(choice)))
        each = ", ".join(f"{count} of {group}" for group, count in counts.items())
        jobs = count_of(sum(counts.values()), "job")
        print_line(f"dry run: at the start {jobs} would be submitted{f' ({each})' if each else ''}")
    for job in list(first.values())[:_SHOWN]:
        _show(job, choice, as_json)
    return 0


def _show(job: Job, choice: ExecutorChoice, as_json: bool) -> None:
    from ensemble_core.config.schema import defaults

    render = choice.record.render
    if render is None:
        if not as_json:
            print_line(f"{job.id}: executor {choice.name} does not say what its queue is handed")
        return
    made = render(job, defaults(choice.record.options, choice.options))
    if as_json:
        about = {"type": "job", "job": job.id, "media_type": made.media_type, "text": made.text}
        print_line(to_json(about))
        return
    print_line(f"{job.id} ({made.media_type}):")
    for line in made.text.splitlines():
        print_line(f"  {printable(line)}".rstrip())
