"""Tests of rows as pandas, polars and Arrow tables. Each library is imported on first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ensemble_core import Rows, UsageError

ROWS = [
    {"T": 2, "m": 0.5, "ok": True, "note": "a", "mixed": 1, "nothing": None, "large": 2**70},
    {"T": 3, "m": 1, "ok": None, "mixed": "b", "nothing": None, "large": 1},
    {"T": None, "m": None, "ok": False, "note": "c", "mixed": 2.5, "nothing": None, "large": None},
]


@pytest.fixture
def rows() -> Rows:
    return Rows(tuple(ROWS[0]), ROWS)


@pytest.mark.checkout
def test_arrow_has_one_type_for_each_column(rows: Rows) -> None:
    pytest.importorskip("pyarrow")
    with pytest.warns(UserWarning, match="mixed has numbers and text"):
        table = rows.to_arrow()
    assert [str(field.type) for field in table.schema] == [
        *("int64", "double", "bool", "string", "string", "string", "double"),
    ]
    assert table.column("mixed").to_pylist() == ["1", "b", "2.5"]
    assert table.column("T").to_pylist() == [2, 3, None]
    assert table.column("large").to_pylist() == [float(2**70), 1.0, None]


@pytest.mark.checkout
def test_polars_and_pandas_get_the_same_values(rows: Rows) -> None:
    polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    with pytest.warns(UserWarning, match="mixed"):
        frame = rows.to_polars()
    assert frame["T"].to_list() == [2, 3, None]
    assert frame.schema["m"] == polars.Float64
    with pytest.warns(UserWarning, match="mixed"):
        other = rows.to_pandas()
    assert list(other.columns) == list(rows.names)
    assert list(other["mixed"]) == ["1", "b", "2.5"]
    assert pandas.isna(other["m"][2])


@pytest.mark.checkout
def test_table_without_rows_keeps_its_columns() -> None:
    pytest.importorskip("pyarrow")
    empty = Rows(("T", "m"), [])
    assert empty.to_arrow().column_names == ["T", "m"]
    assert list(empty.to_pandas().columns) == ["T", "m"]
    assert empty.to_polars().columns == ["T", "m"]


@pytest.mark.parametrize(
    ("library", "install"),
    [
        ("pandas", "pip install pandas"),
        ("polars", "pip install polars"),
        ("pyarrow", "pip install pyarrow; CSV and JSON do not need it"),
    ],
)
def test_missing_library_is_reported_with_an_install_hint(
    rows: Rows, library: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UsageError) as raised:
        {"pandas": rows.to_pandas, "polars": rows.to_polars, "pyarrow": rows.to_arrow}[library]()
    assert raised.value.code == f"no-{library}"
    assert raised.value.hint == install
    assert library in raised.value.what


def test_libraries_are_imported_only_on_use() -> None:
    code = (
        "import sys, ensemble_core as e\n"
        "e.run({'jobs': [{'name': 'a', 'command': 'true'}], 'rules': [{'trigger': 'start', "
        "'action': {'name': 'submit'}}]}, executor='local').results()\n"
        "print([m for m in ('pandas', 'polars', 'pyarrow', 'numpy', 'IPython') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
