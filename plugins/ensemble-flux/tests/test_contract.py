"""The contract of executors, on a real Flux instance: as its owner, and as a guest sees it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from ensemble_flux.executor import FluxExecutor

from ensemble_core import Executor, ExecutorError, Run
from ensemble_core.testing.executor import ExecutorContract, Session


@pytest.mark.usefixtures("instance")
class TestOwner(ExecutorContract):
    """With the journal of all jobs."""

    contains = False  # without cgroups, Flux signals a job's process groups

    def make_executor(self) -> Executor:
        return FluxExecutor(events="journal")


@pytest.mark.usefixtures("instance")
class TestGuest(ExecutorContract):
    """With the eventlog of each job."""

    contains = False

    def make_executor(self) -> Executor:
        return FluxExecutor(events="eventlogs")


@pytest.mark.usefixtures("instance")
def test_who_may_not_read_the_journal_is_a_guest_and_hears_flux_say_so_of_its_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection without the owner's role is treated as any other user's. Real jobs of guests
    need an instance that signs and runs them (flux-security), so here they are refused."""
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
