"""Mistakes in a jobspec: turns schema errors into messages with line numbers and suggestions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from ensemble_core import EnsembleError, Location, UsageError, did_you_mean
from ensemble_core.cli.toolkit import Document
from ensemble_jobspec.schemas import FORMS, STEPS, Schema

Path = tuple[str | int, ...]

_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}
_BOUNDS = {"minimum": "at least", "maximum": "at most"}


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return a hint with the most similar name; if none is similar, with the known names."""
    known = list(names)
    more = " …" if len(known) > 12 else ""
    listed = f"known: {', '.join(known[:12])}{more}" if known else None
    return did_you_mean(name, known, listed, cutoff=0.5)


@cache
def _validator(form: str, step: bool) -> Any:
    import jsonschema_rs

    return jsonschema_rs.validator_for(dict((STEPS if step else FORMS)[form]))


class Faults:
    """The mistakes of one document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.errors: list[EnsembleError] = []
        self.warnings: list[str] = []

    def at(self, path: Path) -> Location:
        """Return the position of the value at this path."""
        return self.document.at(path) or Location(self.document.file)

    def report(
        self, path: Path, what: str, *, hint: str | None = None, code: str, key: bool = False
    ) -> None:
        """Report a mistake at a value or at its key."""
        where = self.document.at_key(path) if key else self.document.at(path)
        self.errors.append(UsageError(what, where=where, hint=hint, code=code))

    def warn(self, path: Path, what: str) -> None:
        """Warn about something that is ignored or differs from upstream."""
        self.warnings.append(f"{self.at(path)}: {what}")

    def check(self, form: str, path: Path = (), *, step: bool = False) -> bool:
        """Return whether the value at this path matches the schema of the form or, with ``step``,
        the step.
        """
        value = self.document.get(path)
        if _validator(form, step).is_valid(value):
            return True
        schema = (STEPS if step else FORMS)[form]
        before = len(self.errors)
        for error in _validator(form, step).iter_errors(value):
            self._explain(error, path, schema)
        return len(self.errors) == before

    def _explain(self, error: Any, base: Path, schema: Schema) -> None:
        path: Path = (*base, *error.instance_path)
        kind, value = error.kind, self.document.get(path)
        said = _describe(path, value)
        match kind.name:
            case "additionalProperties":
                node = _node(schema, list(error.schema_path)[:-1])
                self._unknown(path, node)
            case "required":
                form = f"did you mean {kind.property!r} instead of {{!r}}?"
                hint = did_you_mean(kind.property, value, None, form=form)
                thing = "the jobspec" if not path else _value_name(path)
                self.report(
                    path, f"{thing} has no {kind.property!r}", hint=hint, code="missing-key"
                )
            case "type":
                words = " or ".join(_TYPES[name] for name in kind.types if name in _TYPES)
                self.report(path, f"{said}, expected {words}", code="wrong-type")
            case "enum":
                options = [str(option) for option in kind.options]
                hint = nearest(str(value), options)
                self.report(path, f"{said}, which is unknown", hint=hint, code="bad-value")
            case "const":
                self.report(path, f"{said}, expected {kind.expected_value}", code="bad-value")
            case "minimum" | "maximum":
                bound = f"{_BOUNDS[kind.name]} {kind.limit:g}"
                self.report(path, f"{said}, expected {bound}", code="out-of-range")
            case "minItems" | "minLength" | "minProperties" if not value:
                self.report(path, f"{_value_name(path)} is empty", code="empty")
            case "maxItems":
                count = len(value)
                what = f"{_value_name(path)} has {count} entries, but this form allows exactly one"
                hint = "for several tasks, use the form nextgen, where 'resources' is a mapping"
                self.report(path, what, hint=hint, code="bad-value")
            case "maxProperties":
                what = (
                    f"{_value_name(path)} has {' and '.join(map(repr, value))}: only one is allowed"
                )
                self.report(path, what, code="bad-value")
            case _:
                self.report(path, f"{_value_name(path)}: {error.message}"[:300], code="bad-value")

    def _unknown(self, path: Path, schema: Mapping[str, Any]) -> None:
        known = list(schema.get("properties", {}))
        value = self.document.get(path)
        for key in value:
            if key in known:
                continue
            absent = [name for name in known if name not in value]
            hint = did_you_mean(key, absent, None, cutoff=0.5) or did_you_mean(
                key, known, nearest(key, absent), cutoff=0.5
            )
            thing = "the jobspec" if not path else _value_name(path)
            what = f"unknown key {key!r} in {thing}"
            self.report((*path, key), what, hint=hint, code="unknown-key", key=True)


def _node(schema: Any, path: list[Any]) -> Mapping[str, Any]:
    """Return the subschema at a schema path, with references resolved."""
    here = schema
    for step in path:
        if isinstance(here, Mapping) and "$ref" in here and step == "$ref":
            here = schema["$defs"][here["$ref"].rpartition("/")[2]]
        else:
            here = here[int(step) if isinstance(here, list) else step]
    return here if isinstance(here, Mapping) else {}


def _value_name(path: Path) -> str:
    """Return a name for a value: its key, or its list and index."""
    if not path:
        return "the jobspec"
    if isinstance(path[-1], str):
        return repr(path[-1])
    return f"item {path[-1] + 1} of {path[-2]!r}" if len(path) > 1 else f"item {path[-1] + 1}"


def _describe(path: Path, value: object) -> str:
    if isinstance(value, dict):
        shown = "a mapping"
    elif isinstance(value, list):
        shown = "a list"
    elif isinstance(value, bool):
        shown = "true" if value else "false"
    else:
        shown = "empty" if value is None else repr(value)
    return f"{_value_name(path)} is {shown if len(shown) < 60 else shown[:59] + '…'}"
