"""Executor ``pilot``: jobs run inside a few jobs of another queue."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ensemble_core import (
    Emit,
    Event,
    Executor,
    ExecutorError,
    Job,
    Run,
    check_new,
    private_folder,
    start_folder,
)
from ensemble_core.cli.toolkit import option_defaults
from ensemble_pilot.controller import Controller
from ensemble_pilot.fleet import Fleet
from ensemble_pilot.ledger import PilotLedger
from ensemble_pilot.options import read_options
from ensemble_pilot.pilots import Settings

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

    def __init__(self, **options: Any) -> None:
        self._options = read_options(options)
        whole = option_defaults(self._options.outer.options, self._options.of_queue)
        self._outer = self._options.outer.build(whole)
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
        options = self._options
        settings = Settings(
            options.queue,
            options.grace,
            options.orphan,
            options.requeue,
            start,
            self._job,
            options.address,
        )
        self._emit, self._clock = emit, run.clock
        try:
            controller = Controller(
                run, self._pass_on, folder, options.kind, settings, self._ledger, self._outer
            )
        except BaseException:
            self._ledger.close()
            raise

        def on_events(events: Sequence[Event]) -> None:
            controller.post(lambda: controller.pilots.on_outer(events))

        outer_id = hashlib.sha256(f"pilots of {self._ledger.run_id}".encode()).hexdigest()[:16]
        # A later controller may be in another allocation, where the jobs of this one are unknown.
        state = folder / (f"outer-{options.here.job}" if options.here else "outer")
        try:
            self._outer.open(
                Run(f"{run.tag}.pilots", folder / "output", run.clock, state, outer_id), on_events
            )
        except BaseException:
            controller.abandon()
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
        options, here = self._options, self._options.here
        kind, queue = options.kind, options.queue
        command = (sys.executable, "-m", "ensemble_pilot.node", str(folder))
        return Job(
            id=f"pilot.{number}",
            group="pilot",
            index=number,
            command=(*here.launcher, *command) if here else command,
            nodes=1 if here else kind.nodes,
            tasks=1 if here else kind.nodes,
            cores_per_task=1 if here else kind.cores,
            gpus_per_task=0 if here else kind.gpus,
            duration=0.0 if here else kind.duration,
            # If the task of a node is gone, so is the pilot.
            environment={"SLURM_KILL_BAD_EXIT": "1"} if queue == "slurm" else {},
            stdout=str(folder / "out"),
            stderr=str(folder / "err"),
            options={queue: options.of_jobs} if options.of_jobs else {},
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
            return Fleet(self._options.kind).gauges()
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
