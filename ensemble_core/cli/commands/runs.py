"""``ensemble runs``: lists runs, oldest first."""

from __future__ import annotations

import os
import sys
import time

import click

from ensemble_core.cli.error_format import errors_as_json
from ensemble_core.cli.json_output import to_json
from ensemble_core.cli.options import json_option, state_option
from ensemble_core.display.text_style import (
    TextStyle,
    format_duration,
    format_table,
    format_time,
    in_one_line,
    print_line,
    printable,
    style_of,
    terminal_width,
)
from ensemble_core.journal.run_state import RunInfo, read_info
from ensemble_core.journal.run_store import run_folders, state_folder

_SHOWN = 20
_HEADS = ("run", "state", "exit", "began", "length", "events", "file")
_RIGHT = (False, False, True, False, True, True, False)
#: Columns that are dropped on a narrow terminal, in this order.
_GOES = ("file", "began", "events", "length")
_STYLES = {
    "running": "good",
    "stopped": "warning",
    "limited": "warning",
    "interrupted": "warning",
    "unreadable": "bad",
    "new": "dim",
}


@click.command()
@click.option(
    "--all", "everything", is_flag=True, help=(f"List all runs, not only the newest {_SHOWN}.")
)
@state_option
@json_option
def runs(everything: bool, state: str | None, as_json: bool) -> int:
    """List runs, newest last.

    A 'running' run has a controller, and an 'ended' run has finished. 'ensemble resume' resumes
    runs that are 'stopped' (by a signal, 'ensemble stop' or the time limit), 'limited' (limits hold
    the remaining jobs) or 'interrupted' (the controller was killed). A 'new' run was killed before
    its first event. With --json, each line is an object that describes a run.
    """
    with errors_as_json(as_json):
        home = state_folder(state)
        if as_json:
            for folder in run_folders(home):
                print_line(to_json({"type": "run", **read_info(folder).to_dict()}))
            return 0
        found = run_folders(home)
    if not found:
        click.echo(f"no runs in {home / 'runs'}", err=True)
        return 0
    shown = found if everything else found[-_SHOWN:]
    style = style_of(sys.stdout)
    if len(shown) < len(found):
        earlier = len(found) - len(shown)
        print_line(style.paint(f"{style.ellipsis} {earlier} earlier; --all lists them", "dim"))
    for line in _table([read_info(folder) for folder in shown], style, terminal_width(sys.stdout)):
        print_line(line)
    return 0


def format_length(info: RunInfo) -> str:
    """Return how long a run has lasted so far, or a dash if unknown."""
    if info.began is None:
        return "-"
    if info.state == "running":
        return format_duration(max(0.0, time.time() - info.began))
    return "-" if info.ended is None else format_duration(max(0.0, info.ended - info.began))


def style_of_state(info: RunInfo) -> str:
    """Return the style for the state of a run."""
    return _STYLES.get(info.state) or ("bad" if info.exit_code else "good")


def _table(infos: list[RunInfo], style: TextStyle, width: int | None) -> list[str]:
    rows = [
        (
            in_one_line(info.tag),
            info.state,
            "" if info.exit_code is None else str(info.exit_code),
            format_time(info.began)[:-3] if info.began is not None else "-",
            format_length(info),
            str(info.events),
            in_one_line(_short(info.file)) or printable(info.problem.partition("\n")[0]),
        )
        for info in infos
    ]
    kept = list(range(len(_HEADS)))
    longest = max(len(row[0]) for row in rows)
    while True:
        shown = [[row[column] for column in kept] for row in (_HEADS, *rows)]
        lines = format_table(shown, right=[_RIGHT[column] for column in kept])
        over = 0 if width is None else max(len(line) for line in lines) - width
        goes = next((_HEADS.index(name) for name in _GOES if _HEADS.index(name) in kept), None)
        if over <= 0 or (goes is None and longest <= 12):
            break
        if goes is not None:
            kept.remove(goes)
        else:
            longest = max(12, longest - over)
            rows = [(_shorten_tag(row[0], longest, style), *row[1:]) for row in rows]
    lines[0] = style.paint(lines[0], "bold")
    for place, info in enumerate(infos, 1):
        kind = style_of_state(info)
        if kind != "good" or info.state == "running":
            lines[place] = style.paint(lines[place], kind)
    return lines


def _short(file: str) -> str:
    """Return the shorter of a file's relative and absolute path."""
    if not file:
        return ""
    near = os.path.relpath(file)
    return near if len(near) < len(file) and not near.startswith("../..") else file


def _shorten_tag(tag: str, width: int, style: TextStyle) -> str:
    """Return the end of a tag, which is the part that distinguishes runs."""
    return tag if len(tag) <= width else style.ellipsis + tag[len(tag) - width + 1 :]
