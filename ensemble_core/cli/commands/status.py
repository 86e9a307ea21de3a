"""``ensemble status RUN``: shows the state of a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from ensemble_core.cli.commands.runs import format_length, style_of_state
from ensemble_core.cli.json_output import to_json
from ensemble_core.cli.options import KeptRun, kept_run_options
from ensemble_core.display.summary import report_lines, resume_command
from ensemble_core.display.text_style import (
    TextStyle,
    count_of,
    format_duration,
    format_size,
    format_table,
    format_time,
    in_one_line,
    print_line,
    printable,
    style_of,
    terminal_width,
)
from ensemble_core.engine.engine import Engine
from ensemble_core.errors import EnsembleError
from ensemble_core.journal.lock import is_suspended
from ensemble_core.journal.reader import Session
from ensemble_core.journal.run_state import RunInfo, read_info
from ensemble_core.session.queue_status import queue_status

#: How many controllers are shown. If there are more, only the first ones and the last ones are
#: shown.
_SESSIONS_SHOWN = 6


@click.command()
@kept_run_options()
def status(kept: KeptRun, as_json: bool) -> int:
    """Show the state of a run.

    RUN is the run's tag, a unique prefix or suffix of it, or 'last'. The command shows the run's
    controllers, journal, job groups and rules.
    """
    info = read_info(kept.folder)
    engine: Engine | None = None
    trouble: EnsembleError | None = None
    try:
        engine = kept.recover(compare=False).engine
    except EnsembleError as error:  # show at least what needs no engine
        trouble = error
    damage = kept.damage()
    trouble = trouble or damage
    queue = queue_status(kept)
    if as_json:
        print_line(to_json(_data(kept, info, engine, trouble, queue)))
    else:
        for line in _lines(kept, info, engine, queue, style_of(sys.stdout)):
            print_line(line)
    if trouble is None:
        return 0
    if as_json:
        return trouble.exit_code
    raise trouble


def _last_event(kept: KeptRun) -> float | None:
    """Return the time of the last event."""
    last = kept.journal.last()
    return next((row.time for row in kept.journal.rows(last - 1, last)), None) if last else None


def _profile(kept: KeptRun) -> str | None:
    """Return the name of the run's profile."""
    profile = kept.journal.about.get("profile")
    return profile["name"] if profile else None


def _size(kept: KeptRun) -> int:
    path = kept.journal.path
    total = 0
    for each in (path, path.with_name(path.name + "-wal")):
        try:
            total += each.stat().st_size
        except OSError:
            continue
    return total


def _data(
    kept: KeptRun,
    info: RunInfo,
    engine: Engine | None,
    trouble: EnsembleError | None,
    queue: tuple[Sequence[str], Any],
) -> dict[str, Any]:
    journal = kept.journal
    return {
        **info.to_dict(),
        "executor": dict(kept.executor),
        **({} if queue[1] is None else {"queue": queue[1]}),
        "profile": _profile(kept),
        "journal": {"path": str(journal.path), "mode": journal.mode, "bytes": _size(kept)},
        "last_event": _last_event(kept),
        "output": journal.about.get("output"),
        "sessions": [
            {"after" if key == "seq" else key: value for key, value in asdict(session).items()}
            for session in journal.sessions()
        ],
        "active": None if engine is None else len(engine.state.active()),
        "report": None if engine is None else engine.report().to_dict(),
        "error": None if trouble is None else trouble.to_dict(),
    }


def _lines(
    kept: KeptRun,
    info: RunInfo,
    engine: Engine | None,
    queue: tuple[Sequence[str], Any],
    style: TextStyle,
) -> list[str]:
    lines = [style.paint(f"{in_one_line(kept.tag)}: {_standing(info)}", style_of_state(info))]
    length = format_length(info)
    took = "" if length == "-" else f", {'for' if info.state == 'running' else 'took'} {length}"
    lines.append(f" file        {in_one_line(info.file)}")
    options = ", ".join(f"{k}={v}" for k, v in dict(kept.executor.get("options", {})).items())
    lines.append(
        f" executor    {in_one_line(info.executor)}"
        + (f" ({in_one_line(options)})" if options else "")
    )
    lines += map(printable, queue[0])
    if profile := _profile(kept):
        lines.append(f" profile     {in_one_line(profile)}")
    lines.append(f" began       {format_time(info.began)}{took}")
    if info.controller is not None:
        who = info.controller
        since = format_time(who.get("since"))
        stopped = f", suspended: 'kill -CONT {who.get('pid')}'" if is_suspended(who) else ""
        process = f"process {who.get('pid')} on {who.get('host')}, since {since}"
        lines.append(f" controller  {process}{stopped}")
    if info.reason:
        lines.append(" reason      " + printable(info.reason).replace("\n", " "))
    journal = kept.journal
    lines.append(f" journal     {in_one_line(str(journal.path))}")
    stored = f"journal mode {journal.mode}, {format_size(_size(kept))}"
    lines.append(f" events      {info.events:,}{_age(kept, info)} ({stored})")
    output = journal.about.get("output")
    if output:
        lines.append(f" output      {in_one_line(str(output))}")
    lines += _sessions(journal.sessions(), info, style)
    if engine is not None:
        report = engine.report()
        if report.avoided:
            lines.append(f" avoids      {in_one_line(', '.join(report.avoided))}")
        lines += report_lines(report, style, terminal_width(sys.stdout))
    if info.state in ("stopped", "limited", "interrupted", "new"):
        active = len(engine.state.active()) if engine is not None else 0
        jobs = f" ({count_of(active, 'job')} unfinished)" if active else ""
        again = f"ensemble resume {in_one_line(kept.tag)}"
        if engine is not None:
            again = resume_command(kept.tag, engine, limited=info.state == "limited")
        lines.append(f" to resume this run{jobs}: {again}")
    return lines


def _standing(info: RunInfo) -> str:
    if info.state == "ended":
        return f"ended, exit code {info.exit_code}"
    words = {
        "new": "interrupted before its first event",
        "limited": "its limits hold the remaining jobs, exit code 4",
    }
    return words.get(info.state, info.state)


def _age(kept: KeptRun, info: RunInfo) -> str:
    last = _last_event(kept)
    if last is None:
        return ""
    if info.state == "running":
        return f", the last {format_duration(max(0.0, time.time() - last))} ago"
    return f", the last at {format_time(last)}"


def _sessions(sessions: list[Session], info: RunInfo, style: TextStyle) -> list[str]:
    """Return lines about the controllers of the run, if it had several or was interrupted."""
    if len(sessions) < 2 and info.state == "ended":
        return []
    shown = sessions
    if len(sessions) > _SESSIONS_SHOWN:
        shown = [*sessions[:2], *sessions[2 - _SESSIONS_SHOWN :]]
    rows = []
    for session in shown:
        if session is sessions[-1] and info.state == "running":
            how = "in control"
        elif session.outcome is None:
            how = "was killed"
        else:
            over = session.outcome.get("over")
            code = session.outcome.get("exit_code")
            left = "stopped" if session.outcome.get("stopped") else "left"
            how = f"ended the run, exit code {code}" if over else left
            reason = str(session.outcome.get("reason") or "")
            how += f": {reason}" if reason and not over else ""
        rows.append(
            (
                str(session.number),
                f"{in_one_line(session.host)} {session.pid}",
                format_time(session.began),
                f"after event {session.seq}",
                printable(how).replace("\n", " "),
            )
        )
    lines = format_table(rows, right=[True], indent=" ")
    if len(shown) < len(sessions):
        lines.insert(2, f" {style.ellipsis} {len(sessions) - len(shown)} more; --json has them all")
    return [style.paint(" controllers", "bold"), *lines]
