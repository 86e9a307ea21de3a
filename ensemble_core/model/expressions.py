"""Parses, explains and evaluates formulas: expressions, and the conditions of ``conditions``.

A formula computes with metrics and with an event's fields. A field's name may contain brackets,
dots or a filter: ``c_msd[4]``, ``PotEng.mean`` and ``mean.U(L == 16)`` are each one name. Python's
``a[0]`` and ``a.b`` are not supported.

If a field is nan, every comparison with it except ``!=`` is false. To test for nan, use ``isnan``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import field, fields
from functools import cached_property, lru_cache
from typing import Any

from ensemble_core.errors import EnsembleError, did_you_mean
from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.formula_compiler import (
    FUNCTIONS,
    NO_VALUE,
    Compiled,
    IncompleteFormula,
    check_formula,
    compiled,
    refused,
)
from ensemble_core.model.placeholders import index_label
from ensemble_core.quick_dataclass import dataclass

#: Names that a condition may use with any event that has them, each with the kind of its values.
KINDS_OF_FIELDS: Mapping[str, str] = {
    "name": "text",  # the event's name
    "timestamp": "number",
    "job": "text",  # our id of the job
    "group": "text",
    "index": "number",
    "duration": "number",  # seconds from start to finish
    "pending": "number",  # seconds from submit to start
    "exit_code": "number",  # the exit code as a shell reports it
    "cause": "text",  # the cause of a job's end: one of causes.CAUSES
    "cancelled_by": "text",  # who cancelled the job: "run", a user's name or "others"
    "host": "text",  # the node or nodes on which the job runs or ran
    "limit": "",  # the job's time limit in seconds; with the trigger limit, the limit's name
    "memory_per_task": "number",  # what the job requests, in bytes
    "attempt": "number",  # which attempt of the job's index it is, from 0
    "replica": "number",  # the job's number within its combination of parameters, from 0
    "run": "text",  # the run's tag
    "status": "number",  # the wait status
    "type": "text",  # the type of an exception
    "severity": "number",
    "note": "text",
    "queue_id": "",
}
EVENT_FIELDS: frozenset[str] = frozenset(KINDS_OF_FIELDS)
#: Event fields for which a column or a parameter of the same name takes precedence.
_OVERRIDABLE = {
    *("cause", "cancelled_by", "host", "limit", "memory_per_task", "attempt", "replica", "run")
}
#: Names that cannot be followed by brackets or dots: ``value[1]`` and ``job.name`` are errors.
_WHOLE = (EVENT_FIELDS - _OVERRIDABLE) | FUNCTIONS.keys() | {"value", "metric"}
_EXPRESSION_HINT = 'write arithmetic over the event\'s fields and metric("path"), such as "= 2 * T"'
#: Maximum number of characters of a formula.
LONGEST = 2000
#: Maximum depth of a syntax tree, because evaluation is recursive.
_DEEPEST = 150
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_QUOTED = late_pattern(r"'[^']*'|\"[^\"]*\"")
#: Operators and units of other languages, each with its equivalent in formulas.
_WORDS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (late_pattern(r"&&"), "and"),
    (late_pattern(r"\|\|"), "or"),
    (late_pattern(r"\bAND\b"), "and"),
    (late_pattern(r"\bOR\b"), "or"),
    (late_pattern(r"\bNOT\b"), "not"),
    (late_pattern(r"!(?!=)\s*"), "not "),
    (late_pattern(r"<>"), "!="),
    (late_pattern(r"(?<![<>=!])=([<>])"), r"\1="),
    (late_pattern(r"===+"), "=="),
    (late_pattern(r"(?<![<>=!])=(?!=)"), "=="),
    # Replace durations by numbers of seconds.
    (
        late_pattern(r"(?<![\w.])(\d+(?:\.\d+)?)([smhd])\b"),
        lambda found: f"{float(found[1]) * _SECONDS[found[2]]:g}",
    ),
)
#: A common mistake: ``count.sim.failed(within 10m)`` without ``metric``.
_RECENT = late_pattern(r"(?<!['\"])\bcount\.([\w-]+\.)?(\w+\(within [^()]*\))")
#: A common mistake: ``mean.U where L == 16`` instead of ``mean.U(L == 16)``.
_WHERE = late_pattern(r"([A-Za-z_]\w*(?:\.\w+)+)\s+where\s+(.+)")


@dataclass(frozen=True)
class Formula:
    """A checked formula."""

    text: str
    #: Not compared, because equal trees that were parsed twice differ.
    tree: ast.expr | None = field(default=None, compare=False)
    names: frozenset[str] = frozenset()
    metrics: frozenset[str] = frozenset()

    def __getstate__(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def evaluate(
        self,
        value: float | None,
        fields: Mapping[str, Any],
        metric: Callable[[str], float | None],
    ) -> Any:
        """Return the result, or ``None`` if a required value is missing or an operation is
        invalid.
        """
        try:
            result = self._quick(value, fields.get, metric)
        except NO_VALUE:
            # Evaluate again, because an invalid operand of ``and`` or ``or`` may not affect the
            # result.
            result = self._careful(value, fields.get, metric)
        return None if result is ... else result

    @cached_property
    def sorted_names(self) -> tuple[str, ...]:
        """The names of the fields, as a sorted tuple."""
        return tuple(sorted(self.names))

    @cached_property
    def _quick(self) -> Compiled:
        assert self.tree is not None
        return compiled(self.tree, careful=False)

    @cached_property
    def _careful(self) -> Compiled:
        assert self.tree is not None
        if any(isinstance(node, ast.BoolOp) for node in ast.walk(self.tree)):
            return compiled(self.tree, careful=True)
        return lambda value, get, metric: None


@dataclass(frozen=True)
class Expression(Formula):
    """A checked formula whose result is a number; created by :func:`expression`."""

    def value(
        self, fields: Mapping[str, Any], metric: Callable[[str], float | None]
    ) -> float | None:
        """Return the result as a number. It is an integer if the arithmetic gives one (``2 * 3`` is
        6).

        Return ``None`` if a required value is missing or the result is not a finite number. May be
        called from any thread.
        """
        result = self.evaluate(fields.get("value"), fields, metric)
        if isinstance(result, bool) or not isinstance(result, (int, float)):
            return None
        return result if result - result == 0 else None

    def result(
        self, fields: Mapping[str, Any], metric: Callable[[str], float | None]
    ) -> int | float | str | None:
        """Return the result as a number with all its digits, or as a string.

        Return ``None`` if a required value is missing or the result has another type.
        """
        try:  # fast path for results; the type checks below exclude ``...`` (no value)
            found = self._quick(fields.get("value"), fields.get, metric)
        except NO_VALUE:
            found = self.evaluate(fields.get("value"), fields, metric)
        if isinstance(found, float):
            return found + 0.0 if found - found == 0.0 else None
        return found if isinstance(found, (int, str)) and not isinstance(found, bool) else None


def expression(
    text: str,
    *,
    names: Collection[str] | None = None,
    texts: bool = False,
    conditions: bool = False,
) -> Expression:
    """Parse and check an expression; a leading ``=`` is ignored.

    ``names`` lists the fields that the expression may use; ``None`` allows all fields. With
    ``texts``, the result may be a string; with ``conditions``, it may be true or false. Raises
    :class:`EnsembleError` if the expression is invalid.

    >>> expression("= 2 * T + 1").value({"T": 3}, {}.get)
    7
    """
    found = _expression(text, texts, conditions)
    if names is not None:
        check_names(found.text, found.names, names)
    return found


@lru_cache(maxsize=1024)
def _expression(text: str, texts: bool, conditions: bool) -> Expression:
    source = text.strip().removeprefix("=").strip()
    if not source:
        raise refused("the expression is empty", 'write for example "= 2 * T"')
    if len(source) > LONGEST:
        raise refused(
            f"the expression is longer than {LONGEST} characters", "move it to a custom function"
        )
    tree, fields, metrics = parse_formula(source, source, "the expression", _EXPRESSION_HINT)
    wrong = _no_number(tree)
    fine = {"a text": texts, "a condition": conditions}
    if wrong is not None and not fine.get(wrong, False):
        raise refused(f"{source!r} is {wrong}, expected a number", _EXPRESSION_HINT)
    return Expression(source, tree, fields, metrics)


def check_names(text: str, used: Collection[str], known: Collection[str]) -> None:
    """Raise an error for the first name in ``used`` that is not in ``known``."""
    for name in sorted(used):
        if name in known:
            continue
        names, listed = sorted(known), f"known: {', '.join(sorted(known))}"
        hint = did_you_mean(name, [*names, *FUNCTIONS, "metric"], listed)
        raise refused(f"unknown name {name!r} in {text!r}", hint)


def _no_number(tree: ast.expr) -> str | None:
    """If the result of this expression can never be a number, return what it is; otherwise
    ``None``.
    """
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
        elif isinstance(node, ast.Call) and called(node) in ("isnan", "isinf"):
            return "a condition"
    return None


def parse_formula(
    source: str, text: str, what: str, hint: str
) -> tuple[ast.expr, frozenset[str], frozenset[str]]:
    """Parse and check ``source``. Return its syntax tree, and the fields and metrics that it uses.

    ``text`` is the formula as its author wrote it. If the formula is invalid, an
    :class:`EnsembleError` quotes ``text``, calls it ``what``, and has the hint ``hint``.
    """
    try:
        whole = ast.parse(source, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, SyntaxError) and (recent := _RECENT.search(text)) is not None:
            group = recent[1] or "GROUP."
            raise refused(
                f"{what} does not parse: a count within a time is a metric",
                f"write metric('count.{group}{recent[2]}')",
            ) from None
        if isinstance(error, SyntaxError) and (words := _WHERE.search(text)) is not None:
            raise _no_filter(what, f"{words[1]}({words[2].strip()})") from None
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or "too deep"
        better = suggested_formula(text)
        if reason.startswith("expected 'else'"):
            raise IncompleteFormula(
                f"{text!r} has 'if' without 'else'",
                hint=f"add the other value: {text} else VALUE",
                code="bad-condition",
            ) from None
        if text.count("(") > text.count(")"):
            hint = (
                'close the bracket; in { } and [ ], quote text that contains a comma: "= min(T, 3)"'
            )
        elif better is not None:
            hint = f"write {better!r}"
        raise refused(f"{what} does not parse: {text!r} ({reason})", hint) from None
    for node in ast.walk(whole):
        if isinstance(node, ast.Compare):
            _check_lists(node, source, text)
    _check_depth(whole.body, text)
    _check_filters(whole, what, hint)
    _name_columns(whole)
    return whole.body, *check_formula(whole.body, text)


def suggested_formula(text: str) -> str | None:
    """Return the formula with foreign operators replaced, or ``None`` if it contains none.

    >>> suggested_formula('T > 1 && type = "x"')
    'T > 1 and type == "x"'
    >>> suggested_formula("> 5m and < 1.5h")
    '> 300 and < 5400'
    """
    parts: list[str] = []
    end = 0
    for match in [*_QUOTED.finditer(text), None]:
        part = text[end : match.start() if match else None]
        for wrong, right in _WORDS:
            part = wrong.sub(right, part)
        parts += [part, match.group() if match else ""]
        end = match.end() if match else end
    found = " ".join("".join(parts).split())
    return found if found != " ".join(text.split()) else None


def _check_lists(node: ast.Compare, source: str, text: str) -> None:
    """Reject ``in ("a")``, because a single value in parentheses is not a list."""
    for operator, right in zip(node.ops, node.comparators, strict=True):
        if not isinstance(operator, (ast.In, ast.NotIn)) or not isinstance(right, ast.Constant):
            continue
        line = source.splitlines()[right.lineno - 1].encode()
        around = line[: right.col_offset].rstrip()[-1:] + line[right.end_col_offset :].lstrip()[:1]
        if around == b"()" or type(right.value) in (int, float):
            one = ast.unparse(right)
            sign = "==" if isinstance(operator, ast.In) else "!="
            raise refused(
                f"({one}) in {text!r} is not a list",
                f"write {sign} {one}, or ({one},) with a comma for a list of one value",
            )


def _no_filter(what: str, better: str) -> EnsembleError:
    return refused(f"{what} has an invalid filter", f"write {better}")


def _check_filters(whole: ast.AST, what: str, hint: str) -> None:
    """Reject a filter that is malformed or whose content is not a condition."""
    for node in ast.walk(whole):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, (ast.Compare, ast.BoolOp)):
            name = ast.unparse(node.value)
            raise _no_filter(what, f"{name}({ast.unparse(node.slice)})")
        if not isinstance(node, ast.Call) or not isinstance(_column(node.func), ast.Name):
            continue
        name = ast.unparse(node.func)
        compares = [isinstance(each, (ast.Compare, ast.BoolOp)) for each in node.args]
        if "." not in name:
            if name not in FUNCTIONS and compares == [True]:
                better = "count.done" if name == "n" else f"mean.{name}"
                raise _no_filter(what, f"{better}({ast.unparse(node.args[0])})")
            continue
        conditions = [ast.unparse(each) for each in node.args]
        conditions += [f"{each.arg} == {ast.unparse(each.value)}" for each in node.keywords]
        if len(node.args) != 1 or node.keywords:
            raise _no_filter(what, f"{name}({' and '.join(conditions) or 'CONDITION'})")
        (inner,) = node.args
        if isinstance(inner, (ast.Constant, ast.Tuple, ast.List)):
            raise refused(
                f"the filter of {name!r} compares nothing: {conditions[0]!r}",
                f"write {name}(NAME == {conditions[0]})",
            )
        for part in ast.walk(inner):
            if isinstance(part, ast.Call) and (
                isinstance(part.func, ast.Attribute) or called(part) == "metric"
            ):
                raise refused(
                    f"a filter is checked for each job, so it cannot use the statistic "
                    f"{ast.unparse(part)!r}",
                    "compare parameters, or values that the job printed",
                )
        parse_formula(conditions[0], conditions[0], f"the filter of {name!r}", hint)


def _name_columns(whole: ast.AST) -> None:
    """Replace subscripts, attributes and calls that are really names of fields by plain names.

    Examples are ``c_msd[4]`` and ``mean.U(L == 16)``.
    """
    for node in ast.walk(whole):
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                value[:] = [_column(item) for item in value]
            elif isinstance(value, (ast.Subscript, ast.Attribute, ast.Call)):
                setattr(node, name, _column(value))


def _column(node: Any) -> Any:
    """If this node is the name of a field, return it as a plain name. Otherwise, return the node
    itself.
    """
    here: Any = node
    rest = ""
    if isinstance(node, ast.Call):
        inner = _column(node.func)
        if not isinstance(node.func, ast.Attribute) or not isinstance(inner, ast.Name):
            return node
        return ast.copy_location(ast.Name(ast.unparse(node), ast.Load()), node)
    while True:
        if isinstance(here, ast.Subscript):
            index = _index(here.slice)
            if index is None:
                return node
            here, rest = here.value, f"[{index_label(index)}]{rest}"
        elif isinstance(here, ast.Attribute) and not here.attr.startswith("_"):
            here, rest = here.value, f".{here.attr}{rest}"
        else:
            break
    if not rest or not isinstance(here, ast.Name) or here.id.startswith("_"):
        return node
    # min and max are functions, but also names of statistics: min.energy.
    if here.id in _WHOLE and not (rest.startswith(".") and here.id in FUNCTIONS):
        return node
    return ast.copy_location(ast.Name(here.id + rest, ast.Load()), node)


def _index(node: ast.expr) -> int | float | str | None:
    """Return the constant within ``[…]``, or ``None`` if it cannot be part of a field's name."""
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    if negative:
        node = node.operand  # type: ignore[attr-defined]
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return -value if negative else value
    return value if isinstance(value, str) and not negative else None


def _check_depth(tree: ast.expr, text: str) -> None:
    level: list[ast.AST] = [tree]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise refused(f"{text[:40]!r} … is nested too deeply", "move it to a custom function")


def called(node: ast.Call) -> str:
    """Return the name of the called function."""
    return node.func.id if isinstance(node.func, ast.Name) else ""
