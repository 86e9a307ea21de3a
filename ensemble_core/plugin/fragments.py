"""Fragments: parts of an ensemble file that a plugin generates from one entry.

A source turns an entry under ``jobs:`` into job groups and rules. An algorithm turns the options of
an entry under ``use:`` into rules. The package ``config`` expands these entries before it checks
anything, and the run's journal keeps the expansion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ensemble_core.errors import Location
from ensemble_core.model.value import Value

__all__ = ["AlgorithmPlugin", "AlgorithmView", "Fragment", "SourcePlugin", "SourceView"]

_NOTHING: Mapping[Any, Any] = MappingProxyType({})

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Fragment(Value):
    """Job groups, rules and statistics in the format of an ensemble file, as plain data.

    The job groups replace the entry that they came from. The rules are added after those of the
    file. ``heartbeat`` is the longest interval between heartbeats, in seconds, with which the rules
    work; the shortest of all these intervals applies. ``warnings`` are printed together with the
    warnings about the file.

    ``places`` maps the path of a part (``("jobs", 0, "command")``) to its position in the file that
    the plugin read. Errors in that part are reported at this position. Errors in all other parts
    are reported at the entry, as a defect of the plugin.
    """

    jobs: Sequence[Mapping[str, Any]] = ()
    rules: Sequence[Mapping[str, Any]] = ()
    statistics: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NOTHING)
    heartbeat: float | None = None
    warnings: Sequence[str] = ()
    places: Mapping[tuple[str | int, ...], Location | None] = field(
        default_factory=lambda: _NOTHING
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SourceView(Value):
    """The parts of an ensemble that a source may read.

    ``read`` returns the text of a file whose path is relative to the ensemble file; the run keeps
    the text. A missing file is reported as an error in the ensemble file. ``called`` returns the
    name to use for a file in messages and positions. ``capabilities`` has the executor's
    capabilities, or is ``None`` if the executor is not known yet.
    """

    read: Callable[[str], str]
    called: Callable[[str], str]
    capabilities: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SourcePlugin(Value):
    """The record of a source, which expands entries under ``jobs:`` that have its name as a key.

    ``options`` is a JSON Schema of the entry. The properties of this schema are the allowed keys,
    including the source's name (a string, unless the schema says otherwise). ``expand`` is called
    with the checked entry and a :class:`SourceView`, and returns a :class:`Fragment`. It is called
    once, when a run begins or its file is checked; resume and replay use the recorded result.
    ``expand`` has no side effects: it writes no file and submits nothing. If a file that it reads
    is invalid, it raises a :class:`UsageError` with the position, or :class:`FileErrors` with
    several.
    """

    name: str
    summary: str
    expand: Callable[[Mapping[str, Any], SourceView], Fragment]
    options: Schema = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AlgorithmView(Value):
    """The parts of an ensemble that an algorithm may read.

    ``instance`` is the name of the instance to build. ``groups`` has the file's job groups by name.
    ``statistics`` has the names of all available statistics. ``capabilities`` has the executor's
    capabilities, or is ``None`` if the executor is not known yet.
    """

    instance: str
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NOTHING)
    statistics: frozenset[str] = frozenset()
    capabilities: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AlgorithmPlugin(Value):
    """The record of an algorithm: rules under a name, with options.

    ``objective`` states the algorithm's goal in one line. ``options`` is a JSON Schema of ``with``.
    Its properties may have the same annotations as those of actions (``"x-ensemble": "group"``,
    ``metric``, ``action`` …) and are checked accordingly. ``build`` is called with the checked
    options and an :class:`AlgorithmView`, and returns a :class:`Fragment`. ``build`` is pure and
    deterministic: it uses no clock and no file, and it uses randomness only with a ``seed`` option.
    It is called when a run begins or its file is checked; resume and replay use the recorded
    result.

    Each instance is a namespace for rule ids: the rule ``grow`` of the instance ``demand`` is
    ``demand-grow`` in the file. References between the rules (``rules: grow``,
    ``count.rule.grow``) and to the fragment's statistics are translated.

    ``needs`` lists capabilities that the executor must have. ``supports`` lists the executors with
    which the algorithm works (empty: any). ``example`` is a complete ensemble file that uses the
    algorithm and ends within seconds on the executor ``local``.
    """

    name: str
    summary: str
    build: Callable[[Mapping[str, Any], AlgorithmView], Fragment]
    objective: str = ""
    options: Schema = field(default_factory=lambda: _NOTHING)
    needs: frozenset[str] = frozenset()
    supports: frozenset[str] = frozenset()
    example: str = ""
