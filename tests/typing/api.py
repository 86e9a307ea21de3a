"""Typed use of the public API. Only checked by ``mypy --strict``, never run.

Each ``type: ignore`` marks a misuse that the types must reject. mypy reports unused ones, so types
that become too loose are found too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ensemble_testing import ActionContract, FakeFiring, ObserverContract, StatisticContract
from typing_extensions import assert_type

import ensemble_core
from ensemble_core import (
    Action,
    ActionPlugin,
    CallContext,
    Decision,
    Emit,
    EnsembleError,
    Event,
    Executor,
    ExecutorError,
    ExecutorPlugin,
    FileErrors,
    Firing,
    Job,
    JobEvent,
    JobGroup,
    JobState,
    Location,
    Observer,
    ObserverPlugin,
    PluginEvent,
    ResizeOutcome,
    Row,
    Rule,
    Run,
    Statistic,
    StatisticPlugin,
    TimedStatistic,
    Trigger,
    TriggerPlugin,
    UsageError,
    WhenBusy,
    expression,
    hookimpl,
)

assert_type(ensemble_core.__version__, str)

# Runs.

run = ensemble_core.run("study.yaml", executor="local", overrides={"jobs.sim.count": 3})
assert_type(run, ensemble_core.EnsembleRun)
assert_type(run.exit_code, int | None)
assert_type(run.results("table"), ensemble_core.Rows)
assert_type(run.results()[0]["T"], Any)
assert_type(run.metric("mean.sim-energy"), float | None)
assert_type(run.wait(), ensemble_core.EnsembleRun)
assert_type(ensemble_core.open_run("last").tag, str)
ensemble_core.run({"jobs": [], "rules": []}, functions={"look": lambda **kwargs: None}, wait=False)
ensemble_core.run(["study.yaml"])  # type: ignore[arg-type]
ensemble_core.run("study.yaml", "local")  # type: ignore[call-arg]


async def awaits() -> None:
    assert_type(await run, ensemble_core.EnsembleRun)


# Jobs and groups.

job = Job(id="melt.3", group="melt", index=3, command=("lmp", "-in", "in.melt"))
assert_type(job.cores, int)
assert_type(job.workdir, str | None)
assert_type(job.fill("log.{index}"), str)
Job(id="melt.3", group="melt", index="3", command=("lmp",))  # type: ignore[arg-type]
Job("melt.3", "melt", 3, ("lmp",))  # type: ignore[call-arg]  # keywords only
job.index = 4  # type: ignore[misc]  # jobs are frozen

group = JobGroup(name="melt", command=("lmp",), count=4, parameters={"T": (0.5, 1.0)})
assert_type(group.size, int)
assert_type(group.jobs(0), Iterator[Job])
assert_type(JobState.RUN.final, bool)


# A slow action, and one that decides at once.


def ping(context: CallContext) -> Action | None:
    assert_type(context.metrics["mean.melt-duration"], float)
    assert_type(context.rule, Rule)
    with open(context.options["file"], "a") as file:
        print(context.event["type"], context.job, file=file)
    return Action(name="submit", label="melt")


def drain(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    value = firing.metric("count.melt.failed")
    assert_type(value, float | None)
    assert_type(firing.event, Event)
    if value is not None and value > options["most"]:
        yield firing.log(f"{value} jobs failed", "error")
        yield firing.cancel(firing.active("melt"))
        yield firing.terminate(3, reason="too many failures")
    assert_type(firing.job_spec, Job | None)
    assert_type(firing.group("melt"), JobGroup | None)
    limit = expression("= 2 * T").value(firing.fields, firing.metric)
    assert_type(limit, float | None)
    yield from firing.act(options["then"], {"limit": limit})
    yield from firing.act([Action(name="cancel").knowing({"limit": 3})])
    firing.act("cancel")  # type: ignore[arg-type]
    firing.log("loud", "shout")  # type: ignore[arg-type]
    firing.cancel(3)  # type: ignore[arg-type]


def impure(firing: Firing, options: Mapping[str, Any]) -> str:
    return firing.rule


@hookimpl
def ensemble_actions() -> list[ActionPlugin]:
    ActionPlugin(name="wrong", summary="", plan=impure)  # type: ignore[arg-type]
    ActionPlugin(name="wrong", summary="", run=drain)  # type: ignore[arg-type]
    return [
        ActionPlugin(name="ping", summary="Append to a file", run=ping),
        ActionPlugin(
            name="drain",
            summary="End the run when too much fails",
            plan=drain,
            options={"type": "object", "properties": {"most": {"type": "number"}}},
            needs=frozenset({"cancel"}),
        ),
    ]


# A trigger.


def on_alarm(name: str | None, options: Mapping[str, Any]) -> Trigger:
    def loud(event: Event, fields: Mapping[str, Any]) -> bool:
        return isinstance(event, PluginEvent) and bool(fields["level"] > options["above"])

    return Trigger(events=("alarm",), match=loud)


@hookimpl
def ensemble_triggers() -> list[TriggerPlugin]:
    return [TriggerPlugin(name="alarm", summary="An alarm rings", build=on_alarm)]


# Statistics, with and without time.


class Spread:
    def __init__(self) -> None:
        self.least = self.most = 0.0

    def update(self, value: float) -> None:
        self.least, self.most = min(self.least, value), max(self.most, value)

    def get(self) -> float:
        return self.most - self.least


class Age:
    def __init__(self) -> None:
        self.last: float | None = None

    def update(self, value: float, timestamp: float) -> None:
        self.last = timestamp

    def get(self, now: float) -> float | None:
        return None if self.last is None else now - self.last


spread: Statistic = Spread()
age: TimedStatistic = Age()
untimed: Statistic = Age()  # type: ignore[assignment]


@hookimpl
def ensemble_statistics() -> list[StatisticPlugin]:
    StatisticPlugin(name="wrong", summary="", build=lambda options: "no statistic")  # type: ignore[arg-type,return-value]
    return [
        StatisticPlugin(name="spread", summary="Most minus least", build=lambda options: Spread()),
        StatisticPlugin(
            name="age", summary="Since the last", build=lambda options: Age(), timed=True
        ),
    ]


# An observer.


class Numbers(Observer):
    def __init__(self, file: str) -> None:
        self.file = file

    @property
    def path(self) -> str:
        return self.file

    def feed(self, data: bytes) -> Iterable[Row]:
        return [Row({"value": float(word)}) for word in data.split()]


class Pathless(Observer):
    def feed(self, data: bytes) -> Iterable[Row]:
        return ()


Pathless()  # type: ignore[abstract]


def numbers(job: Job, options: Mapping[str, Any]) -> Numbers:
    return Numbers(job.fill(options["file"]))


@hookimpl
def ensemble_observers() -> list[ObserverPlugin]:
    return [
        ObserverPlugin(
            name="numbers",
            summary="Numbers in a file",
            build=numbers,
            variables=lambda options: frozenset({"value"}),
        )
    ]


# An executor.


class Nowhere(Executor):
    capabilities: ClassVar[frozenset[str]] = frozenset({"submit", "cancel", "resize"})

    def open(self, run: Run, emit: Emit) -> None:
        assert_type(run.tag, str)
        assert_type(run.clock, Callable[[], float])
        self.run, self.emit = run, emit

    def submit(self, jobs: Sequence[Job]) -> None:
        now = self.run.clock()
        self.emit([JobEvent(now, job=job.id, name="submit") for job in jobs])
        self.emit("submitted")  # type: ignore[arg-type]

    def cancel(self, jobs: Sequence[str]) -> None:
        raise ExecutorError("the queue is gone", hint="start it again")

    def resize(self, request: str, delta: int, *, when_busy: WhenBusy = "wait") -> None:
        outcome = ResizeOutcome(self.run.clock(), request=request, outcome="denied")
        self.emit([outcome])

    def close(self) -> None:
        pass


@hookimpl
def ensemble_executors() -> list[ExecutorPlugin]:
    ExecutorPlugin(name="wrong", summary="", build=Nowhere)  # type: ignore[arg-type]
    return [
        ExecutorPlugin(
            name="nowhere",
            summary="Takes jobs and loses them",
            build=lambda options: Nowhere(),
            capabilities=Nowhere.capabilities,
        )
    ]


# Errors, and base classes of tests.


def explain(error: EnsembleError) -> str:
    assert_type(error.where, Location | None)
    if isinstance(error, FileErrors):
        return "\n".join(explain(one) for one in error.errors)
    if isinstance(error, UsageError):
        return f"usage: {error}"
    return str(error)


class TestPing(ActionContract):
    plugin = ensemble_actions()[0]


class TestSpread(StatisticContract):
    plugin = ensemble_statistics()[0]


class TestNumbers(ObserverContract):
    plugin = ensemble_observers()[0]


class TestWrongKind(ObserverContract):
    plugin = ensemble_actions()[0]  # type: ignore[assignment]


fake = FakeFiring(metrics={"count.melt.failed": 9.0})
assert_type(list(drain(fake, {"most": 3})), list[Decision])
