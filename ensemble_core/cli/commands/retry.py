"""``ensemble retry RUN [JOB...]``: runs jobs again that failed or were lost."""

from __future__ import annotations

from typing import Any

import click

from ensemble_core.cli.commands.resume import resume_run
from ensemble_core.cli.control_requests import given_fields, request
from ensemble_core.cli.executor_flags import CommandWithFlags
from ensemble_core.cli.name_completion import job_fields, lost_jobs
from ensemble_core.cli.options import (
    Display,
    complete_names,
    display_options,
    run_argument,
    state_option,
    take_over_option,
    wall_option,
)
from ensemble_core.errors import UsageError
from ensemble_core.journal.lock import Lock
from ensemble_core.journal.request_files import requester
from ensemble_core.journal.run_state import read_info
from ensemble_core.journal.run_store import find_run, state_folder


@click.command(cls=CommandWithFlags)
@run_argument
@click.argument(
    "jobs",
    metavar="[JOB...]",
    nargs=-1,
    shell_complete=complete_names(lost_jobs),
)
@click.option(
    "--failed",
    is_flag=True,
    help="Retry all such jobs.  [default without JOB]",
)
@click.option(
    "--set",
    "fields",
    metavar="FIELD=VALUE",
    multiple=True,
    help="Change a field of these jobs: duration=2h, parameters.T=2.5. May be repeated.",
    shell_complete=complete_names(job_fields),
)
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Accept a changed ensemble file and use it from now on (only if the run has ended).",
)
@take_over_option
@state_option
@wall_option
@display_options
def retry(
    run: str,
    jobs: tuple[str, ...],
    failed: bool,
    fields: tuple[str, ...],
    accept_changes: bool,
    take_over: bool,
    state: str | None,
    wall: float | None,
    display: Display,
) -> int:
    """Run failed jobs of a run again. The run is live or has ended.

    Each job that failed, was lost or was cancelled by others gets a further attempt in its folder.
    A run that has ended is reopened, and runs until nothing more can happen.
    """
    if jobs and failed:
        raise UsageError(
            "--failed means all failed jobs, so it does not go with a JOB",
            hint="remove --failed, or the jobs",
            code="bad-option",
        )
    action: dict[str, Any] = {"name": "retry"}
    if jobs:
        action["jobs"] = list(jobs)
    if fields:
        action["with"] = given_fields(fields, "duration=2h", "--set")
    folder = find_run(state_folder(state), run)
    # While the controller of an ended run exits, the lock refuses a second one.
    if read_info(folder).state == "ended" and (take_over or Lock(folder).controller() is None):
        return resume_run(
            str(folder),
            state,
            display,
            accept_changes=accept_changes,
            take_over=take_over,
            request={"by": requester(), "action": action},
            wall=wall,
        )
    if accept_changes or take_over or wall is not None:
        raise UsageError(
            "--accept-changes, --take-over and --wall are for a run that has ended, and "
            f"{folder.name} has not",
            hint="remove these options",
            code="bad-option",
        )
    return request(str(folder), state, display.as_json, action)
