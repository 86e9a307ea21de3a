"""Property tests of the log reader: rows are real, and the same wherever a log is cut."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from ensemble_lammps.thermo import ThermoReader
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ensemble_core.plugin.observer import Row

MEMORY = "Per MPI rank memory allocation (min/avg/max) = 3.1 | 3.1 | 3.1 Mbytes\n"
LOOP = "Loop time of 0.5 on 1 procs for 20 steps with 108 atoms\n"
ONE = (
    MEMORY
    + "   Step          Temp          Press     \n"
    + "         0   1.44          -5.03        \n"
    + "        10   6.3018893e+19  5.2707952e+19\n"
    + "        20   -nan           0.95        \n"
    + LOOP
    + "\nPerformance: 12.5 ns/day, 1.9 hours/ns, 150.000 timesteps/s\n"
    + "99.2% CPU use with 2 MPI tasks x 1 OpenMP threads\n"
)
MULTI = MEMORY + "".join(
    f"------------ Step {step:14d} ----- CPU = {step / 7:12.7g} (sec) -------------\n"
    f"TotEng   = {-4.6334 - step:14.4f} My long name = {step:14.4f} Temp     =         1.4400 \n"
    f"c_msd[4] = {step / 3:14.4f} Step     = {step:14d}\n"
    for step in (0, 10, 20, 30)
) + LOOP  # fmt: skip
YAML = (
    MEMORY
    + "---\nkeywords: ['Step', 'Temp', 'v_n', 'My \"P\"', ]\ndata:\n"
    + "  - [0, 1.44, -nan, -5.03, ]\nWARNING: in between\n  - [10, 1.13, .inf, -2.62, ]\n"
    + "...\n"
    + LOOP
    + "Total wall time: 1:02:03\n"
)
LOG = "LAMMPS (22 Jul 2025)\n" + ONE + MULTI + YAML + "ERROR: it broke\n"

Told = list[tuple[list[tuple[str, float | None]], float | None]]


def told(rows: Iterable[Row]) -> Told:
    """Return rows with ``None`` for nan, so that they compare as equal."""
    return [
        ([(n, None if v != v else v) for n, v in row.values.items()], row.clock) for row in rows
    ]


def read(pieces: Iterable[bytes], columns: Sequence[str] | None = None) -> Told:
    reader = ThermoReader(columns)
    rows = [row for piece in pieces for row in reader.feed(piece)]
    return told([*rows, *reader.finish()])


LINES = [line + "\n" for line in LOG.splitlines()]


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Generate damaged logs, with lines in order or shuffled."""
    start = draw(st.integers(0, len(LINES) - 1))
    whole = [line.encode() for line in LINES[start : start + draw(st.integers(0, 25))]]
    lines = draw(
        st.lists(
            st.one_of(
                st.sampled_from(LINES).map(str.encode),
                st.binary(max_size=60),
                st.sampled_from(LINES).map(lambda line: line.encode()[:-3]),
                st.sampled_from(LINES).map(lambda line: line.encode()[:-1] + b"\r\n"),
                st.sampled_from(LINES).map(lambda line: line.encode().replace(b"  ", b" \t")),
                st.tuples(
                    st.sampled_from([b"        ", b"  - [", b"keywords: [", b"Temp     = ", b""]),
                    st.text("0123456789.eE+-_naif[], '=", max_size=40).map(str.encode),
                    st.sampled_from([b"", b"\n", b" \n"]),
                ).map(b"".join),
            ),
            max_size=20,
        )
    )
    for line in lines:
        whole.insert(draw(st.integers(0, len(whole))), line)
    return b"".join(whole)


NAMES = ["Temp", "E_pair", "c_msd[4]", "v_x", "Press", "f_a[1][2]", "Elapsed"]
FORMATS = ["% -14.8g ", "%20.15g", "%g", "%.3f", "%-12.5e", "%10.2f"]
STEPS = ["%10d ", "%d", "%8d", "%-9d"]
NOISE = [
    "WARNING: Lost atoms: original 500 current 32 (src/thermo.cpp:526)",
    "For more information see https://docs.lammps.org/err0008",
    "Fix halt condition for fix-id h met on step 10 with value 0.0018",
    "Temp is 1.6",
    "SHAKE stats (type/ave/delta/count) on step 10",
    "Bond:   4   1.11138 1.88e-06        9",
    "",
    "once upon a time",
]


@st.composite
def tables(draw: st.DrawFn) -> tuple[bytes, Told]:
    """Generate a table with noise; return it and its rows."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    place = draw(st.integers(0, len(names)))
    style = draw(st.sampled_from(["one", "yaml", "multi"]))
    form = draw(st.sampled_from(FORMATS))
    shape = draw(st.sampled_from(STEPS))
    if style == "yaml":
        form, shape = "%.15g", "%d"
    elif style == "multi":
        form, shape = "%14.4f", "%14d"
    names.insert(place, "Step")
    steps = sorted(draw(st.sets(st.integers(0, 10**11), min_size=1, max_size=9)))
    floats = st.one_of(
        st.floats(-1e20, 1e20), st.floats(-10, 10), st.sampled_from([math.nan, math.inf, -math.inf])
    )
    text, rows = MEMORY, []
    if style == "one":
        text += " ".join(f"{name:^14}" for name in names) + " \n"
    elif style == "yaml":
        text += "---\nkeywords: [" + "".join(f"'{name}', " for name in names) + "]\ndata:\n"
    for step in steps:
        values = [draw(floats) for _ in names]
        printed = [form % value for value in values]
        printed[place] = shape % step
        if style == "one":
            text += " ".join(printed) + "\n"
        elif style == "yaml":
            text += "  - [" + "".join(f"{word}, " for word in printed) + "]\n"
        else:
            text += f"------------ Step {step:14d} ----- CPU = {0.25:12.7g} (sec) -------------"
            for index, (name, word) in enumerate(zip(names, printed, strict=True)):
                text += ("\n" if index % 3 == 0 else "") + f"{name:<8} = {word} "
            text = text[:-1] + "\n"
        row = dict(zip(names, map(float, printed), strict=True))
        if style == "multi":
            row = {"Step": float(step), "CPU": 0.25} | row
        count = sum(not math.isfinite(value) for value in row.values())
        if count:
            row["NonFinite"] = count
        rows.append(Row(row, step))
        for noise in draw(st.lists(st.sampled_from(NOISE), max_size=2)):
            text += noise + "\n"
    return (text + LOOP).encode(), told(rows)


@settings(max_examples=120, deadline=None)
@given(logs(), st.lists(st.integers(0, 3000), max_size=8))
@example(ONE.encode(), [40])
@example(MULTI.encode(), [300, 301])
@example(YAML.encode(), [90])
def test_any_bytes_cut_anywhere_give_the_same_rows(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    whole = read([data])
    assert read(data[start:end] for start, end in itertools.pairwise(places)) == whole
    # Also line by line.
    assert read(data.splitlines(keepends=True)) == whole
    for values, clock in whole:
        assert values
        assert all(isinstance(value, (float, type(None))) for _, value in values)
        assert clock is None or math.isfinite(clock)


def taken_apart(data: bytes) -> Told:
    """Return the rows of a log with one table of style ``one``, by a simple parser."""
    rows: list[Row] = []
    names: list[bytes] = []
    first: tuple[int, int] | None = None
    last: int | None = None
    step = -1.0
    for line in data.split(b"\n")[:-1]:
        words = line.split(b" ")
        words = [word for word in words if word]
        if line.startswith(b"Loop time of"):
            break
        if line.startswith(b"Per MPI"):
            names = []
        elif not names:
            names = words
        elif len(words) == len(names) and words[names.index(b"Step")].isdigit():
            if b"_" in line:
                continue
            try:
                values = {n.decode(): float(w) for n, w in zip(names, words, strict=True)}
            except ValueError:
                continue
            start = line.index(words[0])
            stop = start + len(words[0])
            blank = line.endswith(b" ")
            if first is not None:
                if first[0] == 0 < start and stop < first[1]:
                    first = start, stop
                elif not (
                    stop == first[1]
                    or abs(start - first[0]) <= 1
                    or (start == 0 and stop > first[1])
                ):
                    continue
                if last is not None and not blank and len(words[-1]) < last:
                    continue
            if values["Step"] <= step:
                continue
            step = values["Step"]
            first = first or (start, stop)
            if blank and last is None:
                last = len(words[-1])
            count = sum(not math.isfinite(value) for value in values.values())
            rows.append(Row(values | ({"NonFinite": float(count)} if count else {}), step))
    return told(rows)


LIKE_ROWS = st.builds(
    lambda lead, words, end: lead + " ".join(words) + end,
    st.sampled_from(["", " ", "  ", "         ", "        "]),
    st.lists(st.sampled_from(["1", "30", "700", "nan", "-2.5", "1e5", "T=", "9_9"]), max_size=4),
    st.sampled_from(["", " ", "   "]),
)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.integers(0, 900), min_size=1, max_size=8), st.lists(LIKE_ROWS, max_size=8))
def test_row_like_lines_are_judged_like_by_the_word_parser(
    steps: list[int], others: list[str]
) -> None:
    lines = [f"{step:10d}   {step / 7:<14.8g} {-step / 3:<14.8g} " for step in sorted(steps)]
    for index, other in enumerate(others):
        lines.insert(1 + index * 2 % len(lines), other)
    header = "   Step          Temp          Press     "
    data = (MEMORY + "\n".join([header, *lines]) + "\n" + LOOP).encode()
    found = [row for row in read([data]) if row[0][0][0] == "Step"]
    assert found == taken_apart(data)


@settings(max_examples=150, deadline=None)
@given(logs(), st.sets(st.sampled_from(["Step", "Temp", "v_n", "Press", "CPU", "My long name"])))
def test_chosen_columns_equal_those_of_all_columns(data: bytes, columns: set[str]) -> None:
    chosen = [pair for pair in read([data], sorted(columns)) if pair[0]]
    everything = [([p for p in values if p[0] in columns], clock) for values, clock in read([data])]
    expected = [pair for pair in everything if pair[0]]
    assert chosen == expected


def test_every_truncated_log_gives_the_rows_before_the_cut() -> None:
    data = LOG.encode()
    whole = read([data])
    for cut in range(len(data)):
        found = read([data[:cut]])
        # The cut may be inside the last row, which then lacks values.
        assert found[:-1] == whole[: max(0, len(found) - 1)]
        if found:
            values, clock = found[-1]
            same = whole[len(found) - 1]
            assert clock == same[1]
            assert [pair for pair in values if pair not in same[0]] == []


@settings(max_examples=120, deadline=None)
@given(tables(), st.integers(1, 400))
def test_every_printed_row_is_read_and_nothing_else(table: tuple[bytes, Told], size: int) -> None:
    data, expected = table
    for pieces in ([data], [data[n : n + size] for n in range(0, len(data), size)]):
        found = [row for row in read(pieces) if row[0][0][0] not in ("Warnings", "LoopTime")]
        assert found == expected
