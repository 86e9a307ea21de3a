"""Conditions and expressions are safe: they reach only fields, metrics and a few functions, and
their cost is bounded by their length."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ensemble_core import EnsembleError, expression
from ensemble_core.model.conditions import parse
from ensemble_core.model.expressions import check_names
from ensemble_core.model.formula_compiler import compiled


def nothing(path: str) -> float | None:
    """No metric has a value."""
    return None


#: Invalid formulas, some of which would be attacks.
ESCAPES = [
    "x.__class__",
    "x.__class__.__mro__[1].__subclasses__()",
    "x.real.__class__",
    "x._y",
    "x.ⅹ.__class__",
    "x.＿＿class__",
    "x[0].__class__",
    "().__class__",
    "(1).real",
    "1 .real",
    "1.0.hex()",
    "'a'.upper()",
    "'{0.__class__}'.format(x)",
    "'%s'.__mod__(x)",
    "''.join(x)",
    "f'{x}'",
    "f'{x.__class__}'",
    "b'a'",
    "1j",
    "...",
    "[y for y in x]",
    "{y for y in x}",
    "{y: 1 for y in x}",
    "(y for y in x)",
    "max(y for y in x)",
    "{1: 2}",
    "{1, 2}",
    "lambda: 1",
    "(lambda: x)()",
    "(y := 3)",
    "x if (y := 1) else 2",
    "*x",
    "max(*x)",
    "[*x]",
    "max(x, key=abs)",
    "round(number=x)",
    "x()",
    "x[0]()",
    "x[y]",
    "x[1:2]",
    "'abc'[0]",
    "(1, 2)[0]",
    "abs.__self__",
    "max.__self__.eval",
    "metric.__globals__",
    "metric",
    "metric()",
    "metric(x)",
    "metric('a' + 'b')",
    "metric('a' if x else 'b')",
    "metric(f'{x}')",
    "metric('a', 'b')",
    "metric(path='a')",
    "metric(*['a'])",
    "eval('1')",
    "exec('1')",
    "open('x')",
    "getattr(x, 'y')",
    "type(x)",
    "__import__('os')",
    "__builtins__['eval']",
    "print(x)",
    "abs(abs)",
    "_type(x)",
    "_number(x)",
    "_call(x)",
    "await x",
    "yield",
    "x; y",
    "x\nimport os",
    "import os",
    "x = 1",
    "x << 9999",
    "x >> 1",
    "x | 1",
    "x & 1",
    "x ^ 1",
    "~x",
    "x @ x",
    "x is None",
    "x is not 1",
]
#: Syntactically valid, but rejected because the field is unknown.
ONLY_NAMES = {"metric", "abs(abs)"}


@pytest.mark.parametrize("escape", [each for each in ESCAPES if each not in ONLY_NAMES])
def test_invalid_formulas_are_rejected(escape: str) -> None:
    for frame in ("{}", "x == ({})", "x or not ({})", "max(1, ({}))", "1 + ({})"):
        for read in (parse, expression):
            with pytest.raises(EnsembleError):
                read(frame.format(escape))


@pytest.mark.parametrize("escape", ESCAPES)
def test_invalid_formulas_are_rejected_if_only_fields_are_known(escape: str) -> None:
    with pytest.raises(EnsembleError):
        check_names(escape, parse(escape).names, {"x"})


@pytest.mark.parametrize(
    "name",
    ["__builtins__", "__import__", "__class__", "_it", "_number", "_type", "_nothing", "get",
     "metric", "abs", "None_", "ｅval", "eval"],
)  # fmt: skip
def test_a_name_is_always_a_field(name: str) -> None:
    condition = parse(f"{name} == 3")
    (field,) = condition.names
    assert condition.verdict(1.0, {}, nothing) is None
    assert condition.verdict(1.0, {field: 3}, nothing) is True


def test_names_are_normalised_like_in_python() -> None:
    assert parse("ｖalue > 3").names == {"value"}
    assert parse("ﬁeld > 3").names == {"field"}
    with pytest.raises(EnsembleError):
        parse("ｅｖａｌ('1')")


WRONG: dict[type[ast.expr], str] = {
    ast.NamedExpr: "(y := 1)", ast.Lambda: "lambda: 1", ast.Dict: "{}", ast.Set: "{1}",
    ast.ListComp: "[y for y in x]", ast.SetComp: "{y for y in x}", ast.DictComp: "{y: 1 for y in x}",
    ast.GeneratorExp: "(y for y in x)", ast.JoinedStr: "f'{x}'", ast.Attribute: "x.y",
    ast.Subscript: "x[0]", ast.Await: "await x", ast.Yield: "(yield)", ast.YieldFrom: "(yield from x)",
}  # fmt: skip
FINE = (
    ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Compare, ast.Call, ast.Constant, ast.Name,
    ast.List, ast.Tuple,
)  # fmt: skip


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_invalid_formulas_are_never_compiled(kind: type[ast.expr]) -> None:
    tree = ast.parse(WRONG[kind], mode="eval").body
    assert isinstance(tree, kind)
    for each in (tree, ast.BoolOp(ast.Or(), [ast.Constant(0), tree])):
        with pytest.raises(EnsembleError, match="the formula"):
            compiled(each, careful=True)


@pytest.mark.parametrize(
    "text",
    ["x()()", "x.y()", "open('x')", "_type(x)", "metric(x)", "metric('a', 'b')", "abs(*x)",
     "abs(x, key=1)", "x << 1", "~x", "x is None", "b'a'", "1j", "..."],
)  # fmt: skip
def test_the_compiler_rejects_nodes_that_are_not_listed(text: str) -> None:
    with pytest.raises(EnsembleError, match="the formula"):
        compiled(ast.parse(text, mode="eval").body, careful=False)


def test_every_kind_of_expression_is_listed_as_allowed_or_forbidden() -> None:
    """A new kind in a later Python must be listed."""
    beside = {"Slice", "Starred", "FormattedValue", "TemplateStr", "Interpolation"}
    kinds = {kind for kind in ast.expr.__subclasses__() if kind.__module__ in ("ast", "_ast")}
    assert {kind.__name__ for kind in kinds.difference(FINE, WRONG)} <= beside


# -- cost --------------------------------------------------------------------------------------

HUGE: dict[str, Any] = {"big": 10**4000, "x": 3, "text": "a" * 10000, "list": [1] * 10000}


@pytest.mark.parametrize(
    ("when", "verdict"),
    [
        ("round(1, -100000000) == 0", True),
        ("round(x, -10 ** 9) == 0", None),
        ("round(12345, -9999999999999999999999) == 0", True),
        ("round(1.5, -100000000) == 0", True),
        ("round(1.25, 100000000) == 1.25", True),
        ("round(1.0, 2.0) == 1", None),
        ("round(big, -3000) > 1", None),
        ("9 ** 9 ** 9 ** 9 > 1", None),
        ("9999999 ** 9999999 > 1", None),
        ("2 ** 0.5 ** 100000 > 0", True),
        (" * ".join(["big"] * 120) + " > 1", None),
        ("big % 7 == 1", None),
        ("1" + "0" * 1500 + " * x > 1", None),
        ("big > x", True),
        ("'a' * 999999999 == 1", None),
        ("text * 99999999999 == 1", None),
        ("[1] * 99999999999 == 1", None),
        ("list * x == 1", None),
        ("text + text == 1", None),
        ("list + list == 1", None),
        ("'%999999999d' % x == 1", None),
        ("'%s' % text == 1", None),
        ("exp(99999) > 1", None),
        ("sqrt(big) > 1", None),
        ("isnan(big)", None),
        ("max(text, 'a') == text", True),
    ],
)
def test_no_condition_costs_more_than_its_length(when: str, verdict: bool | None) -> None:
    assert parse(when).verdict(1.0, HUGE, nothing) is verdict


def test_products_of_large_numbers_are_limited_to_floats() -> None:
    large = {"n": 2**1000}
    assert parse("n * n > n").verdict(None, large, nothing) is True
    assert parse("n * n * n > n").verdict(None, large, nothing) is None
    assert expression("n * n * 2.0").value(large, nothing) is None


@pytest.mark.parametrize(
    "text",
    [
        "(" * 300 + "x" + ")" * 300,
        "-" * 1500 + "x",
        "not " * 400 + "x",
        "x" + " + x" * 400,
        "abs(" * 180 + "x" + ")" * 180,
        "x if x else " * 160 + "x",
        "x" + "[0]" * 600 + ".y()",
        "[" * 190 + "]" * 190,
        "1" * 2001,
        "x or " * 399 + "x" + " " * 3000 + "y",
    ],
)
def test_too_deep_or_too_long_formulas_are_rejected_at_once(text: str) -> None:
    with pytest.raises(EnsembleError):
        parse(text)


@given(st.text(max_size=30))
def test_any_text_is_a_condition_or_rejected(text: str) -> None:
    try:
        condition = parse(text)
    except EnsembleError:
        return
    condition.verdict(1.0, {"x": 1.0}, nothing)


TOKENS = [
    "x", "value", "metric('a')", "1", "2.5", "'a'", "(", ")", "[", "]", "{", "}", ",", ".", ":",
    "=", ":=", "+", "-", "*", "**", "/", "//", "%", "@", "<<", "|", "&", "^", "~", "<", "==", ">=",
    "in", "not", "and", "or", "is", "if", "else", "for", "lambda", "await", "yield", "f'{x}'",
    "abs", "max", "eval", "__class__", "_it", "\n", ";", "\\", "#",
]  # fmt: skip


@given(st.lists(st.sampled_from(TOKENS), max_size=14).map(" ".join))
def test_any_sequence_of_tokens_is_a_condition_or_rejected(text: str) -> None:
    test_any_text_is_a_condition_or_rejected.hypothesis.inner_test(text)  # type: ignore[attr-defined]
