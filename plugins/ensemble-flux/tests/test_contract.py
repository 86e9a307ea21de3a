"""Contract tests on a real Flux instance: as its owner, and as a guest."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from ensemble_flux import ensemble_executors
from ensemble_flux.executor import FluxExecutor
from ensemble_testing.executor import ExecutorContract, Session

from ensemble_core import Cause, Executor, ExecutorError, Run


class FluxContract(ExecutorContract):
    (plugin,) = ensemble_executors()
    contains = False  # without cgroups, Flux signals only process groups

    @pytest.fixture(autouse=True)
    def _request(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.request, self.folder = request, tmp_path

    def end_by_submit(self, session: Session) -> Cause:
        """Also run a job whose program does not exist."""
        job = session.job(*self.missing)
        session.run(job)
        assert session.cause(job) == super().end_by_submit(session)
        return session.cause(job)

    def end_by_node_failure(self, session: Session) -> Cause:
        """Kill a broker of a separate instance."""
        own = self.request.getfixturevalue("own_instance")
        with Session(self.make_executor(), self.folder / "own", self.timeout) as session:
            job = session.job(*self.lasting, nodes=4, tasks=4)
            session.submit(job)
            session.wait_for(job, "start")
            os.kill(own.brokers()[3], signal.SIGKILL)
            session.wait_clean(job)
            return session.cause(job)


@pytest.mark.usefixtures("instance")
class TestOwner(FluxContract):
    """With the journal of all jobs."""

    def make_executor(self) -> Executor:
        return FluxExecutor(events="journal")


@pytest.mark.usefixtures("instance")
class TestGuest(FluxContract):
    """With the eventlog of each job."""

    def make_executor(self) -> Executor:
        return FluxExecutor(events="eventlogs")


@pytest.mark.usefixtures("instance")
def test_a_connection_that_may_not_read_the_journal_is_a_guest_and_reports_fluxs_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the owner's role, a connection counts as another user's.

    Flux rejects its jobs here: guests' jobs need an instance with flux-security.
    """
    monkeypatch.setenv("FLUX_HANDLE_ROLEMASK", "0x2")
    descriptors = len(os.listdir("/proc/self/fd"))
    with Session(FluxExecutor(), tmp_path) as session:
        gauges = session.executor.resources()
        assert gauges["nodes.up"] == 4
        assert "queue.run" in gauges
        job = session.job("true")
        session.run(job)
        assert session.names(job) == ["submit", "exception", "clean"]
        assert "sign-type" in session.context(job, "exception")["note"]
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    with pytest.raises(ExecutorError) as caught:
        FluxExecutor(events="journal").open(Run("guest", tmp_path, time.time), lambda _events: None)
    assert "journal" in caught.value.what
    assert "owner" in str(caught.value.cause)
