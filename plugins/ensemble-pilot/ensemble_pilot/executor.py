"""Executor ``pilot``: jobs run inside a few jobs of another queue."""

from __future__ import annotations

import hashlib
import json
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
    Job,
    ResizeOutcome,
    Run,
    WhenBusy,
    check_new,
    private_folder,
    start_folder,
)
from ensemble_core.cli.toolkit import option_defaults
from ensemble_pilot.fleet import Fleet
from ensemble_pilot.ledger import PilotLedger
from ensemble_pilot.options import read_options
from ensemble_pilot.outer_queue import Settings
from ensemble_pilot.pilot_controller import Controller


class PilotExecutor(Executor):
    """Executor for jobs inside pilots. ``docs/pilots.md`` describes the options.

    Raises :class:`UsageError` if they contradict one another.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"submit", "cancel", "resize", "signal", "reattach", "detach"}
    )
    causes: ClassVar = frozenset(
        {"exit", "signal", "timeout", "memory", "cancelled", "submit", "preempted"}
    )

    def __init__(self, **options: Any) -> None:
        self._options = read_options(options)
        #: The executors of the outer queues, and which of them the pilots of each kind use.
        self._outers: list[Executor] = []
        self._outer_of: dict[str, Executor] = {}
        built: dict[str, Executor] = {}
        for name, kind in self._options.kinds.items():
            whole = option_defaults(kind.outer.options, kind.of_queue)
            key = json.dumps([kind.queue, whole], sort_keys=True)
            if key not in built:
                built[key] = kind.outer.build(whole)
                self._outers.append(built[key])
            self._outer_of[name] = built[key]
        self._controller: Controller | None = None
        self._ledger: PilotLedger
        self._emit: Emit
        self._clock: Any = None
        #: Whether the run has said which jobs of an earlier controller it waits for.
        self._reattached = False
        self._temporary: str | None = None

    def open(self, run: Run, emit: Emit) -> None:
        start = start_folder()
        if run.state is None:
            self._temporary = tempfile.mkdtemp(prefix="ensemble-pilot-")
        folder = Path(self._temporary or run.state or "").resolve()
        private_folder(folder)
        self._ledger = PilotLedger(folder / "pilots.log", run.id)
        self._reattached = not self._ledger.jobs
        options = self._options
        settings = Settings(options.kinds, self._outer_of, start, self._job, options.address)
        self._emit, self._clock = emit, run.clock
        try:
            controller = Controller(run, self._pass_on, folder, settings, self._ledger)
        except BaseException:
            self._ledger.close()
            raise

        def on_events(events: Sequence[Event]) -> None:
            controller.post(lambda: controller.pilots.on_outer(events))

        opened: list[Executor] = []
        known: dict[str, bool] = {}
        try:
            for number, outer in enumerate(self._outers):
                # The first one has the names of a run with one kind.
                more = f"-{number + 1}" if number else ""
                name = f"pilots{more} of {self._ledger.run_id}"
                outer_id = hashlib.sha256(name.encode()).hexdigest()[:16]
                # A later controller may be in another allocation, where the jobs of this one are
                # unknown.
                state = folder / (f"outer-{options.here.name}" if options.here else f"outer{more}")
                tag = f"{run.tag}.pilots{more}"
                outer.open(Run(tag, folder / "output", run.clock, state, outer_id), on_events)
                opened.append(outer)
            pilots = controller.fleet.pilots.values()
            for outer in self._outers:
                mine = [p.job for p in pilots if self._outer_of[p.kind.name] is outer]
                known.update(outer.reattach(dict.fromkeys(mine, 0.0)) if mine else {})
        except BaseException:
            for outer in opened:
                outer.close()
            controller.abandon()
            self._ledger.close()
            raise
        controller.begin(known)
        self._controller = controller

    def _pass_on(self, events: Sequence[Event]) -> None:
        self._emit(events)

    def _job(self, name: str, number: int, folder: Path) -> Job:
        """Return the job of a pilot in the outer queue."""
        options = self._options.kinds[name]
        kind, queue, here = options.kind, options.queue, options.here
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
            memory_per_task=0 if here else kind.memory,
            duration=0.0 if here else kind.duration,
            # If the task of a node is gone, so is the pilot.
            environment={"SLURM_KILL_BAD_EXIT": "1"} if queue == "slurm" else {},
            stdout=str(folder / "out"),
            stderr=str(folder / "err"),
            options={queue: options.of_jobs} if options.of_jobs else {},
        )

    def _require_open(self) -> Controller:
        assert self._controller is not None
        return self._controller

    def submit(self, jobs: Sequence[Job]) -> None:
        controller = self._require_open()
        if not self._reattached:  # it waits for none
            self.reattach({})
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

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        controller = self._require_open()
        if self._options.here:
            reason = "with queue=here, the allocation is the one pilot"
            self._emit([ResizeOutcome(self._clock(), request, "denied", reason=reason)])
        else:
            controller.post(lambda: controller.resize(request, delta, when_busy))

    def forget(self, jobs: Sequence[str]) -> None:
        controller, names = self._require_open(), list(jobs)
        controller.post(lambda: controller.forget(names))

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        self._reattached = True
        return self._require_open().request(lambda c: c.reattach(jobs))

    def resources(self) -> Mapping[str, float]:
        if self._controller is None:
            return Fleet(*(each.kind for each in self._options.kinds.values())).gauges(0.0)
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
        for outer in self._outers:
            outer.close()
        self._ledger.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None
