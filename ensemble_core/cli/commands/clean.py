"""``ensemble clean``: deletes the folders of finished runs."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import click

from ensemble_core.cli.error_format import errors_as_json, print_warning
from ensemble_core.cli.json_output import to_json
from ensemble_core.cli.options import (
    KeptRun,
    complete_runs,
    json_option,
    load_plugins,
    state_option,
)
from ensemble_core.display.text_style import count_of, format_size, in_one_line, print_line
from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.journal.lock import Lock
from ensemble_core.journal.reader import NAME
from ensemble_core.journal.run_folder import is_own, is_run_folder, remove_run_folder
from ensemble_core.journal.run_state import RunInfo, read_info
from ensemble_core.journal.run_store import find_run, run_folders, state_folder
from ensemble_core.model.durations import seconds
from ensemble_core.quick_dataclass import dataclass
from ensemble_core.session.lost_journal import leftover_jobs


def _age(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Parse an age such as ``12h``, ``30d`` or ``2w``, and return it in seconds."""
    try:
        return None if value is None else seconds(value)
    except EnsembleError as error:
        raise click.BadParameter(f"{error.what}: use for example 12h, 30d or 2w") from None


@dataclass(slots=True)
class _Case:
    """A run that may be removed."""

    info: RunInfo
    size: int
    #: Number of jobs that may still be in the queue.
    jobs: int = 0
    #: Why the run is kept; empty if it may be removed.
    kept: str = ""


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=complete_runs)
@click.option("--ended", is_flag=True, help="All ended runs.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also runs that could be resumed, but never running ones.",
)
@click.option(
    "--older-than",
    "age",
    callback=_age,
    metavar="AGE",
    help="Only runs without activity for this long: 12h, 30d, 2w. Implies --ended.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be removed.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask, even if jobs may still be queued.")
@state_option
@json_option
def clean(
    runs: tuple[str, ...],
    ended: bool,
    everything: bool,
    age: float | None,
    dry_run: bool,
    yes: bool,
    state: str | None,
    as_json: bool,
) -> int:
    """Delete the folders of finished runs.

    Select runs by name, --ended, --older-than or --all. Running runs are never removed. Resumable
    runs are removed only by name or with --all. If a run's folder contains files that Ensemble did
    not write, or if another user owns the run or can write to it, the run is kept. Job output
    outside the folder is kept, too. The exit code is 1 if a selected run was kept.
    """
    with errors_as_json(as_json):
        if not (runs or ended or everything or age is not None):
            raise click.UsageError(
                "no runs selected: name runs, or use --ended, --older-than 30d or --all"
            )
        if runs and (ended or everything):
            raise click.UsageError("run names cannot be combined with --ended or --all")
        home = state_folder(state)
        found = (
            list(dict.fromkeys(find_run(home, name) for name in runs))
            if runs
            else run_folders(home)
        )
        chosen = []
        for folder in found:
            info = read_info(folder)
            kept = _keep_reason(info, bool(runs), everything, age)
            if kept is None:
                continue
            jobs = 0 if kept else _queued_jobs(info)
            if jobs and info.state in ("new", "unreadable"):
                alive = count_of(jobs, "job")
                kept = f"{alive} may still be running; 'ensemble cancel {info.tag}' ends them"
            chosen.append(_Case(info, _size(folder), jobs, kept))
        going = [case for case in chosen if not case.kept]
        if not dry_run and not _confirm(going, yes, as_json):
            return 1
        freed = 0
        for case in chosen:
            if not case.kept and not dry_run:
                case.kept = _remove(case.info.folder)
            if not case.kept:
                freed += case.size
            _print_case(case, dry_run, as_json)
        gone = sum(not case.kept for case in chosen)
        if as_json:
            total = {"type": "total", "removed": 0 if dry_run else gone, "bytes": freed}
            print_line(to_json({**total, "dry_run": dry_run}))
        else:
            word = "would be removed" if dry_run else "removed"
            print_line(f"{count_of(gone, 'run')} {word}, {format_size(freed)}")
        return int(any(case.kept for case in chosen))


def _keep_reason(info: RunInfo, named: bool, everything: bool, age: float | None) -> str | None:
    """Return the reason why a run is kept.

    It is empty if the run may be removed, and ``None`` if the run is not selected.
    """
    if not named and not everything and info.state != "ended":
        return None
    if age is not None and time.time() - _last_change(info) < age:
        return "it is newer than --older-than" if named else None
    if info.state == "running":
        who = info.controller or {}
        return f"in use by process {who.get('pid')} on {who.get('host')}" if named else None
    if not is_own(info.folder):
        return "it belongs to another user, or others can write in its folder"
    if not is_run_folder(info.folder):
        return f"{info.folder / NAME} is not a journal of Ensemble"
    return ""


def _last_change(info: RunInfo) -> float:
    """Return the time of the run's last event."""
    if info.ended is not None:
        return info.ended
    newest = 0.0
    for name in (NAME, f"{NAME}-wal"):
        with contextlib.suppress(OSError):
            stat = (info.folder / name).stat()
            if stat.st_size:  # reading a journal creates an empty -wal file
                newest = max(newest, stat.st_mtime)
    return newest


def _size(folder: Path) -> int:
    """Return how many bytes a folder uses on disk."""
    total = 0
    for where, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(where, name)).st_blocks * 512
    return total


def _queued_jobs(info: RunInfo) -> int:
    """Return how many jobs of a run may still be in its queue."""
    if info.state in ("new", "unreadable"):
        return leftover_jobs(info.folder, load_plugins)
    try:
        with KeptRun(None, f"{info.folder}{os.sep}") as past:
            if info.state == "ended" and not (past.journal.sessions()[-1].outcome or {}).get(
                "left"
            ):
                return 0
            return len(past.recover(compare=False).engine.in_queue())
    except EnsembleError:
        return leftover_jobs(info.folder, load_plugins)


def _confirm(going: list[_Case], yes: bool, as_json: bool) -> bool:
    """Return True if the runs may be removed.

    On a terminal, ask the user. Otherwise, raise an error if jobs may still be in a queue.
    """
    if yes or not going:
        return True

    busy = [case for case in going if case.jobs]
    for case in busy:
        jobs, tag = count_of(case.jobs, "job"), in_one_line(case.info.tag)
        print_warning(
            f"the queue may still have {jobs} of run {tag}: 'ensemble cancel {tag}' ends them; "
            "this is impossible once the run is removed"
        )
    if sys.stdin is not None and sys.stdin.isatty() and not as_json:
        size = format_size(sum(case.size for case in going))
        number = count_of(len(going), "run")
        resumable = sum(case.info.state in ("stopped", "limited", "interrupted") for case in going)
        also = f", {resumable} resumable" if resumable else ""
        for case in going:
            click.echo(f"{in_one_line(str(case.info.folder))}  {format_size(case.size)}", err=True)
        return click.confirm(f"remove {number} ({size}{also})?", err=True)
    unreadable = [case.info.folder for case in going if case.info.state == "unreadable"]
    if unreadable:
        raise UsageError(
            f"cannot read {len(unreadable)} of the {len(going)} runs to be removed: "
            f"{in_one_line(str(unreadable[0]))}",
            cause="their jobs may still be running",
            hint="inspect the folder, or add --yes to remove all these runs anyway",
            code="unreadable-run",
        )
    if busy:
        raise UsageError(
            f"{len(busy)} of the {len(going)} runs to be removed may still have jobs in the queue",
            hint="cancel the jobs first, or add --yes to remove the runs anyway",
            code="jobs-queued",
        )
    return True


def _remove(folder: Path) -> str:
    """Remove the folder of a run. Return an empty text, or the reason if that fails."""
    lock = Lock(folder)
    try:
        lock.acquire()  # prevents a resume during the removal
    except EnsembleError as error:
        return error.what
    try:
        return remove_run_folder(folder)
    finally:
        lock.release()


def _print_case(case: _Case, dry_run: bool, as_json: bool) -> None:
    info = case.info
    if as_json:
        told = {
            "type": "run",
            "tag": info.tag,
            "state": info.state,
            "removed": not case.kept and not dry_run,
            "bytes": case.size,
            "queued": case.jobs,
            "kept": case.kept,
            "folder": str(info.folder),
        }
        print_line(to_json(told))
    elif case.kept:
        print_warning(in_one_line(f"keeping run {info.tag}: {case.kept}"))
    else:
        queued = f"  the queue may still have {count_of(case.jobs, 'job')}" if case.jobs else ""
        print_line(f"{in_one_line(info.tag)}  {info.state}  {format_size(case.size)}{queued}")
