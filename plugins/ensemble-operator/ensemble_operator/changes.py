"""Data types for ``plan``: the observed state, and the changes that ``plan`` requests."""

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
    """A Kubernetes Event to post about an Ensemble."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True)
class Create:
    """Create an object, unless its name is taken."""

    body: Object
    note: Note | None = None


@dataclass(frozen=True)
class Try:
    """Let the API server validate objects with a dry run.

    Of the fields of the last object in ``bodies``, ``given`` has those that the user wrote.
    """

    bodies: tuple[Object, ...]
    given: Mapping[str, Any] = field(default_factory=dict)
    note: Note | None = None


@dataclass(frozen=True)
class Patch:
    """Change an object to ``body``; ``found`` is the object as observed."""

    body: Object
    found: Object
    note: Note | None = None


@dataclass(frozen=True)
class Delete:
    """Delete this object, but not a later one of the same name."""

    kind: str
    name: str
    uid: str
    note: Note | None = None


@dataclass(frozen=True)
class Keys:
    """Create or renew Secrets."""

    note: Note | None = None


@dataclass(frozen=True)
class Disown:
    """Remove the owner from an object, so that it stays."""

    found: Object
    note: Note | None = None


@dataclass(frozen=True)
class Finalizer:
    """Add or remove the finalizer of Ensembles whose children should stay."""

    wanted: bool
    note: Note | None = None


@dataclass(frozen=True)
class Forget:
    """Delete the Ensemble, because its time to live after its end has passed."""

    note: Note | None = None


Change = Create | Try | Patch | Delete | Keys | Disown | Finalizer | Forget


@dataclass(frozen=True)
class Figures:
    """A member's figures from the service.

    The field ``beat`` is the time of the last heartbeat, in seconds since the epoch, 0 for never.
    The field ``denied`` says why the member's last resize request was denied.
    """

    beat: float = 0.0
    gauges: Mapping[str, float] = field(default_factory=dict)
    groups: Sequence[Mapping[str, Any]] = ()
    denied: str = ""


@dataclass(frozen=True)
class Observed:
    """Everything that a plan considers, in addition to the Ensemble.

    - ``children``: existing objects by kind and name, including foreign ones
    - ``secrets``: Secrets by name; ``None`` if missing
    - ``files``: ensemble files in ConfigMaps, by their references
    - ``errors``: mistakes in an ensemble file, by its text
    - ``named``: members named in an ensemble file, by its text
    - ``refused``: by kind and name, the hash of the body that the API server rejected, and its
      message
    - ``tried``: by kind and name, the hash of the body that the API server accepted in a dry run
    - ``troubles``: by kind and name, the message of a rejection that may be temporary
    - ``options``: mistakes in members' options
    - ``warnings``: Kubernetes' newest warnings about pods and Jobs, by name
    - ``written``: time when the status was last written
    - ``ended``: time when each ended Job was first seen to have ended, by uid
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
    """The changes to make: the status is written first, then ``changes`` are made in order.

    The Events in ``events`` are posted once the status is written. The field ``again`` is the time
    of the next reconcile if nothing changes before, in seconds since the epoch.
    """

    changes: tuple[Change, ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Note, ...] = ()
    again: float | None = None
