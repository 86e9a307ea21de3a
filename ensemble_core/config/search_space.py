"""Checks the search space of a generator: its ``variables``, and its ``first`` points."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ensemble_core.config.context import Context
from ensemble_core.config.document import Path
from ensemble_core.config.sweeps import MOST_COUNTED, read_columns
from ensemble_core.errors import EnsembleError
from ensemble_core.model.conditions import misspelt_value
from ensemble_core.model.expressions import check_names
from ensemble_core.model.filters import filter_of
from ensemble_core.model.generators import EarlierPoints, Variable, Vocs
from ensemble_core.model.numbers import read_number


def read_variables(context: Context, path: Path, given: Mapping[str, Any]) -> tuple[Variable, ...]:
    """Return the valid variables. Report the errors of the others."""
    found: list[Variable] = []
    for name, spec in given.items():
        place = (*path, name)
        if isinstance(spec, list):
            spec = {"range": spec}
        if "range" in spec:
            others = sorted(spec.keys() & {"from", "to"})
            if others:
                _report(context, place, f"{name!r} has both 'range' and {others[0]!r}", "write one")
                continue
            low, high = map(float, spec["range"])
            spec = {**{key: spec[key] for key in spec if key != "range"}, "from": low, "to": high}
        when = _when(context, place, spec.get("when"), found, given)
        if "values" in spec:
            others = sorted(spec.keys() - {"values", "when"})
            if others:
                _report(
                    context, place, f"{name!r} has both 'values' and {others[0]!r}", "write one"
                )
            if len({*map(repr, spec["values"])}) < len(spec["values"]):
                _report(context, place, f"{name!r} has a duplicate value", "write each once")
            found.append(Variable(name=name, values=tuple(spec["values"]), when=when))
            continue
        missing = [key for key in ("from", "to") if key not in spec]
        if missing:
            hint = "write [LOWEST, HIGHEST], {from: …, to: …} or {values: […]}"
            _report(context, place, f"the variable {name!r} has no {missing[0]!r}", hint)
            continue
        low, high, step, log = spec["from"], spec["to"], spec.get("step"), spec.get("log", False)
        if not low < high:
            what = f"{name!r} has an empty range: {low:g} to {high:g}"
            _report(context, place, what, "write the lower value first")
        elif log and (low <= 0 or step is not None):
            why = "has a 'step'" if low > 0 else f"begins at {low:g}"
            hint = "a logarithmic variable needs a range above 0 and no step"
            _report(context, place, f"{name!r} is logarithmic and {why}", hint)
        elif not math.isfinite(float(high) - float(low)):
            what = f"{name!r} is too wide: {low:g} to {high:g}"
            _report(context, place, what, "use a smaller range")
        elif step is None:
            low, high = float(low), float(high)
        elif (high - low) / step > MOST_COUNTED:
            _report(
                context,
                (*place, "step"),
                f"{name!r} would have more than {MOST_COUNTED:.0e} values",
                "use a larger step, or none",
                code="out-of-range",
            )
        found.append(Variable(name=name, low=low, high=high, log=log, step=step, when=when))
    return tuple(found)


def _report(context: Context, path: Path, what: str, hint: str, *, code: str = "bad-value") -> None:
    context.report(path, what, hint=hint, code=code)


def _when(
    context: Context, path: Path, text: object, above: list[Variable], given: Mapping[str, Any]
) -> str:
    """Return the checked condition of a variable, which only uses variables above it."""
    place = (*path, "when")
    if not isinstance(text, str) or not context.is_valid(place):
        return ""
    before = [each.name for each in above]
    try:
        parsed = filter_of(text, "when")
        names = parsed.names
        later = [name for name in names if name in given and name not in before]
        if later:
            name, itself = path[-1], later[0] == path[-1]
            raise EnsembleError(
                f"'when' of {name!r} uses "
                + ("its own value" if itself else f"{later[0]!r}, which is not above it"),
                hint="use variables above it" if itself else f"write {later[0]!r} before {name!r}",
                code="bad-value",
            )
        check_names(text, names, before)
    except EnsembleError as error:
        context.attach(error, place)
        return ""
    values = {each.name: each.values for each in above}
    tree = parsed.condition.tree
    why = None if tree is None else misspelt_value(tree, lambda name: values.get(name, ()))
    if why is not None:
        context.report(place, why, hint="write one of its values", code="bad-value")
    return text


def earlier_points(name: str, given: object) -> EarlierPoints | None:
    """Return which points of an earlier run the generator suggests first, if any."""
    if not isinstance(given, Mapping) or not isinstance(given.get("run"), str):
        return None
    best, generator = int(given.get("best", 1)), given.get("generator")
    return EarlierPoints(given["run"], best, str(generator or name), generator is not None)


def read_first_points(
    context: Context, path: Path, given: object, vocs: Vocs, wanted: EarlierPoints | None
) -> tuple[Mapping[str, Any], ...]:
    """Return the points of ``first``. Report invalid ones.

    Those that are ``wanted`` from an earlier run are known if they are stored with this run.
    """
    if given is None or not context.is_valid(path):
        return ()
    if wanted is not None:
        return tuple(json.loads(context.known.attached.get(wanted.key, "[]")))
    found, dropped = [], list[str]()
    for place, point in _written_points(context, path, given, vocs):
        whole = vocs.filled(point)
        why = vocs.refused(whole)
        dropped += [name for name in point if point[name] != "" and whole.get(name) == ""]
        if why is None:
            found.append(vocs.clipped(whole))
            continue
        words = why.removeprefix("it suggested ")
        name = next((each for each in point if words.startswith((f"{each} =", repr(each)))), None)
        inner = place if name is None or place == path else (*place, name)
        shown = "" if isinstance(given, list) else f" (point {len(found) + 1} of {given})"
        context.report(
            inner,
            f"a first point has {words}{shown}",
            hint=f"its variables are {', '.join(vocs.names)}",
            code="bad-value",
        )
        break
    for name in dict.fromkeys(dropped):
        number = dropped.count(name)
        points = "1 first point gives" if number == 1 else f"{number} first points give"
        context.warnings.append(
            f"{context.document.at(path)}: {points} {name!r} a value, which is ignored: its "
            f"'when' is false ({next(v.when for v in vocs.variables if v.name == name)})"
        )
    return tuple(found)


def _written_points(
    context: Context, path: Path, given: object, vocs: Vocs
) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield each point with the path of its place in the file."""
    if isinstance(given, list):
        for number, point in enumerate(given):
            if isinstance(point, dict):
                yield (*path, number), point
        return
    columns = read_columns(context, path, given)  # type: ignore[arg-type]
    if columns:
        for row in zip(*columns.values(), strict=True):
            yield (
                path,
                {
                    name: _cell(cell, vocs)
                    for name, cell in zip(columns, row, strict=True)
                    if cell != ""
                },
            )


def _cell(cell: object, vocs: Vocs) -> object:
    """Return a cell of a file as a value. A column with empty cells consists of texts."""
    number = read_number(cell) if isinstance(cell, str) else None
    return cell if number is None or any(cell in each.values for each in vocs.variables) else number
