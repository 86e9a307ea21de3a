"""Tests of ``ensemble report``: the file is complete and contains no secrets."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from click.testing import CliRunner, Result
from ensemble_dashboard.documents import schema
from ensemble_dashboard.report import page_of, report, write_report

import ensemble_core
from ensemble_core import EnsembleError
from ensemble_core.cli.commands.why import why
from ensemble_core.cli.toolkit import Inspection, KeptRun


def data_of(path: Path) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', path.read_text(), re.S)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.fixture(scope="module")
def page(state: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "study.html"
    write_report(None, "study", str(path))
    return path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(report, list(arguments), catch_exceptions=True)


def test_a_reports_documents_are_valid_by_the_schema(page: Path) -> None:
    assert list(jsonschema_rs.validator_for(schema()).iter_errors(data_of(page))) == []


def test_a_report_names_the_parameter_that_causes_failures(page: Path) -> None:
    (kind,) = data_of(page)["failures"]
    assert (kind["count"], kind["of"], kind["cause"], kind["exit_code"]) == (3, 12, "exit", 3)
    assert kind["parameters"] == [{"name": "T", "value": 2.3, "failed": 3, "total": 3}]
    assert kind["examples"][0]["line"] == "lost atoms at step 41"


def test_a_rule_that_never_fired_has_a_reason(page: Path) -> None:
    rules = {rule["id"]: rule for rule in data_of(page)["overview"]["rules"]}
    assert "'> 99' was false; the last value was" in rules["never"]["reason"]


def test_reasons_of_rules_are_those_of_ensemble_why(page: Path) -> None:
    found = CliRunner().invoke(why, ["study", "never", "--json"])
    assert data_of(page)["reasons"] == {"never": json.loads(found.output)["conclusion"]}


def test_a_report_contains_no_secrets(page: Path) -> None:
    text = page.read_text()
    assert "do-not-show" not in text
    assert str(os.getpid()) not in str(data_of(page)["overview"]["controller"])


def test_paths_of_the_home_folder_are_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    places = [
        "/home/ada/runs/x",
        "/home/adam/y",
        "cd /home/ada; x=/home/ada",
        "(/home/ada), /home/ada:",
    ]
    text = page_of({"a": places[0], "b": places[1], "c": places[2:]})
    assert '"cd ~; x=~","(~), ~:"' in text
    assert '"~/runs/x"' in text
    assert "/home/adam/y" in text


def test_output_of_a_job_cannot_end_the_element_with_the_data() -> None:
    text = page_of({"line": "</script><script>alert(1)</script>\u2028"})
    assert "alert(1)" in text
    assert "<script>alert(1)" not in text
    assert "\u2028" not in text


def test_logs_are_added_only_on_request(page: Path, state: Path, tmp_path: Path) -> None:
    assert data_of(page)["logs"] == {}
    path, *_ = write_report(None, "study", str(tmp_path / "logs.html"), with_logs=True)
    logs = data_of(path)["logs"]
    assert len(logs) == 3
    assert all("lost atoms" in each["stderr"]["text"] for each in logs.values())


def test_the_log_of_a_repeated_job_is_from_its_last_attempt(tmp_path: Path) -> None:
    study = {
        "jobs": [{"name": "a", "command": ["sh", "-c", "date +%N; exit 3"], "retry": {"times": 1}}],
        "rules": [{"trigger": "start", "action": {"name": "submit", "label": "a"}}],
    }
    run = ensemble_core.run(study, executor="local", tag="again", state=str(tmp_path), wait=True)
    assert run.folder is not None
    last = (run.folder / "output" / "a.0-1.out").read_text()
    data = data_of(
        write_report(str(tmp_path), "again", str(tmp_path / "a.html"), with_logs=True)[0]
    )
    assert data["failures"][0]["examples"][0]["line"] == last.strip()
    assert data["logs"]["a.0-1"]["stdout"]["text"] == last
    (group,) = data["overview"]["groups"]
    assert (group["submitted"], group["repeated"], group["failed"], group["lost"]) == (2, 1, 2, 1)


def test_cancelled_attempts_that_ran_again_hide_no_failed_job(tmp_path: Path) -> None:
    study = {
        "jobs": [
            {
                "name": "a",
                "command": ["sh", "-c", "test {x} = 1 && exit 3; test {attempt} = 1 || sleep 60"],
                "parameters": {"x": [1, 2]},
            }
        ],
        "rules": [
            {"trigger": "start", "action": {"name": "submit", "label": "a"}},
            {
                "trigger": "job-start",
                "name": "a",
                "when": "x == 2 and attempt == 0",
                "action": {"name": "cancel"},
            },
            {"trigger": "job-cancel", "name": "a", "action": {"name": "retry"}},
        ],
    }
    ensemble_core.run(study, executor="local", tag="t", state=str(tmp_path), wait=True)
    data = data_of(write_report(str(tmp_path), "t", str(tmp_path / "t.html"))[0])
    (group,) = data["overview"]["groups"]
    assert (group["success"], group["cancelled"], group["failed"], group["lost"]) == (1, 1, 1, 1)
    study["rules"].pop()
    ensemble_core.run(study, executor="local", tag="u", state=str(tmp_path), wait=True)
    data = data_of(write_report(str(tmp_path), "u", str(tmp_path / "u.html"))[0])
    (group,) = data["overview"]["groups"]
    assert (group["success"], group["cancelled"], group["failed"], group["lost"]) == (0, 1, 1, 1)


def test_a_damaged_run_is_reported_as_far_as_it_is_readable(state: Path, tmp_path: Path) -> None:
    shutil.copytree(state / "runs" / "study", tmp_path / "runs" / "damaged")
    with sqlite3.connect(tmp_path / "runs" / "damaged" / "journal.db") as journal:
        last = journal.execute("SELECT max(first) FROM event_lists").fetchone()[0]
        journal.execute("UPDATE event_lists SET list = 'x' WHERE first = ?", (last,))
    found = call("damaged", "--state", str(tmp_path), "-o", str(tmp_path / "d.html"))
    assert found.exit_code == 0
    overview = data_of(tmp_path / "d.html")["overview"]
    assert "damaged" in overview["problem"]
    assert overview["groups"][0]["name"] == "sim"


def test_a_folder_as_output_is_rejected(state: Path, tmp_path: Path) -> None:
    found = call("study", "-o", str(tmp_path))
    assert isinstance(found.exception, EnsembleError)
    assert found.exception.exit_code == 2


def test_an_output_that_cannot_be_written_is_an_error(state: Path, tmp_path: Path) -> None:
    with pytest.raises(EnsembleError, match="cannot write the report") as raised:
        write_report(None, "study", str(tmp_path / "none" / "x.html"))
    assert f"the folder {tmp_path / 'none'} does not exist" in (raised.value.cause or "")
    assert raised.value.exit_code == 2


def test_a_deleted_log_is_reported_as_missing(state: Path, tmp_path: Path) -> None:
    shutil.copytree(state / "runs" / "study", tmp_path / "runs" / "study")
    with Inspection(KeptRun(str(tmp_path), "study", salvage=True)) as inspection:
        (state / "runs" / "study" / "output" / "sim.0.out").rename(tmp_path / "away")
        try:
            assert "No such file" in inspection.log("sim.0")["problem"]
        finally:
            (tmp_path / "away").rename(state / "runs" / "study" / "output" / "sim.0.out")


def test_a_log_that_is_a_symbolic_link_is_not_read(state: Path, tmp_path: Path) -> None:
    log = state / "runs" / "study" / "output" / "sim.1.out"
    log.rename(tmp_path / "kept")
    log.symlink_to("/etc/hostname")
    try:
        with Inspection(KeptRun(None, "study", salvage=True)) as inspection:
            assert inspection.log("sim.1")["text"] == ""
    finally:
        log.unlink()
        (tmp_path / "kept").rename(log)


def test_a_line_of_1_gb_is_read_from_its_end(state: Path, tmp_path: Path) -> None:
    log = state / "runs" / "study" / "output" / "sim.0.out"
    log.rename(tmp_path / "kept")
    try:
        with log.open("wb") as file:
            file.truncate(10**9)
            file.seek(0, os.SEEK_END)
            file.write(b"x" * 100_000)
        with Inspection(KeptRun(None, "study", salvage=True)) as inspection:
            found = inspection.log("sim.0")
        assert (found["text"], found["size"]) == ("x" * 65_536, 10**9 + 100_000)
    finally:
        log.unlink()
        (tmp_path / "kept").rename(log)


def reported(state: Path, run: str) -> dict[str, Any]:
    """Return the data of a run's report, validated against the schema."""
    data = data_of(write_report(str(state), run, str(state / f"{run}.html"))[0])
    assert list(jsonschema_rs.validator_for(schema()).iter_errors(data)) == []
    return data


def test_active_runs_and_runs_with_a_killed_controller_are_reported(
    live: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    data = reported(tmp_path, "one")
    assert data["overview"]["state"] == "running"
    assert data["overview"]["until"] > data["overview"]["newest"]
    assert data["timeline"]["groups"]["slow"]["running"][-1] == pytest.approx(1)
    live.kill()
    live.wait()
    assert reported(tmp_path, "one")["overview"]["state"] == "interrupted"


def test_the_report_of_a_stopped_run_has_the_jobs_that_a_resume_resubmits(
    live: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    ensemble_core.open_run("one", state=tmp_path).stop()
    live.wait(150)
    data = reported(tmp_path, "one")
    assert data["overview"]["state"] == "stopped"
    names = data["jobs"]["names"]
    rows = [dict(zip(names, row, strict=True)) for row in data["jobs"]["rows"]]
    assert {row["group"]: row["outcome"] for row in rows} == {"slow": "active", "quick": "failed"}
    groups = {group["name"]: group for group in data["overview"]["groups"]}
    assert (groups["slow"]["waiting"], groups["slow"]["running"]) == (1, 0)
    assert data["overview"]["until"] == data["overview"]["newest"]


def test_the_report_of_a_large_run_lists_only_failed_jobs(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_dashboard.report.MOST_JOBS", 11)
    data = data_of(write_report(None, "study", str(tmp_path / "study.html"))[0])
    at = data["jobs"]["names"].index("outcome")
    assert [row[at] for row in data["jobs"]["rows"]] == ["failed"] * 3
    assert "This run has 12 jobs. This report lists 3 that failed" in data["left_out"]
    assert data["overview"]["groups"][0]["submitted"] == 12


def test_a_run_without_jobs_is_reported(tmp_path: Path) -> None:
    rule = {"trigger": "job-fail", "name": "a", "action": {"name": "submit", "label": "a"}}
    study = {"jobs": [{"name": "a", "command": "true"}], "rules": [rule]}
    ensemble_core.run(
        study, executor="local", tag="empty", state=str(tmp_path), allow_idle=True, wait=True
    )
    path, *_ = write_report(str(tmp_path), "empty", str(tmp_path / "empty.html"))
    data = data_of(path)
    assert (data["jobs"]["total"], data["failures"]) == (0, [])
    assert list(jsonschema_rs.validator_for(schema()).iter_errors(data)) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a run somebody else's")
def test_a_run_of_another_user_is_reported(state: Path, tmp_path: Path) -> None:
    shutil.copytree(state / "runs" / "study", tmp_path / "runs" / "theirs")
    for path in [tmp_path / "runs" / "theirs", *(tmp_path / "runs" / "theirs").iterdir()]:
        os.chown(path, 12345, 12345)
    path, *_ = write_report(str(tmp_path), "theirs", str(tmp_path / "theirs.html"))
    assert data_of(path)["jobs"]["total"] == 12


def test_a_report_is_written_where_a_link_points_and_into_a_pipe(tmp_path: Path) -> None:
    published = tmp_path / "published.html"
    published.write_text("old")
    (tmp_path / "latest.html").symlink_to(published)
    assert call("study", "-o", str(tmp_path / "latest.html")).exit_code == 0
    assert (tmp_path / "latest.html").is_symlink()
    assert "study" in published.read_text()
    pipe = tmp_path / "pipe.html"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(pipe.read_bytes)
        assert call("study", "-o", str(pipe)).exit_code == 0
        assert b'id="data"' in sent.result(60)
    assert pipe.is_fifo()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_report_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    full = tmp_path / "full.html"
    full.symlink_to("/dev/full")
    with pytest.raises(EnsembleError, match="cannot write the report") as raised:
        write_report(None, "study", str(full))
    assert raised.value.cause == "No space left on device"
    assert Path("/dev/full").is_char_device()
