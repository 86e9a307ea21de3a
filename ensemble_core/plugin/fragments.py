"""Fragments: parts of an ensemble file that a plugin makes of an entry in it.

A source makes job groups and rules of what an entry under ``jobs:`` names, an algorithm makes rules
of the options that an entry under ``use:`` gives it. The config part expands such entries before
anything is checked; the run's journal keeps what they became.
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
    """Job groups, rules and statistics as an ensemble file has them, as plain data.

    Job groups take the place of the entry that they were made of; rules come after the file's own.
    ``heartbeat`` is the longest time between heartbeats that the rules work with, in seconds: the
    shortest that a file asks for holds. ``warnings`` are told with the file's.

    ``places`` says where parts come from, by their path (``("jobs", 0, "command")``): an error in
    one is then told there, in the file that was read. What has no place is the plugin's own doing,
    and an error in it is told as the plugin's fault, at the entry.
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

    ``read`` gives the text of a file, found beside the ensemble file; the run keeps it. Where there
    is no such file that is an error of the ensemble file. ``called`` is a file's name as messages
    have it, for places in it. ``capabilities`` are those of the executor, ``None`` where it is not
    known yet.
    """

    read: Callable[[str], str]
    called: Callable[[str], str]
    capabilities: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlugin:
    """The record of a source: an entry under ``jobs:`` that has its name as a key stands for what
    it makes of it.

    ``options`` is a JSON Schema of the entry: its properties are what may stand there, the key with
    the source's own name among them (if it is not named, it is a text). ``expand`` is given the
    checked entry and a :class:`SourceView`, and returns a :class:`Fragment`. It is called once,
    when a run begins or its file is checked; a resume and a replay go by what it returned then. It
    does nothing else: no file is written, nothing is submitted. What is wrong in a file that it
    read it raises, as a :class:`UsageError` with a place or as :class:`FileErrors` with all of
    them.
    """

    name: str
    summary: str
    expand: Callable[[Mapping[str, Any], SourceView], Fragment]
    options: Schema = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmView:
    """The parts of an ensemble that an algorithm may read.

    ``instance`` is the name of the instance that is built. ``groups`` are the job groups by name,
    as the file has them; ``statistics`` the names of those that there are. ``capabilities`` are the
    executor's, ``None`` where it is not known yet.
    """

    instance: str
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: _NOTHING)
    statistics: frozenset[str] = frozenset()
    capabilities: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmPlugin:
    """The record of an algorithm: rules under a name, with options.

    ``objective`` says in one line what it is after. ``options`` is a JSON Schema of what may stand
    under ``with``; its properties may be annotated as those of actions (``"x-ensemble": "group"``,
    ``metric``, ``action`` …) and are checked so. ``build`` is given the checked options and an
    :class:`AlgorithmView` and returns a :class:`Fragment`. It is pure and deterministic: no clock,
    no chance but by a ``seed`` among the options, no file. It is called when a run begins or its
    file is checked; a resume and a replay go by what it returned then.

    Ids of the rules are their own within an instance: the file knows ``grow`` of the instance
    ``demand`` as ``demand-grow``, and what the rules say of one another (``rules: grow``,
    ``count.rule.grow``) and of the fragment's statistics is led there.

    ``needs`` are capabilities that the executor must have, ``supports`` the executors that it works
    with (empty: any). ``example`` is a whole ensemble file that uses it and ends on the executor
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
