"""Compiles formulas, such as ``T > 300 and metric("mean.sim-E") < 2``, to safe Python functions.

The functions can only compute with fields of the event and metrics, because their code is composed
of whitelisted operations.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

from ensemble_core.errors import EnsembleError

#: Type of a compiled function. Its arguments are the ``value``, a function that looks up a field,
#: and a function that looks up a metric.
Compiled = Callable[[float | None, Callable[[str], Any], Callable[[str], float | None]], Any]

#: Maximum number of bits of an integer in arithmetic. Every finite float is smaller than 2**1024.
_BITS = 1024


class _NoValue(Exception):
    """Raised if a field or metric in the formula currently has no value."""


#: Exceptions that compiled code can raise: an invalid operation, or a missing value in a branch.
NO_VALUE = (_NoValue, TypeError, ValueError, ArithmeticError)


def _nothing() -> Any:
    raise _NoValue


def _is_bounded(value: object) -> TypeGuard[float]:
    """Return True for a number that is small enough for arithmetic."""
    return isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= _BITS)


def _number(value: object) -> float:
    return value if _is_bounded(value) else _nothing()


def _power(base: float, exponent: float) -> float:
    power: float | complex = float(base) ** float(exponent)
    if isinstance(power, complex):
        raise _NoValue
    return power


def _round(number: object, digits: Any = None) -> float:
    # Limit the size of 10**-digits. Beyond this limit, rounding gives 0 anyway.
    return round(_number(number), None if digits is None else max(operator.index(digits), -_BITS))


def _attempt(part: Callable[[], Any]) -> Any:
    """Return the value of a part of a formula, or ``...`` if the part raises an exception."""
    try:
        return part()
    except NO_VALUE:
        return ...


#: Functions that a formula may call, besides ``metric``. Each function limits its arguments.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "min": min,
    "max": max,
    "round": _round,
    "ceil": math.ceil,
    "floor": math.floor,
    "isnan": math.isnan,
    "isinf": math.isinf,
    "sqrt": math.sqrt,
    "log": lambda x: math.log(x),
    "exp": math.exp,
}

#: How many values a function takes at least and at most; one if it is not here.
_TAKES: Mapping[str, tuple[int, float]] = {
    "min": (2, math.inf),
    "max": (2, math.inf),
    "round": (1, 2),
}
_COUNTS_HINTS = {
    "log": "log is the natural logarithm; for another base, write log(x) / log(base)",
    "min": "for the smallest value of a column, write min.COLUMN",
    "max": "for the largest value of a column, write max.COLUMN",
}

_NAMESPACE: dict[str, Any] = {
    "__builtins__": {},
    **FUNCTIONS,
    "_attempt": _attempt,
    "_float": float,
    "_nothing": _nothing,
    "_number": _number,
    "_power": _power,
    "_type": type,
}

_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn)
_SPOKEN: Mapping[type[ast.AST], str] = {
    ast.Subscript: "a subscript",
    ast.Lambda: "a lambda",
    ast.ListComp: "a comprehension",
    ast.GeneratorExp: "a comprehension",
    ast.Dict: "a mapping",
    ast.NamedExpr: "an assignment",
    ast.JoinedStr: "an f-string",
}
#: The same position for every node, because compiled formulas have no traceback.
_AT: Any = {"lineno": 1, "col_offset": 0, "end_lineno": 1, "end_col_offset": 0}
_UNKNOWN = ast.Constant(..., **_AT)


class IncompleteFormula(EnsembleError):
    """Error: the formula ends too early."""


def refused(what: str, hint: str) -> EnsembleError:
    """Return the error for a formula with unsupported content."""
    return EnsembleError(what, hint=hint, code="bad-condition")


def check_formula(tree: ast.expr, text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Check a formula, and return the names of the fields and metrics that it uses.

    ``text`` is the formula for error messages. Raises :class:`EnsembleError` for unsupported
    syntax.
    """
    builder = _Builder(text=text)
    builder.truth(tree)
    return frozenset(builder.fields), frozenset(builder.metrics)


def compiled(tree: ast.expr, *, careful: bool) -> Compiled:
    """Compile a formula to a function.

    The function returns ``Ellipsis`` if the result depends on a missing value. (``A or B`` is
    true if A is true, even if B has no value.) An invalid operation raises one of the exceptions in
    ``NO_VALUE``. If ``careful`` is true (slower), an operand of ``and`` or ``or`` with an invalid
    operation counts as a missing value instead.
    """
    whole = ast.Expression(_lambda(_Builder(careful=careful).truth(tree), "value", "get", "metric"))
    function: Compiled = eval(compile(whole, "<formula>", "eval"), _NAMESPACE)  # noqa: S307
    return function


class _Builder:
    """Builds the code of one formula from a whitelist of nodes.

    Names become lookups of constant strings, calls can only reach ``FUNCTIONS``, and arithmetic
    only takes numbers of bounded size. All other nodes are rejected.
    """

    def __init__(self, *, careful: bool = False, text: str = "the formula") -> None:
        #: The names that the formula uses.
        self.fields: set[str] = set()
        self.metrics: set[str] = set()
        self._careful = careful
        self._text = text
        self._names = (f"_{number}" for number in itertools.count())
        #: Local variables of the values that the code has looked up, by the ``id`` of their node.
        #: A value that may be missing is looked up only once.
        self._found: dict[int, ast.expr] = {}

    def truth(self, node: ast.expr) -> ast.expr:
        """Return the code for the formula, or for an operand of ``and``, ``or`` or ``not``.

        The code evaluates to ``...`` if a value is missing.
        """
        match node:
            case ast.BoolOp(op, parts):
                kept = [self._assign_local(self.truth(part)) for part in parts]
                unknown = _any([_is(name, ...) for _, name in kept])
                decides = [part for part, _ in kept]
                if isinstance(op, ast.Or):  # ``...`` is true in Python, so it would end the ``or``
                    known = [(_is(part, ..., ast.IsNot), name) for part, name in kept]
                    decides = [ast.BoolOp(ast.And(), [*each], **_AT) for each in known]
                undecided = ast.IfExp(unknown, _UNKNOWN, kept[-1][1], **_AT)
                return ast.BoolOp(op, [*decides, undecided], **_AT)
            case ast.UnaryOp(ast.Not(), operand):
                part, name = self._assign_local(self.truth(operand))
                negated = ast.UnaryOp(ast.Not(), name, **_AT)
                return ast.IfExp(_is(part, ...), _UNKNOWN, negated, **_AT)
        missing = list(self._look_up(node))
        code = self._build(node)
        if missing:
            code = ast.IfExp(_any(missing), _UNKNOWN, code, **_AT)
        return _call("_attempt", _lambda(code)) if self._careful else code

    def _look_up(self, node: ast.expr) -> Iterator[ast.expr]:
        """Yield code that looks up a value and tests whether the value is missing.

        It does so for each value that is needed whenever this node is evaluated.
        """
        match node:
            case ast.Name() | ast.BoolOp() | ast.Call(ast.Name("metric")):
                code, nothing = self._lookup(node)
                kept, self._found[id(node)] = self._assign_local(code)
                yield _is(kept, nothing)
            case ast.Compare(left, _, [right, *_]) | ast.BinOp(left, _, right):
                yield from self._look_up(left)
                yield from self._look_up(right)
            case ast.UnaryOp(_, operand) | ast.IfExp(operand):
                yield from self._look_up(operand)
            case ast.Call(_, parts) | ast.Tuple(parts) | ast.List(parts):
                for part in parts:
                    yield from self._look_up(part)

    def _lookup(self, node: ast.expr) -> tuple[ast.expr, object]:
        """Return the code of a lookup, and the constant that the code returns if the value is
        missing.

        A lookup reads a field, a metric, or the result of ``and`` or ``or``.
        """
        match node:
            case ast.BoolOp():
                return self.truth(node), ...
            case ast.Call(ast.Name("metric"), [ast.Constant(str() as path)], []):
                self.metrics.add(path)
                return _call("metric", ast.Constant(path, **_AT)), None
            case ast.Name(field):
                self.fields.add(field)
                is_value = field == "value"
                found = _name(field) if is_value else _call("get", ast.Constant(field, **_AT))
                return found, None
        raise self._refusal(node)

    def _assign_local(self, code: ast.expr) -> tuple[ast.expr, ast.expr]:
        """Return code that assigns the value to a local variable, and the variable."""
        name = next(self._names)
        return ast.NamedExpr(ast.Name(name, ast.Store(), **_AT), code, **_AT), _name(name)

    def _build(self, node: ast.expr) -> ast.expr:
        """Return the code for this part of a formula."""
        build, number = self._build, self._number
        if id(node) in self._found:
            return self._found[id(node)]
        match node:
            case ast.Constant(int() | float() | str() | None as constant):
                return ast.Constant(constant, **_AT)
            case ast.Call(ast.Name(function), arguments, []) if function in FUNCTIONS:
                self._check_count(function, len(arguments))
                return _call(function, *map(build, arguments))
            case ast.UnaryOp(ast.Not() | ast.USub() | ast.UAdd() as op, operand):
                return ast.UnaryOp(op, build(operand), **_AT)
            case ast.BinOp(left, ast.Pow(), right):
                return _call("_power", number(left), number(right))
            case ast.BinOp(left, op, right) if isinstance(op, _ARITHMETIC):
                return ast.BinOp(number(left), op, number(right), **_AT)
            case ast.Compare(left, ops, others) if all(isinstance(op, _COMPARISONS) for op in ops):
                return ast.Compare(build(left), ops, [build(other) for other in others], **_AT)
            case ast.IfExp(test, body, orelse):
                return ast.IfExp(build(test), build(body), build(orelse), **_AT)
            case ast.Tuple(parts) | ast.List(parts):
                return type(node)([build(part) for part in parts], ast.Load(), **_AT)
        code, nothing = self._lookup(node)
        kept, name = self._assign_local(code)
        return ast.IfExp(_is(kept, nothing), _call("_nothing"), name, **_AT)

    def _check_count(self, function: str, given: int) -> None:
        """Report a call with too few or too many values: it would never have a result."""
        least, most = _TAKES.get(function, (1, 1))
        if not least <= given <= most:
            one, two = "one value", "two values or more"
            wanted = one if most == 1 else two if least > 1 else "one or two values"
            hint = _COUNTS_HINTS.get(function, f"write {function}(x)")
            raise refused(f"{self._text!r}: {function}() takes {wanted}, and has {given}", hint)

    def _number(self, node: ast.expr) -> ast.expr:
        """Return the code for an operand of arithmetic."""
        code = self._build(node)
        if _is_small(node) or (
            isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Pow))
        ):
            return code
        if id(node) not in self._found:
            return _call("_number", code)
        # Most fields and metrics are floats, which need no call.
        is_float = ast.Compare(_call("_type", code), [ast.Is()], [_name("_float")], **_AT)
        return ast.IfExp(is_float, code, _call("_number", code), **_AT)

    def _refusal(self, node: ast.AST) -> EnsembleError:
        """Return the error for a node that formulas do not allow."""
        text = self._text
        match node:
            case ast.Attribute(attr=name):  # columns such as a.b have been replaced by names before
                what = f"uses the attribute {name!r}"
                hint = 'use the bare name of a field, or metric("path") for a metric'
                return refused(f"{text!r} {what}", hint)
            case ast.Constant():
                return refused(
                    f"{text!r} has a constant that is not a number or a string",
                    "use numbers and strings",
                )
            case ast.Call(ast.Name("metric"), _, []):
                hint = 'write for example metric("mean.sleep-duration")'
                return refused(f"{text!r}: metric() takes one quoted path", hint)
            case ast.Call(ast.Name(name)) if name in (*FUNCTIONS, "metric"):
                return refused(f"{text!r} has keyword arguments", "give plain arguments")
            case ast.Call(function):
                name = function.id if isinstance(function, ast.Name) else "an unnamed function"
                hint = f"allowed are metric, {', '.join(sorted(FUNCTIONS))}"
                return refused(f"{text!r} calls {name}, which conditions do not allow", hint)
            case ast.BinOp(op=op) | ast.UnaryOp(op=op):
                node = op
            case ast.Compare(ops=ops):
                node = next(op for op in ops if not isinstance(op, _COMPARISONS))
        described = _SPOKEN.get(type(node), f"a {type(node).__name__}")
        hint = "use comparisons, arithmetic, and, or, not; or a custom function for more"
        return refused(f"{text!r} has {described}, which conditions do not allow", hint)


def _is_small(node: ast.expr) -> bool:
    """Return True if the node is a constant that is small enough for arithmetic."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        node = node.operand
    return isinstance(node, ast.Constant) and _is_bounded(node.value)


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load(), **_AT)


def _is(node: ast.expr, constant: Any, op: type[ast.cmpop] = ast.Is) -> ast.expr:
    return ast.Compare(node, [op()], [ast.Constant(constant, **_AT)], **_AT)


def _any(tests: list[ast.expr]) -> ast.expr:
    return ast.BoolOp(ast.Or(), tests, **_AT) if len(tests) > 1 else tests[0]


def _call(function: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(_name(function), list(arguments), [], **_AT)


def _lambda(body: ast.expr, *parameters: str) -> ast.expr:
    given = [ast.arg(name, **_AT) for name in parameters]
    arguments = ast.arguments(
        posonlyargs=[], args=given, kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    return ast.Lambda(arguments, body, **_AT)
