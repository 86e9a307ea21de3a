"""Data types of the reconcile function: what it observes, and the changes that it requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ensemble_operator.object_names import RUN, Object
from ensemble_operator.resource import Reference


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
class DryRun:
    """Let the API server validate objects with a dry run."""

    bodies: tuple[Object, ...]
    given: Mapping[str, Any] = field(default_factory=dict)  #: what the user wrote of the last one
    note: Note | None = None


@dataclass(frozen=True)
class Patch:
    """Change an object to ``body``."""

    body: Object
    found: Object  #: the object as observed
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
    """Add or remove the finalizer of an Ensemble whose objects should outlive it."""

    wanted: bool
    note: Note | None = None


@dataclass(frozen=True)
class Forget:
    """Delete the Ensemble, because its time to live after its end has passed."""

    note: Note | None = None


Change = Create | DryRun | Patch | Delete | Keys | Disown | Finalizer | Forget


@dataclass(frozen=True)
class Figures:
    """A member's nodes, cores and jobs, as its service reports them."""

    beat: float = 0.0  #: last heartbeat, in seconds since the epoch; 0: never
    gauges: Mapping[str, float] = field(default_factory=dict)
    groups: Sequence[Mapping[str, Any]] = ()
    denied: str = ""  #: why the last resize request was denied
    alive: bool = True  #: whether the service still hears the member


@dataclass(frozen=True)
class Observed:
    """The observed state, apart from the Ensemble itself."""

    #: Existing objects by kind and name, including foreign ones.
    children: Mapping[tuple[str, str], Object] = field(default_factory=dict)
    pods: Sequence[Object] = ()
    #: Secrets by name; ``None`` if missing.
    secrets: Mapping[str, Object | None] = field(default_factory=dict)
    #: Ensemble files in ConfigMaps.
    files: Mapping[Reference, str | None] = field(default_factory=dict)
    #: Mistakes in an ensemble file, by its text.
    errors: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Hash of the body that the API server rejected and its message, by kind and name.
    refused: Mapping[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    #: Hash of the body that the API server accepted in a dry run, by kind and name.
    tried: Mapping[tuple[str, str], str] = field(default_factory=dict)
    #: Message of a rejection that may be temporary, by kind and name.
    troubles: Mapping[tuple[str, str], str] = field(default_factory=dict)
    #: Members named in an ensemble file, by its text.
    named: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Mistakes in the options of members.
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Kubernetes' newest warnings about pods and Jobs, by name.
    warnings: Mapping[str, str] = field(default_factory=dict)
    flux: bool = True
    figures: Mapping[str, Figures] = field(default_factory=dict)
    written: float = 0.0  #: when the status was last written
    ended: Mapping[str, float] = field(default_factory=dict)  #: when each Job's end was seen


@dataclass(frozen=True)
class Plan:
    """The changes to make, in order. The status is written before them."""

    changes: tuple[Change, ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Note, ...] = ()  #: posted after the status is written
    again: float | None = None  #: time of the next reconcile, unless something changes before


@dataclass(frozen=True)
class Part:
    """A member, or the run that all members share."""

    name: str
    objects: tuple[Object, ...]  #: the last one creates the pods
    container: str  #: name of the container in which the run or the member works
    runs: bool = True  #: whether a run is in this part
    given: Mapping[str, Any] = field(default_factory=dict)  #: what the user wrote of ``main``

    @property
    def main(self) -> Object:
        return self.objects[-1]

    @property
    def tag(self) -> str:
        return str(self.main["metadata"]["annotations"][RUN])


@dataclass
class PartPlan:
    """Changes for a member or a shared run, and its new status."""

    entry: dict[str, Any]  #: entry in the status
    changes: list[Change] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    over: bool = False  #: whether the part has ended; it is then never created again
    ready: bool = False
    #: Why the part is not ready, as a condition's reason and message.
    waits: tuple[str, str] = ("WaitingForPods", "")
    #: How the running object differs from the wanted one.
    outdated: str = ""
    conflict: str = ""
    #: When to reconcile again, in seconds since the epoch.
    again: float | None = None
    #: Whether any object of the part exists in the cluster.
    there: bool = False

    @property
    def succeeded(self) -> bool:
        """True if the part has ended without a failure."""
        return self.over and self.entry.get("result", "Succeeded") == "Succeeded"

    @property
    def active(self) -> bool:
        """True if the part is running, perhaps while some of its nodes are not up yet."""
        return self.ready or (not self.over and self.waits[0] == "WaitingForNodes")


def kept_status(before: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a status entry keeps while its part still runs."""
    kept = ("run", "file", "startedAt", "restarts")
    return {key: before[key] for key in kept if key in before}


def deletion(found: Object, note: Note) -> Delete:
    """Return the change that deletes an object of the cluster."""
    metadata = found["metadata"]
    return Delete(found["kind"], metadata["name"], metadata["uid"], note)
