"""Conditions (the key ``when`` of rules), which are parsed and checked once, before the run.

A condition is one of

- a number, which the trigger's value must equal;
- one or more comparisons with the value, such as ``"> 5 and < 10"``;
- a formula over ``value``, ``metric("path")`` and the event's fields (see the module
  ``expressions``).
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.expressions import Formula
from ensemble_core.model.formula_compiler import refused
from ensemble_core.model.formula_parser import (
    LONGEST,
    called,
    parse_formula,
    suggested_formula,
)
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
