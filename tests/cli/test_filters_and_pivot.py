"""Tests of filtered and pivoted tables on the command line: results, ``why``, metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ensemble_core import open_run, run
from ensemble_core.cli.main import main

_STUDY = """
jobs:
  - name: sim
    command: [sh, -c, 'echo U={T}{L}']
    parameters: {L: [16, hex], T: [1, 2]}
    observe: {key-value: {fields: [U]}}
    result: {U: last.U}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {id: never, trigger: idle, name: sim, when: 'max.t.T(U[16] > 900) > 1', action: {name: log, message: x}}
  - {id: said, trigger: idle, name: sim, action:
     {name: log, message: '{max.t.T(U[16] > 200)} {mean.U(L == 16):.1f} {count.done(T==1)}'}}
results:
  t: {of: sim, by: [T], pivot: L, columns: {U: mean.U, k: n, twice: 'U[16] + U[16]'}}
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pivot")
    (folder / "study.yaml").write_text(_STUDY)
    words = ["run", "--executor", "local", "--tag", "p", str(folder / "study.yaml")]
    assert _said(folder, *words).exit_code == 1  # the string 'hex' is not a number
    return folder


def _said(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--state", str(folder / "state")])


def test_pivot_results_show_each_value_and_missing_cells(kept: Path) -> None:
    said = _said(kept, "results", "p", "t").stdout
    assert [line.split() for line in said.splitlines()] == [
        ["T", "U[16]", "U[hex]", "k[16]", "k[hex]", "twice"],
        ["1", "116", "-", "1", "1", "232"],
        ["2", "216", "-", "1", "1", "432"],
    ]
    rows = json.loads(_said(kept, "results", "p", "t", "--json").stdout)
    assert rows[0]["U[hex]"] is None
    found = open_run("p", state=kept / "state").results("t")
    assert [row["twice"] for row in found] == [232, 432]


def test_why_and_summary_explain_a_filtered_statistic_without_value(kept: Path) -> None:
    why = _said(kept, "why", "p", "never").output
    assert "had no value once: max.t.T(U[16] > 900) (none of 2 rows passed U[16] > 900)" in why
    events = _said(kept, "events", "p", "--json").stdout
    assert any("2 166.0 2" in line for line in events.splitlines())
    status = _said(kept, "status", "p").output
    assert "none of 2 rows passed U[16] > 900" in status


def test_metrics_list_filtered_statistics(kept: Path) -> None:
    said = json.loads(_said(kept, "metrics", "p", "--json").stdout)
    known = {row["metric"]: row["value"] for row in said}
    assert known["mean.sim-U(L == 16)"] == 166
    assert known["count.sim.done(T == 1)"] == 2


@pytest.mark.parametrize("index", ["hex", "'hex'", '"hex"'])
def test_a_message_fills_in_a_pivoted_column_with_the_index_that_a_formula_has(
    tmp_path: Path, index: str
) -> None:
    sim = {
        "name": "sim",
        "command": "echo U={T} {L}",
        "parameters": {"T": [1, 2], "L": ["hex", "1e"]},
        "observe": {"key-value": {"fields": ["U"]}},
        "result": {"U": "last.U"},
    }
    message = f"{{max.t.U[{index}]:.1f}} {{sum.t.U[{index}](T > 1)}} {{max.t.U['1e']}}"
    study = {
        "jobs": [sim],
        "rules": [
            {"trigger": "start", "action": {"name": "submit"}},
            {"trigger": "idle", "name": "sim", "action": {"name": "log", "message": message}},
        ],
        "results": {"t": {"of": "sim", "by": ["T"], "pivot": "L", "columns": {"U": "mean.U"}}},
    }
    with run(study, executor="local", state=tmp_path).inspect() as look:
        assert look.firings()[-1]["decisions"] == ["log 2.0 2 2"]
