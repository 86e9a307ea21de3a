"""State of a run: running, ended, stopped, limited, interrupted or new, and when it began."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

from ensemble_core.errors import EnsembleError
from ensemble_core.journal.lock import Lock
from ensemble_core.journal.run_folder import BEGAN, NAME, PERFORMED, read_note
from ensemble_core.quick_dataclass import dataclass

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
