"""Contract tests of the built-in plugins."""

from __future__ import annotations

import copy
import math
import random
import statistics as exact
import struct
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from ensemble_testing import (
    ActionContract,
    GeneratorContract,
    ObserverContract,
    StatisticContract,
    TriggerContract,
)
from river import stats as river

from ensemble_core import Row
from ensemble_core.builtin import actions, generators, observers, triggers
from ensemble_core.builtin import statistics as builtin_statistics
from ensemble_core.builtin.json_lines import JsonLines
from ensemble_core.builtin.line_observer import MOST_FIELDS
from ensemble_core.builtin.quantiles import QuantileEstimate
from ensemble_core.builtin.statistics import EXACT, LONGEST
from ensemble_core.errors import EnsembleError
from ensemble_core.metrics.statistic_state import put_state, state_of

STATISTICS: Mapping[str, Any] = {
    record.name: record for record in builtin_statistics.ensemble_statistics()
}
ACTIONS: Mapping[str, Any] = {record.name: record for record in actions.ensemble_actions()}
TRIGGERS: Mapping[str, Any] = {record.name: record for record in triggers.ensemble_triggers()}
OBSERVERS: Mapping[str, Any] = {record.name: record for record in observers.ensemble_observers()}

#: Options of records that require some.
ACTION_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "submit": {"label": "sim"},
    "cancel": {"label": "sim"},
    "signal": {"label": "sim", "signal": "USR1"},
    "avoid": {"node": "n17", "most": 2},
    "terminate": {"exit_code": 3},
    "custom": {"label": "echo_again"},
    "grow": {"value": 2},
    "shrink": {"value": 1},
    "set": {"label": "sim", "with": {"nodes": 2}},
    "enable": {"rules": ["rule-1"]},
    "disable": {"rules": ["rule-1"]},
    "switch": {"to": ["later"], "from": "sooner", "cancel": True},
    "submit-best": {"groups": ["sim"], "by": ["= 1"], "at_once": 2},
    "log": {"message": "job {job} ended"},
    "notify": {"message": "job {job} ended", "to": ["bell", {"webhook": "TEAM_HOOK"}]},
    "suggest": {"generator": "search", "count": 2},
    "pause": {"generator": "search"},
    "submit-next": {"groups": ["sim"], "count": 2, "order": "random", "seed": 3},
}
TRIGGER_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "interval": {"seconds": 5},
    "silent": {"seconds": 5},
}
WINDOWS = ("variance", "mean", "max", "min", "sum", "iqr", "mad", "median", "p90", "quantile")


BAD_WINDOWS = tuple({"window": window} for window in (0, -1, 1.5, LONGEST + 1, "60", "0s", "", "s"))


def check_contract(contract: type, **attributes: Any) -> None:
    """Run all contract tests of a record, like a class that inherits the suite."""
    suite = type("Suite", (contract,), attributes)()
    laws = [name for name in dir(suite) if name.startswith("test_")]
    assert len(laws) > 5
    for law in laws:
        getattr(suite, law)()


@pytest.mark.parametrize("name", STATISTICS)
def test_statistic_fulfils_the_contract(name: str) -> None:
    check_contract(StatisticContract, plugin=STATISTICS[name])


@pytest.mark.parametrize("window", [4, "5s"])
@pytest.mark.parametrize("name", WINDOWS)
def test_statistic_with_a_window_fulfils_the_contract(name: str, window: int | str) -> None:
    check_contract(
        StatisticContract,
        plugin=STATISTICS[name],
        options={"window": window},
        bad_options=BAD_WINDOWS,
    )


@pytest.mark.parametrize("name", ACTIONS)
def test_action_fulfils_the_contract(name: str) -> None:
    check_contract(ActionContract, plugin=ACTIONS[name], options=ACTION_OPTIONS.get(name, {}))


_NAMES = {
    "group": "sim",
    "groups": "sim",
    "metric": "count.sim.success",
    "generator": "search",
    None: None,
}


@pytest.mark.parametrize("name", TRIGGERS)
def test_trigger_fulfils_the_contract(name: str) -> None:
    record = TRIGGERS[name]
    check_contract(
        TriggerContract,
        plugin=record,
        options=TRIGGER_OPTIONS.get(name, {}),
        name=_NAMES[record.name_means],
    )


class TestJsonLines(ObserverContract):
    plugin = OBSERVERS["json-lines"]
    options: ClassVar = {"path": "out.jsonl", "clock": "step"}
    bad_options = ({"path": ""}, {"fields": []}, {"fields": ["a.b"]}, {"fields": ["duration"]})
    sample = (
        b"starting up\n"
        b'{"step": 1, "loss": 0.5, "name": "a", "ok": true, "more": {"x": 1}}\n'
        b'{"step": 2, "loss": NaN, "lr": 1e-3}\r\n'
        b'\n[1, 2]\n{"broken": \n{"duration": 3, "none": null}\n'
        b'  {"loss": -Infinity, "far": 1e999, "step": Infinity}\n{"huge": 1'
        + b"0" * 400
        + b"}\n"
        + b"[" * 1500
        + b"\n"
        b'{"step": 3, "loss": "0.25"}\n{"loss": 0.125}'
    )
    rows = (
        Row({"step": 1.0, "loss": 0.5}, 1.0),
        Row({"step": 2.0, "loss": math.nan, "lr": 1e-3}, 2.0),
        Row({"step": math.inf, "loss": -math.inf}, None),
        Row({"step": 3.0, "loss": 0.25}, 3.0),
        Row({"loss": 0.125}, None),
    )
    samples = (b'\xef\xbb\xbf{"a": 1}\n', b'{"a": 1, "a": 2}\n{"a": \xff}\n', b"{" * 1500 + b"\n")


class TestJsonLinesOfChosenFields(ObserverContract):
    plugin = OBSERVERS["json-lines"]
    options: ClassVar = {"fields": ["loss"]}
    sample = b'{"step": 1, "loss": 0.5}\n{"step": 2}\n'
    rows = (Row({"loss": 0.5}),)


class TestKeyValue(ObserverContract):
    plugin = OBSERVERS["key-value"]
    options: ClassVar = {"clock": "step"}
    bad_options = ({"path": ""}, {"fields": []}, {"fields": ["a.b"]}, {"field": ["a"]})
    sample = (
        b"begin at 12:30:05 of http://host:80/a?b=c\n"
        b"step=10 loss=0.5, acc: 3 lr = 1e-3 (T: 10ms)\n"
        b"Step  \tstep=20  loss: nan best=-Infinity.\n"
        b"loss = 1 loss = 2\nduration=4\npath=/a/b version=1.2.3 ok=true\n"
        b"e=1" + b"0" * 400 + b"\nfinal: .25"
    )
    rows = (
        Row({"step": 10, "loss": 0.5, "acc": 3, "lr": 1e-3}, 10),
        Row({"step": 20, "loss": float("nan"), "best": float("-inf")}, 20),
        Row({"loss": 2}),
        Row({"final": 0.25}),
    )


class TestKeyValueOfChosenFields(ObserverContract):
    plugin = OBSERVERS["key-value"]
    options: ClassVar = {"fields": ["loss"]}
    sample = b"loss=1 acc=2\nacc=3\n"
    rows = (Row({"loss": 1}),)


class TestRegex(ObserverContract):
    plugin = OBSERVERS["regex"]
    options: ClassVar = {
        "path": "log.{index}",
        "fields": {"E0": r"E0= *(\S+)", "zbrent": "ZBRENT: fatal", "n": r"(\d+) atoms"},
    }
    bad_options = ({}, {"fields": {}}, {"fields": {"a.b": "x"}}, {"fields": {"a": ""}})
    sample = b"1 F= -.1E+02 E0= -.10854E+02  dE\nE0= none\nZBRENT: fatal error, E0=3\n\xff 12 atoms"
    rows = (
        Row({"E0": -10.854}),
        Row({"E0": math.nan}),
        Row({"zbrent": 1, "E0": 3}),
        Row({"n": 12}),
    )


class TestTable(ObserverContract):
    plugin = OBSERVERS["table"]
    options: ClassVar = {"path": "log.{index}", "fields": ["T"], "clock": "step"}
    bad_options = (
        {"fields": []},
        {"layout": "rows"},
        {"separator": "tabs"},
        {"layout": "pairs-of-lines", "take": "last"},
        {"header": ""},
    )
    sample = b"a run of 3 steps\n step T (K)\n   1 300\n  20 ***\nLoop time of 3\n  30 nan"
    rows = (Row({"T": 300}, 1), Row({"T": math.nan}, 20), Row({"T": math.nan}, 30))


class TestTableInBlocks(ObserverContract):
    plugin = OBSERVERS["table"]
    options: ClassVar = {"layout": "pairs-of-lines", "clock": "step"}
    sample = b"step time\n1 0.5\n\n  T (K)  P (bar)\n  300  2.5\nstep time\n2 1.0\nT P\n301"
    rows = (Row({"step": 1, "time": 0.5, "T": 300, "P": 2.5}, 1), Row({"step": 2, "time": 1.0}, 2))


@pytest.mark.parametrize("name", ["json-lines", "key-value", "regex"])
def test_whole_numbers_stay_integers(name: str) -> None:
    options = {"regex": {"fields": {"n": "n.*?([0-9.]+)"}}}.get(name, {})
    observer = OBSERVERS[name].build(TestRegex.job, options)
    lines = {"json-lines": b'{"n": 3}\n{"n": 3.0}\n'}.get(name, b"n=3\nn=3.0\n")
    values = [row.values["n"] for row in observer.feed(lines)]
    assert [type(value) for value in values] == [int, float]


@pytest.mark.parametrize(
    ("name", "options", "output", "complaint"),
    [
        ("json-lines", {}, b"a\nb\n\nc", "3 lines, none of them a JSON object"),
        ("json-lines", {"fields": ["los"]}, b'{"loss": 1}', "no field 'los'; found 'loss'"),
        ("json-lines", {}, b'{"a": "b"}', "1 line, none of them with a number"),
        ("json-lines", {}, b"", "no lines"),
        ("json-lines", {"fields": ["a"], "clock": "t"}, b'{"t": 1, "a": 2}', None),
        ("key-value", {}, b"loss 3", "1 line, none of them with name=NUMBER or name: NUMBER"),
        ("key-value", {"fields": ["a", "b"]}, b"a=1 c=2", "no field 'b'; found 'c'"),
        ("regex", {"fields": {"E": "E=(.+)"}}, b"x\ny", "no number for 'E' in 2 lines"),
        (
            "regex",
            {"fields": {"E": "E=(.+)"}},
            b"E=x",
            "E could not be read in 1 of 1 line, first: 'x' in line 1",
        ),
        ("regex", {"fields": {"error": "ERROR"}}, b"all is well", None),
        ("regex", {"fields": {"E": "E=(.+)", "F": "F=(.+)"}}, b"E=1", None),
    ],
)
def test_observer_complains_about_output_that_it_cannot_parse(
    name: str, options: dict[str, Any], output: bytes, complaint: str | None
) -> None:
    observer = OBSERVERS[name].build(TestRegex.job, options)
    list(observer.feed(output))
    list(observer.finish())
    said = observer.complaint()
    assert said == complaint or (complaint and said and said.startswith(complaint))


def test_no_pattern_takes_exponential_time() -> None:
    line = b"a" * 100_000 + b"!\n"
    evil = OBSERVERS["regex"].build(TestRegex.job, {"fields": {"x": "(a+)+$", "y": "(a|aa)*b"}})
    plain = OBSERVERS["regex"].build(TestRegex.job, {"fields": {"x": "(z)", "y": "y"}})
    assert list(evil.feed(line)) == list(plain.feed(line)) == []


def test_invalid_pattern_is_an_error_with_a_hint() -> None:
    with pytest.raises(EnsembleError) as caught:
        OBSERVERS["regex"].build(TestRegex.job, {"fields": {"x": "(?=a)"}})
    assert caught.value.code == "bad-pattern"
    assert "no lookaround" in (caught.value.hint or "")


def test_json_lines_limits_the_number_of_names() -> None:
    observer = JsonLines()
    names = {
        name
        for number in range(5000)
        for row in observer.feed(b'{"x%d": 1}\n' % number)
        for name in row.values
    }
    assert len(names) == MOST_FIELDS


def feed(name: str, values: list[float], **options: Any) -> float | None:
    statistic: Any = STATISTICS[name].build(options)
    for value in values:
        statistic.update(value)
    said: float | None = statistic.get()
    return said


def test_default_statistics_are_those_of_the_first_implementation() -> None:
    default = {name for name, record in STATISTICS.items() if record.default}
    assert default == {"variance", "mean", "iqr", "max", "min", "mad"}


@pytest.mark.parametrize("size", [1, 2, 3, 6, 20, 100, EXACT])
def test_quantiles_of_few_values_are_exact(size: int) -> None:
    chance = random.Random(size)
    values = [chance.lognormvariate(0, 1) for _ in range(size)]
    median = exact.median(values)
    assert feed("median", values) == pytest.approx(median)
    assert feed("mad", values) == pytest.approx(exact.median(abs(v - median) for v in values))
    if size >= 2:
        cuts = exact.quantiles(values, n=100, method="inclusive")
        assert feed("p90", values) == pytest.approx(cuts[89])
        assert feed("p95", values) == pytest.approx(cuts[94])
        assert feed("p99", values) == pytest.approx(cuts[98])
        assert feed("iqr", values) == pytest.approx(cuts[74] - cuts[24])
        assert feed("quantile", values, q=0.2) == pytest.approx(cuts[19])


@pytest.mark.parametrize(("name", "place"), [("median", 50), ("p90", 90), ("p99", 99)])
def test_quantiles_of_many_values_are_close(name: str, place: int) -> None:
    chance = random.Random(7)
    values = [chance.gauss(100, 10) for _ in range(20_000)]
    assert feed(name, values) == pytest.approx(exact.quantiles(values, n=100)[place - 1], rel=0.01)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mean", exact.fmean),
        ("variance", exact.variance),
        ("max", max),
        ("min", min),
        ("sum", sum),
        ("median", exact.median),
    ],
)
def test_window_drops_old_values_completely(name: str, expected: Any) -> None:
    values = [1e16, -1e16, 3.0, 1e16, 0.1, 0.2, 0.4, 0.8]
    assert feed(name, values, window=4) == pytest.approx(expected(values[-4:]), rel=1e-12)


def test_time_window_empties_as_time_passes() -> None:
    statistic: Any = STATISTICS["mean"].build({"window": "1m30s"})
    assert STATISTICS["mean"].spec({"window": "1m30s"}).timed
    assert not STATISTICS["mean"].spec({"window": 10}).timed
    assert not STATISTICS["mean"].spec().timed
    statistic.update(4.0, 100.0)
    statistic.update(8.0, 160.0)
    assert statistic.get(160.0) == 6.0
    assert statistic.get(190.0) == 8.0
    assert statistic.get(250.0) is None
    assert statistic.get(160.0) == 6.0


def test_result_too_large_for_a_float_is_none() -> None:
    assert feed("sum", [1e308, 1e308, 1e308], window=3) is None
    assert feed("variance", [1e308, -1e308], window=3) is None


def test_rate_counts_values_per_second() -> None:
    rate: Any = STATISTICS["rate"].build({})
    assert rate.get(0.0) is None
    for tick in range(3001):
        rate.update(1.0, 1e9 + tick / 10)
        if tick == 59:
            assert rate.get(1e9 + 5.9) is None
        if tick in (60, 600, 3000):
            assert rate.get(1e9 + tick / 10) == pytest.approx(10, rel=0.02)
    assert rate.get(1e9 + 330) == pytest.approx(5, rel=0.05)
    assert rate.get(1e9 + 361) == 0.0


def test_rate_uses_the_window_of_the_file() -> None:
    for window in (10, "10s"):
        rate: Any = STATISTICS["rate"].build({"window": window})
        for second in range(100):
            rate.update(1.0, float(second))
        assert rate.get(99.0) == pytest.approx(1.0, rel=0.05)
        assert rate.get(120.0) == 0.0


def test_rate_accepts_late_events() -> None:
    rate: Any = STATISTICS["rate"].build({"window": 10})
    for stamp in (5.0, 20.0, 3.0, 19.0, 20.0):
        rate.update(1.0, stamp)
    value = rate.get(20.0)
    assert value is not None
    assert math.isfinite(value)
    assert value == pytest.approx(0.4)


def test_ewma_weights_the_newest_value_by_alpha() -> None:
    assert feed("ewma", [10.0, 20.0], alpha=0.25) == pytest.approx(12.5)
    assert feed("ewma", [10.0, 20.0]) == pytest.approx(13.0)


RIVER: Mapping[str, Any] = {
    "variance": river.Var,
    "mean": river.Mean,
    "max": river.Max,
    "min": river.Min,
    "sum": river.Sum,
    "iqr": river.IQR,
    "mad": river.MAD,
    "median": lambda: river.Quantile(0.5),
    "p90": lambda: river.Quantile(0.9),
    "quantile": lambda: river.Quantile(0.5),
    "ewma": lambda: river.EWMean(0.3),
}


@pytest.mark.parametrize("name", RIVER)
def test_statistics_over_all_values_equal_rivers_bit_by_bit(name: str) -> None:
    chance = random.Random(3)
    values = [
        chance.choice((chance.gauss(1e3, 1), chance.lognormvariate(0, 9), 3, -1e9))
        for _ in range(EXACT + 500)
    ]
    theirs, by_one, by_many = RIVER[name](), STATISTICS[name].build({}), STATISTICS[name].build({})
    update_all = getattr(by_many, "update_all", None)
    for number, value in enumerate(values):
        theirs.update(value)
        by_one.update(value)
        if number % 7 == 0:
            found = by_one.get()  # must not change later results
            if number >= EXACT or name not in ("iqr", "mad", "median", "p90", "quantile"):
                assert found == theirs.get()
    for begin in range(0, len(values), 77):
        part = values[begin : begin + 77]
        if update_all is not None:
            update_all(part)
        else:
            for value in part:
                by_many.update(value)
    assert by_one.get() == by_many.get() == theirs.get()


@pytest.mark.parametrize("q", [1e-9, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999999])
@pytest.mark.parametrize(
    "draw",
    [
        lambda chance, number: chance.gauss(0, 1),
        lambda chance, number: float(chance.randrange(5)),
        lambda chance, number: float(number),
        lambda chance, number: -float(number),
        lambda chance, number: chance.choice((chance.lognormvariate(0, 9), 3.0, -1e300, 1e300)),
    ],
    ids=["normal", "few", "rising", "falling", "huge"],
)
def test_quantile_estimate_equals_rivers_bit_by_bit(q: float, draw: Any) -> None:
    chance, theirs, ours = random.Random(5), river.Quantile(q), QuantileEstimate(q)
    for number in range(2000):
        value = draw(chance, number)
        theirs.update(value)
        ours.update(value)
        assert struct.pack("d", ours.get()) == struct.pack("d", theirs.get())


def test_copy_of_a_statistic_is_independent() -> None:
    for size in (10, EXACT + 10):
        statistic: Any = STATISTICS["mad"].build({})
        for number in range(size):
            statistic.update(float(number))
        again: Any = STATISTICS["mad"].build({})
        put_state(again, copy.deepcopy(state_of(statistic, STATISTICS["mad"].build({}))))
        for twin in (copy.deepcopy(statistic), again):
            before = twin.get()
            assert before == statistic.get()
            for _ in range(500):
                statistic.update(1e6)
            assert twin.get() == before
            assert statistic.get() != before
            statistic = twin


GENERATORS: Mapping[str, Any] = {each.name: each for each in generators.ensemble_generators()}
GENERATOR_OPTIONS: Mapping[str, Mapping[str, Any]] = {"latin-hypercube": {"points": 16}}


@pytest.mark.parametrize("name", GENERATORS)
def test_generator_fulfils_the_contract(name: str) -> None:
    check_contract(
        GeneratorContract, plugin=GENERATORS[name], options=GENERATOR_OPTIONS.get(name, {})
    )
