"""The keywords of ``given`` in a rule test, such as ``finished``: one for each kind of event.

Timers have no keyword: they expire on the test's virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ensemble_core.cli.toolkit import Context, shown
from ensemble_core.cli.toolkit import DocumentPath as Path
from ensemble_core.engine.requests import refusal
from ensemble_core.engine.state import State
from ensemble_core.errors import EnsembleError
from ensemble_core.model.causes import OUTPUT_LIMIT
from ensemble_core.model.decisions import Call
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import (
    CallFailed,
    CallReturned,
    Event,
    ExecutorLost,
    JobEvent,
    Observed,
    PluginEvent,
    Problem,
    Requested,
    ResizeOutcome,
    Resources,
    Resumed,
    StopRequested,
)
from ensemble_testing.rule_tests.decision_words import group_of
from ensemble_testing.rule_tests.scripted_queue import ImpossibleStep, ScriptedQueue, Tell, called
from ensemble_testing.rule_tests.step_reader import StepReader

#: Exception types by cause.
_EXCEPTIONS = {
    "timeout": "timeout",
    "memory": "out-of-memory",
    "output": OUTPUT_LIMIT,
    "node-failure": "node-failure",
    "preempted": "preempted",
    "submit": "submit",
    "lost": "lost",
}
#: Causes without a wait status.
_NO_STATUS = ("submit", "lost")
_CAUSES = ("exit", "signal", *_EXCEPTIONS)
_OUTCOMES = ("granted", "denied", "timeout", "undelivered")


class Given(StepReader):
    """Translates the steps of rule tests into calls of the test's queue."""

    def __init__(self, context: Context, ensemble: Ensemble) -> None:
        super().__init__(context, ensemble)
        #: Functions and generators whose results the current test gives, so they are not called.
        self.answered: set[str] = set()

    def step(self, word: str, value: Any, path: Path) -> Tell | None:
        """Return the step of this keyword, or ``None`` if it is invalid."""
        errors = len(self._context.errors)
        tell = WORDS[word](self, value, path)
        return tell if len(self._context.errors) == errors else None

    # -- jobs ----------------------------------------------------------------------------------

    def submitted(self, value: Any, path: Path) -> Tell:
        """Check that this number of jobs of each group was submitted; add fields that rules
        need.
        """
        wanted = self._mapping(value, path, (), ())
        for name, count in wanted.items():
            if name not in self._context.known.groups:
                self._unknown_key((*path, name), "job group", self._context.known.groups)
            self._number(count, (*path, name), 1, 1e6)

        def tell(queue: ScriptedQueue) -> None:
            for name, count in wanted.items():
                there = queue.submitted(name)
                missing = int(count) - there
                group = self._ensemble.groups[name]
                each = group.size // max(1, group.count)
                if missing < 0 or missing % each:
                    said = f"{there} jobs of {name} were submitted{queue.held(name)}"
                    more = f", and each submit adds a multiple of {each}" if missing > 0 else ""
                    raise ImpossibleStep(said + more)
                if missing:
                    action = {"name": "submit", "label": name, "with": {"count": missing // each}}
                    queue.emit(Requested(queue.now, "the test", action))

        return tell

    def started(self, value: Any, path: Path) -> Tell:
        """Start these jobs."""
        names = self._jobs(value, path)

        def tell(queue: ScriptedQueue) -> None:
            for job in queue.named(names):
                queue.start(job)

        return tell

    def finished(self, value: Any, path: Path) -> Tell:
        """End these jobs with an exit code or by a signal."""
        names, data = self._jobs_and_fields(value, path, ("exit_code", "signal"))
        status = self._status(data, path, 0)
        return partial(_end_jobs, names, "", status, "")

    def failed(self, value: Any, path: Path) -> Tell:
        """Make these jobs fail with a cause."""
        names, data = self._jobs_and_fields(value, path, ("cause", "exit_code", "signal", "note"))
        cause = self._check_choice(data.get("cause", "exit"), (*path, "cause"), "cause", _CAUSES)
        default = 9 if cause == "signal" else 15 if cause == "timeout" else 1 << 8
        note = self._text(data, "note", path, "")
        return partial(_end_jobs, names, cause, self._status(data, path, default), note)

    def _status(self, data: Mapping[str, Any], path: Path, default: int) -> int:
        """Return the wait status of an exit code or a signal."""
        if "signal" in data:
            number = self._number(data["signal"], (*path, "signal"), 1, 64)
            return int(number) if isinstance(number, int) else 9
        if "exit_code" in data:
            number = self._number(data["exit_code"], (*path, "exit_code"), 0, 255)
            return int(number) << 8 if isinstance(number, int) else 0
        return default

    def cancelled(self, value: Any, path: Path) -> Tell:
        """Cancel these jobs in the queue, from outside the run."""
        names, data = self._jobs_and_fields(value, path, ("by", "note"))
        more = {"by": self._text(data, "by", path, "")} if "by" in data else {}
        note = self._text(data, "note", path, "")

        def tell(queue: ScriptedQueue) -> None:
            for job in queue.named(names):
                queue.end(job, 15, "cancel", note, **more)

        return tell

    def ran(self, value: Any, path: Path) -> Tell:
        """Start these jobs after ``pending`` seconds and end them ``duration`` seconds later."""
        keys = ("pending", "duration", "exit_code", "signal", "cause")
        names, data = self._jobs_and_fields(value, path, keys)
        pending = self._seconds(data, "pending", path, 0.0)
        duration = self._seconds(data, "duration", path, 1.0)
        cause = ""
        if "cause" in data:
            cause = self._check_choice(data["cause"], (*path, "cause"), "cause", _CAUSES)
        status = self._status(data, path, 0 if cause in ("", "exit") else 15)

        def tell(queue: ScriptedQueue) -> None:
            jobs = queue.named(names)
            queue.later(pending, lambda queue: _each(queue, jobs, queue.start))
            queue.later(pending + duration, partial(_end_jobs, jobs, cause, status, "", gone=True))

        return tell

    def reused(self, value: Any, path: Path) -> Tell:
        """Replace these jobs with a job of an earlier run and its output."""
        data = self._mapping(value, path, ("job", "rows", "duration"), ("job",))
        names = self._jobs(data.get("job", []), (*path, "job"))
        duration = self._seconds(data, "duration", path, 1.0)
        rows = data.get("rows") or []
        if not isinstance(rows, list):
            self._report(path, "'rows' must be a list", "rows: [{x: 1}]", "wrong-type")
            rows = []
        read: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
        for place, row in enumerate(rows):
            columns = self._mapping(row, (*path, "rows", place), (), ())
            _, *found = self._columns({"job": names, **columns}, (*path, "rows", place), ())
            read.append((found[0], found[1]))

        def tell(queue: ScriptedQueue) -> None:
            for job in queue.looked_up(names):
                group = group_of(job)
                told = [(self._observer(group, columns, more), columns) for columns, more in read]
                queue.stand_in(job, told, duration)

        return tell

    def row(self, value: Any, path: Path) -> Tell:
        """Make these jobs print a row."""
        names, columns, more = self._columns(value, path, ())

        def tell(queue: ScriptedQueue) -> None:
            for job in queue.named(names):
                queue.start(job)
                observer = self._observer(group_of(job), columns, more)
                event = Observed(queue.now, job, observer, columns, more.get("clock"))
                queue.emit(event)

        return tell

    def rows(self, value: Any, path: Path) -> Tell:
        """Make these jobs print rows at a fixed interval: one row for each value of the columns."""
        names, columns, more = self._columns(value, path, ("every",), several=True)
        every = self._seconds(more, "every", path, 1.0)
        count = max(map(len, columns.values()), default=0)

        def tell(queue: ScriptedQueue) -> None:
            jobs = queue.named(names)
            for place in range(count):
                values = {name: each[place] for name, each in columns.items() if place < len(each)}
                queue.later(place * every, partial(printed, jobs, values))

        def printed(jobs: Sequence[str], values: Mapping[str, float], queue: ScriptedQueue) -> None:
            for job in queue.here(jobs):  # a rule may have cancelled it
                queue.start(job)
                observer = self._observer(group_of(job), values, more)
                queue.emit(Observed(queue.now, job, observer, values))

        return tell

    def _columns(
        self, value: Any, path: Path, keys: Sequence[str], *, several: bool = False
    ) -> tuple[list[str], dict[str, Any], Mapping[str, Any]]:
        """Return jobs, column values, and the other fields of the row."""
        data = self._mapping(value, path, (), ("job",))
        names = self._jobs(data.get("job", []), (*path, "job"))
        own = ("job", "observer", *(keys or ("clock",)))
        groups = {name if name in self._ensemble.groups else group_of(name) for name in names}
        columns: dict[str, Any] = {}
        for name, number in data.items():
            here = (*path, name)
            if name in own and not (name == "clock" and self._yields(groups, name)):
                continue
            if not self._yields(groups, name):
                known = set().union(*(self._context.variables(each) or () for each in groups))
                self._unknown_key(here, "column", sorted(known))
            for each in number if several and isinstance(number, list) else [number]:
                self._number(each, here)
            columns[name] = number if isinstance(number, list) or not several else [number]
        if data and not columns:
            self._report(path, "the row has no columns", "write {job: JOB, COLUMN: NUMBER}")
        return names, columns, {key: data[key] for key in own if key in data and key not in columns}

    def _yields(self, groups: set[str], name: str) -> bool:
        """Return whether observers of these groups yield this column, if that is known."""
        known = [group for group in groups if group in self._ensemble.groups]
        return all(self._context.why_not_observed(group, name) is None for group in known)

    def _observer(self, group: str, columns: Mapping[str, Any], more: Mapping[str, Any]) -> str:
        if "observer" in more:
            return str(more["observer"])
        options = self._ensemble.groups[group].observe
        for name, given in options.items():
            variables = self._context.registry.observers[name].variables
            names = None if variables is None else variables(given)
            if names is None or set(columns) <= set(names):
                return name
        return next(iter(options), "test")

    def job_event(self, value: Any, path: Path) -> Tell:
        """Emit one event of a job, in terms of RFC 21; with ``ours: false``, of a foreign job."""
        data = self._mapping(value, path, ("job", "name", "context", "ours"), ("job", "name"))
        job, name = str(data.get("job", "")), str(data.get("name", ""))
        ours = bool(data.get("ours", True))
        if ours and data:
            self._jobs(job, (*path, "job"))
        context = self._mapping(data.get("context", {}), (*path, "context"), (), ())
        return lambda queue: queue.emit(JobEvent(queue.now, job, name, context, ours))

    # -- the queue and the run -----------------------------------------------------------------

    def gauges(self, value: Any, path: Path) -> Tell:
        """Change gauges of the queue."""
        gauges = self._gauges(value, path)
        return lambda queue: queue.emit(Resources(queue.now, gauges))

    def start_gauges(self, value: Any, path: Path) -> dict[str, float]:
        """Set the queue's gauges at the start of the run."""
        return self._gauges(value, path)

    def resized(self, value: Any, path: Path) -> Tell:
        """Answer the oldest open request to resize."""
        data = value if isinstance(value, Mapping) else {"outcome": value}
        data = self._mapping(data, path, ("outcome", "size", "reason"), ("outcome",))
        outcome = self._check_choice(
            data.get("outcome"), (*path, "outcome") if isinstance(value, Mapping) else path,
            "outcome", _OUTCOMES,
        )  # fmt: skip
        size = data.get("size")
        if size is not None:
            self._number(size, (*path, "size"), 0)
        reason = self._text(data, "reason", path, "")

        def tell(queue: ScriptedQueue) -> None:
            if not queue.resizes:
                raise ImpossibleStep("no request for nodes is open")
            request = queue.resizes.pop(0)
            queue.emit(ResizeOutcome(queue.now, request, outcome, size, reason))

        return tell

    def returned(self, value: Any, path: Path) -> Tell:
        """Make a function, or the ``run`` of an action, return."""
        data = self._mapping(value, path, ("function", "result", "parameters"), ("function",))
        name = self._function(data, path)
        result = data.get("result") or []
        parts = result if isinstance(result, list) else [result]
        for part in parts:
            self._returned_part(part, (*path, "result"))
        given = self._mapping(data.get("parameters") or {}, (*path, "parameters"), (), ())
        values = {key: each if isinstance(each, list) else [each] for key, each in given.items()}

        def answer(now: float, call: Call) -> CallReturned:
            if call.kind != "parameters":
                return CallReturned(now, call.call, tuple(parts))
            asked = {"submit": call.options["group"], "with": call.options["with"]}
            missing = set(call.options["functions"]) - set(values)
            if missing:
                raise ImpossibleStep(f"{name!r} returns no value for {min(missing)!r}")
            return CallReturned(now, call.call, ({**asked, "parameters": values},))

        return partial(_answer_call, name, answer)

    def suggested(self, value: Any, path: Path) -> Tell:
        """Make a generator suggest points and choose jobs to cancel."""
        keys = ("generator", "points", "prune")
        data = self._mapping(value, path, keys, ("generator",))
        name = self._generator(data, path)
        points, pruned = data.get("points") or [], data.get("prune") or []
        spec = self._ensemble.generators.get(name)
        if not isinstance(points, list) or not isinstance(pruned, list):
            self._report(
                path, "'points' and 'prune' must be lists", "points: [{x: 1}]", "wrong-type"
            )
            points = pruned = []
        for place, point in enumerate(points if spec is not None else ()):
            here = (*path, "points", place)
            known = self._mapping(point, here, (), ())
            assert spec is not None
            why = spec.vocs.refused({key: each for key, each in known.items() if key != "_id"})
            if why is not None:
                self._report(here, f"not a point of {name!r}: {why}", "check its variables")
        for number in pruned:
            self._number(number, (*path, "prune"), 0)
        parts = (*({"prune": each} for each in pruned), *({"point": each} for each in points))

        def tell(queue: ScriptedQueue) -> None:
            _answer_call(of, answer, queue, len(points))

        def answer(now: float, call: Call) -> CallReturned:
            return CallReturned(now, call.call, parts)

        of = f"generator {name}"
        return tell

    def _returned_part(self, part: Any, path: Path) -> None:
        binder = self._ensemble.binder
        try:
            if isinstance(part, Mapping) and set(part) == {"action"}:
                binder.action(part["action"])
            elif isinstance(part, Mapping) and set(part) == {"rule"}:
                binder.rule(part["rule"], "returned")
            else:
                hint = "write {action: {name: …}} or {rule: {trigger: …}}, or a list of these"
                self._report(path, f"{shown(part)} is not an action or rule", hint, "wrong-type")
        except EnsembleError as error:
            self._context.attach(error, path)

    def raised(self, value: Any, path: Path) -> Tell:
        """Make a function, the ``run`` of an action, or a generator raise an error."""
        of = "generator" if isinstance(value, Mapping) and "generator" in value else "function"
        data = self._mapping(value, path, (of, "error"), (of,))
        if of == "generator":
            name = f"generator {self._generator(data, path)}"
        else:
            name = self._function(data, path)
        error = self._text(data, "error", path, "it raised")
        return partial(_answer_call, name, lambda now, call: CallFailed(now, call.call, error))

    def _function(self, data: Mapping[str, Any], path: Path) -> str:
        name = str(data.get("function", ""))
        known = {*self._ensemble.functions, *self._context.registry.actions}
        if data and name not in known:
            self._context.unknown((*path, "function"), "function", name, known)
        self.answered.add(name)
        return name

    def _generator(self, data: Mapping[str, Any], path: Path) -> str:
        name = str(data.get("generator", ""))
        known = self._ensemble.generators
        if data and name not in known:
            self._context.unknown((*path, "generator"), "generator", name, known)
        self.answered.add(f"generator {name}")
        return name

    def requested(self, value: Any, path: Path) -> Tell:
        """Request an action as a user would: submit, cancel, set, enable or disable."""
        action = self._mapping(value, path, (), ("name",))
        refused = refusal(State(self._ensemble), action) if action else None
        if refused is not None:
            self._context.attach(refused, path)
        return lambda queue: queue.emit(Requested(queue.now, "the test", action))

    def stopped(self, value: Any, path: Path) -> Tell:
        """Stop or end the run from outside."""
        data = value if isinstance(value, Mapping) else {"reason": value or "interrupted"}
        data = self._mapping(data, path, ("reason", "exit_code", "then"), ())
        ways = ("end", "cancel", "keep", "cancel-left")
        then = self._check_choice(data.get("then", "end"), (*path, "then"), "word", ways)
        code = self._number(data.get("exit_code", 130), (*path, "exit_code"), 0, 255)
        reason = self._text(data, "reason", path, "interrupted")
        return lambda queue: queue.emit(StopRequested(queue.now, reason, code, then))

    def resumed(self, value: Any, path: Path) -> Tell:
        """Resume the run with another controller."""
        gauges = self._gauges(value or {}, path)
        return lambda queue: queue.emit(Resumed(queue.now, gauges))

    def queue_lost(self, value: Any, path: Path) -> Tell:
        """Lose the queue."""
        reason = str(value or "it is gone")
        return lambda queue: queue.emit(ExecutorLost(queue.now, "the queue", reason))

    def problem(self, value: Any, path: Path) -> Tell:
        """Report a problem that does not concern a job."""
        data = value if isinstance(value, Mapping) else {"message": value}
        data = self._mapping(data, path, ("message", "level"), ("message",))
        level = self._check_choice(
            data.get("level", "warning"), (*path, "level"), "level", ("info", "warning", "error")
        )
        message = self._text(data, "message", path, "")
        return lambda queue: queue.emit(Problem(queue.now, message, level))

    def event(self, value: Any, path: Path) -> Tell:
        """Emit an event of a plugin."""
        data = self._mapping(value, path, ("name", "data", "job"), ("name",))
        name = str(data.get("name", ""))
        known = list(self._context.registry.triggers)
        if data and name not in known:
            self._context.unknown((*path, "name"), "trigger", name, known)
        fields = self._mapping(data.get("data", {}), (*path, "data"), (), ())
        job = data.get("job")
        if job is not None:
            self._jobs(job, (*path, "job"))
        return lambda queue: queue.emit(PluginEvent(queue.now, name, fields, job))


def _each(queue: ScriptedQueue, jobs: Sequence[str], tell: Callable[[str], None]) -> None:
    """Call ``tell`` for each of these jobs that still exists. A rule may have cancelled some."""
    for job in queue.here(jobs):
        tell(job)


def _end_jobs(
    names: Sequence[str],
    cause: str,
    status: int,
    note: str,
    queue: ScriptedQueue,
    *,
    gone: bool = False,
) -> None:
    """End jobs. With ``gone``, skip jobs that no longer exist."""
    for job in queue.here(names) if gone else queue.named(names):
        if cause != "submit":
            queue.start(job)
        queue.end(job, None if cause in _NO_STATUS else status, _EXCEPTIONS.get(cause), note)


def _answer_call(
    name: str, answer: Callable[[float, Call], Event], queue: ScriptedQueue, points: int = 0
) -> None:
    call = next((call for call in queue.calls if name in called(call)), None)
    if call is None:
        raise ImpossibleStep(f"no call of {name!r} is open")
    if points > (asked := call.options.get("suggest", 0)):
        raise ImpossibleStep(f"{points} points are suggested, but only {asked} were requested")
    queue.calls.remove(call)
    queue.emit(answer(queue.now, call))


#: The keywords of ``given``.
WORDS: Mapping[str, Callable[[Given, Any, Path], Tell]] = {
    "submitted": Given.submitted,
    "started": Given.started,
    "finished": Given.finished,
    "failed": Given.failed,
    "cancelled": Given.cancelled,
    "ran": Given.ran,
    "reused": Given.reused,
    "row": Given.row,
    "rows": Given.rows,
    "job-event": Given.job_event,
    "gauges": Given.gauges,
    "resized": Given.resized,
    "returned": Given.returned,
    "raised": Given.raised,
    "suggested": Given.suggested,
    "requested": Given.requested,
    "stopped": Given.stopped,
    "resumed": Given.resumed,
    "queue-lost": Given.queue_lost,
    "problem": Given.problem,
    "event": Given.event,
}
