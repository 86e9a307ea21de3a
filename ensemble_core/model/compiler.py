"""Compiles the syntax tree of a formula to a Python function, in which nothing but arithmetic over
the event's fields and metrics can happen. The one pure module that calls ``eval``.

What is compiled is never the parsed tree itself: a new one is built from it, node by node, by a
whitelist (:func:`_build`). Names become lookups of constant strings, calls go to ``FUNCTIONS``,
arithmetic takes numbers of bounded size. Whatever is not listed cannot be built, so the code
reaches its three arguments and ``_NAMESPACE``, and its cost is bounded by the length of its text.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

__all__ = ["FUNCTIONS", "NO_VALUE", "Compiled", "compiled"]

#: Takes ``value``, what looks a field up, and what looks a metric up.
Compiled = Callable[[float | None, Callable[[str], Any], Callable[[str], float | None]], Any]

#: Bits of the largest integer that arithmetic takes; no float is larger.
_BITS = 1024


class _NoValue(Exception):
    """Something the formula speaks of has no value now."""


#: What compiled code raises where something has no value, or makes no sense.
NO_VALUE = (_NoValue, TypeError, ValueError, ArithmeticError)


def _nothing() -> Any:
    raise _NoValue


def _bounded(value: object) -> TypeGuard[float]:
    """Whether it is a number that arithmetic takes."""
    return isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= _BITS)


def _number(value: object) -> float:
    return value if _bounded(value) else _nothing()


def _power(base: float, exponent: float) -> float:
    power: float | complex = float(base) ** float(exponent)
    if isinstance(power, complex):
        raise _NoValue
    return power


def _round(number: object, digits: Any = None) -> float:
    # More digits before the point than a number has make it 0, and 10**digits is worked out.
    return round(_number(number), None if digits is None else max(operator.index(digits), -_BITS))


def _decided(decides: bool) -> Callable[..., Any]:
    """``or`` (decided by what is true) or ``and`` (by what is false) over parts that may have no
    value: one part that decides is enough."""

    def several(*parts: Callable[[], Any]) -> Any:
        unknown, result = False, None
        for part in parts:
            try:
                result = part()
            except NO_VALUE:
                unknown = True
            else:
                if bool(result) is decides:
                    return result
        return _nothing() if unknown else result

    return several


#: Functions that a formula may call, beside ``metric``. Each bounds its arguments.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "min": min,
    "max": max,
    "round": _round,
    "isnan": math.isnan,
    "isinf": math.isinf,
    "sqrt": math.sqrt,
    "log": lambda x: math.log(x),
    "exp": math.exp,
}

_NAMESPACE: dict[str, Any] = {
    "__builtins__": {},
    **FUNCTIONS,
    "_and": _decided(False),
    "_or": _decided(True),
    "_float": float,
    "_nothing": _nothing,
    "_number": _number,
    "_power": _power,
    "_type": type,
}

_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn)
#: Where every node stands: of compiled formulas nobody sees a traceback.
_AT: Any = {"lineno": 1, "col_offset": 0, "end_lineno": 1, "end_col_offset": 0}


def compiled(tree: ast.expr, *, three_valued: bool) -> Compiled:
    """The function that a formula is. It raises one of ``NO_VALUE`` where something has no value.

    With ``three_valued``, ``A or B`` holds as soon as either does, and ``A and B`` is false as soon
    as either is, whatever is known of the other. Without it they are evaluated as Python does, in
    a fraction of the time: if nothing is raised, the result is the same.
    """
    whole = ast.Expression(_lambda(_build(tree, three_valued), "value", "get", "metric"))
    function: Compiled = eval(compile(whole, "<formula>", "eval"), _NAMESPACE)  # noqa: S307
    return function


def _build(node: ast.expr, three_valued: bool) -> ast.expr:
    """The expression that this part of a formula becomes."""

    def build(part: ast.expr) -> ast.expr:
        return _build(part, three_valued)

    def number(part: ast.expr) -> ast.expr:
        """What is an operand of arithmetic."""
        if _is_small(part) or (
            isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Div, ast.Pow))
        ):
            return build(part)
        found = _lookup(part)
        if found is None:
            return _call("_number", build(part))
        # Most fields and metrics are floats: those need no call.
        is_float = ast.Compare(_call("_type", _kept(found)), [ast.Is()], [_name("_float")], **_AT)
        return ast.IfExp(is_float, _name("_it"), _call("_number", _name("_it")), **_AT)

    found = _lookup(node)
    if found is not None:
        is_there = ast.Compare(_kept(found), [ast.IsNot()], [ast.Constant(None, **_AT)], **_AT)
        return ast.IfExp(is_there, _name("_it"), _call("_nothing"), **_AT)
    match node:
        case ast.Constant(int() | float() | str() | None as constant):
            return ast.Constant(constant, **_AT)
        case ast.Call(ast.Name(function), arguments, []) if function in FUNCTIONS:
            return _call(function, *map(build, arguments))
        case ast.UnaryOp(ast.Not() | ast.USub() | ast.UAdd() as op, operand):
            return ast.UnaryOp(op, build(operand), **_AT)
        case ast.BinOp(left, ast.Pow(), right):
            return _call("_power", number(left), number(right))
        case ast.BinOp(left, op, right) if isinstance(op, _ARITHMETIC):
            return ast.BinOp(number(left), op, number(right), **_AT)
        case ast.BoolOp(ast.And() | ast.Or() as op, parts):
            if three_valued:
                function = "_and" if isinstance(op, ast.And) else "_or"
                return _call(function, *(_lambda(build(part)) for part in parts))
            return ast.BoolOp(op, [build(part) for part in parts], **_AT)
        case ast.Compare(left, ops, others) if all(isinstance(op, _COMPARISONS) for op in ops):
            return ast.Compare(build(left), ops, [build(other) for other in others], **_AT)
        case ast.IfExp(test, body, orelse):
            return ast.IfExp(build(test), build(body), build(orelse), **_AT)
        case ast.Tuple(parts) | ast.List(parts):
            return type(node)([build(part) for part in parts], ast.Load(), **_AT)
    raise TypeError(f"a formula cannot have {ast.dump(node)}")


def _lookup(node: ast.expr) -> ast.expr | None:
    """What gives a field or metric, or ``None``; ``None`` for all other nodes."""
    match node:
        case ast.Name("value"):
            return _name("value")
        case ast.Name(field):
            return _call("get", ast.Constant(field, **_AT))
        case ast.Call(ast.Name("metric"), [ast.Constant(str() as path)], []):
            return _call("metric", ast.Constant(path, **_AT))
    return None


def _is_small(node: ast.expr) -> bool:
    """Whether this is a constant that arithmetic takes."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        node = node.operand
    return isinstance(node, ast.Constant) and _bounded(node.value)


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load(), **_AT)


def _kept(found: ast.expr) -> ast.expr:
    """What was found, kept as ``_it``."""
    return ast.NamedExpr(ast.Name("_it", ast.Store(), **_AT), found, **_AT)


def _call(function: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(_name(function), list(arguments), [], **_AT)


def _lambda(body: ast.expr, *parameters: str) -> ast.expr:
    given = [ast.arg(name, **_AT) for name in parameters]
    arguments = ast.arguments(
        posonlyargs=[], args=given, kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    return ast.Lambda(arguments, body, **_AT)
