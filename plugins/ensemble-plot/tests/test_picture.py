"""Tests of the layout of a run's pictures, without matplotlib.

test_drawing.py tests the drawing.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from ensemble_plot.run_history import Curve, read
from hypothesis import given, settings
from hypothesis import strategies as st
from kept_story import KeptStory

from ensemble_core.cli.main import main
from ensemble_core.journal.lock import Lock
from ensemble_core.journal.reader import NAME, Journal
from ensemble_core.model.decisions import Decision
from ensemble_core.model.events import CallReturned, Observed, Resumed, StopRequested
from ensemble_core.plugin.discovery import discover
from ensemble_core.session.kept_run import versions

VERSIONS = versions(discover())
SIM = "{name: sim, command: sim, count: 9, observe: {json-lines: {}}}"
SWEEP = (
    '{name: sim, command: "sim {T}", parameters: {T: [1.5, 2.5, 3.5]}, observe: {json-lines: {}}}'
)
BEGIN = "  - {id: begin, trigger: start, action: {name: submit, label: sim}}\n"


class Kept(KeptStory):
    """A run with this group of jobs."""

    def __init__(self, state: Path, rules: str = "", *, jobs: str = SIM, more: str = "") -> None:
        text = f"jobs: [{jobs}]\nrules:\n{BEGIN}{rules}{more}"
        super().__init__(state, text, "told", name="story")

    def row(
        self, job: str, clock: float | None, *, restarted: bool = False, **values: float
    ) -> list[Decision]:
        return self.named(job, clock, values, restarted=restarted)

    def named(
        self, job: str, clock: float | None, values: Mapping[str, float], *, restarted: bool = False
    ) -> list[Decision]:
        """Append a row with these values."""
        return self.tell(Observed(self.now, job, "test", values, clock, restarted))

    def keep(self, *, over: bool = True) -> None:
        if over:
            self.writer.end(self.now, {"over": True, "exit_code": 0})
        self.writer.flush(None)
        self.writer.close()


def plot(state: Path, *args: str) -> Result:
    return CliRunner().invoke(main, ["plot", *args, "--state", str(state)])


def shown(state: Path, *args: str) -> dict[str, Any]:
    result = plot(state, *args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def curves(panel: dict[str, Any]) -> dict[str, list[list[float | None]]]:
    return {curve["job"]: curve["points"] for curve in panel["curves"]}


def ys(points: Sequence[Sequence[float | None]]) -> list[float]:
    return [y for _, y in points if y is not None]


# -- contents ---------------------------------------------------------------------------------------


def test_each_variable_is_a_panel_and_each_job_a_curve_over_its_own_clock(tmp_path: Path) -> None:
    told = Kept(tmp_path)
    told.start()
    for job in ("sim.0", "sim.1"):
        told.begin(job)
        for step in range(3):
            told.row(job, step * 100, Step=step * 100, Temp=step + 0.5, E=-step)
        told.end(job)
    told.keep()
    found = shown(tmp_path)
    assert [(panel["variable"], panel["x"]) for panel in found["panels"]] == [
        ("Temp", "step"),
        ("E", "step"),
    ]
    assert curves(found["panels"][0]) == {
        "sim.0": [[0, 0.5], [100, 1.5], [200, 2.5]],
        "sim.1": [[0, 0.5], [100, 1.5], [200, 2.5]],
    }
    assert (found["run"], found["state"], found["file"]) == ("told", "ended", None)


def test_a_rule_is_marked_on_the_row_of_the_job_on_which_it_fired(tmp_path: Path) -> None:
    told = Kept(
        tmp_path,
        '  - {id: hot, trigger: observed, name: sim, when: "Temp > 2 and Step > 0", action: '
        "{name: cancel}}\n",
        jobs=SWEEP,
    )
    told.start()
    for job in ("sim.0", "sim.1", "sim.2"):
        told.begin(job)
    for step in range(3):
        told.row("sim.0", step, Step=step, Temp=1.0, E=7.0)
    for step in range(3):
        told.row("sim.2", step, Step=step, Temp=step * 1.5, E=9.0)
    told.cancel("sim.2")
    told.keep()
    found = shown(tmp_path, "last")
    (panel,) = found["panels"]  # the rule uses Temp, and Step is the clock
    assert panel["variable"] == "Temp"
    (mark,) = panel["marks"]
    assert (mark["rule"], mark["job"], mark["x"], mark["y"]) == ("hot", "sim.2", 2, 3.0)
    assert {job["job"]: job["outcome"] for job in found["jobs"]} == {
        "sim.0": None,
        "sim.2": "cancelled",
    }
    assert found["jobs"][1]["parameters"] == {"T": 3.5}
    assert found["not_shown"] == {"begin": 1}


def test_a_rule_that_fires_after_its_jobs_end_is_marked_at_the_last_row(
    tmp_path: Path,
) -> None:
    told = Kept(
        tmp_path,
        "  - {id: broken, trigger: job-fail, action: {name: log, message: x}}\n"
        '  - {id: metric, trigger: metric, name: mean.sim-a, when: "> 1",'
        " action: {name: log, message: x}}\n",
    )
    told.start()
    told.begin("sim.0")
    told.row("sim.0", 5, a=1.0, b=7.0)
    told.row("sim.0", 6, a=1.5, b=8.0)
    told.end("sim.0", status=256)
    told.keep()
    found = shown(tmp_path, "--variable", "a,b")
    marks = {
        panel["variable"]: [(mark["rule"], mark["x"], mark["y"]) for mark in panel["marks"]]
        for panel in found["panels"]
    }
    # The rule 'metric' uses a. The rule 'broken' uses no variable, so all panels show it.
    assert sorted(marks["a"]) == [("broken", 6, 1.5), ("metric", 6, 1.5)]
    assert marks["b"] == [("broken", 6, 8.0)]


def test_over_time_a_rule_without_a_job_has_its_place(tmp_path: Path) -> None:
    told = Kept(
        tmp_path,
        "  - {id: tick, trigger: interval, seconds: 10, action: {name: log, message: x}}\n",
    )
    told.start()
    told.begin("sim.0")
    began = told.now
    told.row("sim.0", 1, a=1.0)
    told.wait(12)
    told.row("sim.0", 2, a=2.0)
    told.keep()
    found = shown(tmp_path, "--x", "time")
    (panel,) = found["panels"]
    assert panel["x"] == "time"
    assert [x for x, _ in curves(panel)["sim.0"]] == [0, told.now - began]
    assert {mark["rule"]: mark["x"] for mark in panel["marks"]} == {"begin": 0, "tick": 10}
    assert found["not_shown"] == {}


def test_rows_without_a_clock_are_shown_over_time(tmp_path: Path) -> None:
    told = Kept(tmp_path)
    told.start()
    told.begin("sim.0")
    for value in (3.0, 4.0):
        told.row("sim.0", None, a=value)
        told.wait(2)
    told.keep()
    (panel,) = shown(tmp_path)["panels"]
    assert (panel["x"], curves(panel)["sim.0"]) == ("time", [[0, 3.0], [2, 4.0]])
    refused = plot(tmp_path, "--x", "step", "--json")
    assert refused.exit_code == 1
    assert "--x time" in refused.output


def test_variables_of_the_rules_are_shown_or_the_first_four(tmp_path: Path) -> None:
    names = dict.fromkeys("abcdef", 1.0)
    told = Kept(
        tmp_path / "one",
        '  - {id: r, trigger: metric, name: max.sim-e, when: "> 5", action: {name: terminate}}\n'
        "  - {id: s, trigger: observed, name: sim, when: 'f > 5 and b > 5 and index > 1',"
        " action: {name: terminate}}\n",
    )
    other = Kept(tmp_path / "two")
    for each in (told, other):
        each.start()
        each.begin("sim.0")
        each.named("sim.0", 1, {"step": 1, **names})
        each.named("sim.0", 2, {"step": 2, **names})
        each.keep()
    assert [panel["variable"] for panel in shown(tmp_path / "one")["panels"]] == ["e", "f", "b"]
    assert [panel["variable"] for panel in shown(tmp_path / "two")["panels"]] == list("abcd")


def test_rare_variables_are_shown_with_the_curves_they_belong_to(tmp_path: Path) -> None:
    told = Kept(
        tmp_path,
        "  - {id: r, trigger: observed, name: sim, when: Converged == 1, action: {name: cancel}}\n",
    )
    told.start()
    told.begin("sim.0")
    for step in range(40):
        told.named("sim.0", step, {"Step": step, "Temp": 1.0, "Press": 2.0})
    told.named("sim.0", 40, {"Step": 40, "Temp": 1.0, "Press": 2.0, "Converged": 1})
    told.keep()
    found = shown(tmp_path)
    assert [panel["variable"] for panel in found["panels"]] == ["Converged", "Temp", "Press"]
    assert [
        panel["variable"] for panel in shown(tmp_path, "--variable", "Converged")["panels"]
    ] == ["Converged"]


def test_variables_of_a_rule_that_joined_during_the_run_are_shown(
    tmp_path: Path,
) -> None:
    told = Kept(
        tmp_path,
        "  - {id: f, trigger: start, action: {name: custom, label: f}}\n",
        more="custom: |\n  def f(**kwargs): return None\n",
    )
    decisions = told.start()
    told.begin("sim.0")
    told.row("sim.0", 0, a=1.0, b=2.0, c=3.0, d=4.0, late=5.0)
    call = next(each.call for each in decisions if each.type == "call")  # type: ignore[attr-defined]
    rule = {"id": "joined", "trigger": "observed", "name": "sim", "when": "late > 5.5"}
    told.tell(CallReturned(told.now, call, ({"rule": {**rule, "action": {"name": "cancel"}}},)))
    told.row("sim.0", 1, a=1.0, b=2.0, c=3.0, d=4.0, late=6.0)
    told.keep()
    (panel,) = shown(tmp_path)["panels"]
    assert panel["variable"] == "late"
    assert curves(panel)["sim.0"] == [[0, 5.0], [1, 6.0]]
    assert [(mark["rule"], mark["x"]) for mark in panel["marks"]] == [("joined", 1)]


def test_only_requested_groups_and_jobs_are_shown(tmp_path: Path) -> None:
    told = Kept(
        tmp_path,
        "  - {id: also, trigger: start, action: {name: submit, label: other}}\n",
        jobs=f"{SIM}, {SIM.replace('name: sim', 'name: other')}",
    )
    told.start()
    for job in ("other.1", "sim.2", "sim.0", "other.0"):
        told.begin(job)
        told.row(job, 1, a=1.0)
    told.keep()

    def jobs(*args: str) -> list[str]:
        return [curve["job"] for curve in shown(tmp_path, *args)["panels"][0]["curves"]]

    assert jobs() == ["sim.0", "sim.2", "other.0", "other.1"]
    assert jobs("--group", "other") == ["other.0", "other.1"]
    assert jobs("--job", "sim.2,other.0") == ["sim.2", "other.0"]


def test_a_name_may_have_a_comma_within_brackets(tmp_path: Path) -> None:
    told = Kept(tmp_path)
    told.start()
    told.begin("sim.0")
    told.named("sim.0", 1, {"f_ave[1,2]": 1.0, "c_msd[4]": 2.0, "a": 3.0})
    told.keep()
    found = shown(tmp_path, "--variable", "f_ave[1,2],c_msd[4]")
    assert [panel["variable"] for panel in found["panels"]] == ["f_ave[1,2]", "c_msd[4]"]


# -- difficult values -------------------------------------------------------------------------------


def test_values_that_are_not_finite_are_gaps(tmp_path: Path) -> None:
    told = Kept(tmp_path)
    told.start()
    told.begin("sim.0")
    for step, value in enumerate((1.0, math.nan, math.inf, 2.0)):
        told.row("sim.0", step, a=value)
    told.keep()
    result = plot(tmp_path, "--json")
    assert "NaN" not in result.stdout
    assert "Infinity" not in result.stdout
    (curve,) = json.loads(result.stdout)["panels"][0]["curves"]
    assert curve["points"] == [[0, 1.0], [1, None], [2, None], [3, 2.0]]
    assert (curve["rows"], curve["not_finite"], curve["highest"]) == (4, 2, 2.0)


def test_a_value_that_is_not_a_number_is_a_gap(tmp_path: Path) -> None:
    told = Kept(tmp_path)
    told.start()
    told.begin("sim.0")
    told.row("sim.0", 1, a=1.0)
    told.writer.append(Observed(told.now, "sim.0", "test", {"a": "warm"}, 2), [])  # type: ignore[dict-item]  # as a plugin may do
    told.writer.append(Observed(told.now, "sim.0", "test", {"a": 10**400}, 3), [])
    told.row("sim.0", 4, a=2.0)
    told.keep()
    (curve,) = shown(tmp_path, "--x", "time")["panels"][0]["curves"]
    assert [y for _, y in curve["points"]] == [1.0, None, None, 2.0]


def test_a_rule_that_fires_on_a_nan_is_marked_on_that_row(tmp_path: Path) -> None:
    told = Kept(
        tmp_path,
        "  - {id: nan, trigger: observed, name: sim, when: isnan(a), action: {name: cancel}}\n",
    )
    told.start()
    told.begin("sim.0")
    told.row("sim.0", 3, a=1.25)
    told.row("sim.0", 4, a=math.nan)
    told.cancel("sim.0")
    told.keep()
    (mark,) = shown(tmp_path)["panels"][0]["marks"]
    assert (mark["x"], mark["y"]) == (4, 1.25)


@pytest.mark.parametrize("restarted", [True, False])
def test_a_step_that_goes_back_starts_a_new_piece_of_the_curve(
    tmp_path: Path, restarted: bool
) -> None:
    told = Kept(tmp_path)
    told.start()
    told.begin("sim.0")
    for step in (0, 10, 20):
        told.row("sim.0", step, a=1.0)
    told.row("sim.0", 5, a=2.0, restarted=restarted)
    told.row("sim.0", 15, a=3.0)
    told.keep()
    (panel,) = shown(tmp_path)["panels"]
    points = curves(panel)["sim.0"]
    assert points == [[0, 1.0], [10, 1.0], [20, 1.0], [None, None], [5, 2.0], [15, 3.0]]


def test_a_long_curve_is_thinned_and_keeps_its_extremes(tmp_path: Path) -> None:
    told = Kept(tmp_path)
    told.start()
    told.begin("sim.0")
    for step in range(30_000):
        value = math.sin(step / 50)
        told.writer.append(
            Observed(told.now, "sim.0", "test", {"a": 99.0 if step == 12_345 else value}, step), []
        )
    told.keep()
    (curve,) = shown(tmp_path)["panels"][0]["curves"]
    points = curve["points"]
    assert curve["rows"] == 30_000
    assert 1000 < len(points) < 5000
    assert [12_345, 99.0] in points
    assert points[0][0] == 0
    assert points[-1][0] == 29_999
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert min(ys(points)) < -0.9999


@settings(deadline=None, max_examples=100)
@given(
    values=st.lists(
        st.tuples(st.floats(), st.one_of(st.none(), st.integers(0, 20))), min_size=1, max_size=400
    ),
    limit=st.integers(2, 40),
)
def test_no_curve_loses_its_ends_or_extremes_or_exceeds_its_limit(
    values: list[tuple[float, int | None]], limit: int
) -> None:
    curve = Curve(limit)
    for place, (value, clock) in enumerate(values):
        curve.add(clock, float(place), value)
    points = [point for point, _ in curve.points()]
    assert len(points) <= 4 * (limit + 1)
    assert [point.row for point in points] == sorted({point.row for point in points})
    finite = [(place, v) for place, (v, _) in enumerate(values) if math.isfinite(v)]
    kept = {(point.row, point.value) for point in points if point.value == point.value}
    assert kept <= set(finite)
    if finite:
        assert max(v for _, v in kept) == max(v for _, v in finite)
        assert min(v for _, v in kept) == min(v for _, v in finite)
        assert {finite[0], finite[-1]} <= kept
    assert curve.gaps == len(values) - len(finite)


def test_short_curves_are_complete() -> None:
    curve = Curve(100)
    for place in range(100):
        curve.add(place, place + 0.5, place * 2.0)
    assert [tuple(point) for point, _ in curve.points()] == [
        (place, place, place + 0.5, place * 2.0) for place in range(100)
    ]


def test_a_few_outliers_leave_space_for_the_others(tmp_path: Path) -> None:
    from ensemble_plot.picture import compose

    told = Kept(tmp_path)
    told.start()
    told.begin("sim.0")
    for step in range(200):
        told.row("sim.0", step, a=1 + step % 2, b=1e9 if step == 150 else 1 + step % 2)
    told.keep()
    with Journal(told.folder / NAME) as journal:
        picture = compose(read(journal), ["a", "b"])
    assert [panel.usual for panel in picture.panels] == [None, (0.5, 2.5)]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_job_that_fail_if_lets_fail_has_failed_and_the_run_is_read_on(
    tmp_path: Path, stopped: bool
) -> None:
    """During a stop, the resume decides it, after the job's last event."""
    told = Kept(tmp_path, jobs=SIM.replace("count: 9", "count: 2, fail_if: last.E > 1"))
    told.start()
    for job in ("sim.0", "sim.1"):
        told.begin(job)
    if stopped:
        told.tell(StopRequested(told.now, then="keep"))
    for job, energy in (("sim.0", 5.0), ("sim.1", 0.5)):
        told.row(job, 1, E=energy)
        told.end(job)
    if stopped:
        told.tell(Resumed(told.now))
    told.keep()
    with Journal(told.folder / NAME) as journal:
        history = read(journal)
    assert history.damage is None
    assert {job.id: job.end for job in history.jobs()} == {"sim.0": "failed", "sim.1": "success"}


# -- active and incomplete runs ----------------------------------------------------------------------


def test_an_active_run_is_shown_so_far(tmp_path: Path) -> None:
    told = Kept(tmp_path)
    told.start()
    told.begin("sim.0")
    told.row("sim.0", 1, a=1.0)
    told.writer.flush(None)
    lock = Lock(told.folder)
    lock.acquire()
    try:
        assert shown(tmp_path)["state"] == "running"
        told.row("sim.0", 2, a=2.0)
        told.writer.flush(None)
        found = shown(tmp_path)
    finally:
        lock.release()
        told.keep(over=False)
    assert curves(found["panels"][0])["sim.0"] == [[1, 1.0], [2, 2.0]]
    assert shown(tmp_path)["state"] == "interrupted"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--variable", "tmep"], "did you mean 'Temp'?"),
        (["--group", "sin"], "did you mean 'sim'?"),
        (["--job", "sim.77"], "has no job 'sim.77'"),
        (["nowhere"], "no run 'nowhere'"),
        (["-o", "melt.jpg"], ".png, .svg, .pdf"),
        (["-o", "melt"], ".png, .svg, .pdf"),
        (["--size", "big"], "1600x1000"),
        (["--size", "0x100"], "inches"),
        (["--size", "1e9x3"], "1600x1000"),
        (["--size", "900000x900000"], "inches"),
    ],
)
def test_impossible_requests_are_rejected_with_a_hint(
    tmp_path: Path, args: list[str], words: str
) -> None:
    told = Kept(tmp_path)
    told.start()
    told.begin("sim.0")
    told.row("sim.0", 1, Temp=1.0)
    told.keep()
    result = plot(tmp_path, *args, "--json")
    assert result.exit_code == 2
    error = json.loads(result.stdout)
    assert error["exit_code"] == 2
    assert words in f"{error['what']} {error['hint']}"


def test_a_run_without_values_has_a_hint(tmp_path: Path) -> None:
    told = Kept(tmp_path)
    told.start()
    told.play("sim.0")
    told.keep()
    for args in ([], ["--variable", "a"], ["--job", "sim.0"]):
        result = plot(tmp_path, "--json", *args)
        error = json.loads(result.stdout)
        assert (error["code"], error["exit_code"]) == ("nothing-to-draw", 1)
        assert "observe:" in error["hint"]


def test_without_matplotlib_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Kept(tmp_path)
    told.start()
    told.begin("sim.0")
    told.row("sim.0", 1, a=1.0)
    told.keep()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = plot(tmp_path)
    assert result.exit_code == 2
    assert "pip install 'ensemble-core[plot]>=1.0'" in result.output
    assert "Traceback" not in result.output
    assert list(tmp_path.glob("*.png")) == []
    assert shown(tmp_path)["panels"]  # the data do not need matplotlib


def test_a_damaged_journal_is_shown_up_to_the_damage(tmp_path: Path) -> None:
    import sqlite3

    told = Kept(tmp_path)
    told.start()
    told.begin("sim.0")
    for step in range(3):
        told.row("sim.0", step, a=1.0)
        told.writer.flush(None)
    told.keep()
    with sqlite3.connect(told.folder / NAME) as connection:
        connection.execute(
            "UPDATE event_lists SET list = 'x' WHERE first = (SELECT max(first) FROM event_lists)"
        )
    connection.close()
    result = plot(tmp_path, "--json")
    (line,) = result.stdout.splitlines()
    assert 0 < len(curves(json.loads(line)["panels"][0])["sim.0"]) < 3
    assert "damaged" in result.stderr
    assert result.exit_code == 1


def test_names_are_completed_after_a_comma_too(tmp_path: Path) -> None:
    told = Kept(tmp_path)
    told.start()
    told.begin("sim.0")
    told.row("sim.0", 1, Temp=1.0, TotEng=2.0, Press=3.0)
    told.keep()
    command = main.get_command(click.Context(main), "plot")
    assert command is not None
    context = click.Context(command)
    context.params = {"state": str(tmp_path), "run": "last"}
    found = {}
    for option in command.params:
        if option.name in ("variable", "group", "job"):
            text = {"variable": "Press,T", "group": "", "job": "sim"}[option.name]
            found[option.name] = [each.value for each in option.shell_complete(context, text)]
    assert found == {
        "variable": ["Press,Temp", "Press,TotEng"],
        "group": ["sim"],
        "job": ["sim.0"],
    }


def test_the_page_on_kept_runs_lists_every_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "kept-runs.md").read_text("utf-8")
    command = main.get_command(click.Context(main), "plot")
    assert command is not None
    for option in command.params:
        if isinstance(option, click.Option):
            assert all(name in page for name in option.opts), option.opts
