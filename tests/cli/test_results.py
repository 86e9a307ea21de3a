"""Tests of ``ensemble results``, ``jobs`` and ``metrics``: tables on the terminal and in files."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ensemble_core import run
from ensemble_core.cli import table_output
from ensemble_core.cli.main import main
from ensemble_core.display.text_style import format_time

_STUDY = """
jobs:
  - name: sim
    command: [sh, -c, 'echo E={T}5; echo E={T}7; test {T} != 2']
    parameters: {T: [1, 2, 3]}
    count: 2
    observe: {key-value: {fields: [E]}}
  - {name: after, command: 'true'}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: job-fail, name: sim, action: {name: log, message: 'failed'}, repetitions: 9}
results:
  each: {of: sim, by: [T], columns: {n: n, twice: 2 * T}}
  last: {of: sim, order: -index, top: 1, columns: {T: T}}
  share: {of: sim, by: [T], top: 10%, columns: {T: T}}
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    (folder / "study.yaml").write_text(_STUDY)
    state = str(folder / "state")
    done = CliRunner().invoke(main, ["run", "--state", state, str(folder / "study.yaml")])
    assert done.exit_code == 0, done.output
    return folder


def _said(kept: Path, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, [command, "last", "--state", str(kept / "state"), *arguments])


def _csv(result: Result) -> list[dict[str, str]]:
    assert result.exit_code == 0, result.output
    return list(csv.DictReader(io.StringIO(result.stdout)))


def test_results_without_a_table_have_a_row_for_each_job(kept: Path) -> None:
    rows = _csv(_said(kept, "results", "--csv"))
    assert [(row["group"], row["index"], row["T"], row["attempts"]) for row in rows] == [
        ("sim", str(index), str(index // 2 + 1), "1") for index in range(6)
    ]
    assert [row["outcome"] for row in rows] == ["success"] * 2 + ["failed"] * 2 + ["success"] * 2
    assert [row["exit_code"] for row in rows] == ["0", "0", "1", "1", "0", "0"]
    assert [row["E"] for row in rows] == ["17", "17", "27", "27", "37", "37"]
    for row in rows:
        taken = float(row["finished"]) - float(row["started"])
        assert float(row["duration"]) == pytest.approx(taken)
        assert float(row["core_hours"]) == pytest.approx(taken / 3600)


def test_table_is_written_in_each_format(kept: Path, tmp_path: Path) -> None:
    expected = [{"T": 1, "n": 2, "twice": 2}, {"T": 3, "n": 2, "twice": 6}]
    assert _said(kept, "results", "each").stdout == "T  n  twice\n1  2      2\n3  2      6\n"
    assert json.loads(_said(kept, "results", "each", "--json").stdout) == expected
    assert _said(kept, "results", "each", "--csv").stdout == "T,n,twice\n1,2,2\n3,2,6\n"
    assert _said(kept, "results", "each", "--markdown").stdout == (
        "| T | n | twice |\n| --- | --- | --- |\n| 1 | 2 | 2 |\n| 3 | 2 | 6 |\n"
    )
    for ending, expected_text in (("csv", "T,n,twice"), ("md", "| T | n |"), ("json", "[")):
        file = tmp_path / f"each.{ending}"
        assert _said(kept, "results", "each", "-o", str(file)).exit_code == 0
        assert file.read_text().startswith(expected_text)
    assert json.loads(_said(kept, "results", "last", "--json").stdout) == [{"index": 5, "T": 3}]


@pytest.mark.parametrize("form", ["--csv", "--markdown"])
def test_a_pipe_gets_the_bytes_of_a_file_in_the_locale_c(tmp_path: Path, form: str) -> None:
    (tmp_path / "study.yaml").write_text(
        "jobs: [{name: sim, command: 'echo {s}', parameters: {s: [é, 日本]}}]\n"
        "rules: [{trigger: start, action: {name: submit}}]\n"
        "results: {t: {of: sim, by: [s], columns: {n: n}}}\n",
        "utf-8",
    )
    state = str(tmp_path / "state")
    done = CliRunner().invoke(main, ["run", "--state", state, str(tmp_path / "study.yaml")])
    assert done.exit_code == 0, done.output
    file = tmp_path / "t.txt"
    command = [sys.executable, "-m", "ensemble_core.cli", "results", "last", "t", form]
    strict = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    shown = subprocess.run(
        [*command, "--state", state], env={**os.environ, **strict}, capture_output=True, check=True
    )
    subprocess.run([*command, "--state", state, "-o", str(file)], check=True)
    assert shown.stdout == file.read_bytes()
    assert "日本" in shown.stdout.decode()


def test_rows_are_sorted_by_parameters_and_empty_columns_are_kept(tmp_path: Path) -> None:
    """Numbers come first, in numeric order, then strings."""
    study = """
jobs:
  - name: sim
    command: echo done
    parameters: {T: [10, 9, b, 2.5, a], L: [16, 8]}
    observe: {key-value: {fields: [E]}}
    result: {E: last.E}
rules: [{trigger: start, action: {name: submit, label: sim}}]
results:
  each: {of: sim, by: [T, L], columns: {energy: mean.E, jobs: n}}
  listed: {of: sim, by: [T], columns: {jobs: n}, order: -T}
"""
    (tmp_path / "study.yaml").write_text(study)
    state = tmp_path / "state"
    ran = run(tmp_path / "study.yaml", executor="local", state=state)
    order = [(T, L) for T in (2.5, 9, 10, "a", "b") for L in (8, 16)]
    expected = [{"T": T, "L": L, "energy": None, "jobs": 1} for T, L in order]
    assert list(ran.results("each")) == expected
    kept = tmp_path
    assert json.loads(_said(kept, "results", "each", "--json").stdout) == expected
    assert [(row["T"], row["L"]) for row in _csv(_said(kept, "results", "each", "--csv"))] == [
        (str(T), str(L)) for T, L in order
    ]
    lines = _said(kept, "results", "each").stdout.splitlines()
    assert lines[0].split() == ["T", "L", "energy", "jobs"]
    assert [line.split() for line in lines[1:]] == [[str(T), str(L), "-", "1"] for T, L in order]
    assert [row["T"] for row in ran.results("listed")] == ["b", "a", 10, 9, 2.5]


def test_jobs_with_attempts_has_a_row_for_each_attempt(
    tmp_path: Path,
) -> None:
    study = """
jobs:
  - name: ising
    command: sh -c 'echo E={T}{attempt}; test {attempt} -ge 2 || exit 3'
    parameters: {T: [1, 2]}
    observe: {key-value: {fields: [E]}}
    result: {E: last.E}
rules:
  - {trigger: start, action: {name: submit, label: ising}}
  - {trigger: job-fail, name: ising, repetitions: 9, action: {name: retry}}
"""
    (tmp_path / "study.yaml").write_text(study)
    ran = run(tmp_path / "study.yaml", executor="local", state=tmp_path / "state")
    assert ran.jobs().column("attempts") == [3, 3]
    attempts = ran.jobs(attempts=True)
    assert attempts.names == ran.jobs().names
    told = [(row["index"], row["attempts"], row["exit_code"], row["last.E"]) for row in attempts]
    assert told == [
        (index, attempt, 0 if attempt == 3 else 3, (index + 1) * 10 + attempt - 1)
        for index in range(2)
        for attempt in (1, 2, 3)
    ]
    assert sum(attempts.column("core_hours")) == pytest.approx(sum(ran.jobs().column("core_hours")))
    failed = _csv(_said(tmp_path, "jobs", "--attempts", "--where", "exit_code == 3", "--csv"))
    assert [(row["index"], row["attempts"]) for row in failed] == [
        *(("0", "1"), ("0", "2"), ("1", "1"), ("1", "2")),
    ]
    assert len(_csv(_said(tmp_path, "jobs", "--csv"))) == 2


def test_an_attempt_that_a_stop_interrupted_has_the_core_hours_of_both_parts(
    tmp_path: Path,
) -> None:
    job = {"name": "sim", "command": "sh -c 'test -e go || sleep 600'", "workdir": str(tmp_path)}
    study = {"jobs": [job], "rules": [{"trigger": "start", "action": {"name": "submit"}}]}
    state = tmp_path / "state"
    ran = run(study, executor="local", state=state, tag="one", wait=False)
    for report in ran.watch(every=0.1):
        if report.groups[0].running:
            time.sleep(0.5)  # core-hours of the first part
            ran.stop()
            break
    ran.wait()
    (tmp_path / "go").touch()
    ran = run(study, executor="local", state=state, tag="one", or_resume=True)
    (job_hours,) = ran.jobs().column("core_hours")
    assert ran.jobs(attempts=True).column("core_hours") == [pytest.approx(job_hours)]
    assert job_hours == pytest.approx(ran.metric("used.core_hours"))
    assert job_hours >= 0.5 / 3600


#: Strings that start a program in a spreadsheet, forge a row, or control a terminal.
_HOSTILE = ["=1+1|cmd", "+1", "-1", "@SUM(A1)", "\uff1dA1", "\t=A1", "a\r=A1", "b\x1b[2J", "\x9b2J"]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with hostile strings as values and as column names."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "row.jsonl").write_text(json.dumps({"=x": 1.5, "\x1b[2Jy": -2}))
    sim = {"name": "sim", "command": "cat {here}/row.jsonl", "observe": {"json-lines": {}}}
    study = {
        "jobs": [{**sim, "parameters": {"note": _HOSTILE}}],
        "rules": [
            {"trigger": "start", "action": {"name": "submit", "label": "sim"}},
            {
                "trigger": "idle",
                "name": "sim",
                "each": ["note"],
                "action": {"name": "log", "message": "x"},
            },
        ],
    }
    (folder / "study.yaml").write_text(json.dumps(study))
    done = run(folder / "study.yaml", executor="local", state=folder / "state")
    assert done.exit_code == 0
    return folder


def test_csv_safe_has_no_formulas(hostile: Path) -> None:
    rows = _csv(_said(hostile, "jobs", "--csv-safe"))
    notes = [row["note"] for row in rows]
    assert notes[:6] == [f"'{text}" for text in _HOSTILE[:6]]
    assert notes[6:] == ["a\\x0d=A1", "b\\x1b[2J", "\\x9b2J"]
    assert {row["'=x"] for row in rows} == {"1.5"}
    assert {row["\\x1b[2Jy"] for row in rows} == {"-2"}


def test_csv_safe_has_no_formulas_beside_another_format_option(hostile: Path) -> None:
    safe = _said(hostile, "jobs", "--csv-safe").stdout
    assert _said(hostile, "jobs", "--csv-safe", "--csv").stdout == safe
    assert _said(hostile, "jobs", "--csv", "--csv-safe").stdout == safe
    refused = _said(hostile, "jobs", "--csv-safe", "--json")
    assert refused.exit_code == 2
    assert not refused.stdout


def test_csv_has_unchanged_values_and_no_forged_rows(hostile: Path, tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    assert _said(hostile, "jobs", "-o", str(file)).exit_code == 0
    with file.open(newline="") as stream:
        assert [row["note"] for row in csv.DictReader(stream)] == _HOSTILE
    assert '"a\r=A1"' in file.read_bytes().decode()


@pytest.mark.parametrize("form", ["--csv", "--csv-safe", "--json", "--markdown", None])
def test_tables_escape_control_characters_on_a_terminal(
    hostile: Path, form: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_output, "is_terminal", lambda stream: True)
    shown = _said(hostile, "jobs", *([form] if form else [])).stdout
    assert shown.count("cmd") == 1
    assert not set(shown) & {"\x1b", "\x9b", "\r"}


def test_a_notebook_shows_times_as_dates(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(_STUDY)
    ran = run(tmp_path / "study.yaml", executor="local", state=tmp_path / "state")
    rows = ran.jobs()
    shown = rows._repr_html_()
    assert f"<td>{format_time(rows[0]['started'])}</td>" in shown
    assert "e+09" not in shown
    assert "e+09" not in ran.results()._repr_html_()
    assert isinstance(rows[0]["started"], float)


def test_times_are_dates_on_a_terminal_and_in_markdown(kept: Path) -> None:
    (began, *_) = (row["started"] for row in _csv(_said(kept, "results", "--csv")))
    assert float(began) > 1e9
    for form in ([], ["--markdown"]):
        shown = _said(kept, "results", *form).stdout
        assert format_time(float(began)) in shown
        assert "e+09" not in shown


def test_share_that_rounds_down_to_no_row_causes_a_warning(kept: Path) -> None:
    done = _said(kept, "results", "share", "--csv")
    assert (done.exit_code, done.stdout) == (0, "T\n")
    assert "share has no rows (top: 10%, rounded down)" in done.stderr


@pytest.mark.checkout
def test_parquet_has_the_rows(kept: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "jobs.parquet"
    assert _said(kept, "results", "-o", str(file)).exit_code == 0
    rows = parquet.read_table(file).to_pylist()
    assert [row["index"] for row in rows] == list(range(6))


def test_parquet_without_pyarrow_gets_an_install_hint(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = tmp_path / "jobs.parquet"
    result = _said(kept, "results", "-o", str(file))
    assert result.exit_code == 2
    assert result.exception is not None
    assert "pip install pyarrow" in str(result.stderr)
    assert not file.exists()


@pytest.mark.parametrize(
    ("arguments", "indices"),
    [
        (["--outcome", "failed"], ["2", "3"]),
        (["--group", "after"], []),
        (["--cause", "exit", "--outcome", "success"], ["0", "1", "4", "5"]),
        (["--where", "T > 1 and E > 30"], ["4", "5"]),
        (["--where", "index in (0, 3)", "--group", "sim"], ["0", "3"]),
    ],
)
def test_jobs_are_selected_by_their_columns(
    kept: Path, arguments: list[str], indices: list[str]
) -> None:
    assert [row["index"] for row in _csv(_said(kept, "jobs", "--csv", *arguments))] == indices


def test_metrics_shows_all_or_the_given_paths(kept: Path) -> None:
    everything = {row["metric"]: row["value"] for row in _csv(_said(kept, "metrics", "--csv"))}
    assert everything["count.sim.failed"] == "2"
    chosen = _csv(_said(kept, "metrics", "--csv", "count.sim.done", "mean.after-duration"))
    assert chosen == [
        {"metric": "count.sim.done", "value": "4"},
        {"metric": "mean.after-duration", "value": ""},
    ]


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        ("results", ["eech"], "did you mean 'each'?"),
        ("results", ["-o", "x.txt"], "end the file name with .csv"),
        ("results", ["--parquet"], "name a file"),
        ("results", ["-o", "/no/such/x.csv"], "cannot write"),
        ("jobs", ["--group", "smi"], "no job group 'smi'"),
        ("jobs", ["--where", "TT > 2"], "did you mean 'T'?"),
        ("jobs", ["--where", "T >"], "'where' does not parse"),
        ("metrics", ["count.sim.sucess"], "did you mean 'count.sim.success'?"),
    ],
)
def test_wrong_argument_is_one_error_with_exit_code_2(
    kept: Path, command: str, arguments: list[str], said: str
) -> None:
    result = _said(kept, command, *arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_function_gets_the_current_tables(tmp_path: Path) -> None:
    study = """
jobs: [{name: sim, command: 'true {T}', parameters: {T: [1, 2]}}]
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: idle, name: sim, action: {name: custom, label: look}}
results: {each: {of: sim, by: [T], columns: {twice: 2 * T}}}
custom: |
  def look(tables, **kwargs):
      return Action(name="log", message=f"{tables['each']}")
"""
    (tmp_path / "study.yaml").write_text(study)
    state = str(tmp_path / "state")
    done = CliRunner().invoke(main, ["run", "--state", state, str(tmp_path / "study.yaml")])
    assert done.exit_code == 0, done.output
    assert (
        "[{'n': 1, 'reused': 0, 'T': 1, 'twice': 2}, {'n': 1, 'reused': 0, 'T': 2, 'twice': 4}]"
        in done.output
    )


def test_a_link_in_place_of_the_output_file_stays_one(kept: Path, tmp_path: Path) -> None:
    published = tmp_path / "published.csv"
    published.write_text("old")
    published.chmod(0o640)
    (tmp_path / "latest.csv").symlink_to("published.csv")
    done = _said(kept, "results", "-o", str(tmp_path / "latest.csv"))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "latest.csv").is_symlink()
    assert published.read_text() == _said(kept, "results", "--csv").stdout
    assert published.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest.csv", "published.csv"]
