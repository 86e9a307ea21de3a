"""Queries a queue about jobs and nodes, decides when a missing job is lost, and cancels jobs."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from ensemble_batch import timing
from ensemble_batch.active_jobs import QueueRun
from ensemble_batch.job_events import JobLife
from ensemble_batch.queue_hooks import QueueJob
from ensemble_core import ExecutorError

#: A phase of this many seconds is reported in any case.
_LONG = 600.0


class Absences:
    """Phases in which a queue omits jobs of a run.

    The first one is reported. A later one is reported if it lasts twice as long as any before: a
    queue that often omits jobs for a moment causes two messages, not two for each time.
    :attr:`summary` is for the end of the run.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._since: float | None = None
        self._told = False  # whether this phase was reported
        self._longest = 0.0
        self._times = self._reported = 0

    def begin(self, now: float, message: str) -> None:
        """Note that jobs are missing at this time, in monotonic seconds."""
        if self._since is None:
            self._since = now
            self._times += 1
        if not self._told and now - self._since >= min(2 * self._longest, _LONG):
            self._told = True
            self._reported += 1
            self._warn(message)

    def end(self, now: float, message: str) -> None:
        """Note that no job is missing. An empty message is not shown."""
        if self._since is None:
            return
        self._longest = max(self._longest, now - self._since)
        if self._told and message:
            self._warn(message)
        self._since, self._told = None, False

    def summary(self, now: float, name: str) -> str:
        """Return how often and how long the queue omitted jobs; empty if all that was reported."""
        if self._times == self._reported:
            return ""
        longest = max(self._longest, 0.0 if self._since is None else now - self._since)
        return (
            f"{name} omitted jobs of the run {self._times} times, for at most {longest:.0f} s, "
            "although they had not ended"
        )


class Queries:
    """Sends all requests of a run to the queue, except submissions."""

    def __init__(self, polled: QueueRun) -> None:
        self._polled = polled
        self._gauges_at = self._later(time.monotonic())  # the gauges were read at opening
        #: Stuck jobs that were reported.
        self._warned: set[str] = set()
        #: When a job of the run was last seen running; before the first reply, infinite.
        self._last_running = math.inf
        #: Time of the previous reply, if it listed any job (monotonic).
        self._saw_at: float | None = None
        self._absences = Absences(polled.outlet.warn)

    def _later(self, now: float) -> float:
        """Return when to read the gauges next."""
        return now + min(max(self._polled.hooks.poll, 10.0), 60.0)

    def summarise(self) -> None:
        """Report how often the queue omitted jobs, before the executor closes. Needs the lock."""
        summary = self._absences.summary(time.monotonic(), self._polled.hooks.name)
        if summary:
            self._polled.outlet.warn(summary)
            self._polled.outlet.emit()

    def cancels_due(self, now: float, dues: list[float]) -> Callable[[], None] | None:
        """Return the cancel that is due now; otherwise add the next one's time to ``dues``.

        Needs the lock.
        """
        polled = self._polled
        due = sorted(id_ for id_, at in polled.cancels.items() if at <= now)
        dues += polled.cancels.values()
        return partial(self._end, due) if due else None

    def due(self, now: float, dues: list[float]) -> Callable[[], None] | None:
        """Return the query that is due now; otherwise add the next one's time to ``dues``.

        Needs the lock.
        """
        polled = self._polled
        if not any(life.queue_id is not None for life in polled.lives.values()):
            polled.ask_at = math.inf
            return None
        if polled.ask_at == math.inf:
            polled.ask_at = now + timing.query_interval(polled.hooks.poll)
        if polled.ask_at <= now:
            return self._query_jobs
        if self._gauges_at <= now:
            self._gauges_at = self._later(now)
            return self._query_nodes
        dues.append(polled.ask_at)
        return None

    def _end(self, ids: Sequence[str]) -> None:
        polled, hooks = self._polled, self._polled.hooks
        try:
            if ours := polled.ours(ids):
                polled.call(lambda: hooks.end_jobs(ours))
        except ExecutorError as error:
            with polled.lock:
                polled.outlet.trouble(
                    "cancel",
                    f"{hooks.name} does not accept a cancel; retrying until it does\n  {error}",
                )
                again = time.monotonic() + timing.SOON_AGAIN
                polled.cancels.update((id_, again) for id_ in ids if id_ in polled.cancels)
            return
        with polled.lock:
            polled.outlet.answered("cancel")
            running = {id_ for id_, life in polled.by_id.items() if life.cancelled}
            now = time.monotonic()
            for id_ in ids:
                polled.cancels.pop(id_, None)
                polled.copies.pop(id_, None)
                if id_ in running:
                    polled.cancels[id_] = now + timing.HEEDS
                    life = polled.by_id[id_]
                    life.cancel_sent_at = min(now, life.cancel_sent_at)
            polled.soon()

    def _query_jobs(self) -> None:
        polled, hooks = self._polled, self._polled.hooks
        with polled.lock:
            lives = [life for life in polled.lives.values() if life.queue_id is not None]
            ids = list({*polled.by_id, *polled.strays})
            asked = time.monotonic()
            polled.ask_at = asked + timing.query_interval(hooks.poll)
        rows: dict[str, QueueJob] = {}
        try:
            rows |= {
                row.id: row for row in polled.call(lambda: list(hooks.ask(ids) if ids else ()))
            }
            listed = set(rows)
            missing = [
                id_
                for id_ in ids
                if (life := polled.by_id.get(id_)) is not None
                and (id_ not in listed or rows[id_].state == "over")
                and life.misses >= timing.MISSES - 1
                and asked >= life.counts_at
            ]
            random.shuffle(missing)  # a query may concern only the first ones
        except ExecutorError as error:
            with polled.lock:
                self._saw_at = None
                polled.outlet.trouble(
                    "ask",
                    f"{hooks.name} does not report the state of jobs; retrying until it does; "
                    f"jobs continue meanwhile\n  {error}",
                )
                polled.ask_at = time.monotonic() + min(hooks.poll, timing.AWAY)
            return
        silence: ExecutorError | None = None
        try:
            if missing:
                known = polled.call(lambda: list(hooks.account(missing)))
                rows |= {row.id: row for row in known}
        except ExecutorError as error:
            silence = error
        with polled.lock:
            polled.outlet.answered("ask")
            if silence is None:
                polled.outlet.answered("account")
            else:
                polled.outlet.trouble(
                    "account",
                    f"{hooks.name} does not say what became of {len(missing)} of the run's jobs; "
                    f"retrying until it does\n  {silence}",
                )
            unclear = set() if silence is None else set(missing)
            polled.read()  # wrappers' reports written before the queue's reply
            rows = {id_: row for id_, row in rows.items() if polled.owns(row)}
            polled.end_strays(rows)
            seconds = asked - (asked if self._saw_at is None else self._saw_at)
            self._saw_at = asked if listed else None
            if math.isinf(self._last_running) or any("start" in life.told for life in lives):
                self._last_running = polled.now()
            for life in lives:
                if life.over or life.queue_id in unclear:
                    continue
                # An id that now belongs to another job shows that the queue does not know this one.
                own = QueueJob(life.queue_id or "", "unknown")
                row = rows.get(own.id) if polled.has_id(life) else own
                if listed and own.id not in listed:
                    life.absent += seconds
                self._see(life, row, asked, listed=own.id in listed)
                if asked < life.counts_at and life.misses < timing.MISSES and not life.over:
                    polled.ask_at = min(polled.ask_at, life.counts_at)
            self._report_unlisted(lives, blind=not listed)
            if any(
                life.cancelled or life.reported or life.verdict for life in polled.lives.values()
            ):
                polled.ask_at = min(polled.ask_at, time.monotonic() + timing.SOON_AGAIN)

    def _report_unlisted(self, lives: Sequence[JobLife], *, blind: bool) -> None:
        """Warn while the queue does not list jobs that are not over as far as is known."""
        polled, name = self._polled, self._polled.hooks.name
        missing = [life for life in lives if life.misses and not life.over]
        unlisted, now = [life.job for life in missing], time.monotonic()
        if not any(life.misses >= timing.MISSES for life in missing):
            lost = any(life.over and life.verdict for life in lives)  # still not listed
            self._absences.end(now, "" if lost else f"{name} responds again; the run continues")
            return
        which = ", ".join(unlisted[:3]) + (", …" if len(unlisted) > 3 else "")
        then = "waiting until it lists jobs again"
        if not blind:
            seconds = f"{polled.hooks.lost_after:g} s"
            then = f"it lists others; a job that is missing for {seconds} counts as lost"
        self._absences.begin(
            now,
            f"{name} lists {len(unlisted)} of the run's jobs no more ({which}), but does not say "
            f"that they have ended: {then}\n"
            "  hint: check the queue; to give up a job, use 'ensemble cancel'",
        )

    def handle_reports(self, rows: Iterable[QueueJob]) -> None:
        """Handle the queue's unrequested reports of jobs. Needs the lock."""
        polled, now = self._polled, time.monotonic()
        polled.read()  # wrappers' reports written before
        for row in rows:
            life = polled.by_id.get(row.id)
            if life is None:
                if polled.early is not None:
                    polled.early[row.id] = row
            elif not life.over and polled.owns(row):
                self._see(life, row, now, listed=True)
                if now < life.counts_at and not life.over:
                    polled.ask_at = min(polled.ask_at, life.counts_at)

    def _see(self, life: JobLife, row: QueueJob | None, asked: float, *, listed: bool) -> None:
        """Handle what the queue says about a job, in a list of jobs or of this job alone."""
        polled, name = self._polled, self._polled.hooks.name
        if row is not None and row.state == "absent":
            began = "start" in life.told
            row = None if began else replace(row, state="unknown", exception="cancel")
        if row is not None:
            now = polled.now()
            since = now if row.requeued is None else row.requeued
            life.requeued(row.restarts, name, since if life.last <= since <= now else now, now)
        if row is not None and row.state not in ("over", "unknown"):
            life.absent = 0.0
            if listed:
                life.misses, life.counts_at = 0, 0.0
                if life.verdict and life.queue_id is not None and polled.has_id(life):
                    polled.cancels.setdefault(life.queue_id, time.monotonic() + timing.HEEDS)
            else:
                self._count_miss(life, row, asked)
            polled.still_in_queue(life, row)
            self._report_waiting(life, row)
            return
        if row is not None and row.state == "over" and polled.over_in_queue(life, row):
            return
        if not self._count_miss(life, row, asked) or life.misses < timing.MISSES:
            return
        now = polled.now()
        if life.reported is not None:
            life.ended(life.reported, now, polled.note)
        elif life.cancelled:
            # A job that has its grace may be missing from lists, as any other job that runs.
            since = asked - life.cancel_sent_at
            if row is not None or "start" not in life.told or since > polled.grace(life):
                life.gone("cancel", polled.note, None, now)
        elif row is not None:
            self._conclude(life, row)
        elif life.verdict or life.absent > polled.hooks.lost_after:
            seconds = f"{polled.hooks.lost_after:g} s"
            verdict = f"{name} listed other jobs, but not this one for {seconds}: it was cancelled"
            polled.lose(life, verdict, polled.grace(life) + timing.RESERVE)

    def _report_waiting(self, life: JobLife, row: QueueJob) -> None:
        """Warn about a job that may wait forever: once for each group and reason."""
        polled = self._polled
        note = re.sub("[0-9]+", "", row.note.replace(row.id, ""))
        key = f"{life.job.rpartition('.')[0]} {note}"
        if not note or key in self._warned:
            return
        waits = row.state == "stuck" or (row.state == "held" and not life.holds)
        if row.state == "waiting":
            # The run's own jobs may be those that use up the limit.
            waits = polled.now() - max(life.last, self._last_running) > timing.LIMITED
        if waits:
            self._warned.add(key)
            polled.outlet.warn(f"{life.job} waits in {polled.hooks.name}: {row.note}")

    def _count_miss(self, life: JobLife, row: QueueJob | None, asked: float) -> bool:
        """Count a reply that omits a job. Return False if it comes too early to show anything."""
        if asked < life.counts_at and (life.misses or (row is None and not life.cancelled)):
            return False
        life.misses += 1
        life.counts_at = asked + timing.confirmation_delay(life.misses)
        return True

    def _conclude(self, life: JobLife, row: QueueJob) -> None:
        """End a job about which the queue says that it is over or unknown."""
        polled = self._polled
        if row.state == "over" and polled.over_in_queue(life, row):
            return
        started = "start" in life.told
        deleted = row.state == "unknown" and row.exception == "cancel"
        if deleted and not started and not polled.bar(life):
            return
        exception = None if deleted and started else row.exception
        # A wrapper that ran has claimed its job.
        unclaimed = polled.claims and not started and row.status == 0
        if exception is not None or not (row.status is None or unclaimed):
            life.gone(exception, row.note, row.status, polled.now(), row.by)
            return
        reported = "not reported its end" if started else "reported nothing"
        says = "says that this job succeeded, but" if unclaimed else "no longer knows this job, and"
        verdict = f"{polled.hooks.name} {says} the job has {reported}"
        polled.lose(life, verdict, 0.0)

    def _query_nodes(self) -> None:
        polled = self._polled
        try:
            values = dict(polled.call(polled.hooks.nodes))
        except ExecutorError:
            return  # the query about jobs fails too, and reports the problem
        with polled.lock:
            polled.outlet.gauges(polled.gauges, values)
            polled.gauges = values
