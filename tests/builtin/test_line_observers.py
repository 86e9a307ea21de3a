"""Built-in observers: numbers, lines and last words as programs print them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from ensemble_core.builtin import json_lines
from ensemble_core.builtin.json_lines import JsonLines
from ensemble_core.builtin.key_value import KeyValue
from ensemble_core.builtin.observers import ensemble_observers
from ensemble_core.builtin.regex import Regex
from ensemble_core.builtin.table_observer import Table
from ensemble_core.errors import EnsembleError
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.observer import Observer, Row

RIGHT = {
    "0,253": math.nan, "1,234,567": math.nan, "1'234'567": math.nan, "0.123+100": 0.123e100,
    "0.123-100": 0.123e-100, "1.0D+03": 1000.0, "1.5*10^3": math.nan, "1.#QNAN": math.nan,
    "1.0+2.0j": math.nan, "10ms": math.nan, "12:30": math.nan, "-5.3 eV": -5.3, "95.3%": 95.3,
    "********": math.nan, "-1.0-2.0": math.nan, "1e999": math.nan, "nan(0x8000)": math.nan,
    "-nan(ind)": math.nan, "Infinity": math.inf, "-inf": -math.inf, "9.5, next=1": 9.5,
    "0.5]": 0.5, "(0.5)": math.nan, "3;": 3, "0.5+/-0.1": 0.5, "0.5\u00b10.1": 0.5, "2.": 2.0,
    "\x1b[31m9.5\x1b[0m": 9.5, "\x1b[1;31m-2\x1b[m": -2, "\u22125": -5, "1.2.3": math.nan,
    "0.5,acc=1": 0.5, "7/9": math.nan,
}  # fmt: skip


def rows(observer: Observer, *parts: str | bytes, killed: bool = False) -> list[Row]:
    found: list[Row] = []
    for part in parts:
        found += observer.feed(part.encode() if isinstance(part, str) else part)
    if killed:
        observer.interrupted()
    return [*found, *observer.finish()]


def column(observer: Observer, *parts: str | bytes, name: str = "E") -> list[float]:
    return [row.values[name] for row in rows(observer, *parts) if name in row.values]


def same(found: Sequence[float], right: Sequence[float]) -> bool:
    return repr([*found]) == repr([*right])


@pytest.mark.parametrize("text", RIGHT)
@pytest.mark.parametrize("fields", [["E"], None])
def test_no_part_of_a_value_is_a_number(text: str, fields: list[str] | None) -> None:
    found = column(KeyValue(fields=fields), f"E=-1.5\nE={text}\n")
    assert same(found, [-1.5, RIGHT[text]])


@pytest.mark.parametrize(
    "observer", [KeyValue(fields=["E"]), Regex({"E": r"E=(\S+)"})], ids=["key-value", "regex"]
)
def test_value_that_cannot_be_read_is_nan_and_reported(observer: Observer) -> None:
    found = column(observer, "E=-5.25\nE=1e3\nE=********\nother\nE=0,5\n")
    assert same(found, [-5.25, 1000.0, math.nan, math.nan])
    assert (
        observer.complaint() == "E could not be read in 2 of 5 lines, first: '********' in line 3"
    )


def test_json_value_that_is_no_number_is_nan_and_reported() -> None:
    observer = JsonLines(fields=["E"])
    text = (
        '{"E": 1}\n{"E": "NaN"}\n{"E": "-2.5"}\n{"E": null}\n{"E": true}\n{"E": 1e999}\n{"F": 1}\n'
    )
    assert same(column(observer, text), [1, math.nan, -2.5, math.nan, math.nan, math.nan])
    assert observer.complaint() == "E could not be read in 3 of 7 lines, first: 'None' in line 4"
    nested = JsonLines(fields={"E": "a.E"})
    assert same(
        column(nested, '{"a": {"E": 1e999}}\n{"a": {"E": Infinity}}\n'), [math.nan, math.inf]
    )


def test_dicts_that_python_prints_are_read() -> None:
    lines = [
        "{'E': 0.5, 'epoch': 1.0}",
        "{'E': nan}",
        "{'E': -inf, 'tags': ['a', (1, 2)], None: 1}",
        "{'E': np.float64(0.25)}",
        '{"E": nan}',
        "{'E': __import__('os').system('touch ran')}",
        "{'E': 0.5, 'E': [}",
    ]
    found = column(JsonLines(fields=["E"]), "\n".join(lines) + "\n")
    assert same(found, [0.5, math.nan, -math.inf, 0.25, math.nan, math.nan])


def test_dict_behind_a_progress_bar_in_the_same_line_is_read() -> None:
    """Hugging Face's trainer prints them so if the bar and the dicts go to one file."""
    bar = " 50%|█████     | 3/6 [00:18<00:18,  6.07s/it]"
    text = f"{bar}{{'loss': 0.5, 'step': 3}}\r{bar} {{'loss': 0.25, 'step': 6}}\n{bar}\n"
    observer = JsonLines(fields=["loss"], clock="step")
    assert rows(observer, text) == [Row({"loss": 0.5}, 3), Row({"loss": 0.25}, 6)]
    assert observer.complaint() is None


def test_rows_without_the_clock_of_other_rows_are_reported() -> None:
    observer = KeyValue(fields=["E"], clock="step")
    assert column(observer, "step=1 E=5\nE=7\nstep=2 E=6\nE=8\n") == [5, 7, 6, 8]
    assert observer.complaint() == "2 rows count without the clock 'step', the first in line 2"


def test_nested_and_renamed_fields_of_json_are_read() -> None:
    observer = JsonLines(fields={"loss": "metrics.train.loss", "acc": "train/acc", "x": "a.b"})
    line = {"metrics": {"train": {"loss": 0.5}}, "train/acc": 0.9, "a.b": 1, "a": {"b": 2}}
    (row,) = rows(observer, json.dumps(line))
    assert row.values == {"loss": 0.5, "acc": 0.9, "x": 1}


def test_complaint_proposes_the_field_that_it_sees() -> None:
    observer = JsonLines(fields=["loss"])
    rows(observer, '{"step": 1, "metrics": {"loss": 0.5}}\n')
    assert observer.complaint() == "no field 'loss'; found 'metrics.loss'"
    observer = JsonLines(fields=["loss"])
    rows(observer, '{"step": 1, "train/loss": 0.5}\n')
    assert observer.complaint() == "no field 'loss'; found 'train/loss'"


def test_names_like_a_missing_one_are_searched_in_few_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[str] = []
    monkeypatch.setattr(json_lines, "_similar", lambda found, name: searched.append(name) or ())
    rows(JsonLines(fields=["loss", "E"]), '{"E": 1}\n' * 2000)
    assert 10 <= len(searched) < json_lines.SURVEYED / 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time=12ms mem=3.4GB\n", "'time=12ms' is no number"),
        ("cells = 1,234,567\n", "'cells = 1,234,567' is no number"),
        ("E = 1.5 E-03 eV\n", "'E = 1.5 E-03 eV' is no number"),
    ],
)
def test_names_without_a_number_are_explained(text: str, said: str) -> None:
    observer = KeyValue()
    assert rows(observer, text) == []
    assert observer.complaint() == f"1 line, none of them with name=NUMBER or name: NUMBER; {said}"


@pytest.mark.parametrize(
    "text",
    ["loss=nan acc=1\nloss=-nan(ind) acc=2\nloss=3 acc=3\n", "12:00 acc=1\n12:00:08Z acc=2\n"],
)
def test_values_before_a_name_are_no_part_of_it(text: str) -> None:
    observer = KeyValue(fields=["acc"])
    assert [row.values["acc"] for row in rows(observer, text)] == [1, 2, 3][: text.count("acc")]
    assert observer.complaint() is None


def test_an_arrow_to_a_second_number_is_reported() -> None:
    observer = KeyValue()
    assert [row.values for row in rows(observer, "loss: 0.5 -> 0.4\n")] == [{"loss": 0.5}]
    assert observer.complaint() == (
        "only the first of the numbers after 'loss' was read: 'loss: 0.5 -> 0.4'"
    )


def test_labels_with_blanks_are_read_if_they_are_named() -> None:
    observer = KeyValue(fields={"T": "Temperature (K)", "E": "Total energy", "n": "n"})
    text = "Temperature (K) = 300.5\nTotal energy    -5.5 eV\nTotal energy: ****\nn=3\n"
    found = rows(observer, text)
    assert same(
        [value for row in found for value in row.values.values()], [300.5, -5.5, math.nan, 3]
    )


def test_labels_may_come_after_a_mark_but_not_after_another_word() -> None:
    observer = KeyValue(fields={"E": "total energy", "K": "E_KS(eV)"})
    text = (
        "   * total energy  :  -5.07 Eh\n[info] total energy = 1\nsiesta: E_KS(eV) = -465.8\n"
        "kinetic total energy = 3\n"
    )
    assert [dict(row.values) for row in rows(observer, text)] == [
        {"E": -5.07},
        {"E": 1},
        {"K": -465.8},
    ]


def test_last_line_of_a_killed_job_is_no_line_unless_it_has_an_end() -> None:
    for observer in (KeyValue(), Regex({"E": r"E=(\S+)"})):
        assert [row.values for row in rows(observer, "E=-1503.2\nE=-15", killed=True)] == [
            {"E": -1503.2}
        ]
    assert column(KeyValue(), "E=-1503.2\nE=-15") == [-1503.2, -15]
    assert len(rows(JsonLines(), '{"E": 1}\n{"E": 2}', killed=True)) == 2
    assert len(rows(JsonLines(), '{"E": 1}\n{"E": 2', killed=True)) == 1
    observer = KeyValue()
    observer.feed(b"E=-1503.2\nE=-15")
    assert observer.interrupted() == (
        "its last line has no end and may be incomplete, so it was not read: 'E=-15'"
    )


def test_carriage_return_ends_a_line() -> None:
    bar = "".join(f"\r{step}%|#### | loss={1 - step / 100:.2f}" for step in range(50))
    for observer in (KeyValue(fields=["loss"]), Regex({"loss": r"loss=(\S+)"})):
        found = column(observer, *bar[:-3].partition("loss=0.8"), bar[-3:], name="loss")
        assert len(found) == 50
        assert found[-1] == 0.51
    assert column(Regex({"E": r"^E=(\d+)$"}), "E=1\r", "\nE=2\r\n\r\n") == [1, 2]


def test_bar_without_a_line_end_may_be_longer_than_a_line() -> None:
    observer = KeyValue(fields=["loss"])
    update = f"\r{'#' * 2000} loss=0.5"
    assert len(rows(observer, *[update] * 2000)) == 2000


def test_line_that_is_too_long_is_reported() -> None:
    observer = KeyValue(fields=["E"])
    assert len(rows(observer, "E=1\n", *["x" * 100_000] * 20, "\nE=2\n")) == 2
    assert observer.complaint() == "1 line of 3 lines longer than 1 MiB"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "utf-8"])
def test_byte_order_mark_selects_the_encoding(encoding: str) -> None:
    mark = {"utf-16-le": "\ufeff", "utf-16-be": "\ufeff"}.get(encoding, "")
    data = f"{mark}E=1.5\r\nE=2.5 µ\r\n".encode(encoding)
    assert column(KeyValue(), *(data[at : at + 1] for at in range(len(data)))) == [1.5, 2.5]


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert column(KeyValue(), b"\xff\xfa E=1\n\0\0\nE=2\x00\n") == [1, 2]


def test_patterns_with_named_groups_give_several_columns() -> None:
    observer = Regex([r"Step\s+(?P<step>\d+)\s+T=(?P<T>\S+)(?: P=(?P<P>\S+))?"], clock="step")
    found = rows(observer, "Step 10 T=300.5\nStep 20 T=301 P=1.0D+00\n")
    assert [(row.clock, row.values) for row in found] == [
        (10, {"step": 10, "T": 300.5}),
        (20, {"step": 20, "T": 301, "P": 1.0}),
    ]
    with pytest.raises(EnsembleError, match="no named group"):
        Regex(["Step"])


def test_last_match_of_a_line_can_be_taken() -> None:
    line = "loss=0.9 loss=0.5 loss=0.2\n"
    assert column(Regex({"E": r"loss=(\S+)"}, take="last"), line) == [0.2]
    assert column(Regex({"E": r"loss=(\S+)"}), line) == [0.9]


def test_rows_do_not_depend_on_the_chunks() -> None:
    text = b"E=1\r\nx\rE=2\n\x1b[3mE=3\x1b[m\rE=********\nE=4"
    whole = column(KeyValue(fields=["E"]), text)
    for at in range(len(text)):
        assert same(column(KeyValue(fields=["E"]), text[:at], text[at:]), whole)


def test_text_without_a_value_is_not_reported() -> None:
    observer = KeyValue(fields=["E"])
    assert column(observer, "E=1\nE:\nthe E is fine\n") == [1]
    assert observer.complaint() is None


def test_unreadable_value_beside_a_readable_one_is_nan() -> None:
    for fields in (["loss"], None):
        text = (
            "step=1 loss=0.5\nstep=2 loss=********\nloss=0.5 loss=1ms\nloss=1ms loss=0.25\nloss=\n"
        )
        found = column(KeyValue(fields=fields), text, name="loss")
        assert same(found, [0.5, math.nan, math.nan, 0.25, math.nan])


def test_json_field_that_was_a_number_is_nan_if_it_no_longer_is() -> None:
    observer = JsonLines()
    text = '{"loss": 0.5, "who": "me"}\n{"loss": null}\n{"loss": "NaN"}\n{"loss": true}\n{"loss": 1e999}\n'
    assert same(column(observer, text, name="loss"), [0.5, *[math.nan] * 4])
    assert observer.complaint() == "loss could not be read in 3 of 5 lines, first: 'None' in line 2"
    observer = JsonLines(fields={"loss": "metrics.loss"})
    text = '{"metrics": {"loss": 1}}\n{"metrics": null}\n{"metrics": {"loss": 2}} # x\n{"metrics\n'
    assert same(column(observer, text, name="loss"), [1, math.nan, 2])
    complaint = observer.complaint()
    assert complaint is not None
    assert complaint.startswith("1 line of 4 lines begin with { and are no JSON object; loss could")


@pytest.mark.parametrize(
    "text", ["1\u00a0234,5", "1\u202f234", "1\u00d710", "1\u00b710^3", "0.5..0.6", "1~2"]
)
def test_number_that_goes_on_is_no_number(text: str) -> None:
    assert same(column(KeyValue(fields=["E"]), f"E={text}\n"), [math.nan])


@pytest.mark.parametrize("text", ["1.5e-3", "1,234", "12.55"])
def test_group_that_ends_within_a_number_is_no_number(text: str) -> None:
    observer = Regex({"E": r"E=([0-9]\.[0-9]|[0-9]+\.[0-9]|[0-9]+)"})
    assert same(column(observer, f"E={text}\nE=1.5 eV\n"), [math.nan, 1.5])


def test_label_within_a_longer_label_is_another_one() -> None:
    observer = KeyValue(fields={"e": "Energy (eV)", "t": "Temperature (K)"})
    text = "Kinetic Energy (eV) = 1.0\nTemperature (K)  Pressure (bar)\nEnergy (eV) = 2.0\n"
    assert [row.values for row in rows(observer, text)] == [{"e": 2.0}]


def test_digits_on_both_sides_of_a_cursor_movement_are_not_one_number() -> None:
    for move in ("[1G", "[G", "[3D", "[A", "[2F", "[1;1H", "[H", "[7;2f", "8", "M", "[u"):
        text = f"E=6\x1b{move}7\nE=12\x1b[2K\x1b{move}E=34\n"
        assert column(KeyValue(), text) == [6, 12, 34], move
        assert column(Regex({"E": r"E=(\S+)"}), text) == [6, 12, 34], move
    text = "E:\x1b[20G7\nE=1\x1b[C2\nE=\x1b[1m3\x1b[0m\x1b[K4\n"
    assert column(KeyValue(), text) == [7, 1, 34]


def test_sequences_that_reset_a_terminal_are_removed() -> None:
    assert column(KeyValue(), "\x1b(B\x1b[mE=0.5\n") == [0.5]
    assert column(JsonLines(), '\x1b(B\x1b[m{"E": 0.5}\n') == [0.5]


@pytest.mark.parametrize(
    "observer",
    [
        KeyValue(None, ["E"], "stepp"),
        KeyValue(None, None, "stepp"),
        JsonLines(None, ["E"], "stepp"),
        Regex({"E": "E.*?([0-9.]+)"}, None, "stepp"),
        Table(None, ["E"], "stepp"),
    ],
    ids=lambda observer: type(observer).__name__,
)
def test_a_clock_that_no_row_has_is_reported(observer: Observer) -> None:
    forms = {JsonLines: b'{"step": 1, "E": 2.5}\n', Table: b"step E\n1 2.5\n"}
    text = forms.get(type(observer), b"step=1 E=2.5\n")
    (row,) = observer.feed(text)
    assert row.values["E"] == 2.5
    assert row.clock is None
    said = observer.complaint()
    assert said is not None
    assert "no row has the clock 'stepp'" in said
    assert "'step'" in said or isinstance(observer, Regex)


def test_bytes_that_are_zero_are_no_end_of_a_number() -> None:
    """A file has a hole if data of another node has not arrived, or a log was truncated."""
    text = b"\0\0E=1.5\nE=2\0\x005\n\0\0\nE=3\n"
    for observer in (KeyValue(None, ["E"]), Regex({"E": "E=([0-9.]+)"})):
        rows = [*observer.feed(text), *observer.finish()]
        assert [row.values["E"] for row in rows if not math.isnan(row.values["E"])] == [1.5, 3]
        assert "could not be read in 1 of" in str(observer.complaint())
    for observer in (KeyValue(None, ["E"]), Regex({"E": "E=([0-9.]+)"}), Table(), JsonLines()):
        assert not [*observer.feed("E=1.5\n".encode("utf-16-le"))]
        assert "zero bytes: if it is UTF-16" in str(observer.complaint())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "Total DFT energy = -76.4\nOne electron energy = -123.0\n",
            (
                "'energy' is printed as 'Total DFT energy' and 'One electron energy', and all of them "
                "were read: name the one that you mean, as in fields: {energy: 'One electron energy'}"
            ),
        ),
        ("p: initial energy = 1, final energy = 0.5\n", "'initial energy' and 'final energy'"),
        ("energy:  100   12.5  -3\n", "only the first of the numbers after 'energy' was read"),
        ("step 1 energy=2\nstep 2 energy=3 |\n[12:00] energy: 5\n", None),
    ],
)
def test_a_name_that_stands_for_several_values_is_reported(
    text: str, complaint: str | None
) -> None:
    observer = KeyValue(fields=["energy"])
    assert rows(observer, text)
    said = observer.complaint()
    assert said is None if complaint is None else complaint in (said or "")


def test_several_numbers_after_a_label_with_blanks_are_reported() -> None:
    """CP2K prints the value and its average, Gaussian the value and its limit."""
    observer = KeyValue(fields={"T": "TEMPERATURE [K]", "F": "Maximum Force", "E": "total energy"})
    text = "TEMPERATURE [K]   =   275.0  280.0\nMaximum Force   0.06  0.0004  NO\n"
    assert [row.values for row in rows(observer, f"{text}total energy = -1.5 Ry\n")] == [
        {"T": 275.0},
        {"F": 0.06},
        {"E": -1.5},
    ]
    assert observer.complaint() == (
        "only the first of the numbers after 'TEMPERATURE [K]' was read: 'TEMPERATURE [K] = 275.0 "
        "280.0'; only the first of the numbers after 'Maximum Force' was read: 'Maximum Force 0.06 "
        "0.0004 NO'"
    )


def test_many_blanks_may_be_before_a_number() -> None:
    """CP2K aligns its numbers at the right."""
    observer = KeyValue(None, ["energy"])
    (row,) = rows(observer, "  Total energy:" + 60 * " " + "-17.164\n")
    assert row.values == {"energy": -17.164}


def test_a_label_with_blanks_may_follow_a_number() -> None:
    fields = {"E": "val loss"}
    assert column(KeyValue(fields=fields), "epoch 3 train loss: 0.5 val loss: 0.7\n") == [0.7]


@pytest.mark.parametrize("name", ["json-lines", "key-value", "regex"])
def test_nothing_is_read_after_the_line_until(name: str) -> None:
    plugin = next(each for each in ensemble_observers() if each.name == name)
    job = Job(id="sim.3", group="sim", index=3, command=("x",))
    text = '{"E": %d, "E=%d":1}\n'
    options: dict[str, Any] = {"until": "A V E R +A G E S"}
    options["fields"] = {"E": r"E=(\d+)"} if name == "regex" else ["E"]
    observer = plugin.build(job, options)
    lines = [text % (n, n) for n in range(2000)]
    assert column(observer, *lines, "A V E R  A G E S\n", *lines[:5])[-1] == 1999
    observer.truncated()
    assert column(observer, *lines[:2]) == [0, 1]


def test_a_clock_that_goes_back_is_reported() -> None:
    observer = KeyValue(fields=["E"], clock="t")
    rows(observer, "t=1 E=1\nt=2 E=2\nt=2 E=3\nt=0.5 E=4\nt=3 E=5\nt=1 E=6\n")
    assert observer.complaint() == "the clock 't' goes back 2 times, first from 2 to 0.5 in line 4"
    observer.truncated()
    assert [row.clock for row in rows(observer, "t=0 E=1\n")] == [0]


@pytest.mark.parametrize("spelled", ["1.5 E+3", "1.5 E03", "1.5  D-03 s", "2 x 10^3", "2 * 10**3"])
def test_a_number_with_a_blank_in_it_is_not_its_first_part(spelled: str) -> None:
    for observer in (KeyValue(fields=["E"]), KeyValue(), Regex({"E": r"E=(\S+)"})):
        values = column(observer, "E=1\n", f"E={spelled}\n")
        assert values[0] == 1
        assert math.isnan(values[1])
        assert spelled in str(observer.complaint())
    for beside in ("E=4 E10=5", "E=4 next", "E=4 e4 m", "E=4 E-mail", "E=4 x 10 m"):
        for observer in (KeyValue(fields=["E"]), Regex({"E": r"E=(\S+)"})):
            assert column(observer, f"{beside}\n") == [4], beside


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        # fio: the same names in lines about different things
        (
            "    clat (usec): min=18, max=19749\n     lat (usec): min=19, max=19750\n",
            (
                r"'min' is in lines that begin with 'clat' and 'lat', and all of them were read: to read "
                r"one kind, use regex: {fields: {min: '^ *clat\b.*\bmin *[=:] *([^ ,]+)'}}"
            ),
        ),
        # GNU time: words in brackets
        (
            "Major (requiring I/O) page faults: 0\nMinor (reclaiming a frame) page faults: 72\n",
            "fields: {faults: 'Minor (reclaiming a frame) page faults'}",
        ),
        # top, free: several numbers, each name once
        ("load average: 9.88, 10.36, 5.46\n", "only the first of the numbers after 'average'"),
        ("Mem:    24684092   699460\n", "only the first of the numbers after 'Mem'"),
        ("IO depths: 1=100.0%\nIO depths: 2=3\nx=1\n", None),
        ("loss: 0.5, 3 of 10\n", None),
        ("INFO: loss=0.5\nDEBUG: loss=0.25\n", None),
    ],
)
def test_names_of_several_values_are_reported_without_fields(
    text: str, complaint: str | None
) -> None:
    observer = KeyValue()
    assert rows(observer, text)
    assert "depths" not in {name for row in rows(KeyValue(), text) for name in row.values}
    said = observer.complaint()
    assert said is None if complaint is None else complaint in (said or "")


@pytest.mark.parametrize(
    "spelled",
    [
        "10**- 6", "10^(-6)", "10**(-11)", "1.5 10^-3", "1.2 * 10 ** -3",  # powers and factors
        "0 days 0 hours 9 sec", "1 day, 2:03:04", "5 min 3 s", "0 d,  0 h,  7.310 sec",  # lengths of time
        "17: 2: 9", "2/ 2/18", "29 Nov 2026",  # times and dates with blanks
        "1.2 + 0.5i", "1.2+0.5j", "5+    5-", "1.5- next",
    ],
)  # fmt: skip
def test_a_value_of_several_parts_is_not_its_first_number(spelled: str) -> None:
    for observer in (KeyValue(fields=["E"]), KeyValue()):
        values = column(observer, "E=1\n", f"E={spelled}\n")
        assert same(values, [1, math.nan])
        assert spelled[:2] in str(observer.complaint())
    for beside in (
        "E=4 days",
        "E=4 d",
        "E=4 min, 3 rows",
        "E=4 h 6",
        "E=4 +/- 0.1",
        "E=4 1e3",
    ):
        assert column(KeyValue(fields=["E"]), f"{beside}\n") == [4], beside


@pytest.mark.parametrize(
    "line", ["E = -12.5 eV", "E= 1.5e-12 eV", "E = 1,234.5 eV", "E = +12.5 eV", "E=-.5 eV"]
)
def test_group_that_begins_within_a_number_is_no_number(line: str) -> None:
    observer = Regex({"E": "([0-9.]+) eV"})
    assert same(column(observer, f"{line}\nE = 12.75 eV\n"), [math.nan, 12.75])
    assert "first: " in str(observer.complaint())


def test_group_of_a_greedy_pattern_is_no_rest_of_a_number() -> None:
    assert same(column(Regex({"E": "E.*([0-9.]+)"}), "E = 12.5\n"), [math.nan])
    # The parts of a time, a date, or a file name are numbers if the pattern says so.
    text = "12:30:05 2026-11-29 step 3/10 run-7\n"
    pattern = (
        r"(?P<m>\d+):(?P<s>\d+) \d+-(?P<o>\d+)-(?P<d>\d+) step (?P<a>\d+)/(?P<b>\d+) run-(?P<r>\d+)"
    )
    (row,) = rows(Regex([pattern]), text)
    assert row.values == {"m": 30, "s": 5, "o": 11, "d": 29, "a": 3, "b": 10, "r": 7}


def test_several_units_of_one_name_are_reported() -> None:
    text = "mem: 500 MB, time: 2 s, acc: 5%\nmem: 1.5 GB, time: 2.0 seconds, acc: 0.06\n"
    for observer in (
        KeyValue(fields=["mem", "time", "acc"]),
        Regex({"mem": r"mem: (\S+)", "time": r"time: (\S+)", "acc": r"acc: ([\d.]+)"}),
    ):
        assert column(observer, text, name="mem") == [500, 1.5]
        said = str(observer.complaint())
        assert "'mem' has the units 'MB' and 'GB'" in said
        assert "'acc' has the units '%' and 'no unit'" in said
        assert "'time' has" not in said


def test_a_name_before_a_number_without_a_sign_is_explained() -> None:
    observer = KeyValue(fields=["loss", "acc"])
    assert not rows(observer, "step 10: train loss 8.1, acc 0.5\n")
    assert "'loss 8.1' has neither = nor : between name and number: use regex: " in str(
        observer.complaint()
    )
    observer = KeyValue(fields=["Loss", "time"])
    assert rows(observer, "time: 1 Loss 6.9e+00 (7.0)\n")
    assert "no field 'Loss'; 'Loss 6.9e+00' has neither" in str(observer.complaint())


def test_a_value_at_the_end_of_a_line_of_an_archive_may_go_on() -> None:
    """Gaussian divides the fields of its archive where a line ends."""
    observer = KeyValue(fields=["HF", "RMSD"])
    text = " 1\\1\\G16\\State=1-AG\\HF=-382.16\n 4914\\RMSD=2.5e-10\\Dipole=0.\n"
    assert [dict(row.values) for row in rows(observer, text)][1] == {"RMSD": 2.5e-10}
    assert "HF could not be read in 1 of 2 lines" in str(observer.complaint())


def test_backspaces_end_an_update_of_a_bar() -> None:
    text = "1/3 - loss: 2.5" + "\b" * 15 + "2/3 - loss: 1.5" + "\b" * 15 + "3/3 - loss: 0.5\n"
    assert column(KeyValue(), text, name="loss") == [2.5, 1.5, 0.5]


def test_objects_behind_the_time_and_level_of_a_logger_are_read() -> None:
    observer = JsonLines(fields=["loss"])
    text = (
        '[\n{"loss": 0.5},\n2026-11-29 12:00:00 INFO {"loss": 0.4}\nWARNING:{"loss": 0.3}\n'
        "void f() {return;}\nstruct{'loss': 7}\n]\n"
    )
    assert column(observer, text, name="loss") == [0.5, 0.4, 0.3]
    assert "'loss' is in" not in str(observer.complaint())
    assert column(observer, 'Best 3: {"loss": 0.1}\n', name="loss") == [0.1]
    assert "'loss' is in objects after 'no word' and 'Best'" in str(observer.complaint())


def test_the_most_similar_name_is_proposed() -> None:
    text = "".join(f"name{n}=1 " for n in range(20)) + "energy=5\n"
    observer = KeyValue(fields=["enrgy"])
    assert not rows(observer, text)
    assert str(observer.complaint()).startswith("no field 'enrgy'; found 'energy', 'name0', ")


def test_messages_count_all_lines_also_empty_ones() -> None:
    text = "\n\nE=1 t=2\n" + "\n\nwords\n" * 2000 + "\nE=***\r\nE=1 t=1\n"
    for part in (len(text), 700):
        observer = KeyValue(fields=["E"], clock="t")
        pieces = [text[at : at + part] for at in range(0, len(text), part)]
        assert column(observer, *pieces)[0] == 1
        said = str(observer.complaint())
        assert "first: '***' in line 6005" in said
        assert "goes back once from 2 to 1 in line 6006" in said
