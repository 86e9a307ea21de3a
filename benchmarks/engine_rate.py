"""Engine: the cost of rules, as ratios measured in one run.

The engine handles the ten events of each job with 0 … 10,000 metric rules over 10 groups and every
statistic. Prints the ratio of its time to that of the engine without rules, and to that of a bare
loop that makes the same updates of the same river statistics. With ``--peer PYTHON``, an
interpreter with ensemble-python 0.0.16, its ``record_event`` handles the same jobs in the same run.

    python benchmarks/engine_rate.py [--jobs N] [--rounds N] [--peer PYTHON]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

from river import stats

from ensemble_core.builtin.statistics import ensemble_statistics
from ensemble_core.engine.engine import Engine
from ensemble_core.metrics.series import StatisticSpec
from ensemble_core.model.conditions import parse
from ensemble_core.model.decisions import Submit
from ensemble_core.model.ensemble import Binder, Ensemble
from ensemble_core.model.events import Event, JobEvent, Started
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.rules import BoundAction, BoundRule, Trigger

GROUPS = [f"group{number}" for number in range(10)]
#: Metrics of the rules, alternately, with thresholds that are not reached.
PATHS = [
    ("count.{}.success", "== 1000000000"),
    ("mean.{}-duration", "> 1e9"),
    ("count.{}.failed", "> 1e9"),
    ("p95.{}-pending", ">= 1e9"),
    ("max.{}-duration", "< -1"),
]
LIFE = ("submit", "validate", "depend", "priority", "alloc", "start")
END = ("release", "free", "clean")


def _refuse(*_: Any) -> Any:
    raise NotImplementedError


def specs() -> dict[str, StatisticSpec]:
    """Return every built-in statistic without required options."""
    found = {}
    for record in ensemble_statistics():
        if not record.options.get("required"):
            found[record.name] = StatisticSpec(
                name=record.name,
                build=lambda record=record: record.build({}),  # type: ignore[misc]
                timed=record.timed,
                default=record.default,
                within=record.within,
            )
    return found


def ensemble(rules: int, jobs: int) -> Ensemble:
    """Return ten groups, a rule that submits all at the start, and ``rules`` metric rules."""

    def submit(firing: Any, options: Any) -> Any:
        for group in GROUPS:
            yield firing.submit(group)

    bound = [
        BoundRule(
            id="start",
            trigger=Trigger(events=("start",)),
            actions=(BoundAction(name="submit", plan=submit),),
        )
    ]
    for number in range(rules):
        path, when = PATHS[(number // len(GROUPS)) % len(PATHS)]
        bound.append(
            BoundRule(
                id=f"rule-{number}",
                trigger=Trigger(metric=path.format(GROUPS[number % len(GROUPS)])),
                condition=parse(when),
                actions=(BoundAction(name="nothing", plan=lambda firing, options: ()),),
            )
        )
    return Ensemble(
        name="bench",
        groups={
            name: JobGroup(name=name, command=("true",), count=jobs // len(GROUPS))
            for name in GROUPS
        },
        rules=tuple(bound),
        statistics=specs(),
        binder=Binder(rule=_refuse, action=_refuse, group=_refuse),
    )


def events_of(jobs: list[str]) -> list[Event]:
    """Yield the ten events of each job, with two jobs at a time."""
    events: list[Event] = []
    now = 1000.0
    for job in jobs:
        for name in LIFE:
            now += 0.001
            events.append(JobEvent(now, job, name, {}))
        events.append(JobEvent(now + 1.5 + (hash(job) % 97) / 100, job, "finish", {"status": 0}))
        events.extend(JobEvent(now + 3, job, name, {}) for name in END)
    return events


def measure_engine(rules: int, jobs: int, everything: bool) -> float:
    """Return seconds per job."""
    engine = Engine(ensemble(rules, jobs), all_statistics=everything)
    decided = engine.handle(Started(999.0))
    ids = [job.id for one in decided if isinstance(one, Submit) for job in one.jobs]
    events = events_of(ids)
    handle = engine.handle
    began = time.process_time()
    for event in events:
        handle(event)
    return (time.process_time() - began) / len(ids)


#: river's equivalents of our statistics.
RIVER: dict[str, Callable[[], Any]] = {
    "variance": stats.Var,
    "mean": stats.Mean,
    "max": stats.Max,
    "min": stats.Min,
    "sum": stats.Sum,
    "iqr": stats.IQR,
    "mad": stats.MAD,
    "median": lambda: stats.Quantile(0.5),
    "p90": lambda: stats.Quantile(0.9),
    "p95": lambda: stats.Quantile(0.95),
    "p99": lambda: stats.Quantile(0.99),
    "quantile": lambda: stats.Quantile(0.5),
    "ewma": lambda: stats.EWMean(0.3),
}


def measure_floor(jobs: int, everything: bool) -> float:
    """Return seconds per job for only the same updates of the same statistics."""
    kept = [spec for spec in specs().values() if everything or spec.default]
    variables = ["duration", "pending", *(["duration.success"] if everything else [])]
    updates: list[tuple[list[Callable[[float], Any]], list[Callable[[float, float], Any]]]] = []
    for _ in GROUPS:
        for _ in variables:
            plain = [RIVER.get(spec.name, spec.build)().update for spec in kept if not spec.timed]
            timed: list[Any] = [spec.build().update for spec in kept if spec.timed]
            updates.append((plain, timed))
    size = len(variables)
    began = time.process_time()
    for number in range(jobs):
        first = number % len(GROUPS) * size
        for plain, timed in updates[first : first + size]:
            value = 1.5 + (number % 97) / 100
            for update in plain:
                update(value)
            for stamped in timed:
                stamped(value, 1000.0 + number)
    return (time.process_time() - began) / jobs


PEER = """
import sys, time, types
flux = types.ModuleType("flux")
for name in ("constants", "job", "message"):
    module = types.ModuleType("flux." + name)
    setattr(flux, name, module)
    sys.modules["flux." + name] = module
flux.Flux = lambda: None
sys.modules["flux"] = flux
import yaml, tempfile
from ensemble.members.flux.queue import FluxQueue
rules, jobs = int(sys.argv[1]), int(sys.argv[2])
groups = [f"group{n}" for n in range(10)]
paths = ["count.{}.success", "mean.{}-duration", "count.{}.failed"]
cfg = {"jobs": [{"name": g, "command": "true"} for g in groups],
       "rules": [{"trigger": "start", "action": {"name": "submit", "label": "group0"}}]}
for n in range(rules):
    cfg["rules"].append({"trigger": "metric", "name": paths[(n // 10) % 3].format(groups[n % 10]),
                         "when": 1000000000, "action": {"name": "terminate"}})
with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
    yaml.safe_dump(cfg, file); file.flush()
    queue = FluxQueue()
    queue.load(file.name)
now, records = 1000.0, []
for n in range(jobs):
    queue.jobids[n] = {"name": groups[n % 10]}
    for name in ("submit", "validate", "depend", "priority", "alloc", "start", "finish", "release",
                 "free", "clean"):
        now += 0.001
        event = {"timestamp": now, "name": name}
        if name == "finish":
            event["context"] = {"status": 0}
        records.append({"id": n, "events": [event]})
began = time.process_time()
for record in records:
    queue.record_event(record)
print((time.process_time() - began) / jobs)
"""


def measure_peer(python: str, rules: int, jobs: int) -> float:
    """Return seconds per job of ensemble-python 0.0.16 for the same events."""
    done = subprocess.run(
        [python, "-c", PEER, str(rules), str(jobs)], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measure alternately and print medians of ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", help="a Python with ensemble-python 0.0.16")
    options = parser.parse_args()
    sizes = (0, 10, 100, 1_000, 10_000)
    for everything, kept in ((True, "every statistic"), (False, "default statistics")):
        times: dict[int, list[float]] = {size: [] for size in sizes}
        floors: list[float] = []
        peers: dict[int, list[float]] = {size: [] for size in sizes}
        for _ in range(options.rounds):
            floors.append(measure_floor(options.jobs, everything))
            for size in sizes:
                times[size].append(measure_engine(size, options.jobs, everything))
                if options.peer and size <= 1_000:
                    few = (
                        options.jobs if size < 100 else options.jobs // (10 if size < 1000 else 50)
                    )
                    peers[size].append(measure_peer(options.peer, size, few))
        print(f"{kept}, {options.jobs} jobs, {options.rounds} rounds, medians:")
        print("   rules      jobs/s  events/s   cost/no rules   rate/bare river loop   rate/0.0.16")
        for size in sizes:
            each = statistics.median(times[size])
            cost = statistics.median(a / b for a, b in zip(times[size], times[0], strict=True))
            floor = statistics.median(a / b for a, b in zip(floors, times[size], strict=True))
            pairs = zip(peers[size], times[size], strict=True) if peers[size] else ()
            ratios = [a / b for a, b in pairs]
            peer = f"{statistics.median(ratios):.2f}" if ratios else "-"
            rates = f"{1 / each:11,.0f} {10 / each:9,.0f}"
            print(f"{size:8d} {rates} {cost:15.2f} {floor:22.2f} {peer:>13}")


if __name__ == "__main__":
    main()
