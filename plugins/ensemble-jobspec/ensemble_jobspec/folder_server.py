"""Server of a folder: runs the jobspecs that are moved into it, each once, whatever is killed when.

The server claims a file by moving it from ``new`` to ``running``, under the tag of its run, and
moves it to ``done`` or ``failed`` once the run is over. If a server finds files in ``running`` when
it starts, it resumes their runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ensemble_core import EnsembleError, ExecutorError, UsageError
from ensemble_core.cli.toolkit import KeptRun, is_private, print_line, print_warning, state_folder

__all__ = ["Runs", "Server"]

_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
_SUFFIXES = (".yaml", ".yml", ".json")
_FOLDERS = ("new", "running", "done", "failed")
_FOREIGN = "another user owns it or can write to it"
#: Seconds until a controller that ended before its run was over is begun again: first, and at most.
_FIRST, _MOST = 1.0, 60.0
#: Controllers in a row that end so, until a server that is to end gives up.
_TRIES = 5
#: Exit codes of runs that were stopped and can be gone on with.
_STOPPED = (5, 129, 130, 142, 143)
#: The command ``ensemble`` of this environment.
_PROGRAM = (
    sys.executable,
    "-c",
    "import sys; from ensemble_core.cli.main import main; main(sys.argv[1:])",
)


class _Ended(NamedTuple):
    """A jobspec that is over: its file, an exit code, and why that is not 0."""

    file: Path
    code: int
    why: str


class _Backoff:
    """Waits between controllers that end before their run is over: twice as long each time. One
    that went on for a while is taken for the first; with ``once`` all are counted, to give up."""

    def __init__(self, *, once: bool) -> None:
        self._once = once
        self._tries = 0

    def reset(self) -> None:
        """Take it that the run is over."""
        self._tries = 0

    def failed(self, started: float) -> tuple[float, bool]:
        """When the next may be begun (seconds of the monotonic clock), as one that was started then
        has ended; and whether it was the first."""
        now = time.monotonic()
        self._tries = 1 if not self._once and now - started > _MOST else self._tries + 1
        return now + min(_MOST, _FIRST * 2 ** min(self._tries - 1, 10)), self._tries == 1

    @property
    def is_enough(self) -> bool:
        """True if another is not to be begun."""
        return self._once and self._tries >= _TRIES


class Server:
    """The server of one folder."""

    def __init__(self, folder: Path, runs: Runs, *, every: float = 2.0) -> None:
        self._folder = folder
        self._runs = runs
        self._every = max(0.05, every)
        self._sizes: dict[Path, tuple[int, int]] = {}
        #: Files that somebody else may have written: they are left alone.
        self._foreign: set[Path] = set()
        self._stopping = False

    def serve(self, *, once: bool = False) -> int:
        """Serve until a signal ends it, or with ``once`` until nothing is left; the exit code.

        Raises :class:`UsageError` where the folder cannot be had, or another serves it, and
        :class:`ExecutorError` where ``once`` leaves something that is not over.
        """
        _make_folders(self._folder)
        with self._lock_folder(), self._signals():
            claimed = sorted((self._folder / "running").glob("*.*"))
            waiting = [
                file for file in claimed if file.suffix in _SUFFIXES and self._is_owned(file)
            ]
            while not self._stopping:
                self._end()
                waiting = self._runs.begin(waiting)
                arrived = self._claim()
                waiting += arrived
                if once and not (waiting or self._runs.busy or self._sizes):
                    break
                if not arrived:
                    busy = self._runs.busy or waiting
                    time.sleep(min(self._every, 0.2) if busy else self._every)
            self._runs.stop()
            self._end()
            if once and self._runs.gave_up and not self._stopping:
                raise self._check_leftovers()
        return 0

    def _check_leftovers(self) -> ExecutorError:
        left = [file for file in (self._folder / "running").iterdir() if file.suffix in _SUFFIXES]
        what = "a jobspec is" if len(left) == 1 else f"{len(left)} jobspecs are"
        return ExecutorError(
            f"{what} not over, and left in {str(self._folder / 'running')!r}",
            cause=self._runs.gave_up,
            hint="nothing is lost: the next 'ensemble jobspec serve' goes on with them",
            code="left-over",
        )

    @contextlib.contextmanager
    def _lock_folder(self) -> Iterator[None]:
        with open(self._folder / ".lock", "a", opener=_private) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                raise UsageError(
                    f"another serves {str(self._folder)!r}",
                    hint="end that one first, or serve another folder",
                    code="already-served",
                ) from None
            except OSError as error:
                print_warning(
                    f"the file system of {str(self._folder)!r} has no locks ({error.strerror}): "
                    "see to it that no other process serves this folder"
                )
            yield

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def stop(*_: object) -> None:
            self._stopping = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _claim(self) -> list[Path]:
        """The files that are complete, moved where they are ours."""
        claimed = []
        seen = {}
        for file in sorted((self._folder / "new").iterdir()):
            if file.suffix not in _SUFFIXES or file.name.startswith("."):
                continue
            try:
                if not self._is_owned(file):
                    continue
                status = file.stat()
                seen[file] = (status.st_size, status.st_mtime_ns)
                if self._sizes.get(file) != seen[file]:
                    continue  # perhaps it still grows: at the next look
                stem = _OTHER.sub("-", file.stem)[:60].strip("-") or "jobspec"
                tag = f"{stem}-{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}"
                target = self._folder / "running" / f"{tag}{file.suffix}"
                file.rename(target)
            except FileNotFoundError:
                continue
            del seen[file]
            claimed.append(target)
        self._sizes = seen
        return claimed

    def _is_owned(self, file: Path) -> bool:
        """Return whether nobody else can have written a file; warn once of any other."""
        if is_private(file):
            return True
        if file not in self._foreign:
            self._foreign.add(file)
            print_warning(f"{file} is not run: {_FOREIGN}; check it, then chown and chmod go-w it")
        return False

    def _end(self) -> None:
        for file, code, why in self._runs.ended():
            self._finish(file, f"exit code {code}{f': {why}' if why else ''}", code)

    def _finish(self, file: Path, why: str, code: int) -> None:
        """Say how it went, and move what belongs to the file; the file itself last."""
        where = self._folder / ("failed" if code else "done")
        log = file.with_suffix(".log")
        told = where / f"{file.stem}.txt"
        with open(told, "w", encoding="utf-8", opener=_private) as text:
            text.write(f"{why}\n")
        with contextlib.suppress(FileNotFoundError):
            os.replace(log, where / log.name)
        os.replace(file, where / file.name)
        print_line(f"{file.name}: {where.name}, {why}")


def _private(path: str, flags: int) -> int:
    """Open a file, for :func:`open`, so that one that is made is its user's alone."""
    return os.open(path, flags, 0o600)


def _make_folders(folder: Path) -> None:
    """Make the folders of a served one, its user's alone. Raise :class:`UsageError` if that cannot
    be done, or others may put files there: what they write would run as this user."""
    try:
        for name in ("", *_FOLDERS):
            (folder / name).mkdir(mode=0o700, parents=not name, exist_ok=True)
        for path in (folder, *(folder / name for name in _FOLDERS)):
            if path.exists() and not is_private(path):
                raise UsageError(
                    f"cannot serve {str(path)!r}: {_FOREIGN}",
                    cause="files that others put there would run as you",
                    hint=f"serve a folder of your own, or: chmod go-w {path}",
                    code="not-yours",
                )
    except OSError as error:
        raise UsageError(
            f"cannot use the folder {str(folder)!r}: {error.strerror}", code="unreadable-file"
        ) from None


class Runs:
    """A run for each jobspec, so many at a time. ``words`` are further options of ``ensemble
    jobspec run``; with ``once`` those whose controllers end too soon are given up.

    The journal says whether a run is over, not the exit code. ``gave_up`` says why a run is left
    to the next server; empty if none is.
    """

    def __init__(
        self,
        words: Sequence[str] = (),
        state: str | None = None,
        *,
        at_once: int = 4,
        once: bool = False,
    ) -> None:
        self._words = [*words, *(["--state", state] if state else [])]
        self._state = state
        self._at_once = max(1, at_once)
        self._once = once
        self._running: dict[Path, _Controller] = {}
        #: Those to be begun again, and from when on.
        self._again: dict[Path, float] = {}
        self._backoffs: dict[Path, _Backoff] = {}
        self._stopping = False
        self.gave_up = ""

    @property
    def busy(self) -> bool:
        """True while one is under way, or is to be gone on with."""
        return bool(self._running or self._again)

    def begin(self, files: Sequence[Path]) -> list[Path]:
        """Run claimed files, or go on with their runs; those that are to wait."""
        now = time.monotonic()
        for file in [file for file, when in self._again.items() if when <= now]:
            if len(self._running) < self._at_once and self._begin(file):
                del self._again[file]
        return [
            file for file in files if len(self._running) >= self._at_once or not self._begin(file)
        ]

    def _begin(self, file: Path) -> bool:
        """Run a file. ``False`` while the process of an earlier server is at it, which holds a lock
        on the file."""
        words = ["jobspec", "run", str(file), "--tag", file.stem, "--or-resume", "--no-progress"]
        if not file.exists():
            print_line(f"{file.name}: it is not there any more; its run is left as it is")
            self._backoffs.pop(file, None)
            return True
        # Over NFS a lock needs a file that may be written.
        mode = "r+b" if os.access(file, os.W_OK) else "rb"
        with file.open(mode) as held, open(file.with_suffix(".log"), "ab", opener=_private) as log:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                return False
            except OSError:
                pass  # this file system has no locks: what the run's own says of its holder decides
            process = subprocess.Popen(
                [*_PROGRAM, *words, *self._words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is handed on by us
                pass_fds=[held.fileno()],  # the lock is the process's, however this one ends
            )
            self._running[file] = _Controller(process, time.monotonic(), log.tell())
        if file not in self._backoffs:
            self._backoffs[file] = _Backoff(once=self._once)
            print_line(f"{file.name}: begun")
        return True

    def ended(self) -> list[_Ended]:
        """Jobspecs that are over since the last look."""
        found = []
        for file, controller in list(self._running.items()):
            code = controller.process.poll()
            if code is None:
                continue
            del self._running[file]
            stands = _run_state(self._state, file.stem)
            why = _failure_line(file.with_suffix(".log"), controller.log_from) if code else ""
            if code >= 0 and _is_over(stands, code):
                found.append(_Ended(file, code, why))
                del self._backoffs[file]
            else:
                self._schedule_restart(file, controller, code, why)
        return found

    def _schedule_restart(self, file: Path, controller: _Controller, code: int, why: str) -> None:
        """Take it that a controller has ended before its run was over."""
        if self._stopping or code in _STOPPED:  # by us, or by who stopped the run
            self.gave_up = f"{file.name}: it was stopped"
            print_line(f"{file.name}: stopped; it is gone on with next time")
            return
        when, first = self._backoffs[file].failed(controller.started)
        told = f"its controller ended with exit code {code} before the run was over: {why}"
        if self._backoffs[file].is_enough:
            self.gave_up = f"{file.name}: {told}"
            return
        self._again[file] = when
        if first:
            print_line(f"{file.name}: {told}; it is begun again until it is")

    def stop(self) -> None:
        """Stop what is under way, so that the next server goes on with it."""
        self._stopping = True
        for controller in self._running.values():
            controller.process.terminate()
        for controller in self._running.values():
            controller.process.wait()


class _Controller(NamedTuple):
    """A controller: its process, when it was begun, and where its output begins in the log."""

    process: subprocess.Popen[bytes]
    started: float
    log_from: int


def _failure_line(log: Path, begin: int = 0) -> str:
    """The line of a run's output, from this byte on, that says most of why it failed."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", "replace").splitlines()
    for words in (("error:", ": unknown key"), ("failed",), ("exit code",)):
        for line in lines:
            if any(word in line for word in words):
                return line.strip()
    return lines[0].strip() if lines else "it said nothing"


def _run_state(state: str | None, tag: str) -> str:
    """Return the state of a run (``ended`` …); ``new`` if nothing of it is on record."""
    try:
        with KeptRun(state, tag) as kept:
            return kept.state if kept.journal.texts() else "new"
    except EnsembleError as error:
        journal = state_folder(state) / "runs" / tag / "journal.db"
        return "new" if error.code == "never-began" or not journal.exists() else "unreadable"


def _is_over(state: str, code: int) -> bool:
    """Return whether nothing is left to resume after a controller that ended with this code."""
    # It was refused before it began; what else kept it from beginning may pass.
    return state == "ended" or (state == "new" and code == 2)
