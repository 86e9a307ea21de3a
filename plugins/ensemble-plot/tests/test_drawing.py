"""Tests of the files of ``ensemble plot``. Skipped without matplotlib."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("matplotlib", reason="matplotlib is not installed: no pictures")

from ensemble_plot.colours import scale_of
from ensemble_plot.drawing import DPI, _Drawing, _rule, draw
from ensemble_plot.image_file import write
from ensemble_plot.picture import Line, Moment, Panel, Picture, Spot, compose
from ensemble_plot.run_history import Track, read
from matplotlib.transforms import Bbox

from ensemble_core.cli.main import main
from ensemble_core.errors import UsageError
from ensemble_core.journal.reader import NAME, Journal
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.decisions import Decision, Fired, Submit
from ensemble_core.model.events import Event, JobEvent, Observed, Started
from ensemble_core.model.jobs import Job

MAGIC = {"png": b"\x89PNG\r\n", "svg": b"<?xml", "pdf": b"%PDF-"}
TEXT = """
jobs: [{name: sim, command: sim, observe: {json-lines: {}}}]
rules: [{id: begin, trigger: start, action: {name: submit, label: sim}}]
"""


def keep(state: Path, count: int = 2) -> Path:
    """Create a run: jobs report two values, one is cancelled, one fails, and rules fire."""
    folder = state / "runs" / "told"
    folder.mkdir(parents=True)
    writer = JournalWriter(folder / NAME)
    writer.describe({"tag": "told", "name": "story", "executor": {"name": "local"}})
    writer.store_file_version("/e.yaml", TEXT, ())
    writer.begin(0.0, {})

    def tell(event: Event, *decisions: Decision) -> None:
        writer.append(event, list(decisions))

    jobs = tuple(
        Job(id=f"sim.{n}", group="sim", index=n, command=("x",), parameters={"T": n / 2})
        for n in range(count)
    )
    tell(
        Started(100.0), Fired(rule="begin", firing=1), Submit(group="sim", jobs=jobs, rule="begin")
    )
    for step in range(20):
        for n, job in enumerate(jobs):
            values = {"Temp": n + math.sin(step / 3), "E_$x^2$": n - step / 10.0}
            fired = [Fired(rule="ru_le", firing=2, job=job.id)] if step == 10 and n == 1 else []
            tell(Observed(100.0 + step, job.id, "test", values, step), *fired)
    tell(JobEvent(121.0, "sim.0", "exception", {"type": "cancel", "severity": 0}))
    for job in jobs:
        tell(JobEvent(122.0, job.id, "finish", {"status": 15 if job.index < 2 else 0}))
    writer.end(122.0, {"over": True, "exit_code": 0})
    writer.flush(None)
    writer.close()
    return folder


def pictured(folder: Path) -> Picture:
    with Journal(folder / NAME) as journal:
        story = read(journal)
    return compose(story, story.variables())


def size_of(png: bytes) -> tuple[int, int]:
    return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_the_format_follows_the_name_and_the_bytes_are_reproducible(
    tmp_path: Path, form: str
) -> None:
    keep(tmp_path)
    file = tmp_path / f"melt.{form}"
    found = []
    for _ in range(1 if form == "svg" else 2):  # svg is tested below, in two processes
        args = ["plot", "told", "-o", str(file), "--state", str(tmp_path)]
        result = CliRunner().invoke(main, args)
        assert result.exit_code == 0, result.output
        assert "Temp, E_$x^2$ of 2 jobs" in result.stdout
        found.append(file.read_bytes())
    assert found[0].startswith(MAGIC[form])
    assert found[0] == found[-1]
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == [file.name]


def test_only_the_run_determines_a_picture(tmp_path: Path) -> None:
    keep(tmp_path / "state")
    (tmp_path / "matplotlibrc").write_text("font.size: 40\nlines.linewidth: 9\nbackend: tkagg\n")
    found = []
    for name, environ in (
        ("a", {"PYTHONHASHSEED": "1"}),
        ("b", {"PYTHONHASHSEED": "2", "MATPLOTLIBRC": str(tmp_path), "MPLBACKEND": "qtagg"}),
    ):
        file = tmp_path / f"{name}.svg"
        command = [sys.executable, "-m", "ensemble_core.cli", "plot", "last", "-o", str(file)]
        done = subprocess.run(
            [*command, "--variable", "Temp", "--state", str(tmp_path / "state")],
            env={**os.environ, "DISPLAY": "", "TZ": "Asia/Tokyo", **environ},
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert (done.returncode, done.stderr) == (0, "")
        found.append(file.read_bytes())
    assert found[0] == found[1]


def test_by_default_the_newest_run_is_drawn_into_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path))
    result = CliRunner().invoke(main, ["plot", "--size", "800x480"])
    assert result.exit_code == 0, result.output
    assert size_of((tmp_path / "told.png").read_bytes()) == (800, 480)


def test_an_unwritable_picture_leaves_nothing_behind(tmp_path: Path) -> None:
    keep(tmp_path)
    (tmp_path / "folder.png").mkdir()
    for file in (tmp_path / "folder.png", tmp_path / "nowhere" / "a.png"):
        result = CliRunner().invoke(main, ["plot", "-o", str(file), "--state", str(tmp_path)])
        assert result.exit_code == 2
        assert "cannot write" in result.output
    with pytest.raises(UsageError, match="cannot write"):
        write(Path("/proc/a.png"), b"")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder.png", "runs"]


@pytest.mark.parametrize(("rule", "label"), [("rule-2", "rule-2"), ("hot", "rule hot")])
def test_the_legend_has_the_word_rule_once(rule: str, label: str) -> None:
    assert _rule(rule) == label


@pytest.mark.parametrize("count", [12, 13])
def test_the_legend_covers_no_curve(tmp_path: Path, count: int) -> None:
    drawing = _Drawing(pictured(keep(tmp_path, count)), None)
    figure = drawing.figure
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    whole = Bbox.from_bounds(0, 0, *(figure.get_size_inches() * DPI))
    for ax in figure.axes:
        assert not box.overlaps(ax.get_window_extent())
    assert whole.x0 <= box.x0
    assert box.x1 <= whole.x1
    assert box.y1 <= whole.y1
    words = [text.get_text() for text in legend.get_texts()]
    assert "rule ru_le" in words
    assert "job cancelled" in words
    assert "job failed" in words
    jobs = [word for word in words if word.startswith("sim.")]
    if count <= 12:
        assert jobs == [f"sim.{n}  T={n / 2:g}" for n in range(count)]
    else:
        assert jobs == []
        assert figure.axes[-1].get_ylabel() == "T"  # the colour bar


def test_each_of_a_dozen_jobs_has_a_different_style(tmp_path: Path) -> None:
    drawing = _Drawing(pictured(keep(tmp_path, 12)), None)
    styles = {(style.colour, style.dashes) for style in drawing._styles.values()}
    assert len(styles) == 12


def test_the_name_of_a_rule_is_in_the_picture_once(tmp_path: Path) -> None:
    drawing = _Drawing(pictured(keep(tmp_path)), None)
    words = [text.get_text() for ax in drawing.figure.axes for text in ax.texts]
    assert words == ["ru_le"]


def test_many_jobs_are_coloured_by_the_parameter_that_varies() -> None:
    def tracks(**parameters: list[object]) -> list[Track]:
        (length,) = {len(values) for values in parameters.values()}
        return [
            Track(f"a.{n}", "a", n, {name: values[n] for name, values in parameters.items()})
            for n in range(length)
        ]

    found = scale_of(tracks(seed=[3, 1, 2], model=["x", "y", "z"], T=[1, 1, 2], P=[5, 6, 7]))
    assert (found.name, found.values["a.2"], found.logarithmic) == ("T", 2.0, False)
    assert scale_of(tracks(seed=[3, 1, 2], T=[1, 1, 1])).name == "seed"
    assert scale_of(tracks(lr=["1e-5", "1e-2", "1"])).logarithmic
    assert scale_of(tracks(flag=[True, False, True])).values == {"a.0": 0, "a.1": 1, "a.2": 2}


# Names that might break formulas, markup or a font.
_NAMES = st.sampled_from(["a", "$x", "$\\frac$", "_b", "<&>", "名", "x" * 300, "a\nb", "%s", "{}"])
_XS = st.one_of(st.integers(0, 50), st.floats(-1e300, 1e300))


@settings(deadline=None, max_examples=4)
@given(data=st.data())
def test_any_values_and_names_give_a_picture(data: st.DataObject) -> None:
    names = data.draw(st.lists(_NAMES, min_size=1, max_size=3, unique=True))
    jobs = [Track(name, "g", n, {"T": n}) for n, name in enumerate(names)]
    panels = []
    for variable in data.draw(st.lists(_NAMES, min_size=1, max_size=3)):
        panel = Panel(variable, data.draw(st.sampled_from(["step", "time"])))
        for name in names:
            points = data.draw(
                st.lists(st.tuples(_XS, st.floats(allow_infinity=False)), max_size=12)
            )
            xs, ys = [x for x, _ in points], [y for _, y in points]
            finite = [y for y in ys if y == y]
            if points:
                end = (xs[-1], finite[-1]) if finite else None
                panel.lines.append(
                    Line(name, "o", tuple(xs), tuple(ys), len(xs), 0, None, None, end)
                )
                panel.spots.append(Spot(name, name, 1, xs[0], ys[0]))
                panel.moments.append(Moment("m", 1, xs[0]))
            if len(finite) > 3 and min(finite) < max(finite):
                panel.usual = (-1.0, 1.0)
        panels.append(panel)
    picture = Picture("$t", "_s", "c", panels, jobs, dict.fromkeys(names, ""), {})
    png = draw(picture, "png", (4.0, 3.0))
    assert size_of(png) == (4 * DPI, 3 * DPI)
