"""``ensemble stop RUN``: stops a run so that it can be resumed."""

from __future__ import annotations

from pathlib import Path

import click

from ensemble_core.cli.control_requests import AGAIN, say, wait_for_controller_exit
from ensemble_core.cli.executor_flags import CommandWithFlags
from ensemble_core.cli.options import Display, json_option, run_argument, state_option
from ensemble_core.errors import EnsembleError, ExecutorError
from ensemble_core.journal.lock import Lock
from ensemble_core.journal.request_files import post_request, requester
from ensemble_core.journal.run_folder import HALT
from ensemble_core.journal.run_state import LEFT, RunInfo, read_info
from ensemble_core.journal.run_store import find_run, state_folder


@click.command(cls=CommandWithFlags)
@run_argument
@click.option("--wait/--no-wait", default=True, help="Wait until the run has stopped.")
@click.option(
    "--cancel-jobs",
    is_flag=True,
    help="Cancel its jobs regardless of 'on_stop', including jobs that an earlier stop or kill "
    "left in the queue.",
)
@state_option
@json_option
def stop(run: str, wait: bool, cancel_jobs: bool, state: str | None, as_json: bool) -> int:
    """Stop a run; 'ensemble resume' continues it.

    The run's controller exits with code 5, on whichever machine it is. 'on_stop' in the file says
    whether jobs stay in the queue, or are cancelled and submitted again by a resume. 'ensemble
    cancel' ends a run permanently. A run that another user owns or can write to is refused.

    With --cancel-jobs, the exit code is 0 once the queue has no more jobs of the run. It is 75 if
    the jobs cannot be cancelled now: repeat the command later. Jobs that the queue does not know
    count as lost.
    """
    if cancel_jobs and not wait:
        raise click.UsageError("--cancel-jobs cannot be combined with --no-wait")
    folder = find_run(state_folder(state), run)
    lock = Lock(folder)
    held = lock.controller() is not None
    if held:
        post_request(folder, HALT)
    if held and not wait:
        told = {"tag": folder.name, "state": "stopping"}
        say(as_json, told, f"asked run {folder.name} to stop")
        return 0
    wait_for_controller_exit(lock)
    info = read_info(folder)
    if cancel_jobs and not _has_no_jobs(info):
        _cancel_remaining(folder, state, Display(as_json=as_json))
        info = read_info(folder)
    found = {"tag": folder.name, "state": info.state, "exit_code": info.exit_code}
    if not cancel_jobs or _has_no_jobs(info):
        say(as_json, found, _result_text(info, held))
        return 0
    said = f"run {info.tag} is {info.state} and may still have jobs in its queue"
    say(as_json, {**found, "left": True}, said)
    return AGAIN


def _has_no_jobs(info: RunInfo) -> bool:
    """Return True if the queue has no jobs of a run that has no controller."""
    return info.state == "new" or (info.state in LEFT and not info.left)


def _cancel_remaining(folder: Path, state: str | None, display: Display) -> None:
    from ensemble_core.cli.commands.resume import resume_run
    from ensemble_core.model.events import StopRequested
    from ensemble_core.runtime.controller import STOPPED

    asked = StopRequested(0.0, f"stopped by {requester()}", STOPPED, "cancel-left")
    try:
        resume_run(str(folder), state, display, stop_first=asked)
    except EnsembleError as error:
        if isinstance(error, ExecutorError) or error.code == "locked":
            error.exit_code = AGAIN
        raise


def _result_text(info: RunInfo, held: bool) -> str:
    resume = f"'ensemble resume {info.tag}' resumes it"
    if info.state == "ended":
        already = "" if held else " already"
        return f"run {info.tag} has ended{already}, with exit code {info.exit_code}"
    if info.state == "stopped":
        return f"run {info.tag} is stopped; {resume}"
    if held:
        return f"the controller of run {info.tag} has exited; {resume}"
    return f"run {info.tag} has no controller: it is already {info.state}; {resume}"
