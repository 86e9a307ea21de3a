"""Numbers arrive as printed: from a job's output over results and tables to a generator."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from ensemble_core import open_run
from ensemble_core.cli.main import main
from ensemble_core.model.numbers import format_number

#: Printed by the job: the largest whole number that a float has with all its neighbours, and more
#: digits than a table shows. ``POINT`` is suggested by the generator.
WHOLE, FINE, POINT = 2**53, -76543.1234567891, float(2**53 - 1)

PLUGIN = f"""
from ensemble_core import Generator, GeneratorPlugin, hookimpl


class Told(Generator):
    def suggest(self, count):
        return [{{"x": {POINT!r}}}] * count

    def ingest(self, points):
        with open("told", "a") as file:
            for point in points:
                n, energy = point.values["n"], point.values["E"]
                file.write(f"{{point.parameters['x']!r}} {{n!r}} {{energy!r}}\\n")


@hookimpl
def ensemble_generators():
    return [GeneratorPlugin(name="told", summary="tells", build=lambda vocs, options: Told())]
"""
FILE = f"""
jobs:
  - name: sim
    command: [echo, 'n={WHOLE} E={FINE!r} printed={{x}}']
    observe: {{key-value: {{}}}}
    result: {{n: last.n, E: last.E, printed: last.printed}}
generators:
  - name: search
    use: told
    group: sim
    variables: {{x: [0, 1.0e+16]}}
    objectives: {{E: minimize, n: minimize}}
    at_once: 1
    until: count.done >= 1
"""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float(WHOLE), str(WHOLE)),
        (-float(WHOLE), str(-WHOLE)),
        (1234567.0, "1234567"),
        (1234567.5, "1.23457e+06"),
        (2.0**54, "1.80144e+16"),
        (1e300, "1e+300"),
        (1 / 3, "0.333333"),
        (0.0, "0"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_whole_numbers_up_to_2_to_the_53_have_all_their_digits(value: float, text: str) -> None:
    assert format_number(value) == text


def test_numbers_are_the_same_in_results_tables_files_and_generators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("told.py").write_text(PLUGIN)
    Path("study.yaml").write_text(FILE)

    def said(*arguments: str) -> str:
        found = CliRunner().invoke(main, [*arguments, "--state", "state"])
        assert found.exit_code == 0, found.output
        return found.stdout

    said("run", "--plugin", "told.py", "--executor", "local", "study.yaml")
    right = {"n": float(WHOLE), "E": FINE, "printed": POINT}
    assert Path("told").read_text().split("\n")[0] == f"{POINT!r} {right['n']!r} {FINE!r}"
    shown = said("results", "last")
    assert str(WHOLE) in shown
    assert "e+15" not in shown
    ran = open_run("last", state="state")
    assert "e+15" not in ran.results()._repr_html_()
    (row,) = csv.DictReader(io.StringIO(said("results", "last", "--csv")))
    assert {name: float(row[name]) for name in right} == right
    assert row["n"] == str(WHOLE)  # as printed: without a point
    (row,) = json.loads(document := said("results", "last", "--json"))
    assert f'"n":{WHOLE},' in document
    assert {name: row[name] for name in right} == right
    parquet = pytest.importorskip("pyarrow.parquet")
    said("results", "last", "-o", "r.parquet")
    (row,) = parquet.read_table("r.parquet").to_pylist()
    assert {name: row[name] for name in right} == right
