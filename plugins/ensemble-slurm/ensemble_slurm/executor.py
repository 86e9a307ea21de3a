"""The executor ``slurm``: runs jobs on the Slurm cluster that this machine submits to. See the
README."""

from __future__ import annotations

import ipaddress
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ensemble_batch import OutputFiles, Records, mark_of, run_command

from ensemble_core import (
    Cause,
    Emit,
    Executor,
    ExecutorError,
    Job,
    Run,
    UsageError,
    check_new,
    job_environment,
    start_folder,
    wrong_command,
)
from ensemble_slurm.commands import query_environment
from ensemble_slurm.gauges import sinfo
from ensemble_slurm.listener import address_towards
from ensemble_slurm.loop import SlurmLoop
from ensemble_slurm.parse import Site, read_config, read_nodes
from ensemble_slurm.refusals import Refusal, hint_for, refusal, words
from ensemble_slurm.script import Scripts
from ensemble_slurm.spool import Spool
from ensemble_slurm.submitter import Order

__all__ = ["OLDEST", "SlurmExecutor"]

#: The oldest release that prints what is read here.
OLDEST = (20, 11)
_COMMANDS = ("sbatch", "scancel", "squeue", "sinfo", "scontrol")
#: Seconds that slurmctld has for its first answer.
_FIRST = 30.0


class SlurmExecutor(Executor):
    """Runs jobs on a Slurm cluster; see the README for what it promises."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"submit", "cancel", "reattach", "detach"})
    causes: ClassVar[frozenset[Cause]] = frozenset(
        {"exit", "signal", "timeout", "node-failure", "preempted", "cancelled", "submit"}
    )
    shared: ClassVar[bool] = True

    def __init__(
        self,
        *,
        partition: str | None = None,
        account: str | None = None,
        qos: str | None = None,
        reservation: str | None = None,
        constraint: str | None = None,
        look: float = 30.0,
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
        self._site_options = {name: value for name, value in named.items() if value is not None}
        self._partition = partition
        self._look = look
        self._rate = rate
        self._listen = _listen_option(listen)
        self._jobcomp = jobcomp
        self._loop: SlurmLoop | None = None
        self._output: OutputFiles | None = None

    # -- opening -------------------------------------------------------------------------------

    def open(self, run: Run, emit: Emit) -> None:
        if self._loop is not None:
            raise ExecutorError("the Slurm executor is open already", code="already-open")
        here = start_folder()
        site = self._site()
        gauges = self._gauges()
        folder = str(run.folder.absolute())
        kept = run.state is not None
        place = os.path.realpath(run.state) if run.state is not None else folder
        if not kept:
            place = os.path.join(place, f".slurm-{mark_of(run.tag)}")
        try:
            os.makedirs(place, exist_ok=True)
            spool = Spool(os.path.join(place, "slurm") if kept else place)
            records = Records(spool.folder if kept else None)
        except OSError as error:
            raise ExecutorError(
                f"the folder that jobs report to cannot be made: {place}",
                cause=error.strerror or str(error),
                hint="choose a folder that this machine and the nodes can write",
                code="no-folder",
            ) from None
        environment = job_environment()
        scripts = Scripts(
            run.tag,
            spool.token,
            spool.folder,
            here,
            grace=max(1.0, site.kill_wait - 1),
            site=self._site_options,
        )
        try:
            self._loop = SlurmLoop(
                run,
                emit,
                site,
                scripts,
                spool,
                records,
                environment,
                listen=self._where(site),
                look=self._look,
                rate=self._rate,
                partition=self._partition,
                jobcomp=self._jobcomp,
                gauges=gauges,
            )
        except OSError as error:
            records.close()
            raise ExecutorError(
                "jobs cannot be listened to on this machine",
                cause=error.strerror or str(error),
                hint="name an address of it with -o listen=ADDRESS, or say -o listen=none",
                code="no-port",
            ) from None
        self._output = OutputFiles(folder, here, records.was_emptied, records.empty)
        self._loop.start()

    def _where(self, site: Site) -> tuple[str, int] | None:
        if self._listen is None:
            return None
        address, port = self._listen
        if address:
            return address, port
        found = address_towards(site.controller)
        if ipaddress.ip_address(found).is_loopback:
            # slurmctld runs here: nodes may not.
            found = address_towards_nodes() or found
        return found, port

    def _site(self) -> Site:
        for command in _COMMANDS:
            if shutil.which(command) is None:
                raise ExecutorError(
                    f"{command} is not on the PATH",
                    hint="load the module that provides Slurm, or run on a login node of the "
                    "cluster",
                    code="no-slurm",
                )
        environment = query_environment(os.environ)
        done = run_command(("scontrol", "show", "config"), environment, deadline=_FIRST)
        if not done.good:
            busy = done.code is None or refusal(done.err) is Refusal.BUSY
            raise ExecutorError(
                "Slurm does not answer",
                cause=words(done.err) or f"scontrol ended with exit code {done.code}",
                hint=hint_for(done.err) or "is slurmctld up? 'scontrol ping' tells",
                code="no-answer",
                transient=busy,
            )
        site = read_config(done.out)
        if site.version and site.version[:2] < OLDEST:
            raise ExecutorError(
                f"this Slurm is of version {'.'.join(map(str, site.version))}, and "
                f"{OLDEST[0]}.{OLDEST[1]:02d} is the oldest that works here",
                hint="load a newer Slurm",
                code="version-mismatch",
            )
        return site

    def _gauges(self) -> Mapping[str, float]:
        environment = query_environment(os.environ)
        done = run_command(sinfo(self._partition), environment, deadline=_FIRST)
        return read_nodes(done.out) if done.good else {}

    def _opened(self) -> SlurmLoop:
        if self._loop is None:
            raise ExecutorError("the Slurm executor is not open", code="not-open")
        return self._loop

    # -- jobs ----------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[Job]) -> None:
        loop = self._opened()
        loop.ids |= check_new(jobs, loop.ids)
        orders = []
        for job in jobs:
            wrong = wrong_command(job) or _wrong(job)
            if wrong is not None:
                loop.refuse(job.id, "jobspec", wrong)
                continue
            assert self._output is not None
            try:
                orders.append(Order(job, self._output.place(job)))
            except (OSError, ValueError) as error:
                what = getattr(error, "filename", None) or job.stdout or job.stderr
                why = getattr(error, "strerror", None) or str(error)
                loop.refuse(job.id, "output", f"the output file {what} cannot be used: {why}")
        loop.submit(orders)

    def cancel(self, jobs: Sequence[str]) -> None:
        self._opened().cancel(tuple(jobs))

    def resources(self) -> Mapping[str, float]:
        return {} if self._loop is None else dict(self._loop.gauges)

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        loop = self._opened()
        loop.ids |= jobs.keys()
        found = loop.reattach(jobs)
        loop.ids -= {job for job, known in found.items() if not known}
        return found

    def forget(self, jobs: Sequence[str]) -> None:
        self._opened().forget(tuple(jobs))

    @property
    def sees_strangers(self) -> bool:
        """Never: a look at everybody's jobs is more than a slurmctld should be asked for."""
        return False

    def close(self) -> None:
        """Let Slurm go. Jobs in it go on; those on their way to it arrive first."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()


def address_towards_nodes() -> str | None:
    """The address of this machine from which nodes are reached that are others than itself."""
    ask = ("sinfo", "--noheader", "--Node", "--Format=NodeAddr:200")
    done = run_command(ask, query_environment(os.environ), deadline=_FIRST)
    for node in list(dict.fromkeys(done.out.split()))[:3]:
        found = address_towards(node)
        if not ipaddress.ip_address(found).is_loopback:
            return found
    return None


def _wrong(job: Job) -> str | None:
    """Why a job can never be had here; ``None`` if it can."""
    if job.tasks < job.nodes:
        return (
            f"{job.tasks} tasks cannot be spread over {job.nodes} nodes: Slurm starts at least one "
            "task on each node; say 'tasks:' accordingly"
        )
    return None


def _listen_option(text: str) -> tuple[str, int] | None:
    """An address (empty: to be found) and a port (0: any); ``None`` for none."""
    if text == "none":
        return None
    if text == "auto":
        return "", 0
    address, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (":" in address and not address.endswith("]")):
        return text.strip("[]"), 0  # a name alone, or an address of IPv6
    if not port.isdigit() or int(port) > 65535:
        raise UsageError(
            f"listen={text}: {port!r} is no port",
            hint="say -o listen=ADDRESS or -o listen=ADDRESS:PORT",
            code="bad-option",
        )
    return address.strip("[]"), int(port)
