"""Data of a YAML file, with the line and column of every key and value for error messages.

A value is identified by its path, such as ``("jobs", 0, "command")``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ensemble_core.errors import EnsembleError, Location
from ensemble_core.model.numbers import as_text
from ensemble_core.model.rules import Action, Rule
from ensemble_core.quick_dataclass import dataclass

Path = tuple[str | int, ...]

_DEEPEST = 64


@dataclass(slots=True)
class Document:
    """Plain data with the position of each part."""

    data: Any
    file: str = ""
    text: str = ""
    #: Line and column of each value, counted from 1, by the value's path.
    values: dict[Path, tuple[int, int]] = field(default_factory=dict)
    #: Line and column of each key, counted from 1, by the key's path.
    keys: dict[Path, tuple[int, int]] = field(default_factory=dict)
    #: Start and end of each scalar in ``text``, by path.
    spans: dict[Path, tuple[int, int]] = field(default_factory=dict)
    #: Source text of each unquoted scalar that is not a string, by path: ``1.10`` stays ``1.10``.
    spelled: dict[Path, str] = field(default_factory=dict)
    #: Positions of parts that do not come from the file, such as values of ``--set``.
    overrides: dict[Path, Location] = field(default_factory=dict)
    #: True if the data does not come from a text. Messages then show paths: ``jobs[0].command``.
    by_path: bool = False

    @property
    def noun(self) -> str:
        """Name of the whole document in messages."""
        return "the file" if self.file else "the specification"

    def get(self, path: Path) -> Any:
        """Return the data at this path, or ``None``."""
        here = self.data
        for step in path:
            try:
                here = here[step]
            except (KeyError, IndexError, TypeError):
                return None
        return here

    def at(self, path: Path) -> Location | None:
        """Return the position of the value at this path.

        If its position is unknown, return that of the nearest parent.
        """
        return self._place(path, self.values)

    def at_key(self, path: Path) -> Location | None:
        """Return the position of the key at this path.

        If its position is unknown, return that of the value.
        """
        return self._place(path, self.keys if path in self.keys else self.values)

    def _place(self, path: Path, places: Mapping[Path, tuple[int, int]]) -> Location | None:
        if not self.file and not self.by_path:
            return None
        if self.overrides:
            for length in range(len(path), 0, -1):
                if path[:length] in self.overrides:
                    return self.overrides[path[:length]]
        if self.by_path:
            return Location(spelled(path)) if path else None
        if path in places:
            return Location(self.file, *places[path])
        while path and path not in self.values:
            path = path[:-1]
        line, column = self.values.get(path, (1, 1))
        return Location(self.file, line, column)

    def at_text(self, path: Path, part: str) -> Location | None:
        """Return the position of ``part`` within the scalar at this path, or of the scalar if not
        found.
        """
        place, span = self.at(path), self.spans.get(path)
        if place is None or span is None or not place.line:
            return place
        whole = re.compile(rf"(?<![\w.]){re.escape(part)}(?![\w.])").search(self.text, *span)
        found = self.text.find(part, *span) if whole is None else whole.start()
        if found < 0:
            return place
        return self.at_index(found)

    def at_end(self, path: Path) -> Location | None:
        """Return the position where the scalar at this path ends, or where it starts if that is
        unknown.
        """
        place, span = self.at(path), self.spans.get(path)
        if place is None or span is None or not place.line:
            return place
        return self.at_index(span[1] - (self.text[span[1] - 1] in "'\""))

    def at_index(self, index: int) -> Location:
        """Return the line and column of the character at this index of the text."""
        start = self.text.rfind("\n", 0, index) + 1
        return Location(self.file, self.text.count("\n", 0, index) + 1, index - start + 1)

    def renumber(self, part: str, numbers: Mapping[int, int]) -> None:
        """Change the indices of a list's items in all paths. Drop items without a new number."""

        def moved(places: dict[Path, Any]) -> dict[Path, Any]:
            kept: dict[Path, Any] = {}
            for path, place in places.items():
                if len(path) < 2 or path[0] != part:
                    kept[path] = place
                elif isinstance(path[1], int) and path[1] in numbers:
                    renumbered: Path = (part, numbers[path[1]], *path[2:])
                    kept[renumbered] = place
            return kept

        self.values, self.keys = moved(self.values), moved(self.keys)
        self.spans, self.spelled = moved(self.spans), moved(self.spelled)
        self.overrides = moved(self.overrides)

    def copy_places(self, origin: Path, copy: Path) -> None:
        """Give the value at the path ``copy`` the positions of the value at the path ``origin``."""
        if self.by_path:
            where = self.at(origin)
            if where is not None:
                self.overrides[copy] = where
            return
        known: list[dict[Path, Any]] = [self.values, self.keys, self.spans, self.spelled]
        for places in (*known, self.overrides):
            for path in [each for each in places if each[: len(origin)] == origin]:
                places[copy + path[len(origin) :]] = places[path]

    def written(self, path: Path, value: object) -> str:
        """Return a scalar as spelled in the file: ``1.10`` stays ``1.10``."""
        spelled = self.spelled.get(path)
        return as_text(value) if spelled is None else spelled


def spelled(path: Path) -> str:
    """Return a path in Python's notation: ``jobs[0].command``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


def shown(value: object, longest: int = 60) -> str:
    """Return a value as text for a message, with at most ``longest`` characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and value.bit_length() > 200:
        return "a very large number"
    text = repr(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def plain(value: object, depth: int = 0) -> Any:
    """Return a copy of the value as plain data that JSON could hold.

    Raises :class:`EnsembleError` for other content, such as a function or an open file.
    """
    if isinstance(value, (Action, Rule)):
        value = value.spec
    if depth > _DEEPEST:
        raise EnsembleError(
            f"a value is nested in more than {_DEEPEST} lists and mappings", code="too-deep"
        )
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise EnsembleError(
                "a string contains an unpaired surrogate", code="wrong-type"
            ) from None
        return value
    if isinstance(value, Mapping):
        copy = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                raise EnsembleError(
                    f"the key {shown(key)} of a mapping is not a string", code="wrong-type"
                )
            copy[plain(key)] = plain(inner, depth + 1)
        return copy
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        return [plain(inner, depth + 1) for inner in items]
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        return plain(item(), depth + 1)  # a numpy scalar
    raise EnsembleError(
        f"expected plain data, but a value has the type {type(value).__name__}",
        hint="use strings, numbers, booleans, lists and mappings",
        code="wrong-type",
    )
