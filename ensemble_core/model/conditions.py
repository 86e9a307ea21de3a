"""Conditions (the key ``when`` of rules), which are parsed and checked once, before the run.

A condition is one of

- a number, which the trigger's value must equal;
- one or more comparisons with the value, such as ``"> 5 and < 10"``;
- a formula over ``value``, ``metric("path")`` and the event's fields (see the module
  ``expressions``).

This module also finds conditions that are always or never true.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from ensemble_core.errors import closest
from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.expressions import (
    LONGEST,
    Formula,
    called,
    parse_formula,
    suggested_formula,
)
from ensemble_core.model.formula_compiler import refused
from ensemble_core.quick_dataclass import dataclass

_CONDITION_HINT = (
    'write a number, "> 0.5", "> 5 and < 10", or an expression over value, metric("path") and the '
    "event's fields"
)
#: Keys of a rule with a condition.
_OF_RULES = ("when", "crosses")
#: Hint for a condition on the columns of a row.
_COLUMNS_HINT = 'write an expression over names of columns, as "energy < 2.5 and T > 300"'
#: Hint for a condition on the values of one job.
_VALUES_HINT = 'write an expression over statistics of the rows, as "isnan(last.energy)"'
#: Hint for a comparison of a metric with nan: most statistics skip nan.
NAN_HINT = (
    "for the last value, write isnan(last.COLUMN); for a row that has nan, write trigger: observed "
    "with when: isnan(COLUMN)"
)
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_COMPARISON = late_pattern(rf"\s*(==|!=|>=|<=|>|<)\s*({_NUMBER})\s*\Z")
_LEADING = late_pattern(r"(?:^|(?<=\()|\b(?:and|or|not)\b)\s*(?=(?:==|!=|>=|<=|>|<))")
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
#: How similar a text has to be to a value of a sweep.
_SIMILAR = 0.75
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "=="}
_SIGNS = {ast.Lt: "<", ast.Gt: ">", ast.LtE: "<=", ast.GtE: ">=", ast.Eq: "=="}
_SPOKEN = {bool: "true or false", list: "a list", dict: "a mapping", type(None): "empty"}


@dataclass(frozen=True)
class Condition(Formula):
    """A parsed and checked condition."""

    #: Operator and number, if the condition is a single comparison with ``value``.
    comparison: tuple[str, float] | None = None

    @property
    def must_be_nonfinite(self) -> frozenset[str]:
        """The metric paths and names that must be nan or infinite for the condition to be true."""
        found = set()
        nodes = [self.tree] if self.tree is not None else []
        while nodes:
            node = nodes.pop()
            if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
                nodes += node.values
            elif isinstance(node, ast.Call) and called(node) in ("isnan", "isinf"):
                asked = node.args[0] if len(node.args) == 1 else None
                if isinstance(asked, ast.Name):
                    found.add(asked.id)
                if isinstance(asked, ast.Call) and called(asked) == "metric":
                    found |= {str(ast.literal_eval(path)) for path in asked.args}
        return frozenset(found)

    def holds(
        self,
        value: float | None,
        fields: Mapping[str, Any],
        metric: Callable[[str], float | None],
    ) -> bool:
        """Return True if the condition is true. It is not true if the result depends on a missing
        value.
        """
        return self.verdict(value, fields, metric) is True

    def verdict(
        self,
        value: float | None,
        fields: Mapping[str, Any],
        metric: Callable[[str], float | None],
    ) -> bool | None:
        """Return whether the condition is true, or ``None`` if that depends on a missing value.

        ``A or B`` is true if A or B is true, and ``A and B`` is false if A or B is false, even if
        the other operand has no value.
        """
        if self.comparison is not None:
            name, number = self.comparison
            return None if value is None else _OPERATORS[name](value, number)
        result = self.evaluate(value, fields, metric)
        return None if result is None else bool(result)


def parse(when: object, *, has_value: bool = True, key: str = "when") -> Condition:
    """Parse and check the condition ``when``, which is the value of the key ``key``.

    ``has_value``: the trigger has a metric, whose value the condition calls ``value``. If ``key``
    is ``where``, the condition is about the columns of a table; if it is ``fail_if``, about the
    values of a job.

    The caller has to check whether the fields in the condition exist. Raises
    :class:`EnsembleError` with the reason and a hint.
    """
    if isinstance(when, bool) or not isinstance(when, (int, float, str)):
        found = _SPOKEN.get(type(when), f"a {type(when).__name__}")
        raise refused(
            f"{key!r} is {found}, expected a number, a comparison or an expression",
            'write for example 3, "> 0.5" or "value > 5 and value < 10"',
        )
    if isinstance(when, (int, float)):
        if math.isnan(when):
            raise refused(
                f"{key!r} is nan, and no value equals nan",
                NAN_HINT,
            )
        _needs_value(str(when), has_value, key)
        return Condition(str(when), comparison=("==", when))
    text = when.strip()
    hint = _VALUES_HINT if key == "fail_if" else _COLUMNS_HINT
    if key in _OF_RULES:
        hint = _CONDITION_HINT
    if not text:
        raise refused(f"{key!r} is empty", "leave it out, or write a condition")
    if len(text) > LONGEST:
        raise refused(
            f"{key!r} is longer than {LONGEST} characters", "move it to a custom function"
        )
    if re.fullmatch(_NUMBER, text):
        _needs_value(text, has_value, key)
        return Condition(text, comparison=("==", float(text)))
    single = _COMPARISON.match(text)
    if single:
        _needs_value(text, has_value, key)
        return Condition(text, comparison=(single[1], float(single[2])))
    tree, fields, metrics = parse_formula(_with_value(text, key), text, repr(key), hint)
    if "value" in fields:
        _needs_value(text, has_value, key)
    return Condition(text, tree, fields, metrics)


def _needs_value(text: str, has_value: bool, key: str) -> None:
    if not has_value and key not in _OF_RULES:
        hint = _VALUES_HINT if key == "fail_if" else _COLUMNS_HINT
        raise refused(f"{key!r} does not say what {text!r} compares", hint)
    if not has_value:
        raise refused(
            f"{text!r} compares a metric's value, and this trigger has no metric",
            'compare a field of the event ("exit_code == 3") or a metric '
            "('metric(\"count.sleep.failed\") > 2')",
        )


def check_nan(condition: Condition, known: Collection[str]) -> None:
    """Raise an error if the condition compares something with ``nan``, because that is never true.

    If ``known`` contains a field that is called nan, the comparison is allowed.
    """
    for node in ast.walk(condition.tree) if condition.tree is not None else ():
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        others = [side for side in sides if not _is_nan(side, known)]
        if len(others) == len(sides):
            continue
        compared = ast.unparse(others[0]) if others else "value"
        negated = "not " if isinstance(node.ops[0], ast.NotEq) else ""
        of_metric = compared == "value" or compared.startswith("metric(")
        raise refused(
            f"{condition.text!r} compares with nan, which is never above, below or equal to a "
            "number",
            NAN_HINT if of_metric else f"write {negated}isnan({compared})",
        )


def _is_nan(node: ast.expr, known: Collection[str]) -> bool:
    return isinstance(node, ast.Name) and node.id.lower() == "nan" and node.id not in known


def _with_value(text: str, key: str) -> str:
    """Insert the name ``value`` into comparisons: ``> 5 and < 10`` becomes ``value > 5 and value <
    10``.
    """
    if re.match(r"=[^=]", text):
        raise refused(f"{key!r} does not parse: {text!r}", f'write "{suggested_formula(text)}"')
    return _LEADING.sub(lambda m: m.group() + (" " if m.group() else "") + "value ", text).strip()


# The functions below find conditions that are always or never true, such as contradictions and
# misspelt values.


def contradiction(tree: ast.expr, most: Mapping[str, float] = MappingProxyType({})) -> str | None:
    """Return the reason why a condition can never be true, or ``None``.

    ``most`` maps names to their maximum values.
    """
    both = isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And)
    bounds: dict[str, tuple[float, bool, float, bool]] = {}
    for part in tree.values if both else [tree]:  # type: ignore[attr-defined]
        if _equals_nothing(part):
            return "without a value, the condition does not hold"
        for name, sign, number in _comparisons(part):
            unknown = -math.inf, False, most.get(name, math.inf), False
            low, above, high, below = bounds.get(name, unknown)
            if sign in (">", ">=", "==") and (number, sign == ">") > (low, above):
                low, above = number, sign == ">"
            if sign in ("<", "<=", "==") and (number, sign != "<") < (high, not below):
                high, below = number, sign == "<"
            if low > high or (low == high and (above or below)):
                return f"no value of {name} fits"
            bounds[name] = (low, above, high, below)
    return None


def _equals_nothing(part: ast.expr) -> bool:
    """Return True for ``X == None``."""
    return isinstance(part, ast.Compare) and any(
        isinstance(sign, ast.Eq) and isinstance(side, ast.Constant) and side.value is None
        for sign, side in zip(part.ops, part.comparators, strict=True)
    )


def _comparisons(part: ast.expr) -> list[tuple[str, str, float]]:
    """Return ``(name, operator, number)`` for each comparison of a name with a number."""
    if not isinstance(part, ast.Compare):
        return []
    found = []
    operands = [part.left, *part.comparators]
    for left, compared, right in zip(operands, part.ops, operands[1:], strict=False):
        sign = _SIGNS.get(type(compared))
        if sign is None:
            continue
        if isinstance(left, ast.Name) and (number := _number(right)) is not None:
            found.append((left.id, sign, number))
        elif isinstance(right, ast.Name) and (number := _number(left)) is not None:
            found.append((right.id, _MIRRORED[sign], number))
    return found


def _number(node: ast.expr) -> float | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]
    return None


def kind_of(value: object) -> str:
    """Return ``number`` or ``text``, or an empty text for other values."""
    return "text" if isinstance(value, str) else "number" if type(value) in (int, float) else ""


def unlike_comparison(tree: ast.expr, kind: Callable[[str], str]) -> str | None:
    """Return why a comparison of a name makes no sense, or ``None``: a number never equals a text.

    ``kind`` returns ``number``, ``text`` or an empty text for a name.

    >>> unlike_comparison(ast.parse("E > 1 and T == '2'", mode="eval").body, {"T": "number"}.get)
    "T is a number, and '2' is not"
    """
    for name, _, other in _compared(tree):
        if "" not in (found := {kind_of(value) for value in _values(other)} or {""}):
            mine = kind(name)
            if mine and mine not in found:
                return f"{name} is a {mine}, and {ast.unparse(other)} is not"
    return None


def unlike_operand(tree: ast.expr, kind: Callable[[str], str]) -> str | None:
    """Return which text a formula computes with, or ``None``: that never has a result.

    >>> unlike_operand(ast.parse("abs(p) > 1", mode="eval").body, {"p": "text"}.get)
    'p is a text'
    """
    for node in ast.walk(tree):
        operands: Sequence[ast.expr] = ()
        if isinstance(node, ast.BinOp):
            operands = node.left, node.right
        elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
            operands = (node.operand,)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            operands = () if node.func.id in ("metric", "min", "max") else node.args
        for each in operands:
            if isinstance(each, ast.Name) and kind(each.id) == "text":
                return f"{each.id} is a text"
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                return f"{each.value!r} is a text"
    return None


def misspelt_value(tree: ast.expr, values: Callable[[str], Sequence[object]]) -> str | None:
    """Return what a name is compared with that only resembles one of its ``values``, or ``None``.

    >>> misspelt_value(ast.parse("opt == 'Adam'", mode="eval").body, {"opt": ["adam"]}.get)
    "no value of opt is 'Adam'; did you mean 'adam'?"
    """
    for name, sign, other in _compared(tree):
        if not isinstance(sign, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)):
            continue
        known = [value for value in values(name) or () if isinstance(value, str)]
        for value in _values(other) if known else ():
            if isinstance(value, str) and value not in known:
                folded = {each.casefold(): each for each in known}
                near = closest(value.casefold(), folded, _SIMILAR)
                if near is not None:
                    hint = f"did you mean {folded[near]!r}?"
                    return f"no value of {name} is {value!r}; {hint}"
    return None


def _compared(tree: ast.expr) -> Iterator[tuple[str, ast.cmpop, ast.expr]]:
    """Yield the names that a formula compares, each with the operator and the other operand."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        for sign, (one, two) in zip(
            node.ops, pairwise([node.left, *node.comparators]), strict=True
        ):
            for name, other in ((one, two), (two, one)):
                if isinstance(name, ast.Name):
                    yield name.id, sign, other


def _values(node: ast.expr) -> list[object]:
    items = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
    return [item.value if isinstance(item, ast.Constant) else _number(item) for item in items]


def tautology(tree: ast.expr) -> str | None:
    """Return the operand that makes a condition always true, or ``None``.

    Such an operand is a non-empty text or a non-zero number in an ``or``.
    """
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.Or) else [tree]
    for part in parts:
        if isinstance(part, ast.Constant) and part.value:
            return ast.unparse(part)
    return None
