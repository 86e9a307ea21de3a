"""``ensemble observe``: the rows of a file, without a run."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ensemble_core.cli.main import main

LOG = "begin\n step  loss\n    1  0.5\n    2  nan\n    3  ***\nend epoch=4\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "out.log"
    path.write_text(LOG)
    return path


def invoke(*words: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["observe", *map(str, words)], input=stdin)


def test_rows_columns_and_unreadable_values_are_shown(log: Path) -> None:
    done = invoke(log, "--with", "table: {fields: [loss], clock: step}")
    assert done.exit_code == 0
    assert "table: 3 rows, 1 column" in done.stdout
    shown = [line.split() for line in done.stdout.splitlines()]
    assert shown[1:] == [["clock", "loss"], ["1", "0.5"], ["2", "nan"], ["3", "nan"]]
    assert "loss could not be read in 1 of 6 lines, first: '***' in line 5" in done.stderr


def test_only_the_first_rows_are_shown_and_the_last_values(tmp_path: Path) -> None:
    path = tmp_path / "many"
    path.write_text("".join(f"E={number}\n" for number in range(50)))
    done = invoke(path, "--with", "key-value", "--rows", 2)
    assert done.stdout.splitlines()[2:] == ["  0", "  1", "  and 48 more; last values: E 49"]


def test_exit_code_0_needs_a_row(log: Path) -> None:
    done = invoke(log, "--with", "table: {fields: [los]}")
    assert done.exit_code == 1
    assert "no field 'los'; found 'loss', 'step'" in done.stderr


def test_without_options_every_observer_is_tried(log: Path) -> None:
    done = invoke(log)
    assert done.exit_code == 0
    assert "table: 3 rows, 2 columns" in done.stdout
    assert "key-value: 1 row, 1 column" in done.stdout
    assert "json-lines" not in done.stdout
    log.write_text("nothing\n")
    done = invoke(log)
    assert done.exit_code == 1
    assert '--with "regex:' in done.stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "t  E\n0,1  1,25\n",
            "table: 2 lines, none of them a row of numbers below a header; if a ",
        ),
        ("mem=3.4GB\n", "; 'mem=3.4GB' is no number"),
    ],
)
def test_a_file_without_rows_is_explained(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "out.log"
    path.write_text(text)
    done = invoke(path)
    assert done.exit_code == 1
    assert why in done.stderr
    assert "use the observer" not in done.stderr


def test_the_observers_of_a_job_group_are_used(log: Path, tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(
        "jobs:\n  - {name: a, command: x}\n"
        "  - {name: b, command: x, observe: {table: {fields: [loss], path: f}}}\n"
        "  - {name: c, command: x, observe: {key-value: {fields: [epoch]}}}\n"
        "rules: [{trigger: start, action: {name: submit, label: b}}]\n"
    )
    assert "key-value: 1 row" in invoke(log, "--in", study, "--group", "c").stdout
    assert "table: 3 rows" in invoke(log, "--in", study, "--group", "b").stdout
    for words in (["--in", study], ["--in", study, "--group", "a"], ["--group", "b"]):
        assert invoke(log, *words).exit_code == 2
    assert "b, c" in invoke(log, "--in", study).stderr


def test_json_has_a_line_for_each_observer(log: Path) -> None:
    done = invoke(log, "--with", "{table: {fields: [loss]}, key-value: {}}", "--json")
    table, pairs = map(json.loads, done.stdout.splitlines())
    assert (table["observer"], table["count"], table["columns"]) == ("table", 3, {"loss": 3})
    assert [row["values"]["loss"] for row in table["rows"]] == [0.5, None, None]
    assert "could not be read" in table["problem"]
    assert pairs["rows"] == [{"clock": None, "values": {"epoch": 4}}]


def test_standard_input_is_read() -> None:
    assert "1 row" in invoke("-", "--with", "key-value", stdin="E=1\n").stdout


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("tabel", "did you mean 'table'?"),
        ("table: {field: [a]}", "did you mean 'fields'?"),
        ("table: {fields: [a", "not YAML"),
        ("regex: {fields: {E: '('}}", "invalid pattern for 'E'"),
        ("regex", "fields"),
        ("[table]", "expected a mapping"),
    ],
)
def test_a_mistake_in_the_observer_is_explained(log: Path, given: str, what: str) -> None:
    done = invoke(log, "--with", given)
    assert done.exit_code == 2
    assert what in str(done.stderr)
    assert done.stdout == ""


def test_a_missing_or_compressed_file_is_an_error(tmp_path: Path) -> None:
    assert "cannot read" in invoke(tmp_path / "none", "--with", "table").stderr
    packed = tmp_path / "log"
    for module, program in ((gzip, "zcat"), (bz2, "bzcat"), (lzma, "xzcat")):
        packed.write_bytes(module.compress(LOG.encode()))
        done = invoke(packed, "--with", "table")
        assert done.exit_code == 2
        assert f" {program} " in done.stderr


@pytest.mark.parametrize("method", ["feed", "finish"])
def test_an_observer_that_fails_is_named_and_others_go_on(
    log: Path, tmp_path: Path, method: str
) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "from ensemble_core import Observer, ObserverPlugin, hookimpl\n"
        "class Odd(Observer):\n"
        "    path = None\n"
        "    def feed(self, data): return []\n"
        f"    def {method}(self, *data): raise KeyError('no such thing')\n"
        "@hookimpl\n"
        "def ensemble_observers():\n"
        "    return [ObserverPlugin(name='odd', summary='-', build=lambda job, options: Odd())]\n"
    )
    done = invoke(log, "--with", "odd", "--plugin", plugin)
    assert done.exit_code == 1
    assert "the observer 'odd' failed after 0 rows: KeyError" in done.stderr
    done = invoke(log, "--plugin", plugin)
    assert done.exit_code == 0
    assert "key-value: 1 row" in done.stdout
    assert "the observer 'odd' failed" in done.stderr


def test_several_files_are_parts_of_one_output(tmp_path: Path) -> None:
    names = [f"md.part{number}.csv" for number in (1, 2, 10)]
    for name, text in zip(names, ("step,x\n1,5\n2,6", "3,7\n", "step,x\n4,8\n"), strict=True):
        (tmp_path / name).write_text(text)
    done = invoke(*sorted(tmp_path.iterdir()), "--with", "table: {clock: step}", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [(row["clock"], row["values"]["x"]) for row in rows] == [(1, 5), (2, 6), (3, 7), (4, 8)]


def test_the_proposed_pattern_can_be_typed_in_a_shell(log: Path) -> None:
    log.write_text("E = 5\nnothing else: or so\n")
    done = invoke(log, "--with", 'regex: {fields: {E: "E = (\\S+)"}}')
    assert done.exit_code == 2
    assert "write the text in single quotes" in done.stderr
    assert invoke(log, "--with", "regex: {fields: {E: 'E = (\\S+)'}}").exit_code == 0


def test_patterns_for_results_are_proposed_first(tmp_path: Path) -> None:
    """Gaussian prints many other lines that no observer reads."""
    log = tmp_path / "gaussian.log"
    other = " Leave Link    1 at Wed Apr  4 10:18:37 2018, MaxMem=    52428800 cpu:     0.0\n"
    text = " ! R1    R(1,2)     1.3916   estimate D2E/DX2     !\n" * 9 + other * 4
    text += " SCF Done:  E(RB3LYP) =  -382.294279146     A.U. after   12 cycles\n" * 2
    log.write_text(text)
    shown = invoke(log).stderr
    lines = [line for line in shown.splitlines() if "--with" in line]
    assert "E\\(RB3LYP\\) += +(?P<E>" in lines[0] or "SCF +Done" in lines[0], shown
    assert len(lines) == 3
