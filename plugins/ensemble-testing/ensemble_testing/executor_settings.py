"""Settings of the executor suite: properties of the queue, and checks that several tests share."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ensemble_core.errors import ExecutorError
from ensemble_core.model.jobs import RFC21_EVENTS, Job
from ensemble_core.plugin.executor import Executor
from ensemble_core.plugin.hookspecs import ExecutorPlugin
from ensemble_testing.session import Session

#: The order of a job's events. Other events (``exception``, ``memo`` …) may come anywhere before
#: ``clean``.
_ORDER = (
    "submit",
    "validate",
    "depend",
    "priority",
    "alloc",
    "start",
    "finish",
    "release",
    "free",
    "clean",
)


@pytest.mark.usefixtures("_swept")
class ExecutorKnobs:
    """Properties of the queue under test. A suite sets those that differ from the defaults.

    Attributes
    ----------
    plugin:
        The executor's record, to check that it matches the executor; ``None`` skips this check.
    build_options:
        Options for building the executor from the record: at least those that its schema requires.
    succeeding, failing, killing, lasting, missing:
        Commands: one that succeeds, one that fails, one that is killed by a signal, a very long
        one, and one that does not exist.
    failing_code:
        Exit code of the command ``failing``.
    same_machine:
        Whether jobs run on this machine, as this user. If not, tests of their files and processes
        are skipped.
    contains:
        Whether a cancel also ends processes that have left the job's session (``setsid``).
    forks:
        Whether a controller can be a forked child of the tests. False if a library (gRPC) does not
        work after a fork.
    slots:
        Number of one-core jobs that run concurrently; ``None``: use the gauge ``cores.up``. One
        slot is enough for the suite.
    many:
        Number of one-core jobs in a bulk submission: more than the queue can run concurrently.
    impossible:
        Number of cores, and of GPUs, that this queue can never provide.
    timeout:
        Time limit of each wait in seconds. It ends hanging tests; no result depends on it.
    sleep_allowed:
        Maximum number of seconds that ``submit`` may sleep in a bulk submission.
    calls_allowed:
        Maximum number of processes and connections that ``submit`` may start in a bulk submission,
        in addition to those for a single job.
    """

    plugin: ClassVar[ExecutorPlugin | None] = None
    build_options: ClassVar[Mapping[str, Any]] = {}
    succeeding: ClassVar[tuple[str, ...]] = ("true",)
    failing: ClassVar[tuple[str, ...]] = ("sh", "-c", "exit 3")
    failing_code: ClassVar[int] = 3
    killing: ClassVar[tuple[str, ...]] = ("sh", "-c", "kill -SEGV $$")
    lasting: ClassVar[tuple[str, ...]] = ("sleep", "1000")
    missing: ClassVar[tuple[str, ...]] = ("there-is-no-such-command",)
    same_machine: ClassVar[bool] = True
    contains: ClassVar[bool] = True
    forks: ClassVar[bool] = True
    slots: ClassVar[int | None] = None
    many: ClassVar[int] = 50
    impossible: ClassVar[int] = 100_000
    timeout: ClassVar[float] = 120.0
    sleep_allowed: ClassVar[float] = 1.0
    calls_allowed: ClassVar[int] = 5

    def make_executor(self) -> Executor:
        """Return a new executor that is not yet open. Override this method."""
        raise NotImplementedError("override make_executor()")

    def new_session(self, folder: Path, *, tidy: bool = False, kept: bool = True) -> Session:
        """Return a session with a new executor that is not yet open."""
        session = Session(self.make_executor(), folder, self.timeout, tidy=tidy, kept=kept)
        vars(self).setdefault("sessions", []).append(session)
        return session

    @pytest.fixture
    def session(self, tmp_path: Path) -> Iterator[Session]:
        """Yield an open executor; close it after the test."""
        with self.new_session(tmp_path, tidy=True) as session:
            yield session
            self.release_jobs(tmp_path)

    @pytest.fixture(autouse=True)
    def _end_long_jobs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """End long jobs with their test, even if the executor cannot cancel them."""
        leash = tmp_path / "leash"
        leash.touch()
        if self.same_machine and self.lasting == ExecutorKnobs.lasting:
            script = f"n=0; while [ -e {shlex.quote(str(leash))} ] && [ $n -lt 1000 ]; do"
            script += " sleep 1; n=$((n + 1)); done"
            monkeypatch.setattr(self, "lasting", ("sh", "-c", script), raising=False)
        yield
        self.release_jobs(tmp_path)

    def release_jobs(self, folder: Path) -> None:
        """End all jobs of the test that wait for a file."""
        (folder / "leash").unlink(missing_ok=True)
        (folder / "may end").touch()

    @pytest.fixture
    def _swept(self, tmp_path: Path) -> Iterator[None]:
        yield
        self.sweep(tmp_path)

    def sweep(self, folder: Path) -> None:
        """End the jobs that the test's sessions left in the queue."""
        self.release_jobs(folder)
        runs: dict[str, Session] = {}
        left: dict[str, set[str]] = {}
        over: set[tuple[str, str]] = set()
        for session in vars(self).get("sessions", ()):
            if session.kept:
                runs.setdefault(session.run_id, session)
                left.setdefault(session.run_id, set()).update(session.made)
                over |= {(session.run_id, job) for job in session.over()}
        if "reattach" not in self.make_executor().capabilities:
            return  # each session has already cancelled its jobs
        for run_id, jobs in left.items():
            if active := {job for job in jobs if (run_id, job) not in over}:
                earlier = runs[run_id]
                later = Session(self.make_executor(), earlier.folder, self.timeout, tidy=True)
                with later.resume(earlier):
                    later.take_over(active)

    def slots_of(self, session: Session) -> int | None:
        """Return how many one-core jobs run concurrently; ``None`` if unknown."""
        if self.slots is not None:
            return self.slots
        try:
            up = session.executor.resources().get("cores.up")
        except ExecutorError:
            return None
        return None if up is None else int(up)

    def times(self, session: Session, job: Job) -> dict[str, float]:
        """Return the time of each step of a job's life."""
        return {e.name: e.timestamp for e in session.of(job) if e.name in _ORDER}

    def check_order(self, session: Session, job: Job) -> None:
        """Check that the job's events are those of RFC 21, in order, from submit to a single
        clean.
        """
        names = session.names(job)
        assert names[0] == "submit", names
        assert names[-1] == "clean", names
        assert names.count("clean") == 1, names
        assert set(names) <= set(RFC21_EVENTS), names
        placed = [_ORDER.index(name) for name in names if name in _ORDER]
        assert placed == sorted(set(placed)), names
        times = [event.timestamp for event in session.of(job)]
        assert times == sorted(times), times
        assert not session.misdated, session.misdated[:5]

    def fatal(self, session: Session, job: Job) -> list[str]:
        """Return the types of the job's fatal exceptions."""
        return [
            str(event.context.get("type"))
            for event in session.of(job)
            if event.name == "exception" and event.context.get("severity") == 0
        ]

    def check_end(self, session: Session, job: Job, kind: str) -> None:
        """Check that the job's first fatal exception, which says why it ended, is the only one of
        its type.

        A queue may add exceptions of other types: Flux's shell reports "start failed" (``exec``)
        for a task that was cancelled while it started.
        """
        types = self.fatal(session, job)
        assert types[:1] == [kind], types
        assert types.count(kind) == 1, types
