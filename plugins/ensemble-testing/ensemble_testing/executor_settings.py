"""Knobs of the executor suite: what an author says of the queue under test, and the checks that its
tests share. ``ExecutorContract`` inherits them; the attributes are their manual.
"""

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

__all__ = ["ExecutorKnobs"]

#: The order of a job's life; events that are not here (``exception``, ``memo`` …) may come anywhere
#: before ``clean``.
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
    """The knobs that a suite needs for a queue.

    Attributes
    ----------
    plugin:
        The executor's record, so that it is checked against the class; ``None`` skips that.
    build_options:
        Options that the record is built with: those that its schema requires, at least.
    succeeding, failing, failing_code, killing, lasting, missing:
        Commands: one that succeeds, one that fails with ``failing_code``, one that a signal ends,
        one that takes very long, and one that cannot be found. Where the one that takes long is not
        overridden and jobs run on this machine, it ends with its test, whatever the queue does.
    same_machine:
        Whether jobs run on this machine, as this user, so that their files and processes can be
        looked at. Tests that do so are skipped where they do not.
    contains:
        Whether the queue finds also those processes of a job that have left its session.
    forks:
        Whether a controller may be a fork of the tests' process, which is then killed. Not so where
        a library (gRPC) does not work in a fork.
    slots:
        How many jobs of one core run at once; ``None``: so many as the gauge ``cores.up`` says. One
        is enough for each test.
    many:
        How many jobs a bulk is: more than can run at once, each of which needs one core.
    impossible:
        Cores and GPUs that no job can have here.
    timeout:
        Seconds that any one thing may take. It ends a test that hangs; no verdict depends on it.
    sleep_allowed:
        Seconds that ``submit`` may sleep for a bulk, as it asks for them.
    calls_allowed:
        Processes and connections that ``submit`` may begin itself for a bulk, beside those for a
        single job.
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
        """A new executor, not yet open. To be overridden."""
        raise NotImplementedError("override make_executor()")

    def new_session(self, folder: Path, *, tidy: bool = False, kept: bool = True) -> Session:
        """A session with a new executor, not yet open."""
        session = Session(self.make_executor(), folder, self.timeout, tidy=tidy, kept=kept)
        vars(self).setdefault("sessions", []).append(session)
        return session

    @pytest.fixture
    def session(self, tmp_path: Path) -> Iterator[Session]:
        """An open executor; closed after the test."""
        with self.new_session(tmp_path, tidy=True) as session:
            yield session
            self.let_go(tmp_path)

    @pytest.fixture(autouse=True)
    def _leash(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Jobs that last end with their test, also where the executor cannot cancel them."""
        leash = tmp_path / "leash"
        leash.touch()
        if self.same_machine and self.lasting == ExecutorKnobs.lasting:
            script = f"n=0; while [ -e {shlex.quote(str(leash))} ] && [ $n -lt 1000 ]; do"
            script += " sleep 1; n=$((n + 1)); done"
            monkeypatch.setattr(self, "lasting", ("sh", "-c", script), raising=False)
        yield
        self.let_go(tmp_path)

    def let_go(self, folder: Path) -> None:
        """Let all jobs of the test end that wait for something."""
        (folder / "leash").unlink(missing_ok=True)
        (folder / "goes on").touch()

    @pytest.fixture
    def _swept(self, tmp_path: Path) -> Iterator[None]:
        yield
        self.sweep(tmp_path)

    def sweep(self, folder: Path) -> None:
        """End the jobs that the test's sessions have left in the queue."""
        self.let_go(folder)
        left: dict[str, set[str]] = {}
        over: set[tuple[str, str]] = set()
        for session in vars(self).get("sessions", ()):
            if session.kept:
                left.setdefault(session.tag, set()).update(session.made)
                over |= {(session.tag, job) for job in session.over()}
        if "reattach" not in self.make_executor().capabilities:
            return  # each session has cancelled its own
        for tag, jobs in left.items():
            if active := {job for job in jobs if (tag, job) not in over}:
                later = Session(self.make_executor(), folder, self.timeout, tidy=True)
                later.tag = tag
                with later:
                    later.take_over(active)

    def slots_of(self, session: Session) -> int | None:
        """How many jobs of one core run at once; ``None`` if nothing says it."""
        if self.slots is not None:
            return self.slots
        try:
            up = session.executor.resources().get("cores.up")
        except ExecutorError:
            return None
        return None if up is None else int(up)

    def times(self, session: Session, job: Job) -> dict[str, float]:
        """When each step of a job's life was."""
        return {e.name: e.timestamp for e in session.of(job) if e.name in _ORDER}

    def check_order(self, session: Session, job: Job) -> None:
        """The job's events are RFC 21's, in order, begin with submit, and end with one clean."""
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
        """The types of the job's fatal exceptions."""
        return [
            str(event.context.get("type"))
            for event in session.of(job)
            if event.name == "exception" and event.context.get("severity") == 0
        ]

    def check_end(self, session: Session, job: Job, kind: str) -> None:
        """The job's first fatal exception, which says why it ended, is of this type, and no other
        is. A queue may add what befell it on the way: Flux's shell says "start failed" (``exec``)
        of a task that a cancellation met while it was being started."""
        types = self.fatal(session, job)
        assert types[:1] == [kind], types
        assert types.count(kind) == 1, types
