"""A run whose jobs are claimed by their wrapper scripts: its state, and the folder with the claims.

A wrapper script claims its job by creating a file, and then runs the job. If the file already
exists, the script runs nothing. So each job runs once, even if the queue has two copies of it. It
reports the job's end in another file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

from ensemble_batch import timing
from ensemble_batch.active_jobs import WrappedRun
from ensemble_batch.job_events import JobLife, Report, end_report
from ensemble_batch.job_script import quote, script_of
from ensemble_batch.output_files import Place
from ensemble_batch.queue_hooks import QueueHooks, QueueJob
from ensemble_batch.shared_folder import SharedFolder
from ensemble_batch.submission_records import Records, Sent
from ensemble_core import Emit, ExecutorError, Job, Run

#: Exit code of a wrapper that has run nothing, because it found its job claimed.
CLAIMED = 121
#: Variables of the controller that jobs do not get.
_KEPT = frozenset({
    "SHELLOPTS", "BASHOPTS", "_", "PWD", "SHLVL", "HOSTNAME", "ENSEMBLE_JOB_ID", "ENSEMBLE_INDEX",
    "ENSEMBLE_ATTEMPT", "ENSEMBLE_GROUP", "ENSEMBLE_RUN", "ENSEMBLE_TASK_COUNT",
    "ENSEMBLE_CORES",
})  # fmt: skip
#: Content of a claim by a controller.
_CONTROLLER = "controller"


class ClaimFolder(SharedFolder):
    """Folder that the controller shares with its jobs' wrapper scripts; nodes must see it.

    - ``reports/JOB@KEY``: the claim of a job; KEY is the key of its batch. A wrapper that finds
      this file runs nothing.
    - ``reports/JOB@KEY.end``: how the job ended
    - ``scripts``: the batches' scripts
    - ``signals/JOB@KEY.NUMBER.USR1``: a signal that the job's wrapper is to send, and removes
    - ``variables/JOB@KEY``: the variables that the job starts with, among them secrets. The files
      of a batch are links to one file. A wrapper removes its job's link when it has read it, so
      the variables are in no file once all jobs have started, even without a controller.

    Raises :class:`OSError` if the folder cannot be created or written.
    """

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        super().__init__(folder, "reports", "scripts", "signals", "variables")
        self._reports = os.path.join(folder, "reports")
        self._variables = os.path.join(folder, "variables")
        self._signals = os.path.join(folder, "signals")
        # Keep the variables that the queue sets for its job, the shell's, and the wrapper's.
        lines = [
            f"export {name}={quote(value)}\n"
            for name, value in environment.items()
            if name.isidentifier() and name not in _KEPT and not name.startswith("_ens_")
        ]
        self._text = os.fsencode("".join(lines))

    def batch(self, key: str, text: bytes, jobs: Collection[str]) -> str:
        """Write the script of a batch, and at first the variables of its jobs; return the script's
        path.
        """
        if not self.has_script(key):
            self._put_variables([f"{job}@{key}" for job in jobs])
        return self.script(key, text)

    def _put_variables(self, names: Collection[str]) -> None:
        first = ""
        for path in [os.path.join(self._variables, name) for name in names]:
            try:
                if not first:
                    raise OSError
                os.link(first, path)
            except OSError:  # also if the file system has no links, or allows no more
                self.put(path, self._text)
                first = path

    def drop_variables(self, waiting: Collection[str] = ()) -> None:
        """Remove the variables of all jobs but the waiting ones: ``JOB@KEY``, or ``JOB`` if the key
        of its batch is unknown.
        """
        with suppress(OSError):
            for name in os.listdir(self._variables):
                if name not in waiting and name.rpartition("@")[0] not in waiting:
                    self._unlink_variables(name)

    def _unlink_variables(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(os.path.join(self._variables, name))

    def claim(self, job: str, key: str) -> bool:
        """Prevent a job from ever running. Return False if the job has begun.

        The claim says that a controller made it, for a later controller: this one may be killed
        before it has recorded anything.
        """
        name = f"{job}@{key}"
        path = os.path.join(self._reports, name)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return self._read_words(name) == [_CONTROLLER]
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(_CONTROLLER)
        except OSError:
            os.unlink(path)  # an empty claim would look like that of a job that has begun
            raise
        self._unlink_variables(name)
        return True

    def send_signal(self, job: str, key: str, signal: str) -> None:
        """Leave a signal for a job's wrapper.

        Raises a transient :class:`ExecutorError` if the folder cannot be written.
        """
        path = os.path.join(self._signals, f"{job}@{key}.{time.time_ns()}.{signal}")
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except OSError as error:
            raise ExecutorError(
                f"cannot write {path}", cause=error.strerror, code="cannot-signal", transient=True
            ) from None

    def drop_signals(self, job: str, key: str) -> None:
        """Remove signals for a job that is over."""
        with suppress(OSError):
            for name in os.listdir(self._signals):
                if name.startswith(f"{job}@{key}."):
                    os.unlink(os.path.join(self._signals, name))

    def names(self) -> list[str]:
        """Return the names of wrappers' files."""
        return self.listing("reports")

    def start(self, name: str) -> tuple[float, str, str] | None:
        """Return when and where a job began, and its id in the queue; ``None`` if it has not
        begun.
        """
        words = self._read_words(name)
        try:
            return float(words[0]), words[1], words[2]
        except (ValueError, IndexError):
            return None

    def end(self, name: str) -> Report | None:
        """Return the end reported in the file ``name``, which has the suffix ``.end``."""
        words = self._read_words(name)
        try:
            report = end_report(*words[:5])
        except (ValueError, TypeError):
            return None
        if report.why.startswith("fail-"):
            why, note = report.why.removeprefix("fail-"), " ".join(words[5:])
            return replace(report, kind="fail", why=why, note=note)
        return report

    def _read_words(self, name: str) -> list[str]:
        with suppress(OSError), open(os.path.join(self._reports, name), "rb") as file:
            return file.read(4096).decode("utf-8", "replace").split()
        return []

    def drop_end(self, job: str, key: str) -> None:
        """Remove the report and the variables of a job that is over."""
        self._unlink_variables(f"{job}@{key}")
        with suppress(OSError):
            os.unlink(os.path.join(self._reports, f"{job}@{key}.end"))

    def drop_claim(self, job: str, key: str) -> None:
        """Remove the claim of a job of which no other copy can exist."""
        with suppress(OSError):
            os.unlink(os.path.join(self._reports, f"{job}@{key}"))


class ClaimedRun(WrappedRun):
    """A run whose wrapper scripts claim jobs, and report through files in a shared folder."""

    claims: ClassVar[bool] = True

    def __init__(
        self,
        hooks: QueueHooks,
        run: Run,
        emit: Emit,
        spool: ClaimFolder,
        records: Records,
        places: tuple[str, str],
    ) -> None:
        super().__init__(hooks, run, emit, spool.folder, records, places)
        self.spool = spool
        #: Jobs that are over and whose claims are no longer needed when their batch is over.
        self._claims: dict[str, list[str]] = {}
        #: Jobs that have been sent a signal.
        self._signalled: set[str] = set()

    def script(self, key: str, name: str, orders: Sequence[tuple[Job, Place]]) -> str:
        text = script_of(
            key,
            orders,
            tag=self.run.tag,
            folder=self.spool.folder,
            place=self.hooks.task_place,
            queue_id=self.hooks.task_id,
            grace=self.hooks.grace_of(orders[0][0]),
            notice=self.hooks.suspend_notice,
            restart_codes=self.hooks.restart_codes,
        )
        return self.spool.batch(key, text, [job.id for job, _ in orders])

    # -- what wrappers have written ------------------------------------------------------------

    def read(self) -> bool:
        lives = {f"{life.job}@{life.key}": life for life in self.lives.values() if life.key}
        if not (lives or self.lost):
            return False
        try:
            names = set(self.spool.names())
        except OSError:
            return False
        now, news = self.now(), False
        for report, life in lives.items():
            if report not in names or life.over:
                continue
            end = self.spool.end(f"{report}.end") if f"{report}.end" in names else None
            if "start" not in life.told:
                began = self.spool.start(report)
                if began is None:
                    continue
                self._learn(life, began[2])
                # A requeued job finds its old claim, so it does not start again.
                if end is None and not life.has_begun:
                    life.started(began[0], began[1], now)
                    news = True
            if end is not None:
                self.end_reported(life, end)
                news = True
        for life in [life for life in self.lost.values() if f"{life.job}@{life.key}.end" in names]:
            end = self.spool.end(f"{life.job}@{life.key}.end")
            if end is not None:
                self.ended_late(life, end)
                news = True
        return news

    def _learn(self, life: JobLife, queue_id: str) -> None:
        """Store the queue's job id from the wrapper's report, and send a waiting cancel."""
        if life.queue_id is None and queue_id != "-":
            self.learn(life, queue_id)
            if life.cancelled:
                self.cancels.setdefault(queue_id, 0.0)

    def still_in_queue(self, life: JobLife, row: QueueJob) -> None:
        """Report only a suspension: the wrapper's reports are more precise."""
        if life.reported is not None and row.state == "waiting" and row.restarts:
            self._cut_off(life, life.reported.host)
            # The queue's copy of the job would run nothing.
            life.cancelled = True
            self.cancels.setdefault(row.id, 0.0)
        else:
            super().still_in_queue(life, row)

    def over_in_queue(self, life: JobLife, row: QueueJob) -> bool:
        """Accept the queue's report only if the wrapper has reported nothing for a while."""
        claimed = row.status == CLAIMED << 8
        if life.reported is not None and not claimed:
            return super().over_in_queue(life, row)
        sure = life.reported is not None or life.misses >= timing.MISSES
        if not (claimed and sure) or life.cancelled:
            return False
        self._copy_ended(life)
        return True

    def _copy_ended(self, life: JobLife) -> None:
        """Handle the end of a copy whose wrapper found the job claimed.

        If another copy holds the claim, that copy is the job. If the same copy does, its first run
        died and the queue restarted it.
        """
        began = self.spool.start(f"{life.job}@{life.key}")
        if began is None:
            verdict = "its wrapper found the job claimed, and nothing is known about the claim"
            self.lose(life, verdict, 0.0)
        elif began[2] in ("-", life.queue_id):
            if not life.restarts:
                life.started(began[0], began[1], self.now())
            self._cut_off(life, began[1])
        else:
            self.learn(life, began[2])
            life.misses = 0

    def _cut_off(self, life: JobLife, host: str) -> None:
        """End a job that the queue has started again, although it runs only once."""
        name = self.hooks.name
        note = f"its run on {host} was cut off; {name} started it again, which ran nothing"
        life.gone("node-failure", note, None, self.now())

    # -- cancelling ----------------------------------------------------------------------------

    def never_runs(self, life: JobLife) -> bool:
        return not life.told and self.spool.claim(life.job, life.key)

    def cancel(self, life: JobLife) -> None:
        super().cancel(life)
        # If we get the claim, the job has not begun and never will, so it is over now.
        if "start" not in life.told and life.key and self.spool.claim(life.job, life.key):
            life.refuse("cancel", self.note, self.now())

    def send_signal(self, lives: Sequence[JobLife], signal: str) -> None:
        for life in lives:
            self._signalled.add(life.job)
            self.spool.send_signal(life.job, life.key, signal)

    def bar(self, life: JobLife) -> bool:
        if life.has_begun or life.barred:
            return True

        def claim() -> None:
            try:
                life.barred = self.spool.claim(life.job, life.key)
            except FileNotFoundError:
                life.barred = True  # without a folder for the claim it cannot run either

        if not self.outlet.write(claim):
            return False
        if not life.barred:
            began = self.spool.start(f"{life.job}@{life.key}")
            if began is not None:
                life.misses = 0
                self._learn(life, began[2])
                life.started(began[0], began[1], self.now())
            # The start report may be in progress, lost to a full disk, or our own from before a
            # crash.
            elif life.misses > timing.MISSES:
                life.barred = True
        return life.barred

    # -- files ---------------------------------------------------------------------------------

    def clear(self, life: JobLife, sent: Sent) -> None:
        if self.outlet.unwritten:
            return  # its end was not recorded, so a later controller needs its files
        sure = sent.ids is not None and len(sent.names) == 1 and not (life.cancelled or life.barred)
        self.spool.drop_end(life.job, life.key)
        if life.job in self._signalled:
            self._signalled.discard(life.job)
            self.spool.drop_signals(life.job, life.key)
        # Others may rerun a whole array, also its ended jobs.
        if sure:
            self._claims.setdefault(life.key, []).append(life.job)

    def clear_batch(self, key: str) -> None:
        self.spool.drop_script(key)
        for job in self._claims.pop(key, ()):
            self.spool.drop_claim(job, key)

    def remove(self) -> None:
        self.spool.remove()

    def drop_secrets(self) -> None:
        lives = self.lives.values()
        # Without records, a job that is found in the queue has no key.
        names = {f"{life.job}@{life.key}" if life.key else life.job for life in lives}
        self.spool.drop_variables(names)
