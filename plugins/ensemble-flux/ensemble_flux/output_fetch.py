"""Copies job output from Flux's KVS into the run's files as it is written.

Needed if observers read the output of jobs whose output goes to the KVS.
"""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ensemble_core import JobEvent
from ensemble_flux.reactor import Reactor, error_text

#: Seconds to wait for the rest of a job's output after its end.
_PATIENCE = 30.0


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
