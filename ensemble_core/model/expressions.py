"""Evaluates conditions and expressions: formulas over metrics and an event's fields.

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
from ensemble_core.model.formula_compiler import (
    FUNCTIONS,
    NO_VALUE,
    Compiled,
    compiled,
    refused,
)
from ensemble_core.model.formula_parser import LONGEST, called, parse_formula
from ensemble_core.model.numbers import as_text, whole
from ensemble_core.model.placeholders import (
    FIELD_PLACEHOLDER,
    JOB_PLACEHOLDER,
    fill,
    is_format,
    placeholders,
)
from ensemble_core.model.sweep_values import rounded, without_noise
from ensemble_core.quick_dataclass import dataclass

__all__ = [
    "FUNCTIONS",
    "Expression",
    "Formula",
    "check_names",
    "evaluate_options",
    "expression",
    "fill_command",
]

_EXPRESSION_HINT = 'write arithmetic over the event\'s fields and metric("path"), such as "= 2 * T"'
_NO_VALUE_HINT = "add a condition to the rule that waits for this value"


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


def evaluate_options(
    value: Any,
    fields: Mapping[str, Any],
    metric: Callable[[str], float | None],
    pattern: re.Pattern[str] = FIELD_PLACEHOLDER,
) -> Any:
    """Replace each ``= EXPRESSION`` and each placeholder in ``value``, at any depth.

    If a string consists of a single placeholder, the result keeps the field's type. Numbers are
    rounded as in a sweep, but only if all numbers in the expression are: measured values keep their
    digits. Whole numbers become integers. Raises :class:`EnsembleError` if a value is missing.

    >>> evaluate_options({"T": "= 2 ** T", "start": "{T}", "tag": "T-{T}"}, {"T": 3}, {}.get)
    {'T': 8, 'start': 3, 'tag': 'T-3'}
    """
    if isinstance(value, Mapping):
        return {key: evaluate_options(item, fields, metric, pattern) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [evaluate_options(item, fields, metric, pattern) for item in value]
    if not isinstance(value, str):
        return value
    if not value.startswith("="):
        return _filled(value, fields, pattern)
    formula = expression(value, texts=True, conditions=True)
    found = formula.result(fields, metric)
    if found is None:
        verdict = formula.evaluate(fields.get("value"), fields, metric)
        found = verdict if isinstance(verdict, bool) else None
    if isinstance(found, float):
        short = _is_short(formula, fields, metric)
        return whole(rounded(found) if short else without_noise(found))
    if found is None:
        missing = [name for name in sorted(formula.names) if fields.get(name) is None]
        missing += [path for path in sorted(formula.metrics) if metric(path) is None]
        if missing:
            why = f"{', '.join(missing)} {'have' if len(missing) > 1 else 'has'} no value yet"
        else:
            why = "the result is not a finite number"
        raise EnsembleError(
            f"cannot compute {value!r}: {why}", hint=_NO_VALUE_HINT, code="no-value"
        )
    return found


def _is_short(
    formula: Formula, fields: Mapping[str, Any], metric: Callable[[str], float | None]
) -> bool:
    """Return True if no number in the formula has more digits than a value of a sweep."""
    numbers = [fields.get(name) for name in formula.names] + [metric(p) for p in formula.metrics]
    return all(number == rounded(number) for number in numbers if isinstance(number, float))


def _filled(text: str, fields: Mapping[str, Any], pattern: re.Pattern[str]) -> Any:
    for one in placeholders(text, pattern):
        if not is_format(one.form or ""):
            continue
        found = fields.get(one.name)
        if found is None:
            raise EnsembleError(
                f"cannot fill in {text!r}: {one.name} has no value yet",
                hint=_NO_VALUE_HINT,
                code="no-value",
            )
        if one.text == text and one.form is None:
            if isinstance(found, float) and found - found != 0:
                raise EnsembleError(
                    f"the value of {text!r} is not a finite number", code="no-value"
                )
            if not isinstance(found, str):
                return whole(found)
    return fill(text, fields, pattern)


def fill_command(command: str, fields: Mapping[str, Any]) -> list[str]:
    """Return the words of a command in which ``{job.NAME}`` is filled in.

    As in a job group, the command is split first, so that a value with a blank or a quote, such as
    the path of a folder, stays one word.

    >>> fill_command("ls '-l' {job.workdir}", {"job.workdir": "/data/my study"})
    ['ls', '-l', '/data/my study']
    """
    import shlex

    lexer = shlex.shlex(command, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    return [as_text(_filled(word, fields, JOB_PLACEHOLDER)) for word in lexer]


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
