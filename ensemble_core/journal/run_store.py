"""Run store: the folders of runs, look-up by name, and the controller's lock.

Each run has a folder below ``STATE/runs`` with the name of its tag. It contains the journal, the
lock, the executor's files, and the output of jobs that name no file.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import socket
import stat
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

from ensemble_core.errors import EnsembleError, UsageError, did_you_mean
from ensemble_core.journal.filesystem import read_note
from ensemble_core.journal.lock_owner import LOCK, holder, in_words, may_live, this_process
from ensemble_core.journal.reader import NAME, PERFORMED, Journal, JournalError

__all__ = [
    "BEGAN",
    "HALT",
    "LEAVE",
    "LEFT",
    "LOCK",
    "STOP",
    "Lock",
    "RunInfo",
    "began",
    "find",
    "fit",
    "folders",
    "halt_asked",
    "has_performed",
    "is_own",
    "is_private",
    "leave_asked",
    "look",
    "new_folder",
    "new_tag",
    "require_own",
    "state_folder",
    "stop_asked",
    "write_began",
]

#: The time at which a run began, as text, in its folder. It is read for each run of a list, and it
#: is still known if the journal is damaged.
BEGAN = "began"

#: A file of this name in a run's folder asks its controller to stop.
STOP = "stop"
#: Present: stop so that the run can be resumed.
HALT = "halt"
#: And one of this name not to wait for what cannot be cancelled now.
LEAVE = "leave"
#: Seconds that a lock may be held by those who only look at it.
_PATIENCE = 0.5
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")


def state_folder(given: str | os.PathLike[str] | None) -> Path:
    """The folder below which runs are kept: ``given``, or ``ENSEMBLE_STATE``, or the user's own."""
    named = given or os.environ.get("ENSEMBLE_STATE")
    if named:
        return Path(named).expanduser().absolute()
    import platformdirs

    return platformdirs.user_state_path("ensemble").absolute()


def fit(name: str) -> str:
    """An ensemble's name as the name of a folder may be."""
    return _UNFIT.sub("-", name).strip(".-") or "run"


def new_tag(name: str) -> str:
    """Return a unique name for a run: the ensemble's name, the time and some random digits."""
    now = time.time()
    stamp = time.strftime("%Y%m%dT%H%M%S", time.localtime(now))
    return f"{name}-{stamp}-{int(now % 1 * 1000):03x}{os.urandom(2).hex()}"


def new_folder(state: Path, tag: str) -> Path:
    """Make the folder of a new run. Raises :class:`JournalError` where that cannot be done."""
    folder = state / "runs" / tag
    try:
        # Other users must not be able to write here, regardless of the umask.
        for made in (state, state / "runs"):
            made.mkdir(parents=True, mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise JournalError(
            f"no folder can be made for this run: {folder}",
            cause=error.strerror or str(error),
            hint="name another place with --state or ENSEMBLE_STATE, or run without a record with "
            "--no-journal",
            code="no-state",
        ) from error
    return folder


def is_own(folder: Path) -> bool:
    """True if a run is the caller's and nobody else may write it, the caller's group included: so
    that nobody else can have written what is run when it is read, plugins that it names among it.
    """
    return all(is_private(path) for path in (folder, folder / NAME) if path.exists())


def is_private(path: Path) -> bool:
    """Return whether the caller owns a file or folder and nobody else can write to it, including
    the caller's group. If it is a link, the caller must own that too."""
    status, me = path.stat(), os.geteuid()
    loose = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return status.st_uid == path.lstat().st_uid == me and not loose


def require_own(folder: Path) -> None:
    """Raise :class:`UsageError` if somebody else owns this run or can write to it."""
    if not is_own(folder):
        raise UsageError(
            f"run {folder.name} belongs to another user, or others can write in its folder: "
            f"{folder}",
            hint="the user who started it can resume it",
            code="not-yours",
        )


# -- who controls a run ----------------------------------------------------------------------------


def _lock_patiently(descriptor: int) -> None:
    """Lock a file for ourselves. Who only looks whether it is locked holds it for a moment."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


class Lock:
    """The lock of a run: one controller holds it until :meth:`release` or its end.

    The file names its owner for error messages. On file systems without locks (Lustre without
    ``flock``), the recorded owner decides.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self._descriptor: int | None = None

    def acquire(self, *, take_over: bool = False) -> None:
        """Take the run. Raises :class:`JournalError` naming the controller that has it.

        ``take_over`` believes the user, where nothing else can tell, that a controller on another
        machine is gone.
        """
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(
                f"the lock of this run cannot be opened: {self.path}",
                cause=error.strerror or str(error),
                hint="let this user write to that folder, or name another with --state",
                code="unwritable",
            ) from error
        try:
            try:
                _lock_patiently(descriptor)
                locked = True
            except BlockingIOError:
                raise self._refusal(self.holder()) from None
            except OSError:
                locked = False  # this file system has no locks
            other = None if locked or take_over else self.holder()
            if other is not None and may_live(other):
                raise self._refusal(other)
            me = {**this_process(), "locked": locked}
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(me).encode(), 0)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError):
                raise JournalError(
                    f"the lock of this run cannot be written: {self.path}",
                    cause=error.strerror or str(error),
                    hint="free some space, or name another folder with --state",
                    code="full",
                ) from error
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Let the run go."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> Mapping[str, Any] | None:
        """The recorded owner, present or (after a kill) last; ``None`` if it has none."""
        return holder(self.path)

    def controller(self) -> Mapping[str, Any] | None:
        """Return the run's present controller, or ``None``."""
        named = self.holder()
        if named is None:
            return None
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return named
        except OSError:
            return named if may_live(named) else None
        finally:
            os.close(descriptor)
        return named if not named.get("locked", True) and may_live(named) else None

    def _refusal(self, named: Mapping[str, Any] | None) -> JournalError:
        who = "another controller"
        hint = f"'ensemble stop {self.path.parent.name}' stops it; 'ensemble resume' then goes on"
        if named is not None:
            who = in_words(named)
            if named.get("host") != socket.gethostname() and not named.get("locked", True):
                hint += "; if it is gone for certain, --take-over takes the run from it"
        return JournalError(
            f"run {self.path.parent.name} is controlled by {who}", hint=hint, code="locked"
        )


def stop_asked(folder: Path) -> str | None:
    """The user who asked this run's controller to cancel the run, or ``None``."""
    return _asked(folder / STOP)


def halt_asked(folder: Path) -> str | None:
    """The user who asked this run's controller to stop until a resume, or ``None``."""
    return _asked(folder / HALT)


def _asked(file: Path) -> str | None:
    try:
        return read_note(file).decode().strip() or "somebody"
    except (OSError, ValueError):
        return None


def leave_asked(folder: Path) -> bool:
    """True if the controller is not to wait for what cannot be cancelled now."""
    return os.path.exists(folder / LEAVE)


# -- finding runs ----------------------------------------------------------------------------------

State = Literal["running", "ended", "stopped", "limited", "interrupted", "new", "unreadable"]


#: States in which the last controller exited by itself, with an exit code.
LEFT = ("ended", "stopped", "limited")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """One run in a list. Times are seconds since the epoch.

    ``running``: a controller has it. ``ended``: its end was reached. ``stopped``: it was stopped,
    or generators of it are at fault, ``limited``: its limits hold what is left of it,
    ``interrupted``: its controller was killed, or left at once; all three can be resumed. ``new``:
    killed before anything happened. ``unreadable``: ``problem`` says why, and of
    any other what is missing of its journal. ``left``: its last
    controller left jobs to the queue.
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
    left: bool = False
    events: int = 0
    controller: Mapping[str, Any] | None = None
    problem: str = ""
    folder: Path

    def to_dict(self) -> dict[str, Any]:
        """The run as plain data."""
        return {**asdict(self), "folder": str(self.folder)}


def look(folder: Path) -> RunInfo:
    """The state of a run as its folder shows it, without reading its history."""
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
        # Ends that a resume revokes: by a limit, or by failed generators.
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
    """True if anything of the run was carried out: its journal is lost where it has nothing."""
    path = folder / PERFORMED
    return path.exists() and path.stat().st_size > 0


def began(folder: Path) -> float | None:
    """Return when a run began, in seconds since the epoch: the order of runs, everywhere.

    Read from the file ``began``, so copying or touching the folder changes nothing; if that is
    missing or damaged, from the journal, or else from the time in a tag. ``None`` if unknown.
    """
    with contextlib.suppress(OSError, ValueError):
        seconds, checksum = read_note(folder / BEGAN).split()
        if int(checksum) == crc32(seconds):
            return _finite(float(seconds))
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
    """Write the file that says when a run began, with its checksum. Raises :class:`OSError`."""
    text = repr(seconds).encode("ascii")
    (folder / BEGAN).write_bytes(b"%b %d\n" % (text, crc32(text)))


def _finite(seconds: float) -> float:
    if not math.isfinite(seconds):
        raise ValueError(seconds)
    return seconds


def folders(state: Path) -> list[Path]:
    """Return the folders of runs by start time. Runs without a known start time come first, so they
    are never the newest while another run has one."""
    try:
        with os.scandir(state / "runs") as entries:
            found = [Path(entry) for entry in entries if entry.is_dir() and _is_kept(Path(entry))]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(
            f"the folder of runs cannot be read: {state / 'runs'}",
            cause=error.strerror or str(error),
            hint="let this user read it, or name another with --state or ENSEMBLE_STATE",
            code="no-state",
        ) from error
    return sorted(found, key=lambda folder: (began(folder) or 0.0, folder.name))


def _is_kept(folder: Path) -> bool:
    """True if there is a run, be it one whose journal is lost."""
    return (folder / NAME).exists() or (folder / PERFORMED).exists()


def find(state: Path, name: str) -> Path:
    """The folder of a run: by its tag, by the beginning or the end of its tag if that fits one run
    only, ``last`` for the newest, or by the folder itself. Raises :class:`UsageError`."""
    runs = folders(state)
    if name == "last" and runs:
        return runs[-1]
    if os.sep in name or name in (".", ".."):
        folder = Path(name).absolute()
        if folder.name == NAME:
            folder = folder.parent
        if _is_kept(folder):
            return folder
        raise UsageError(
            f"there is no run in {folder}", hint="'ensemble runs' lists them", code="no-such-run"
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
            f"{len(fitting)} runs are called {name!r}",
            hint=f"say which: {shown}; or 'last' for the newest run of all",
            code="ambiguous-run",
        )
    names, form = [run.name for run in runs], "did you mean {}?"
    hint = did_you_mean(name, names, "'ensemble runs' lists them", form=form)
    raise UsageError(f"there is no run {name!r} in {state / 'runs'}", hint=hint, code="no-such-run")
