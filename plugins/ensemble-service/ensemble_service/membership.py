"""Record of a run's members in its state folder: which of them may have which jobs.

A resumed run reads the record to find the members that may have its jobs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ensemble_core import ExecutorError, Run
from ensemble_service.state_folder import write_atomically

#: Name of the record's file, and its version.
_FILE = "remote.json"


class Membership:
    """The record of a run's members. Each change is written to the file.

    Raises :class:`ExecutorError` if the file cannot be read or written.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        kept = _read(run)
        #: Whether the run had an earlier controller.
        self.resumed = kept is not None
        self._state: dict[str, Any] = {"groups": {}, **(kept or {})}
        #: Number of this controller. It increases with each controller, even if the clock was set
        #: back.
        self.epoch = max(time.time_ns(), int(self._state.get("epoch", 0)) + 1)
        self._state["epoch"] = self.epoch
        _write(run, self._state)

    @property
    def names(self) -> tuple[str, ...]:
        """The members to which jobs may have been submitted."""
        return tuple(self._state.get("members", ()))

    @property
    def default(self) -> str | None:
        """The chosen member for jobs that name none, or ``None``. Saved with the next change."""
        found = self._state.get("default")
        return None if found is None else str(found)

    @default.setter
    def default(self, name: str) -> None:
        self._state["default"] = name

    def know(self, name: str) -> None:
        """Record a member. If that fails, the member stays unknown, so that the next call tries
        again.
        """
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
        """Return by how many seconds a member's clock is ahead: the smallest value so far, and the
        last.
        """
        least, offset = self._state.get("clocks", {}).get(name, (0, 0))
        return least, offset

    def set_clock(self, name: str, least: int, now: int) -> None:
        """Record the two offsets that :meth:`clock` returns."""
        self._state.setdefault("clocks", {})[name] = (least, now)
        _write(self.run, self._state)

    def assign(self, name: str, jobs: Iterable[str]) -> None:
        """Record, before submitting, that jobs of these groups belong to this member.

        After a resume, reports of other members about these jobs are ignored.
        """
        groups = self._state["groups"]
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
        """The members to which jobs of each group may have been submitted."""
        groups: Mapping[str, Sequence[str]] = self._state["groups"]
        return groups

    def assigned(self, name: str, jobs: Mapping[str, float]) -> dict[str, float]:
        """Return those of the jobs that may have been submitted to this member."""
        groups = self._state["groups"]
        return {job: when for job, when in jobs.items() if name in groups.get(_group(job), ())}


def _group(job: str) -> str:
    """Return the group in a job's id (``GROUP.INDEX``)."""
    return job.rpartition(".")[0]


def _read(run: Run) -> dict[str, Any] | None:
    """Read the record; ``None`` if it does not exist. Raise :class:`ExecutorError`."""
    if run.state is None:
        return None
    try:
        state: dict[str, Any] = json.loads((run.state / _FILE).read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ExecutorError(
            f"cannot read the record of the run's members: {run.state / _FILE}",
            cause=str(error),
            code="no-state",
        ) from None
    return state


def _write(run: Run, state: Mapping[str, Any]) -> None:
    """Write the record durably. Raise :class:`ExecutorError`."""
    if run.state is None:
        return
    path = run.state / _FILE
    try:
        write_atomically(path, json.dumps(state).encode("utf-8"))
    except OSError as error:
        raise ExecutorError(
            f"cannot write the record of the run's members: {path}",
            cause=error.strerror or str(error),
            code="no-state",
        ) from None
