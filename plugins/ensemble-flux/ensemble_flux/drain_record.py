"""Record of the last events of jobs in an instance that ends, for the next controller.

Flux's own record ends with the instance, and the events may not have arrived by then.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ensemble_core import JobEvent

#: Context of the exception of a job that has ended with its allocation.
INTERRUPTED: Mapping[str, object] = {
    "type": "interrupted",
    "severity": 0,
    "note": "ended with its allocation",
}


class DrainRecord:
    """A file in the run's folder ``state``. Without a folder, nothing is recorded."""

    def __init__(self, state: Path | None) -> None:
        self._file = None if state is None else state / "flux-drained.jsonl"

    def begin(self, jobs: Collection[str], now: float) -> None:
        """Record that the instance ends, and that these jobs have not ended yet."""
        self._write([[now, job, "", {}] for job in sorted(jobs)])

    def add(self, events: Sequence[JobEvent]) -> None:
        """Record events of these jobs."""
        self._write([[e.timestamp, e.job, e.name, dict(e.context)] for e in events if e.ours])

    def _write(self, lines: Sequence[object]) -> None:
        if self._file is None or not lines:
            return
        with suppress(OSError):  # usually, the events arrive
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as file:
                file.write("".join(f"{json.dumps(line)}\n" for line in lines))

    def events(self, jobs: Mapping[str, float]) -> dict[str, list[JobEvent]]:
        """Return the last events of those of ``jobs`` that have ended with an instance.

        Only events after the time of a job in ``jobs`` are returned. A job without a recorded end
        was interrupted.
        """
        found: dict[str, list[JobEvent]] = {}
        begun: dict[str, float] = {}
        for timestamp, job, name, context in self._read():
            if not name:  # a job that was interrupted earlier may have the same id
                found[job], begun[job] = [], timestamp
            elif job in found:
                found[job].append(JobEvent(timestamp, job, name, context))
        for job, events in found.items():
            names = [event.name for event in events]
            newest = max([begun[job], *(event.timestamp for event in events)])
            if "finish" not in names and "exception" not in names and "clean" not in names:
                events.append(JobEvent(newest, job, "exception", INTERRUPTED))
            if "clean" not in names:
                events.append(JobEvent(newest, job, "clean"))
        return {
            job: [event for event in found[job] if event.timestamp > since]
            for job, since in jobs.items()
            if job in found and found[job][-1].timestamp > since
        }

    def _read(self) -> list[tuple[float, str, str, Mapping[str, object]]]:
        lines: list[str] = []
        if self._file is not None:
            with suppress(OSError):
                lines = self._file.read_text(encoding="utf-8").splitlines()
        entries = []
        for line in lines:
            with suppress(ValueError):  # a partial line, from a kill while writing
                timestamp, job, name, context = json.loads(line)
                entries.append((timestamp, job, name, context))
        return entries
