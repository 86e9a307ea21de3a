"""Compiled formulas give the same results as a simple interpreter."""

from __future__ import annotations

import ast
import copy
import math
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ensemble_core import EnsembleError, expression
from ensemble_core.model.conditions import parse

FIELDS: dict[str, Any] = {
    "x": 2, "y": -1.5, "z": 0, "nan": math.nan, "inf": math.inf, "text": "ab", "flag": True,
    "c_msd[4]": 0.5, "Temp.mean": 3.0, "empty": None, "list": [1, "ab"],
}  # fmt: skip
METRICS: dict[str, float | None] = {"mean.a-b": 4.0, "count.a.failed": 0, "p9.a-b": None}
VALUE = 7.0

# -- the reference interpreter -----------------------------------------------------------------

OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Pow: lambda a, b: real(float(a) ** float(b)),
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
UNARY: dict[type, Callable[[Any], Any]] = {
    ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip
CALLS: dict[str, Callable[..., Any]] = {
    "abs": abs, "min": min, "max": max, "round": round, "isnan": math.isnan, "isinf": math.isinf,
    "sqrt": math.sqrt, "exp": math.exp, "log": lambda x: math.log(x),
}  # fmt: skip


class NoValueError(Exception):
    pass


NO_VALUE = (NoValueError, TypeError, ValueError, ArithmeticError)


def real(number: Any) -> Any:
    if not isinstance(number, (int, float)):
        raise NoValueError
    return number


def there(value: Any) -> Any:
    if value is None:
        raise NoValueError
    return value


def meaning(node: Any) -> Any:
    """Return the value of a node of the parsed tree; raise if it has no value."""
    op: Any
    match node:
        case ast.Constant(value):
            return value
        case ast.Name("value"):
            return VALUE
        case ast.Name(name):
            return there(FIELDS.get(name))
        case ast.Call(ast.Name("metric"), [ast.Constant(str() as path)]):
            return there(METRICS.get(path))
        case ast.Call(ast.Name(name), arguments):
            return CALLS[name](*[meaning(each) for each in arguments])
        case ast.UnaryOp(op, operand):
            return UNARY[type(op)](meaning(operand))
        case ast.BinOp(left, op, right):
            return OPERATORS[type(op)](real(meaning(left)), real(meaning(right)))
        case ast.IfExp(test, body, orelse):
            return meaning(body) if meaning(test) else meaning(orelse)
        case ast.Tuple(parts):
            return tuple(meaning(part) for part in parts)
        case ast.List(parts):
            return [meaning(part) for part in parts]
        case ast.Compare(left, ops, others):
            result, right = True, meaning(left)
            for op, other in zip(ops, others, strict=True):
                if result:
                    left, right = right, meaning(other)
                    result = OPERATORS[type(op)](left, right)
            return result
        case ast.BoolOp(op, parts):
            known = []
            for part in parts:
                try:
                    known.append(meaning(part))
                except NO_VALUE:
                    continue
                if bool(known[-1]) is isinstance(op, ast.Or):
                    return known[-1]
            if len(known) < len(parts):
                raise NoValueError
            return known[-1]
    raise AssertionError(ast.dump(node))


def what_it_means(tree: ast.expr) -> Any:
    try:
        return meaning(tree)
    except NO_VALUE:
        return None


# -- random formulas ---------------------------------------------------------------------------

LEAVES = st.one_of(
    st.sampled_from([*FIELDS, "gone", "value", "True", "None", "'ab'", "'a'"]),
    st.sampled_from([f"metric('{path}')" for path in [*METRICS, "gone"]]),
    st.integers(-3, 1000).map(str),
    st.floats(0, 1e9).map(repr),
)


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def made(form: str) -> st.SearchStrategy[str]:
        parts = [inner] * form.count("{}")
        return st.tuples(*parts).map(lambda given: "(" + form.format(*given) + ")")

    arithmetic = [f"{{}} {op} {{}}" for op in ("+", "-", "*", "/", "//", "%", "**")]
    compared = [f"{{}} {op} {{}}" for op in ("==", "!=", "<", "<=", ">", ">=", "in", "not in")]
    calls = [f"{name}({{}})" for name in (*CALLS, "max")] + ["min({}, {})", "round({}, {})"]
    rest = [
        "not {}", "-{}", "+{}", "{} and {}", "{} or {}", "{} or {} and {}", "{} and {} and {}",
        "{} if {} else {}", "{} < {} <= {}", "{}, {}", "[{}, {}]", "{} in ({}, 2)",
    ]  # fmt: skip
    return st.one_of(
        *(st.sampled_from(each) for each in (arithmetic, compared, calls, rest))
    ).flatmap(made)


FORMULAS = st.recursive(LEAVES, larger, max_leaves=12)


@given(FORMULAS)
@example("(gone > 1 or x == 2) + 1")
@example("(x, gone) == (x, 1) or y < 0")
@example("not (gone and z)")
@example("None and x")
@example("x * 'ab' or 'ab' % x or 3")
def test_a_compiled_formula_gives_what_it_means(text: str) -> None:
    try:
        condition = parse(f"0 or {text}")
    except EnsembleError as error:
        assume("is not a list" not in error.what)
        raise
    assert condition.tree is not None
    expected = what_it_means(condition.tree)

    found = condition.evaluate(VALUE, FIELDS, METRICS.get)

    assert repr(found) == repr(expected)
    again = condition.evaluate(VALUE, FIELDS, METRICS.get)
    assert repr(again) == repr(expected)


# -- special cases -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "verdict"),
    [
        ("gone", None),
        ("empty == None", None),
        ("not gone", None),
        ("gone != gone", None),
        ("x if gone else y", None),
        ("y if z else gone", None),
        ("0 if z else x", True),
        ("round(2.567, 1) == 2.6", True),
        ("round(1250, -2) == 1200", True),
        ("x in (1, 2, 'a')", True),
        ("1 in text", None),
        ("'b' in text and 'c' not in text", True),
        ("x < 3 < value", True),
        ("x > 3 > gone", False),
        ("metric('gone') > 1 or metric('mean.a-b') == 4", True),
        ("value - value == 0", True),
        ("(-8) ** 0.5 == 0", None),
        ("2 ** 0.5 > 1.4", True),
        ("9 ** 9999 > 1", None),
        ("flag + 1 == 2", True),
        ("-list == 1", None),
    ],
)
def test_results_with_odd_operands(when: str, verdict: bool | None) -> None:
    assert parse(when).verdict(VALUE, FIELDS, METRICS.get) is verdict


def test_value_means_the_metric_even_if_a_field_has_that_name() -> None:
    assert parse("value + 0 == 7").verdict(7.0, {"value": 3}, METRICS.get) is True
    assert parse("value + 0 == 3").verdict(None, {"value": 3}, METRICS.get) is None


def test_only_needed_names_are_looked_up() -> None:
    asked: list[str] = []

    def metric(path: str) -> float | None:
        asked.append(path)
        return 1.0

    assert parse("metric('a') == 1 or metric('b') == 1").verdict(None, {}, metric) is True
    assert asked == ["a"]


@pytest.mark.parametrize("when", ["x > 1 and y < 0", "gone > 1 or x > 1", "== 3"])
def test_copies_and_pickles_of_a_condition_have_no_code(when: str) -> None:
    condition = parse(when)
    verdict = condition.verdict(3.0, FIELDS, METRICS.get)

    for twin in (
        copy.copy(condition),
        copy.deepcopy(condition),
        pickle.loads(pickle.dumps(condition)),  # noqa: S301  (pickled here)
    ):
        assert (twin.text, twin.names, twin.comparison) == (
            when,
            condition.names,
            condition.comparison,
        )
        assert "_quick" not in vars(twin)
        assert twin.verdict(3.0, FIELDS, METRICS.get) is verdict
    formula = pickle.loads(pickle.dumps(expression("= 2 * x")))  # noqa: S301  (as above)
    assert formula.value(FIELDS, METRICS.get) == 4


def test_formulas_at_the_limits_of_depth_and_length_are_evaluated() -> None:
    deep = "x" + " + x" * 140
    nested = "gone or (x and " * 35 + "y" + ")" * 35
    choice = "1 if gone else (" * 40 + "x" + ")" * 40
    long = " or ".join(["gone"] * 200 + ["x"])
    assert expression(deep).value(FIELDS, METRICS.get) == 282
    assert parse(nested).verdict(None, FIELDS, METRICS.get) is True
    assert parse(choice).verdict(None, FIELDS, METRICS.get) is None
    assert parse(long).verdict(None, FIELDS, METRICS.get) is True
    assert parse("1 < " * 400 + "2").verdict(None, FIELDS, METRICS.get) is False
    with pytest.raises(EnsembleError, match="too deep"):
        parse("x" + " + x" * 160)
