"""Output of jobs: goes into files, or into Flux's key-value store (KVS), and is copied from there.

The copy into the run's files, as it is written, is for observers of jobs whose output goes to the
KVS.
"""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ensemble_core import Job, JobEvent, shared_storage
from ensemble_flux.reactor import Reactor, error_text

_ENDINGS = {"stdout": "out", "stderr": "err"}
_EMPTIED = "flux-emptied"
#: Seconds to wait for the rest of a job's output after its end.
_PATIENCE = 30.0


def files(folder: str, job: str, streams: Iterable[str] = _ENDINGS) -> dict[str, str]:
    """Return the files of a job in the run's folder, by stream."""
    return {stream: os.path.join(folder, f"{job}.{_ENDINGS[stream]}") for stream in streams}


def seen_by_all(path: str, hosts: Iterable[str], here: str) -> bool:
    """Return whether ``path`` is the same folder on all ``hosts`` and on this host, ``here``."""
    if all(host.partition(".")[0] == here.partition(".")[0] for host in hosts):
        return True
    return shared_storage(path) is not None


@dataclass(slots=True)
class Output:
    """Chooses where the job shell writes a job's output, and removes empty files.

    If ``keep`` is ``"files"``, the folder ``folder`` receives the output of jobs that name no file.
    The folder ``state`` has a list of the files that the run has truncated, for later controllers.
    """

    folder: str
    keep: Literal["files", "kvs"]
    state: Path | None = None
    _emptied: set[str] = field(default_factory=set)
    _made: set[str] = field(default_factory=set)
    _used: bool | None = None

    def __post_init__(self) -> None:
        if self.state is not None:
            with suppress(FileNotFoundError):
                lines = (self.state / _EMPTIED).read_bytes().split(b"\0")
                self._emptied.update(map(os.fsdecode, lines))

    def prepare(self, job: Job, workdir: str) -> tuple[dict[str, Any], str | None, tuple[str, ...]]:
        """Return the job shell's option ``output``, the file of standard output, and the kept
        files.

        Creates missing folders. Raises :class:`OSError`.
        """
        if job.workdir is not None:
            self._make(workdir)
        option: dict[str, Any] = {"mode": "append"}
        kept: list[str] = []
        stdout: str | None = None
        for stream, named in (("stdout", job.stdout), ("stderr", job.stderr)):
            if named is not None:
                path = os.path.normpath(os.path.join(workdir, named))
                self._empty(path)  # only before the run's first write: jobs may share a file
                option[stream] = {"type": "file", "path": path}
            elif self.keep == "files":
                (path,) = files(self.folder, job.id, [stream]).values()
                self._clear(path)
                kept.append(path)
                option[stream] = {"type": "file", "path": path}
            else:
                option[stream] = {"type": "kvs"}
                continue
            if stream == "stdout":
                stdout = path
        if job.observe and max(job.tasks, job.nodes) == 1:
            # Flux passes stdout on by lines: a progress bar would be seen only at its end. Parts of
            # lines of several tasks would be mixed.
            option["stdout"]["buffer"] = {"type": "none"}
        return option, stdout, tuple(kept)

    def _make(self, folder: str) -> None:
        if folder not in self._made:
            os.makedirs(folder, exist_ok=True)
            self._made.add(folder)

    def _clear(self, path: str) -> None:
        """Truncate output files that an earlier run left under the same name."""
        if self._used is None:
            self._make(self.folder)
            self._used = bool(os.listdir(self.folder))
        if self._used:
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _empty(self, path: str) -> None:
        if path in self._emptied:
            return
        self._make(os.path.dirname(path))
        # Devices and pipes cannot be truncated; a folder raises an error.
        if not os.path.exists(path) or os.path.isfile(path) or os.path.isdir(path):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666))
        if self.state is not None:  # before the first job that writes to it is submitted
            self._make(str(self.state))
            with open(self.state / _EMPTIED, "ab") as file:
                file.write(os.fsencode(path) + b"\0")
        self._emptied.add(path)


def remove_empty(paths: Iterable[str]) -> None:
    """Remove the files that are still empty."""
    for path in paths:
        try:
            if os.stat(path).st_size == 0:
                os.unlink(path)
        except OSError:
            continue


class _Copy:
    """A file that receives a stream. What an earlier controller has written is not repeated."""

    def __init__(self, path: str, mode: str) -> None:
        self._file = open(path, mode)  # noqa: SIM115  (closed when the output ends)
        self._there = self._file.tell()

    def write(self, data: bytes) -> None:
        new = data[self._there :]
        self._there -= len(data) - len(new)
        self._file.write(new)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class Fetcher:
    """Copies the streams of jobs to files, and delays their end events until the copy is complete.

    The callback ``tell`` receives the delayed events. The callback ``problem`` receives warnings
    for the user.
    """

    def __init__(
        self,
        flux: Any,
        reactor: Reactor,
        tell: Callable[[Sequence[JobEvent]], None],
        problem: Callable[[str], None],
    ) -> None:
        self._flux = flux
        self._reactor = reactor
        self._tell = tell
        self._problem = problem
        self._expected: dict[str, tuple[int, Mapping[str, str]]] = {}
        #: Jobs of which Flux has dropped output.
        self._cut: set[str] = set()
        #: The files of a job by its stream, ``stdout`` or ``stderr``.
        self._files: dict[str, dict[str, _Copy]] = {}
        self._held: dict[str, list[JobEvent]] = {}

    def expect(self, job: str, queue_id: int, paths: Mapping[str, str]) -> None:
        """Copy this job's streams to their ``paths`` once the job has started."""
        self._expected[job] = (queue_id, paths)

    def continue_copy(self, job: str) -> None:
        """Continue the copy that an earlier controller has begun."""
        self._begin(job, mode="ab")

    def _begin(self, job: str, mode: str = "wb") -> None:
        queue_id, paths = self._expected.pop(job)
        files = self._files[job] = {}
        for stream, path in paths.items():
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                files[stream] = _Copy(path, mode)
            except OSError as error:
                self._problem(f"cannot keep the output of {job}: {path}: {error_text(error)}")
                self._end(job)
                return
        # The eventlog of the output exists only once the job shell has started.
        self._follow(queue_id, "guest.exec.eventlog", partial(self._shell, job, queue_id), job)

    def _follow(
        self, queue_id: int, eventlog: str, take: Callable[[Mapping[str, Any]], bool], job: str
    ) -> None:
        """Call ``take`` with each entry until it returns false."""
        enough = False

        def answered(future: Any) -> bool:
            nonlocal enough
            try:
                event = future.get_event()
            except OSError:
                event = None
            if event is None:
                if not enough:
                    self._end(job)
                return False
            if not enough and not take(event):
                enough = True
                future.cancel()
            return True

        future = self._flux.job.event_watch_async(self._reactor.handle, queue_id, eventlog)
        self._reactor.follow(future, answered)

    def _shell(self, job: str, queue_id: int, entry: Mapping[str, Any]) -> bool:
        if entry["name"] != "shell.init":
            return True
        self._follow(queue_id, "guest.output", partial(self._output, job), job)
        return False

    def _output(self, job: str, entry: Mapping[str, Any]) -> bool:
        files = self._files.get(job)
        if files is None:
            return False
        context = entry.get("context") or {}
        data, file = context.get("data"), files.get(str(context.get("stream")))
        if entry["name"] == "data" and file is not None and data:
            encoded = context.get("encoding") == "base64"
            try:
                file.write(b64decode(data) if encoded else data.encode(errors="surrogateescape"))
            except OSError as error:
                self._problem(f"cannot keep the output of {job}: {error_text(error)}")
                self._end(job)
                return False
        said = str(context.get("message", ""))
        if entry["name"] == "log" and "truncated" in said and job not in self._cut:
            self._cut.add(job)
            self._problem(
                f"Flux has dropped output of {job}, so its observers miss rows: {said} (hint: name "
                f"a file with stdout:, or raise Flux's limit with "
                f"options: {{flux: {{shell: {{output.limit: 100M}}}}}})"
            )
        return True

    def pass_on(self, events: Sequence[JobEvent]) -> list[JobEvent]:
        """Return the events to report now; the others are reported when the output is complete."""
        if not (self._files or self._expected):
            return list(events)
        passed = []
        for event in events:
            if event.name == "start" and event.job in self._expected:
                self._begin(event.job)
            elif event.name == "clean":
                self._expected.pop(event.job, None)
            if event.job in self._held:
                self._held[event.job].append(event)
            elif event.name in ("finish", "clean") and event.job in self._files:
                self._held[event.job] = [event]
                self._reactor.after(_PATIENCE, partial(self._abandon, event.job))
            else:
                passed.append(event)
        return passed

    def _abandon(self, job: str) -> None:
        if job in self._held:
            self._problem(f"the output of {job} did not end within {_PATIENCE:g} s")
            self._end(job)

    def _end(self, job: str) -> None:
        self._cut.discard(job)
        for file in self._files.pop(job, {}).values():
            file.close()
        self._tell(self._held.pop(job, []))

    def close(self) -> None:
        """Stop copying."""
        for files in self._files.values():
            for file in files.values():
                file.close()
        self._files.clear()
