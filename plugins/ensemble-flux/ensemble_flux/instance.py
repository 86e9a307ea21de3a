"""The Flux instance of a run: which one it is, and whether it ends with its allocation."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Instance", "LastInstance", "read_instance"]

#: Variables that a batch queue sets for its jobs. The broker of an instance in an allocation has
#: one of them; it removes Slurm's from the environment of its initial program.
_ALLOCATIONS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "SGE_TASK_ID")


@dataclass(frozen=True, slots=True)
class Instance:
    """A Flux instance."""

    id: str = ""  #: differs between instances; empty if Flux does not tell
    #: The instance ends with the run's allocation or with the program that ``flux start`` started,
    #: and all its jobs end then.
    temporary: bool = False


def read_instance(handle: Any) -> Instance:
    """Return the instance of a handle."""
    told = {name: _of_leader(handle, name) for name in _ATTRIBUTES}
    return Instance(
        told["broker.uuid"] or told["broker.starttime"],
        _level(handle) > 0 or _ends_with_us(told["broker.pid"], told["hostname"]),
    )


_ATTRIBUTES = ("broker.uuid", "broker.starttime", "broker.pid", "hostname")


def _of_leader(handle: Any, attribute: str) -> str:
    """Return an attribute of the broker with rank 0; empty if it has none."""
    try:
        return str(handle.rpc("attr.get", {"name": attribute}, nodeid=0).get()["value"])
    except (OSError, LookupError, TypeError, AttributeError):
        return ""


def _level(handle: Any) -> int:
    try:
        return int(handle.attr_get("instance-level"))
    except (OSError, ValueError):
        return 0


def _ends_with_us(pid: str, host: str) -> bool:
    """Return True if the leading broker ``pid`` is in an allocation, or if this process belongs to
    its initial program.

    A job of the instance does not belong to it: the broker outlives the job.
    """
    variables: Mapping[str, str] | None = None
    if pid.isdigit() and host in ("", socket.gethostname()):
        if int(pid) in _ancestors() and "FLUX_JOB_ID" not in os.environ:
            return True
        variables = _environment(int(pid))
    known = os.environ if variables is None else variables
    return any(name in known for name in _ALLOCATIONS)


def _ancestors() -> Iterator[int]:
    """Yield the process ids of this process's ancestors. Without ``/proc``, yield the parent."""
    pid = os.getppid()
    while pid > 1:
        yield pid
        try:
            # The name in parentheses may contain spaces.
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return


def _environment(pid: int) -> Mapping[str, str] | None:
    """Return the environment of a process, or ``None`` if this user cannot read it."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    pairs = (entry.decode(errors="replace").partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}


class LastInstance:
    """Record of the instance that has a run's jobs, in the run's folder ``state``.

    Without a folder, nothing is recorded.
    """

    def __init__(self, state: Path | None) -> None:
        self._file = None if state is None else state / "flux-instance.json"
        self.last = Instance()
        if self._file is not None:
            with suppress(OSError, ValueError, TypeError):
                self.last = Instance(**json.loads(self._file.read_text(encoding="utf-8")))

    def has_ended_for(self, now: Instance) -> bool:
        """Return True if the recorded instance was a temporary one other than ``now``."""
        return self.last.temporary and "" != now.id != self.last.id != ""

    def record(self, instance: Instance) -> None:
        """Record that this instance has the run's jobs from now on."""
        if instance == self.last or self._file is None:
            return
        self.last = instance
        new = self._file.with_suffix(".new")
        with suppress(OSError):  # a resume then counts missing jobs as lost
            self._file.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps(asdict(instance)), encoding="utf-8")
            new.replace(self._file)
