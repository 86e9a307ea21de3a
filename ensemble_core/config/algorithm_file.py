"""Reads algorithms that are defined in YAML files (``algorithm: ./demand.yaml``) instead of Python.

Such a file has the keys ``summary``, ``options`` (a JSON Schema), ``rules`` and optionally
``statistics``. A value ``${NAME}`` stands for the value of the option NAME.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from ensemble_core.config.attached_files import read_attachment, sibling_path
from ensemble_core.config.context import Context, nearest
from ensemble_core.config.document import Document, Path
from ensemble_core.config.yaml_reader import read_text
from ensemble_core.errors import FileErrors, Location, PluginError, UsageError
from ensemble_core.late_pattern import late_pattern
from ensemble_core.plugin.hookspecs import AlgorithmPlugin, AlgorithmView, Fragment
from ensemble_core.plugin.record_validation import check_record

_WHOLE = late_pattern(r"\$\{([^{}]*)\}")
_KEYS: Mapping[str, Any] = {
    "summary": str, "objective": str, "needs": list, "supports": list, "options": dict,
    "rules": list, "statistics": dict, "heartbeat": object, "example": str,
}  # fmt: skip
_FILLED = ("rules", "statistics", "heartbeat")
_TYPES: Mapping[Any, str] = {str: "a string", list: "a list", dict: "a mapping"}


def is_file(name: str) -> bool:
    """Return True if the name of an algorithm is the name of a file."""
    return name.endswith((".yaml", ".yml")) or "/" in name


def read_algorithm(context: Context, path: Path, name: str) -> AlgorithmPlugin | None:
    """Return the algorithm that the file defines, or ``None`` after reporting errors."""
    text = read_attachment(context, path, name)
    if text is None:
        return None
    errors: list[Any] = []
    try:
        document = read_text(text, sibling_path(context, name))
        errors = _key_errors(document)
    except FileErrors as found:
        errors = list(found.errors)
    if errors:
        context.errors += errors
        return None
    data = document.data
    record = AlgorithmPlugin(
        name=re.sub(r"[^a-z0-9]+", "-", name.lower()).lstrip("-0123456789") or "file",
        summary=data["summary"],
        objective=data.get("objective", ""),
        options=data.get("options") or {},
        needs=frozenset(data.get("needs", ())),
        supports=frozenset(data.get("supports", ())),
        build=lambda options, view: _fill_options(document, options, view),
    )
    try:
        check_record(record)
    except PluginError as error:
        context.errors.append(
            UsageError(error.what, where=document.at(("options",)), code="bad-algorithm")
        )
        return None
    return record


def _key_errors(document: Document) -> list[UsageError]:
    data = document.data
    if not isinstance(data, dict):
        return [_type_error("an algorithm file must be a mapping", document.at(()))]
    found: list[UsageError] = []
    for key, value in data.items():
        if key not in _KEYS:
            near = nearest(key, list(_KEYS))
            hint = f"did you mean {near!r}?" if near else f"known: {', '.join(_KEYS)}"
            what = f"unknown key {key!r} in the algorithm file"
            found.append(
                UsageError(what, where=document.at_key((key,)), hint=hint, code="unknown-key")
            )
        elif not isinstance(value, _KEYS[key]):
            what = f"{key!r} is not {_TYPES[_KEYS[key]]}"
            found.append(_type_error(what, document.at((key,))))
    for key in ("summary", "rules"):
        if not data.get(key):
            what = f"the algorithm file has no {key!r}"
            found.append(UsageError(what, where=document.at(()), code="missing-key"))
    return found


def _type_error(what: str, where: Location | None) -> UsageError:
    return UsageError(what, where=where, code="wrong-type")


def _fill_options(document: Document, options: Mapping[str, Any], view: AlgorithmView) -> Fragment:
    """Return the fragment with the options filled in, including the positions of its parts."""
    errors: list[UsageError] = []
    given = {**options, "instance": view.instance}
    parts = {key: _fill(document, (key,), document.data.get(key), given, errors) for key in _FILLED}
    if errors:
        raise FileErrors(errors)
    places = {path: document.at(path) for path in document.values if path[:1] == ("rules",)}
    return Fragment(
        rules=parts["rules"],
        statistics=parts["statistics"] or {},
        heartbeat=parts["heartbeat"],
        places=places,
    )


def _fill(
    document: Document,
    path: Path,
    value: Any,
    given: Mapping[str, Any],
    errors: list[UsageError],
) -> Any:
    if isinstance(value, dict):
        filled = {k: _fill(document, (*path, k), v, given, errors) for k, v in value.items()}
        return {key: item for key, item in filled.items() if item is not _ABSENT}
    if isinstance(value, list):
        items = [_fill(document, (*path, i), v, given, errors) for i, v in enumerate(value)]
        return [item for item in items if item is not _ABSENT]
    if not isinstance(value, str) or "${" not in value:
        return value
    whole = _WHOLE.fullmatch(value)
    if whole is None:
        errors.append(
            UsageError(
                f"a placeholder must be the whole value, not part of {value!r}",
                where=document.at(path),
                hint="write '${NAME}' alone, and put the text around it into the option's value",
                code="bad-placeholder",
            )
        )
        return value
    name = whole[1]
    if name in given:
        return copy.deepcopy(given[name])
    known = [*(document.data.get("options") or {}).get("properties", {}), "instance"]
    if name in known:
        return _ABSENT  # the option has no value and no default: omit the key
    near = nearest(name, known)
    hint = f"did you mean ${{{near}}}?" if near else f"its options are {', '.join(known)}"
    errors.append(
        UsageError(
            f"the algorithm has no option {name!r}",
            where=document.at(path),
            hint=hint,
            code="no-such-key",
        )
    )
    return value


class _Absent:
    pass


_ABSENT = _Absent()
