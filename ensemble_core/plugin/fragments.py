"""Fragments: parts of an ensemble file that a plugin generates from one entry.

A source turns an entry under ``jobs:`` into job groups and rules; an algorithm turns the options of
an entry under ``use:`` into rules. ``config`` expands these entries before it checks anything; the
run's journal keeps the expansion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ensemble_core.errors import Location

__all__ = ["AlgorithmPlugin", "AlgorithmView", "Fragment", "SourcePlugin", "SourceView"]

_NOTHING: Mapping[Any, Any] = MappingProxyType({})

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """Job groups, rules and statistics in the format of an ensemble file, as plain data.

    The job groups replace the entry that they came from; the rules are added after the file's.
    ``heartbeat`` is the longest interval between heartbeats, in seconds, with which the rules work;
    the shortest one of a file applies. ``warnings`` are printed with the file's.

    ``places`` maps the path of a part (``("jobs", 0, "command")``) to its position in the file that
    was read. Errors in that part are reported there; errors in all other parts are reported at the
    entry, as a defect of the plugin.
    """

    jobs: Sequence[Mapping[str, Any]] = ()
    rules: Sequence[Mapping[str, Any]] = ()
    statistics: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NOTHING)
    heartbeat: float | None = None
    warnings: Sequence[str] = ()
    places: Mapping[tuple[str | int, ...], Location | None] = field(
        default_factory=lambda: _NOTHING
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """The parts of an ensemble that a source may read.

    ``read`` returns the text of a file, relative to the ensemble file; the run keeps the text. A
    missing file is reported as an error of the ensemble file. ``called`` returns the name to use
    for a file in messages and positions. ``capabilities`` are those of the executor, or ``None`` if
    it is not known yet.
    """

    read: Callable[[str], str]
    called: Callable[[str], str]
    capabilities: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlugin:
    """The record of a source, which expands entries under ``jobs:`` that have its name as a key.

    ``options`` is a JSON Schema of the entry. Its properties are the allowed keys, including the
    source's name (a string, unless the schema says otherwise). ``expand`` is called with the
    checked entry and a :class:`SourceView`, and returns a :class:`Fragment`. It is called once,
    when a run begins or its file is checked; resume and replay use the recorded result. It has no
    side effects: it writes no file and submits nothing. If a file that it read is wrong, it raises
    a :class:`UsageError` with the position, or :class:`FileErrors` with several.
    """

    name: str
    summary: str
    expand: Callable[[Mapping[str, Any], SourceView], Fragment]
    options: Schema = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmView:
    """The parts of an ensemble that an algorithm may read.

    ``instance`` is the name of the instance to build. ``groups`` has the file's job groups by name;
    ``statistics`` the names of all known statistics. ``capabilities`` are those of the executor, or
    ``None`` if it is not known yet.
    """

    instance: str
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NOTHING)
    statistics: frozenset[str] = frozenset()
    capabilities: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmPlugin:
    """The record of an algorithm: rules under a name, with options.

    ``objective`` states its goal in one line. ``options`` is a JSON Schema of ``with``; its
    properties may have the annotations of actions (``"x-ensemble": "group"``, ``metric``,
    ``action`` …) and are checked accordingly. ``build`` is called with the checked options and an
    :class:`AlgorithmView`, and returns a :class:`Fragment`. It is pure and deterministic: it uses
    no clock, no file, and randomness only with a ``seed`` option. It is called when a run begins or
    its file is checked; resume and replay use the recorded result.

    Each instance is a namespace for rule ids: the rule ``grow`` of the instance ``demand`` is
    ``demand-grow`` in the file. References between the rules (``rules: grow``,
    ``count.rule.grow``) and to the fragment's statistics are translated.

    ``needs`` are capabilities that the executor must have, ``supports`` the executors that it works
    with (empty: any). ``example`` is a complete ensemble file that uses it and ends on the executor
    ``local`` within seconds.
    """

    name: str
    summary: str
    build: Callable[[Mapping[str, Any], AlgorithmView], Fragment]
    objective: str = ""
    options: Schema = field(default_factory=lambda: _NOTHING)
    needs: frozenset[str] = frozenset()
    supports: frozenset[str] = frozenset()
    example: str = ""
