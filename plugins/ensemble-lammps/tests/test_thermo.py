"""Tests of the thermo reader: it reads all rows, and no similar lines."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Sequence

import pytest
from ensemble_lammps.thermo import LONGEST_LINE, ThermoReader

from ensemble_core.plugin.observer import Row

MEMORY = "Per MPI rank memory allocation (min/avg/max) = 3.1 | 3.1 | 3.1 Mbytes\n"
LOOP = "Loop time of 0.5 on 1 procs for 20 steps with 108 atoms\n"

ONE = (
    "LAMMPS (22 Jul 2025)\nrun 20\n"
    + MEMORY
    + "   Step          Temp          Press     \n"
    + "         0   1.44          -5.03        \n"
    + "        10   1.13          -2.62        \n"
    + "        20   0.63           0.95        \n"
    + LOOP
)

MULTI = (
    MEMORY
    + "------------ Step              0 ----- CPU =            0 (sec) -------------\n"
    + "TotEng   =        -4.6334 KinEng   =         2.1400 Temp     =         1.4400 \n"
    + "c_msd[4] =         0.0000 Press    =        -5.0309\n"
    + "------------ Step             10 ----- CPU =  0.000602975 (sec) -------------\n"
    + "TotEng   =        -4.6336 KinEng   =         1.6839 Temp     =         1.1331 \n"
    + "SHAKE stats the user should know = 3\n"
    + "The temperature now is = 3\na = 3\n"
    + "c_msd[4] =         0.0100 Press    =        -2.6265\n"
    + LOOP
)

YAML = (
    MEMORY
    + "---\nkeywords: ['Step', 'Temp', 'v_n', 'My \"P\"', ]\ndata:\n"
    + "  - [0, 1.44, -nan, -5.03, ]\n"
    + "WARNING: in between\n"
    + "  - [10, 1.13, .inf, -2.62, ]\n"
    + "...\n"
    + LOOP
    + "Total wall time: 1:02:03\n"
)


def read(text: str | bytes, columns: Sequence[str] | None = None) -> list[Row]:
    reader = ThermoReader(columns)
    data = text.encode() if isinstance(text, str) else text
    return [*reader.feed(data), *reader.finish()]


def told(rows: Sequence[Row]) -> list[tuple[dict[str, float | str], float | None]]:
    """Return rows with "nan" for nan, so that they compare as equal."""
    return [({n: v if v == v else "nan" for n, v in row.values.items()}, row.clock) for row in rows]


def values(text: str, name: str) -> list[float]:
    return [row.values[name] for row in read(text) if name in row.values]


def test_a_table_gives_its_rows_by_column_with_the_step_as_clock() -> None:
    assert read(ONE) == [
        Row({"Step": 0, "Temp": 1.44, "Press": -5.03}, 0),
        Row({"Step": 10, "Temp": 1.13, "Press": -2.62}, 10),
        Row({"Step": 20, "Temp": 0.63, "Press": 0.95}, 20),
        Row({"LoopTime": 0.5, "LoopSteps": 20, "StepsPerSecond": 40, "Atoms": 108}, 20),
    ]


def test_multi_line_rows_are_read() -> None:
    first = {"Step": 0, "CPU": 0, "TotEng": -4.6334, "KinEng": 2.14, "Temp": 1.44}
    second = {"Step": 10, "CPU": 0.000602975, "TotEng": -4.6336, "KinEng": 1.6839, "Temp": 1.1331}
    assert read(MULTI)[:2] == [
        Row({**first, "c_msd[4]": 0, "Press": -5.0309}, 0),
        Row({**second, "c_msd[4]": 0.01, "Press": -2.6265}, 10),
    ]


def test_a_name_with_a_number_in_style_multi_is_read() -> None:
    row = (
        "------------ Step %14d ----- CPU =  0.000602975 (sec) -------------\n"
        "Step 5 a = %14.4f Press    = %14.4f\n"
    )
    text = "".join(row % (step, step / 2, 1.5) for step in range(0, 50, 10))
    assert told(read(text, ["Step 5 a"])) == [({"Step 5 a": n * 5.0}, n * 10.0) for n in range(5)]


@pytest.mark.parametrize("columns", [None, ["Temp"], ["Press", "Step"], ["Atoms"]])
@pytest.mark.parametrize("style", ["one", "yaml", "multi"])
def test_usual_rows_are_what_reading_line_by_line_gives(
    style: str, columns: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = ("1.5", "-2e9", "nan", "-1e999", "1.#QNAN", "1_0", "0x1", "1.2.3", "1-2", "infinity", "e")
    multi = (
        "------------ Step %14d ----- CPU =  0.000602975 (sec) -------------\n"
        "Temp     = %14s \nPress    = %14s\n"
    )
    head, row = {
        "one": ("   Step          Temp          Press     \n", "%10d   %-12s   %-12s \n"),
        "yaml": ("keywords: ['Step', 'Temp', 'Press', ]\n", "  - [%d, %s, %s, ]\n"),
        "multi": ("", multi),
    }[style]
    cells = [
        pair for word in odd for pair in ((word, "7.25"), ("1", "2"), ("7.25", word), ("3", "4"))
    ]
    steps = [0, 5, 10, 10, 20, 15, *range(30, 30 + len(cells))]
    text = (
        MEMORY
        + head
        + "".join(row % (step, *each) for step, each in zip(steps, cells, strict=False))
    )
    text = (text + "WARNING: between\n" + row % (900, "1", "2") + LOOP) * 2
    usual = told(read(text, columns))
    assert usual == told(read(text.replace("\n", "\r\n"), columns))
    monkeypatch.setattr("ensemble_lammps.thermo.Table.usual_rows", lambda self, lines, at, out: at)
    assert usual == told(read(text, columns))
    assert len(usual) > 2 * len(cells) / 3 or columns == ["Atoms"]


def test_a_multi_line_row_is_complete_with_its_last_line_once_the_size_is_known() -> None:
    reader = ThermoReader()
    before, last = MULTI.split("c_msd[4] =         0.0100")
    assert [row.clock for row in reader.feed(before.encode())] == [0]
    line, _ = last.split("\n", 1)
    assert reader.feed(b"c_msd[4] =         0.0100" + line.encode()) == []
    assert [row.clock for row in reader.feed(b"\n")] == [10]


def test_the_only_multi_line_row_of_a_killed_run_is_not_lost() -> None:
    cut = MULTI[: MULTI.index("------------ Step             10")]
    assert [row.values["Press"] for row in read(cut)] == [-5.0309]


def test_yaml_rows_are_read_and_values_that_are_not_finite_counted() -> None:
    inf = float("inf")
    multi = read(MULTI.replace("-5.0309", "1.#QNAN"))
    assert next(str(row.values["Press"]) for row in multi if "Press" in row.values) == "nan"
    assert len(multi) == len(read(MULTI))
    assert told(read(YAML)) == [
        ({"Step": 0, "Temp": 1.44, "v_n": "nan", 'My "P"': -5.03, "NonFinite": 1}, 0),
        ({"Warnings": 1}, 0),
        ({"Step": 10, "Temp": 1.13, "v_n": inf, 'My "P"': -2.62, "NonFinite": 1}, 10),
        (
            {"LoopTime": 0.5, "LoopSteps": 20, "StepsPerSecond": 40, "Atoms": 108, "Warnings": 1},
            10,
        ),
        ({"WallTime": 3723}, None),
    ]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("nan", "nan"),
        ("-nan", "nan"),
        ("NaN", "nan"),
        ("-nan(0x7ff)", "nan"),
        ("-nan(ind)", "nan"),
        ("1.#QNAN", "nan"),
        ("-1.#IND000", "nan"),
        ("-1.#INF", -float("inf")),
        ("inf", float("inf")),
        ("-inf", -float("inf")),
        ("-1e999", -float("inf")),
    ],
)
def test_values_that_are_not_finite_are_reported(word: str, value: float | str) -> None:
    row = read(ONE.replace("1.13 ", word + " "))[1]
    assert told([row]) == [({"Step": 10, "Temp": value, "Press": -2.62, "NonFinite": 1}, 10)]
    yaml = {"nan": ".nan", "inf": ".inf", "-inf": "-.inf", "NaN": ".NaN"}
    row = read(YAML.replace("1.13", yaml.get(word, word)))[2]
    assert told([row])[0][0]["Temp"] == value


def test_a_value_that_grows_wider_than_its_column_is_read() -> None:
    # The run blows up: the values fill the blank at the end of the line.
    text = ONE.replace(" 1.13          -2.62        \n", " 6.3018893e+19  5.2707952e+19\n")
    assert read(text)[1] == Row({"Step": 10, "Temp": 6.3018893e19, "Press": 5.2707952e19}, 10)
    text = ONE.replace("        20   0.63 ", "12345678901   0.63 ")
    assert read(text)[2].clock == 12345678901


@pytest.mark.parametrize("first", ["  0  5.0", "0 5.0", "0                   -5.0"])
def test_rows_in_a_user_defined_format_are_read(first: str) -> None:
    shaped = first + "\n" + first.replace("0 ", "5 ", 1).replace("5.0", "7.0") + "\n"
    text = MEMORY + "   Step          Press     \n" + shaped + LOOP
    assert values(text, "Step") == [0, 5]


@pytest.mark.parametrize(
    "between",
    [
        "Fix halt condition for fix-id h met on step 10 with value 0.0018\n",
        "Temp is 1.6\n",
        "Temp\n",
        "Step Temp Press\n",
        "15 99 99\n",
        "  4 1.11138 1.88e-06\n",
        "SHAKE stats (type/ave/delta) on step 10\n  14 1.11138 1.88e-06\n",
        "\n",
        "        15   99\n",
        "        15   99   99   99 \n",
        "        15   9_9   99 \n",
        "        15   0x10   99 \n",
        "        15   1.2.3  99 \n",
        "         5   99     99 \n",
        "        10   99     99 \n",
        "       nan   99     99 \n",
        "---------------------------------------------------------------\n",
        "Volume   =  99\n",
        "data:\n  - [15, 99, 99, ]\n",
        "x" * (LONGEST_LINE + 1) + "\n",
    ],
)
def test_other_lines_between_rows_are_not_rows_and_hide_none(between: str) -> None:
    text = ONE.replace("        20   0.63", between + "        20   0.63")
    assert read(text) == read(ONE)


def test_warnings_between_rows_are_counted_and_hide_none() -> None:
    warning = "WARNING: Lost atoms: original 500 current 32 (src/thermo.cpp:526)\n"
    rows = read(ONE.replace("        20   0.63", warning * 2 + "        20   0.63"))
    assert rows[2:4] == [Row({"Warnings": 1}, 10), Row({"Warnings": 2}, 10)]
    assert rows[4] == read(ONE)[2]
    assert rows[5].values["Warnings"] == 2


def test_an_error_is_counted_and_ends_the_table() -> None:
    text = ONE.replace("        20   0.63", "ERROR: Lost atoms: original 500 current 32\n" * 1)
    assert read(text)[2] == Row({"Errors": 1}, 10)
    assert values(ONE + "ERRORS 1 2\n", "Errors") == []


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("Performance: 2633634.870 tau/day, 6096.377 timesteps/s, 3.048 Matom-step/s", "TauPerDay", 2633634.87),
        ("Performance: 12.960 ns/day, 1.852 hours/ns, 150.000 timesteps/s", "NsPerDay", 12.96),
        ("Performance: 500.000 fs/day, 0.048 hours/fs, 3.000 timesteps/s", "NsPerDay", 0.0005),
        ("99.2% CPU use with 16 MPI tasks x 2 OpenMP threads", "Ranks", 16),
    ],
)  # fmt: skip
def test_performance_is_reported_at_the_end_of_the_run(line: str, name: str, value: float) -> None:
    rows = read(ONE + "\n" + line + "\n\nMinimization stats:\n")
    assert rows[3].values["LoopTime"] == 0.5
    assert rows[3].values[name] == pytest.approx(value)
    assert len(rows) == 4


def test_ranks_are_known_without_a_summary() -> None:
    text = "  2 by 1 by 3 MPI processor grid\n" + ONE
    assert values(text, "Ranks") == [6]


def test_the_number_of_atoms_is_a_column_if_there_is_one() -> None:
    text = ONE.replace("Press", "Atoms")
    assert values(text, "Atoms") == [-5.03, -2.62, 0.95]


def test_numbers_outside_a_run_are_not_rows() -> None:
    after = "Histogram: 1 0 0\n        30   9 9 \n   1 2 3 \nTemp     =  3\n  - [1, 2, 3, ]\n"
    assert read(after + ONE + after) == read(ONE)


def test_several_runs_each_have_their_own_columns() -> None:
    second = (
        MEMORY
        + "   v_e           Temp          Step     \n"
        + "   7             2.0             20     \n"
        + LOOP
    )
    rows = read(ONE + second + ONE)
    assert rows[4] == Row({"v_e": 7, "Temp": 2.0, "Step": 20}, 20)
    assert rows[6:] == read(ONE)


def test_a_run_without_preparation_is_read_though_it_prints_no_memory_line() -> None:
    assert read(ONE + ONE.replace(MEMORY, "")) == read(ONE) * 2
    assert read(ONE.replace(MEMORY, "")) == read(ONE)


def test_a_run_without_preparation_has_the_renamed_columns() -> None:
    text = ONE.replace("     Temp     ", "   My Temp    ").replace("Press     ", "a_very_long_name")
    assert read(text + text.replace(MEMORY, "")) == read(text) * 2
    assert len(read(text)) == 4


def test_renamed_columns_are_read_even_with_spaces_in_their_names() -> None:
    text = ONE.replace("     Temp     ", "   My Temp    ").replace("Press", "Druck")
    assert read(text)[1].values == {"Step": 10, "My Temp": 1.13, "Druck": -2.62}


def test_a_table_without_steps_has_no_clock() -> None:
    text = ONE.replace("   Step   ", "  Elapsed ")
    assert read(text)[1] == Row({"Elapsed": 10, "Temp": 1.13, "Press": -2.62}, None)


def test_the_logs_of_older_versions_are_read() -> None:
    text = (
        "LAMMPS (11 Aug 2017)\nMemory usage per processor = 2.6 Mbytes\n"
        "Step Temp E_pair Press \n"
        "       0         1.44   -6.7733681   -5.0199732 \n"
        "      50    0.7038205   -5.6796164   0.73329403 \n"
        "Loop time of 0.5 on 4 procs (4 MPI x 1 OpenMP) for 50 steps with 4000 atoms\n"
    )
    assert values(text, "Temp") == [1.44, 0.7038205]
    assert values(text, "StepsPerSecond") == [100]


def test_windows_line_ends_make_no_difference() -> None:
    assert read(ONE.replace("\n", "\r\n")) == read(ONE)


def test_a_truncated_line_is_not_a_row() -> None:
    place = ONE.index("        20   0.63")
    for cut in range(place, ONE.index("Loop time") - 1):
        assert read(ONE[:cut]) == read(ONE)[:2]


def test_a_killed_run_continued_in_the_same_log_spoils_nothing() -> None:
    killed = ONE[: ONE.index("0.63") + 2]
    assert read(killed + ONE) == read(ONE)[:2] + read(ONE)


def test_a_minimisation_is_read_without_its_summary() -> None:
    text = ONE + (
        "Minimization stats:\n  Stopping criterion = energy tolerance\n"
        "  Energy initial, next-to-last, final = \n"
        "     -3.76156482060528  -6.77335990885652   -6.7733651916092\n"
        "  Force two-norm initial, final = 4100.5529 0.31503708\n"
    )
    assert read(text) == read(ONE)


def test_only_requested_columns_are_kept() -> None:
    assert read(ONE, ["Temp", "LoopTime"]) == [
        Row({"Temp": 1.44}, 0),
        Row({"Temp": 1.13}, 10),
        Row({"Temp": 0.63}, 20),
        Row({"LoopTime": 0.5}, 20),
    ]
    assert read(YAML, ["Temp", "NonFinite"])[0] == Row({"Temp": 1.44}, 0)
    assert told(read(YAML, ["v_n", "NonFinite"]))[0] == ({"v_n": "nan", "NonFinite": 1}, 0)
    assert read(ONE, ["Tempo"]) == []


def test_of_duplicate_columns_the_first_counts() -> None:
    assert read(ONE.replace("Press", "Temp "))[1].values == {"Step": 10, "Temp": 1.13}


def test_a_restarted_log_is_read_from_the_beginning() -> None:
    reader = ThermoReader()
    reader.feed(ONE[: ONE.index("0.63")].encode())
    reader.truncated()
    assert [*reader.feed(ONE.encode()), *reader.finish()] == read(ONE)


@pytest.mark.parametrize(
    ("endless", "times"),
    [
        (b"x" * 65536, 160),
        (b" " * 65536, 160),
        (b"a    " * 13107, 160),
        (b"Temp     = 1 " * 5000, 160),
        (b"        1   2   3 \n" * 3000, 5),
        (b"".join(b"v_%07d = 1\n" % n for n in range(4000)), 6),
        (b"x" * (LONGEST_LINE - 1) + b"\n", 20),
    ],
    ids=["letters", "blanks", "words", "pairs", "rows", "names", "long lines"],
)
@pytest.mark.parametrize(
    "inside",
    [MEMORY, ONE[: -len(LOOP)], MULTI[:300], YAML[:160]],
    ids=["before", "one", "multi", "yaml"],
)
def test_memory_and_time_are_bounded(endless: bytes, times: int, inside: str) -> None:
    reader = ThermoReader()
    reader.feed(inside.encode())
    pieces = [endless.replace(b"v_0", b"v_%d" % n) for n in range(10)]
    began = time.process_time()
    tracemalloc.start()
    try:
        for n in range(times):
            reader.feed(pieces[n % 10])
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 3 << 20
    assert time.process_time() - began < 20
    reader.feed(b"\n")
    # A pending row of several lines may come first.
    assert [*reader.feed(ONE.encode()), *reader.finish()][-4:] == read(ONE)
