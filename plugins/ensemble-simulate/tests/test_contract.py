"""Contract tests of the virtual executor, on its virtual clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from ensemble_simulate.executor import Machine, Simulator
from ensemble_simulate.models import GroupModel, Life, Model
from ensemble_testing import ExecutorContract, Session

from ensemble_core import Emit, Executor, Job, Problem, Run, WhenBusy

#: Longest virtual time to wait for, in seconds.
_SOON = 1e6
#: A job's duration and end, by the first word of its command. Other commands take a second.
_LIVES = {
    "sleep": Life(1e9),
    "there-is-no-such-command": Life(0.0, "submit"),
    "fails": Life(1.0, "exit", 3 << 8),
    "crashes": Life(1.0, "signal", 11),
    **{cause: Life(1.0, cause, 9) for cause in ("memory", "node-failure", "preempted", "lost")},
}


class _ByCommand(Model):
    """Model that chooses a job's life by its command, so that a test needs no file."""

    def life(self, job: Job) -> Life:
        if job.stdout is not None and job.stdout.startswith("/proc"):
            return Life(0.0, "submit")
        return _LIVES.get(job.command[0], Life(1.0))


class _OnItsClock(Executor):
    """A simulator with a clock.

    The suite waits for events, so the clock advances after each request until none is due soon.
    """

    capabilities = Simulator.capabilities
    causes = Simulator.causes

    def __init__(self) -> None:
        model = _ByCommand({"t": GroupModel()})
        self._simulator = Simulator(Machine(nodes=2, cores=4, most=3), model)
        self._now = 1e9

    def now(self) -> float:
        return self._now

    def open(self, run: Run, emit: Emit) -> None:
        self._simulator.open(Run(run.tag, run.folder, self.now), emit)

    def _go_on(self) -> None:
        end = self._now + _SOON
        while (due := self._simulator.due()) is not None and due <= end:
            self._now = max(self._now, due)
            self._simulator.advance(self._now)

    def submit(self, jobs: Sequence[Job]) -> None:
        self._simulator.submit(jobs)
        self._go_on()

    def cancel(self, jobs: Sequence[str]) -> None:
        self._simulator.cancel(jobs)
        self._go_on()

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        self._simulator.resize(request, delta, when_busy=when_busy)
        self._go_on()

    def resources(self) -> Mapping[str, float]:
        return self._simulator.resources()

    def close(self) -> None:
        self._simulator.close()


class _VirtualSession(Session):
    """A session on the executor's clock."""

    def now(self) -> float:
        assert isinstance(self.executor, _OnItsClock)
        return self.executor.now()


class TestVirtualExecutor(ExecutorContract):
    """Skips tests of processes and files, because virtual jobs have none."""

    same_machine: ClassVar[bool] = False
    failing: ClassVar[tuple[str, ...]] = ("fails",)
    killing: ClassVar[tuple[str, ...]] = ("crashes",)

    def make_executor(self) -> Executor:
        return _OnItsClock()

    def new_session(self, folder: Path, *, tidy: bool = False, kept: bool = True) -> Session:
        return _VirtualSession(self.make_executor(), folder, self.timeout, tidy=tidy, kept=kept)

    def test_a_job_never_runs_on_a_node_that_it_avoids(self, session: Session) -> None:
        """Simulated nodes have no names, which a warning says once."""
        jobs = [session.job(*self.succeeding, avoid=("n1", "n2")) for _ in range(2)]
        session.run(*jobs)
        (problem,) = [each for each in session.events if isinstance(each, Problem)]
        assert problem.message == "simulated nodes have no names, so no job avoids n1, n2"

    def _end_by(self, session: Session, command: str) -> object:
        job = session.job(command)
        session.run(job)
        return session.cause(job)

    def end_by_memory(self, session: Session) -> object:
        return self._end_by(session, "memory")

    def end_by_node_failure(self, session: Session) -> object:
        return self._end_by(session, "node-failure")

    def end_by_preempted(self, session: Session) -> object:
        return self._end_by(session, "preempted")

    def end_by_lost(self, session: Session) -> object:
        return self._end_by(session, "lost")
