"""Server of a folder: runs the jobspecs that are moved into it, each once, whatever is killed when.

A file is claimed by moving it from ``new`` to ``running``, under a tag of its own; what is in
``running`` when a server begins is gone on with, for its run is there already and is resumed. It
ends by being moved to ``done`` or ``failed``. What runs it is one ensemble for all (``shared_run``)
or one for each (``EachRun``).
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
from typing import NamedTuple, Protocol

from ensemble_core import UsageError
from ensemble_core.cli.toolkit import print_line

__all__ = [
    "PROGRAM",
    "STOPPED",
    "EachRun",
    "Ended",
    "Runs",
    "Server",
    "make_folders",
    "private",
    "why_of",
]

_OTHER = re.compile(r"[^A-Za-z0-9_-]+")
_SUFFIXES = (".yaml", ".yml", ".json")
#: Exit codes of runs that were stopped and can be gone on with.
STOPPED = (5, 129, 130, 142, 143)
#: The command ``ensemble`` of this environment.
PROGRAM = (
    sys.executable,
    "-c",
    "import sys; from ensemble_core.cli.main import main; main(sys.argv[1:])",
)


class Ended(NamedTuple):
    """A jobspec that is over: its file, an exit code, and why that is not 0."""

    file: Path
    code: int
    why: str


class Runs(Protocol):
    """Runner of jobspecs: all in one ensemble, or each in its own."""

    @property
    def busy(self) -> bool:
        """True while one is under way."""

    def begin(self, files: Sequence[Path]) -> list[Path]:
        """Run these files, or go on with their runs; those that are to wait."""

    def ended(self) -> list[Ended]:
        """Jobspecs that are over since the last look."""

    def stop(self) -> None:
        """Stop what is under way, so that the next server goes on with it."""


class Server:
    """The server of one folder."""

    def __init__(self, folder: Path, runs: Runs, *, every: float = 2.0) -> None:
        self._folder = folder
        self._runs = runs
        self._every = max(0.05, every)
        self._sizes: dict[Path, tuple[int, int]] = {}
        self._stopping = False

    def serve(self, *, once: bool = False) -> int:
        """Serve until a signal ends it, or with ``once`` until nothing is left; the exit code.

        Raises :class:`UsageError` where the folder cannot be had, or another serves it.
        """
        make_folders(self._folder)
        with self._alone(), self._signals():
            claimed = sorted((self._folder / "running").glob("*.*"))
            waiting = [file for file in claimed if file.suffix in _SUFFIXES]
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
        return 0

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with open(self._folder / ".lock", "a", opener=private) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(
                    f"another serves {str(self._folder)!r}", code="already-served"
                ) from None
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

    def _end(self) -> None:
        for file, code, why in self._runs.ended():
            self._finish(file, f"exit code {code}{f': {why}' if why else ''}", code)

    def _finish(self, file: Path, why: str, code: int) -> None:
        """Say how it went, and move what belongs to the file; the file itself last."""
        where = self._folder / ("failed" if code else "done")
        log = file.with_suffix(".log")
        told = where / f"{file.stem}.txt"
        with open(told, "w", encoding="utf-8", opener=private) as text:
            text.write(f"{why}\n")
        with contextlib.suppress(FileNotFoundError):
            os.replace(log, where / log.name)
        os.replace(file, where / file.name)
        print_line(f"{file.name}: {where.name}, {why}")


def private(path: str, flags: int) -> int:
    """Open a file, for :func:`open`, so that one that is made is its user's alone."""
    return os.open(path, flags, 0o600)


def make_folders(folder: Path) -> None:
    """Make the folders of a served one, its user's alone. Raises :class:`UsageError` where they
    cannot be had."""
    try:
        for name in ("", "new", "running", "done", "failed"):
            (folder / name).mkdir(mode=0o700, parents=not name, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot use the folder {str(folder)!r}: {error.strerror}", code="unreadable-file"
        ) from None


class EachRun:
    """A run for each jobspec, so many at a time. ``words`` are further options of ``ensemble
    jobspec run``."""

    def __init__(self, words: Sequence[str] = (), *, at_once: int = 4) -> None:
        self._words = list(words)
        self._at_once = max(1, at_once)
        self._running: dict[Path, subprocess.Popen[bytes]] = {}

    @property
    def busy(self) -> bool:
        """True while one is under way."""
        return bool(self._running)

    def begin(self, files: Sequence[Path]) -> list[Path]:
        """Run claimed files, or go on with their runs; those that are to wait."""
        return [
            file for file in files if len(self._running) >= self._at_once or not self._begin(file)
        ]

    def _begin(self, file: Path) -> bool:
        """Run a file. ``False`` while the process of an earlier server is at it, which holds a lock
        on the file."""
        words = ["jobspec", "run", str(file), "--tag", file.stem, "--or-resume", "--no-progress"]
        console = file.with_suffix(".log")
        with file.open("rb") as held, open(console, "ab", opener=private) as log:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            self._running[file] = subprocess.Popen(
                [*PROGRAM, *words, *self._words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is handed on by us
                pass_fds=[held.fileno()],  # the lock is the process's, however this one ends
            )
        print_line(f"{file.name}: begun")
        return True

    def ended(self) -> list[Ended]:
        """Jobspecs that are over since the last look."""
        found = []
        for file, process in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            del self._running[file]
            if code < 0 or code in STOPPED:
                print_line(f"{file.name}: stopped; it is gone on with next time")
                continue
            found.append(Ended(file, code, why_of(file.with_suffix(".log")) if code else ""))
        return found

    def stop(self) -> None:
        """Stop what is under way, so that the next server goes on with it."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.wait()


def why_of(log: Path, begin: int = 0) -> str:
    """The line of a run's output, from this byte on, that says most of why it failed."""
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", "replace").splitlines()
    for words in (("error:", ": unknown key"), ("failed",), ("exit code",)):
        for line in lines:
            if any(word in line for word in words):
                return line.strip()
    return lines[0].strip() if lines else "it said nothing"
