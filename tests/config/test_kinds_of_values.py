"""A comparison of a number with a text is never true: a warning says so."""

from __future__ import annotations

import pytest

from ensemble_core.config import load_text
from ensemble_core.errors import EnsembleError
from ensemble_core.plugin.discovery import discover

REGISTRY = discover()
FILE = """
jobs:
  - {name: sim, command: 'sim {T} {m} {x}', parameters: {T: [1, 2.5], m: [a, b], x: [1, b]},
     observe: {json-lines: {fields: [E]}}, OF_JOB}
  - {name: range, command: 'sim {T}', parameters: {T: {from: 0, to: 1e5, step: 1}}}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: TRIGGER, name: sim, when: "WHEN", action: {name: log, message: x}}
"""


def warnings(when: str, trigger: str = "observed", of_job: str = "nodes: 1") -> list[str]:
    text = FILE.replace("WHEN", when).replace("TRIGGER", trigger).replace("OF_JOB", of_job)
    told = load_text(text, REGISTRY).warnings
    return [one for one in told if "compares a number with a text" in one]


@pytest.mark.parametrize(
    ("when", "why"),
    [
        ("T == '1'", "T is a number, and '1' is not"),
        ("'1' != T", "T is a number, and '1' is not"),
        ("E > 1 and (m == 1 or m == 'a')", "m is a text, and 1 is not"),
        ("m < -3", "m is a text, and -3 is not"),
        ("T in ('1', '2')", "T is a number, and ('1', '2') is not"),
        ("index == 'sim.0'", "index is a number, and 'sim.0' is not"),
        ("job == 0", "job is a text, and 0 is not"),
        ("count.done(T == '1') > 2", "T is a number, and '1' is not"),
        ("mean.E(m == 1) > 2", "m is a text, and 1 is not"),
    ],
)
def test_number_compared_with_a_text_causes_a_warning_at_the_condition(when: str, why: str) -> None:
    (told,) = warnings(when)
    assert told.startswith("ensemble.yaml:8:42: "), told
    assert told.endswith(why)


def test_condition_of_retry_or_fail_if_causes_the_warning_too() -> None:
    (told,) = warnings("T > 1", of_job="retry: {times: 1, when: exit_code == '7'}")
    assert told.endswith("exit_code is a number, and '7' is not")
    (told,) = warnings("T > 1", of_job="fail_if: m == 1")
    assert told.endswith("m is a text, and 1 is not")


def test_comparison_of_any_group_is_checked_with_the_values_of_all() -> None:
    text = FILE.replace("name: sim, when", "when").replace("TRIGGER", "job-success")
    text = text.replace(", OF_JOB", "")
    told = load_text(text.replace("WHEN", "T == '1'"), REGISTRY).warnings
    assert any("T is a number" in one for one in told)


@pytest.mark.parametrize(
    "when",
    ["T == 1", "m == 'a'", "m in ('a', 'b')", "x == 1", "x == 'b'", "E == 'nan'", "T in (1, '1')"],
)
def test_comparison_that_can_be_true_causes_no_warning(when: str) -> None:
    assert warnings(when) == []


MISSPELT = """
jobs:
  - {name: train, command: 'train {opt}', parameters: {opt: [adam, sgd, 1]}}
rules:
  - {trigger: start, action: {name: submit, label: train}}
  - {trigger: job-fail, WHEN, action: {name: log, message: x}}
"""


@pytest.mark.parametrize(
    ("when", "why"),
    [
        ("name: train, when: opt == 'Adam'", "opt is 'Adam'; did you mean 'adam'?"),
        ("name: train, when: \"opt in ('sgd', 'admm')\"", "is 'admm'; did you mean 'adam'?"),
        ("when: group == 'trian'", "group is 'trian'; did you mean 'train'?"),
    ],
)
def test_value_that_only_resembles_one_of_the_sweep_causes_a_warning(when: str, why: str) -> None:
    told = load_text(MISSPELT.replace("WHEN", when), REGISTRY).warnings
    assert [one for one in told if one.endswith(why)], told


@pytest.mark.parametrize("when", ["opt == 'adam'", "opt < 'b'", "opt == 'none'", "opt != 1"])
def test_values_of_the_sweep_and_quite_other_texts_cause_no_warning(when: str) -> None:
    assert load_text(MISSPELT.replace("WHEN", f"when: {when!r}"), REGISTRY).warnings == ()


@pytest.mark.parametrize(
    ("when", "why"),
    [
        ("abs(m) > 1", "m is a text"),
        ("E + m > 1", "m is a text"),
        ("-m < 0", "m is a text"),
        ("E * '2' > 1", "'2' is a text"),
        ("T > 1 or sqrt(job) > 1", "job is a text"),
    ],
)
def test_arithmetic_with_a_text_causes_a_warning(when: str, why: str) -> None:
    text = FILE.replace("WHEN", when).replace("TRIGGER", "observed").replace("OF_JOB", "nodes: 1")
    (told,) = [one for one in load_text(text, REGISTRY).warnings if "computes" in one]
    assert told == (
        f"ensemble.yaml:8:42: {when!r} computes with a text, which has no result: {why}"
    )


@pytest.mark.parametrize("when", ["abs(T) > 1", "min(m, 'a') == 'a'", "m == 'a' and -T < 0"])
def test_arithmetic_with_numbers_causes_no_warning(when: str) -> None:
    text = FILE.replace("WHEN", when).replace("TRIGGER", "observed").replace("OF_JOB", "nodes: 1")
    assert not [one for one in load_text(text, REGISTRY).warnings if "computes" in one]


def test_a_comparison_with_nothing_is_never_true() -> None:
    text = FILE.replace("WHEN", "T > 1 and E == None").replace("TRIGGER", "observed")
    told = "\n".join(load_text(text.replace("OF_JOB", "nodes: 1"), REGISTRY).warnings)
    assert "is never true: without a value, the condition does not hold" in told


@pytest.mark.parametrize(
    ("when", "words", "hint"),
    [
        ("max(E) > 1", "max() takes two values or more, and has 1", "max.COLUMN"),
        ("log(E, 10) > 1", "log() takes one value, and has 2", "log(x) / log(base)"),
        ("sqrt() > 1", "sqrt() takes one value, and has 0", "write sqrt(x)"),
        ("round(E, 1, 2) > 1", "round() takes one or two values, and has 3", "write round(x)"),
    ],
)
def test_a_call_that_never_has_a_result_is_an_error(when: str, words: str, hint: str) -> None:
    text = FILE.replace("WHEN", when).replace("TRIGGER", "observed").replace("OF_JOB", "nodes: 1")
    with pytest.raises(EnsembleError) as caught:
        load_text(text, REGISTRY)
    assert words in str(caught.value)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ("of: sim, where: \"T > '1'\"", "T is a number, and '1' is not"),
        ('of: "sim(m == 1)"', "m is a text, and 1 is not"),
        ("of: sim, by: [T], where: \"T == 'a'\"", "T is a number, and 'a' is not"),
        ("of: sim, columns: {T: duration}, where: \"T > '1'\"", ""),
    ],
)
def test_a_table_that_compares_a_number_with_a_text_causes_the_warning(keys: str, why: str) -> None:
    text = (
        FILE.replace("WHEN", "T > 1").replace("TRIGGER", "observed").replace("OF_JOB", "nodes: 1")
    )
    told = load_text(f"{text}results:\n  t: {{{keys}}}\n", REGISTRY).warnings
    found = [one for one in told if "compares a number with a text" in one]
    assert len(found) == bool(why)
    assert not why or found[0].endswith(why)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("{here}/w", "KEY='\"{here}/x\"'"),
        ("[{here}/a, 2]", "KEY='\"{here}/x\"'"),
        ("@w", "quote text that begins with @"),
        ('"a\\d"', "write the text in single quotes"),
    ],
)
def test_a_value_of_set_that_is_not_yaml_is_not_called_a_file(value: str, hint: str) -> None:
    with pytest.raises(EnsembleError) as caught:
        load_text(FILE, REGISTRY, overrides=[f"jobs.sim.workdir={value}"])
    told = str(caught.value)
    assert "the value is not YAML" in told
    assert "the file" not in told
    assert hint in told
