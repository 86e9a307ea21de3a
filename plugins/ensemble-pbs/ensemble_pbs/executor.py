"""The executor ``pbs``: calls PBS's commands and reads their output."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from ensemble_batch import Batch, BatchExecutor, CannotTake, InvalidJob, QueueJob, status_of

from ensemble_core import ExecutorError, Job

#: Messages while the server is unreachable, busy or starting.
_AWAY = (
    "cannot connect to", "could not connect", "couldn't connect", "connection refused",
    "no free connections", "connection table full", "server shutting down", "pbs_iff",
    "end of file", "protocol error", "timed out", "timeout", "try again",
)  # fmt: skip
#: Messages of ``qsub`` when a limit on all jobs is reached (``max_queued``, ``max_queued_res``).
_FULL = re.compile(r"maximum number of jobs|would exceed|array job exceeds")
#: Messages about a job that is over or unknown.
_UNKNOWN = r"unknown job ?id|job has finished|finished array subjob"
#: Jobs that are asked about one by one in a query.
_ASK_AT_ONCE = 20
#: Ids in one command.
_AT_ONCE = 500
#: Decrease of ``-p`` for each step of ``urgency`` below the default of 16.
_STEP = 50
_UNUSABLE_STATES = re.compile(r"down|offline|unknown|stale|unresolvable|maintenance|provisioning")


class PBSExecutor(BatchExecutor):
    """Executor that runs jobs on an OpenPBS or PBS Pro complex."""

    name: ClassVar[str] = "pbs"
    capabilities: ClassVar[frozenset[str]] = BatchExecutor.capabilities | {"signal"}
    most_jobs: int = 1000
    explains: ClassVar[bool] = True
    task_place: ClassVar[str] = "$PBS_ARRAY_INDEX"
    task_id: ClassVar[str] = "$PBS_JOBID"
    own_variables: ClassVar[tuple[str, ...]] = (
        "PBS_", "NCPUS", "TMPDIR", "PMI_", "PMIX_", "OMPI_COMM_WORLD_",
    )  # fmt: skip

    def __init__(
        self,
        *,
        queue: str | None = None,
        project: str | None = None,
        account: str | None = None,
        gpu: str = "ngpus",
        poll: float = 15.0,
        lost_after: float = 600.0,
    ) -> None:
        self._site = {"queue": queue, "project": project, "account": account}
        self._gpu = gpu
        self._history: list[str] = []
        #: Deleted jobs whose processes may still run, each with the time when it no longer can.
        self._ending: dict[str, float] = {}
        #: How often each running job was run. PBS forgets that when it requeues a job of an array.
        self._runs: dict[str, int] = {}
        self.poll = poll
        self.lost_after = lost_after

    def _run_command(self, words: Sequence[str], *, fine: str = "") -> str:
        """Return the output of a command. If it fails with a message that matches ``fine``, return
        that message.
        """
        code, out, err = self.command(words)
        lower = err.lower()
        if code == 0:
            return out
        if fine and re.search(fine, lower) and not _is_unreachable(lower):
            return err
        text = " ".join(line.strip() for line in err.splitlines())[:600]
        what = text or f"{words[0]} ended with exit code {code}"
        if _is_unreachable(lower):
            hint = "check the PBS server with 'qstat -B'"
            raise CannotTake(what, hint=hint)
        raise CannotTake(what, arrived=False) if _FULL.search(lower) else InvalidJob(what)

    def connect(self) -> None:
        for command in ("qsub", "qstat", "qdel", "qselect", "pbsnodes"):
            if shutil.which(command) is None:
                hint = "load the module that provides PBS, or run on a login node of the cluster"
                raise ExecutorError(f"{command} is not on the PATH", hint=hint, code="no-pbs")
        servers = blocks(self._run_command(["qstat", "-B", "-f"]))
        if not servers:
            hint = "check with 'qstat --version' that this is PBS's qstat"
            raise ExecutorError("'qstat -B' lists no server", hint=hint, code="no-answer")
        server = next(iter(servers.values()))
        self._history = ["-x"] if server.get("job_history_enable") == "True" else []
        limits = [server]
        if queue := self._site["queue"] or server.get("default_queue"):
            limits += blocks(self._run_command(["qstat", "-Q", "-f", queue])).values()
        sizes = [count(each, "max_array_size") for each in limits]
        self.most_jobs = min([self.most_jobs, *(size for size in sizes if size)])

    def wrong(self, job: Job) -> str | None:
        if job.nodes > 1:
            return (
                f"it asks for {job.nodes} nodes, but jobs of several nodes are not supported: use "
                f"nodes: 1 and 'tasks'"
            )
        if job.memory_per_task and "mem" in job.options.get(self.name, {}).get("resources", {}):
            return "'memory_per_task' and the resource 'mem' both request memory: give only one"
        return None

    def words(self, batch: Batch) -> list[str]:
        """Return the command line that submits a batch."""
        job = batch.job
        options = job.options.get(self.name, {})
        # Without -f, qsub stays in the background and keeps its output open.
        words = ["qsub", "-f", "-N", batch.name, "-m", "n", "-o", "/dev/null", "-e", "/dev/null"]
        if len(batch.jobs) > 1:
            words += ["-J", f"1-{len(batch.jobs)}"]
        else:
            words += ["-r", "n"]  # PBS rejects it for arrays
        if job.urgency == 0:
            words.append("-h")
        elif job.urgency < 16:
            words += ["-p", str((job.urgency - 16) * _STEP)]
        chunk = {"ncpus": job.cores, **options.get("resources", {})}
        if job.gpus:
            chunk[self._gpu] = job.gpus
        if job.memory:
            chunk["mem"] = f"{-(-job.memory // 2**20)}mb"
        words += ["-l", ":".join(["select=1", *(f"{name}={n}" for name, n in chunk.items())])]
        if job.duration:  # for the scheduler; the wrapper's own limit fires first
            words += ["-l", f"walltime={int(job.duration + self.grace_of(job) + 60)}"]
        for name, flag in (("queue", "-q"), ("project", "-P"), ("account", "-A")):
            value = options.get(name, self._site[name])
            if value is not None:
                words += [flag, value]
        for text in options.get("extra", ()):
            words += text.split(" ", 1)
        # Submit a program instead of a script, so that PBS starts no login shell before the
        # wrapper.
        return [*words, "--", "/bin/bash", batch.script]

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        out = self._run_command(self.words(batch)).strip()
        if not re.fullmatch(r"\d+(\[\])?(\.\S+)?", out):
            raise CannotTake(f"unexpected output of qsub: {out[:200]!r}")
        return _ids(out, len(batch.jobs))

    def ask(self, ids: Collection[str]) -> Iterable[QueueJob]:
        asked = sorted({array_id(id_) for id_ in ids})
        for at in range(0, len(asked), _AT_ONCE):
            words = ["qstat", *self._history, "-t", "-f", *asked[at : at + _AT_ONCE]]
            code, out, err = self.command(words)
            said = f"{err}\n{out[:200]}".lower()
            gone = re.search(_UNKNOWN, said) is not None
            if _is_unreachable(said) or not (gone or (code == 0 and out)):
                what = err.strip()[:600] or f"qstat ended with exit code {code} and printed nothing"
                raise CannotTake(what)
            jobs = blocks(out)
            if (jobs or not gone) and not out.endswith("\n\n"):
                what = f"the output of qstat is invalid or incomplete: {out[-100:]!r}"
                raise CannotTake(what)
            for id_, fields in jobs.items():
                job = replace(queue_job(id_, fields), batch=_batch(fields))
                if job.state in ("running", "suspended"):
                    self._runs[id_] = job.restarts + 1
                elif job.state in ("over", "unknown"):
                    self._runs.pop(id_, None)
                else:
                    job = replace(job, restarts=max(job.restarts, self._runs.get(id_, 0)))
                yield job
        # PBS reports a deleted job as over while its wrapper still ends processes.
        now = time.monotonic()
        self._ending = {id_: until for id_, until in self._ending.items() if until > now}
        yield from (QueueJob(id_, "running") for id_ in self._ending)

    def account(self, ids: Collection[str]) -> Iterable[QueueJob]:
        """Ask the server about each job by its id."""
        for id_ in list(ids)[:_ASK_AT_ONCE]:
            code, out, err = self.command(["qstat", *self._history, "-f", id_])
            said = f"{err}\n{out[:200]}".lower()
            if _is_unreachable(said):
                raise CannotTake(err.strip()[:600] or "qstat printed nothing")
            for found, fields in blocks(out).items() if code == 0 else ():
                yield replace(queue_job(found, fields), batch=_batch(fields))
            if code and re.search(_UNKNOWN, said):
                yield QueueJob(id_, "unknown")

    def find_batch(self, name: str, size: int) -> Sequence[str] | None:
        found = self._run_command(["qselect", *self._history, "-N", name]).split()
        return _ids(array_id(found[0]), size) if found else None

    def end_jobs(self, ids: Collection[str]) -> None:
        words = list(ids)
        for at in range(0, len(words), _AT_ONCE):
            chunk = words[at : at + _AT_ONCE]
            over = self._run_command(["qdel", *chunk], fine=_UNKNOWN).split()
            until = time.monotonic() + self.grace + 1
            self._ending.update((id_, until) for id_ in chunk if id_ not in over)

    def nodes(self) -> Mapping[str, float]:
        """Return the nodes, cores and GPUs that are up, and those that are free."""
        gauges: dict[str, float] = {}
        for fields in blocks(self._run_command(["pbsnodes", "-a"])).values():
            if _UNUSABLE_STATES.search(fields.get("state", "down")):
                continue
            for gauge, resource in (("cores", "ncpus"), ("gpus", self._gpu)):
                has = count(fields, f"resources_available.{resource}")
                used = count(fields, f"resources_assigned.{resource}")
                gauges[f"{gauge}.up"] = gauges.get(f"{gauge}.up", 0.0) + has
                free = gauges.get(f"{gauge}.free", 0.0) + max(0, has - used)
                gauges[f"{gauge}.free"] = free
        return gauges


def _is_unreachable(said: str) -> bool:
    return any(part in said for part in _AWAY)


def _batch(fields: Mapping[str, str]) -> str:
    """Return the name of a job's batch, or text that ends with the path of its script.

    Users and hooks may rename a job, so an unknown name proves nothing.
    """
    name = fields.get("Job_Name", "")
    script = re.sub("<.*?>", "", fields.get("argument_list", ""))
    return name if name.startswith("ens_") or not script else script


def _ids(id_: str, size: int) -> list[str]:
    """Return the ids of the jobs of a batch.

    >>> _ids("7[].head", 2), _ids("8.head", 1)
    (['7[1].head', '7[2].head'], ['8.head'])
    """
    if size == 1:
        return [id_]
    return [id_.replace("[]", f"[{place}]") for place in range(1, size + 1)]


_STATES: Mapping[str, Literal["waiting", "running", "suspended", "held", "stuck", "over"]] = {
    **dict.fromkeys("QHWT", "waiting"),
    **dict.fromkeys("RBEM", "running"),
    # by qsig or preemption; because the workstation is in use
    **dict.fromkeys("SU", "suspended"),
    **dict.fromkeys("FX", "over"),
}
#: Reasons that PBS reports as negative exit codes.
_REASONS: Mapping[int, tuple[str, str]] = {
    -11: ("node-failure", "PBS requeued it"),
    -20: ("node-failure", "its node was unreachable"),
    -24: ("exec", "it used more cores than requested"),
    -25: ("exec", "it used more cores than requested"),
    -26: ("out-of-memory", "it used more virtual memory than requested"),
    -27: ("out-of-memory", "it used more memory than requested"),
    -28: ("timeout", "it used more CPU time than requested"),
    -29: ("timeout", "it exceeded its walltime"),
}
#: Comments of jobs that wait until somebody acts.
_NEVER = re.compile("can never run|too many failed|queue not started", re.IGNORECASE)
#: The substate of a deleted job.
_DELETED = "91"


# Not JSON: in some releases, 'qstat -F json' lists only the first of several jobs; others escape
# environments wrongly.
def blocks(text: str) -> dict[str, dict[str, str]]:
    """Return the attributes of each object in the output of ``qstat -f`` and similar commands."""
    found: dict[str, dict[str, str]] = {}
    for part in re.split(r"\n{2,}", text.replace("\n\t", "")):
        first, *lines = part.strip("\n").split("\n")
        pairs = (line.strip().partition(" = ") for line in lines if line[:1] == " ")
        fields = {name: value for name, equals, value in pairs if equals}
        if fields:
            found[first.partition(": ")[2] or first] = fields
    return found


def count(fields: Mapping[str, str], name: str) -> int:
    """Return a numeric attribute; 0 if it is missing."""
    value = fields.get(name, "")
    return int(value) if value.isdigit() else 0


def array_id(id_: str) -> str:
    """Return the id of a job's array, or the job's own id if it belongs to no array.

    >>> array_id("7[12].head"), array_id("8.head")
    ('7[].head', '8.head')
    """
    return re.sub(r"\[\d*\]", "[]", id_)


def queue_job(id_: str, fields: Mapping[str, str]) -> QueueJob:
    """Return a job's state from its attributes."""
    state = _STATES.get(fields.get("job_state", ""), "waiting")
    comment = fields.get("comment", "")
    if state != "over":
        # A job that waits although it was run before was requeued. PBS counts runs, also failed
        # attempts to start.
        restarts = max(0, count(fields, "run_count") - (state != "waiting"))
        note = "suspended in PBS (qsig or preemption)" if state == "suspended" else ""
        # A waiting job of a held array has the state Q. PBS changes only whole arrays.
        whole = array_id(id_)
        kinds = "".join(re.findall("[uos]", fields.get("Hold_Types", "")))
        held = state == "waiting" and kinds and "depend" not in fields
        release = f"'qrls -h {kinds} {whole}' lets it start"
        if state == "waiting" and _NEVER.search(comment):
            then = release if held else "'qdel', 'qmove' or 'qalter' it"
            state, note = "stuck", f"{comment} ('qstat -f {whole}'; {then})"
        elif held:
            state, note = "held", f"somebody holds it: {release}"
        elif state == "waiting" and "limit" in comment.lower():
            hint = "if the job alone exceeds it, request less or use another queue"
            note = f"{comment} ('qstat -f {whole}'; {hint})"
        return QueueJob(id_, state, note=note, restarts=restarts)
    if fields.get("substate") == _DELETED:  # a job that never ran has exit status 0
        return QueueJob(id_, "over", exception="cancel", note="deleted in PBS")
    code = fields.get("Exit_status", "")
    number = int(code) if re.fullmatch(r"-?\d+", code) else None
    if "run_count" not in fields and (number is None or number >= 0):
        # PBS has no record of its own of a job of an array that never ran (or, without a history,
        # that has ended), and prints the array's exit status.
        note = "deleted in PBS before it ran"
        return QueueJob(id_, "unknown", exception="cancel", note=note)
    if number is None:
        return QueueJob(id_, "over")
    if number < 0:
        kind, note = _REASONS.get(number, ("exec", "PBS could not start it"))
        note = f"{note} (PBS's code {number}{': ' if comment else ''}{comment})"
        return QueueJob(id_, "over", exception=kind, note=note)
    status = number - 256 if number >= 256 else status_of(number)
    if status & 0x7F and (note := _memory_note(fields, comment)):
        return QueueJob(id_, "over", status=status, exception="out-of-memory", note=note)
    return QueueJob(id_, "over", status=status)


_UNITS = {"b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40}


def _bytes(text: str) -> int:
    """Parse a size such as ``300kb``. Return 0 for any other text."""
    match = re.fullmatch(r"(\d+)([kmgt]?b)", text.lower())
    return int(match[1]) * _UNITS[match[2]] if match else 0


def _memory_note(fields: Mapping[str, str], comment: str) -> str:
    """Return why a killed job exceeded its memory; an empty string if it did not.

    >>> _memory_note({"resources_used.mem": "300000kb", "Resource_List.mem": "50mb"}, "")
    'it used 300000kb of memory and requested 50mb'
    """
    used, limit = fields.get("resources_used.mem", ""), fields.get("Resource_List.mem", "")
    if 0 < _bytes(limit) <= _bytes(used):
        return f"it used {used} of memory and requested {limit}"
    return comment if re.search("oom|memory", comment, re.IGNORECASE) else ""
