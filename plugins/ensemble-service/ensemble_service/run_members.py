"""Members of a run: the wait for them at the start, warnings of absences, and the run's record.

The record is in the run's state folder. A resumed run reads from it which members may have its
jobs.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ensemble_core import (
    EnsembleError,
    Event,
    ExecutorError,
    Problem,
    Resources,
    Run,
    UsageError,
    closest,
)
from ensemble_service.call_errors import MISMATCHED
from ensemble_service.state_folder import write_atomically

#: Seconds until the run is warned that a member is disconnected.
_MEMBER_AWAY = 3.0
#: Seconds without the service until the run is warned.
_SERVICE_AWAY = 5.0
#: Seconds to wait for the service at the start.
_WELCOME = 5.0
#: Seconds to wait for named members: slightly longer than they take to reconnect to a restarted
#: service.
_COMING = 8.0
_log = logging.getLogger("ensemble.remote")


class RollCall:
    """A roll call in progress. Callers must hold the lock of the condition ``news``."""

    def __init__(
        self,
        service: ServicePresence,
        membership: Membership,
        namespace: str,
        news: threading.Condition,  # notified when the service or a member comes or goes
    ) -> None:
        self._service = service
        self._membership = membership
        self._namespace = namespace
        self._news = news

    def take(self, wanted: Collection[str], default: str | None, need: bool) -> str | None:
        """Wait for the members ``wanted`` and for a default member; return the default member's
        name.

        A default member is required only if ``default`` names it or ``need`` is set. An absent
        member delays only its own jobs. Raises :class:`EnsembleError` if all wanted members are
        absent, or if the name of an absent member looks misspelled.
        """
        service, resumed = self._service, self._membership.resumed
        self._news.wait_for(lambda: service.answered, _WELCOME)
        if not service.welcome:
            raise service.unreachable(self._membership.run)
        need = need or not wanted
        if not resumed:
            self._wait(wanted, default, need)
        if default is None:
            default = self._choose_default(need)
        names = {*wanted} if default is None else {*wanted, default}
        absent = sorted(names - service.members)
        if absent and not resumed:
            if not service.welcome:  # the connection was lost while waiting for members
                raise service.unreachable(self._membership.run)
            there = service.members - names
            if not names & service.members or any(map(partial(_similar_name, there=there), absent)):
                raise _no_such_member(absent, service.members, service.target, self._namespace)
            _log.warning(
                "some members are not connected to the service at %s: %s; their jobs wait for "
                "them, other jobs start (connected: %s)",
                service.target,
                _join_names(absent),
                _join_names(sorted(service.members)),
            )
        return default

    def _present_members(self) -> list[str]:
        prefix = f"{self._namespace}/"
        return sorted(name for name in self._service.members if name.startswith(prefix))

    def _wait(self, wanted: Collection[str], default: str | None, need: bool) -> None:
        """Wait for the members. They reconnect within seconds after a restart of the service."""
        names = {*wanted} if default is None else {*wanted, default}

        def awaited() -> list[str]:
            absent = [f"member {name}" for name in sorted(names - self._service.members)]
            if default is None and need and not self._present_members():
                absent.append(f"a member of {self._namespace}")
            return absent

        absent = awaited()
        if absent:
            _log.warning(
                "waiting up to %g s for %s to connect to the service at %s",
                _COMING,
                _join_names(absent),
                self._service.target,
            )
            self._news.wait_for(lambda: not awaited(), _COMING)

    def _choose_default(self, need: bool) -> str | None:
        """Choose the member for jobs that name none, if no option has chosen it."""
        if self._membership.default is not None:
            return self._membership.default
        if not need:
            return None
        there = self._present_members()
        if len(there) == 1:
            self._membership.default = there[0]
            return there[0]
        if not there:
            if not self._service.welcome:
                raise self._service.unreachable(self._membership.run)
            raise _no_such_member([], self._service.members, self._service.target, self._namespace)
        raise ExecutorError(
            "no default member for job groups without 'executor': several members are connected",
            cause=f"connected in {self._namespace}: {_join_names(there)}",
            hint=f"choose a default: --option default={there[0].partition('/')[2]}",
            code="no-default",
        )


class ServicePresence:
    """Connection of a run to the service at ``target``."""

    def __init__(self, target: str) -> None:
        self.target = target
        #: Connected members; empty while the run is disconnected.
        self.members: set[str] = set()
        #: Whether the run is connected.
        self.welcome = False
        self._trouble: EnsembleError | None = None
        self._away_since: float | None = None
        self._told_away = False

    @property
    def there(self) -> bool:
        """Return True unless the connection to the service is lost."""
        return self._away_since is None

    @property
    def answered(self) -> bool:
        """Return True if the service is connected, or if waiting for it is useless."""
        trouble = self._trouble
        lasting = trouble is not None and (not trouble.transient or trouble.code in MISMATCHED)
        return self.welcome or lasting

    def connected(self) -> str | None:
        """Handle a connection. Return a message to report, if any."""
        self.welcome, self._trouble, self._away_since = True, None, None
        told, self._told_away = self._told_away, False
        return f"the service at {self.target} is back" if told else None

    def disconnected(self, error: EnsembleError, now: float) -> None:
        """Handle the loss of the connection at ``now`` (monotonic seconds)."""
        self.welcome, self._trouble = False, error
        if self._away_since is None:
            self._away_since = now
        self.members.clear()

    def lasting_absence(self, now: float) -> str | None:
        """Return a warning, once, if the service has been unavailable for long."""
        if self._away_since is None or now - self._away_since <= _SERVICE_AWAY or self._told_away:
            return None
        self._told_away = True
        cause = self._trouble.cause or self._trouble.what if self._trouble else ""
        return (
            f"the service at {self.target} is unavailable: jobs continue; the run continues when "
            f"the service is available again{f' ({cause})' if cause else ''}"
        )

    def unreachable(self, run: Run) -> EnsembleError:
        """Return the error that ends a run if the service cannot be reached at the start."""
        trouble = self._trouble
        if isinstance(trouble, UsageError):
            return trouble
        if trouble is None:
            return ExecutorError(
                f"the service at {self.target} cannot be reached",
                cause="it does not answer",
                hint="check that it is running; start one with 'ensemble-server start'",
                code="unavailable",
                transient=True,
            )
        if trouble.code == "failed-precondition":
            return takeover_error(run)
        return ExecutorError(
            trouble.what,
            cause=trouble.cause,
            hint=trouble.hint,
            code=trouble.code,
            transient=trouble.transient,
        )


class Absence:
    """Timer of one member's absences.

    A long absence causes a warning, and sets the gauge ``away.GROUP`` to 1 for each job group with
    jobs at the member.
    """

    def __init__(
        self, member: str, tell: Callable[[Sequence[Event]], None], clock: Callable[[], float]
    ) -> None:
        self._member = member
        self._tell = tell
        self._clock = clock
        self._since: float | None = None
        self._told = False
        #: The job groups whose gauge ``away.GROUP`` is 1.
        self._groups: set[str] = set()

    def begin(self, now: float) -> None:
        """Start the absence at ``now`` (monotonic seconds), unless it has started already."""
        if self._since is None:
            self._since = now

    def end(self) -> None:
        self._since = None
        if self._told:
            self._told = False
            self._warn(f"member {self._member} is connected again")
        groups, self._groups = self._groups, set()
        self._emit_gauges(groups, 0)

    def tick(self, now: float, jobs: Collection[str], opened: bool) -> None:
        """Warn once if the absence lasts and delays something.

        That is the case if the member has ``jobs``, or if it has ever been ``opened``.
        """
        if self._since is None or now - self._since <= _MEMBER_AWAY or self._told:
            return
        if jobs or opened or self._groups:
            self._told = True
            self._warn(
                f"member {self._member} is disconnected: its jobs continue; new requests to it "
                "wait until it is connected again"
            )
            self.holds_up(jobs)

    def holds_up(self, jobs: Iterable[str]) -> None:
        """If the absence was already reported, set ``away.GROUP`` of these jobs' groups."""
        if self._told:
            found = {job.rpartition(".")[0] for job in jobs} - self._groups
            self._groups |= found
            self._emit_gauges(found, 1)

    def of_group(self, group: str, present: bool) -> bool:
        """Return whether the gauge ``away.GROUP`` of this group is set."""
        if not present:
            self._groups.add(group)
        return group in self._groups

    def _emit_gauges(self, groups: Collection[str], away: int) -> None:
        if groups:
            values = {f"away.{group}": away for group in sorted(groups)}
            self._tell([Resources(self._clock(), values)])

    def _warn(self, message: str) -> None:
        self._tell([Problem(self._clock(), message)])


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


def absence_error(run: Run | None, names: Sequence[str], seconds: float) -> ExecutorError:
    """Return the error of a resumed run whose members did not connect within ``seconds``."""
    tag = run.tag if run is not None else "RUN"
    return ExecutorError(
        f"{'member' if len(names) == 1 else 'members'} {_join_names(names)} "
        f"{'is' if len(names) == 1 else 'are'} disconnected",
        cause=f"waited {seconds:g} s",
        hint=f"nothing is lost: continue with 'ensemble resume {tag}' once they are connected "
        "again",
        code="member-away",
        transient=True,
    )


def _no_such_member(
    absent: Sequence[str], present: Collection[str], target: str, namespace: str
) -> ExecutorError:
    """Return the error of a new run for members that are not connected."""
    there = sorted(present)
    cause = f"connected: {_join_names(there)}" if there else "no member is connected"
    hint = "start one beside a queue with 'ensemble member start'"
    near = _similar_name(absent[0], there) if absent else None
    if near:
        hint = f"did you mean {near!r}? {hint}"
    what = f"member {absent[0]} is" if len(absent) == 1 else f"members {_join_names(absent)} are"
    return ExecutorError(
        f"{what} not connected to the service at {target}"
        if absent
        else f"no member of {namespace} is connected to the service at {target}",
        cause=cause,
        hint=hint,
        code="no-member",
    )


def takeover_error(run: Run | None) -> ExecutorError:
    """Return the error for a run that another controller has taken over."""
    return ExecutorError(
        "another controller has taken over this run",
        cause=f"the service has a newer controller of {run.tag if run else 'it'}",
        hint="look for another 'ensemble run' or 'ensemble resume' of this run",
        code="taken-over",
    )


def _similar_name(name: str, there: Collection[str]) -> str | None:
    """Return the connected member with the most similar name, or None."""
    return closest(name, sorted(there), 0.75)


def _join_names(names: Sequence[str]) -> str:
    """Return names joined as in 'a, b and c'."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
