"""``ensemble cancel RUN [JOB...]``: ends a run and cancels its jobs, or cancels only some jobs."""

from __future__ import annotations

import click

from ensemble_core.cli.commands.resume import resume_run
from ensemble_core.cli.control_requests import request, say, wait_for_controller_exit
from ensemble_core.cli.executor_flags import CommandWithFlags
from ensemble_core.cli.name_completion import unfinished_jobs
from ensemble_core.cli.options import (
    Display,
    complete_names,
    json_option,
    load_plugins,
    run_argument,
    state_option,
    take_over_option,
)
from ensemble_core.errors import UsageError
from ensemble_core.journal.lock import Lock
from ensemble_core.journal.reader import JournalError
from ensemble_core.journal.request_files import post_request, requester
from ensemble_core.journal.run_folder import LEAVE, STOP
from ensemble_core.journal.run_state import read_info
from ensemble_core.journal.run_store import find_run, state_folder
from ensemble_core.model.events import StopRequested
from ensemble_core.session.lost_journal import leftover_jobs


@click.command(cls=CommandWithFlags)
@run_argument
@click.argument(
    "jobs",
    metavar="[JOB...]",
    nargs=-1,
    shell_complete=complete_names(unfinished_jobs),
)
@click.option("--wait/--no-wait", default=True, help="Wait until the run has ended.")
@click.option(
    "--leave",
    is_flag=True,
    help="Do not wait for jobs that cannot be cancelled now, such as those of a disconnected "
    "member: the controller exits, and the run can be resumed.",
)
@take_over_option
@state_option
@json_option
def cancel(
    run: str,
    jobs: tuple[str, ...],
    wait: bool,
    leave: bool,
    take_over: bool,
    state: str | None,
    as_json: bool,
) -> int:
    """End a run and cancel its jobs. To resume it later, use 'ensemble stop' instead.

    With JOB (such as sim.3), cancel only these jobs of a live run. The run continues. A cancelled
    job counts as lost, but not as a failure.

    If the run has a live controller, on any machine, the controller ends the run. Otherwise, this
    command cancels the jobs that are still in the queue. A run that another user owns or can write
    to is refused.
    """

    if jobs:
        if leave or take_over or not wait:
            raise UsageError(
                "--leave, --take-over and --no-wait cannot be combined with a JOB",
                cause="they say how to end a whole run",
                hint="remove the options, or the jobs",
                code="bad-option",
            )
        return request(run, state, as_json, {"name": "cancel", "jobs": list(dict.fromkeys(jobs))})
    folder = find_run(state_folder(state), run)
    lock = Lock(folder)
    if leave and lock.controller() is None:
        raise UsageError(
            f"run {folder.name} has no controller, so --leave does not apply",
            hint="remove --leave: the command then cancels the jobs in the queue",
            code="no-controller",
        )
    if lock.controller() is None or take_over:
        info = read_info(folder)
        if info.state == "ended":
            said = f"run {folder.name} has ended already, with exit code {info.exit_code}"
            say(as_json, {"tag": folder.name, "state": "ended", "exit_code": info.exit_code}, said)
            return 0
        stop = StopRequested(0.0, f"cancelled by {requester()}")
        display = Display(as_json=as_json)
        try:
            resume_run(str(folder), state, display, take_over=take_over, stop_first=stop)
        except JournalError as error:
            locked = error.code == "locked"
            ended = 0 if locked else leftover_jobs(folder, load_plugins, end=True)
            if not ended:
                raise
            said = f"cancelled the jobs of run {folder.name} without its journal: {error.what}"
            say(as_json, {"tag": folder.name, "state": "unreadable", "ended": ended}, said)
        return 0
    post_request(folder, *((STOP, LEAVE) if leave else (STOP,)))
    if not wait:
        say(
            as_json,
            {"tag": folder.name, "state": "stopping"},
            f"asked run {folder.name} to stop",
        )
        return 0
    wait_for_controller_exit(lock)
    info = read_info(folder)
    if info.state == "ended":
        said = f"run {folder.name} has ended: {info.reason}"
    elif leave:
        said = (
            f"left run {folder.name}; its jobs may still be running; 'ensemble resume "
            f"{folder.name}' resumes it"
        )
    else:
        said = (
            f"the controller of run {folder.name} exited before the run had ended; repeat "
            f"'ensemble cancel {folder.name}' to cancel the remaining jobs"
        )
    say(as_json, {"tag": folder.name, "state": info.state, "exit_code": info.exit_code}, said)
    return 0 if leave or info.state == "ended" else 1
