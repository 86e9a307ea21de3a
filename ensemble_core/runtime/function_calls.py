"""Calls users' functions, and the function ``run`` of actions, outside the engine's thread.

Functions under ``custom:`` run one after another on one thread, so they can share state without
locks.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ensemble_core.config.sweeps import MOST_JOBS
from ensemble_core.engine.result_tables import Tables
from ensemble_core.errors import EnsembleError, Location, UsageError, kind_of, raised_at, written_at
from ensemble_core.metrics.store import MetricsView
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.decisions import Call
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import CallFailed, CallReturned, Event, JobEvent
from ensemble_core.model.rules import Action, Rule
from ensemble_core.model.sweep_values import without_noise
from ensemble_core.plugin.hookspecs import ActionPlugin, CallContext
from ensemble_core.plugin.untrusted_code import Purpose, is_loaded, load_source, require
from ensemble_core.runtime.generator_calls import GeneratorCalls, MakeSuggestion

if TYPE_CHECKING:
    from ensemble_core.engine.engine import Engine

_WORKERS = 4
#: Hints on how to do without the code of a function or a generator.
_RETURN = "give its result: 'returned' in a rule test, --functions recorded in a simulation"
_SUGGEST = "give its points: 'suggested' in a rule test"


class MakeCall(NamedTuple):
    """Order: call a function or action, with its arguments at the time of the decision."""

    call: Call
    metrics: MetricsView
    rule: Rule
    tables: Tables


def order_of(engine: Engine, call: Call) -> MakeCall | MakeSuggestion:
    """Return the order to make a call, with the current arguments."""
    if call.kind == "generator":
        generator = engine.state.generators[call.name]
        assert generator.open_call is not None
        return MakeSuggestion(generator.open_call, generator.exchanges, len(generator.exchanges))
    rule = Rule(engine.rule_of(call))
    return MakeCall(call, engine.snapshot(), rule, engine.tables().detached())


class Caller:
    """Makes the calls of a run.

    ``handle`` and ``record`` return what functions receive: the queue's native handle, and the
    queue's record of a job's event. ``purpose`` decides whether code that the file names is loaded.

    Raises :class:`UsageError` if the file's ``custom:`` part cannot be executed.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        actions: Mapping[str, ActionPlugin],
        emit: Callable[[Event], None],
        clock: Callable[[], float],
        handle: Callable[[], object],
        record: Callable[[str, str], Mapping[str, Any]],
        functions: Mapping[str, Callable[..., object]] = NOTHING,
        folder: str = "",
        purpose: Purpose = "check",
    ) -> None:
        self._ensemble = ensemble
        self._purpose: Purpose = purpose
        self._folder = folder
        self._actions = actions
        self._emit = emit
        self._clock = clock
        self._handle = handle
        self._record = record
        self._functions = (
            _functions(ensemble, functions, purpose) if is_loaded("source", purpose) else functions
        )
        self._custom: queue.SimpleQueue[MakeCall | None] = queue.SimpleQueue()
        self._slow: queue.SimpleQueue[MakeCall | None] = queue.SimpleQueue()
        self._custom_threads = 0
        self._slow_threads = 0
        self._generators = GeneratorCalls(ensemble.generators, emit, clock, purpose)

    def make(self, task: MakeCall | MakeSuggestion) -> None:
        """Make a call on another thread. Returns immediately."""
        if isinstance(task, MakeSuggestion):
            self._generators.make(task)
            return
        call = task.call
        try:
            if call.kind != "action":
                if not self._custom_threads:
                    self._start("custom functions", self._custom)
                    self._custom_threads = 1
            elif self._slow_threads < _WORKERS:
                self._start(f"action {self._slow_threads + 1}", self._slow)
                self._slow_threads += 1
        except RuntimeError as error:  # the system cannot start more threads
            if not (self._slow_threads if call.kind == "action" else self._custom_threads):
                self._emit(self._failure(call, f": {error}"))
                return
        (self._slow if call.kind == "action" else self._custom).put(task)

    def close(self) -> None:
        """Accept no more calls.

        A call that hangs is abandoned; its thread ends with the process.
        """
        for _ in range(self._custom_threads):
            self._custom.put(None)
        for _ in range(self._slow_threads):
            self._slow.put(None)
        self._generators.close()

    def _start(self, name: str, tasks: queue.SimpleQueue[MakeCall | None]) -> None:
        threading.Thread(target=self._work, args=(tasks,), name=name, daemon=True).start()

    def _work(self, tasks: queue.SimpleQueue[MakeCall | None]) -> None:
        while (task := tasks.get()) is not None:
            self._emit(self.outcome(task))

    def require(self, call: Call) -> None:
        """Raise :class:`UsageError` if this call needs code that is not loaded."""
        ensemble = self._ensemble
        where = Location(ensemble.file) if ensemble.file else None
        if call.kind == "generator":
            for path in ensemble.generators[call.name].classes:
                what = f"{path!r} of the generator {call.name!r}"
                require("class", what, self._purpose, where=where, instead=_SUGGEST)
        elif call.kind != "action" and not {*_names(call)} <= self._functions.keys():
            what = f"the function {', '.join(map(repr, _names(call)))}"
            require("source", what, self._purpose, where=where, instead=_RETURN)

    def outcome(self, task: MakeCall | MakeSuggestion) -> CallReturned | CallFailed:
        """Make a call on this thread (or on the generator's thread), and return its outcome."""
        if isinstance(task, MakeSuggestion):
            return self._generators.outcome(task)
        call = task.call
        try:
            result = self._check_result(call, self._perform(task))
            return CallReturned(self._clock(), call.call, result)
        except EnsembleError as error:
            return self._failure(call, f": {error}")
        except BaseException as error:  # an error in a user's function must not end the run
            place = raised_at(error)
            why = f" raised {_one_line(error)}" + (f" ({place})" if place else "")
            return self._failure(call, why, _traceback(error))

    def _failure(self, call: Call, why: str, *traceback: str) -> CallFailed:
        return CallFailed(self._clock(), call.call, f"{call.name}{why}", *traceback)

    def _perform(self, task: MakeCall) -> object:
        call = task.call
        event = {**call.event, "attempt": call.attempt}
        if call.kind == "parameters":
            return self._parameters(task)
        if call.kind == "custom":
            return self._function(call.name)(
                metrics=task.metrics,
                tables=task.tables,
                event={**event, **self._first_keys(call)},
                rule=task.rule,
                action=Action({"name": "custom", "label": call.name}),
                handle=self._handle(),
                job=None if call.job is None else dict(call.job),
                ensemble=self._ensemble.name,
            )
        run = self._actions[call.name].run
        if run is None:
            raise EnsembleError(
                f"the plugin's action {call.name!r} has no function 'run', so it cannot be called"
            )
        return run(
            CallContext(
                options=call.options,
                event=event,
                rule=task.rule,
                action=Action({"name": call.name, **call.options}),
                metrics=task.metrics,
                job=call.job,
                ensemble=self._ensemble.name,
                handle=self._handle(),
                run=self._ensemble.run,
                cwd=self._ensemble.cwd,
                folder=self._folder,
                call=call.call,
            )
        )

    def _function(self, name: str) -> Callable[..., object]:
        if name not in self._functions:
            raise EnsembleError(
                f"no function {name!r} is defined under 'custom' or given in Python",
                code="no-such-function",
            )
        return self._functions[name]

    def _parameters(self, task: MakeCall) -> dict[str, list[Any]]:
        """Return the parameter values for a submit, as computed by functions."""
        options = task.call.options
        group = options["group"]
        return {
            name: _values(
                self._function(function)(
                    group=group,
                    index=options["index"],
                    metrics=task.metrics,
                    results=task.tables.of_group(group),
                ),
                f"returned {{}} for the parameter {name!r} of {group!r}",
            )
            for name, function in options["functions"].items()
        }

    def _first_keys(self, call: Call) -> Mapping[str, Any]:
        """Return the argument ``event`` of a function in the form of ensemble-python 0.0.16.

        There, it is a record of Flux's journal. It also has the event's fields under their current
        names.
        """
        event = call.event
        if event.get("type") != JobEvent.type:
            return {}
        entry = {"timestamp": event["timestamp"], "name": event["name"]}
        if event["context"]:
            entry["context"] = event["context"]
        name = event["job"]
        queue_id = (call.job or {}).get("queue_id") if event["ours"] else name
        record = {} if queue_id is None else self._record(str(queue_id), event["name"])
        return {"id": name, **record, "events": [entry]}

    def _check_result(self, call: Call, result: object) -> tuple[Mapping[str, Any], ...]:
        """Check the result of a call, and return it as a list of plain specifications."""
        if call.kind == "parameters":
            submit = {"submit": call.options["group"], "with": call.options["with"]}
            return ({**submit, "parameters": result},)
        if result is None:
            return ()
        items: Iterable[object] = (
            (result,)
            if isinstance(result, (Action, Rule, str, Mapping)) or not isinstance(result, Iterable)
            else tuple(result)
        )
        specs: list[Mapping[str, Any]] = []
        for item in items:
            if isinstance(item, Action):
                self._ensemble.binder.action(item.spec)
                spec: dict[str, Any] = {"action": dict(item.spec)}
                if item.fields:
                    spec["fields"] = {str(name): _storable(v) for name, v in item.fields.items()}
                specs.append(spec)
            elif isinstance(item, Rule):
                self._ensemble.binder.rule(item.spec, "returned-rule")
                specs.append({"rule": dict(item.spec)})
            elif item is not None:
                function = self._actions[call.name].run if call.kind == "action" else None
                where = f" ({written_at(function)})" if function is not None else ""
                raise EnsembleError(
                    f"{call.name} returned {kind_of(item)}{where}",
                    hint="return None, an Action, a Rule, or a list of these",
                    code="bad-result",
                )
        return tuple(specs)


def _names(call: Call) -> Iterable[str]:
    """Return the names of the functions that are called."""
    if call.kind == "parameters":
        return dict.fromkeys(call.options["functions"].values())
    return (call.name,)


def _functions(
    ensemble: Ensemble, given: Mapping[str, Callable[..., object]], purpose: Purpose
) -> Mapping[str, Callable[..., object]]:
    if not ensemble.custom:
        return given
    name = f"<custom of {ensemble.file or ensemble.name}>"
    try:
        namespace = load_source(ensemble.custom, name, {"Action": Action, "Rule": Rule}, purpose)
    except Exception as error:
        raise UsageError(
            f"the code under 'custom' raised {_one_line(error)}",
            where=Location(ensemble.file) if ensemble.file else None,
            cause=_traceback(error),
            hint="correct the code; it is executed before any job is submitted",
            code="custom-raised",
        ) from None
    functions = {
        label: namespace[label] for label in ensemble.functions if callable(namespace.get(label))
    }
    functions.update(given)
    named = {
        str(each.options.get("label"))
        for rule in ensemble.rules
        for action in rule.actions
        for each in action.flat()
        if each.name == "custom"
    }
    named |= {name for group in ensemble.groups.values() for name in group.asked.values()}
    missing = sorted(named - functions.keys())
    if missing:
        raise UsageError(
            f"the code under 'custom' does not define the function {missing[0]!r}",
            where=Location(ensemble.file) if ensemble.file else None,
            hint=f"define it with 'def {missing[0]}(**kwargs):'",
            code="no-such-function",
        )
    return functions


def _values(given: object, what: str) -> list[Any]:
    """Return the value that a function computed for a parameter as a list (empty for ``None``).

    ``what`` is the name of the parameter in errors.
    """
    as_list = getattr(given, "tolist", None)  # numpy arrays and scalars, pandas columns
    if callable(as_list):
        given = as_list()
    if given is None:
        return []
    items: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    for item in items:
        if isinstance(item, bool) or not isinstance(item, (int, float, str)):
            raise EnsembleError(
                what.format(
                    f"a {type(item).__name__}" + (" in a list" if item is not given else "")
                ),
                hint="return a number, a text, a list of these, or None to submit nothing",
                code="bad-result",
            )
        if (isinstance(item, float) and not math.isfinite(item)) or "\0" in str(item):
            raise EnsembleError(
                what.format(item if isinstance(item, float) else "a text with a NUL character"),
                hint="return finite numbers or plain text",
                code="bad-result",
            )
    if len(items) > MOST_JOBS:
        raise EnsembleError(
            what.format(f"{len(items)} values"),
            hint=f"return at most {MOST_JOBS} values",
            code="out-of-range",
        )
    return [
        without_noise(float(item))
        if isinstance(item, float)
        else str(item)
        if isinstance(item, str)
        else item
        for item in items
    ]


def _storable(value: object) -> object:
    """Return the value of a field in a form that the journal can store."""
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def _one_line(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:  # an error in a user's class must not break the call
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _traceback(error: BaseException) -> str:
    """Return the traceback of an error without the frames of Ensemble."""
    import traceback

    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()
