"""Membership of a run: members on record between controllers, and errors for absent ones.

For the executor ``remote``. Loads neither gRPC nor protobuf.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ensemble_core import ExecutorError, Run, closest
from ensemble_service.atomic_file import write_atomically

__all__ = [
    "Membership",
    "away",
    "listed",
    "meant",
    "no_such_member",
    "taken_over",
]

#: What is kept to find a run's members again.
_FILE = "remote.json"


class Membership:
    """The members of a run that are on record, with what its later controllers must know of them.

    Raises :class:`ExecutorError` where that cannot be read or written down.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        kept = _read(run)
        #: Whether an earlier controller had the run.
        self.resumed = kept is not None
        self._state: dict[str, Any] = {"groups": {}} if kept is None else kept
        #: Later controllers have larger ones, whatever became of the clock.
        self.epoch = max(time.time_ns(), int(self._state.get("epoch", 0)) + 1)
        self._state["epoch"] = self.epoch
        _write(run, self._state)

    @property
    def names(self) -> tuple[str, ...]:
        """The members that jobs may have been submitted to."""
        return tuple(self._state.get("members", ()))

    @property
    def default(self) -> str | None:
        """The member for jobs that name none, where one was chosen. Kept with what comes next."""
        found = self._state.get("default")
        return None if found is None else str(found)

    @default.setter
    def default(self, name: str) -> None:
        self._state["default"] = name

    def know(self, name: str) -> None:
        """Put a member on record. Where that cannot be written down, it stays unknown, so that the
        next tries again."""
        known = self._state.setdefault("members", [])
        if name in known:
            return
        known.append(name)
        try:
            _write(self.run, self._state)
        except BaseException:
            known.remove(name)
            raise

    def clock(self, name: str) -> tuple[int, int]:
        """Seconds that a member's clock is ahead: at least, and when it was last heard of."""
        least, offset = self._state.get("clocks", {}).get(name, (0, 0))
        return least, offset

    def set_clock(self, name: str, least: int, now: int) -> None:
        """Put that on record."""
        self._state.setdefault("clocks", {})[name] = (least, now)
        _write(self.run, self._state)

    def assign(self, name: str, jobs: Iterable[str]) -> None:
        """Put on record, before they are submitted, that jobs of these groups are this member's:
        nothing that another one says of them is believed after a resume."""
        groups = self._state.get("groups")
        if groups is None:
            return  # a run that began before this was kept: all its members are asked
        added = {group for group in map(_group, jobs) if name not in groups.get(group, ())}
        if not added:
            return
        for group in added:
            groups.setdefault(group, []).append(name)
        try:
            _write(self.run, self._state)
        except BaseException:
            for group in added:
                groups[group].remove(name)
            raise

    @property
    def groups(self) -> Mapping[str, Sequence[str]]:
        """The members that jobs of each group may have been submitted to; empty where that was not
        kept."""
        return self._state.get("groups") or {}

    def assigned(self, name: str, jobs: Mapping[str, float]) -> dict[str, float]:
        """The jobs among these that may have been submitted to this member."""
        groups = self._state.get("groups")
        if groups is None:
            return dict(jobs)
        return {job: when for job, when in jobs.items() if name in groups.get(_group(job), ())}


def _group(job: str) -> str:
    """The group of a job, by its id (``GROUP.INDEX``)."""
    return job.rpartition(".")[0]


def _read(run: Run) -> dict[str, Any] | None:
    """The membership that was kept; ``None`` where there is none. Raises :class:`ExecutorError`."""
    if run.state is None:
        return None
    try:
        state: dict[str, Any] = json.loads((run.state / _FILE).read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ExecutorError(
            f"what is known of the run's members cannot be read: {run.state / _FILE}",
            cause=str(error),
            code="no-state",
        ) from None
    return state


def _write(run: Run, state: Mapping[str, Any]) -> None:
    """Keep it, beyond a crash of the machine. Raises :class:`ExecutorError`."""
    if run.state is None:
        return
    path = run.state / _FILE
    try:
        write_atomically(path, json.dumps(state).encode("utf-8"))
    except OSError as error:
        raise ExecutorError(
            f"the run's members cannot be written down: {path}",
            cause=error.strerror or str(error),
            code="no-state",
        ) from None


def taken_over(run: Run | None) -> ExecutorError:
    """Another controller has the run."""
    return ExecutorError(
        "another controller steers this run",
        cause=f"the service knows a newer controller of {run.tag if run else 'it'}",
        hint="look for another 'ensemble run' or 'ensemble resume' of it",
        code="taken-over",
    )


def similar_name(name: str, there: Collection[str]) -> str | None:
    """The member that may be meant by a name that none has."""
    return closest(name, sorted(there), 0.75)


def no_such_member(
    absent: Sequence[str], present: Collection[str], target: str, namespace: str
) -> ExecutorError:
    """These members are not there, or none at all is."""
    there = sorted(present)
    cause = f"there are {listed(there)}" if there else "no member is there"
    hint = "'ensemble member start' starts one beside a queue"
    near = similar_name(absent[0], there) if absent else None
    if near:
        hint = f"did you mean {near!r}? {hint}"
    what = f"member {absent[0]} is" if len(absent) == 1 else f"members {listed(absent)} are"
    return ExecutorError(
        f"{what} not connected to the service at {target}"
        if absent
        else f"no member of {namespace} is connected to the service at {target}",
        cause=cause,
        hint=hint,
        code="no-member",
    )


def away(run: Run | None, names: Sequence[str], seconds: float) -> ExecutorError:
    """These members did not come back in so many seconds."""
    tag = run.tag if run is not None else "RUN"
    return ExecutorError(
        f"{'member' if len(names) == 1 else 'members'} {listed(names)} "
        f"{'is' if len(names) == 1 else 'are'} away",
        cause=f"waited {seconds:g} s",
        hint=f"nothing is lost: 'ensemble resume {tag}' goes on once they are back",
        code="member-away",
        transient=True,
    )


def listed(names: Sequence[str]) -> str:
    """Names as they are said: 'a, b and c'."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
