"""Source of a run: an ensemble file, or an equivalent mapping that may contain callables.

A mapping is converted to the text of an ensemble file, in which names replace the callables.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, field, fields
from typing import Any

from ensemble_core.config.document import Path, spelled
from ensemble_core.config.file_text import read_file
from ensemble_core.errors import Location, UsageError
from ensemble_core.model.expressions import Expression
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.rules import Action, Rule
from ensemble_core.plugin.python_callables import Program
from ensemble_core.quick_dataclass import dataclass

_DEEPEST = 64
#: Fields of a :class:`JobGroup` that are not keys of an ensemble file.
_INNER = {"reads", "text", "here", "run", "cwd", "replicated", "compared"}
#: Fields of a :class:`JobGroup` that cannot be converted to keys of an ensemble file.
_ONLY_IN_FILES = {"points", "fail_if", "retry", "outputs", "discard", "more"}
#: Keys whose value may be a callable, with the kind of the callable.
_KINDS = {
    "label": "functions",
    "action": "functions",
    "name": "actions",
    "trigger": "triggers",
    "statistic": "statistics",
}


@dataclass(frozen=True, slots=True)
class Source:
    """Text of an ensemble file that was read, or that was made from a mapping."""

    text: str
    file: str  # its path; empty for a mapping
    program: Program


def source_of(given: str | os.PathLike[str] | Mapping[str, Any], program: Program) -> Source:
    """Return the source for a file or a mapping.

    Raises :class:`UsageError` if ``given`` is neither a path nor a mapping of plain data and
    callables.
    """
    if isinstance(given, (str, os.PathLike)):
        return Source(read_file(given), os.fspath(given), program)
    if not isinstance(given, Mapping):
        raise UsageError(
            f"expected a file or a mapping, got {type(given).__name__}",
            hint="pass the path of an ensemble file, or {'jobs': […], 'rules': […]}",
            code="wrong-type",
        )
    callables = _Callables(program)
    data = {}
    for key, value in given.items():
        if key == "custom" and not isinstance(value, str) and not _names_file(value):
            callables.custom(value)
        else:
            data.update(_Plain(callables).copy({key: value}, ()))
    return Source(_dump(data), "", callables.program())


def _names_file(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("file"), (str, os.PathLike))


def _dump(data: Mapping[str, Any]) -> str:
    import yaml

    try:
        return _dump_with(getattr(yaml, "CSafeDumper", yaml.SafeDumper), data)
    except UnicodeEncodeError:  # a lone surrogate: the reader reports it
        return _dump_with(yaml.SafeDumper, data)


def _dump_with(base: Any, data: Mapping[str, Any]) -> str:
    import yaml

    class Dumper(base):  # type: ignore[misc]  # libyaml's, if available
        """Dumper that quotes strings, so that none is read as a number, and uses no aliases."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> yaml.ScalarNode:
        node: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"')
        return node

    Dumper.add_representer(str, text)
    dumped: str = yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    return dumped


@dataclass(slots=True)
class _Callables:
    """Collects the callables in a mapping, each under a unique name."""

    given: Program
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def custom(self, value: Any) -> None:
        """Add the functions under ``custom``: a function, a list of functions, or a mapping from
        names.
        """
        if isinstance(value, Mapping):
            for name, function in value.items():
                self.add("functions", function, ("custom", name), str(name))
        else:
            for function in value if isinstance(value, (list, tuple)) else [value]:
                self.add("functions", function, ("custom",))

    def add(self, kind: str, value: Any, path: Path, name: str = "") -> str:
        """Add a callable, and return the name that replaces it in the file."""
        where = Location(spelled(path))
        if not callable(value):
            raise UsageError(
                f"expected a function, got {type(value).__name__}",
                where=where,
                hint="pass functions, {NAME: function}, or Python source as a string",
                code="wrong-type",
            )
        name = name or str(getattr(value, "__name__", ""))
        if not name.isidentifier() and kind == "functions":
            raise UsageError(
                f"the function has no name ({name or type(value).__name__})",
                where=where,
                hint="define it with 'def', or pass functions={'NAME': …}",
                code="wrong-type",
            )
        if kind in ("actions", "triggers"):
            name = name.replace("_", "-").lower()
        known = self.found.setdefault(kind, {**getattr(self.given, kind)})
        if known.setdefault(name, value) is not value:
            raise UsageError(
                f"two {kind} are named {name!r}",
                where=where,
                hint="rename one of them",
                code="duplicate-name",
            )
        return name

    def program(self) -> Program:
        return Program(
            **{
                kind: self.found.get(kind) or getattr(self.given, kind)
                for kind in ("functions", "actions", "triggers", "statistics")
            }
        )


@dataclass(slots=True)
class _Plain:
    """Converts values to plain data, and replaces callables by their names."""

    callables: _Callables

    def copy(self, value: Any, path: Path) -> Any:
        """Return a value as plain data. Raises :class:`UsageError` if that is impossible."""
        if len(path) > _DEEPEST:
            raise UsageError(
                "the mapping is nested too deeply", where=Location(str(path[0])), code="too-deep"
            )
        if isinstance(value, JobGroup):
            value = _group(value, path)
        elif isinstance(value, (Rule, Action)):
            value = value.spec
        elif isinstance(value, Expression):
            return value.text
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            if not math.isfinite(value):
                raise self._error(f"expected a finite number, got {value}", path)
            return value
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if isinstance(value, Mapping):
            return {
                self._key(key, path): self.copy(each, (*path, key)) for key, each in value.items()
            }
        if isinstance(value, (Sequence, set, frozenset)) and not isinstance(
            value, (bytes, bytearray)
        ):
            items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
            return [self.copy(each, (*path, at)) for at, each in enumerate(items)]
        for convert in ("tolist", "item"):  # numpy arrays and scalars, pandas columns
            method: Callable[[], Any] | None = getattr(value, convert, None)
            if callable(method):
                return self.copy(method(), path)
        if callable(value):
            return self._callable(value, path)
        raise self._error(f"{type(value).__name__} is not plain data", path)

    def _key(self, key: object, path: Path) -> str:
        if not isinstance(key, str):
            raise self._error(f"the key {key!r} is not a string", path)
        return key

    def _callable(self, value: Any, path: Path) -> Any:
        key = next((step for step in reversed(path) if isinstance(step, str)), "")
        parameter = path[:1] == ("jobs",) and path[-3:-1:2] == ("parameters",) and key == "function"
        rule = path[:1] in (("rules",), ("statistics",)) and key in _KINDS
        if not (parameter or rule):
            raise self._error("a function is not allowed here", path)
        name = self.callables.add("functions" if parameter else _KINDS[key], value, path)
        return {"name": "custom", "label": name} if key == "action" else name

    def _error(self, what: str, path: Path) -> UsageError:
        return UsageError(
            what,
            where=Location(spelled(path)),
            hint="use strings, numbers, booleans, lists and mappings; a function is allowed only "
            "as an action, label, trigger or statistic, or for a parameter: {'function': FUNCTION}",
            code="wrong-type",
        )


def _group(group: JobGroup, path: Path) -> dict[str, Any]:
    """Return a job group as in an ensemble file."""
    spec: dict[str, Any] = {}
    for each in fields(JobGroup):
        value = getattr(group, each.name)
        if each.name in _INNER or value == _default(each):
            continue
        if each.name in _ONLY_IN_FILES:
            raise UsageError(
                f"the field {each.name!r} of a JobGroup cannot be converted to an ensemble file",
                where=Location(spelled((*path, each.name))),
                hint="write the group as a mapping, as in an ensemble file",
                code="bad-fields",
            )
        spec[each.name] = value
    if group.replicated and "count" in spec:
        spec["replicas"] = spec.pop("count")
    return spec


def _default(each: Any) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()
