"""Finds conditions that are always or never true, such as contradictions and misspelt values."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

from ensemble_core.errors import closest

#: How similar a text has to be to a value of a sweep.
_SIMILAR = 0.75
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "=="}
_SIGNS = {ast.Lt: "<", ast.Gt: ">", ast.LtE: "<=", ast.GtE: ">=", ast.Eq: "=="}


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
    for left, operator, right in zip(operands, part.ops, operands[1:], strict=False):
        sign = _SIGNS.get(type(operator))
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
