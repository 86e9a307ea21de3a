"""Validates ensemble files in the operator, as ``ensemble validate`` does.

The check runs no code from an ensemble file, and reads no other files.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ensemble_core import EnsembleError, FileErrors
from ensemble_core.cli.toolkit import load_plugins, load_text, read_options

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Largest ensemble file in bytes: the limit of a ConfigMap, minus the rest of its content.
_LARGEST = (1 << 20) - 8192
#: Number of remembered checks.
_MOST = 1000


@dataclass(frozen=True)
class FileCheck:
    """Result of checking an ensemble file."""

    errors: tuple[str, ...] = ()  #: one line per mistake, with its place in the file
    members: tuple[str, ...] = ()  #: members that job groups name; empty if the file is invalid


def digest(text: str) -> str:
    """Return a hash that identifies a file's content."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@cache
def _registry() -> Any:
    return load_plugins(())


def errors_of(text: str, executor: str, name: str = "ensemble.yaml") -> list[EnsembleError]:
    """Return the mistakes in an ensemble file, for the executor that will run it.

    In messages, ``name`` is the file's name.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > _LARGEST:
        return [
            EnsembleError(
                f"{name} is too large: {size} bytes",
                cause=f"a ConfigMap holds at most {_LARGEST}",
                hint="move tables of points from this file into files in the container image",
                code="file-too-large",
            )
        ]
    registry = _registry()
    record = registry.lookup("executor", executor)
    try:
        # The pods of a run get only the ensemble file, so no other file is read.
        load_text(text, registry, file=name, executor=record, attached={}, must_begin=True)
    except FileErrors as error:
        return list(error.errors)
    except EnsembleError as error:
        return [error]
    return []


def check(text: str, executor: str) -> FileCheck:
    """Check an ensemble file."""
    errors = errors_of(text, executor)
    return FileCheck(tuple(map(_line, errors)), () if errors else _members(text))


def _members(text: str) -> tuple[str, ...]:
    """Return the members that groups of a valid file name."""
    record = _registry().lookup("executor", "remote")
    found = load_text(text, _registry(), file="ensemble.yaml", executor=record, attached={})
    named = [group.executor for group in found.groups.values() if group.executor]
    return tuple(dict.fromkeys(each for each in named if each != "remote"))


def option_errors(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the mistakes in a member's options, by the schema of the executor ``minicluster``."""
    record = _registry().lookup("executor", "minicluster")
    try:
        read_options(record, [f"{key}={value}" for key, value in options.items()], {})
    except EnsembleError as error:
        return (_line(error),)
    return ()


def _line(error: EnsembleError) -> str:
    where = f"{error.where}: " if error.where else ""
    because = f" ({error.cause})" if error.cause else ""
    return f"{where}{error.what}{because}" + (f"; {error.hint}" if error.hint else "")


class FileChecks:
    """Cached checks of ensemble files."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], FileCheck] = OrderedDict()

    def get(self, text: str, executor: str) -> FileCheck:
        """Return the check of a file, from the cache if possible."""
        key = (digest(text), executor)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = check(text, executor)
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return found
