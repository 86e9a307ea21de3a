"""Finds silent jobs: running jobs whose observers have read no row for a given time.

A job is reported once per attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from ensemble_core.engine.job_record import JobRecord
from ensemble_core.engine.timers import Timers
from ensemble_core.quick_dataclass import dataclass


@dataclass(slots=True, eq=False)
class LastRows:
    """Running jobs of a group that are not silent yet, with the time of each job's last row."""

    seconds: float
    #: Time of the last row or start. The oldest comes first.
    since: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class SilentJobs:
    """Running jobs with observers, by group, for rules with the trigger ``silent``."""

    of: dict[str, list[LastRows]] = field(default_factory=dict)

    def watch(
        self, groups: Iterable[str], seconds: float, records: Iterable[JobRecord], now: float
    ) -> None:
        """Track the jobs of these groups for a rule.

        For jobs that already run, time counts from now.
        """
        for group in groups:
            kept = self.of.setdefault(group, [])
            if any(last.seconds == seconds for last in kept):
                continue
            running = [each for each in records if each.job.group == group and _is_observed(each)]
            kept.append(LastRows(seconds, {each.job.id: now for each in running}))

    def handle_event(self, record: JobRecord, event: str, now: float, timers: Timers) -> None:
        """Handle an event after which a job begins to run or no longer runs."""
        if event in ("start", "unsuspend"):
            self.begin(record, now, timers)
        else:
            self.end(record)

    def begin(self, record: JobRecord, now: float, timers: Timers) -> None:
        """Record that a job runs."""
        kept = self.of.get(record.job.group)
        if kept and record.job.observe:
            for last in kept:
                last.since.setdefault(record.job.id, now)
            self.wait(record.job.group, timers)

    def note_row(self, record: JobRecord, now: float) -> None:
        """Record a job's row."""
        job = record.job.id
        for last in self.of.get(record.job.group, ()):
            if last.since.pop(job, None) is not None:
                last.since[job] = now

    def end(self, record: JobRecord) -> None:
        """Record that a job no longer runs."""
        for last in self.of.get(record.job.group, ()):
            last.since.pop(record.job.id, None)

    def found(self, group: str, now: float) -> list[tuple[float, str]]:
        """Remove the jobs that are silent now, and return each with the number of seconds."""
        found: list[tuple[float, str]] = []
        for last in sorted(self.of.get(group, ()), key=lambda last: last.seconds):
            while last.since:
                job, since = next(iter(last.since.items()))
                if since + last.seconds > now:
                    break
                del last.since[job]
                found.append((last.seconds, job))
        return found

    def wait(self, group: str, timers: Timers) -> None:
        """Set the timer of a group to the time at which its next job can become silent."""
        due = [
            next(iter(last.since.values())) + last.seconds
            for last in self.of.get(group, ())
            if last.since
        ]
        if due:
            timers.once(min(due), "silent", group)
        else:
            timers.stop("silent", group)

    def restart(self, now: float, timers: Timers) -> None:
        """Let all times start again after an interruption, because some rows have not been read
        yet.
        """
        for group, kept in self.of.items():
            for last in kept:
                last.since = dict.fromkeys(last.since, now)
            self.wait(group, timers)


def _is_observed(record: JobRecord) -> bool:
    return record.state == "running" and bool(record.job.observe)
