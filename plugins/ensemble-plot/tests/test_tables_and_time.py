"""Tests of ``ensemble plot RUN TABLE`` and ``ensemble plot --timeline``."""

from __future__ import annotations

import json
import os
import re
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import ensemble_core as ensemble
from ensemble_core.cli.main import main

STUDY = """
jobs:
  - {name: sim, command: "echo m={T}{L}", parameters: {T: [3, 1, 2], L: [8, 16]}, replicas: 2,
     observe: {key-value: {}}, result: {m: last.m}}
  - {name: bad, command: 'false'}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: sim}}
  - {id: then, trigger: idle, name: sim, action: {name: submit, label: bad}}
  - {trigger: job-fail, name: bad, action: {name: log, message: bad}}
results:
  curve: {of: sim, by: [T, L], columns: {m: mean.m, e: error.m, n: n},
          plot: {x: T, y: [m, n], errors: {m: e}}}
  one: {of: sim, by: [T], columns: {m: mean.m}, plot: {x: T, y: m}}
  none: {of: sim, where: m > 1e9, columns: {m: m}, plot: {x: index, y: m}}
  silent: {of: sim, columns: {m: m}}
  sizes: {of: sim, by: [T], pivot: L, columns: {m: mean.m, e: error.m, gap: 'm[16] - m[8]'},
          plot: {x: T, y: [m, gap, 'm[8]'], errors: {m: e}}}
"""


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plots")
    (folder / "study.yaml").write_text(STUDY)
    run = ensemble.run(folder / "study.yaml", executor="local", state=folder, tag="t")
    assert run.exit_code == 0
    return folder


def plot(state: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["plot", "t", *arguments, "--state", str(state)])


def data(state: Path, *arguments: str) -> dict[str, Any]:
    result = plot(state, *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_table_has_a_panel_for_each_y_and_a_curve_for_each_other_parameter(state: Path) -> None:
    curves = data(state, "curve")["curves"]
    assert [(c["y"], c["label"], c["xs"], c["ys"]) for c in curves] == [
        ("m", "L = 8", [1, 2, 3], [18.0, 28.0, 38.0]),
        ("m", "L = 16", [1, 2, 3], [116.0, 216.0, 316.0]),
        ("n", "L = 8", [1, 2, 3], [2.0] * 3),
        ("n", "L = 16", [1, 2, 3], [2.0] * 3),
    ]
    assert [c["errors"] for c in curves] == [[0.0] * 3, [0.0] * 3, None, None]
    assert [c["label"] for c in data(state, "one")["curves"]] == [""]


def test_the_column_with_the_error_of_a_mean_gives_error_bars(state: Path) -> None:
    file = state / "study.yaml"
    shorter = STUDY.replace(", errors: {m: e}", "")
    assert shorter.count("errors") == 0
    file.write_text(shorter)
    run = ensemble.run(file, executor="local", state=state, tag="default")
    assert run.exit_code == 0
    for table in ("curve", "sizes"):
        found = CliRunner().invoke(
            main, ["plot", "default", table, "--json", "--state", str(state)]
        )
        curves = json.loads(found.stdout)["curves"]
        assert [c["errors"] for c in curves] == [[0.0] * 3, [0.0] * 3, None, None]


def test_an_unknown_error_is_not_drawn_as_zero_and_gaps_are_counted(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("""
jobs:
  - {name: sim, command: "echo m={T}{g}", parameters: {T: [1, 2], g: [0.1000001, 0.1000002]},
     observe: {key-value: {}}, result: {m: last.m}}
rules: [{trigger: start, action: {name: submit, label: sim}}]
results:
  curve: {of: sim, by: [T, g], columns: {m: mean.m, e: error.m, z: 1 / (T - 1)},
          plot: {x: T, y: [m, z], errors: {m: e}}}
""")
    ensemble.run(tmp_path / "study.yaml", executor="local", state=tmp_path, tag="t")
    m, other, *_ = data(tmp_path, "curve")["curves"]
    assert m["errors"] == other["errors"] == [None, None]
    assert (m["label"], other["label"]) == ("g = 0.1000001", "g = 0.1000002")
    drawn = plot(tmp_path, "curve", "-o", str(tmp_path / "curve.svg"))
    assert drawn.exit_code == 0, drawn.output
    assert "gaps: 2 values are missing in z" in drawn.output


def test_a_column_with_pivot_values_has_a_curve_for_each(state: Path) -> None:
    curves = data(state, "sizes")["curves"]
    assert [(c["y"], c["label"], c["ys"]) for c in curves] == [
        ("m", "L = 8", [18.0, 28.0, 38.0]),
        ("m", "L = 16", [116.0, 216.0, 316.0]),
        ("gap", "", [98.0, 188.0, 278.0]),
        ("m[8]", "", [18.0, 28.0, 38.0]),
    ]
    assert [c["errors"] for c in curves] == [[0.0] * 3, [0.0] * 3, None, None]


def test_a_figure_has_the_requested_size_in_any_format(state: Path, tmp_path: Path) -> None:
    for ending in ("png", "pdf", "svg"):
        file = tmp_path / f"figure.{ending}"
        result = plot(state, "curve", "-o", str(file), "--size", "8.6x12cm")
        assert result.exit_code == 0, result.output
        content = file.read_bytes()
        if ending == "png":
            width, height = struct.unpack(">II", content[16:24])
            assert (width, height) == (int(8.6 / 2.54 * 160), int(12 / 2.54 * 160))
        elif ending == "pdf":
            box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", content)
            assert box is not None
            assert [float(each) / 72 * 2.54 for each in box.groups()] == pytest.approx(
                [8.6, 12], abs=0.01
            )
        else:
            found = re.search(rb'width="([\d.]+)pt" height="([\d.]+)pt"', content)
            assert found is not None
            assert float(found[1]) / 72 * 2.54 == pytest.approx(8.6, abs=0.01)


def test_a_figure_has_a_title_only_if_requested(state: Path, tmp_path: Path) -> None:
    plain, titled = tmp_path / "plain.svg", tmp_path / "titled.svg"
    assert plot(state, "one", "-o", str(plain)).exit_code == 0
    assert plot(state, "one", "-o", str(titled), "--title", "Figure 1").exit_code == 0
    assert plain.read_text().count("<!-- Figure 1 -->") == 0
    assert titled.read_text().count("<!-- Figure 1 -->") == 1
    assert "<!-- T -->" in plain.read_text()
    assert plot(state, "one", "-o", str(titled)).exit_code == 0
    assert titled.read_bytes() == plain.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["silent"], 2, "has no 'plot'"),
        (["none"], 2, "no row of table 'none' has index and m"),
        (["curv"], 2, "did you mean 'curve'"),
        (["curve", "--variable", "m"], 2, "--variable cannot be combined with a table"),
        (["curve", "--timeline"], 2, "--timeline cannot be combined with a table"),
        (["--timeline", "--x", "time"], 2, "--x cannot be combined with --timeline"),
        (["--timeline", "--group", "simm"], 2, "the run has no jobs of simm"),
        (["curve", "-o", "figure.gif"], 2, "use one of these endings: .png, .svg, .pdf"),
        (["curve", "-o", "figure.png", "--size", "8"], 2, "16x10cm"),
        (["curve", "-o", "none/figure.png"], 2, "the folder none does not exist"),
    ],
)
def test_impossible_figures_are_rejected(
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = plot(state, *arguments)
    assert result.exit_code == code
    assert said in f"{result.stderr} {result.exception}"
    assert list(tmp_path.iterdir()) == []


def test_a_timeline_has_a_bar_for_each_job_and_the_firings(state: Path, tmp_path: Path) -> None:
    told = data(state, "--timeline")
    assert len(told["bars"]) == 13
    assert {bar["group"] for bar in told["bars"]} == {"sim", "bad"}
    assert [bar["outcome"] for bar in told["bars"]][-1] == "failed"
    assert sorted(told["firings"]) == ["begin", "rule-3", "then"]
    for bar in told["bars"]:
        assert 0 <= bar["submitted"] <= bar["start"] <= bar["end"]
    for line in range(told["lines"]):  # no bars overlap
        spans = sorted((b["start"], b["end"]) for b in told["bars"] if b["line"] == line)
        assert all(one[1] <= other[0] for one, other in pairwise(spans))
    assert {bar["group"] for bar in data(state, "--timeline", "--group", "bad")["bars"]} == {"bad"}
    file = tmp_path / "timeline.png"
    assert plot(state, "--timeline", "-o", str(file)).exit_code == 0
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.checkout
def test_a_timeline_of_a_simulated_run_has_its_nodes(tmp_path: Path) -> None:
    pytest.importorskip("ensemble_simulate")
    file = tmp_path / "study.yaml"
    file.write_text(
        "jobs: [{name: wide, command: x, nodes: 2, tasks: 2}, {name: small, command: y, count: 5}]\n"
        "rules:\n"
        "  - {id: a, trigger: start, action: [{name: submit, label: wide}, {name: submit, label: small}]}\n"
        "simulate: {jobs: {wide: 1h, small: 20m}}\n"
    )
    state = tmp_path / "state"
    words = ["simulate", str(file), "-q", "--nodes", "3", "--cores-per-node", "1", "--tag", "one"]
    assert CliRunner().invoke(main, [*words, "--state", str(state)]).exit_code == 0
    told = CliRunner().invoke(main, ["plot", "one", "--timeline", "--json", "--state", str(state)])
    data = json.loads(told.stdout)
    assert data["nodes"] == [[0, 0, 1], [1, 1, 1], [2, 2, 1]]
    wide = [bar["node"] for bar in data["bars"] if bar["group"] == "wide"]
    assert len(wide) == 2  # a bar on each of its nodes
    for line in range(data["lines"]):
        spans = sorted((b["start"], b["end"]) for b in data["bars"] if b["line"] == line)
        assert all(one[1] <= other[0] for one, other in pairwise(spans))
    picture = tmp_path / "timeline.png"
    drawn = ["plot", "one", "--timeline", "-o", str(picture), "--state", str(state)]
    assert CliRunner().invoke(main, drawn).exit_code == 0
    assert picture.stat().st_size > 5000


SEARCH = """
jobs:
  - {name: sim, command: "echo E={a} F={a}{b}", observe: {key-value: {}},
     result: {E: last.E, F: last.F}}
generators:
  - {name: low, use: grid, group: sim, variables: {a: {values: [3, 1, 2]}, b: {values: [0, 5]}},
     objectives: OBJECTIVES, constraints: {F: "< 35"}}
  - {name: never, use: grid, group: sim, variables: {a: {values: [1]}, b: {values: [1]}},
     objectives: {E: minimize}, enabled: false}
"""


def searched(folder: Path, objectives: str) -> Path:
    (folder / "search.yaml").write_text(SEARCH.replace("OBJECTIVES", objectives))
    run = ensemble.run(folder / "search.yaml", executor="local", state=folder, tag="t")
    assert run.exit_code == 0
    return folder


def test_a_generators_figure_has_its_points_and_the_best_so_far(tmp_path: Path) -> None:
    state = searched(tmp_path, "{E: minimize}")
    told = data(state, "low")
    assert told["x"] == "point"
    assert [(c["y"], c["label"], c["xs"], c["ys"]) for c in told["curves"]] == [
        ("E", "points", [0, 2, 3, 4, 5], [3.0, 1.0, 1.0, 2.0, 2.0]),
        ("E", "violates a constraint", [1], [3.0]),
        ("E", "best so far", [0, 2, 3, 4, 5], [3.0, 1.0, 1.0, 1.0, 1.0]),
    ]
    file = tmp_path / "low.svg"
    assert plot(state, "low", "-o", str(file)).exit_code == 0
    drawn = file.read_text()
    for text in ("point", "E", "points", "best so far", "violates a constraint"):
        assert f"<!-- {text} -->" in drawn
    result = plot(state, "lov", "-o", str(file))
    assert result.exit_code == 2
    assert "did you mean 'low'" in f"{result.stderr} {result.exception}"
    result = plot(state, "never", "-o", str(file))
    assert result.exit_code == 2
    assert "no point of generator 'never' is finished" in (f"{result.stderr} {result.exception}")


def test_a_generator_with_two_objectives_has_a_pareto_front(tmp_path: Path) -> None:
    state = searched(tmp_path, "{E: minimize, F: maximize}")
    told = data(state, "low")
    assert told["x"] == "E"
    assert [(c["y"], c["label"], c["xs"], c["ys"]) for c in told["curves"]] == [
        ("F", "points", [3.0, 1.0, 1.0, 2.0, 2.0], [30.0, 10.0, 15.0, 20.0, 25.0]),
        ("F", "violates a constraint", [3.0], [35.0]),
        ("F", "Pareto front", [1.0, 2.0, 3.0], [15.0, 25.0, 30.0]),
    ]
    file = tmp_path / "front.svg"
    assert plot(state, "low", "-o", str(file)).exit_code == 0
    assert "<!-- Pareto front -->" in file.read_text()


def test_a_timeline_has_a_bar_for_each_attempt(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "jobs: [{name: sim, command: 'false', retry: {times: 2}}]\n"
        "rules: [{trigger: start, action: {name: submit, label: sim}}]\n"
    )
    state = ["--state", str(tmp_path / "state")]
    CliRunner().invoke(main, ["run", str(tmp_path / "study.yaml"), "--tag", "one", *state])
    told = CliRunner().invoke(main, ["plot", "one", "--timeline", "--json", *state])
    bars = json.loads(told.stdout)["bars"]
    assert [bar["job"] for bar in bars] == ["sim.0", "sim.0-1", "sim.0-2"]
    assert all(a["end"] <= b["start"] for a, b in pairwise(bars))


def test_a_job_that_was_cancelled_while_it_waited_needs_no_line_of_its_own(tmp_path: Path) -> None:
    every_core = len(os.sched_getaffinity(0))
    study = {
        "jobs": [{"name": "sim", "command": "sleep 60", "count": 4, "tasks": every_core}],
        "rules": [
            {"trigger": "start", "action": {"name": "submit", "label": "sim"}},
            {
                "trigger": "interval",
                "seconds": 0.8,
                "when": "queue.run == 1",
                "action": {"name": "cancel", "label": "sim"},
            },
        ],
    }
    ensemble.run(study, executor="local", state=tmp_path, tag="t")
    told = data(tmp_path, "--timeline")
    assert [bar["outcome"] for bar in told["bars"]] == ["cancelled"] * 4
    assert (told["lines"], {bar["line"] for bar in told["bars"]}) == (1, {0})
    waited = [bar for bar in told["bars"] if bar["start"] is None]
    assert len(waited) == 3
    assert all(bar["end"] > bar["submitted"] + 0.5 for bar in waited)
