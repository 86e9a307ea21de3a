"""The executor ``minicluster``: adds resizing to another executor, usually ``flux``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ensemble_service import member_name

from ensemble_core import (
    Cause,
    EnsembleError,
    Event,
    Executor,
    ExecutorError,
    Problem,
    Resized,
    ResizeOutcome,
    Resources,
    UsageError,
    executor_record,
)
from ensemble_minicluster.cluster import MARK, Cluster, Nodes, Patience, Service
from ensemble_minicluster.grow_and_shrink import RequestLog, Resizing
from ensemble_minicluster.options import OPTIONS, PASSED_ON

if TYPE_CHECKING:
    from ensemble_service import Reporter, ServiceClient

    from ensemble_core import Emit, Job, Run, WhenBusy

#: Seconds to wait for a reply of the service: usually, and at the start of a run.
_PATIENCE, _AT_FIRST = 15.0, 3.0
#: Upstream's operator calls 'ensemble run --kubernetes --executor minicluster'.
_IGNORED = "--kubernetes has no effect; --executor minicluster is enough"
#: Codes of permanent errors of the service.
_IN_VAIN = frozenset({"untrusted", "speaks-tls", "no-tls", "unauthenticated", "permission-denied"})


@dataclass(frozen=True, slots=True)
class Part:
    """The executor that runs the jobs, usually ``flux``."""

    name: str
    build: Callable[[], Executor]
    #: Whether it carries out resize requests, too: with ``--mock`` and without Flux, the executor
    #: ``local`` changes its number of slots.
    resizes: bool = False


class MiniCluster(Executor):
    """Runs jobs on the executor ``part``, and resizes the cluster.

    - ``service``: called when the run opens; returns the object that controls the cluster's size
    - ``follow``: if false, sizes are simulated, and nodes are neither drained nor waited for
    - ``others``: returns the executor with a given name, for runs that began with another one
    - ``note``: printed at the start
    - ``check``: sends a request to the service at the start, and raises its error
    - ``report``: gets a function for warnings; returns the reporter of the queue's status
    """

    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"submit", "cancel", "avoid", "resize", "signal", "reattach", "detach"}
    )
    causes: ClassVar[frozenset[Cause]] = frozenset(
        {"exit", "signal", "timeout", "cancelled", "submit"}  # plus those of the queue
    )
    shared: ClassVar[bool] = True

    def __init__(
        self,
        part: Part,
        service: Callable[[], Service],
        patience: Patience | None = None,
        *,
        follow: bool = True,
        others: Callable[[str], Part] | None = None,
        note: str = "",
        check: Callable[[], None] | None = None,
        report: Callable[[Callable[[str], None]], Reporter] | None = None,
    ) -> None:
        self._report = report
        self._reporter: Reporter | None = None
        self._tag = ""
        self._part = part
        self._check = check
        self._make_service = service
        self._patience = patience or Patience()
        self._follow = follow
        self._others = others
        self._note = note
        self._inner = part.build()
        # Both depend on the composed executor.
        self.capabilities = self._inner.capabilities | {"resize"}  # type: ignore[misc]
        self.shared = self._inner.shared  # type: ignore[misc]
        self._gauges: dict[str, float] = {}
        self._emit: Emit | None = None
        self._resizing: Resizing | None = None
        self._queue, self._queue_is_new = "", False
        self._memory = RequestLog(None)

    def open(self, run: Run, emit: Emit) -> None:
        memory = RequestLog(run.state)
        troubles = [memory.trouble]
        begun = memory.executor
        if begun is not None and begun != self._part.name:
            self._begin_as(begun)
        troubles.append(self._check_service())
        service = self._make_service()
        try:
            self._emit = emit
            self._inner.open(run, self._pass_on)
        except BaseException:
            self._emit = None
            service.close()
            raise
        self._gauges.update(self.resources())
        self._queue = _instance_id(self._inner.handle)
        self._queue_is_new = bool(memory.queue and self._queue not in ("", memory.queue))
        # Record another queue only when jobs are submitted there. Until then, a resume must decide
        # in the same way.
        memory.begin(self._part.name, memory.queue or self._queue)
        self._memory = memory

        def warn(message: str) -> None:
            self._emit_events((Problem(run.clock(), message),))

        self._tag = run.tag
        if self._report is not None:
            self._reporter = self._report(warn)
            self._reporter.gauges(self._gauges)
            self._reporter.start()
        for text in filter(None, (self._note, *troubles, memory.trouble)):
            warn(text)
        cluster = Cluster(
            service,
            Nodes(lambda: self._inner.handle) if self._follow else None,
            self._patience,
            run=f"{run.tag}.{run.id}",
            gauges=self._gauges,
            warn=warn,
        )
        self._resizing = Resizing(cluster, memory, run.clock, self._report_outcome)

    def _check_service(self) -> str:
        """Check the service. Return why it is unavailable now, or an empty string.

        Raises :class:`ExecutorError` for a permanent error, because every ``grow`` would fail.
        """
        if self._check is None:
            return ""
        try:
            self._check()
        except ExecutorError as error:
            if error.code in _IN_VAIN:
                raise
            if error.code == "unavailable":
                why = f": {error.cause}" if error.cause else ""
                return f"{error.what}{why}; grow and shrink are retried until it answers"
        return ""

    def _begin_as(self, name: str) -> None:
        """Use the executor ``name``, which the run started with, instead of the one chosen now."""
        if self._others is None:
            raise ExecutorError(
                f"the jobs of this run belong to executor {name!r}, not {self._part.name!r}",
                hint=f"resume the run on a machine where executor {name!r} works",
                code="other-executor",
            )
        self._part = self._others(name)
        self._inner = self._part.build()

    def _pass_on(self, events: Sequence[Event]) -> None:
        """Return the queue's events, without warnings about nodes that were drained on purpose."""
        planned = False
        if self._part.resizes:
            events = [self._in_nodes(e) if type(e) is Resources else e for e in events]
        for event in events:
            if type(event) is Resources:
                self._gauges.update(event.values)
            elif type(event) is Problem and MARK in event.message:
                planned = True
        if planned:
            events = [e for e in events if not (type(e) is Problem and MARK in e.message)]
        self._emit_events(events)

    def _in_nodes(self, event: Resources) -> Resources:
        return replace(event, values=_cores_as_nodes(event.values))

    def _emit_events(self, events: Sequence[Event]) -> None:
        reporter = self._reporter
        if reporter is not None:
            reporter.add(self._tag, events)
        emit = self._emit
        if emit is not None:
            emit(events)

    def _report_outcome(self, outcome: ResizeOutcome) -> None:
        self._emit_events((outcome,))

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        """Accept the request and return. An event reports the outcome, perhaps minutes later."""
        assert self._resizing is not None
        if self._part.resizes:
            self._inner.resize(request, delta, when_busy=when_busy)
        else:
            self._resizing.ask(request, delta, when_busy)

    @property
    def on_stop(self) -> Literal["keep", "cancel"]:
        return self._inner.on_stop

    def submit(self, jobs: Sequence[Job]) -> None:
        if self._queue:
            self._memory.begin(self._part.name, self._queue)
        self._inner.submit(jobs)

    def cancel(self, jobs: Sequence[str]) -> None:
        self._inner.cancel(jobs)

    def signal(self, jobs: Sequence[str], signal: str) -> None:
        self._inner.signal(jobs, signal)

    def resources(self) -> Mapping[str, float]:
        values = self._inner.resources()
        return _cores_as_nodes(values) if self._part.resizes else values

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        found = self._inner.reattach(jobs)
        check = getattr(self._inner, "require_end_of_earlier_instance", None)
        if self._queue_is_new and check is not None and not all(found.values()):
            check()
        return found

    @property
    def queue_is_new(self) -> bool:
        return self._queue_is_new or self._inner.queue_is_new

    def forget(self, jobs: Sequence[str]) -> None:
        self._inner.forget(jobs)

    @property
    def sees_foreign_jobs(self) -> bool:
        return self._inner.sees_foreign_jobs

    @property
    def handle(self) -> object:
        return self._inner.handle

    def journal_record(self, queue_id: str, event: str) -> Mapping[str, Any]:
        return self._inner.journal_record(queue_id, event)

    def close(self) -> None:
        """Finish open requests within a few seconds, then leave the queue. Jobs in the queue
        continue.
        """
        resizing, self._resizing = self._resizing, None
        try:
            if resizing is not None:
                resizing.close()
        finally:
            try:
                self._inner.close()
            finally:
                self._emit = None
                reporter, self._reporter = self._reporter, None
                if reporter is not None:
                    reporter.stop()


class _Member:
    """The ensemble service, which controls the size of one member."""

    def __init__(self, client: ServiceClient, member: str) -> None:
        self._client = client
        self._member = member

    def size(self) -> int | None:
        for status in self._client.status(self._member):
            if status.member == self._member:
                return status.size
        return None

    def resize(self, request: str, delta: int) -> Resized:
        return self._client.resize(self._member, request, delta)

    def close(self) -> None:
        self._client.close()


def build(given: Mapping[str, Any]) -> Executor:
    """Return the executor for validated options. Raises :class:`UsageError` for inconsistent
    options.
    """
    options = {
        name: given.get(name, schema.get("default"))
        for name, schema in OPTIONS["properties"].items()
    }
    passed = {name: options[name] for name in PASSED_ON if options[name] is not None}
    patience = Patience(
        arrival=options["arrival_timeout"],
        drain=options["drain_timeout"],
        settle=options["settle_time"],
    )
    for name in ("size", "min_size", "max_size"):
        # An option may be given explicitly with its default value.
        if options[name] != OPTIONS["properties"][name].get("default") and not options["mock"]:
            raise UsageError(
                f"{name.replace('_', '-')} is for --mock only",
                hint="set minSize and maxSize of the MiniCluster instead",
                code="bad-option",
            )
    if options["mock"]:
        return _mock(options, passed, patience)
    if options["name"] is None:
        raise UsageError(
            "executor 'minicluster' needs the name of a member",
            hint="use --name NAMESPACE/NAME, or --mock to try it without a cluster",
            code="no-member",
        )
    member = member_name(options["name"])

    file = options["token_file"]

    def client(timeout: float) -> ServiceClient:
        from ensemble_service import ServiceClient

        return ServiceClient(
            options["host"],
            options["port"],
            token=None if file is None else partial(_read_token, file),
            ca=options["ca"],
            insecure=options["insecure"],
            timeout=timeout,
        )

    def check() -> None:
        with client(_AT_FIRST) as asked:
            asked.status(member)

    part = _part(options["compose"] or "flux", passed)

    def report(warn: Callable[[str], None]) -> Reporter:
        from ensemble_service import Reporter

        from ensemble_core import __version__

        return Reporter(
            member,
            options["host"],
            options["port"],
            token_file=options["token_file"],
            ca=options["ca"],
            insecure=options["insecure"],
            executor="minicluster",
            version=__version__,
            capabilities=MiniCluster.capabilities,
            refused=lambda error: warn(
                f"cannot report the status of {member} to the service: {error.what}"
            ),
        )

    return MiniCluster(
        part,
        lambda: _Member(client(_PATIENCE), member),
        patience,
        note=_IGNORED if options["kubernetes"] else "",
        check=check,
        report=report if options["report"] else None,
    )


def _mock(options: Mapping[str, Any], passed: Mapping[str, Any], patience: Patience) -> Executor:
    smallest, largest = options["min_size"], options["max_size"]
    size = _check_bounds(options["size"], smallest, largest)
    if options["name"] is not None:
        member_name(options["name"])
    sizes = {"slots": size, "min_slots": smallest, "max_slots": largest}

    def part(name: str) -> Part:
        if name == "local":
            return _part(name, sizes, resizes=True)
        return _part(name, passed)

    name = options["compose"] or ("flux" if _flux_works() else "local")
    where = (
        "jobs run on this machine, one core for each node"
        if name == "local"
        else f"jobs go to executor {name!r}, whose size stays the same"
    )
    note = f"mock without a service: {smallest} to {largest} nodes; {where}"
    return MiniCluster(
        part(name),
        lambda: MockService(size, smallest, largest),
        patience,
        follow=False,
        others=part,
        note=f"{note}; {_IGNORED}" if options["kubernetes"] else note,
    )


def _check_bounds(size: int | None, smallest: int, largest: int) -> int:
    """Check the bounds, and return the initial number of nodes.

    Raises :class:`UsageError` for inconsistent bounds.
    """
    begin = smallest if size is None else size
    if not 1 <= smallest <= begin <= largest:
        raise UsageError(
            f"min-size {smallest}, size {begin} and max-size {largest} are not in order",
            hint="choose 1 <= min-size <= size <= max-size",
            code="bad-option",
        )
    return begin


class MockService:
    """Grants requests for nodes within the bounds. ``size`` is the initial number of nodes."""

    def __init__(self, size: int, smallest: int, largest: int) -> None:
        self._size, self._smallest, self._largest = size, smallest, largest

    def size(self) -> int:
        """Return the number of nodes."""
        return self._size

    def resize(self, request: str, delta: int) -> Resized:
        """Change the size within the bounds. Deny the request if that changes nothing."""
        before, asked = self._size, self._size + delta
        granted = min(max(asked, self._smallest), self._largest)
        limit = f"max-size {self._largest}" if delta > 0 else f"min-size {self._smallest}"
        code = "at-maximum" if delta > 0 else "at-minimum"
        self._size = granted
        outcome: Literal["granted", "partial", "denied"]
        outcome, reason = "partial", f"that would be size {asked}, but {limit} applies"
        if granted == before:
            outcome, reason = "denied", f"its size is already {before}, and {limit} applies"
        elif granted == asked:
            outcome, reason, code = "granted", "", ""
        return Resized(
            outcome=outcome, before=before, asked=asked, granted=granted, reason=reason, code=code
        )

    def close(self) -> None:
        """Do nothing."""


def _instance_id(handle: Any) -> str:
    """Return an identifier of this pod's Flux instance, which a new pod replaces.

    Returns an empty string for queues outside of the pod.
    """
    try:
        return str(handle.attr_get("broker.starttime") or "")
    except (AttributeError, OSError, TypeError):
        return ""


def _cores_as_nodes(values: Mapping[str, float]) -> dict[str, float]:
    """Return this machine's gauges as those of a cluster with one core per node."""
    cores = {key: value for key, value in values.items() if key in ("cores.up", "cores.free")}
    others = {key: value for key, value in values.items() if not key.startswith("nodes.")}
    return {**{key.replace("cores", "nodes"): value for key, value in cores.items()}, **others}


def _flux_works() -> bool:
    try:
        available = executor_record("flux").available
    except EnsembleError:
        return False
    return available is None or available()[0]


def _part(name: str, options: Mapping[str, Any], *, resizes: bool = False) -> Part:
    """Return the executor of this name with these options. Raises :class:`UsageError`."""
    record = executor_record(name)
    if record.name == "minicluster":
        raise UsageError("executor 'minicluster' cannot pass its jobs to itself", code="bad-option")
    known = record.options.get("properties", {})
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise UsageError(
            f"executor {name!r} has no option {unknown[0]!r}",
            hint=f"its options are {', '.join(known)}" if known else "it has no options",
            code="unknown-option",
        )
    return Part(name, lambda: record.build(dict(options)), resizes)


def _read_token(file: str) -> str:
    cause = "it is empty"
    try:
        token = Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or "it is not text"
    else:
        if token:
            return token
    raise UsageError(
        f"cannot read the token in {file}",
        cause=cause,
        hint="the file of --token-file must contain only the token",
        code="bad-token-file",
    )
