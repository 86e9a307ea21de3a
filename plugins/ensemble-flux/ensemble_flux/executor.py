"""The executor ``flux``: runs jobs in the surrounding Flux instance. See the README."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from signal import Signals
from typing import Any, ClassVar, Literal

from ensemble_core import (
    Cause,
    Emit,
    Executor,
    ExecutorError,
    Job,
    Run,
    check_new,
    job_environment,
    start_folder,
)
from ensemble_flux import bindings
from ensemble_flux.flux_run import FluxRun
from ensemble_flux.ids_and_hostlists import parse_f58
from ensemble_flux.instance import LastInstance, presence
from ensemble_flux.job_output import Output, files, seen_by_all
from ensemble_flux.jobspec import Jobspecs, limits
from ensemble_flux.reactor import error_text
from ensemble_flux.submitter import Order

#: Seconds between lookups of a job's data. Flux reports a submit some milliseconds before it has
#: written the data.
_WRITTEN = (0.0, 0.02, 0.05, 0.1, 0.3, 1.0, 3.0)


class FluxExecutor(Executor):
    """Runs jobs in a Flux instance. The README lists its guarantees."""

    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"submit", "cancel", "avoid", "signal", "reattach", "detach"}
    )
    causes: ClassVar[frozenset[Cause]] = frozenset(
        {"exit", "signal", "timeout", "node-failure", "cancelled", "submit"}
    )
    shared: ClassVar[bool] = True

    def __init__(
        self,
        *,
        uri: str | None = None,
        queue: str | None = None,
        bank: str | None = None,
        output: str = "auto",
        events: str = "auto",
        instance_ended: bool = False,
    ) -> None:
        self._uri = uri
        self._queue = queue
        self._bank = bank
        self._keep = output
        self._events = events
        self._ended = instance_ended
        self._loop: FluxRun | None = None
        self._output: Output | None = None
        self._jobspecs: Jobspecs | None = None
        self._handles = threading.local()
        self._last = LastInstance(None)
        self._queue_is_new = False

    def open(self, run: Run, emit: Emit) -> None:
        flux = bindings.bindings()
        mine = bindings.version(flux)
        if bindings.release(mine) < bindings.OLDEST:
            raise _too_old("Flux's Python bindings are", mine)
        folder = start_folder()
        jobspecs = Jobspecs(
            run.tag,
            run.id,
            job_environment(),
            folder,
            rlimits=limits(),
            queue=self._queue,
            bank=self._bank,
        )
        loop = FluxRun(flux, self._uri, run, emit, jobspecs, events=self._events)
        try:
            loop.start()
        except OSError as error:
            raise self._no_connection(error, mine) from None
        if bindings.release(loop.version) < bindings.OLDEST:
            loop.close()
            raise _too_old("this Flux instance is", loop.version)
        self._jobspecs = jobspecs
        target = self._output_target(run, loop)
        self._output = Output(str(run.folder.absolute()), target, run.state)
        self._loop = loop
        self._last = LastInstance(run.state)
        self._queue_is_new = self._last.is_left_for(loop.instance)

    def _output_target(self, run: Run, loop: FluxRun) -> Any:
        if self._keep != "auto":
            return self._keep
        seen = seen_by_all(str(run.folder.absolute()), loop.hosts, socket.gethostname())
        return "files" if seen else "kvs"

    def _no_connection(self, error: OSError, version: str) -> ExecutorError:
        uri = self._uri or os.environ.get("FLUX_URI")
        if not uri:
            hint = "start one with 'flux start', get one with 'flux alloc', or set FLUX_URI"
        else:
            hint = (
                f"check the instance with 'flux uptime'; an instance of another release than "
                f"{version} may also refuse the connection"
            )
        return ExecutorError(
            f"no Flux instance answers{f' at {uri}' if uri else ''}",
            cause=error_text(error),
            hint=hint,
            code="no-instance",
        )

    def _require_open(self) -> FluxRun:
        assert self._loop is not None
        if self._loop.lost is not None:
            raise ExecutorError(
                "the Flux instance has ended",
                cause=self._loop.lost,
                hint="resume the run when the instance runs again",
                code="lost",
            )
        return self._loop

    @property
    def on_stop(self) -> Literal["keep", "cancel"]:
        """The default for ``on_stop``.

        It is ``cancel`` in an instance that ends with the run's allocation or with the run's
        parent, because jobs end with that instance.
        """
        temporary = self._loop is not None and self._loop.instance.temporary
        return "cancel" if temporary else "keep"

    @property
    def survives_power_cut(self) -> bool:
        """False in an instance on this machine alone whose state is temporary."""
        return self._loop is None or self._loop.survives_power_cut

    @property
    def drains(self) -> bool:
        """True if the instance ends with the allocation of this process."""
        return self._loop is not None and self._loop.ends_here

    def drain(self) -> None:
        if not self._drained:
            self._require_open().drain()

    @property
    def _drained(self) -> bool:
        return self._loop is not None and self._loop.drained

    @property
    def queue_is_new(self) -> bool:
        """True if the run's jobs were in another instance, which was a temporary one."""
        return self._queue_is_new

    def submit(self, jobs: Sequence[Job]) -> None:
        loop = self._require_open()
        self._last.record(loop.instance)
        names = check_new(jobs, loop.ids)
        orders = [self._prepare(job) for job in jobs]
        loop.ids |= names
        loop.submit(orders)

    def _prepare(self, job: Job) -> Order:
        assert self._output is not None
        assert self._jobspecs is not None
        workdir = self._jobspecs.workdir(job)
        try:
            option, _, kept = self._output.prepare(job, workdir)
        except OSError as error:
            what = error.filename or workdir
            return Order(job, failed=f"{what}: {error_text(error)}")
        # Observers read the output files, and failure messages show the last line of stderr.
        extra = {"workdir": workdir}
        for stream in ("stdout", "stderr"):
            if "path" in option[stream]:
                extra[stream] = option[stream]["path"]
        fetch: dict[str, str] = {}
        if job.observe:  # otherwise an observer could not read the output
            stored = (stream for stream in ("stdout", "stderr") if stream not in extra)
            fetch = files(self._output.folder, job.id, stored)
            extra |= fetch
            kept = (*kept, *fetch.values())
        return Order(job, output=option, kept=kept, extra=extra, fetch=fetch)

    def cancel(self, jobs: Sequence[str]) -> None:
        if not self._drained:  # if so, none of them runs
            self._require_open().cancel(jobs)

    def signal(self, jobs: Sequence[str], signal: str) -> None:
        if not self._drained:
            self._require_open().signal(jobs, Signals[f"SIG{signal}"])

    def resources(self) -> Mapping[str, float]:
        return {} if self._loop is None else dict(self._loop.gauges)

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        loop = self._require_open()
        loop.ids |= jobs.keys()
        ended = loop.record.events(jobs)
        found = loop.reattach({job: since for job, since in jobs.items() if job not in ended})
        if self._queue_is_new and not all(found.values()):
            self.require_end_of_earlier_instance()
        loop.ids -= {job for job, known in found.items() if not known}
        if self._queue_is_new:  # jobs with output had started after their last known event
            found = {
                job: known for job, known in found.items() if known or not self._has_begun(job)
            }
        loop.tell_again([event for events in ended.values() for event in events])
        return found | dict.fromkeys(ended, True)

    def forget(self, jobs: Sequence[str]) -> None:
        if self._loop is not None:
            self._loop.forget(jobs)

    def require_end_of_earlier_instance(self) -> None:
        """Raise :class:`ExecutorError` unless the instance that had the run's jobs has ended.

        Otherwise its waiting jobs would run in both instances.
        """
        last = self._last.last
        found = "ended" if self._ended else presence(last, self._connect)
        if found == "ended":
            return
        where = f" on {last.host}" if last.host else ""
        there = f"resume there (FLUX_URI={last.uri})" if last.uri else "resume there"
        if found == "running":
            command = f" ('flux shutdown {last.uri}')" if last.uri else ""
            raise ExecutorError(
                f"jobs of this run are in another Flux instance{where}, which still runs",
                hint=f"{there}, or end that instance first{command}",
                code="other-instance",
            )
        raise ExecutorError(
            f"jobs of this run may still be in another Flux instance{where}, which does not answer",
            hint=f"if that instance has ended, resume with --instance-ended; otherwise {there}",
            code="other-instance",
        )

    @staticmethod
    def _connect(uri: str) -> Any:
        return bindings.connect(bindings.bindings(), uri)

    def _has_begun(self, job: str) -> bool:
        """Return True if a job of an earlier controller has an output file in the run's folder."""
        assert self._output is not None
        return any(map(os.path.exists, files(self._output.folder, job).values()))

    @property
    def sees_foreign_jobs(self) -> bool:
        return self._loop is None or not self._loop.guest

    @property
    def handle(self) -> object:
        """A Flux handle for the calling thread; threads must not share handles."""
        if self._loop is None:
            return None
        handle = getattr(self._handles, "handle", None)
        if handle is None:
            flux = bindings.bindings()
            handle = bindings.connect(flux, self._uri)
            self._handles.handle = handle
        return handle

    def journal_record(self, queue_id: str, event: str) -> Mapping[str, Any]:
        record: dict[str, Any] = {"id": parse_f58(queue_id)}
        key = {"submit": "jobspec", "alloc": "R"}.get(event)
        flux: Any = self.handle
        if key is not None and flux is not None:
            question = {"id": record["id"], "keys": [key], "flags": 0}
            for pause in _WRITTEN:
                time.sleep(pause)
                with contextlib.suppress(OSError):  # not yet written, or Flux has dropped the job
                    record[key] = json.loads(flux.rpc("job-info.lookup", question).get()[key])
                    break
        return record

    def close(self) -> None:
        """Disconnect from the instance. Jobs in it continue."""
        loop, self._loop = self._loop, None
        self._handles = threading.local()
        if loop is not None:
            loop.close()


def _too_old(what: str, version: str) -> ExecutorError:
    oldest = ".".join(map(str, bindings.OLDEST))
    return ExecutorError(
        f"{what} has version {version}; the oldest supported version is {oldest}",
        hint="load a newer Flux",
        code="version-mismatch",
    )
