"""Run store: the folders of all runs, their tags, look-up of a run by name, and the state of each.

The folder of a run is ``STATE/runs/TAG``.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

from ensemble_core.errors import EnsembleError, UsageError, did_you_mean
from ensemble_core.journal.lock import Lock, taken_error
from ensemble_core.journal.run_folder import BEGAN, NAME, PERFORMED, JournalError, read_note
from ensemble_core.late_pattern import late_pattern
from ensemble_core.posix import private_folder
from ensemble_core.quick_dataclass import dataclass


def state_folder(given: str | os.PathLike[str] | None) -> Path:
    """Return the folder ``STATE``, which contains all runs.

    It is ``given``, else the variable ``ENSEMBLE_STATE``, else the user's state folder.
    """
    named = given or os.environ.get("ENSEMBLE_STATE")
    if named:
        return Path(named).expanduser().absolute()
    import platformdirs

    return platformdirs.user_state_path("ensemble").absolute()


def new_folder(state: Path, tag: str) -> Path:
    """Create and return the folder of a new run. Raises :class:`JournalError` if that fails."""
    folder = state / "runs" / tag
    try:
        # Other users must not be able to write here, regardless of the umask.
        private_folder(state / "runs")
        folder.mkdir(mode=0o700)
    except OSError as error:
        if isinstance(error, FileExistsError) and folder.exists():
            raise taken_error(folder) from error
        raise JournalError(
            f"cannot create the folder of the run: {folder}",
            cause=error.strerror or str(error),
            hint="choose another place with --state or ENSEMBLE_STATE, or run without a journal "
            "with --no-journal",
            code="no-state",
        ) from error
    return folder


State = Literal["running", "ended", "stopped", "limited", "interrupted", "new", "unreadable"]


#: States in which the last controller has exited normally, with an exit code.
LEFT = ("ended", "stopped", "limited")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A run, as lists of runs show it. Times are in seconds since the epoch.

    States:

    - ``running``: the run has a controller;
    - ``ended``: the run is over;
    - ``stopped``: the run was stopped, or a generator failed; it can be resumed;
    - ``limited``: limits hold the remaining jobs; the run can be resumed;
    - ``interrupted``: the controller neither ended nor stopped the run, for example because it was
      killed; the run can be resumed;
    - ``new``: the run was killed before its first event;
    - ``unreadable``: the journal cannot be read.
    """

    tag: str
    state: State
    name: str = ""
    file: str = ""
    executor: str = ""
    began: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    reason: str = ""
    left: bool = False  # whether the last controller left jobs to the queue
    events: int = 0
    controller: Mapping[str, Any] | None = None
    problem: str = ""  # damage to the journal
    folder: Path

    def to_dict(self) -> dict[str, Any]:
        """Return the run as plain data."""
        return {**asdict(self), "folder": str(self.folder)}


def read_info(folder: Path) -> RunInfo:
    """Return the state of the run in a folder, without reading its events."""
    from ensemble_core.journal.reader import Journal

    controller = Lock(folder).controller()
    try:
        with Journal(folder / NAME) as journal:
            about, sessions, events = journal.about, journal.sessions(), journal.last()
            missing = journal.missing_tail()
            if missing is not None and not events:
                raise missing
    except EnsembleError as error:
        lost = getattr(error, "code", "") != "never-began" or has_performed(folder)
        state: State = "running" if controller else "unreadable" if lost else "new"
        return RunInfo(
            tag=folder.name,
            folder=folder,
            state=state,
            began=began(folder),
            controller=controller,
            problem=str(error),
        )
    last = sessions[-1] if sessions else None
    outcome = last.outcome if last is not None else None
    if controller is not None:
        state = "running"
    elif outcome is not None and outcome.get("over"):
        state = "ended"
    elif outcome is not None and outcome.get("stopped"):
        state = "stopped"
    elif outcome is not None and outcome.get("natural"):
        # A resume continues runs that ended because of a limit or a failed generator.
        state = "limited" if outcome.get("exit_code") == 4 else "stopped"
    else:
        state = "interrupted" if events else "new"
    return RunInfo(
        tag=folder.name,
        folder=folder,
        state=state,
        name=str(about.get("name", "")),
        file=str(about.get("file", "")),
        executor=str(about.get("executor", {}).get("name", "")),
        began=began(folder),
        ended=last.ended if last is not None and state != "running" else None,
        exit_code=outcome.get("exit_code") if outcome and state in LEFT else None,
        reason=str(outcome.get("reason", "")) if outcome and state != "running" else "",
        left=bool(outcome and outcome.get("left")),
        events=events,
        controller=controller,
        problem="" if missing is None else str(missing),
    )


def has_performed(folder: Path) -> bool:
    """Return True if the run has carried out a decision.

    If it has, but the journal contains no event, data was lost.
    """
    path = folder / PERFORMED
    return path.exists() and path.stat().st_size > 0


def began(folder: Path) -> float | None:
    """Return when a run began, in seconds since the epoch, or ``None`` if unknown.

    All lists of runs are sorted by this time. It does not depend on modification times of files.
    """
    with contextlib.suppress(OSError, ValueError):
        seconds, checksum = read_note(folder / BEGAN).split()
        if int(checksum) == crc32(seconds):
            return _finite(float(seconds))
    from ensemble_core.journal.reader import Journal

    with (
        contextlib.suppress(EnsembleError, ValueError, IndexError),
        Journal(folder / NAME, salvage=True) as journal,
    ):
        return _finite(journal.sessions()[0].began)
    for stamp in re.findall(r"\d{8}T\d{6}", folder.name)[-1:]:
        with contextlib.suppress(ValueError, OverflowError):
            return time.mktime(time.strptime(stamp, "%Y%m%dT%H%M%S"))
    return None


def write_began(folder: Path, seconds: float) -> None:
    """Write the file ``began`` with its checksum. Raises :class:`OSError`."""
    text = repr(seconds).encode("ascii")
    (folder / BEGAN).write_bytes(b"%b %d\n" % (text, crc32(text)))


def _finite(seconds: float) -> float:
    if not math.isfinite(seconds):
        raise ValueError(seconds)
    return seconds


def run_folders(state: Path) -> list[Path]:
    """Return the folders of all runs, by start time. Runs without a known start come first."""
    try:
        with os.scandir(state / "runs") as entries:
            found = [
                Path(entry) for entry in entries if entry.is_dir() and _is_run_folder(Path(entry))
            ]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(state, error) from error
    return sorted(found, key=lambda folder: (began(folder) or 0.0, folder.name))


def _unreadable(state: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot read the folder of runs: {state / 'runs'}",
        cause=error.strerror or str(error),
        hint="make it readable, or choose another with --state or ENSEMBLE_STATE",
        code="no-state",
    )


def is_taken(state: Path, tag: str) -> bool:
    """Return whether a folder has the name of this tag. Raises :class:`UsageError`."""
    try:
        (state / "runs" / tag).stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unreadable(state, error) from error
    return True


def _is_run_folder(folder: Path) -> bool:
    """Return True if the folder belongs to a run, even if its journal is lost.

    Private folders of other users are not shown.
    """
    with contextlib.suppress(PermissionError):
        return (folder / NAME).exists() or (folder / PERFORMED).exists()
    return False


def _check_readable(folder: Path) -> None:
    try:
        (folder / NAME).stat()
    except PermissionError as error:
        raise UsageError(
            f"cannot read the run's folder: {folder}",
            cause=error.strerror,
            hint="only its owner can read it: make the folder and its files readable",
            code="no-such-run",
        ) from error
    except OSError:
        pass


def find_run(state: Path, name: str) -> Path:
    """Return the folder of a run. Raises :class:`UsageError`.

    ``name`` is the run's tag, a unique beginning or end of the tag, ``last`` for the newest run, or
    a path.
    """
    runs = run_folders(state)
    if name == "last" and runs:
        return runs[-1]
    if os.sep in name or name in (".", ".."):
        folder = Path(name).absolute()
        if folder.name == NAME:
            folder = folder.parent
        if _is_run_folder(folder):
            return folder
        _check_readable(folder)
        raise UsageError(
            f"there is no run in {folder}",
            hint="'ensemble runs' lists all runs",
            code="no-such-run",
        )
    for folder in runs:
        if folder.name == name:
            return folder
    fitting = [r for r in runs if r.name.startswith(name) or r.name.endswith(name)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        shown = ", ".join(run.name for run in fitting[-5:])
        raise UsageError(
            f"{name!r} matches {len(fitting)} runs",
            hint=f"choose one: {shown}; or 'last' for the newest run of all",
            code="ambiguous-run",
        )
    _check_readable(state / "runs" / name)
    names, form = [run.name for run in runs], "did you mean {}?"
    hint = did_you_mean(name, names, "'ensemble runs' lists all runs", form=form)
    raise UsageError(f"there is no run {name!r} in {state / 'runs'}", hint=hint, code="no-such-run")


_UNFIT = late_pattern(r"[^A-Za-z0-9._-]+")


def fit_tag(name: str) -> str:
    """Convert the name of an ensemble to a valid name for a folder."""
    return _UNFIT.sub("-", name).strip(".-") or "run"


def new_tag(name: str) -> str:
    """Return a unique name for a run, from the ensemble's name, the time and some random digits."""
    now = time.time()
    stamp = time.strftime("%Y%m%dT%H%M%S", time.localtime(now))
    return f"{name}-{stamp}-{int(now % 1 * 1000):03x}{os.urandom(2).hex()}"
