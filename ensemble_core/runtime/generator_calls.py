"""Calls generators, outside the engine's thread.

Each generator has its own thread, so one that hangs does not block the others.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ensemble_core.engine.generator_state import SuggestCall
from ensemble_core.errors import EnsembleError, raised_at
from ensemble_core.model.decisions import Call
from ensemble_core.model.events import CallFailed, CallReturned, Event
from ensemble_core.model.generators import Exchange, Generator, GeneratorSpec, Point
from ensemble_core.plugin.first_points import FirstPoints
from ensemble_core.plugin.untrusted_code import Purpose

_Answer = tuple[Mapping[str, Any], ...]


class MakeSuggestion(NamedTuple):
    """Order: call a generator, with its input."""

    input: SuggestCall  #: The input of this call.
    exchanges: Sequence[Exchange]
    #: The first ``known`` of the ``exchanges`` are calls that the generator has answered.
    known: int

    @property
    def call(self) -> Call:
        """The decision ``Call``."""
        return self.input.call


class GeneratorCalls:
    """Makes the calls of all generators of a run. ``emit`` receives the outcomes as events.

    Generators keep their state only in memory. After a resume, the first call therefore also
    repeats the earlier calls from the journal. Its timeout is the sum of the timeouts of all these
    calls.
    """

    def __init__(
        self,
        specs: Mapping[str, GeneratorSpec],
        emit: Callable[[Event], None],
        clock: Callable[[], float],
        purpose: Purpose = "check",
    ) -> None:
        self._specs = specs
        self._purpose: Purpose = purpose
        self._emit = emit
        self._clock = clock
        self._guards: dict[str, queue.SimpleQueue[MakeSuggestion | None]] = {}
        self._workers: dict[str, _Worker] = {}

    def make(self, task: MakeSuggestion) -> None:
        """Make a call on another thread. Returns immediately."""
        name = task.call.name
        if name not in self._guards:
            tasks: queue.SimpleQueue[MakeSuggestion | None] = queue.SimpleQueue()
            guard = threading.Thread(
                target=self._guard, args=(tasks,), name=f"generator {name}", daemon=True
            )
            try:
                guard.start()
            except RuntimeError as error:  # the system cannot start more threads
                self._emit(CallFailed(self._clock(), task.call.call, f"cannot be called: {error}"))
                return
            self._guards[name] = tasks
        self._guards[name].put(task)

    def close(self) -> None:
        """Accept no more calls.

        A call that hangs is abandoned; its thread ends with the process.
        """
        for tasks in self._guards.values():
            tasks.put(None)
        for worker in self._workers.values():
            worker.tasks.put(None)

    def _guard(self, tasks: queue.SimpleQueue[MakeSuggestion | None]) -> None:
        while (task := tasks.get()) is not None:
            self._emit(self.outcome(task))

    def outcome(self, task: MakeSuggestion) -> CallReturned | CallFailed:
        """Make a call and return its outcome, at the latest after its ``timeout``.

        The first call after a resume has the sum of the timeouts of all calls that it repeats.
        """
        worker = self._worker(task.call.name)
        if worker.quick:
            return self._outcome(task, worker.call(task))
        timeout = self._specs[task.call.name].timeout * worker.calls(task)
        timeout = min(timeout, threading.TIMEOUT_MAX)
        found: _Answer | _Fault
        try:
            worker.begin(task)
            found = worker.answers.get(timeout=timeout)
        except queue.Empty:
            found = _Fault(f"gave no answer within {timeout:g} s")
        except RuntimeError as error:  # the system cannot start more threads
            found = _Fault(f"cannot be called: {error}")
        return self._outcome(task, found)

    def _worker(self, name: str) -> _Worker:
        if name not in self._workers:
            self._workers[name] = _Worker(self._specs[name], self._purpose)
        return self._workers[name]

    def _outcome(self, task: MakeSuggestion, found: _Answer | _Fault) -> CallReturned | CallFailed:
        call = task.call
        if isinstance(found, _Fault):
            self._workers.pop(call.name).tasks.put(None)  # the next call builds the generator again
            return CallFailed(self._clock(), call.call, found.what, found.traceback)
        return CallReturned(self._clock(), call.call, found)


class _Fault(NamedTuple):
    """The reason why a call failed."""

    what: str
    traceback: str = ""


class _Worker:
    """A generator and the thread that calls it."""

    def __init__(self, spec: GeneratorSpec, purpose: Purpose) -> None:
        self.tasks: queue.SimpleQueue[MakeSuggestion | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[_Answer | _Fault] = queue.SimpleQueue()
        self._spec = spec
        self._purpose: Purpose = purpose
        self._generator: Generator | None = None
        self._tags: set[Any] = set()
        self._begun = False

    @property
    def quick(self) -> bool:
        """True if the next call needs no separate thread. Never true before the first call."""
        return self._generator is not None and self._generator.quick

    def calls(self, task: MakeSuggestion) -> int:
        """Return how many calls a task consists of. The first task also repeats recorded calls."""
        return 1 if self._begun else 1 + task.known

    def begin(self, task: MakeSuggestion) -> None:
        """Make a call on the worker's thread, which puts the answer into ``answers``."""
        if not self._begun:
            self._begun = True
            name = f"generator {self._spec.name} (calls)"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        self.tasks.put(task)

    def _work(self) -> None:
        while (task := self.tasks.get()) is not None:
            self.answers.put(self.call(task))

    def call(self, task: MakeSuggestion) -> _Answer | _Fault:
        """Make a call on this thread."""
        try:
            return self._answer(task)
        except EnsembleError as error:
            return _Fault(str(error))
        except BaseException as error:  # a plugin's generator may raise anything
            text = " ".join(str(error).split())[:300]
            what = f"raised {type(error).__name__}: {text} ({raised_at(error)})"
            import traceback

            return _Fault(what, "".join(traceback.format_exception(error)))

    def _answer(self, task: MakeSuggestion) -> _Answer:
        given, spec = task.input, self._spec
        if self._generator is None:
            built = spec.build(self._purpose)
            self._generator = FirstPoints(built, spec.first) if spec.first else built
            before = task.exchanges[: task.known]
            if before:
                fit = [each._replace(ingested=tuple(_fit(spec, each.ingested))) for each in before]
                self._generator.resume(fit)
            self._tags = {each.tag for one in before for each in one.suggested}
        generator = self._generator
        if given.ingested:
            generator.ingest(_fit(spec, given.ingested))
        answer: list[Mapping[str, Any]] = []
        if given.readings:
            answer += self._prune_entries(generator.prune(given.readings))
        if given.count:
            answer += self._check_suggestions(generator.suggest(given.count), given.count)
        return tuple(answer)

    @staticmethod
    def _prune_entries(found: Collection[int]) -> list[Mapping[str, Any]]:
        return [{"prune": int(number)} for number in sorted(set(found))]

    def _check_suggestions(self, found: object, count: int) -> list[Mapping[str, Any]]:
        """Check the suggestions and return them as plain data. Raises :class:`EnsembleError`."""
        if isinstance(found, (str, bytes, Mapping)) or not isinstance(found, Iterable):
            raise _fault(f"suggested {found!r:.80}, expected a list of points")
        points = list(found)
        if len(points) > count:
            raise _fault(f"suggested {len(points)} points, but {count} were requested")
        answer: list[Mapping[str, Any]] = []
        tags = set(self._tags)
        for each in points:
            if not isinstance(each, Mapping):
                raise _fault(f"suggested {each!r:.80}, expected a value for each variable")
            point = {str(name): _plain(value) for name, value in each.items()}
            tag = point.pop("_id", None)
            point = self._spec.vocs.filled(point)
            why = self._spec.vocs.refused(point)
            if why is not None:
                raise _fault(why.removeprefix("it "))
            point = self._spec.vocs.clipped(point)
            if tag is not None:
                if not isinstance(tag, (str, int)):
                    raise _fault(f"gave a point the _id {tag!r}, expected a number or a text")
                if tag in tags:
                    raise _fault(f"suggested a second point with the _id {tag!r}")
                tags.add(tag)
                point["_id"] = tag
            answer.append({"point": point})
        self._tags = tags
        return answer


def _fault(what: str) -> EnsembleError:
    return EnsembleError(what, code="generator-fault")


def _fit(spec: GeneratorSpec, points: Sequence[Point]) -> list[Point]:
    """Return the points that are valid for the problem.

    Other points come from an earlier version of the file, or from a generator with another problem.
    """
    outputs = {*spec.vocs.outputs}
    return [
        each
        for each in points
        if spec.vocs.refused(each.parameters) is None
        and (not each.values or outputs <= each.values.keys())
    ]


def _plain(value: object) -> Any:
    """Convert a value for JSON: numpy scalars become Python numbers."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        value = item()
    if isinstance(value, float) and value != value:
        raise _fault("suggested nan")
    return value
