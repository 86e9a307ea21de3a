"""The journal's job rows match its events, however the run ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import wait_until

import ensemble_core as ensemble
from ensemble_core.cli.options import KeptRun
from ensemble_core.config import load_text
from ensemble_core.engine.engine import Engine
from ensemble_core.journal.job_history import Attempts, StoredJobs
from ensemble_core.journal.job_rows import JobRow, JobRowWriter, layout_of, row_of
from ensemble_core.journal.reader import NAME, Journal
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.events import (
    Event,
    JobEvent,
    Observed,
    Resumed,
    Started,
    StopRequested,
)
from ensemble_core.plugin.discovery import discover

STUDY = """
jobs:
  - name: sim
    command: [sh, -c, 'echo E={T}5; echo E={T}7; echo u={T} {text}; test {T} != 2']
    parameters: {T: [1, 2, 3], text: [a, 7]}
    observe: {key-value: {fields: [E, u]}}
    result: {mean: mean.E}
    retry: {times: 1}
  - {name: plain, command: 'true', count: 3}
  - {name: never, command: 'true'}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: start, action: {name: submit, label: plain}}
  - {trigger: job-lost, name: sim, repetitions: 9, action: {name: log, message: lost}}
"""


def newest_attempts(attempts: Attempts) -> list[dict[str, Any]]:
    """Return the newest attempt of each job, with the core-hours of the failed ones before it."""
    newest: dict[tuple[str, int], dict[str, Any]] = {}
    for row in attempts.rows():
        before = newest.get((row["group"], row["index"]))
        if before is not None and before["outcome"] == "failed":
            row["core_hours"] += before["core_hours"]
        newest[row["group"], row["index"]] = row
    return list(newest.values())


def both(state: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the job rows of a run, and those computed from its events."""
    with KeptRun(str(state), "last") as kept:
        stored = kept.jobs()
        assert isinstance(stored, StoredJobs)
        events = Attempts(kept.journal, kept.loading)
        try:
            assert set(stored.names) == set(events.names)
            return list(stored.rows()), newest_attempts(events)
        finally:
            stored.close()
            events.close()


def test_job_rows_match_the_events(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(STUDY)
    run = ensemble.run(file, executor="local", state=tmp_path)
    stored, events = both(tmp_path)
    assert len(stored) == 9
    assert [row["attempts"] for row in stored] == [1, 1, 2, 2, 1, 1, 1, 1, 1]
    assert [row["outcome"] for row in stored[:3]] == ["success", "success", "failed"]
    assert [row.get("mean") for row in stored[:3]] == [16, 16, None]
    assert [row["last.E"] if "last.E" in row else row.get("E") for row in stored[:2]] == [17, 17]
    for one, other in zip(stored, events, strict=True):
        assert one.pop("core_hours") == pytest.approx(other.pop("core_hours"))
        assert one == other
    assert run.jobs().names[:6] == ("group", "index", "attempts", "T", "text", "outcome")


JUDGED = """
jobs:
  - name: a
    command: x
    count: 3
    observe: {key-value: {fields: [E]}}
    fail_if: max.E > 1
    result: {G: last.E}
rules: [{trigger: start, action: {name: submit, label: a}}]
"""


def test_a_job_that_ends_during_a_stop_has_the_outcome_and_the_result_of_the_resume(
    tmp_path: Path,
) -> None:
    """``fail_if`` and ``result`` are computed by the resume, after the job's last event."""
    registry = discover(())
    engine = Engine(load_text(JUDGED, registry))
    engine.state.table.over = []
    found = {}
    writer = JournalWriter(tmp_path / NAME)
    writer.describe({"tag": "run"})
    writer.store_file_version("e.yaml", JUDGED, ())
    writer.begin(1.0, {})

    def tell(event: Event) -> None:
        writer.append(event, engine.handle(event))

    def end(job: str, energy: float) -> None:
        tell(Observed(2.0, job=job, observer="key-value", values={"E": energy}))
        tell(JobEvent(3.0, job, "finish", {"status": 0}))
        tell(JobEvent(4.0, job, "clean"))

    tell(Started(1.0))
    for job in ("a.0", "a.1", "a.2"):
        for name in ("submit", "start"):
            tell(JobEvent(1.0, job, name))
    end("a.0", 5.0)
    tell(StopRequested(2.0, "stop", then="keep"))
    end("a.1", 5.0)
    end("a.2", 0.5)
    tell(Resumed(5.0))
    writer.stop(None)
    writer.close()
    for record in engine.state.table.over:
        row = row_of(record)
        found[row.number] = (row.outcome, row.cause, dict(row.result))
    assert found[1] == ("failed", "result", {})
    with Journal(tmp_path / NAME) as journal:
        jobs = Attempts(journal, lambda text: load_text(text.text, registry))
        for shown in jobs.rows():
            result = {"G": shown["G"]} if "G" in shown else {}
            assert (shown["outcome"], shown["cause"], result) == found.pop(shown["index"])
        jobs.close()
    assert not found


def row(**values: Any) -> JobRow:
    """Return the row of a job that printed these values."""
    times = (0.0, 0.5, 1.5, 0.1)
    return JobRow("sim", 0, 1, "success", 0, "exit", *times, {"T": 2}, {}, values)


def layouts(writer: JobRowWriter, rows: list[JobRow]) -> tuple[dict[Any, Any], list[Any]]:
    """Return the new layouts by number, and the layout number of each row."""
    made, _ = writer.statements(rows)
    new: list[Any] = [values for sql, values in made if "job_layouts" in sql]
    (written,) = (values for sql, values in made if "job_rows" in sql)
    return {number: layout for number, layout, _ in new}, list(written[2::5])


def test_rows_with_different_kinds_have_different_layouts() -> None:
    rows = [row(E=each) for each in (1, 1.5, 1 << 63, True, None, "a", 2, 2.5, -(1 << 70), False)]
    rows.append(row(F=1))
    new, numbers = layouts(JobRowWriter({}), rows)
    assert [new[number][-4:-2] for number in numbers] == [
        *("ii", "if", "if", "ib", "in", "is", "ii", "if", "if", "ib", "ii")
    ]
    assert numbers[-1] not in numbers[:-1], "of another name"


def test_only_unwritten_layouts_are_written_again() -> None:
    writer = JobRowWriter({layout_of(row(E=1)): 0})
    assert layouts(writer, [row(E=1)]) == ({}, [0])
    failed = layouts(writer, [row(E=1.5), row(E=1)])
    assert [*failed[0]] == [1]
    assert failed[1] == [1, 0]
    assert layouts(writer, [row(E=1.5), row(E=1)]) == failed
    writer.written()
    assert layouts(writer, [row(E=2.5), row(E=2)]) == ({}, [1, 0])


@pytest.mark.parametrize("said", ["a", "],[", '],["b"', "[],[],[]", '"'])
def test_rows_encoded_together_are_split_correctly(said: str) -> None:
    rows = [row(E=said, F=1.5), row(E=2), row(E=said)]
    (written,) = (v for sql, v in JobRowWriter({}).statements(rows)[0] if "job_rows" in sql)
    texts = [json.loads(str(text)) for text in written[4::5]]
    assert texts == [[*each[2:10], 2, *each.columns.values()] for each in rows]


SLOW = """
jobs:
  - {name: sim, command: "sh -c 'echo E={i}; while [ ! -e {cwd}/go ]; do sleep 0.05; done'",
     parameters: {i: [1, 2, 3, 4]}, observe: {key-value: {}}, result: {E: last.E}}
  - {name: quick, command: 'echo E=0', observe: {key-value: {}}}
rules:
  - {trigger: start, action: [{name: submit, label: quick}, {name: submit, label: sim}]}
"""


def test_active_jobs_are_in_the_table_and_no_row_is_lost_by_a_kill(tmp_path: Path) -> None:
    (tmp_path / "slow.yaml").write_text(SLOW)
    base = [sys.executable, "-m", "ensemble_core.cli"]
    options = ["--state", str(tmp_path / "state"), "-q"]
    begun = [*base, "run", "slow.yaml", "--executor", "local", "--slots", "3", "--tag", "t"]
    process = subprocess.Popen([*begun, *options], cwd=tmp_path)

    def outcomes() -> list[str]:
        try:
            return list(ensemble.open_run("t", state=tmp_path / "state").jobs().column("outcome"))
        except ensemble.EnsembleError:
            return []

    # In the file's order: the jobs of sim, one of which waits for a slot, and quick.
    wait_until(lambda: outcomes() == ["active"] * 4 + ["success"], timeout=150)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert outcomes() == ["active"] * 4 + ["success"]
    (tmp_path / "go").touch()
    subprocess.run([*base, "resume", "t", *options], cwd=tmp_path, check=True)
    stored, events = both(tmp_path / "state")
    assert [row["last.E"] for row in stored] == [1, 2, 3, 4, 0]
    assert [row.get("E") for row in stored] == [1, 2, 3, 4, None]
    for one, other in zip(stored, events, strict=True):
        assert one.pop("core_hours") == pytest.approx(other.pop("core_hours"))
        assert one == other
