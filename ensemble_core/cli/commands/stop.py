"""``ensemble stop RUN``: stops a run politely, so that ``ensemble resume`` goes on with it."""

from __future__ import annotations

import click

from ensemble_core.cli.asking import leave_word, wait_until_left
from ensemble_core.cli.json_lines import to_json
from ensemble_core.cli.options import json_option, run_argument, state_option
from ensemble_core.journal.run_store import HALT, Lock, RunInfo, find, look, state_folder

__all__ = ["stop"]


@click.command()
@run_argument
@click.option("--wait/--no-wait", default=True, help="Wait until the run has stopped, or not.")
@state_option
@json_option
def stop(run: str, wait: bool, state: str | None, as_json: bool) -> int:
    """Stop a run, so that 'ensemble resume' goes on with it.

    Its controller is asked to, on whichever machine it is; it ends with exit code 5. What becomes
    of jobs the file's 'on_stop' says: they are left to the queue, or cancelled, to be submitted
    again by the resume. 'ensemble cancel' ends a run for good.
    """
    folder = find(state_folder(state), run)
    lock = Lock(folder)
    held = lock.controller() is not None
    if held:
        leave_word(folder, HALT)
    if held and not wait:
        told = {"tag": folder.name, "state": "stopping"}
        click.echo(to_json(told) if as_json else f"run {folder.name} was told to stop")
        return 0
    wait_until_left(lock)
    info = look(folder)
    found = {"tag": folder.name, "state": info.state, "exit_code": info.exit_code}
    click.echo(to_json(found) if as_json else _said(info, held))
    return 0


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
