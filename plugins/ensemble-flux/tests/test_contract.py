"""The contract of executors, on a real Flux instance: as its owner, and as a guest sees it."""

from __future__ import annotations

import pytest
from ensemble_flux.executor import FluxExecutor

from ensemble_core import Executor
from ensemble_core.testing.executor import ExecutorContract


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
