"""Ensemble that all jobspecs of a served folder share: each is job groups and rules of one run.

What arrives while the run is under way is added to its file; its controller is stopped, which
leaves the jobs to the queue, and the run is gone on with by the longer file. Once nothing is left
of it the run is over, and what arrives then begins another. Whether it is over its journal says, no
exit code does: a controller that ended before, as where the queue is away, is begun again. Used by
the command ``serve``.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ensemble_core import EnsembleError, FileErrors
from ensemble_core.cli.toolkit import (
    ExecutorChoice,
    KeptRun,
    Registry,
    load_text,
    print_line,
    read_document,
    state_folder,
)
from ensemble_jobspec.command_options import run_options
from ensemble_jobspec.conversion import convert
from ensemble_jobspec.options import Converted
from ensemble_jobspec.reading import read
from ensemble_jobspec.serving import FIRST, PROGRAM, STOPPED, Backoff, Ended, private, why_of
from ensemble_jobspec.standing import is_over, run_state, standing
from ensemble_jobspec.writing import as_yaml

__all__ = ["SharedRun"]

#: A run is interrupted for what arrives at most this part of the time, and looked at.
_INTERRUPTED = _LOOKED = 0.2
_NAMES = re.compile(r"'([^']*)'")


class SharedRun:
    """The ensemble of one served folder. ``words`` are further options of ``ensemble run``; with
    ``once`` it gives up where its controllers end too soon."""

    def __init__(
        self,
        folder: Path,
        registry: Registry,
        choice: ExecutorChoice,
        words: Sequence[str],
        state: str | None,
        *,
        once: bool = False,
    ) -> None:
        self._file = folder / "ensemble.yaml"
        self._registry = registry
        self._choice = choice
        self._words = list(words)
        self._state = state
        self._stoppable = {"detach", "reattach"} <= choice.record.capabilities
        self._open: dict[Path, Converted] = {}
        self._refused: list[Ended] = []
        self._process: subprocess.Popen[bytes] | None = None
        #: When a controller may be begun, and when the last one was.
        self._not_before = self._started = 0.0
        self._backoff = Backoff(once=once)
        self.gave_up = ""
        #: Where in the log the controller's output begins.
        self._log_from = 0
        #: Once the run is over, the files that are to be moved before its own is removed.
        self._over: list[Path] | None = None
        self._seen: object = None
        self._next_look = 0.0
        #: Up to which event the journal was read, and what failed beside the controller.
        self._read = 0
        self._failed: set[str] = set()
        self._document: dict[str, Any] = {}
        if self._file.exists():
            self._document = dict(read_document(self._file.read_text(), str(self._file)).data)

    @property
    def busy(self) -> bool:
        """True while something of a jobspec is to happen."""
        open_ = self._open and not self.gave_up
        return bool(open_ or self._refused) or self._process is not None

    # -- what is run ---------------------------------------------------------------------------

    def begin(self, files: Sequence[Path]) -> list[Path]:
        """Run these files as well; those that are to wait."""
        self._forget()
        if self.gave_up:
            return []
        running = self._process is not None
        early = time.monotonic() < self._not_before or self._over is not None
        if early or (running and (not files or not self._stoppable)):
            return list(files)
        before = time.monotonic()
        for file in files:
            try:
                self._open[file] = self._converted(file)
            except FileErrors as errors:
                self._refused.append(Ended(file, 2, str(errors.errors[0]).splitlines()[0]))
            except EnsembleError as error:
                self._refused.append(Ended(file, 2, str(error).splitlines()[0]))
        if not self._open or (running and not any(file in self._open for file in files)):
            return []
        lock = self._pause()
        if lock is None:  # to be tried again, with what is open
            self._not_before = time.monotonic() + FIRST
            return []
        stands = self._stands() if self._document else ""
        if stands == "new":  # then all of it begins at the start
            self._document |= {"jobs": [], "rules": []}
        elif not self._document or (stands == "ended" and not any(map(self._knows, self._open))):
            tag = f"served-{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}"
            keep = {"on_stop": "keep"} if self._stoppable else {}
            self._document = {"name": tag, **keep, "limits": {"chain": 64}, "jobs": [], "rules": []}
            self._read, self._failed = 0, set()
        self._add()
        self._start(lock)
        self._not_before = time.monotonic() + (time.monotonic() - before) / _INTERRUPTED
        return []

    def stop(self) -> None:
        """Stop the run; its jobs are left to the queue, and the next server goes on with it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _converted(self, file: Path) -> Converted:
        prefix = self._prefix(file)
        # What is in the run already may have been submitted: no gauge is held against it.
        measure = not self._knows(file) or self._stands() == "new"
        workload = read(file)
        options = run_options(
            self._registry, self._choice, workload, file, self._state, measure=measure
        )
        options = replace(options, prefix=prefix, stage=f"{{cwd}}/jobspec-{file.stem}")
        if not measure:  # its jobs are as they were written then, when Flux was there for them
            options = replace(options, flux=options.flux or "flux")
        converted = convert(workload, options)
        for warning in converted.warnings:
            print_line(f"{file.name}: warning: {warning}")
        record = self._choice.record
        load_text(as_yaml(converted.document), self._registry, file=str(file), executor=record)
        return converted

    @staticmethod
    def _prefix(file: Path) -> str:
        """The beginning of the names of a jobspec's job groups and rules."""
        name, _, mark = file.stem.rpartition("-")
        return f"{name.rpartition('-')[0][:24].strip('-') or 'jobspec'}-{mark}-"

    def _knows(self, file: Path) -> bool:
        """True if a jobspec is in the run's file."""
        prefix = self._prefix(file)
        return any(rule["id"].startswith(prefix) for rule in self._document.get("rules", ()))

    def _add(self) -> None:
        """Put what is not there yet into the run's file."""
        known = {rule["id"] for rule in self._document["rules"]}
        begun = bool(known)
        for converted in self._open.values():
            begin, *rules = converted.rules
            if begin["id"] in known:
                continue
            if begun:  # the start is over: a count that is none yet lets it fire at once
                name = f"count.rule.{begin['id']}"
                begin = {**begin, "trigger": "metric", "name": name, "when": ">= 0"}
            self._document["jobs"] += converted.jobs
            self._document["rules"] += [begin, *rules]
        part = self._file.with_name(f"{self._file.name}.part")
        with open(part, "w", encoding="utf-8", opener=private) as file:
            file.write(as_yaml(self._document))
        os.replace(part, self._file)

    def _pause(self) -> int | None:
        """Stop the run's controller, that of an earlier server too. The lock of the next one;
        ``None`` while such an earlier one has it, which may have yet to begin."""
        if self._process is not None:
            self.stop()
            self._process = None
            return self._lock()
        lock = self._lock()
        # Where jobs need their controller, that of an earlier server is let end.
        if self._document and self._journal.exists() and (lock is not None or self._stoppable):
            words = [*PROGRAM, "stop", self._tag, *self._where]
            subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, check=False)
        return self._lock() if lock is None else lock

    def _lock(self) -> int | None:
        path = self._file.with_name(".ensemble.lock")
        lock = private(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        except OSError:
            pass  # this file system has no locks: what the run's own says of its holder decides
        return lock

    def _start(self, lock: int) -> None:
        words = ["run", str(self._file), "--tag", self._tag, "--or-resume", *self._words]
        if self._stands() != "new":
            words = ["resume", self._tag, "--accept-changes"]
        try:
            with open(self._log, "ab", opener=private) as log:
                self._log_from = log.tell()
                self._process = subprocess.Popen(
                    [*PROGRAM, *words, *self._where, "--no-progress"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=[lock],  # the lock is the process's, however this one ends
                )
        finally:
            os.close(lock)
        self._started = time.monotonic()

    def _stands(self) -> str:
        return run_state(self._state, self._tag)

    # -- what becomes of it --------------------------------------------------------------------

    def ended(self) -> list[Ended]:
        """The jobspecs that are over since the last look."""
        found, self._refused = self._refused, []
        self._forget()
        if self._process is None:
            return found
        code = self._process.poll()
        if code is None and not self._open:
            return found
        seen = [self._stamp(name) for name in ("journal.db", "journal.db-wal")]
        before = time.monotonic()
        if code is None and (seen == self._seen or before < self._next_look):
            return found
        self._seen = seen
        over = code is not None and is_over(self._stands(), code)
        for file, why in self._standings():
            if why is None and not over:
                continue
            told = why if why is not None else why_of(self._log, self._log_from)
            found.append(Ended(file, 1 if told else 0, f"{told}; run {self._tag}" if told else ""))
            del self._open[file]
        self._next_look = time.monotonic() + (time.monotonic() - before) / _LOOKED
        if code is not None:
            self._left(code, [ended.file for ended in found] if over else None)
        return found

    def _left(self, code: int, over: list[Path] | None) -> None:
        """Take it that the controller has ended; ``over`` has the files that end with the run."""
        self._process = None
        self._not_before = 0.0
        self._over = over
        if over is not None or not self._open:
            self._backoff.reset()
            return
        self._not_before, first = self._backoff.failed(self._started)
        why = why_of(self._log, self._log_from)
        told = f"its controller ended with exit code {code} before the run was over: {why}"
        if self._backoff.is_enough:
            self.gave_up = f"{self._tag}: {told}"
        elif first and code not in (*STOPPED, -signal.SIGTERM):
            print_line(f"{self._tag}: {told}; it is begun again until it is")

    def _forget(self) -> None:
        """Remove the file of a run that is over, once what ended with it was moved."""
        if self._over is not None and not any(file.exists() for file in self._over):
            self._file.unlink(missing_ok=True)
            self._document, self._over = {}, None

    def _standings(self) -> list[tuple[Path, str | None]]:
        if not self._open:
            return []
        try:
            with KeptRun(self._state, self._tag) as kept:
                engine = kept.recover(compare=False).engine
                for row in kept.journal.rows(self._read):
                    self._read = row.seq
                    if row.type == "call-failed":
                        self._failed |= {*_NAMES.findall(str((row.data or {}).get("error", "")))}
        except EnsembleError:  # it has yet to begin, or could not
            return [(file, None) for file in self._open]
        snapshot = engine.snapshot()
        groups = {group.name: group for group in engine.report().groups}
        return [
            (file, standing(each, lambda path: snapshot.get(path) or 0, groups, self._failed))
            for file, each in self._open.items()
        ]

    def _stamp(self, name: str) -> object:
        try:
            status = self._journal.with_name(name).stat()
        except FileNotFoundError:
            return None
        return status.st_size, status.st_mtime_ns

    @property
    def _tag(self) -> str:
        return str(self._document["name"])

    @property
    def _log(self) -> Path:
        return self._file.with_name("ensemble.log")

    @property
    def _journal(self) -> Path:
        return state_folder(self._state) / "runs" / self._tag / "journal.db"

    @property
    def _where(self) -> list[str]:
        return ["--state", self._state] if self._state else []
