"""State of a run whose jobs report over the network.

The wrapper script of a job reports the result of the job's command. If the queue ended the job,
only the queue reports why.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from ensemble_batch.active_jobs import WrappedRun
from ensemble_batch.job_life import JobLife
from ensemble_batch.job_script import report_script_of
from ensemble_batch.listener import Listener, address_towards
from ensemble_batch.output_files import Place
from ensemble_batch.queue_hooks import QueueHooks, QueueJob
from ensemble_batch.report_spool import VOIDED, ReportSpool
from ensemble_batch.reports import Report, read_report
from ensemble_batch.submission_records import Records
from ensemble_core import Emit, ExecutorError, Job, Run

_EVERYWHERE = ("0.0.0.0", "::")


class ReportRun(WrappedRun):
    """A run whose wrapper scripts report over the network, or through files if that fails."""

    ends_copies: ClassVar[bool] = False

    def __init__(
        self,
        hooks: QueueHooks,
        run: Run,
        emit: Emit,
        spool: ReportSpool,
        records: Records,
        places: tuple[str, str],
    ) -> None:
        super().__init__(hooks, run, emit, spool.folder, records, places)
        self.spool = spool
        #: Jobs with reports that no controller had read when this one opened; ``None``: not needed.
        self._unread: set[str] | None = None
        #: Ids of second copies of a job.
        self._twice: set[str] = set()
        self.listener: Listener | None = None
        self.hosts: Sequence[str] = ()
        if hooks.listen is not None:
            self.listener, self.hosts = self._listen(*hooks.listen)
        spool.announce(self.port, self.hosts)

    @property
    def port(self) -> int:
        return 0 if self.listener is None else self.listener.port

    def _listen(self, address: str, port: int) -> tuple[Listener, Sequence[str]]:
        address = address or self._own_address()
        hosts = [address]
        if address in _EVERYWHERE:
            # On a node, a loopback address means the node itself, so use names of this machine.
            hosts = [self._own_address(), socket.gethostname()]
        try:
            return Listener(address, port, self._record_report), hosts
        except OSError as error:
            raise ExecutorError(
                "cannot listen for jobs' reports on this machine",
                cause=error.strerror or str(error),
                hint="name an address of this machine with -o listen=ADDRESS; with -o listen=none, "
                "jobs report only by files in the run's folder",
                code="no-port",
            ) from None

    def _own_address(self) -> str:
        """Return this machine's address in the network of the queue's server or nodes."""
        found = [address_towards(socket.gethostname())]
        for host in self.hooks.faces():
            found.append(address_towards(host))
            if not found[-1].startswith("127.") and found[-1] != "::1":
                return found[-1]
        return found[min(1, len(found) - 1)]

    def script(self, key: str, name: str, orders: Sequence[tuple[Job, Place]]) -> str:
        text = report_script_of(
            name,
            orders,
            tag=self.run.tag,
            folder=self.spool.folder,
            token=self.spool.token,
            port=self.port,
            hosts=self.hosts,
            hooks=self.hooks,
        )
        return self.spool.script(key, text)

    def void(self, name: str) -> None:
        self.spool.void(name)

    def never_runs(self, life: JobLife) -> bool:
        """Return False for a job that has reported: it began before its batch was given up."""
        if self._unread is None:
            self._unread = self.spool.unread_jobs()
        return not life.told and life.job not in self._unread

    # -- what wrappers report ------------------------------------------------------------------

    def _record_report(self, line: bytes) -> bool:
        """Record a report from the network; return whether it was recorded. For the listener's
        thread.
        """
        report = read_report(line, self.spool.token)
        if report is None:
            return False
        with self.lock:
            if self.closed or not (self.sought or report.job in self.lives):
                return False
            # The report has just arrived, so our own clock gives its time.
            self.reported(replace(report, at=self.now()))
            self.publish()
            self.lock.notify_all()
            return not self.outlet.unwritten

    def read(self) -> bool:
        if not self.sought:
            return False
        news = False
        # What cannot be recorded now must reach the next controller.
        for line in self.spool.reports(keep=self.outlet.unwritten):
            report = read_report(line, self.spool.token)
            if report is not None:
                self.reported(report)
                news = True
        return news

    def reported(self, report: Report) -> None:
        """Handle a wrapper's report."""
        if report.kind != "start" and report.job in self.lost:
            self.ended_late(self.lost[report.job], report)
        life = self.lives.get(report.job)
        if life is None or life.over:
            return
        now = self.now()
        if life.queue_id is None:
            self.learn(life, report.queue_id)
            if life.cancelled:
                self.cancels.setdefault(report.queue_id, 0.0)
        elif life.queue_id != report.queue_id:
            self.found_twice(life, report.queue_id)
            return
        if report.life < life.restarts:
            return
        life.arrived(now)
        life.requeued(report.life, self.hooks.name, now, now)
        life.misses, life.absent = 0, 0.0
        if report.kind == "start":
            life.started(report.at, report.host, now)
        else:
            self.end_reported(life, report)

    def found_twice(self, life: JobLife, queue_id: str) -> None:
        if queue_id not in self._twice:
            self._twice.add(queue_id)
            self.cancels[queue_id] = 0.0
            if (sent := self.sent.get(life.key)) is not None:
                self.copies[queue_id] = sent
            self.outlet.warn(
                f"{self.hooks.name} accepted two submissions of the same job: "
                f"cancelling the second one, {queue_id}"
            )

    # -- what the queue says -------------------------------------------------------------------

    def over_in_queue(self, life: JobLife, row: QueueJob) -> bool:
        if row.status == VOIDED << 8 and not (life.verdict or life.reported):
            sent = self.sent.get(life.key)
            if self.spool.is_void(life.job, *(() if sent is None else sent.names)):
                life.verdict = "its submission had been given up when it started: it ran nothing"
        return super().over_in_queue(life, row)

    def bar(self, life: JobLife) -> bool:
        life.barred = life.barred or self.outlet.write(lambda: self.spool.void(life.job))
        return life.barred

    def cancel_on_arrival(self, life: JobLife | None) -> bool:
        return life is not None and not life.over and life.cancelled

    # -- files ---------------------------------------------------------------------------------

    def clear_batch(self, key: str) -> None:
        self.spool.drop_script(key)

    def remove(self) -> None:
        self.spool.remove()
