"""Folder server: runs, exactly once, each jobspec that users move into a folder.

The server moves a file from ``new`` to ``running``, and to ``done`` or ``failed`` when its run is
over. On start, it resumes the runs of the files in ``running``.
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

from ensemble_core import EnsembleError, ExecutorError, UsageError, private_folder
from ensemble_core.cli.toolkit import KeptRun, is_private, print_line, print_warning, state_folder

_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
_SUFFIXES = (".yaml", ".yml", ".json")
_FOLDERS = ("new", "running", "done", "failed")
_FOREIGN = "another user owns it or can write to it"
#: Seconds until a controller that died early is restarted: first and longest delay.
_FIRST, _MOST = 1.0, 60.0
#: With ``once``, the number of early deaths in a row after which a run is given up.
_TRIES = 5
#: Exit codes of stopped runs, which can be resumed.
_STOPPED = (5, 129, 130, 142, 143)
#: The command ``ensemble`` of this environment.
_PROGRAM = (
    sys.executable,
    "-c",
    "import sys; from ensemble_core.cli.main import main; main(sys.argv[1:])",
)


class _Ended(NamedTuple):
    """A jobspec whose run is over."""

    file: Path
    code: int  # exit code
    why: str  # reason for an exit code other than 0


class _Backoff:
    """Exponential backoff between controllers that die early."""

    def __init__(self, *, once: bool) -> None:
        self._once = once
        self._tries = 0

    def failed(self, started: float) -> tuple[float, bool]:
        """Count the death of a controller that was started at ``started``.

        Return when to start the next one (monotonic seconds), and whether this was the first death.
        """
        now = time.monotonic()
        # A controller that has run for a while resets the backoff, except with ``once``.
        self._tries = 1 if not self._once and now - started > _MOST else self._tries + 1
        return now + min(_MOST, _FIRST * 2 ** min(self._tries - 1, 10)), self._tries == 1

    @property
    def is_enough(self) -> bool:
        """True if the run should be given up."""
        return self._once and self._tries >= _TRIES


class Server:
    """The server of one folder."""

    def __init__(self, folder: Path, runs: Runs, *, every: float = 2.0) -> None:
        self._folder = folder
        self._runs = runs
        self._every = max(0.05, every)
        self._sizes: dict[Path, tuple[int, int]] = {}
        #: Files that other users may have written; they are ignored.
        self._foreign: set[Path] = set()
        self._stopping = False

    def serve(self, *, once: bool = False) -> int:
        """Serve until a signal, or with ``once`` until no file is left. Return the exit code.

        Raises :class:`UsageError` if the folder cannot be used or another server uses it, and
        :class:`ExecutorError` if ``once`` leaves an unfinished jobspec.
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
        what = "1 jobspec is" if len(left) == 1 else f"{len(left)} jobspecs are"
        return ExecutorError(
            f"{what} unfinished in {str(self._folder / 'running')!r}",
            cause=self._runs.gave_up,
            hint="run 'ensemble jobspec serve' again to resume these jobspecs",
            code="left-over",
        )

    @contextlib.contextmanager
    def _lock_folder(self) -> Iterator[None]:
        with open(self._folder / ".lock", "a", opener=_private) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                raise UsageError(
                    f"another server uses {str(self._folder)!r}",
                    hint="stop it first, or serve another folder",
                    code="already-served",
                ) from None
            except OSError as error:
                print_warning(
                    f"the file system of {str(self._folder)!r} does not support locks "
                    f"({error.strerror}): make sure that no other process serves this folder"
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
        """Move the complete files to ``running`` and return them."""
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
                    continue  # the file may still grow; check again later
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
        """Return whether only this user can have written the file; warn once about other files."""
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
        """Write the result, and move the jobspec's files, the jobspec itself last."""
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
    """Open a file with mode 600, as an opener for :func:`open`."""
    return os.open(path, flags, 0o600)


def _make_folders(folder: Path) -> None:
    """Create the server's folders, accessible only to this user.

    Raises :class:`UsageError` if that fails, or if other users can write to the folders: files of
    other users would run as this user.
    """
    try:
        for name in ("", *_FOLDERS):
            private_folder(folder / name)
        for path in (folder, *(folder / name for name in _FOLDERS)):
            if path.exists() and not is_private(path):
                raise UsageError(
                    f"cannot serve {str(path)!r}: {_FOREIGN}",
                    cause="files that other users put there would run as you",
                    hint=f"serve one of your own folders, or run: chmod go-w {path}",
                    code="not-yours",
                )
    except OSError as error:
        raise UsageError(
            f"cannot use the folder {str(folder)!r}: {error.strerror}", code="unreadable-file"
        ) from None


class Runs:
    """The runs of jobspecs, at most ``at_once`` at a time.

    Each run is controlled by a process ``ensemble jobspec run``, with the additional options
    ``words``. A process that dies before its run is over is restarted after a delay. With ``once``,
    the run is given up after a few deaths.
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
        #: Runs to restart, each with the time to do so.
        self._again: dict[Path, float] = {}
        self._backoffs: dict[Path, _Backoff] = {}
        self._stopping = False
        #: Why a run is left to the next server: it was given up or stopped. Empty otherwise.
        self.gave_up = ""

    @property
    def busy(self) -> bool:
        """True if a run is active or waits for a restart."""
        return bool(self._running or self._again)

    def begin(self, files: Sequence[Path]) -> list[Path]:
        """Start or resume the runs of claimed files. Return the files that must wait."""
        now = time.monotonic()
        for file in [file for file, when in self._again.items() if when <= now]:
            if len(self._running) < self._at_once and self._begin(file):
                del self._again[file]
        return [
            file for file in files if len(self._running) >= self._at_once or not self._begin(file)
        ]

    def _begin(self, file: Path) -> bool:
        """Start the run of a file. Return False while an earlier server holds its lock."""
        words = ["jobspec", "run", str(file), "--tag", file.stem, "--or-resume", "--no-progress"]
        if not file.exists():
            print_line(f"{file.name}: the file is gone; its run is left as it is")
            self._backoffs.pop(file, None)
            return True
        # Over NFS, a lock needs a writable file.
        mode = "r+b" if os.access(file, os.W_OK) else "rb"
        with file.open(mode) as held, open(file.with_suffix(".log"), "ab", opener=_private) as log:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                return False
            except OSError:
                pass  # this file system has no locks: rely on the lock of the run itself
            begin = log.tell()  # the process shares this position and moves it
            process = subprocess.Popen(
                [*_PROGRAM, *words, *self._words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # we forward Ctrl-C
                pass_fds=[held.fileno()],  # the process keeps the lock, however this one ends
            )
            self._running[file] = _Controller(process, time.monotonic(), begin)
        if file not in self._backoffs:
            self._backoffs[file] = _Backoff(once=self._once)
            print_line(f"{file.name}: started")
        return True

    def ended(self) -> list[_Ended]:
        """Return the jobspecs that finished since the last call."""
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
        """Handle a controller that ended before its run was over."""
        if self._stopping or code in _STOPPED:  # by us, or by the user
            self.gave_up = f"{file.name}: it was stopped"
            print_line(f"{file.name}: stopped; the next server resumes it")
            return
        when, first = self._backoffs[file].failed(controller.started)
        told = f"its controller ended with exit code {code} before the run was over: {why}"
        if self._backoffs[file].is_enough:
            self.gave_up = f"{file.name}: {told}"
            return
        self._again[file] = when
        if first:
            print_line(f"{file.name}: {told}; it will be restarted")

    def stop(self) -> None:
        """Stop the active runs; the next server resumes them."""
        self._stopping = True
        for controller in self._running.values():
            controller.process.terminate()
        for controller in self._running.values():
            controller.process.wait()


class _Controller(NamedTuple):
    """A controller: its process, start time, and the position in the log where its output
    begins.
    """

    process: subprocess.Popen[bytes]
    started: float
    log_from: int


def _failure_line(log: Path, begin: int = 0) -> str:
    """Return the most informative line of a failed run's output, from byte ``begin`` on."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", "replace").splitlines()
    for words in (("error:", ": unknown key"), ("failed",), ("exit code",)):
        for line in lines:
            if any(word in line for word in words):
                return line.strip()
    return lines[0].strip() if lines else "it printed nothing"


def _run_state(state: str | None, tag: str) -> str:
    """Return the state of a run (``ended`` …), or ``new`` if it has no journal."""
    try:
        with KeptRun(state, tag) as kept:
            return kept.state if kept.journal.texts() else "new"
    except EnsembleError as error:
        journal = state_folder(state) / "runs" / tag / "journal.db"
        return "new" if error.code == "never-began" or not journal.exists() else "unreadable"


def _is_over(state: str, code: int) -> bool:
    """Return whether a run is over after its controller ended with this code."""
    # An invalid file would be rejected again. Other reasons for a failed start may pass.
    return state == "ended" or (state == "new" and code == 2)
