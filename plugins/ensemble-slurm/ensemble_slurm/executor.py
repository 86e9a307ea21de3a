"""The executor ``slurm``: calls Slurm's commands and reads their output.

Its base class :class:`BatchExecutor` does what all batch queues have in common.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from signal import Signals
from typing import ClassVar, Literal

from ensemble_batch import (
    Batch,
    BatchExecutor,
    CannotTake,
    InvalidJob,
    Place,
    QueueJob,
    address_option,
    quote,
    reshaped,
    script_of_batch,
)

from ensemble_core import Cause, Emit, ExecutorError, Job, Run, job_environment, start_folder
from ensemble_slurm.commands import (
    Refusal,
    hint_for,
    query_environment,
    refusal,
    submit_environment,
    words,
)
from ensemble_slurm.job_names import COMMENT_LIMIT, Label, format_indices, mark_of, suffix_of
from ensemble_slurm.job_states import StepMessages, queue_job
from ensemble_slurm.sbatch import launcher, sbatch_options, wrong_memory
from ensemble_slurm.slurm_output import (
    SACCT,
    SACCT_SCRIPT,
    SEPARATOR,
    SINFO,
    SINFO_REASON,
    SQUEUE,
    SQUEUE_COMMENT,
    SQUEUE_SCRIPT,
    Row,
    Site,
    failed_prologs,
    read_config,
    read_jobs,
    read_nodes,
    read_sacct,
    read_squeue,
    unreadable,
)

#: Oldest release whose output is understood.
OLDEST = (20, 11)
_COMMANDS = ("sbatch", "scancel", "squeue", "sinfo", "scontrol")
#: Seconds to wait for slurmctld's first reply.
_FIRST = 30.0
#: Maximum bytes of commands in a script (Slurm allows 4 MiB, ``max_script_size``), and the bytes
#: that each job adds to its command.
SCRIPT_LIMIT, _JOB = 2 * 1024 * 1024, 600
#: Maximum number of ids for one ``scancel`` and one ``sacct``.
_CANCEL_AT_ONCE, _ACCOUNT_AT_ONCE = 200, 300
#: Maximum number of jobs and arrays to ask about one by one in a query.
_SHOW_AT_ONCE = 20
#: States of jobs that have not started.
_WAITING = frozenset({"waiting", "stuck", "held"})
_CANCELLED = "cancelled in Slurm before it began, not by this run"
#: Maximum seconds from the end of a job whose prolog has failed until Slurm drains the node.
_PROLOG = 5.0
#: Replies of ``scontrol show job`` about a job that slurmctld does not know.
_NO_SUCH_JOB = re.compile(r"invalid job id|^job \S+ not found", re.M)
#: Seconds between checks of the completion script's file.
_COMPLETIONS = 2.0
#: Seconds for which an end may be missing in the accounting, because slurmdbd was away.
_ACCOUNTING_LAG = 90.0
#: What ``sbatch`` says if slurmctld has too many jobs. It then retries for two minutes.
_RETRIES = "sleeping and retrying"


class SlurmExecutor(BatchExecutor):
    """Runs jobs on a Slurm cluster. The README documents its guarantees."""

    causes: ClassVar[frozenset[Cause]] = frozenset(
        {"exit", "signal", "timeout", "node-failure", "preempted", "cancelled", "submit"}
    )
    name: ClassVar[str] = "slurm"
    claims: ClassVar[bool] = False
    explains: ClassVar[bool] = True
    capabilities: ClassVar[frozenset[str]] = BatchExecutor.capabilities | {"avoid", "signal"}
    # srun keeps some signals, such as SIGINT, for itself.
    relay: ClassVar[str] = quote('scancel --signal="$1" "$_ens_id"')
    lanes: ClassVar[Literal[1, 2]] = 2
    task_place: ClassVar[str] = "$((SLURM_ARRAY_TASK_ID + 1))"
    task_id: ClassVar[str] = (
        "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
    )
    task_restarts: ClassVar[str] = "${SLURM_RESTART_COUNT:-0}"
    task_cgroup: ClassVar[str] = "/job_$SLURM_JOB_ID/"

    def __init__(
        self,
        *,
        partition: str | None = None,
        account: str | None = None,
        qos: str | None = None,
        reservation: str | None = None,
        constraint: str | None = None,
        look: float = 30.0,
        lost_after: float = 600.0,
        rate: float = 5.0,
        listen: str = "auto",
        jobcomp: str | None = None,
    ) -> None:
        named = {
            "partition": partition,
            "account": account,
            "qos": qos,
            "reservation": reservation,
            "constraint": constraint,
        }
        self._options = {name: value for name, value in named.items() if value is not None}
        self._partition = partition
        self._look = look
        self.lost_after = lost_after
        self.rate = rate
        self.listen = address_option(listen)
        self._jobcomp = jobcomp
        self._messages = StepMessages("")
        self._site = Site()
        self._has_submit_line = True  # before Slurm 21.08, sacct rejects this column
        self._user = str(os.getuid())
        #: Since when accounting has listed jobs as not over that slurmctld no longer knows.
        self._unended: dict[str, float] = {}
        #: When jobs were submitted or last listed as waiting, in monotonic seconds.
        self._waited: dict[str, float] = {}
        self._waited_lock = threading.Lock()
        self._ended = threading.Event()
        self._completions: Completions | None = None

    # -- opening -------------------------------------------------------------------------------

    def open(self, run: Run, emit: Emit) -> None:
        if self._jobcomp is not None:
            self._completions = Completions(self._jobcomp, mark_of(run.id), os.getuid())
        self._messages = StepMessages(os.path.abspath(run.folder))
        self._here, self._run_id, self._mark = start_folder(), run.id, f"@{mark_of(run.id)}"
        super().open(run, emit)

    def connect(self) -> None:
        for command in _COMMANDS:
            if shutil.which(command) is None:
                raise ExecutorError(
                    f"{command} is not on the PATH",
                    hint="load the module that provides Slurm, or run on a login node of the "
                    "cluster",
                    code="no-slurm",
                )
        try:
            told = self._query("scontrol", "show", "config", deadline=_FIRST)
        except ExecutorError as error:
            raise ExecutorError(
                "Slurm does not answer",
                cause=error.what,
                hint=error.hint or "check with 'scontrol ping' whether slurmctld is up",
                code="no-answer",
                transient=error.transient,
            ) from None
        self._site = site = read_config(told)
        if site.accounting and shutil.which("sacct") is None:
            self._site = site = replace(site, accounting=False)
        self.knows_ended = site.accounting
        if site.version and site.version[:2] < OLDEST:
            raise ExecutorError(
                f"Slurm {'.'.join(map(str, site.version))} is too old; "
                f"{OLDEST[0]}.{OLDEST[1]:02d} is the oldest supported release",
                hint="load a newer Slurm",
                code="version-mismatch",
            )
        self._ended.clear()
        self.poll = max(0.2, min(self._look, site.least_age / 3 or self._look))
        self.grace = max(1.0, site.kill_wait - 1)
        self.patience = site.kill_wait + 30
        self.settle = site.message_timeout
        self.restart_codes = site.restart_codes
        self.most_jobs = max(1, min(site.largest_array, site.most_jobs))

    def disconnect(self) -> None:
        self._ended.set()

    def faces(self) -> Iterator[str]:
        yield self._site.controller
        # If slurmctld runs here, nodes may see another of our addresses.
        try:
            nodes = self._query("sinfo", "--noheader", "--Node", "--Format=NodeAddr:200")
        except ExecutorError:
            return
        yield from list(dict.fromkeys(nodes.split()))[:3]

    # -- commands ------------------------------------------------------------------------------

    def _query(self, *command: str, deadline: float = 60.0, fine: str = "") -> str:
        """Return the output of a command that queries or cancels.

        The pattern ``fine`` matches error messages that do not count as errors.
        """
        return self._run_command(command, query_environment(os.environ), deadline, fine)

    def _run_command(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        deadline: float,
        fine: str,
        kill_on: str = "",
    ) -> str:
        code, out, err = self.command(
            command, environment=environment, deadline=deadline, kill_on=kill_on.encode()
        )
        kind = refusal(err)
        if code == 0 or (fine and kind is Refusal.FINAL and re.search(fine, err.lower())):
            return out
        what = words(err) or f"{command[0]} ended with exit code {code}"
        hint = hint_for(err)
        if kind is Refusal.FINAL:
            raise InvalidJob(what, hint=hint)
        if kind is Refusal.FULL:
            raise CannotTake(what, arrived=False, hint=hint)
        raise CannotTake(what, hint=hint or "check with 'scontrol ping' whether slurmctld is up")

    # -- submitting ----------------------------------------------------------------------------

    def wrong(self, job: Job) -> str | None:
        if job.tasks < job.nodes:
            return (
                f"cannot spread {job.tasks} tasks over {job.nodes} nodes: Slurm starts at least "
                "one task on each node; increase 'tasks'"
            )
        return wrong_memory(job)

    def shape(self, job: Job) -> object:
        return super().shape(job), suffix_of(job)

    def fits(self, jobs: Sequence[Job], tag: str) -> bool:
        size = sum(_JOB + sum(map(len, (*job.command, *job.environment.values()))) for job in jobs)
        label = Label.of(jobs, tag, "f" * 16, "k" * 32)
        return size <= SCRIPT_LIMIT and len(label.comment) <= COMMENT_LIMIT

    def launcher(self, job: Job) -> Sequence[str]:
        return launcher(job)

    def may_restart(self, job: Job) -> bool:
        return bool(job.options.get(self.name, {}).get("requeue"))

    def messages_file(self, places: Sequence[Place]) -> str:
        return self._messages.path("$_ens_id", places)

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        label = Label.of(batch.jobs, batch.tag, batch.run_id, batch.name)
        # The same names as in QueueJob.id.
        error = self._messages.path("%A" if len(batch.jobs) == 1 else "%A_%a", batch.places)
        options = sbatch_options(batch.jobs, label, self._options, error)
        command = ["sbatch", *options, f"--chdir={self._here}", batch.script]
        environment = submit_environment(job_environment())
        now = time.monotonic()
        patience = 3 * self._site.message_timeout
        try:
            out = self._run_command(command, environment, patience, "", kill_on=_RETRIES)
        except CannotTake as error:
            # Killed before its next attempt, unless this machine had stopped it for a second.
            if _RETRIES in error.what and (ids := self.find_batch(batch.name, len(batch.jobs))):
                self._note_waiting(ids, now)
                return ids
            raise
        match = re.search(r"^(\d+)(?:;\S+)?\s*$", out, re.M)
        if match is None:
            raise CannotTake(f"unexpected output of sbatch: {out.strip()[:200]!r}")
        ids = _ids(match[1], len(batch.jobs))
        self._note_waiting(ids, now)
        return ids

    # -- asking --------------------------------------------------------------------------------

    def _squeue(self, columns: str, *which: str) -> Iterator[Row]:
        """Return this user's jobs from one request. Slurmctld does the filtering."""
        out = self._query(
            "squeue", "--noheader", "--all", "--array", "--states=all",
            f"--user={self._user}", f"--Format={columns}", *which, fine="invalid job id",
        )  # fmt: skip
        if (part := unreadable(out)) is not None:
            raise CannotTake(f"cannot parse the output of squeue ({part})")
        return read_squeue(out)

    def _sacct(self, *which: str) -> Iterator[Row]:
        words = ("sacct", "--allocations", "--noheader", "--parsable2", f"--delimiter={SEPARATOR}")
        if self._has_submit_line:
            try:
                return read_sacct(self._query(*words, f"--format={SACCT_SCRIPT}", *which))
            except InvalidJob:
                self._has_submit_line = False
        return read_sacct(self._query(*words, f"--format={SACCT}", *which))

    def ask(self, ids: Collection[str]) -> Iterable[QueueJob]:
        arrays = {id_.partition("_")[0] for id_ in ids if "_" in id_}
        # Tasks that were cancelled together while they waited have one row without their numbers:
        # ``account`` asks about each of them.
        together = ("CANCELLED", None, "")
        now = time.monotonic()
        rows = [
            row
            for row in self._squeue(SQUEUE)
            if row.job not in arrays or (row.state, row.task, row.nodes) != together
        ]
        asked = set(ids)
        # Somebody may have renamed our jobs, or they are foreign.
        unknown = {row.job for row in rows if row.id in asked and not self._is_own(row)}
        if unknown:
            rows = [row for row in rows if row.job not in unknown]
            rows += self._squeue(SQUEUE_SCRIPT, f"--jobs={','.join(sorted(unknown))}")
        jobs = list(map(self._queue_job, rows))
        waiting = [job.id for job in jobs if job.id in asked and job.state in _WAITING]
        self._note_waiting(waiting, now)
        ours = self._explain([job for job in jobs if job.id in asked])
        return [*ours, *(job for job in jobs if job.id not in asked), *reshaped(ids, jobs, "_")]

    def _note_waiting(self, ids: Iterable[str], now: float) -> set[str]:
        """Note that these jobs have not started yet.

        Return those that had not started so recently that slurmctld cannot have forgotten an end.
        """
        since = time.monotonic() - (self._site.least_age or inf)
        with self._waited_lock:
            self._waited |= dict.fromkeys(ids, now)
            self._waited = {id_: at for id_, at in self._waited.items() if at > since}
            return set(self._waited)

    def _explain(self, jobs: Collection[QueueJob]) -> list[QueueJob]:
        """Add Slurm's reasons to jobs that it has ended.

        If a prolog fails, Slurm cancels the job, and only the drained node shows why.
        """
        cancelled = {job.host for job in jobs if job.exception == "cancel" and job.host}
        failed = self._failed_prologs(cancelled)
        explained = []
        for job in jobs:
            for node, reason, at in failed if job.exception == "cancel" else ():
                if abs((job.ended or 0.0) - at) <= _PROLOG and self._has_node(job, node):
                    note = f"{node} could not start it, so Slurm cancelled it ({reason})"
                    job = replace(job, exception="node-failure", note=note, by="")
                    break
            explained.append(job if job.exception is None else self._messages.explain(job))
        return explained

    def _failed_prologs(self, hosts: Collection[str]) -> list[tuple[str, str, float]]:
        """Return node, reason and time of each failed prolog on these nodes."""
        if not hosts:
            return []
        command = ("sinfo", "--noheader", "--Node", f"--nodes={','.join(sorted(hosts))}")
        with suppress(InvalidJob):  # squeue may have cut a long list of nodes
            return failed_prologs(self._query(*command, f"--Format={SINFO_REASON}"))
        return []

    def _has_node(self, job: QueueJob, node: str) -> bool:
        """Return whether a job had a node; ``host`` may be a list such as ``n[1-3]``."""
        listed = "[" in job.host or "," in job.host
        return job.host == node or (
            listed and any(node == each for each, _, _ in self._failed_prologs([job.host]))
        )

    def _is_own(self, row: Row) -> bool:
        """Return whether the job belongs to this run, by its name or its comment."""
        return row.name.endswith(self._mark) or self._labelled(row)

    def _labelled(self, row: Row) -> bool:
        return Label.from_comment(row.comment, self._run_id) is not None

    def _queue_job(self, row: Row) -> QueueJob:
        return replace(queue_job(row), batch="" if self._is_own(row) else row.script or row.name)

    def account(self, ids: Collection[str]) -> Iterable[QueueJob]:
        """Ask slurmctld about each job. If it does not know a job, look for its end in accounting.

        Accounting may list a job as running forever after slurmctld has lost it. But if slurmdbd
        was away, it does not have the newest ends yet.
        """
        found, unknown = self._show(ids)
        unstarted = self._note_waiting((), 0.0)
        if unknown and self._site.accounting:
            which = sorted(unknown)[:_ACCOUNT_AT_ONCE]
            rows = list(map(self._queue_job, self._sacct(f"--jobs={','.join(which)}")))
            found.update((job.id, job) for job in rows if job.state == "over")
            unknown -= self._late({job.id for job in rows} & unknown - found.keys() - unstarted)
            unstarted |= set(which) - {job.id for job in rows}
        # A task that is cancelled while it waits may leave no record although its array has one.
        # Neither does a task that ended longer than MinJobAge ago, unless there is accounting.
        kept = {id_.partition("_")[0] for id_, job in found.items() if "_" in id_ and not job.batch}
        return [
            *self._explain(found.values()),
            *(
                self._messages.end(id_)
                or (
                    QueueJob(id_, "unknown", exception="cancel", note=_CANCELLED)
                    if id_ in unstarted and id_.partition("_")[0] in kept
                    else QueueJob(id_, "unknown")
                )
                for id_ in unknown - found.keys()
            ),
        ]

    def _late(self, ids: Collection[str]) -> set[str]:
        """Return those of these jobs whose end may still reach the accounting, which does not have
        it.
        """
        now = time.monotonic()
        seen = dict.fromkeys(ids, now) | self._unended
        self._unended = {id_: at for id_, at in seen.items() if now - at < 10 * _ACCOUNTING_LAG}
        return {id_ for id_ in ids if now - self._unended[id_] < _ACCOUNTING_LAG}

    def _show(self, ids: Collection[str]) -> tuple[dict[str, QueueJob], set[str]]:
        """Return these jobs from ``scontrol show job``, and the ids that slurmctld does not know.

        Only some jobs are asked about, so that thousands do not need thousands of requests. An id
        of an array shows all its tasks.
        """
        found: dict[str, QueueJob] = {}
        unknown: set[str] = set()
        arrays = Counter(id_.partition("_")[0] for id_ in ids)
        which = list(dict.fromkeys(number if n > 1 else "" for number, n in arrays.items()))
        left, seen = deque([*filter(None, which), *ids]), set(which)
        for _ in range(_SHOW_AT_ONCE):
            while left and (left[0] in found or left[0] in unknown):
                left.popleft()
            if not left:
                break
            id_ = left.popleft()
            code, out, err = self.command(
                ["scontrol", "show", "job", id_], environment=query_environment(os.environ)
            )
            if code == 0:
                found.update((row.id, self._queue_job(row)) for row in read_jobs(out))
            elif refusal(err) is Refusal.FINAL and _NO_SUCH_JOB.search(f"{err}\n{out}".lower()):
                unknown |= {each for each in ids if each.partition("_")[0] == id_ or each == id_}
                array, line, _ = id_.partition("_")
                if line and array not in seen:
                    seen.add(array)
                    left.append(array)
            else:
                raise CannotTake(words(err) or f"scontrol ended with exit code {code}")
        return found, unknown

    def find_batch(self, name: str, size: int) -> Sequence[str] | None:
        marked = f" {name} "
        found = (row.job for row in self._squeue(SQUEUE_COMMENT) if marked in row.comment)
        job = next(found, None)
        if job is None:  # the site may have changed its name and its comment
            script = script_of_batch(name)
            rows = (row for row in self._squeue(SQUEUE_SCRIPT) if not self._is_own(row))
            jobs = {row.job for row in rows if os.path.basename(row.script) == script}
            job = max(jobs, key=int, default=None)  # the last submission of the batch
        return None if job is None else _ids(job, size)

    def find_ended_batch(self, name: str, size: int, age: float) -> Sequence[str] | None:
        if not self._site.accounting:
            return None
        marked, script = f" {name} ", script_of_batch(name)
        named: set[str] = set()
        others: set[str] = set()  # accounting may keep no comments, or the site's
        for row in self._recent(age):
            if marked in row.comment:
                named.add(row.job)
            elif os.path.basename(row.script) == script and not self._labelled(row):
                others.add(row.job)
        job = max(named or others, key=int, default=None)
        return None if job is None else _ids(job, size)

    def _recent(self, age: float) -> Iterator[Row]:
        """Return this user's jobs of the past ``age`` seconds, and some more, from accounting."""
        since = int(max(86_400.0, age + 3_600.0))
        return self._sacct(f"--user={self._user}", f"--starttime=now-{since}seconds")

    def find_jobs(self, run_id: str, age: float) -> Mapping[str, str]:
        rows = list(self._squeue(SQUEUE_COMMENT))
        if self._site.accounting:
            rows = [*self._recent(age), *rows]
        found: dict[str, str] = {}
        for row in rows:
            label = Label.from_comment(row.comment, run_id)
            if label is None:  # accounting may keep no comments, or the site's
                label = Label.from_name(row.name, run_id)
            job = None if label is None else label.job(row.task)
            if job is not None:
                found[job] = row.id
        return found

    def end_jobs(self, ids: Collection[str]) -> None:
        self._cancel(ids)

    def signal_jobs(self, ids: Collection[str], signal: str) -> None:
        number = Signals.SIGRTMIN + Signals[f"SIG{signal}"]
        self._cancel(ids, "--batch", f"--signal={number}")

    def _cancel(self, ids: Collection[str], *options: str) -> None:
        """Call ``scancel``, which also sends other signals than those of a cancel."""
        arrays: dict[str, list[int]] = defaultdict(list)
        single: list[str] = []
        for id_ in ids:
            job, is_task, task = id_.partition("_")
            if is_task:
                arrays[job].append(int(task))
            else:
                single.append(job)
        # All tasks of an array, in Slurm's notation, need only one request.
        single += [f"{job}_[{format_indices(sorted(tasks))}]" for job, tasks in arrays.items()]
        for at in range(0, len(single), _CANCEL_AT_ONCE):
            self._query(
                *("scancel", *options, *single[at : at + _CANCEL_AT_ONCE]),
                fine="already|invalid job id",
            )

    def nodes(self) -> Mapping[str, float]:
        command = ["sinfo", "--noheader", "--Node", f"--Format={SINFO}"]
        if self._partition is not None:
            command.append(f"--partition={self._partition}")
        try:
            return read_nodes(self._query(*command))
        except InvalidJob:  # sbatch gives a better message about an invalid partition
            return {}

    def watch(self, told: Callable[[Iterable[QueueJob]], None]) -> None:
        """Wait until the site's completion script reports an end. A report only triggers a query of
        the queue.
        """
        while not self._ended.wait(_COMPLETIONS if self._completions is not None else None):
            if self._completions is not None and self._completions.news():
                told(())
                return


def _ids(job: str, size: int) -> list[str]:
    return [job] if size == 1 else [f"{job}_{task}" for task in range(size)]


class Completions:
    """The file in which Slurm's completion script (``jobcomp-ensemble.sh``) reports ended jobs.

    ``FOLDER/UID.MARK`` grows by a line whenever a job of the run ends. ``UID`` is the user's id,
    ``MARK`` the beginning of the run's identity. A report only triggers a query of the queue, so a
    forged one does no harm.
    """

    def __init__(self, folder: str, mark: str, user: int) -> None:
        self._path = os.path.join(folder, f"{user}.{mark}")
        self._size = 0

    def news(self) -> bool:
        """Return whether the file has grown since the last call."""
        try:
            size = os.stat(self._path).st_size
        except OSError:
            return False
        grown, self._size = size != self._size, size
        return grown
