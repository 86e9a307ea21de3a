"""Identities of jobs: inputs are compared when jobs have ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ensemble_core.engine.job_record import JobRecord
from ensemble_core.model.events import Event, Identified
from ensemble_core.model.identity import Source
from ensemble_core.model.job_group import JobGroup
from ensemble_core.runtime import identities
from ensemble_core.runtime.identities import Identities, identify
from ensemble_core.runtime.input_files import FileDigests, Inputs


def test_a_job_that_ends_during_a_check_is_compared_with_files_as_they_are_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "_AT_ONCE", 1)
    file = tmp_path / "in"
    file.write_text("before")
    group = JobGroup(name="g", command=("x",), inputs=((str(file), "content"),), cwd=str(tmp_path))
    records = []
    for index in range(2):
        job = group.job(index, {})
        _, files = identify(job, group, Source.of(group), Inputs(), {})
        record = JobRecord(job=job, submitted=0.0, link=None, source=group)
        record.outcome, record.inputs = "success", identities._key(tuple(files.items()))
        records.append(record)
    unchanged: list[str] = []

    def put(events: Sequence[Event]) -> None:
        for event in events:
            assert isinstance(event, Identified)
            unchanged.extend(event.unchanged)
        if len(unchanged) == 1:  # the second job changes the file, and ends while this check runs
            file.write_text("after that")
            checked.ended(records[1])

    checked = Identities(put, lambda: 0.0, lambda: 0)
    checked.ended(records[0])
    checked.close(10)
    assert unchanged == ["g.0"]


def test_files_are_read_once_for_all_jobs_that_ended_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "_AT_ONCE", 2)
    (tmp_path / "in").write_text("text")
    group = JobGroup(name="g", command=("x",), inputs=(("in", "content"),), cwd=str(tmp_path))
    read: list[str] = []
    states = FileDigests.states

    def noted(self: FileDigests, path: str, by: str) -> dict[str, str]:
        read.append(path)
        return states(self, path, by)

    monkeypatch.setattr(FileDigests, "states", noted)
    unchanged: list[str] = []

    def put(events: Sequence[Event]) -> None:
        for event in events:
            assert isinstance(event, Identified)
            unchanged.extend(event.unchanged)

    checked = Identities(put, lambda: 0.0, lambda: 0)
    for index in range(7):
        job = group.job(index, {})
        _, files = identify(job, group, Source.of(group), Inputs(), {})
        record = JobRecord(job=job, submitted=0.0, link=None, source=group)
        record.outcome, record.inputs = "success", identities._key(tuple(files.items()))
        checked._ended.append((job, group, record.inputs))
    del read[:]
    checked._check()
    assert len(unchanged) == 7
    assert len(read) == 1


def test_identities_of_submitted_jobs_wait_for_the_next_events(tmp_path: Path) -> None:
    """A wakeup of the engine's thread, and a commit, cost more than the identities."""
    group = JobGroup(name="g", command=("x",), cwd=str(tmp_path))
    record = JobRecord(job=group.job(0, {}), submitted=0.0, link=None, source=group)
    at_once: list[Event] = []
    later: list[Event] = []
    known = Identities(at_once.extend, lambda: 0.0, lambda: 0, put_later=later.extend)
    known.expect([record.job], {record.job.id: record})
    known.identify([record.job])
    assert not at_once
    assert [list(event.jobs) for event in later if isinstance(event, Identified)] == [["g.0"]]
