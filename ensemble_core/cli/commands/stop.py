"""``ensemble stop RUN``: stops a run politely, so that ``ensemble resume`` goes on with it."""

from __future__ import annotations

from pathlib import Path

import click

from ensemble_core.cli.control_requests import AGAIN, say, wait_for_controller_exit
from ensemble_core.cli.executor_flags import CommandWithFlags
from ensemble_core.cli.options import Display, json_option, run_argument, state_option
from ensemble_core.errors import EnsembleError, ExecutorError
from ensemble_core.journal.request_files import leave_request, requester
from ensemble_core.journal.run_store import HALT, LEFT, Lock, RunInfo, find, look, state_folder

__all__ = ["stop"]


@click.command(cls=CommandWithFlags)
@run_argument
@click.option("--wait/--no-wait", default=True, help="Wait until the run has stopped, or not.")
@click.option(
    "--cancel-jobs",
    is_flag=True,
    help="Cancel its jobs whatever 'on_stop' says, and those that an earlier stop, a kill or the "
    "end left to the queue.",
)
@state_option
@json_option
def stop(run: str, wait: bool, cancel_jobs: bool, state: str | None, as_json: bool) -> int:
    """Stop a run, so that 'ensemble resume' goes on with it.

    Its controller is asked to, on whichever machine it is; it ends with exit code 5. What becomes
    of jobs the file's 'on_stop' says: they are left to the queue, or cancelled, to be submitted
    again by the resume. 'ensemble cancel' ends a run for good.

    With --cancel-jobs the exit code is 0 once the queue has no job of the run any more, and 75
    where that cannot be had now: the same words try again. A job that the queue knows nothing of
    counts once and is lost from then on. Where no controller has the run, this command asks the
    queue itself.
    """
    if cancel_jobs and not wait:
        raise click.UsageError("--cancel-jobs and --no-wait exclude each other")
    folder = find(state_folder(state), run)
    lock = Lock(folder)
    held = lock.controller() is not None
    if held:
        leave_request(folder, HALT)
    if held and not wait:
        told = {"tag": folder.name, "state": "stopping"}
        say(as_json, told, f"run {folder.name} was told to stop")
        return 0
    wait_for_controller_exit(lock)
    info = look(folder)
    if cancel_jobs and not _none_left(info):
        _cancel_left(folder, state, Display(as_json=as_json))
        info = look(folder)
    found = {"tag": folder.name, "state": info.state, "exit_code": info.exit_code}
    if not cancel_jobs or _none_left(info):
        say(as_json, found, _said(info, held))
        return 0
    said = f"run {info.tag} is {info.state}, and may have jobs in its queue yet"
    say(as_json, {**found, "left": True}, said)
    return AGAIN


def _none_left(info: RunInfo) -> bool:
    """True if the queue has no job of a run that no controller has."""
    return info.state == "new" or (info.state in LEFT and not info.left)


def _cancel_left(folder: Path, state: str | None, display: Display) -> None:
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


def _said(info: RunInfo, held: bool) -> str:
    goes_on = f"'ensemble resume {info.tag}' goes on with it"
    if info.state == "ended":
        already = "" if held else " already"
        return f"run {info.tag} has ended{already}, with exit code {info.exit_code}"
    if info.state == "stopped":
        return f"run {info.tag} is stopped; {goes_on}"
    if held:
        return f"the controller of run {info.tag} has gone; {goes_on}"
    return f"no controller has run {info.tag}: it is {info.state} already; {goes_on}"
