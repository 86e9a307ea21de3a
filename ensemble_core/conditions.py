"""``when``, and numbers that are worked out: parsed and checked once, unable to do harm.

A condition is a number (equals), one or more comparisons (``"> 5 and < 10"``), or an expression
over ``value``, ``metric("path")`` and the event's fields. A single comparison is kept as operator
and number, so that the index can find the rules that a new value satisfies without asking each of
them. Everything else is evaluated by simpleeval, over a syntax tree in which only what is listed
here may stand: no attributes, no subscripts, no calls but those of ``FUNCTIONS``. What looks like
one of the first two (``c_msd[4]``, ``PotEng.mean``) is the field of that very name. An
:class:`Expression` is of the same words and gives a number; plugins' options have such ones.

A field may be nan: comparisons with it are false (but for ``!=``), and ``isnan`` tells.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import Any

from ensemble_core.errors import EnsembleError

__all__ = ["EVENT_FIELDS", "FUNCTIONS", "Condition", "Expression", "expression", "parse"]

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

#: Names of which no column is a part: ``value[1]`` and ``job.name`` mean nothing.
_WHOLE = EVENT_FIELDS | FUNCTIONS.keys() | {"value", "metric"}

_LONGEST = 2000
#: Levels of a syntax tree; its evaluation goes down them one by one.
_DEEPEST = 150
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

    @property
    def asks_metric_for_nan(self) -> bool:
        """Whether it holds only where a metric is no finite number, which none ever is."""
        nodes = [self.tree] if self.tree is not None else []
        while nodes:
            node = nodes.pop()
            if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
                nodes += node.values
            elif isinstance(node, ast.Call) and _called(node) in ("isnan", "isinf"):
                asked = node.args[0] if len(node.args) == 1 else None
                if isinstance(asked, ast.Name) and asked.id == "value":
                    return True
                if isinstance(asked, ast.Call) and _called(asked) == "metric":
                    return True
        return False

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
        return bool(_evaluate(_shared(), self, value, fields, metric))


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression whose result is a number; see :func:`expression`.

    ``names`` and ``metrics`` are what it speaks of.
    """

    text: str
    tree: ast.expr
    names: frozenset[str] = frozenset()
    metrics: frozenset[str] = frozenset()

    def value(
        self, fields: Mapping[str, Any], metric: Callable[[str], float | None]
    ) -> float | None:
        """The number; whole where the arithmetic is (``2 * 3`` is 6, ``6 / 2`` is 3.0).

        ``None`` where something that it needs has no value, and where the result is no finite
        number. Safe to call from any thread.
        """
        result = _evaluate(_evaluator(), self, fields.get("value"), fields, metric)
        if isinstance(result, bool) or not isinstance(result, (int, float)):
            return None
        return result if result - result == 0 else None


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
            raise _error(
                "'when' is not a number (nan), which equals nothing",
                "for a row that has nan, write trigger: observed with when: isnan(COLUMN)",
            )
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
    tree, used, paths = _words(_tree(_with_value(text), text, _CONDITION_HINT), text)
    if "value" in used:
        _needs_value(text, has_value)
    if names is not None:
        _check_names(text, used, {*names, "value"} if has_value else set(names))
    return Condition(text, tree=tree, names=used, metrics=paths)


@lru_cache(maxsize=1024)
def _expression(text: str) -> Expression:
    source = text.strip().removeprefix("=").strip()
    if not source:
        raise _error("the expression is empty", 'write for example "= 2 * T"')
    if len(source) > _LONGEST:
        raise _error(
            f"the expression is longer than {_LONGEST} characters", "move it to a custom function"
        )
    tree, used, paths = _words(_tree(source, source, _EXPRESSION_HINT), source)
    wrong = _no_number(tree)
    if wrong is not None:
        raise _error(f"{source!r} is {wrong}, expected a number", _EXPRESSION_HINT)
    return Expression(source, tree, used, paths)


def expression(text: str, *, names: Collection[str] | None = None) -> Expression:
    """Parse and check an expression whose result is a number; a ``=`` before it is passed over.

    It is made of the same words as a condition: arithmetic, functions, fields by their names,
    ``metric("path")``. ``names`` are the fields that it may use (``None``: not checked). Parsing
    the same text again costs next to nothing. Raises :class:`EnsembleError` with the reason and a
    hint.

    >>> expression("= 2 * T + 1").value({"T": 3}, {}.get)
    7
    """
    found = _expression(text)
    if names is not None:
        _check_names(found.text, found.names, set(names))
    return found


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


_CONDITION_HINT = (
    'write a number, "> 0.5", "> 5 and < 10", or an expression over value, metric("path") and the '
    "event's fields"
)
_EXPRESSION_HINT = 'write arithmetic over the event\'s fields and metric("path"), such as "= 2 * T"'


def _with_value(text: str) -> str:
    """``> 5 and < 10`` as Python has it."""
    if re.match(r"=[^=]", text):
        raise _error(f"'when' does not parse: {text!r}", f'write "=={text[1:]}"')
    return _LEADING.sub(lambda m: m.group() + (" " if m.group() else "") + "value ", text).strip()


def _tree(source: str, text: str, hint: str) -> ast.expr:
    try:
        whole = ast.parse(source, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or "too deep"
        what = "'when'" if hint is _CONDITION_HINT else "the expression"
        raise _error(f"{what} does not parse: {text!r} ({reason})", hint) from None
    _name_columns(whole)
    return whole.body


def _name_columns(whole: ast.AST) -> None:
    """Make names of what only looks like a subscript or an attribute: ``c_msd[4]``."""
    for node in ast.walk(whole):
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                value[:] = [_column(item) for item in value]
            elif isinstance(value, (ast.Subscript, ast.Attribute)):
                setattr(node, field, _column(value))


def _column(node: Any) -> Any:
    """The field whose name this is; the node itself where it can be none."""
    here: Any = node
    rest = ""
    while True:
        if isinstance(here, ast.Subscript) and isinstance(here.slice, ast.Constant):
            index = here.slice.value
            if type(index) is not int:
                return node
            here, rest = here.value, f"[{index}]{rest}"
        elif isinstance(here, ast.Attribute) and not here.attr.startswith("_"):
            here, rest = here.value, f".{here.attr}{rest}"
        else:
            break
    if not rest or not isinstance(here, ast.Name) or here.id in _WHOLE:
        return node
    return ast.copy_location(ast.Name(here.id + rest, ast.Load()), node)


def _check_depth(tree: ast.expr, text: str) -> None:
    level: list[ast.AST] = [tree]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise _error(f"{text[:40]!r} … is nested too deeply", "move it to a custom function")


def _words(tree: ast.expr, text: str) -> tuple[ast.expr, frozenset[str], frozenset[str]]:
    """The checked tree, the fields that it names, and the metrics."""
    _check_depth(tree, text)
    paths: set[str] = set()
    functions: set[int] = set()
    for node in ast.walk(tree):
        _check(node, text, paths)
        if isinstance(node, ast.Call):
            functions.add(id(node.func))
    used = frozenset(
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and id(node) not in functions
    )
    return tree, used, frozenset(paths)


def _check_names(text: str, used: Collection[str], known: set[str]) -> None:
    for name in sorted(used):
        if name in known:
            continue
        near = get_close_matches(name, [*sorted(known), *FUNCTIONS, "metric"], 1)
        raise _error(
            f"{name!r} in {text!r} is not known here",
            f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}",
        )


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _no_number(tree: ast.expr) -> str | None:
    """What an expression is that can never give a number; ``None`` for all others."""
    branches = [tree]
    while branches:
        node = branches.pop()
        if isinstance(node, ast.IfExp):
            branches += [node.body, node.orelse]
        elif isinstance(node, (ast.Compare, ast.BoolOp)) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        ):
            return "a condition"
        elif isinstance(node, (ast.Tuple, ast.List)):
            return "a list"
        elif isinstance(node, ast.Constant) and (
            isinstance(node.value, bool) or not isinstance(node.value, (int, float))
        ):
            return "a text" if isinstance(node.value, str) else "a constant"
        elif isinstance(node, ast.Call) and _called(node) in ("isnan", "isinf"):
            return "a condition"
    return None


_ALLOWED = (
    ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd, ast.BinOp, ast.Add,
    ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.Compare, ast.Eq, ast.NotEq,
    ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.IfExp, ast.Name, ast.Load,
    ast.Constant, ast.Call, ast.Tuple, ast.List,
)  # fmt: skip


def _check(node: ast.AST, text: str, paths: set[str]) -> None:
    if isinstance(node, ast.Attribute):
        # What is left of them: those that can be no column's name.
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


@cache
def _shared() -> Any:
    """The evaluator of conditions, which are asked on the engine's thread alone."""
    return _evaluator()


def _evaluator() -> Any:
    import simpleeval

    return simpleeval.EvalWithCompoundTypes(
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


def _evaluate(
    evaluator: Any,
    asked: Condition | Expression,
    value: float | None,
    fields: Mapping[str, Any],
    metric: Callable[[str], float | None],
) -> Any:
    """The result; ``None`` where something that it needs has no value, or makes no sense."""
    import simpleeval

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

    evaluator.functions = {**FUNCTIONS, "metric": lookup}
    evaluator.names = name
    try:
        return evaluator.eval(asked.text, previously_parsed=asked.tree)
    except (_NoValue, TypeError, ValueError, ArithmeticError, simpleeval.InvalidExpression):
        return None
