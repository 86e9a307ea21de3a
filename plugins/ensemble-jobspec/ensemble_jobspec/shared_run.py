"""Ensemble that all jobspecs of a served folder share: each is job groups and rules of one run.

What arrives while the run is under way is added to its file; its controller is stopped, which
leaves the jobs to the queue, and the run is gone on with by the longer file. Once nothing is left
of it the run is over, and what arrives then begins another. Used by ``serving``.
"""

from __future__ import annotations

import os
import re
import secrets
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
from ensemble_jobspec.serving import PROGRAM, STOPPED, Ended, why_of
from ensemble_jobspec.standing import standing
from ensemble_jobspec.writing import as_yaml

__all__ = ["SharedRun"]

#: A run is interrupted for what arrives at most this part of the time, and looked at.
_INTERRUPTED = _LOOKED = 0.2
_NAMES = re.compile(r"'([^']*)'")


class SharedRun:
    """The ensemble of one served folder. ``words`` are further options of ``ensemble run``."""

    def __init__(
        self,
        folder: Path,
        registry: Registry,
        choice: ExecutorChoice,
        words: Sequence[str],
        state: str | None,
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
        self._not_before = 0.0
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
        return bool(self._open or self._refused)

    # -- what is run ---------------------------------------------------------------------------

    def begin(self, files: Sequence[Path]) -> list[Path]:
        """Run these files as well; those that are to wait."""
        running = self._process is not None
        if running and (not files or not self._stoppable or time.monotonic() < self._not_before):
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
        self._pause()
        if not self._document:
            tag = f"served-{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}"
            keep = {"on_stop": "keep"} if self._stoppable else {}
            self._document = {"name": tag, **keep, "limits": {"chain": 64}, "jobs": [], "rules": []}
            self._read, self._failed = 0, set()
        self._add()
        self._start()
        self._not_before = time.monotonic() + (time.monotonic() - before) / _INTERRUPTED
        return []

    def stop(self) -> None:
        """Stop the run; its jobs are left to the queue, and the next server goes on with it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _converted(self, file: Path) -> Converted:
        name, _, mark = file.stem.rpartition("-")
        prefix = f"{name.rpartition('-')[0][:24].strip('-') or 'jobspec'}-{mark}-"
        options = run_options(self._registry, self._choice, read(file), file, self._state)
        options = replace(options, prefix=prefix, stage=f"{{cwd}}/jobspec-{file.stem}")
        converted = convert(read(file), options)
        for warning in converted.warnings:
            print_line(f"{file.name}: warning: {warning}")
        record = self._choice.record
        load_text(as_yaml(converted.document), self._registry, file=str(file), executor=record)
        return converted

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
            limits = self._document["limits"]
            limits["chain"] = max(limits["chain"], converted.chain)
        part = self._file.with_name(f"{self._file.name}.part")
        part.write_text(as_yaml(self._document), "utf-8")
        os.replace(part, self._file)

    def _pause(self) -> None:
        """Stop the run's controller, that of an earlier server too."""
        if self._process is not None:
            self.stop()
            self._process = None
        elif self._document and self._journal.exists():
            words = [*PROGRAM, "stop", self._tag, *self._where]
            subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, check=False)

    def _start(self) -> None:
        words = ["run", str(self._file), "--tag", self._tag, "--or-resume", *self._words]
        if self._journal.exists():
            words = ["resume", self._tag, "--accept-changes"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*PROGRAM, *words, *self._where, "--no-progress"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    # -- what becomes of it --------------------------------------------------------------------

    def ended(self) -> list[Ended]:
        """The jobspecs that are over since the last look."""
        found, self._refused = self._refused, []
        code = None if self._process is None else self._process.poll()
        if self._process is None or not self._open:
            return found
        seen = [self._stamp(name) for name in ("journal.db", "journal.db-wal")]
        before = time.monotonic()
        if code is None and (seen == self._seen or before < self._next_look):
            return found
        self._seen = seen
        over = code is not None and code >= 0 and code not in STOPPED
        for file, why in self._standings(over):
            if why is None and not over:
                continue
            told = why if why is not None else why_of(self._log)
            found.append(Ended(file, 1 if told else 0, f"{told}; run {self._tag}" if told else ""))
            del self._open[file]
        self._next_look = time.monotonic() + (time.monotonic() - before) / _LOOKED
        if code is not None:
            self._process = None
            self._not_before = 0.0
        if over:
            self._file.unlink()
            self._document = {}
        return found

    def _standings(self, over: bool) -> list[tuple[Path, str | None]]:
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
