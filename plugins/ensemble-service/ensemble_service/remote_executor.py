"""The executor ``remote``: runs jobs on members (remote queues) of the ensemble service.

One lock guards the state of all members.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ensemble_core import (
    Cause,
    Emit,
    EnsembleError,
    Event,
    Executor,
    ExecutorError,
    ExecutorLost,
    Job,
    JobEvent,
    Problem,
    Resources,
    Run,
    UsageError,
)
from ensemble_service.access import member_name, namespace_name, run_name
from ensemble_service.call_errors import diagnose
from ensemble_service.channel import address, load_grpc, open_channel, read_token
from ensemble_service.run_members import (
    Membership,
    RollCall,
    ServicePresence,
    absence_error,
    takeover_error,
)

if TYPE_CHECKING:
    from ensemble_core import WhenBusy
    from ensemble_service.connection import Connection
    from ensemble_service.member_proxy import MemberProxy, RunContext
    from ensemble_service.proto import ensemble_pb2 as pb

#: Seconds between checks for timeouts.
_TICK = 0.1
#: Time limits in seconds: for a member's executor to open, and for members to close the run.
_OPENING, _LEAVING = 120.0, 30.0

_log = logging.getLogger("ensemble.remote")


class RemoteExecutor(Executor):
    """Executor that runs jobs on members of the ensemble service."""

    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"submit", "cancel", "resize", "reattach", "detach"}
    )
    causes: ClassVar[frozenset[Cause]] = frozenset(
        {"exit", "signal", "timeout", "cancelled", "submit"}  # plus those of the members
    )

    def __init__(
        self,
        *,
        host: str = "localhost",
        port: int = 50051,
        name: str = "default",  # namespace of the members
        default: str | None = None,  # member for jobs that name none
        members: Sequence[str] = (),  # to wait for at the start; "" is the default member
        token_file: str | None = None,
        ca: str | None = None,
        insecure: bool = False,
        patience: float = 300.0,  # seconds to wait for absent members when a run is resumed
        shared: Sequence[str] = (),
        channel: Callable[[], Any] | None = None,  # replaces open_channel in tests
    ) -> None:
        load_grpc()
        self._namespace = namespace_name(name)
        self._service = ServicePresence(address(host, port))
        self._patience = patience
        self._shared = tuple(map(_shared_folder, shared))
        self._default = None if default is None else self._full(default)
        self._wanted = {self._full(member) for member in members if self._is_member(member)}
        self._need_default = any(not self._is_member(member) for member in members)
        self._channel = channel or (
            lambda: open_channel(
                host,
                port,
                token=read_token(token_file) if token_file else None,
                ca=ca,
                insecure=insecure,
            )
        )
        self._why_away = (
            None if channel else partial(diagnose, host, port, ca=ca, insecure=insecure)
        )
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._members: dict[str, MemberProxy] = {}
        self._run: Run | None = None
        self._emit: Emit | None = None
        self._membership: Membership
        self._started = False
        self._numbers = itertools.count(1)
        self._over = threading.Event()
        self._context: RunContext
        self._connection: Connection[pb.FromRun, pb.ToRun]
        self._clockwork: threading.Thread

    def _is_member(self, name: str | None) -> bool:
        """Return whether a group's ``executor`` names a member, not this executor."""
        return bool(name) and name != "remote"

    def _full(self, name: str) -> str:
        return member_name(name if "/" in name else f"{self._namespace}/{name}")

    # -- opening -------------------------------------------------------------------------------

    def open(self, run: Run, emit: Emit) -> None:
        from ensemble_service.connection import Connection
        from ensemble_service.member_proxy import RunContext
        from ensemble_service.proto import ensemble_pb2 as pb

        self._membership = Membership(run)
        epoch = self._membership.epoch
        self._run, self._emit = run, emit
        name = run_name(run)
        self._connection = Connection(
            self._channel,
            "Steer",
            self._service.target,
            first=lambda: pb.FromRun(begin=pb.Begin(run=name, epoch=epoch)),
            heard=self._on_message,
            down=self._down,
            away=self._why_away,
        )
        self._context = RunContext(
            run=name,
            epoch=epoch,
            number=lambda: next(self._numbers),
            send=self._connection.send,
            tell=self._emit_events,
            clock=run.clock,
            gauges=self._emit_gauges,
            stale=self._on_disowned,
            elsewhere=self._is_at_other_member,
            ahead=self._ahead,
            shared=self._shared,
        )
        self._clockwork = threading.Thread(target=self._tick, name="ensemble-remote", daemon=True)
        self._connection.start()
        self._clockwork.start()
        try:
            with self._lock:
                self._open()
                self._started = True
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Wait for the service and the named members."""
        roll_call = RollCall(self._service, self._membership, self._namespace, self._news)
        self._default = roll_call.take(self._wanted, self._default, self._need_default)
        names = {*self._wanted, *self._membership.names}
        if self._default is not None:
            names.add(self._default)
        proxies = [self._proxy(name) for name in sorted(names)]
        if self._membership.resumed:
            return  # reattach waits for the members
        self._wait_open([each for each in proxies if each.present], _OPENING)

    def _wait_open(self, proxies: Sequence[MemberProxy], seconds: float) -> None:
        """Wait until all of these members are open, or one cannot be opened."""

        def settled() -> bool:
            if self._over.is_set():
                return True
            refused = any(each.refusal is not None for each in proxies)
            return refused or all(each.open for each in proxies)

        self._news.wait_for(settled, seconds)
        for each in proxies:
            if each.open:
                continue
            if self._over.is_set():
                raise takeover_error(self._run)
            if each.refusal is not None:
                raise each.refusal
            raise absence_error(self._run, [each.name], seconds)

    def _proxy(self, name: str) -> MemberProxy:
        """Return the member's proxy; add the member to the run if it is new."""
        from ensemble_service.member_proxy import MemberProxy

        proxy = self._members.get(name)
        if proxy is None:
            # Record the member before the first submission to it, so that later controllers query
            # it.
            self._membership.know(name)
            clock = self._membership.clock(name)
            proxy = self._members[name] = MemberProxy(name, self._context, clock)
            if name in self._service.members:
                proxy.connected()
            else:
                proxy.disconnected(time.monotonic())
        return proxy

    # -- requests of the run -------------------------------------------------------------------

    def _require_open(self) -> None:
        assert self._run is not None
        if self._over.is_set():
            raise takeover_error(self._run)

    def submit(self, jobs: Sequence[Job]) -> None:
        from ensemble_service.wire import MOST_BYTES, from_jobs

        by_member: dict[str, list[Job]] = {}
        for job in jobs:
            by_member.setdefault(self._member_of(job), []).append(job)
        with self._lock:
            self._require_open()
            names = {job.id for job in jobs}
            if len(names) < len(jobs) or any(
                name in proxy.jobs for name in names for proxy in self._members.values()
            ):
                raise ExecutorError(
                    "a job was submitted twice",
                    hint="give each job its own id",
                    code="duplicate-job",
                )
            for name, some in by_member.items():
                messages = from_jobs(some)
                for job, message in zip(some, messages, strict=True):
                    if len(message.data) > MOST_BYTES:
                        raise ExecutorError(
                            f"job {job.id} is too large: {len(message.data)} bytes, at most "
                            f"{MOST_BYTES}",
                            hint="move long arguments and environments to files",
                            code="too-large",
                        )
                proxy = self._proxy(name)
                self._membership.assign(name, [job.id for job in some])
                proxy.submit(messages, [job.id for job in some])

    def _is_at_other_member(self, member: str, job: str) -> bool:
        return any(job in proxy.jobs for name, proxy in self._members.items() if name != member)

    def _ahead(self, member: str, least: int, now: int) -> None:
        try:
            self._membership.set_clock(member, least, now)
        except ExecutorError as error:
            self._warn(str(error))

    def _member_of(self, job: Job) -> str:
        if self._is_member(job.executor):
            return self._full(str(job.executor))
        if self._default is None:
            raise ExecutorError(
                f"no member for job {job.id}: its group has no 'executor', and no default is set",
                hint="set 'executor' in its group, or pass --option default=MEMBER",
                code="no-default",
            )
        return self._default

    def cancel(self, jobs: Sequence[str]) -> None:
        with self._lock:
            self._require_open()
            for proxy in self._members.values():
                proxy.cancel(jobs)

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        with self._lock:
            self._require_open()
            name = self._default
            if name is None and len(self._members) == 1:
                name = next(iter(self._members))
            if name is None:
                raise ExecutorError(
                    "cannot choose the member to resize: the run has no default member",
                    hint="choose the default with --option default=MEMBER",
                    code="no-default",
                )
            proxy = self._proxy(name)
            if not proxy.open:
                raise ExecutorError(f"member {name} is disconnected", code="away", transient=True)
            if "resize" not in proxy.capabilities:
                raise ExecutorError(
                    (f"member {name} does not support resizing"), code="cannot-resize"
                )
            proxy.resize(request, delta, when_busy)

    def forget(self, jobs: Sequence[str]) -> None:
        with self._lock:
            self._require_open()
            for proxy in self._members.values():
                proxy.forget(jobs)

    def resources(self) -> Mapping[str, float]:
        with self._lock:
            paths = {path for proxy in self._members.values() for path in proxy.gauges}
            return {**self._sums(sorted(paths)), **self._away_gauges()}

    def _away_gauges(self) -> dict[str, float]:
        """Return the current gauges ``away.GROUP``.

        The gauges may differ from those of an earlier controller, because members may have come
        back or gone since.
        """
        if self._run is None:
            return {}
        return {
            f"away.{group}": min(1, sum(self._members[name].is_group_away(group) for name in names))
            for group, names in self._membership.groups.items()
        }

    def _sums(self, paths: Iterable[str]) -> dict[str, float]:
        return {
            path: sum(proxy.gauges.get(path, 0) for proxy in self._members.values())
            for path in paths
        }

    @property
    def sees_foreign_jobs(self) -> bool:
        with self._lock:
            members = list(self._members.values())
            return len(members) == 1 and members[0].sees_foreign_jobs

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        """Ask each member of the run about these jobs.

        Waits for absent members, because only a member knows its own jobs.
        """
        with self._lock:
            self._require_open()
            members = list(self._members.values())
            for proxy in members:
                proxy.reattach(self._membership.assigned(proxy.name, jobs))

            def waiting() -> list[MemberProxy]:
                return [each for each in members if each.waits("reattach")]

            self._news.wait_for(lambda: self._over.is_set() or not waiting(), self._patience)
            if self._over.is_set():
                raise takeover_error(self._run)
            refused = [each.refusal for each in waiting() if each.refusal is not None]
            if refused:
                raise refused[0]
            if waiting():
                raise absence_error(self._run, [each.name for each in waiting()], self._patience)
            blind = any(proxy.blind for proxy in members)
            found = {}
            for job in jobs:
                known = any(proxy.found.get(job) for proxy in members)
                if known or not blind:
                    found[job] = known
            for proxy in members:
                proxy.found.clear()
            return found

    def close(self) -> None:
        """Leave the members. Their jobs continue.

        Raises :class:`ExecutorError` if a member's executor reported an error when it was closed.
        """
        with self._lock:
            if self._run is None:
                return
            self._emit = None  # report nothing from here on
            members = list(self._members.values())
            if not self._over.is_set():
                for proxy in members:
                    proxy.close()
                self._news.wait_for(
                    lambda: not any(each.present and each.waits("close") for each in members),
                    _LEAVING,
                )
            self._over.set()
        self._connection.close()
        self._clockwork.join()
        for proxy in members:
            error, proxy.left_badly = proxy.left_badly, None
            if error is not None:
                raise error

    # -- incoming messages ---------------------------------------------------------------------

    def _on_message(self, message: pb.ToRun) -> None:
        what = message.WhichOneof("what")
        with self._lock:
            if what == "batch":
                proxy = self._members.get(message.batch.member)
                if proxy is not None:
                    proxy.received(message.batch)
            elif what == "answer":
                proxy = self._members.get(message.answer.member)
                if proxy is not None:
                    proxy.answered(message.answer, time.monotonic())
            elif what == "presence":
                self._on_presence(message.presence.member, message.presence.present)
            elif what == "welcome":
                back = self._service.connected()
                if back:
                    self._warn(back)
            self._news.notify_all()

    def _on_presence(self, member: str, present: bool) -> None:
        proxy = self._members.get(member)
        if present:
            self._service.members.add(member)
            if proxy is not None:
                proxy.connected()
        else:
            self._service.members.discard(member)
            if proxy is not None:
                proxy.disconnected(time.monotonic())

    def _down(self, error: EnsembleError) -> None:
        with self._lock:
            now = time.monotonic()
            self._service.disconnected(error, now)
            for proxy in self._members.values():
                proxy.disconnected(now)
            if error.code == "failed-precondition" and self._members:
                self._end_stale_run(error.cause or error.what)
            self._news.notify_all()

    def _tick(self) -> None:
        while not self._over.wait(_TICK):
            try:
                with self._lock:
                    self._check_presence(time.monotonic())
            except Exception:  # this thread must survive: nothing else acknowledges or retries
                _log.exception("cannot do what is due")

    def _check_presence(self, now: float) -> None:
        if self._service.there:
            for proxy in list(self._members.values()):
                proxy.tick(now)
        elif self._members:
            away = self._service.lasting_absence(now)
            if away:
                self._warn(away)

    # -- events for the run --------------------------------------------------------------------

    def _emit_events(self, events: Sequence[Event]) -> None:
        if self._emit is None:
            return
        if len(self._members) > 1:
            # With several queues, foreign jobs are not reported.
            events = [e for e in events if not isinstance(e, JobEvent) or e.ours]
        if events:
            self._emit(events)

    def _emit_gauges(self, paths: Iterable[str], when: float) -> None:
        if not self._started:
            return  # the run reads the first gauges itself
        self._emit_events([Resources(when, self._sums(paths))])

    def _warn(self, message: str) -> None:
        assert self._run is not None
        self._emit_events([Problem(self._run.clock(), message)])

    def _on_disowned(self, member: str, reason: str) -> None:
        """Handle a member that reports that it obeys another controller.

        One member's report alone does not end the run. The run ends if all connected members, or
        the service, report that another controller has taken over.
        """
        there = [proxy for proxy in self._members.values() if proxy.present]
        if all(proxy.disowned for proxy in there):
            self._end_stale_run(reason)
        else:
            self._warn(
                f"member {member} says that another controller has this run, but others do not; "
                "it gets no requests for now"
            )

    def _end_stale_run(self, reason: str) -> None:
        """End this run, because another controller has taken over."""
        if self._over.is_set():
            return
        assert self._run is not None
        self._emit_events([ExecutorLost(self._run.clock(), "remote", reason, "it continues there")])
        self._over.set()
        self._news.notify_all()


def _shared_folder(path: str) -> str:
    whole = os.path.normpath(os.path.expanduser(path))
    if not whole.startswith("/") or not whole.strip("/"):
        raise UsageError(
            f"invalid folder for 'shared': {path!r}",
            cause="all files are below it" if whole.startswith("/") else "it is a relative path",
            hint="give the absolute path of the shared folder that jobs write to",
            code="bad-option",
        )
    return whole
