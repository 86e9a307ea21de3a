"""Mistakes in ``generators:``: each is reported with its place and a hint; nothing is submitted."""

from __future__ import annotations

from functools import partial
from typing import Any

import marked_places
import pytest
from marked_places import check_errors

from ensemble_core import EnsembleError, GeneratorPlugin
from ensemble_core.config import load_text
from ensemble_core.errors import FileErrors
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.registry import LoadedPlugin, Registry

REGISTRY = discover()

#: Parts of the study that a mistake replaces.
STUDY = """\
jobs:
  - name: sim
    command: sim {x} {n}
    observe: {json-lines: {fields: [energy, stress]}}
    result: {E: last.energy, peak: max.stress}
generators:
  - name: search
    use: random
    group: sim
    variables: {x: [-5.0, 5.0], n: {values: [8, 16]}}
    objectives: {E: minimize}
    constraints: {peak: '< 2.5'}
    at_once: 4
    until: count.done >= 60
    with: {seed: 1}
rules:
  - {trigger: generator-best, name: search, when: E < 3, action: {name: pause, generator: search}}
"""


wrong = partial(marked_places.wrong, STUDY)

X, N, UNTIL = "x: [-5.0, 5.0]", "n: {values: [8, 16]}", "until: count.done >= 60"
WRONG = [
    wrong("use: random", "use: «randm", "there is no generator 'randm'", "'random'"),
    wrong("use: random", "use: «bayes", "there is no generator 'bayes'", "known:"),
    wrong("group: sim", "group: «sin", "there is no job group 'sin'", "'sim'"),
    wrong(X, "x: «5", "'x'", "a list or a mapping"),
    wrong(X, "x: «[5]", "'x'"),
    wrong(X, "x: «[5.0, -5.0]", "'x' has an empty range: 5 to -5", "write the lower value first"),
    wrong(X, "x: «{from: 1}", "the variable 'x' has no 'to'"),
    wrong(X, "x: «{from: -1, to: 1, log: true}", "logarithmic and begins at -1"),
    wrong(X, "x: {from: 0, to: 1.0e300, step: «1}", "'x' would have more than 1e+15 values"),
    wrong(X, "x: {from: 0, to: 1, step: «1.0e-320}", "'x' would have more than 1e+15 values"),
    wrong(X, "x: «[-1.0e308, 1.0e308]", "'x' is too wide"),
    wrong("at_once: 4", "at_once: «1000001", "1000001 jobs at once; the limit is 1000000"),
    wrong("at_once: 4", "replicas: «1000001", "1000001 jobs at once; the limit is 1000000"),
    wrong(X, "x: {from: 1, to: 2, stepp«: 1}".replace("stepp«", "«stepp"), "'stepp'", "'step'"),
    wrong(N, "n: {values: «[]}", "'values' is empty"),
    wrong(N, "n: «{values: [8, 8]}", "'n' has a duplicate value"),
    wrong(
        X,
        "opt: {values: [adam, sgd]}, x: {range: [0, 1], when: «opt == 'SGD'}",
        "no value of opt is 'SGD'; did you mean 'sgd'?",
    ),
    wrong("{E: minimize}", "{«F: minimize}", "the job group 'sim' has no result 'F'", "E, peak"),
    wrong("{E: minimize}", "{«e: minimize}", "has no result 'e'", "did you mean 'E'"),
    wrong("{E: minimize}", "{E: «minimise}", "'E' is 'minimise'", "'minimize'"),
    wrong("{E: minimize}", "«{}", "'objectives' is empty"),
    wrong("{peak: '< 2.5'}", "{peak: «'= 2.5'}", "the constraint on 'peak' is '= 2.5'", '"< 2.5"'),
    wrong("{peak: '< 2.5'}", "{«peek: '< 2.5'}", "has no result 'peek'", "'peak'"),
    wrong("at_once: 4", "at_once: «0", "'at_once' is 0", "at least 1"),
    wrong("at_once: 4", "«at_onec: 4", "unknown key 'at_onec'", "'at_once'"),
    wrong("at_once: 4", "replicas: «many", "'replicas'", "a whole number"),
    wrong("at_once: 4", "timeout: «0", "'timeout' is 0", "more than 0"),
    wrong("at_once: 4", "failed: «drop", "'failed' is 'drop'", "discard"),
    wrong("at_once: 4", "failed: «{E: 1}", "'failed' has no value for 'peak'"),
    wrong("at_once: 4", "«prune: {value: energy, step: stress}", "cannot use rows of running jobs"),
    wrong(UNTIL, "until: «count.don >= 60", "there is no count 'don'", "'count.done'"),
    wrong(UNTIL, "until: min.«F < 3", "yields 'F'"),
    wrong(UNTIL, "until: «generator.serch.pending > 3", "no generator 'serch'", "'search'"),
    wrong(UNTIL, "until: «generator.search.best.F > 3", "no objective 'F'"),
    wrong("with: {seed: 1}", "with: {«sed: 1}", "unknown key 'sed'", "'seed'"),
    wrong("with: {seed: 1}", "with: {seed: «one}", "'seed'", "a whole number"),
    wrong("name: search, when", "name: «serch, when", "no generator 'serch'", "'search'"),
    wrong("generator: search}", "generator: «serch}", "no generator 'serch'", "'search'"),
    wrong("when: E < 3", "when: «F < 3", "'F'"),
]


@pytest.mark.parametrize(("text", "words"), WRONG)
def test_mistake_is_reported_with_its_place(text: str, words: tuple[str, ...]) -> None:
    check_errors(text, REGISTRY, words)


def test_endless_generator_is_rejected_without_a_limit() -> None:
    endless = STUDY.replace(f"    {UNTIL}\n", "")
    with pytest.raises(FileErrors, match="the generator 'search' would never end"):
        load_text(endless, REGISTRY)
    assert load_text(endless + "limits: {jobs: 60}\n", REGISTRY).generators["search"].until is None
    grid = endless.replace("use: random", "use: grid").replace("{seed: 1}", "{points: 3}")
    assert load_text(grid, REGISTRY).generators["search"].until is None


def test_variable_with_a_billion_values_needs_no_memory() -> None:
    text = STUDY.replace(X, "x: {from: 0, to: 1000000000, step: 1}")
    (x, _) = load_text(text, REGISTRY).generators["search"].vocs.variables
    assert len(x.steps) == 1_000_000_001
    assert (x.at(0.0), x.at(0.25), x.at(0.5)) == (0, 250_000_000, 500_000_000)
    grid = text.replace("use: random", "use: grid").replace("{seed: 1}", "{}")
    with pytest.raises(FileErrors, match="the grid has 2000000002 points; at most"):
        load_text(grid, REGISTRY)


def test_latin_hypercube_with_too_many_points_is_rejected() -> None:
    text = STUDY.replace("use: random", "use: latin-hypercube")
    with pytest.raises(FileErrors, match="'points' is 2000000, it must be at most"):
        load_text(text.replace("{seed: 1}", "{points: 2000000}"), REGISTRY)


@pytest.mark.parametrize("use", ["sobol", "latin-hypercube"])
def test_missing_scipy_is_reported_with_an_install_hint(
    use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    text = STUDY.replace("use: random", f"use: {use}").replace("{seed: 1}", "{seed: 1, points: 9}")
    text = text if use == "latin-hypercube" else text.replace(", points: 9", "")
    with pytest.raises(FileErrors) as caught:
        load_text(text, REGISTRY)
    (error,) = caught.value.errors
    assert error.what.endswith("this generator needs scipy, which is not installed")
    assert (error.code, error.where and error.where.line) == ("no-library", 8)
    assert "pip install scipy" in str(error.hint)


def test_missing_key_is_reported() -> None:
    for key in ("use", "group", "variables", "objectives"):
        lines = [line for line in STUDY.splitlines() if not line.strip().startswith(f"{key}:")]
        with pytest.raises(FileErrors, match=f"has no '{key}'"):
            load_text("\n".join(lines), REGISTRY)
    hypercube = STUDY.replace("use: random", "use: latin-hypercube")
    with pytest.raises(FileErrors, match="has no 'points'"):
        load_text(hypercube, REGISTRY)


def test_misspelt_group_is_reported_once_without_its_placeholders() -> None:
    with pytest.raises(FileErrors) as caught:
        load_text(STUDY.replace("group: sim", "group: smi"), REGISTRY)
    assert [each.what for each in caught.value.errors] == ["there is no job group 'smi'"]


def test_parameter_without_a_value_is_reported() -> None:
    text = STUDY.replace("command: sim {x} {n}", "command: sim {x} {n} {T}").replace(
        "    observe:", "    parameters: {T: null}\n    observe:"
    )
    with pytest.raises(
        FileErrors, match="'T' of 'sim' is null but not a variable of this generator"
    ):
        load_text(text, REGISTRY)


def test_duplicate_names_are_rejected() -> None:
    entry = STUDY[STUDY.index("  - name: search") : STUDY.index("rules:")]
    with pytest.raises(FileErrors, match="duplicate generator 'search'"):
        load_text(STUDY.replace("rules:", f"{entry}rules:"), REGISTRY)
    with pytest.raises(
        FileErrors, match=("the name 'search' is already used by a table under 'results'")
    ):
        load_text(STUDY + "results: {search: {of: sim}}\n", REGISTRY)


NO_GENERATORS = """\
jobs:
  - {name: sim, command: sim}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
"""


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("{trigger: «generator-best, action: {name: log, message: a}}", "'generator-best' waits"),
        ("{trigger: «generator-exhausted, action: {name: terminate}}", "'generator-exhausted' wai"),
        ("{trigger: generator-best, name: «search, action: {name: terminate}}", "no generator 's"),
        ("{trigger: start, action: {name: suggest, generator: «search}}", "no generator 'search'"),
        ("{trigger: start, action: {name: pause, generator: «search}}", "no generator 'search'"),
    ],
)
@pytest.mark.parametrize("section", ["", "generators: []\n"])
def test_rule_on_generators_is_rejected_in_a_file_without_one(
    rule: str, told: str, section: str
) -> None:
    check_errors(f"{NO_GENERATORS}  - {rule}\n{section}", REGISTRY, (told, "hint: "))
    load_text(NO_GENERATORS, REGISTRY)  # and the rest is valid


SECOND = """\
  - name: near
    use: random
    group: sim
    variables: {VARIABLES}
    objectives: {OBJECTIVES}
    enabled: false
    until: count.done >= 9
rules:
  - {trigger: generator-best, name: search, when: E < 3, action: {name: switch, TO}}
"""


def second(variables: str = f"{X}, {N}", objectives: str = "E: minimize", to: str = "") -> str:
    text = SECOND.replace("VARIABLES", variables).replace("OBJECTIVES", objectives)
    return STUDY[: STUDY.index("rules:")] + text.replace("TO", to or "to: near")


@pytest.mark.parametrize(
    ("text", "word", "told"),
    [
        (second(to="to: naer"), "naer", "there is no instance or generator 'naer'"),
        (second(to="to: near, from: serch"), "serch", "there is no instance or generator 'serch'"),
        (second(X), "near}", "cannot take over points of 'search': it has no variable 'n'"),
        (second(f"{X}, {N}, k: [1, 2]"), "near}", "they have no variable 'k'"),
        (second(objectives="S: minimize"), "near}", "they have no value of 'S'"),
    ],
)
def test_invalid_switch_of_generators_is_rejected_with_its_place(
    text: str, word: str, told: str
) -> None:
    text = text.replace("peak: max.stress}", "peak: max.stress, S: last.stress}")
    text = text.replace("{x} {n}\n", "{x} {n} {k}\n    parameters: {n: 8, k: 1}\n")
    line = text.splitlines()[-1]
    with pytest.raises(FileErrors) as caught:
        load_text(text, REGISTRY)
    number, column = text.count("\n"), line.index(word) + 1
    assert f"ensemble.yaml:{number}:{column}: " in str(caught.value)
    assert told in str(caught.value)
    load_text(second(), REGISTRY)
    load_text(second("x: [0.0, 1.0], n: {values: [8]}"), REGISTRY)


def test_generator_with_the_name_of_an_instance_is_rejected() -> None:
    use = "use:\n  - {as: search, rules: [{trigger: start, action: {name: log, message: a}}]}\n"
    with pytest.raises(
        FileErrors, match=("the name 'search' is already used by an instance under 'use'")
    ):
        load_text(STUDY + use, REGISTRY)


def test_set_finds_a_generator_by_name() -> None:
    changed = load_text(STUDY, REGISTRY, overrides=["generators.search.at_once=9"])
    assert changed.generators["search"].at_once == 9
    assert load_text(STUDY, REGISTRY, overrides=["generators.0.at_once=9"])
    with pytest.raises(FileErrors, match="there is no generator 'serch'"):
        load_text(STUDY, REGISTRY, overrides=["generators.serch.at_once=9"])


def test_wrong_result_is_reported_once() -> None:
    with pytest.raises(FileErrors) as caught:
        load_text(STUDY.replace("E: last.energy", "E: last.enrgy"), REGISTRY)
    (error,) = caught.value.errors
    assert "'last.enrgy' can never have a value" in str(error)


PICKY = STUDY.replace("use: random", "use: picky").replace(
    "{seed: 1}", "{class: lib.Best, more: {depth: 3}}"
)


def picky(told: str, checks: bool) -> Registry:
    """Registry with a generator that rejects its options in ``check`` or only in ``build``."""

    def refuse(vocs: Any, options: Any) -> Any:
        raise EnsembleError(told, hint="leave it out", code="bad-value")

    more = {"type": "object", "additionalProperties": True}
    record = GeneratorPlugin(
        name="picky",
        summary="refuses",
        build=refuse,
        check=refuse if checks else None,
        options={"type": "object", "properties": {"class": {"type": "string"}, "more": more}},
    )
    plugin = LoadedPlugin(
        name="p", distribution="ensemble-p", version="1.0", module="p",
        records={"generator": (record,)},
    )  # fmt: skip
    return Registry([*REGISTRY.plugins, plugin])


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ("lib's Best takes no argument 'depth'", "3}}"),
        ("the module 'lib' cannot be imported", "lib.Best"),
        ("it takes one objective", "picky"),
        ("'depth' stands beside 'class', not in it", "3}}"),
    ],
)
def test_error_of_a_generator_is_reported_at_the_option_that_it_names(told: str, word: str) -> None:
    with pytest.raises(FileErrors) as caught:
        load_text(PICKY, picky(told, checks=True))
    before = PICKY[: PICKY.index(word)]
    place = f"{before.count(chr(10)) + 1}:{len(before.rpartition(chr(10))[2]) + 1}"
    assert str(caught.value).startswith(f"ensemble.yaml:{place}: {told}")


def test_error_of_a_generators_build_is_reported_with_its_place() -> None:
    spec = load_text(PICKY, picky("no 'depth' here", checks=False)).generators["search"]
    with pytest.raises(EnsembleError) as caught:
        spec.build("check")
    assert str(caught.value) == (
        "cannot be built (ensemble.yaml:8:10): no 'depth' here\n  hint: leave it out"
    )
