"""The executor ``gridengine``: calls Grid Engine's commands and reads their output."""

from __future__ import annotations

import math
import os
import pwd
import re
import shutil
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar
from xml.etree import ElementTree as ET

from ensemble_batch import (
    Batch,
    BatchExecutor,
    CannotTake,
    InvalidJob,
    QueueJob,
    reshaped,
    status_of,
)

from ensemble_core import ExecutorError, Job
from ensemble_gridengine import never

#: Messages while qmaster is unreachable, busy or starting.
_AWAY = (
    "unable to contact qmaster", "unable to send message", "commlib error", "got select error",
    "got send error", "got read error", "connection refused", "timeout", "try again later",
    "failed receiving gdi request", "qmaster is not alive",
)  # fmt: skip
#: Exit code of ``qsub`` if a limit of the cell (``max_jobs``, ``max_u_jobs``) is reached.
_FULL = 25
#: Jobs that are asked about one by one in a query.
_ASK_AT_ONCE = 20
_DELETED = "deleted in the queue before it began, not by this run"
#: Ids in one ``qdel``.
_AT_ONCE = 200
#: Codes of ``failed`` in qacct's records: the queue starts the job again; it enforced a limit.
_CONTINUES, _ENFORCED = ("24", "25"), ("36", "37")
#: Exit status of a wrapper that SIGUSR2, the notice before a kill (``-notify``), ended before it
#: could catch that. If it catches it, it reports its own end.
_NOTICED = "140"
#: Decrease of ``-p`` for each step of ``urgency`` below the default of 16.
_STEP = 50


class GridEngineExecutor(BatchExecutor):
    """Runs jobs on a Grid Engine cluster. The README lists its guarantees."""

    name: ClassVar[str] = "gridengine"
    capabilities: ClassVar[frozenset[str]] = BatchExecutor.capabilities | {"avoid", "signal"}
    most_jobs: int = 1000
    explains: ClassVar[bool] = True
    task_place: ClassVar[str] = "$SGE_TASK_ID"
    task_id: ClassVar[str] = '$JOB_ID$(case $SGE_TASK_ID in [0-9]*) echo ".$SGE_TASK_ID";; esac)'
    suspend_notice: ClassVar[str] = "USR1"  # with -notify
    # Grid Engine starts the job again, also with ``-r n``; or its state is Eqw, forever.
    restart_codes: frozenset[int] = frozenset({99, 100})
    own_variables: ClassVar[tuple[str, ...]] = (
        "SGE_TASK", "SGE_JOB_SPOOL", "JOB_", "PE_", "NSLOTS", "NHOSTS", "NQUEUES", "TMPDIR",
        "QUEUE", "RESTARTED", "PMI_", "PMIX_", "OMPI_COMM_WORLD_",
    )  # fmt: skip

    def __init__(
        self,
        *,
        queue: str | None = None,
        project: str | None = None,
        environment: str | None = None,
        gpu: str | None = None,
        memory: str = "h_vmem",
        poll: float = 15.0,
        lost_after: float = 600.0,
    ) -> None:
        self._site = {"queue": queue, "project": project}
        self._environment = environment
        self._gpu = gpu
        self._memory = [name.strip() for name in memory.split(",")]
        self.poll = poll
        self.lost_after = lost_after
        #: When qmaster last had the run's jobs and arrays, in monotonic seconds, by their numbers.
        self._seen: dict[str, float] = {}
        #: Whether the last ``qstat`` listed any job.
        self._listed = False
        # Not LOGNAME or USER, which may name another user.
        self._user = pwd.getpwuid(os.getuid()).pw_name

    # -- the queue -----------------------------------------------------------------------------

    def _run_command(self, words: Sequence[str], *, fine: str = "") -> str:
        """Return the output of a command. If it matches ``fine``, a failure counts as success."""
        code, out, err = self.command(words)
        said = f"{err}\n{out}".strip()
        lower = said.lower()
        if code == 0 or (fine and re.search(fine, lower)):
            return out
        text = " ".join(line.strip() for line in said.splitlines())[:600]
        what = text or f"{words[0]} ended with exit code {code}"
        if _is_unreachable(lower):
            hint = "check qmaster with 'qconf -sss'"
            raise CannotTake(what, hint=hint)
        raise CannotTake(what, arrived=False) if code == _FULL else InvalidJob(what)

    def connect(self) -> None:
        if shutil.which("qsub") is None:
            hint = "source the settings.sh of the Grid Engine cell, or run on a submit host"
            raise ExecutorError("qsub is not on the PATH", hint=hint, code="no-gridengine")
        limit = re.search(r"^max_aj_tasks\s+(\d+)", self._run_command(["qconf", "-sconf"]), re.M)
        if limit is not None and int(limit[1]):  # 0: no limit
            self.most_jobs = min(self.most_jobs, int(limit[1]))

    def wrong(self, job: Job) -> str | None:
        options = {"environment": self._environment, "gpu": self._gpu}
        if (found := never(job, options)) is not None:
            return f"{found[1]}: {found[2]}"
        if job.memory_per_task:
            both = [
                name
                for name in self._memory
                if name in job.options.get(self.name, {}).get("resources", {})
            ]
            if both:
                return (
                    f"'memory_per_task' and the resource {both[0]!r} both request memory: give "
                    "only one"
                )
        return None

    def words(self, batch: Batch) -> list[str]:
        """Return the command line that submits a batch."""
        job = batch.job
        options = job.options.get(self.name, {})
        words = [
            *("qsub", "-terse", "-N", batch.name, "-S", "/bin/bash", "-r", "n"),
            # The wrapper enters the workdir. If Grid Engine cannot enter a folder, because it was
            # removed, the job stays in the queue forever (Eqw).
            *("-wd", "/"),
            # The wrapper gets SIGUSR2 before it is killed, and ends its processes.
            *("-notify", "-o", "/dev/null", "-e", "/dev/null"),
        ]
        if len(batch.jobs) > 1:
            words += ["-t", f"1-{len(batch.jobs)}"]
        if job.urgency == 0:
            words.append("-h")
        elif job.urgency < 16:
            words += ["-p", str((job.urgency - 16) * _STEP)]
        if job.cores > 1:
            words += ["-pe", str(self._environment), str(job.cores)]
        resources = dict(options.get("resources", {}))
        # The wrapper enforces the time limit. This limit is for the scheduler, and a backstop.
        if job.duration:
            resources.setdefault("h_rt", int(job.duration + self.grace_of(job) + 60))
        if job.gpus:
            resources[str(self._gpu)] = job.gpus
        if job.memory_per_task:  # for each slot, of which a task has as many as cores
            slot = -(-job.memory_per_task // (job.cores_per_task * 2**20))
            resources |= dict.fromkeys(self._memory, f"{slot}M")
        if job.avoid:
            name = next((each for each in ("hostname", "h") if each in resources), "hostname")
            own = f"({resources[name]})&" if name in resources else ""
            resources[name] = own + "&".join(f"!{node}" for node in job.avoid)
        for name, value in resources.items():
            words += ["-l", f"{name}={value}"]
        for name, flag in (("queue", "-q"), ("project", "-P")):
            value = options.get(name, self._site[name])
            if value is not None:
                words += [flag, value]
        for text in options.get("extra", ()):
            words += text.split(" ", 1)
        return [*words, batch.script]

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        now = time.monotonic()
        out = self._run_command(self.words(batch))
        match = re.search(r"^(\d+)(\.\S+)?$", out, re.M)
        if match is None:
            raise CannotTake(f"unexpected output of qsub: {out.strip()[:200]!r}")
        self._seen[match[1]] = now
        return _ids(match[1], len(batch.jobs))

    def _jobs(self) -> Iterator[tuple[str, str, str]]:
        """Yield name, id and state of this user's jobs."""
        out = self._run_command(["qstat", "-xml", "-g", "d", "-u", self._user])
        try:
            rows = list(ET.fromstring(out).iter("job_list"))
        except ET.ParseError as error:
            raise CannotTake(f"qstat did not print XML: {error}") from None
        for row in rows:
            number, task = row.findtext("JB_job_number", ""), row.findtext("tasks")
            id_ = f"{number}.{task}" if task else number
            yield row.findtext("JB_name", ""), id_, row.findtext("state", "")

    def ask(self, ids: Collection[str]) -> Iterable[QueueJob]:
        now = time.monotonic()
        asked, jobs = set(ids), list(self._jobs())
        self._listed = bool(jobs)
        self._seen |= {id_.partition(".")[0]: now for _, id_, _ in jobs if id_ in asked}
        renamed = {
            id_.partition(".")[0]
            for name, id_, _ in jobs
            if id_ in asked and not name.startswith("ens_")
        }
        scripts = self._scripts(sorted(renamed))
        yield from reshaped(ids, [QueueJob(id_, "running") for _, id_, _ in jobs], ".")
        for name, id_, state in jobs:
            number = id_.partition(".")[0]
            batch = scripts.get(number, name)
            if "E" in state:
                note = f"in error ('qstat -j {number}' says why; 'qmod -cj' clears)"
                yield QueueJob(id_, "stuck", note=note, batch=batch)
            else:
                yield _queue_job(id_, state, batch)

    def _scripts(self, numbers: Sequence[str]) -> dict[str, str]:
        """Return the path of each job's script, empty if the job has no script.

        Raises :class:`CannotTake` if a job has just ended.
        """
        found: dict[str, str] = {}
        for at in range(0, len(numbers), _AT_ONCE):
            words = ["qstat", "-j", ",".join(numbers[at : at + _AT_ONCE])]
            out = self._run_command(words, fine="do not exist")
            for part in out.split("=" * 62):
                # A field may be empty, so the pattern must not cross the end of a line.
                fields = dict(re.findall(r"^(\w+):[ \t]*(.*?)[ \t]*$", part, re.M))
                found[fields.get("job_number", "")] = fields.get("script_file", "")
        if missing := [number for number in numbers if number not in found]:
            raise CannotTake(f"'qstat -j' does not know job {missing[0]}, which 'qstat' has listed")
        return found

    def find_batch(self, name: str, size: int) -> Sequence[str] | None:
        found = {id_.partition(".")[0] for called, id_, _ in self._jobs() if called == name}
        return _ids(min(found), size) if found else None

    def end_jobs(self, ids: Collection[str]) -> None:
        whole: dict[str, list[str]] = defaultdict(list)
        for id_ in ids:
            whole[id_.partition(".")[0]].append(id_)
        words = [id_ for tasks in whole.values() for id_ in tasks]
        for at in range(0, len(words), _AT_ONCE):
            some = words[at : at + _AT_ONCE]
            self._run_command(["qdel", *some], fine=r"does not exist|registered|has deleted")

    def nodes(self) -> Mapping[str, float]:
        """Return the slots (as cores) of the queue that jobs use, or of all queues."""
        words = ["qstat", "-g", "c"]
        if self._site["queue"] is not None:
            words += ["-q", self._site["queue"]]
        up = free = 0
        for line in self._run_command(words).splitlines()[2:]:
            fields = line.split()
            if len(fields) >= 8 and all(field.isdigit() for field in fields[-6:]):
                total, _, lost = (int(field) for field in fields[-3:])
                up += max(0, total - lost)
                free += int(fields[-4])
        return {"cores.up": float(up), "cores.free": float(min(up, free))}

    def account(self, ids: Collection[str]) -> Iterable[QueueJob]:
        """Return exit codes from the accounting file, if this machine can read it.

        Otherwise ask qmaster about each job.
        """
        known: set[str] = set()
        ended: set[str] = set()
        for job in self._accounted(ids):
            known.add(job.id)
            if job.batch.startswith("ens_"):
                ended.add(job.id.partition(".")[0])
            yield job
        newest, up_since = -1, math.inf
        for id_ in [id_ for id_ in ids if id_ not in known][:_ASK_AT_ONCE]:
            number, _, task = id_.partition(".")
            code, out, err = self.command(["qstat", "-j", number])
            said = f"{err}\n{out}".lower()
            if _is_unreachable(said):
                raise CannotTake(err.strip()[:600], hint="check qmaster with 'qconf -sss'")
            if "do not exist" in said:
                # A qmaster that lost its records assigns the numbers again. Otherwise, an array is
                # forgotten when its last task is over.
                if number not in ended and newest < 0:
                    newest, up_since = self._newest(), self._up_since()
                kept = newest > int(number) or self._seen.get(number, -math.inf) > up_since
                deleted = "cancel" if number in ended or kept else None
                yield QueueJob(id_, "unknown", exception=deleted, note=_DELETED if deleted else "")
            elif code == 0 and re.search(rf"^job_number:\s+{number}\s*$", out, re.M):
                script = re.search(r"^script_file:[ \t]*(\S*)", out, re.M)
                batch = script[1] if script else ""
                # Of an array, only tasks that run have a line of their own: one that waits looks
                # like one that has ended, and nothing can be told if ``qstat`` lists nothing.
                if re.search(rf"^usage\s+{task or '1'}:", out, re.M):
                    yield QueueJob(id_, "running", batch=batch)
                elif not task:
                    yield QueueJob(id_, "waiting", batch=batch)
                elif self._listed:
                    yield QueueJob(id_, "absent", note=_DELETED, batch=batch)

    def _up_since(self) -> float:
        """Return since when qmaster has been running, in monotonic seconds; infinite if unknown.

        It may have started a little earlier. It has not lost the records of jobs that it has had
        since this time.
        """
        try:
            host = self._run_command(["qconf", "-sss"]).split()[0]
            port = os.environ.get("SGE_QMASTER_PORT") or socket.getservbyname("sge_qmaster", "tcp")
            out = self._run_command(["qping", "-info", host, str(port), "qmaster", "1"])
            lasted = float(re.findall(r"^run time \[s\]:\s+(\d+)", out, re.M)[0])
            return time.monotonic() - lasted
        except (ExecutorError, OSError, IndexError):  # the commands need not be installed
            return math.inf

    def _newest(self) -> int:
        """Return the highest number of all users' jobs; 0 without jobs."""
        lines = self._run_command(["qstat", "-u", "*"]).splitlines()
        return max((int(m[1]) for line in lines if (m := re.match(r"\s*(\d+)\s", line))), default=0)

    def _accounted(self, ids: Collection[str]) -> Iterator[QueueJob]:
        """Yield the ended jobs in the accounting file."""
        for number in list(dict.fromkeys(id_.partition(".")[0] for id_ in ids))[:_ASK_AT_ONCE]:
            code, out, _ = self.command(["qacct", "-j", number])
            for part in out.split("=" * 62) if code == 0 else ():
                fields = dict(re.findall(r"^(\w+)[ \t]+(.*?)[ \t]*$", part, re.M))
                task = fields.get("taskid", "undefined")
                status = re.match(r"\d+", fields.get("exit_status", ""))
                failure = fields.get("failed", "0").partition(" ")[0]
                # The record of a run that Grid Engine cut off to start the job again is no end.
                own = fields.get("jobnumber") == number and failure not in _CONTINUES
                if own and status is not None:
                    rc = int(status[0])
                    exception, note = _reason(fields, failure, killed=rc > 128)
                    yield QueueJob(
                        number if task == "undefined" else f"{number}.{task}",
                        "over",
                        status=status_of(rc) or 1 << 8,
                        exception=exception,
                        note=note,
                        batch=fields.get("jobname", ""),
                    )


_UNITS = {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}


def _bytes(text: str) -> float:
    """Parse a size such as ``1.5G``. Return 0 for any other text."""
    match = re.match(r"([\d.]+)([kKmMgG]?)", text)
    return float(match[1]) * _UNITS[match[2]] if match else 0.0


def _seconds(text: str) -> int:
    """Parse a time such as ``1:30:00`` or ``5.3s``, and round up, because records say a little less
    than the limit. Return 0 for any other text.

    >>> _seconds("1:30:00"), _seconds("11s"), _seconds("1.961"), _seconds("NONE")
    (5400, 11, 2, 0)
    """
    if not re.fullmatch(r"(\d*:){0,2}\d+(\.\d+)?s?", text):
        return 0
    seconds = 0.0
    for part in text.rstrip("s").split(":"):
        seconds = 60 * seconds + float(part or 0)
    return math.ceil(seconds)


def _reason(fields: Mapping[str, str], code: str, *, killed: bool) -> tuple[str | None, str]:
    """Return the exception of an ended job and its note, from its record and the code of
    ``failed``.

    >>> _reason({"maxvmem": "1.2G", "category": "-u me -l h_vmem=1G"}, "100", killed=True)
    ('out-of-memory', 'it used 1.2G of memory and requested 1G (h_vmem)')
    >>> _reason({"ru_wallclock": "11s", "category": "-l h_rt=5"}, "37", killed=True)
    ('timeout', 'it ran for 11s and requested 5 (h_rt)')
    >>> _reason({"maxvmem": "0.9G", "category": "-l h_vmem=1G"}, "0", killed=True)
    (None, '')
    """
    failed = fields.get("failed", "").strip()
    requests = dict(re.findall(r"\b([hs]_\w+)=([^\s,]+)", fields.get("category", "")))
    for name, field, parse, exception, did in _LIMITS if killed else ():
        limit, used = requests.get(name, ""), fields.get(field, "")
        if 0 < parse(limit) <= parse(used):
            note = f"it {did.format(used)} and requested {limit} ({name})"
            return exception, note
    if code in _ENFORCED:
        memory = "h_vmem" in requests and not {"h_rt", "h_cpu"} & requests.keys()
        return "out-of-memory" if memory else "timeout", f"Grid Engine: {failed}"
    if fields.get("exit_status", "").startswith(_NOTICED):
        return "cancel", "deleted in the queue, not by this run"
    return None, "" if code == "0" or not failed else f"Grid Engine: {failed}"


#: Limits of a job's category, the fields of its record that show its use, and what exceeding them
#: means.
_LIMITS: Sequence[tuple[str, str, Callable[[str], float], str, str]] = (
    ("h_vmem", "maxvmem", _bytes, "out-of-memory", "used {} of memory"),
    ("s_vmem", "maxvmem", _bytes, "out-of-memory", "used {} of memory"),
    ("h_rt", "ru_wallclock", _seconds, "timeout", "ran for {}"),
    ("h_cpu", "cpu", _seconds, "timeout", "used {} of CPU time"),
    ("s_cpu", "cpu", _seconds, "timeout", "used {} of CPU time"),
)


def _is_unreachable(said: str) -> bool:
    return any(part in said for part in _AWAY)


def _queue_job(id_: str, state: str, batch: str) -> QueueJob:
    """Return a job by Grid Engine's letters for its state.

    ``s``, ``S`` and ``T``: it is suspended, its queue is, or a threshold suspends it. ``R``: it was
    started again.
    """
    restarts = int("R" in state)
    if "h" in state and "q" in state:
        note = f"it is held, or waits for another job: 'qrls {id_}' releases it from a hold"
        return QueueJob(id_, "held", note=note, batch=batch, restarts=restarts)
    if {"w", "q"} & set(state):
        return QueueJob(id_, "waiting", batch=batch, restarts=restarts)
    if set("sST") & set(state):
        note = "suspended in Grid Engine (qmod, a subordinate queue or a load threshold)"
        return QueueJob(id_, "suspended", note=note, batch=batch, restarts=restarts)
    return QueueJob(id_, "running", batch=batch, restarts=restarts)


def _ids(number: str, size: int) -> list[str]:
    return [number] if size == 1 else [f"{number}.{task}" for task in range(1, size + 1)]
