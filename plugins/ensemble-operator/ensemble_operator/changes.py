"""Changes that a plan asks for, and what it sees: the vocabulary between ``plan`` and ``loop``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .names import Object
from .resource import Reference

__all__ = [
    "Change",
    "Create",
    "Delete",
    "Disown",
    "Figures",
    "Finalizer",
    "Forget",
    "Keys",
    "Note",
    "Observed",
    "Patch",
    "Plan",
    "Try",
]


@dataclass(frozen=True)
class Note:
    """An Event about an Ensemble."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True)
class Create:
    """Make an object, where there is none of its name."""

    body: Object
    note: Note | None = None


@dataclass(frozen=True)
class Try:
    """Have the API server check objects as if they were made, and make none of them. ``given`` is
    what the user wrote of the last."""

    bodies: tuple[Object, ...]
    given: Mapping[str, Any] = field(default_factory=dict)
    note: Note | None = None


@dataclass(frozen=True)
class Patch:
    """Make an object as ``body`` says; ``found`` is the one that was seen."""

    body: Object
    found: Object
    note: Note | None = None


@dataclass(frozen=True)
class Delete:
    """Delete this very object, and none that has taken its name since."""

    kind: str
    name: str
    uid: str
    note: Note | None = None


@dataclass(frozen=True)
class Keys:
    """Make the Secrets that are missing, or are to be renewed."""

    note: Note | None = None


@dataclass(frozen=True)
class Disown:
    """Take the owner away from an object, so that it stays."""

    found: Object
    note: Note | None = None


@dataclass(frozen=True)
class Finalizer:
    """Set or remove the finalizer of Ensembles whose children are to stay."""

    wanted: bool
    note: Note | None = None


@dataclass(frozen=True)
class Forget:
    """Delete the Ensemble: its time after the end is over."""

    note: Note | None = None


Change = Create | Try | Patch | Delete | Keys | Disown | Finalizer | Forget


@dataclass(frozen=True)
class Figures:
    """The service's figures of a member. ``beat`` is in seconds since the epoch, 0 for never;
    ``denied`` is why its last request for another size was denied."""

    beat: float = 0.0
    gauges: Mapping[str, float] = field(default_factory=dict)
    groups: Sequence[Mapping[str, Any]] = ()
    denied: str = ""


@dataclass(frozen=True)
class Observed:
    """Everything that a plan looks at beside the Ensemble.

    ``children`` by kind and name are what there is of these names, whoever's it is; ``secrets`` by
    name, ``None`` where there is none; ``files`` the texts of keys of ConfigMaps; ``errors`` what
    is wrong with a text, by its content. ``refused`` are what the API server would not take: by
    kind and name the hash of the body, and its words; ``tried`` what it would take, by the same;
    ``troubles`` are its words about what it does not take just now. ``named`` are the members
    that a text names, by its content, and ``options`` what is wrong with a member's. ``warnings``
    are the newest warnings of Kubernetes about pods and Jobs, by their names. ``written`` is when
    the status was last written, ``ended`` when each Job was first seen to have ended, by its uid.
    """

    children: Mapping[tuple[str, str], Object] = field(default_factory=dict)
    pods: Sequence[Object] = ()
    secrets: Mapping[str, Object | None] = field(default_factory=dict)
    files: Mapping[Reference, str | None] = field(default_factory=dict)
    errors: Mapping[str, Sequence[str]] = field(default_factory=dict)
    refused: Mapping[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    tried: Mapping[tuple[str, str], str] = field(default_factory=dict)
    troubles: Mapping[tuple[str, str], str] = field(default_factory=dict)
    named: Mapping[str, Sequence[str]] = field(default_factory=dict)
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    warnings: Mapping[str, str] = field(default_factory=dict)
    flux: bool = True
    figures: Mapping[str, Figures] = field(default_factory=dict)
    written: float = 0.0
    ended: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """The changes to make: the status is written first, then the changes are made in order.

    ``events`` are told once the status is written. ``again`` is when to look though nothing is
    known to have changed, in seconds since the epoch.
    """

    changes: tuple[Change, ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Note, ...] = ()
    again: float | None = None
