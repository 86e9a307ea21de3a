"""Silence: jobs that run, are observed, and have given no row for so long.

Kept for groups that a rule on ``silent`` is about, in the order of each job's last row, so that a
row costs one step and one timer a group is enough. Once an attempt: a job that was found silent
leaves. Part of the engine's state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ensemble_core.engine.records import JobRecord
from ensemble_core.engine.timers import Timers

__all__ = ["Quiet", "Silence"]


@dataclass(slots=True, eq=False)
class Quiet:
    """Running jobs of a group that were not silent for ``seconds`` yet, by id, with the time of
    the last row or, before the first, of the start; the longest quiet first."""

    seconds: float
    since: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Silence:
    """Jobs whose silence rules wait for, by group."""

    of: dict[str, list[Quiet]] = field(default_factory=dict)

    def serve(
        self, groups: Iterable[str], seconds: float, records: Iterable[JobRecord], now: float
    ) -> None:
        """A rule waits for jobs of these groups that are silent for so long; of those that run
        already (``records``: all that are not over), from now on."""
        for group in groups:
            kept = self.of.setdefault(group, [])
            if any(quiet.seconds == seconds for quiet in kept):
                continue
            running = [each for each in records if each.job.group == group and _heard(each)]
            kept.append(Quiet(seconds, {each.job.id: now for each in running}))

    def heed(self, record: JobRecord, event: str, now: float, timers: Timers) -> None:
        """Take one of the job's events ``start``, ``finish`` and ``clean``."""
        if event == "start":
            self.begin(record, now, timers)
        else:
            self.end(record)

    def begin(self, record: JobRecord, now: float, timers: Timers) -> None:
        """A job has started."""
        kept = self.of.get(record.job.group)
        if kept and record.job.observe:
            for quiet in kept:
                quiet.since.setdefault(record.job.id, now)
            self.wait(record.job.group, timers)

    def heard(self, record: JobRecord, now: float) -> None:
        """A job gave a row."""
        job = record.job.id
        for quiet in self.of.get(record.job.group, ()):
            if quiet.since.pop(job, None) is not None:
                quiet.since[job] = now

    def end(self, record: JobRecord) -> None:
        """A job has ended."""
        for quiet in self.of.get(record.job.group, ()):
            quiet.since.pop(record.job.id, None)

    def found(self, group: str, now: float) -> list[tuple[float, str]]:
        """The jobs that are silent by now, with the seconds that this is about; they leave."""
        found: list[tuple[float, str]] = []
        for quiet in sorted(self.of.get(group, ()), key=lambda quiet: quiet.seconds):
            while quiet.since:
                job, since = next(iter(quiet.since.items()))
                if since + quiet.seconds > now:
                    break
                del quiet.since[job]
                found.append((quiet.seconds, job))
        return found

    def wait(self, group: str, timers: Timers) -> None:
        """Have the group's timer tell of the next job that may be silent."""
        due = [
            next(iter(quiet.since.values())) + quiet.seconds
            for quiet in self.of.get(group, ())
            if quiet.since
        ]
        if due:
            timers.once(min(due), "silent", group)
        else:
            timers.stop("silent", group)

    def begin_anew(self, now: float, timers: Timers) -> None:
        """The run was interrupted: what jobs printed meanwhile is still to be read."""
        for group, kept in self.of.items():
            for quiet in kept:
                quiet.since = dict.fromkeys(quiet.since, now)
            self.wait(group, timers)


def _heard(record: JobRecord) -> bool:
    return record.started is not None and record.outcome is None and bool(record.job.observe)
