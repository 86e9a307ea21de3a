"""The SQL views of a journal have the rows that Ensemble's own commands show."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import ensemble_core as ensemble
from ensemble_core.cli.options import KeptRun
from ensemble_core.journal.job_rows import FIELDS
from ensemble_core.journal.reader import NAME
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.events import JobEvent

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"
STUDY = """
jobs:
  - name: sim
    command: [sh, -c, 'echo E={T}5; echo u={T} {text}; test {T} != 2']
    parameters: {T: [1, 2, 3], text: [a, 7]}
    observe: {key-value: {fields: [E, u]}}
    result: {mean: mean.E}
    retry: {times: 1}
  - {name: plain, command: 'true', count: 3}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: start, action: {name: submit, label: plain}}
  - {trigger: job-fail, name: sim, repetitions: 9, action: {name: log, message: failed}}
"""


def query(journal: Path, sql: str) -> list[dict[str, Any]]:
    """Return the rows of a query, as a client without Ensemble's functions gets them."""
    with closing(sqlite3.connect(f"{journal.as_uri()}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(sql)]


def test_the_views_show_what_the_commands_show(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(STUDY)
    ensemble.run(file, executor="local", state=tmp_path)
    with KeptRun(str(tmp_path), "last") as kept:
        path = kept.journal.path
        shown = list(kept.jobs().rows())
        events = list(kept.journal.rows())
    rows = query(path, 'SELECT * FROM jobs ORDER BY "group" DESC, "index"')
    assert len(rows) == 9
    for row, job in zip(rows, shown, strict=True):
        for name in FIELDS:
            assert row[name] == pytest.approx(job[name]), name
        parameters, result, columns = (
            json.loads(row[name]) for name in ("parameters", "result", "columns")
        )
        assert {**columns, **parameters, **result}.items() <= job.items()
        assert set(parameters) == ({"T", "text"} if row["group"] == "sim" else set())
        assert set(result) == (
            {"mean"} if row["group"] == "sim" and row["outcome"] == "success" else set()
        )
    assert [row["index"] for row in query(path, "SELECT * FROM failures")] == [2, 3]
    found = query(path, "SELECT * FROM events ORDER BY seq")
    assert [(row["seq"], row["time"], row["job"], row["name"]) for row in found] == [
        (event.seq, event.time, event.job, event.name) for event in events
    ]
    fired = query(path, "SELECT rule, count(*) AS n FROM firings GROUP BY rule ORDER BY rule")
    assert fired == [{"rule": f"rule-{n}", "n": m} for n, m in ((1, 1), (2, 1), (3, 4))]


def test_values_keep_their_digits(tmp_path: Path) -> None:
    third, text = 1 / 3, 'say "hi", [a, b] and ü\\'
    study = {
        "jobs": [{
            "name": "sim",
            "command": ["echo", "E={T} {text}"],
            "parameters": {"T": [0.1 + 0.2, third, 2**53 - 1, 12345678901234567890123, -1e-300, 7],
                           "text": text},
            "observe": {"key-value": {"fields": ["E"]}},
            "result": {"same": "last.E", "twice": "2 * last.E"},
        }],
        "rules": [{"trigger": "start", "action": {"name": "submit", "label": "sim"}}],
    }  # fmt: skip
    run = ensemble.run(study, executor="local", state=tmp_path, keep=True)
    rows = query(run.folder / NAME, 'SELECT * FROM jobs ORDER BY "index"')
    for row, job in zip(rows, run.jobs(), strict=True):
        parameters, result, columns = (
            json.loads(row[name]) for name in ("parameters", "result", "columns")
        )
        assert parameters == {"T": job["T"], "text": text}
        assert result == {"same": job["same"], "twice": job["twice"]}
        assert columns == {"E": job["E"]}
        assert float(parameters["T"]) == columns["E"] == result["same"] == result["twice"] / 2


def test_a_job_that_printed_nan_hides_no_other_job(tmp_path: Path) -> None:
    prints = "printf 'E=%s\\nu=1\\n' {T}"
    study = {
        "jobs": [{
            "name": "sim",
            "command": ["sh", "-c", prints],
            "parameters": {"T": ["nan", "inf", "-inf", "2"], "of": "NaN or Infinity"},
            "observe": {"key-value": {"fields": ["E", "u"]}},
            "result": {"mean": "mean.u"},
            "environment": {"OF": "{of}"},
        }],
        "rules": [{"trigger": "start", "action": {"name": "submit", "label": "sim"}}],
    }  # fmt: skip
    run = ensemble.run(study, executor="local", state=tmp_path, keep=True)
    rows = query(run.folder / NAME, 'SELECT * FROM jobs ORDER BY "index"')
    assert [json.loads(row["columns"]) for row in rows] == [
        {"E": value, "u": 1} for value in (None, None, None, 2)
    ]
    assert [json.loads(row["result"]) for row in rows] == [{"mean": 1}] * 4
    assert {json.loads(row["parameters"])["of"] for row in rows} == {"NaN or Infinity"}


def test_a_value_that_sql_lacks_is_null_and_hides_no_other_event(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / NAME)
    writer.begin(1.0, {})
    writer.append(JobEvent(1.0, "a.0", "note", {"x": float("nan"), "y": float("-inf")}), [])
    writer.append(JobEvent(1.0, "a.0", "note", {"x": "not NaN", "y": [float("nan")]}), [])
    writer.append(JobEvent(2.0, "b.0", "note", {"x": 1.5}, ours=False), [])
    writer.stop(None)
    writer.close()
    rows = query(tmp_path / NAME, "SELECT type, json_extract(data, '$.x') AS x FROM events")
    texts = {"type": "job", "x": "not NaN"}
    assert rows == [{"type": "job", "x": None}, texts, {"type": "foreign-job", "x": 1.5}]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run the file of the page; return the environment for its snippets."""
    folder = tmp_path_factory.mktemp("sql")
    (file,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    (folder / "melt.yaml").write_text(file)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "ENSEMBLE_STATE": str(folder / "state"), "PATH": path}
    command = [sys.executable, "-m", "ensemble_core.cli", "run", "--executor", "local"]
    done = subprocess.run(
        [*command, folder / "melt.yaml"], env=env, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 1, "one job fails"
    return env


def snippets(language: str) -> list[str]:
    return re.findall(
        rf"<!-- run by [^\n]*\n```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.S
    )


def test_the_queries_of_the_page_have_rows(followed: dict[str, str]) -> None:
    (journal,) = Path(followed["ENSEMBLE_STATE"]).glob(f"runs/*/{NAME}")
    waits, failed, rules, values = (query(journal, each) for each in snippets("sql"))
    assert [(row["group"], row["jobs"]) for row in waits] == [("melt", 3)]
    assert waits[0]["time"] > 0
    assert failed == [{"cause": "exit", "exit_code": 1, "jobs": 1}]
    assert [(row["rule"], row["firings"]) for row in rules] == [("rule-1", 1), ("rule-2", 2)]
    assert [row["E"] for row in values] == [1.5]


@pytest.mark.skipif(not shutil.which("sqlite3"), reason="sqlite3 is not on the PATH")
def test_the_shell_commands_of_the_page_print_its_table(followed: dict[str, str]) -> None:
    (shown,) = re.findall(r"```text\n(index.*?)```", PAGE.read_text("utf-8"), re.S)
    (commands,) = snippets("sh")
    done = subprocess.run(
        ["bash", "-ec", commands], env=followed, capture_output=True, text=True, timeout=100
    )
    assert done.stdout.splitlines() == shown.splitlines(), done.stderr


def test_the_python_snippets_of_the_page_run(followed: dict[str, str]) -> None:
    pytest.importorskip("pandas")
    pandas, duckdb = snippets("python")
    code = pandas + (duckdb if find_spec("duckdb") else "")
    done = subprocess.run(
        [sys.executable, "-c", code], env=followed, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^(\d) +(\S+)$", done.stdout, re.M)
    assert shown == [("1", "1.5"), ("2", "2.5"), ("3", "NaN")]


def test_the_schema_fits_in_the_first_page(tmp_path: Path) -> None:
    """Otherwise, a truncated journal could lose the places of all its tables."""
    writer = JournalWriter(tmp_path / NAME)
    writer.begin(1.0, {})
    writer.close()
    leaf = 13
    assert (tmp_path / NAME).read_bytes()[100] == leaf
