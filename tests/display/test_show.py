"""``--show TABLE`` and ``--metrics``: a results table during the run, all metrics at the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ensemble_core.cli.main import main
from ensemble_core.cli.run_session import ResultsTable
from ensemble_core.config import load_text
from ensemble_core.display.live_table import LiveTable
from ensemble_core.display.text_style import TextStyle
from ensemble_core.engine.engine import Engine
from ensemble_core.engine.report import GroupReport, Report
from ensemble_core.plugin.discovery import discover

STUDY = """
jobs:
  - {name: sim, command: "echo E={T}", parameters: {T: [1, 2, 3]}, observe: {key-value: {}},
     result: {E: last.E}}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
results:
  energies: {of: sim, by: [T], columns: {E: mean.E, twice: 2 * T}}
"""


def run(tmp_path: Path, *options: str) -> Result:
    file = tmp_path / "study.yaml"
    file.write_text(STUDY)
    state = ("--state", str(tmp_path / "state"), "--executor", "local")
    return CliRunner().invoke(main, ["run", str(file), *state, *options])


def test_table_is_in_the_summary(tmp_path: Path) -> None:
    result = run(tmp_path, "--show", "energies")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    at = lines.index(["energies"])
    assert lines[at + 1 : at + 5] == [
        ["T", "E", "twice"],
        ["1", "1", "2"],
        ["2", "2", "4"],
        ["3", "3", "6"],
    ]


def test_unknown_table_is_rejected_before_the_run(tmp_path: Path) -> None:
    result = run(tmp_path, "--show", "energy")
    assert result.exit_code == 2
    assert "did you mean 'energies'?" in result.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("option", ["--metrics", "--debug"])
def test_metrics_option_adds_all_metrics_to_the_summary(tmp_path: Path, option: str) -> None:
    assert "count.sim.success" not in run(tmp_path).stdout
    lines = [line.split() for line in run(tmp_path, option).stdout.splitlines()]
    assert ["count.sim.success", "3"] in lines
    assert any(line[:1] == ["mean.sim-duration"] and len(line) == 2 for line in lines)


def test_live_display_shows_as_many_rows_as_fit() -> None:
    rows = 20
    block = LiveTable(TextStyle(unicode=True), lambda: os.terminal_size((60, rows)))
    block.report = Report(groups=(GroupReport(name="sim", submitted=3),))
    block.table = ["T  E", *(f"{n}  {n}" for n in range(30))]
    frame = block.draw().splitlines()
    assert len(frame) <= rows - 1
    assert " T  E" in frame
    assert " 0  0" in frame
    assert any("more rows" in line for line in frame)
    rows = 8
    assert all("T  E" not in line for line in block.draw().splitlines()[5:])


def test_slow_table_is_calculated_less_often() -> None:
    engine = Engine(load_text(STUDY, discover()))
    times = iter([0.0, 1.0, 2.0, 60.0, 60.5, 70.0])
    shown = ResultsTable(engine, "energies", lambda: next(times))
    assert shown.lines() is not None  # calculated in one second
    assert shown.lines() is None  # one second later
    assert shown.lines() is not None  # 59 seconds later
    assert shown.lines() is None
