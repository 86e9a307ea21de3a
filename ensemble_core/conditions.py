"""``when``: parsed and checked once, evaluated fast, unable to do harm.

A condition is a number (equals), one or more comparisons (``"> 5 and < 10"``), or an expression
over ``value``, ``metric("path")`` and the event's fields. A single comparison is kept as operator
and number, so that the index can find the rules that a new value satisfies without asking each of
them. Everything else is evaluated by simpleeval, over a syntax tree in which only what is listed
here may stand: no attributes, no subscripts, no calls but those of ``FUNCTIONS``.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ensemble_core.errors import EnsembleError

__all__ = ["EVENT_FIELDS", "FUNCTIONS", "Condition", "parse"]

#: Names that a condition may use of any event, where the event has them.
EVENT_FIELDS: frozenset[str] = frozenset(
    {
        "name",  # the event's name
        "timestamp",
        "job",  # our id
        "group",
        "index",
        "duration",  # seconds from start to finish
        "pending",  # seconds from submit to start
        "exit_code",  # as a shell reports it
        "status",  # the wait status
        "type",  # of an exception
        "severity",
        "note",
        "queue_id",
    }
)

#: Functions that a condition may call; ``metric`` is added at evaluation.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "min": min,
    "max": max,
    "round": round,
    "isnan": lambda x: math.isnan(x),
    "isinf": lambda x: math.isinf(x),
    "sqrt": lambda x: math.sqrt(x),
    "log": lambda x: math.log(x),
    "exp": lambda x: math.exp(x),
}

_LONGEST = 2000
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_COMPARISON = re.compile(rf"\s*(==|!=|>=|<=|>|<)\s*({_NUMBER})\s*\Z")
_LEADING = re.compile(r"(?:^|(?<=\()|\b(?:and|or|not)\b)\s*(?=(?:==|!=|>=|<=|>|<))")
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class _NoValue(Exception):
    """Something the condition speaks of has no value now."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A checked ``when``.

    ``comparison`` is the operator and number of a single comparison with ``value``, which the
    index uses; otherwise ``tree`` is the expression. ``names`` and ``metrics`` are what the
    expression speaks of.
    """

    text: str
    comparison: tuple[str, float] | None = None
    tree: ast.expr | None = None
    names: frozenset[str] = frozenset()
    metrics: frozenset[str] = frozenset()

    def holds(
        self,
        value: float | None,
        fields: Mapping[str, Any],
        metric: Callable[[str], float | None],
    ) -> bool:
        """Whether the condition holds. Where something it needs has no value, it does not."""
        if self.comparison is not None:
            name, number = self.comparison
            return value is not None and _OPERATORS[name](value, number)
        return _evaluate(self, value, fields, metric)


def parse(
    when: object, *, names: Collection[str] | None = None, has_value: bool = True
) -> Condition:
    """Parse and check a ``when``.

    ``names`` are the fields it may use (``None``: not checked); ``has_value`` says whether there is
    a metric for ``value`` to mean. Raises :class:`EnsembleError` with the reason and a hint.
    """
    if isinstance(when, bool) or not isinstance(when, (int, float, str)):
        raise _error(
            f"'when' is {_kind(when)}, expected a number, a comparison or an expression",
            'write for example 3, "> 0.5" or "value > 5 and value < 10"',
        )
    if isinstance(when, (int, float)):
        if math.isnan(when):
            raise _error("'when' is not a number (nan), which equals nothing", 'use "isnan(value)"')
        _needs_value(str(when), has_value)
        return Condition(str(when), comparison=("==", when))
    text = when.strip()
    if not text:
        raise _error("'when' is empty", "leave it out, or write a condition")
    if len(text) > _LONGEST:
        raise _error(f"'when' is longer than {_LONGEST} characters", "move it to a custom function")
    if re.fullmatch(_NUMBER, text):
        _needs_value(text, has_value)
        return Condition(text, comparison=("==", float(text)))
    single = _COMPARISON.match(text)
    if single:
        _needs_value(text, has_value)
        return Condition(text, comparison=(single[1], float(single[2])))
    tree = _tree(text)
    names_used: set[str] = set()
    paths: set[str] = set()
    for node in ast.walk(tree):
        _check(node, text, paths)
    functions = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and id(node) not in functions:
            names_used.add(node.id)
    if "value" in names_used:
        _needs_value(text, has_value)
    if names is not None:
        known = {*names, "value"} if has_value else set(names)
        for name in sorted(names_used - known):
            near = get_close_matches(name, [*known, *FUNCTIONS, "metric"], 1)
            raise _error(
                f"{name!r} in {text!r} is not known here",
                f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}",
            )
    return Condition(text, tree=tree, names=frozenset(names_used), metrics=frozenset(paths))


def _error(what: str, hint: str) -> EnsembleError:
    return EnsembleError(what, hint=hint, code="bad-condition")


def _kind(value: object) -> str:
    return {bool: "true or false", list: "a list", dict: "a mapping", type(None): "empty"}.get(
        type(value), f"a {type(value).__name__}"
    )


def _needs_value(text: str, has_value: bool) -> None:
    if not has_value:
        raise _error(
            f"{text!r} compares a metric's value, and this trigger has no metric",
            'compare a field of the event ("exit_code == 3") or a metric '
            "('metric(\"count.sleep.failed\") > 2')",
        )


def _tree(text: str) -> ast.expr:
    source = _LEADING.sub(lambda m: m.group() + (" " if m.group() else "") + "value ", text)
    if re.match(r"=[^=]", text):
        raise _error(f"'when' does not parse: {text!r}", f'write "=={text[1:]}"')
    try:
        return ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or "too deep"
        raise _error(
            f"'when' does not parse: {text!r} ({reason})",
            'write a number, "> 0.5", "> 5 and < 10", or an expression over value, '
            'metric("path") and the event\'s fields',
        ) from None


_ALLOWED = (
    ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd, ast.BinOp, ast.Add,
    ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.Compare, ast.Eq, ast.NotEq,
    ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.IfExp, ast.Name, ast.Load,
    ast.Constant, ast.Call, ast.Tuple, ast.List,
)  # fmt: skip


def _check(node: ast.AST, text: str, paths: set[str]) -> None:
    if isinstance(node, ast.Attribute):
        raise _error(
            f"{text!r} reaches for the attribute {node.attr!r}",
            'conditions see fields by their bare names, and metrics by metric("path")',
        )
    if not isinstance(node, _ALLOWED):
        raise _error(
            f"{text!r} has {_spoken(node)}, which conditions do not allow",
            "use comparisons, arithmetic, and, or, not; or a custom function for more",
        )
    if isinstance(node, ast.Constant) and not isinstance(
        node.value, (int, float, str, bool, type(None))
    ):
        raise _error(f"{text!r} has a constant of another kind", "use numbers and strings")
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name) or (
            node.func.id not in FUNCTIONS and node.func.id != "metric"
        ):
            called = node.func.id if isinstance(node.func, ast.Name) else "what is no function"
            raise _error(
                f"{text!r} calls {called}, which conditions cannot",
                f"allowed are metric, {', '.join(sorted(FUNCTIONS))}",
            )
        if node.keywords or any(isinstance(arg, ast.Starred) for arg in node.args):
            raise _error(f"{text!r} has keyword arguments", "give plain arguments")
        if node.func.id == "metric":
            if len(node.args) != 1 or not (
                isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
            ):
                raise _error(
                    f"{text!r}: metric() takes one quoted path",
                    'write for example metric("mean.sleep-duration")',
                )
            paths.add(node.args[0].value)


def _spoken(node: ast.AST) -> str:
    return {
        ast.Subscript: "a subscript",
        ast.Lambda: "a lambda",
        ast.ListComp: "a comprehension",
        ast.GeneratorExp: "a comprehension",
        ast.Dict: "a mapping",
        ast.NamedExpr: "an assignment",
        ast.JoinedStr: "an f-string",
    }.get(type(node), f"a {type(node).__name__}")


def _number(value: object) -> float:
    if isinstance(value, (int, float)):
        return value
    raise _NoValue


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[[object, object], Any]:
    return lambda a, b: function(_number(a), _number(b))


def _power(a: object, b: object) -> float:
    power: float | complex = float(_number(a)) ** float(_number(b))
    if isinstance(power, complex):
        raise _NoValue
    return power


_evaluator: Any = None


def _evaluate(
    condition: Condition,
    value: float | None,
    fields: Mapping[str, Any],
    metric: Callable[[str], float | None],
) -> bool:
    global _evaluator
    import simpleeval

    if _evaluator is None:
        _evaluator = simpleeval.EvalWithCompoundTypes(
            operators={
                **simpleeval.DEFAULT_OPERATORS,
                ast.Add: _arithmetic(operator.add),
                ast.Sub: _arithmetic(operator.sub),
                ast.Mult: _arithmetic(operator.mul),
                ast.Div: _arithmetic(operator.truediv),
                ast.FloorDiv: _arithmetic(operator.floordiv),
                ast.Mod: _arithmetic(operator.mod),
                ast.Pow: _power,
            }
        )

    def lookup(path: str) -> float:
        found = metric(path)
        if found is None:
            raise _NoValue
        return found

    def name(node: ast.Name) -> Any:
        found = value if node.id == "value" else fields.get(node.id)
        if found is None:
            raise _NoValue
        return found

    _evaluator.functions = {**FUNCTIONS, "metric": lookup}
    _evaluator.names = name
    try:
        result = _evaluator.eval(condition.text, previously_parsed=condition.tree)
        return bool(result)
    except (_NoValue, TypeError, ValueError, ArithmeticError, simpleeval.InvalidExpression):
        return False
