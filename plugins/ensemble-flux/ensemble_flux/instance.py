"""The Flux instance of a run: which one it is, and whether it ends with its allocation."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

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
    #: Of the leading broker: its host, process id and address on that host, and a variable of its
    #: allocation with its value. Empty or 0 if unknown.
    host: str = ""
    pid: int = 0
    uri: str = ""
    allocation: str = ""


def read_instance(handle: Any) -> Instance:
    """Return the instance of a handle."""
    told = {name: _of_leader(handle, name) for name in _ATTRIBUTES}
    pid = int(told["broker.pid"]) if told["broker.pid"].isdigit() else 0
    host = told["hostname"]
    here = pid > 0 and host in ("", socket.gethostname())
    variables = (_environment(pid) if here else None) or os.environ
    allocation = next((f"{n}={variables[n]}" for n in _ALLOCATIONS if n in variables), "")
    # A job of the instance does not belong to its initial program: the broker outlives the job.
    ours = here and pid in _ancestors() and "FLUX_JOB_ID" not in os.environ
    return Instance(
        told["broker.uuid"] or told["broker.starttime"],
        _level(handle) > 0 or ours or bool(allocation),
        host,
        pid,
        told["local-uri"],
        allocation,
    )


def ends_with(handle: Any, instance: Instance) -> bool:
    """Return whether an instance, which is temporary, ends together with this process.

    This process may also be outside, for example on a login node.
    """
    name, _, value = instance.allocation.partition("=")
    if name and os.environ.get(name) == value:
        return True
    try:
        pid = int(handle.attr_get("broker.pid"))
    except (OSError, ValueError):
        return False
    return pid in _ancestors()


def survives_power_cut(handle: Any, hosts: Collection[str]) -> bool:
    """Return whether jobs of an instance, or its records, can survive a power cut of this machine.

    They cannot if all brokers are on this machine and keep their state in a folder that Flux made
    for this instance alone.
    """
    here = set(hosts) == {socket.gethostname()}
    return not here or _of_leader(handle, "statedir-cleanup") != "1"


_ATTRIBUTES = ("broker.uuid", "broker.starttime", "broker.pid", "hostname", "local-uri")


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


def _ancestors() -> Iterator[int]:
    """Yield the process ids of this process's ancestors. Without ``/proc``, yield the parent."""
    pid = os.getppid()
    while pid > 0:
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


Presence = Literal["ended", "running", "unknown"]
#: Commands that show an allocation's state.
_QUERIES = {
    "SLURM_JOB_ID": ("squeue", "--noheader", "--states=all", "--format=%T", "--jobs"),
    "PBS_JOBID": ("qstat",),
}
#: What such a command prints if the allocation is over: its state, or that the queue does not know
#: it. Other errors may contain words such as "failed", too.
_OVER = re.compile(r"completed|failed|cancelled|timeout|node_fail|out_of_mem", re.I)
_NOT_KNOWN = re.compile(r"invalid job id|unknown job|has finished", re.I)


def presence(last: Instance, connect: Callable[[str], Any]) -> Presence:
    """Return whether an instance of an earlier controller still runs.

    The argument ``connect`` returns a handle of the instance at an address.
    """
    if last.host and last.pid:
        found: Presence
        if last.host == socket.gethostname():
            found = _presence_here(last, connect)
        else:
            found = _presence_there(last.host, last.pid)
        if found != "unknown":
            return found
    name, _, id_ = last.allocation.partition("=")
    if name in _QUERIES:
        code, said = _command(*_QUERIES[name], id_)
        pattern = _OVER if code == 0 else _NOT_KNOWN
        if pattern.search(said) or (code == 0 and not said.strip()):
            return "ended"
    return "unknown"


def _presence_here(last: Instance, connect: Callable[[str], Any]) -> Presence:
    try:
        name = Path(f"/proc/{last.pid}/comm").read_text()
    except OSError:
        return "unknown" if Path(f"/proc/{last.pid}").exists() else "ended"
    if "flux-broker" not in name:
        return "ended"  # the process id belongs to another program by now
    try:
        # Containers with equal host names may also have equal process ids.
        same = read_instance(connect(last.uri)).id in (last.id, "")
    except OSError:
        return "unknown"
    return "running" if same else "ended"


def _presence_there(host: str, pid: int) -> Presence:
    words = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=5", host)
    code, said = _command("ssh", *words, f"cat /proc/{pid}/comm || echo none")
    if code != 0 or not said.strip():
        return "unknown"
    return "running" if "flux-broker" in said else "ended"


def _command(*words: str) -> tuple[int, str]:
    """Run a command; return its exit code and output. Without the command, the code is -1."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=30, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return -1, ""
    return done.returncode, done.stdout + (done.stderr if done.returncode else "")


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

    def is_left_for(self, now: Instance) -> bool:
        """Return True if the recorded instance was a temporary one other than ``now``.

        It may still run: see :func:`presence`.
        """
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
