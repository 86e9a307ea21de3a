"""Jobs of earlier runs that can be reused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ensemble_core.journal.reader import NAME
from ensemble_core.journal.reusable_jobs import EarlierJobs
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.decisions import Decision, Fail
from ensemble_core.model.events import Event, Identified, JobEvent, Resumed


@pytest.mark.parametrize("when", ["finish", "resume"])
def test_a_job_that_fail_if_lets_fail_is_not_reused(tmp_path: Path, when: str) -> None:
    """During a stop, ``fail_if`` is decided by the resume, after the job's last event."""
    fail = (Fail(job="a.0", condition="max.E > 0"),)
    rows: list[tuple[Event, tuple[Decision, ...]]] = [
        (Identified(1.0, {"a.0": ["first", "s"], "a.1": ["second", "s"]}), ()),
        *((JobEvent(1.0, job, "submit"), ()) for job in ("a.0", "a.1")),
        *((JobEvent(2.0, job, "start"), ()) for job in ("a.0", "a.1")),
        (JobEvent(3.0, "a.0", "finish", {"status": 0}), fail if when == "finish" else ()),
        (JobEvent(3.0, "a.1", "finish", {"status": 0}), ()),
        *((JobEvent(4.0, job, "clean"), ()) for job in ("a.0", "a.1")),
        (Resumed(5.0), fail if when == "resume" else ()),
    ]
    writer = JournalWriter(tmp_path / NAME)
    writer.describe({"tag": "run"})
    writer.begin(1.0, {})
    for event, decisions in rows:
        writer.append(event, decisions)
    writer.stop(None)
    writer.close()
    earlier = EarlierJobs()
    earlier.read(tmp_path)
    assert earlier.take("second") is not None
    assert earlier.take("first") is None
    earlier.close()
