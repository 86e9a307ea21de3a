"""Local executor: runs jobs as processes on this machine, within a limited number of slots.

It guarantees:

- **Resources.** A job holds ``tasks * cores_per_task`` slots and ``tasks * gpus_per_task`` GPUs
  from its start to its end. ``nodes`` only sets the default number of tasks. A job that can never
  get its cores or GPUs fails immediately.
- **Memory.** A job holds ``tasks * memory_per_task`` bytes. Jobs that do not fit wait, and a job
  that can never fit fails immediately. Each second, the memory of all processes of such a job is
  added up. If a job uses more than it requests, it ends with the cause ``memory``.
- **Binding.** Each task runs on its own ``cores_per_task`` cores, within one NUMA node if possible.
  ``ENSEMBLE_CORES`` is their number, and so is ``OMP_NUM_THREADS`` unless it is set already, or
  the task is bound to one core: threaded programs count one then. Tasks are not bound with ``bind:
  false``, with more slots than cores, or if a quota of the cgroup allows fewer cores than there
  are.
- **Tasks.** The ``tasks`` copies of the command start together, each in its own session. Their
  environment has ``ENSEMBLE_JOB_ID``, ``ENSEMBLE_GROUP``, ``ENSEMBLE_INDEX``, ``ENSEMBLE_ATTEMPT``,
  ``ENSEMBLE_RUN`` (the run's tag), ``ENSEMBLE_TASK_RANK`` (from 0) and ``ENSEMBLE_TASK_COUNT``.
- **GPUs.** If GPUs are configured, ``CUDA_VISIBLE_DEVICES``, ``ROCR_VISIBLE_DEVICES`` and
  ``ZE_AFFINITY_MASK`` list the GPUs of the task, or are ``-1`` if the job requests none.
  ``HIP_VISIBLE_DEVICES`` counts from 0, because HIP numbers the GPUs that ROCm leaves.
- **MPI.** Tasks are not ranks of one MPI program. Variables of an outer MPI launcher are removed,
  so an MPI program starts as a single process, or starts its ranks with ``mpirun``.
- **Order.** Jobs start by ``urgency`` (31 first), then first in, first out. A job with urgency 0 is
  held until it is cancelled. If a job does not fit yet, later jobs may overtake it if they
  do not delay it, or, if it is unknown when it will fit, in limited number.
- **Files.** The program is searched for on the job's ``PATH``. A missing ``workdir`` is created. A
  relative ``workdir`` starts at the folder in which the run was started.
- **Output.** ``stdout`` and ``stderr`` are relative to the workdir. Standard input is empty. When
  the run first writes to an output file, the file is truncated. After that, output is appended, so
  jobs of a run can share a file. A job fails if a job of another run has the file open. Without
  ``stdout`` and ``stderr``, output goes to ``JOB.out`` and ``JOB.err`` in the run's folder; empty
  files are removed when the job ends.
- **Status.** The status of a job is that of the task with the highest exit code; a signal counts as
  128 plus its number. If a signal kills a task, the other tasks have ``grace`` seconds to exit and
  are then terminated. A task that exits with an error does not affect the others.
- **End.** A job that is cancelled, or that exceeds its ``duration``, gets SIGTERM, and ``grace``
  seconds later SIGKILL: those of its group, or else of this executor. This includes its processes
  in the background, in other sessions, and with a cleared environment. The same happens to
  processes that a job leaves behind when it ends. Each process gets SIGTERM once.
- **Allocations.** A queue that ends an allocation sends SIGTERM to all its processes. The
  supervisor then drains: it starts no job, and gives the running ones their grace. A job that does
  not succeed in this time, or that the same signal has ended within the last seconds, is
  *interrupted*: it is submitted again after a resume, as if a stop had cancelled it. Waiting jobs
  wait for the resume.
- **Sharing.** The runs of a user on a machine never use the same core or GPU. The run that has
  waited longest is next, so runs take turns. Runs with the same ``pool`` (a file) together use no
  more slots than one of them may. With ``pool: none``, with more slots than cores (as to cores), or
  inside a job of another run, a run does not take other runs into account.
- **Resize.** The actions ``grow`` and ``shrink`` change the number of slots between ``min_slots``
  and ``max_slots``. Shrinking ends no job.
- **Restarts.** If the controller exits or is killed, running jobs continue, and waiting jobs still
  start: jobs are children of a *supervisor* process. A later controller finds all jobs again,
  including the exit codes of finished jobs.
- **Crashes.** If the supervisor is killed, or after a power cut, the next controller queues waiting
  jobs again. Jobs that had started are reported as ``lost`` when their processes are gone, because
  their exit codes are unknown. No job runs twice, except that a job that began in the last 0.2
  seconds before a power cut may begin again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ensemble_core.errors import EnsembleError, ExecutorError, UsageError
from ensemble_core.local.inside_allocation import in_allocation
from ensemble_core.local.launch import LINEAGE
from ensemble_core.local.slots import (
    Slots,
    bindable_cores,
    default_pool,
    machine_cores,
    machine_memory,
    visible_gpus,
)
from ensemble_core.model.byte_sizes import memory_bytes
from ensemble_core.model.causes import Cause
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import (
    Emit,
    Executor,
    Run,
    check_new,
    job_environment,
    start_folder,
)
from ensemble_core.plugin.hookspecs import ExecutorPlugin, hookimpl

if TYPE_CHECKING:  # imported when an executor is opened, so that checks are fast
    from pathlib import Path

    from ensemble_core.local.supervisor_client import SupervisorClient
    from ensemble_core.local.supervisor_start import StartedSupervisor
    from ensemble_core.model.decisions import WhenBusy
    from ensemble_core.plugin.executor import Rendered

#: The pool if the option ``pool`` is not given.
POOL_VARIABLE = "ENSEMBLE_POOL"

OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "slots": {
            "type": "integer",
            "minimum": 1,
            "x-ensemble-flag": {"metavar": "N", "help": "Cores to run on."},
            "description": "Cores for jobs; default: those this process may use.",
        },
        "min_slots": {
            "type": "integer",
            "minimum": 1,
            "x-ensemble-flag": {"metavar": "N", "help": "Fewest slots that shrink may leave."},
            "description": "Fewest slots that shrink may leave; default 1.",
        },
        "max_slots": {
            "type": "integer",
            "minimum": 1,
            "x-ensemble-flag": {"metavar": "N", "help": "Most slots that grow may reach."},
            "description": "Most slots that grow may reach; default: slots, so grow is denied.",
        },
        "gpus": {
            "type": "integer",
            "minimum": 0,
            "description": "GPUs for jobs; default: those in CUDA_VISIBLE_DEVICES, "
            "ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES or ZE_AFFINITY_MASK, or none.",
        },
        "grace": {
            "type": "number",
            "minimum": 0,
            "description": "Seconds between SIGTERM and SIGKILL; default 5.",
        },
        "pool": {
            "type": "string",
            "x-ensemble-member": "file",
            "description": "File through which runs share their slots: together they use no more "
            "slots than a single run may. The runs of a member always share slots. Default: all "
            "runs of a user on a machine share its cores and GPUs; none: share with no other run.",
        },
        "memory": {
            "type": ["string", "number"],
            "description": "Memory for the jobs that request some, such as 48G; default: that of "
            "the machine or of the cgroup.",
        },
        "bind": {
            "type": "boolean",
            "description": "Whether each task runs only on its own cores; default true.",
        },
    },
}


class LocalExecutor(Executor):
    """Executor for this machine. The module's docstring lists what it guarantees.

    Raises :class:`UsageError` if the options contradict one another.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"submit", "cancel", "avoid", "resize", "signal", "reattach", "detach"}
    )
    causes: ClassVar[frozenset[Cause]] = frozenset(
        {"exit", "signal", "timeout", "memory", "cancelled", "submit", "lost"}
    )
    survives_power_cut = False

    def __init__(
        self,
        *,
        slots: int | None = None,
        min_slots: int | None = None,
        max_slots: int | None = None,
        gpus: int | None = None,
        grace: float = 5.0,
        pool: str | None = None,
        bind: bool = True,
        memory: int | str | None = None,
    ) -> None:
        if slots is None:
            # The bounds limit the default: on eight cores, `--max-slots 1` means one slot.
            size = max(machine_cores(), min_slots or 1)
            size = size if max_slots is None else min(size, max_slots)
        else:
            size = slots
        smallest = 1 if min_slots is None else min_slots
        largest = size if max_slots is None else max_slots
        if not 1 <= smallest <= size <= largest:
            raise UsageError(
                f"min_slots {smallest}, slots {size} and max_slots {largest} are not in order",
                hint="choose 1 <= min_slots <= slots <= max_slots",
                code="bad-option",
            )
        self._sizes = (size, smallest, largest)
        self._gpus = visible_gpus(gpus, os.environ)
        self._grace = grace
        try:
            self._memory = machine_memory() if memory is None else memory_bytes(memory)
        except EnsembleError as error:
            raise UsageError(
                f"'memory': {error.what}", hint=error.hint, code="bad-option"
            ) from None
        cores = bindable_cores()
        self._bound = cores if bind else ()
        #: The file of the pool. ``_machine``: the cores that it counts, if it is the default one.
        self._pool: str | None
        self._machine: tuple[int, ...] | None = None
        wanted = pool or os.environ.get(POOL_VARIABLE) or None
        if wanted == "none" or (wanted is None and LINEAGE in os.environb):
            self._pool = None  # the cores of a job of another run are not taken a second time
        elif wanted is None:
            self._pool, self._machine = default_pool(), cores or tuple(range(machine_cores()))
        else:
            self._pool = os.path.abspath(wanted)
        self._client: SupervisorClient | None = None
        self._started: StartedSupervisor | None = None

    @property
    def slots(self) -> Slots:
        """The slots of this machine with these options, all of them free."""
        return Slots(*self._sizes, self._gpus, memory=self._memory)

    def prepare(self, tag: str, state: Path | None, run_id: str) -> None:
        """Start the supervisor early. It exits if no controller connects to it."""
        from ensemble_core.local.supervisor_start import StartedSupervisor

        with contextlib.suppress(ExecutorError):
            self._started = StartedSupervisor(tag, state, run_id)

    def open(self, run: Run, emit: Emit) -> None:
        folder = start_folder()
        from ensemble_core.local.protocol import JOB_FIELDS, VERSION
        from ensemble_core.local.supervisor_client import SupervisorClient

        hello = {
            "version": VERSION,
            "job_fields": JOB_FIELDS,
            "tag": run.tag,
            "id": run.id,
            "clock": [run.clock(), time.monotonic()],
            "environment": job_environment(),
            "folder": folder,
            "output": os.path.join(folder, run.folder),
            "state": None if run.state is None else os.path.realpath(run.state),
            "slots": list(self._sizes),
            "gpus": list(self._gpus),
            "grace": self._grace,
            "pool": self._pool,
            "machine": self._machine,
            "bound": list(self._bound),
            "memory": self._memory,
            "syncs_late": run.syncs_late,
        }
        client = SupervisorClient(run, emit, hello)
        started, self._started = self._started, None
        client.open(started)
        self._client = client

    def _require_open(self) -> SupervisorClient:
        assert self._client is not None
        if self._client.lost is not None:
            raise self._client.broken()
        return self._client

    def submit(self, jobs: Sequence[Job]) -> None:
        client = self._require_open()
        check_new(jobs, client.ids)
        client.submit(jobs)

    def cancel(self, jobs: Sequence[str]) -> None:
        if self._client is None or not self._client.drained:  # if so, none of them runs
            self._require_open().ask("cancel", list(jobs))

    def signal(self, jobs: Sequence[str], signal: str) -> None:
        if self._client is None or not self._client.drained:
            self._require_open().ask("signal", list(jobs), signal)

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        self._require_open().ask("resize", request, delta, when_busy)

    def resources(self) -> Mapping[str, float]:
        if self._client is None:
            return Slots(*self._sizes, self._gpus).gauges()
        return dict(self._client.gauges)

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        try:
            return self._require_open().reattach(jobs)
        except ExecutorError:
            if self._client is None or not self._client.drained:
                raise
            return dict.fromkeys(jobs, True)  # all are on record: the run stops, and asks again

    @property
    def queue_is_new(self) -> bool:
        """True if the machine was restarted, because no job survives that."""
        return self._client is not None and self._client.rebooted

    @property
    def on_stop(self) -> Literal["keep", "cancel"]:
        """``cancel``, because a user who interrupts a local run wants the processors back."""
        return "cancel"

    @property
    def drains(self) -> bool:
        """True in an allocation of a queue, because the supervisor and the jobs end with it."""
        return in_allocation() and (self._client is None or self._client.keeps)

    def drain(self) -> None:
        if self._client is None or not self._client.drained:
            self._require_open().ask("drain", "this process got SIGTERM")

    def forget(self, jobs: Sequence[str]) -> None:
        self._require_open().ask("forget", list(jobs))

    def close(self) -> None:
        """Leave the jobs to the supervisor. Jobs that are being terminated are killed."""
        client, self._client = self._client, None
        started, self._started = self._started, None
        if client is not None:
            client.close()
        if started is not None:
            started.close()


def _build(options: Mapping[str, Any]) -> Executor:
    return LocalExecutor(**options)


#: The slots with the options of the last check, which come again for each group of a file.
_known_slots: list[tuple[Mapping[str, Any], Slots]] = []


def _never_here(group: JobGroup, options: Mapping[str, Any]) -> tuple[str, str, str] | None:
    if not _known_slots or _known_slots[0][0] is not options:
        _known_slots[:] = [(options, LocalExecutor(**options).slots)]
    return next(filter(None, map(_known_slots[0][1].never, group.sizes)), None)


def _remains(tag: str, state: Path, end: bool) -> int:
    from ensemble_core.local.leftover_jobs import leftover_jobs

    return leftover_jobs(tag, state, LocalExecutor(slots=1) if end else None)


def _available() -> tuple[bool, str]:
    cores = machine_cores()
    return True, f"{cores} core{'s' if cores != 1 else ''} on this machine"


def _render(job: Job, _: Mapping[str, Any]) -> Rendered:
    from ensemble_core.plugin.executor import Rendered, shell_line

    return Rendered(shell_line(job), "text/x-shellscript")


@hookimpl
def ensemble_executors() -> Iterable[ExecutorPlugin]:
    """Return the executor ``local``."""
    return [
        ExecutorPlugin(
            name="local",
            summary="Runs jobs as processes of this machine, within slots",
            build=_build,
            capabilities=LocalExecutor.capabilities,
            options=OPTIONS,
            available=_available,
            never_here=_never_here,
            remains=_remains,
            render=_render,
        )
    ]
