"""Inspection of a journal: events of jobs, firings of rules, and statistics."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ensemble_core as ensemble
from ensemble_core import JobEvent
from ensemble_core.cli.options import KeptRun
from ensemble_core.config import load_text
from ensemble_core.engine.engine import Engine
from ensemble_core.errors import UsageError
from ensemble_core.journal.job_history import StoredJobs
from ensemble_core.journal.job_rows import row_of
from ensemble_core.journal.reader import NAME
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.events import Event, Resources, Started
from ensemble_core.plugin.discovery import discover
from ensemble_core.session import charts, failure_kinds
from ensemble_core.session.charts import Capacity, running_and_waiting_by_events
from ensemble_core.session.failure_kinds import suspects
from ensemble_core.session.inspection import Inspection
from ensemble_core.session.jobs_in_memory import JobColumns
from ensemble_core.session.kept_run import versions

STUDY: dict[str, Any] = {
    "jobs": [
        {
            "name": "sim",
            "command": ["sh", "-c", "echo E={T}; test {T} != 2"],
            "parameters": {"T": [1, 2, 3]},
            "observe": {"key-value": {"fields": ["E"]}},
            "retry": {"times": 1},
        },
        {"name": "later", "command": "true", "count": 40},
    ],
    "rules": [
        {"trigger": "start", "action": {"name": "submit", "label": "sim"}},
        {
            "id": "each",
            "trigger": "job-success",
            "name": "sim",
            "repetitions": 2,
            "action": {"name": "submit", "label": "later"},
        },
    ],
}


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    ensemble.run(STUDY, executor="local", state=folder, tag="study", wait=True)
    return folder


@pytest.fixture
def inspected(state: Path) -> Iterator[Inspection]:
    with Inspection(KeptRun(str(state), "study", salvage=True)) as found:
        yield found


def table_is_read(inspected: Inspection) -> bool:
    return inspected._columns is not None


def events_of(inspected: Inspection, name: str) -> list[int]:
    """Return the numbers of a job's events among all events of the run."""
    rows = inspected._kept.journal.rows()
    return [row.seq for row in rows if row.job in (name, f"{name}-1") and row.type != "observed"]


@pytest.mark.parametrize("name", ["sim.0", "sim.1", "later.0", "later.39"])
def test_a_job_has_all_its_events_and_attempts(inspected: Inspection, name: str) -> None:
    group, _, index = name.partition(".")
    job = inspected.job(group, int(index))
    assert [each["seq"] for each in job["events"]] == events_of(inspected, name)
    assert [each["id"] for each in job["attempts"]] == [name, f"{name}-1"][: job["row"]["attempts"]]
    assert job["row"] == inspected._jobs().find(group, int(index))
    assert job["events"][-1]["name"] == "clean"


def test_events_after_a_jobs_end_are_not_read(
    inspected: Inspection, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def nothing(until: int, holding: str) -> Iterator[object]:
        asked.append(until)
        return iter(())

    monkeypatch.setattr(inspected._kept.journal, "rows_backwards", nothing)
    inspected.job("sim", 0)
    assert asked == [events_of(inspected, "sim.0")[-1]]


def test_a_journal_without_rows_of_jobs_is_damaged_and_no_job_is_denied(
    state: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "study"
    folder.mkdir(parents=True)
    for name in ("journal.db", "performed"):
        (folder / name).write_bytes((state / "runs" / "study" / name).read_bytes())
    with sqlite3.connect(folder / "journal.db") as connection:
        connection.executescript("DROP TABLE job_rows; DROP TABLE job_layouts;")
    with Inspection(KeptRun(str(tmp_path), "study", salvage=True)) as found:
        with pytest.raises(UsageError, match="damaged") as caught:
            found.job("sim", 1)
        assert caught.value.code == "corrupt"


@pytest.mark.parametrize(("offset", "limit"), [(0, 5), (2, 30), (80, 100), (90, 10)])
def test_a_first_page_of_jobs_is_that_of_the_whole_table(
    inspected: Inspection, offset: int, limit: int
) -> None:
    first = inspected.jobs(offset=offset, limit=limit)
    assert not table_is_read(inspected)
    inspected.jobs(sort="index")
    assert table_is_read(inspected)
    assert first == inspected.jobs(offset=offset, limit=limit)


def test_all_firings_and_values_are_found_by_index(inspected: Inspection) -> None:
    journal = inspected._kept.journal
    rows = list(journal.rows(plain=True))
    fired: list[int] = [
        row.seq
        for row in rows
        for each in row.decisions or ()
        if each["type"] == "fired"  # type: ignore[index]
    ]
    assert [each["seq"] for each in inspected.firings()] == fired
    observed = [row.seq for row in rows if row.type == "observed"]
    found = journal.rows_of_kind("observed", 0, inspected.seq)
    assert [row.seq for row in found if row.type == "observed"] == observed
    after = journal.rows_of_kind("observed", observed[0], inspected.seq)
    assert [row.seq for row in after if row.type == "observed"] == observed[1:]
    (plan,) = journal._connection.execute(
        "EXPLAIN QUERY PLAN SELECT list FROM event_lists WHERE instr(list, '\"observed\"') AND first > 1"
    )
    assert "observed_events" in plan[3]


def test_firings_of_the_most_frequent_rule_are_thinned_out(
    inspected: Inspection, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = inspected.firings()
    often = max(everything, key=lambda each: each["count"])["rule"]
    monkeypatch.setattr(charts, "_FIRINGS", len(everything) - 1)
    kept = Inspection(inspected._kept).firings()
    assert len(kept) < len(everything)
    assert {each["rule"] for each in kept} == {each["rule"] for each in everything}
    assert [each["count"] for each in kept if each["rule"] == often] == [1]
    monkeypatch.setattr(charts, "_FIRINGS", 1)
    assert len(Inspection(inspected._kept).firings()) == 1


def test_the_timeline_sums_to_running_and_waiting_times(inspected: Inspection) -> None:
    found = inspected.timeline(50)
    jobs = inspected.jobs()
    rows = [dict(zip(jobs["names"], row, strict=True)) for row in jobs["rows"]]
    assert any(row["attempts"] > 1 for row in rows)
    for group, parts in found["groups"].items():
        own = [row for row in rows if row["group"] == group]
        ran = 3600 * sum(row["core_hours"] for row in own)  # of all attempts, on one core each
        assert sum(parts["running"]) * found["width"] == pytest.approx(ran, abs=1e-4)
        if all(row["attempts"] == 1 for row in own):
            waited = sum(row["started"] - row["submitted"] for row in own)
            assert sum(parts["waiting"]) * found["width"] == pytest.approx(waited, abs=1e-4)
        assert min(parts["running"]) >= 0


@pytest.mark.parametrize(
    ("life", "running", "waiting"),
    [
        # The numbers of jobs in each second, for ten seconds.
        ("submit 1, start 3, finish 6", "0001110000", "0110000000"),
        ("submit 1, start 3, suspend 5, unsuspend 8", "0001100011", "0110000000"),
        ("submit 0, start 1, suspend 2, finish 5, clean 6", "0100000000", "1000000000"),
        ("submit 0, start 1, requeue 3, start 7, finish 8", "0110000100", "1001111000"),
        ("submit 0, start 1, suspend 3, requeue 5", "0110000000", "1000011111"),
        ("submit 2, clean 5", "0000000000", "0011100000"),
        ("submit 1, start 2, finish 4, clean 4, submit 6, start 7", "0011000111", "0100001000"),
    ],
)
def test_the_timeline_shows_when_a_job_ran_and_waited(
    life: str, running: str, waiting: str
) -> None:
    words = [each.split() for each in life.split(", ")]
    events = [("sim.0-1", name, 100.0 + int(second)) for name, second in words]
    (found,) = running_and_waiting_by_events(events, 100.0, 110.0, 10)["groups"].values()
    assert "".join(f"{each:.0f}" for each in found["running"]) == running
    assert "".join(f"{each:.0f}" for each in found["waiting"]) == waiting


@pytest.mark.parametrize(
    ("fails", "named"),
    [
        # 31 of 33 failed at one of 606 values, and some others by chance.
        (lambda at: at // 33 == 260 and at % 33 not in (5, 17), [("T", 260, 31, 33)]),
        (lambda at: at % 541 == 7, []),
        (lambda at: at % 33 == 4, [("s", 4, 606, 606)]),
        (lambda at: True, []),
    ],
)
def test_values_with_significantly_more_failures_are_named(
    fails: Any, named: list[tuple[str, int, int, int]]
) -> None:
    jobs = range(606 * 33)
    parameters = {"T": [at // 33 for at in jobs], "s": [at % 33 for at in jobs]}
    found = suspects(parameters, [at for at in jobs if fails(at)])
    assert [tuple(each.values()) for each in found] == named


def test_two_values_that_fail_only_together_are_named_together() -> None:
    jobs = [(T, L) for T in range(10) for L in range(10) for _ in range(20)]
    failed = [at for at, (T, L) in enumerate(jobs) if (T, L) == (3, 7) or at % 500 == 0]
    columns = {"T": [T for T, _ in jobs], "L": [L for _, L in jobs]}
    found = suspects(columns, failed)
    assert found[0] == {"name": "T", "value": 3, "with": {"L": 7}, "failed": 20, "total": 20}
    # All jobs at T = 3 fail, at any L.
    failed = [at for at, (T, _) in enumerate(jobs) if T == 3]
    assert suspects(columns, failed) == [{"name": "T", "value": 3, "failed": 200, "total": 200}]


def test_random_failures_name_no_value() -> None:
    jobs = range(606 * 33)
    parameters = {"T": [at // 33 for at in jobs], "s": [at % 33 for at in jobs]}
    names = [
        each["name"]
        for seed in range(20)
        for each in suspects(parameters, sorted(random.Random(seed).sample(jobs, 37)))
    ]
    assert len(names) <= 4


def test_each_job_of_a_long_list_of_events_is_found(
    inspected: Inspection, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [inspected.job("later", index) for index in range(80)]
    monkeypatch.setattr("ensemble_core.journal.reader._LONG", 0)
    assert [inspected.job("later", index) for index in range(80)] == before


def test_the_table_of_jobs_of_a_live_run_is_updated_without_reading_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, later = STUDY["jobs"]
    slower = {**first, "command": ["sh", "-c", "sleep 0.1; echo E={T}; test {T} != 2"]}
    study = {**STUDY, "jobs": [slower, {**later, "count": 12, "command": "sleep 0.05"}]}
    updated: list[bool] = []
    update = JobColumns.update

    def noted(columns: JobColumns, jobs: StoredJobs) -> bool:
        updated.append(update(columns, jobs))
        return updated[-1]

    monkeypatch.setattr(JobColumns, "update", noted)
    run = ensemble.run(study, executor="local", options={"slots": 2}, state=tmp_path, wait=False)
    compared = set()
    with run.inspect() as watched:
        while run.state == "running":
            with run.inspect() as fresh:
                fresh.refresh()
                watched.refresh()
                jobs, again = watched.jobs(), fresh.jobs()
                # Both read the journal up to the same event.
                if fresh.seq == watched.seq and not fresh.refresh():
                    assert jobs == again
                    compared.add(fresh.seq)
        watched.refresh()
        jobs = watched.jobs()
        with run.inspect() as fresh:
            assert jobs == fresh.jobs()
    assert len(compared) > 1
    assert updated.count(True) > 1
    outcome = jobs["names"].index("outcome")
    assert [row[outcome] for row in jobs["rows"]].count("failed") == 1
    assert jobs["total"] == 27


FILE = """
jobs:
  - {name: sim, command: "run {T}", parameters: {T: [1, 2, 3, 4, 5, 6]}}
  - {name: slow, command: "wait {n}", parameters: {n: [1, 2, 3]}, at_once: 1}
rules:
  - {trigger: start, action: [{name: submit, label: sim}, {name: submit, label: slow}]}
"""


def written(state: Path, events: Iterable[Event], ended: float | None = None) -> Inspection:
    """Return an inspection of a run with these events, written as by a controller."""
    registry = discover()
    folder = state / "runs" / "kept"
    folder.mkdir(parents=True)
    writer = JournalWriter(folder / NAME)
    about = {"tag": "kept", "shared": False, "cwd": ".", "executor": {"name": "local"}}
    writer.describe(about)
    writer.store_file_version("study.yaml", FILE, ())
    writer.perform = lambda _: None
    writer.begin(0.0, versions(registry))
    engine = Engine(load_text(FILE, registry, file="study.yaml"))
    over = engine.state.table.over = []
    for event in events:
        decisions = engine.handle(event)
        writer.append(event, decisions, (), [row_of(record) for record in over])
        over.clear()
    if ended is None:
        writer.stop(None)
    else:
        writer.end(ended, {"over": True, "exit_code": 0, "reason": "over"})
    writer.close()
    return Inspection(KeptRun(str(state), "kept", salvage=True))


def failed(index: int, now: float, **context: Any) -> list[Event]:
    """Return the events of a failing job."""
    name = f"sim.{index}"
    return [
        JobEvent(now, name, "submit"),
        JobEvent(now, name, "start", context),
        JobEvent(now + 1, name, "finish", {"status": 256}),
        JobEvent(now + 1, name, "clean"),
    ]


def test_a_run_without_an_event_is_empty_and_not_damaged(tmp_path: Path) -> None:
    with written(tmp_path, ()) as found:
        assert (found.problem, found.seq) == ("", 0)
        assert (found.failures(), found.jobs()["total"]) == ([], 0)


def test_a_run_whose_events_are_all_damaged_has_no_jobs_and_says_so(tmp_path: Path) -> None:
    written(tmp_path, [Started(1.0, {}), *failed(0, 2.0)]).__exit__()
    with sqlite3.connect(tmp_path / "runs" / "kept" / NAME) as journal:
        journal.execute("UPDATE event_lists SET list = 'x'")
        journal.executescript("DROP TABLE job_rows; DROP TABLE job_layouts;")
    with Inspection(KeptRun(str(tmp_path), "kept", salvage=True)) as found:
        assert found.jobs()["total"] == 0
        assert found.failures() == []
        assert "damaged" in found.problem


def test_the_newest_time_is_not_always_that_of_the_last_event(tmp_path: Path) -> None:
    events = [Started(1.0, {}), *failed(0, 9.0), *failed(1, 2.0)]
    with written(tmp_path, events, ended=11.0) as found:
        assert found.overview()["newest"] == 10.0


def test_held_jobs_are_counted_apart_from_other_waiting_ones(tmp_path: Path) -> None:
    with written(tmp_path, [Started(1.0, {})]) as found:
        groups = {group["name"]: group for group in found.overview()["groups"]}
        assert found.jobs(limit=1)["total"] == found.jobs()["total"] == 9
    assert [(groups[name]["waiting"], groups[name]["held"]) for name in groups] == [(6, 0), (3, 2)]


def test_failures_count_last_lines_and_nodes_whatever_numbers_lines_have(tmp_path: Path) -> None:
    events: list[Event] = [Started(1.0, {})]
    for index, (line, host) in enumerate(
        [("lost 3 atoms", "n1"), ("lost 41 atoms", "n1"), ("no licence", "n2"), ("", "n1")]
    ):
        log = tmp_path / f"{index}.err"
        log.write_text(f"begin\n{line}\n" if line else "")
        events += failed(index, 2.0, host=host, stderr=str(log))
    with written(tmp_path, events) as found:
        (kind,) = found.failures()
    assert (kind["count"], kind["looked"]) == (4, 4)
    assert kind["lines"] == [
        {"line": "lost 3 atoms", "count": 2},
        {"line": "no licence", "count": 1},
        {"line": "", "count": 1},
    ]
    assert kind["nodes"] == [{"node": "n1", "count": 3}, {"node": "n2", "count": 1}]


def test_examples_of_many_failures_are_from_all_parts_of_the_run() -> None:
    assert failure_kinds._sample(range(7)) == list(range(7))
    chosen = failure_kinds._sample(range(100_000))
    assert len(chosen) == len(set(chosen)) == 50
    looked = chosen[: failure_kinds.LOOKED]
    assert {at // 25_000 for at in looked} == {0, 1, 2, 3}
    # Jobs alternate between nodes: a sample at a fixed interval would see only one node.
    assert len({at % 50 for at in looked}) > 10
    later = failure_kinds._sample(range(110_000))[: failure_kinds.LOOKED]
    assert len({*looked} & {*later}) > 10


def test_the_node_of_each_job_is_that_of_its_newest_attempt(tmp_path: Path) -> None:
    events = [Started(1.0, {}), *failed(0, 2.0, host="n1"), *failed(1, 2.0)]
    events += [JobEvent(3.0, "sim.2", "submit"), JobEvent(3.0, "sim.2", "alloc", {"nodes": [4, 5]})]
    with written(tmp_path, events) as found:
        assert found.nodes() == {"sim.0": "n1", "sim.2": "4,5"}


def test_capacity_counts_each_value_until_its_next_report(tmp_path: Path) -> None:
    hour = 3600.0
    events = [
        Started(0.0, {"cores.up": 4.0, "cores.free": 4.0, "nodes.up": 1.0}),
        Resources(1 * hour, {"cores.free": 1.0}),
        Resources(3 * hour, {"cores.up": 8.0, "cores.free": 5.0}),
        JobEvent(4 * hour, "sim.0", "submit"),
    ]
    with written(tmp_path, events, ended=4 * hour) as found:
        # 4 free for an hour, 1 for two, 5 for one. Free nodes were not reported.
        assert found.capacity() == {"cores": {"up": 20.0, "free": 11.0}}
        assert found.capacity() == {"cores": {"up": 20.0, "free": 11.0}}


def test_capacity_leaves_out_times_without_a_controller() -> None:
    found = Capacity()
    found.report(0.0, {"gpus.up": 2.0, "gpus.free": 1.0})
    found.pause(3600.0)
    assert found.until(9 * 3600.0) == {"gpus": {"up": 2.0, "free": 1.0}}
    found.report(10 * 3600.0, {"gpus.up": 2.0, "gpus.free": 0.0})
    found.pause(None)  # killed: its last report is its last known time
    assert found.until(99 * 3600.0) == {"gpus": {"up": 2.0, "free": 1.0}}


def test_the_first_examples_of_failures_have_the_most_frequent_line() -> None:
    lines = ["node failure", "overflow at step 3", "", "overflow at step 41"]
    examples = [{"id": f"a.{n}", "line": line, "node": ""} for n, line in enumerate(lines)]
    kind: dict[str, Any] = {"examples": examples}
    failure_kinds.count_ends(kind)
    assert [each["id"] for each in kind["examples"]] == ["a.1", "a.3", "a.0", "a.2"]


def test_a_generators_table_says_which_points_violate_no_constraint(tmp_path: Path) -> None:
    study = {
        "jobs": [
            {
                "name": "sim",
                "command": "echo E={x}",
                "observe": {"key-value": {"fields": ["E"]}},
                "result": {"E": "last.E"},
            }
        ],
        "generators": [
            {
                "name": "search",
                "use": "grid",
                "group": "sim",
                "variables": {"x": {"from": 1, "to": 4, "step": 1}},
                "objectives": {"E": "minimize"},
                "constraints": {"E": "> 2"},
            }
        ],
    }
    ensemble.run(study, executor="local", state=tmp_path, tag="t")
    with KeptRun(str(tmp_path), "t") as kept:
        (table,) = Inspection(kept).tables()
    assert [row[0] for row in table["rows"]] == [2, 3, 1, 0]
    assert table["feasible"] == [2, 3]
