"""Fragments: parts of an ensemble file that plugins generate.

Two kinds of plugins generate fragments. A source generates job groups and rules from an entry under
``jobs:``. An algorithm generates rules from an entry under ``use:``. The run's journal stores the
fragments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import Any

from ensemble_core.errors import Location
from ensemble_core.quick_dataclass import dataclass

_NOTHING: Mapping[Any, Any] = MappingProxyType({})

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """Job groups, rules and statistics that a plugin has generated, as plain data.

    - ``jobs`` replace the entry from which they were generated. ``rules`` are added after those of
      the file.
    - ``heartbeat`` is the longest heartbeat interval, in seconds, with which the rules work. If
      several fragments have one, or the file sets one, the shortest applies.
    - ``warnings`` are printed with the warnings about the file.
    - ``places`` maps the path of a part (``("jobs", 0, "command")``) to its position in the file
      that the plugin has read. An error in a part with a position is reported there. Any other
      error is reported at the entry, as a defect of the plugin.
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
    """The parts of an ensemble that a source can read.

    - ``read`` returns the text of a file, given its path relative to the ensemble file. The run
      stores the text. If the file cannot be read, an error is reported at the entry: do not catch
      the exception.
    - ``called`` returns the name of a file for messages and positions.
    - ``capabilities`` are those of the executor, or ``None`` if the executor is not known yet.
    """

    read: Callable[[str], str]
    called: Callable[[str], str]
    capabilities: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlugin:
    """The record of a source, which expands entries under ``jobs:`` that have its name as a key.

    - ``options`` is a JSON Schema of the entry. Its properties are the allowed keys, including the
      source's name (a string, unless the schema says otherwise).
    - ``expand`` is called with the checked entry and a :class:`SourceView`, and returns a
      :class:`Fragment`. It is called when a run begins, and when a command such as ``ensemble
      validate`` checks the file, so it must not have side effects. Resume and replay use the stored
      result. If a file that it reads is invalid, it raises a :class:`UsageError` with the position,
      or a :class:`FileErrors` with several of them.
    """

    name: str
    summary: str
    expand: Callable[[Mapping[str, Any], SourceView], Fragment]
    options: Schema = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmView:
    """The parts of an ensemble that an algorithm can read.

    - ``instance`` is the name of the instance to build.
    - ``groups`` has the job groups of the file by name.
    - ``statistics`` has the names of all available statistics.
    - ``capabilities`` are those of the executor, or ``None`` if the executor is not known yet.
    """

    instance: str
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NOTHING)
    statistics: frozenset[str] = frozenset()
    capabilities: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmPlugin:
    """The record of an algorithm: a named set of rules with options.

    - ``objective`` states the goal of the algorithm in one line.
    - ``options`` is a JSON Schema of the key ``with``. Its properties may have the same annotations
      as those of actions (``"x-ensemble": "group"``, ``metric``, ``action`` …).
    - ``build`` is called with the checked options and an :class:`AlgorithmView`, and returns a
      :class:`Fragment`. It is called when a run begins, and when a command such as ``ensemble
      validate`` checks the file. Resume and replay use the stored result. It must be pure and
      deterministic: it uses no clock and no files, and randomness only with an option ``seed``.
    - ``needs`` lists capabilities that the executor must have.
    - ``supports`` lists the executors with which the algorithm works (empty: any).
    - ``example`` is a complete ensemble file that uses the algorithm and ends within seconds on the
      executor ``local``.

    Rule ids get the instance's name as a prefix: the rule ``grow`` of the instance ``demand`` has
    the id ``demand-grow``. References to the fragment's rules and statistics are translated.
    """

    name: str
    summary: str
    build: Callable[[Mapping[str, Any], AlgorithmView], Fragment]
    objective: str = ""
    options: Schema = field(default_factory=lambda: _NOTHING)
    needs: frozenset[str] = frozenset()
    supports: frozenset[str] = frozenset()
    example: str = ""
