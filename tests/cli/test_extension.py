"""``ensemble resume --accept-changes`` runs what was added to a study, also after its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ensemble_testing import wait_until

import ensemble_core
from ensemble_core.cli.main import main

FILE = """
jobs:
  - name: sim
    command: "sh -c 'echo {T} >> {cwd}/ran; test $(grep -cx {T} {cwd}/ran) -gt {fails} && echo E={T}'"
    parameters: {T: [1, 2], fails: [0]}
    retry: {times: 1}
    observe: {key-value: {fields: [E]}}
    result: {E: last.E}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
results: {t: {of: sim, columns: {T: T, E: E}, order: T}}
"""


def ensemble(*args: str) -> Result:
    result = CliRunner().invoke(main, [*args])
    assert "Traceback" not in result.output
    return result


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))
    return tmp_path


def ran(folder: Path) -> list[str]:
    return sorted((folder / "ran").read_text().split())


def test_values_that_were_added_after_the_end_run_once_and_the_others_stay(folder: Path) -> None:
    (folder / "e.yaml").write_text(FILE)
    assert ensemble("run", "e.yaml", "--tag", "r", "--executor", "local").exit_code == 0
    (folder / "e.yaml").write_text(FILE.replace("T: [1, 2]", "T: [0.5, 1, 2, 2.5]"))
    done = ensemble("resume", "r", "--accept-changes")
    assert done.exit_code == 0, done.output
    assert "2 jobs (T=0.5, fails=0; T=2.5, fails=0): added to the earlier submit" in done.output
    assert ran(folder) == ["0.5", "1", "2", "2.5"]
    rows = ensemble_core.open_run("r").results("t")
    assert [row["E"] for row in rows] == [0.5, 1, 2, 2.5]
    assert ensemble("replay", "r").exit_code == 0
    again = ensemble("resume", "r", "--accept-changes")
    assert (again.exit_code, "has ended" in again.output) == (2, True)
    assert ran(folder) == ["0.5", "1", "2", "2.5"]


def test_failed_jobs_use_retries_that_were_added_after_the_end(folder: Path) -> None:
    (folder / "e.yaml").write_text(FILE.replace("fails: [0]", "fails: [3]"))
    assert ensemble("run", "e.yaml", "--tag", "r", "--executor", "local").exit_code == 1
    assert len(ran(folder)) == 4
    (folder / "e.yaml").write_text((folder / "e.yaml").read_text().replace("times: 1", "times: 9"))
    done = ensemble("resume", "r", "--accept-changes")
    assert done.exit_code == 0, done.output
    assert ran(folder) == ["1"] * 4 + ["2"] * 4
    assert ensemble("replay", "r").exit_code == 0


TABLES = """
jobs:
  - name: sim
    command: "sh -c 'echo {T} >> {cwd}/ran; echo E={T}; echo E=1{T} F={T}'"
    parameters: {T: [1, 2, 3]}
    observe: {key-value: {fields: [E, F]}}
    result: {E: last.E}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
"""
#: An earlier result gets a new meaning, a column becomes a result, and tables are added.
RESULTS = "result: {E: mean.E, m: max.E, late: last.F + 1, F: last.E}"
ADDED = """
results:
  each: {of: sim, columns: {T: T, E: E, F: F, late: late}, order: -T}
  by_T: {of: sim, by: [T], columns: {E: mean.E, n: n, worst: max.each.E}}
"""


def tables(run: str) -> list[object]:
    found = ensemble_core.open_run(run)
    return [found.results(name) for name in ("each", "by_T")]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_table_added_after_the_end_equals_that_of_a_file_that_had_it(
    folder: Path, steps: int
) -> None:
    whole = TABLES.replace("result: {E: last.E}", RESULTS) + ADDED
    (folder / "whole.yaml").write_text(whole)
    assert ensemble("run", "whole.yaml", "--tag", "whole", "--executor", "local").exit_code == 0
    (folder / "ran").unlink()
    (folder / "e.yaml").write_text(TABLES)
    assert ensemble("run", "e.yaml", "--tag", "r", "--executor", "local").exit_code == 0
    first = "results: {other: {of: sim, by: [T], columns: {x: mean.E}}}\n"
    more = TABLES.replace("last.E}", "max.E, q: min.E}") + first
    for text in [TABLES + first, more, whole][-steps:]:
        (folder / "e.yaml").write_text(text)
        done = ensemble("resume", "r", "--accept-changes")
        assert done.exit_code == 0, done.output
        assert "the changed file adds no jobs to run" in done.output
        assert "missing" not in done.output
    assert ran(folder) == ["1", "2", "3"]
    assert tables("r") == tables("whole")
    assert ensemble("replay", "r").exit_code == 0
    assert "ended, exit code 0" in ensemble("status", "r").output
    again = ensemble("resume", "r", "--accept-changes")
    assert (again.exit_code, "has ended" in again.output) == (2, True)


def test_table_added_to_a_stopped_run_has_the_jobs_before_and_after_it(folder: Path) -> None:
    text = TABLES.replace("rules:", "  - {name: wait, command: sleep 600}\nrules:")
    text += "  - {trigger: start, action: {name: submit, label: wait}}\n"
    (folder / "e.yaml").write_text(text)
    run = ensemble_core.run("e.yaml", executor="local", tag="r", wait=False)
    wait_until(lambda: run.metric("count.sim.done") == 3)
    run.stop()
    run.wait(120)
    text = text.replace("[1, 2, 3]", "[1, 2, 3, 4]").replace("result: {E: last.E}", RESULTS)
    (folder / "e.yaml").write_text(text + ADDED)
    run = ensemble_core.run(
        "e.yaml", executor="local", tag="r", or_resume=True, accept_changes=True, wait=False
    )
    wait_until(lambda: run.metric("count.sim.done") == 4)
    run.cancel("wait.0")
    run.wait(120)
    rows = ensemble_core.open_run("r").results("each")
    assert [(row["T"], row["E"], row["late"]) for row in rows] == [
        (4, 9, 5), (3, 8, 4), (2, 7, 3), (1, 6, 2),
    ]  # fmt: skip
    assert ensemble("replay", "r").exit_code == 0


def test_conditions_of_a_group_count_as_set_only_if_they_were_set(folder: Path) -> None:
    text = FILE.replace("fails: [0]}", "fails: [0]}\n    fail_if: last.E > 9")
    text = text.replace("{times: 1}", "{times: 1, when: last.E > 8}")
    text = text.replace("rules:", "  - {name: wait, command: sleep 600}\nrules:")
    text = text.replace(
        "label: sim}}", "label: sim}}\n  - {trigger: start, action: {name: submit, label: wait}}"
    )
    (folder / "e.yaml").write_text(text)
    run = ensemble_core.run("e.yaml", executor="local", tag="r", wait=False)
    wait_until(lambda: run.metric("count.sim.done") == 2)
    run.stop()
    run.wait(120)
    (folder / "e.yaml").write_text(text.replace("T: [1, 2]", "T: [1, 2, 3]"))
    run = ensemble_core.run(
        "e.yaml", executor="local", tag="r", or_resume=True, accept_changes=True, wait=False
    )
    wait_until(lambda: run.metric("count.sim.done") == 3)
    run.cancel("wait.0")
    run.wait(120)
    assert "what was set" not in ensemble("events", "r").output
    replayed = ensemble("replay", "r")
    assert replayed.exit_code == 0, replayed.output


def test_values_that_no_observer_had_read_are_said_to_be_missing(folder: Path) -> None:
    text = TABLES.replace("fields: [E, F]", "fields: [E]")
    (folder / "e.yaml").write_text(text)
    assert ensemble("run", "e.yaml", "--tag", "r", "--executor", "local").exit_code == 0
    changed = TABLES.replace("{E: last.E}", "{E: last.E, late: last.F}")
    (folder / "e.yaml").write_text(changed + ADDED.replace("F: F, ", ""))
    done = ensemble("resume", "r", "--accept-changes")
    assert done.exit_code == 0, done.output
    assert "the result 'late' of 'sim' has no value for 3 of 3 earlier jobs" in done.output


def test_change_of_an_ended_run_that_adds_no_job_is_explained(folder: Path) -> None:
    (folder / "e.yaml").write_text(FILE)
    assert ensemble("run", "e.yaml", "--tag", "r", "--executor", "local").exit_code == 0
    (folder / "e.yaml").write_text(
        FILE.replace("{T}", "{V}")
        .replace("T: [1, 2]", "V: [1, 2, 3]")
        .replace("columns: {T: T", "columns: {V: V")
        .replace("order: T", "order: V")
    )
    done = ensemble("resume", "r", "--accept-changes")
    assert "its parameters were T, fails, and are V, fails now" in done.output
    assert "ensemble submit RUN sim --set V=VALUE" in done.output
    assert ran(folder) == ["1", "2"]


def test_table_added_after_the_end_of_a_search_needs_no_executor(folder: Path) -> None:
    text = """
jobs:
  - {name: sim, command: "sh -c 'echo {x} >> {cwd}/ran; echo E={x}'", parameters: {x: 0},
     observe: {key-value: {fields: [E]}}, result: {E: last.E}}
generators:
  - {name: g, use: grid, group: sim, variables: {x: {values: [1, 2, 3]}}, objectives: {E: minimize}}
"""
    (folder / "e.yaml").write_text(text)
    assert ensemble("run", "e.yaml", "--tag", "r", "--executor", "local").exit_code == 0
    (folder / "e.yaml").write_text(
        text + "results: {t: {of: sim, by: [x], columns: {E: mean.E}}}\n"
    )
    done = ensemble("resume", "r", "--accept-changes")
    assert (done.exit_code, "the changed file adds no jobs to run" in done.output) == (0, True), (
        done.output
    )
    assert "executor local" not in done.output
    rows = ensemble_core.open_run("r").results("t")
    assert [(row["x"], row["E"]) for row in rows] == [(1, 1), (2, 2), (3, 3)]
    (folder / "e.yaml").write_text(text.replace("1, 2, 3", "1, 2, 3, 4"))
    done = ensemble("resume", "r", "--accept-changes")
    assert done.exit_code == 0, done.output
    assert ran(folder) == ["1", "2", "3", "4"]
    assert ensemble("replay", "r").exit_code == 0


def test_run_whose_rule_got_another_id_replays(folder: Path) -> None:
    rule = (
        "  - {id: old, trigger: job-done, name: sim, repetitions: unlimited,\n"
        "     action: {name: log, message: 'done {job}'}}\n"
    )
    text = FILE.replace("results:", f"{rule}results:")
    (folder / "e.yaml").write_text(text)
    assert ensemble("run", "e.yaml", "--tag", "r", "--executor", "local").exit_code == 0
    (folder / "e.yaml").write_text(
        text.replace("id: old", "id: new").replace("[1, 2]", "[1, 2, 3]")
    )
    done = ensemble("resume", "r", "--accept-changes")
    assert "done sim.2" in done.output
    replayed = ensemble("replay", "r")
    assert replayed.exit_code == 0, replayed.output
