"""Executor ``pilot``: jobs run inside a few jobs of another queue."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ensemble_batch import address_option

from ensemble_core import (
    Emit,
    EnsembleError,
    Event,
    Executor,
    ExecutorError,
    ExecutorPlugin,
    Job,
    Run,
    UsageError,
    check_new,
    executor_record,
    private_folder,
    start_folder,
)
from ensemble_core.cli.toolkit import option_defaults, parse_duration
from ensemble_core.local.slots import machine_cores
from ensemble_pilot.controller import Controller, Settings
from ensemble_pilot.fleet import Fleet, Kind
from ensemble_pilot.ledger import PilotLedger
from ensemble_pilot.node import RANKS

__all__ = ["PilotExecutor"]


class PilotExecutor(Executor):
    """Executor for jobs inside pilots. ``docs/pilots.md`` describes the options.

    Raises :class:`UsageError` if they contradict one another.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"submit", "cancel", "signal", "reattach", "detach"}
    )
    causes: ClassVar = frozenset(
        {"exit", "signal", "timeout", "memory", "cancelled", "submit", "preempted"}
    )

    def __init__(
        self,
        *,
        queue: str = "local",
        options: Mapping[str, Any] | None = None,
        nodes: int = 1,
        cores: int | None = None,
        gpus: int = 0,
        duration: float | str = 0,
        most: int = 1,
        least: int = 0,
        idle: float | str = "5m",
        margin: float | str | None = None,
        orphan: float | str = "10m",
        backlog: int = 2,
        grace: float = 5.0,
        listen: str = "auto",
        requeue: bool = False,
    ) -> None:
        if queue not in RANKS:
            raise UsageError(
                f"pilots cannot be jobs of the executor {queue!r} yet",
                hint=f"choose one of these: {', '.join(f'-o queue={name}' for name in RANKS)}",
                code="bad-option",
            )
        self._queue = queue
        record = executor_record(queue)
        self._outer, self._job_options = _outer(record, dict(options or {}))
        if cores is None:
            if queue != "local":
                raise UsageError(
                    f"the executor {queue!r} does not tell how many cores a node has",
                    hint="say how many each node of a pilot gets, such as -o cores=128",
                    code="bad-option",
                )
            slots = (options or {}).get("slots") or machine_cores()
            cores = max(1, int(slots) // nodes)
        if most < least:
            raise UsageError(
                f"'most' is {most}, but 'least' is {least}",
                hint="choose least <= most",
                code="bad-option",
            )
        lifetime = _duration("duration", duration)
        reserve = _duration("margin", margin if margin is not None else ("2m" if lifetime else 0))
        if lifetime and reserve >= lifetime:
            raise UsageError(
                f"a pilot of {lifetime:g} s with a margin of {reserve:g} s has no time for jobs",
                hint="lengthen 'duration', or shorten 'margin'",
                code="bad-option",
            )
        self._kind = Kind(
            nodes=nodes,
            cores=cores,
            gpus=gpus,
            duration=lifetime,
            most=most,
            least=least,
            idle=_duration("idle", idle),
            margin=reserve,
            backlog=backlog,
        )
        address = address_option(listen)
        if address is None:
            raise UsageError(
                "nodes of pilots must be able to connect to this machine",
                hint="use -o listen=ADDRESS or -o listen=ADDRESS:PORT",
                code="bad-option",
            )
        if not address[0]:
            address = "127.0.0.1" if queue == "local" else "0.0.0.0", address[1]
        self._address = address
        self._grace, self._requeue = grace, requeue
        self._orphan = _duration("orphan", orphan)
        self._controller: Controller | None = None
        self._ledger: PilotLedger
        self._emit: Emit
        self._clock: Any = None
        self._temporary: str | None = None

    def open(self, run: Run, emit: Emit) -> None:
        if self._controller is not None:
            raise ExecutorError("the executor pilot is open already", code="already-open")
        start = start_folder()
        if run.state is None:
            self._temporary = tempfile.mkdtemp(prefix="ensemble-pilot-")
        folder = Path(self._temporary or run.state or "").resolve()
        private_folder(folder)
        self._ledger = PilotLedger(folder / "pilots.log", run.id)
        settings = Settings(
            self._queue, self._grace, self._orphan, self._requeue, start, self._job, self._address
        )
        self._emit, self._clock = emit, run.clock
        try:
            controller = Controller(
                run, self._pass_on, folder, self._kind, settings, self._ledger, self._outer
            )
        except BaseException:
            self._ledger.close()
            raise

        def on_events(events: Sequence[Event]) -> None:
            controller.post(lambda: controller.on_outer(events))

        outer_id = hashlib.sha256(f"pilots of {self._ledger.run_id}".encode()).hexdigest()[:16]
        state = folder / "outer"
        try:
            self._outer.open(
                Run(f"{run.tag}.pilots", folder / "output", run.clock, state, outer_id), on_events
            )
        except BaseException:
            controller.link.close(0.0)
            controller.worker.close()
            self._ledger.close()
            raise
        jobs = [pilot.job for pilot in controller.fleet.pilots.values()]
        known = self._outer.reattach(dict.fromkeys(jobs, 0.0)) if jobs else {}
        controller.begin(known)
        self._controller = controller

    def _pass_on(self, events: Sequence[Event]) -> None:
        self._emit(events)

    def _job(self, number: int, folder: Path) -> Job:
        """Return the job of a pilot in the outer queue."""
        kind = self._kind
        return Job(
            id=f"pilot.{number}",
            group="pilot",
            index=number,
            command=(sys.executable, "-m", "ensemble_pilot.node", str(folder)),
            nodes=kind.nodes,
            tasks=kind.nodes,
            cores_per_task=kind.cores,
            gpus_per_task=kind.gpus,
            duration=kind.duration,
            # If the task of a node is gone, so is the pilot.
            environment={"SLURM_KILL_BAD_EXIT": "1"} if self._queue == "slurm" else {},
            stdout=str(folder / "out"),
            stderr=str(folder / "err"),
            options={self._queue: self._job_options} if self._job_options else {},
        )

    def _require_open(self) -> Controller:
        if self._controller is None:
            raise ExecutorError("the executor pilot is not open", code="not-open")
        return self._controller

    def submit(self, jobs: Sequence[Job]) -> None:
        controller = self._require_open()
        check_new(jobs, self._ledger.jobs.keys())
        entries = self._ledger.submit(jobs, self._clock())
        self._emit([event for entry in entries for event in entry.first_events()])
        controller.post(lambda: controller.submitted(entries))

    def cancel(self, jobs: Sequence[str]) -> None:
        controller, names = self._require_open(), list(jobs)
        controller.post(lambda: controller.cancel(names))

    def signal(self, jobs: Sequence[str], signal: str) -> None:
        controller, names = self._require_open(), list(jobs)
        controller.post(lambda: controller.signal(names, signal))

    def forget(self, jobs: Sequence[str]) -> None:
        controller, names = self._require_open(), list(jobs)
        controller.post(lambda: controller.forget(names))

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        return self._require_open().request(lambda c: c.reattach(jobs))

    def resources(self) -> Mapping[str, float]:
        if self._controller is None:
            return Fleet(self._kind).gauges()
        return self._controller.gauges

    @property
    def sees_foreign_jobs(self) -> bool:
        return False

    def close(self) -> None:
        """Leave running jobs to the pilots, and give pilots back that have none."""
        controller, self._controller = self._controller, None
        if controller is None:
            return
        controller.close()
        self._outer.close()
        self._ledger.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None


def _duration(name: str, value: float | str) -> float:
    try:
        return float(parse_duration(value))
    except EnsembleError as error:
        raise UsageError(f"{name!r}: {error.what}", hint=error.hint, code="bad-option") from None


def _outer(record: ExecutorPlugin, given: dict[str, Any]) -> tuple[Executor, dict[str, Any]]:
    """Return the outer executor, and the options of the pilots' jobs in it.

    ``given`` may have options of both kinds.
    """
    if "reattach" not in record.capabilities:
        raise UsageError(
            f"pilots cannot be jobs of the executor {record.name!r}",
            cause="it cannot find its jobs again after a restart",
            code="bad-option",
        )
    of_jobs = dict(record.job_options.get("properties", {}))
    of_queue = dict(record.options.get("properties", {}))
    for name in given:
        if name not in of_jobs and name not in of_queue:
            known = ", ".join(sorted({*of_jobs, *of_queue}))
            raise UsageError(
                f"the executor {record.name!r} has no option {name!r}",
                hint=f"its options are {known}",
                code="unknown-option",
            )
    for schema, names in ((record.options, of_queue), (record.job_options, of_jobs)):
        _check(record, dict(schema), {key: given[key] for key in given if key in names})
    whole = option_defaults(
        record.options, {key: value for key, value in given.items() if key not in of_jobs}
    )
    return record.build(whole), {key: value for key, value in given.items() if key in of_jobs}


def _check(record: ExecutorPlugin, schema: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    import jsonschema_rs

    for error in jsonschema_rs.validator_for({**schema, "required": []}).iter_errors(given):
        where = ".".join(map(str, error.instance_path))
        raise UsageError(
            f"invalid option {where!r} of the pilots' queue",
            cause=error.message,
            hint=f"'ensemble plugins show executor {record.name}' describes it",
            code="bad-option",
        )
