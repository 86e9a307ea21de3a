"""Studies: the cost of instances of rules, results and slices, as ratios measured in one run.

Each part is compared with the same events without the feature:

- rows of 1,000 keys with ten rules, with and without ``each``;
- jobs with a ``result``, a table of results and three rules with ``each``, for 1,000 values of a
  parameter;
- the same jobs with a filtered statistic, a table of 1,000 rows with a ``pivot`` and two rules on
  it, which trigger when the group is idle or at the end of each job;
- a ``vary`` whose combinations all exist already.

"Without" are the same jobs and events without results and rules; "results only" have the same
``result``. Their memory is compared, too.

    python benchmarks/study_rate.py [--jobs N] [--rounds N]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from engine_rate import END, LIFE, ensemble

from ensemble_core.engine.engine import Engine
from ensemble_core.model.conditions import parse
from ensemble_core.model.decisions import Decision, Submit
from ensemble_core.model.ensemble import Ensemble, Limits
from ensemble_core.model.events import Event, JobEvent, Observed, Started
from ensemble_core.model.expressions import expression
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.rules import UNLIMITED, BoundAction, BoundRule, Trigger
from ensemble_core.model.tables import Table

KEYS = 1_000
TABLE = Table(
    name="means",
    of="sim",
    by=("T",),
    columns={"mean": expression("mean.E")},
    reads=frozenset({"mean.E"}),
)


PIVOTED = Table(
    name="pivoted",
    of="sim",
    by=("T",),
    pivot="L",
    values=(16, 32),
    per_value=frozenset({"E", "e"}),
    columns={
        "E": expression("mean.E"),
        "e": expression("error.E"),
        "gap": expression("E[32] - E[16]"),
        "err": expression("sqrt(e[32]**2 + e[16]**2)"),
    },
    names=("L", "T", "E"),
    reads=frozenset({"mean.E", "error.E"}),
)


def nothing(firing: Any, options: Any) -> Iterable[Decision]:
    """Plan without decisions."""
    return ()


def submit(firing: Any, options: Any) -> Iterable[Decision]:
    """Plan that submits the group."""
    yield firing.submit("sim")


def study(group: JobGroup, rules: Iterable[BoundRule]) -> Ensemble:
    """Return a group that is submitted at the start, with these rules."""
    start = BoundRule(
        id="start",
        trigger=Trigger(events=("start",)),
        actions=(BoundAction(name="submit", plan=submit),),
    )
    return replace(
        ensemble(0, 10), groups={"sim": group}, rules=(start, *rules), limits=Limits(chain=10**9)
    )


def rule(number: int, event: str, when: str, each: Any, reads: Iterable[str] = ()) -> BoundRule:
    """Return a rule without decisions."""
    return BoundRule(
        id=f"rule-{number}",
        trigger=Trigger(events=(event,), group="sim"),
        actions=(BoundAction(name="nothing", plan=nothing),),
        condition=parse(when, has_value=False),
        repetitions=UNLIMITED,
        each=each,
        reads=frozenset(reads),
    )


def begun(checked: Ensemble) -> tuple[Engine, list[str]]:
    """Return an engine that has submitted its jobs."""
    engine = Engine(checked, all_statistics=False)
    decided = engine.handle(Started(0.0))
    return engine, [job.id for one in decided if isinstance(one, Submit) for job in one.jobs]


def timed(engine: Engine, events: list[Event]) -> float:
    """Return seconds per event."""
    handle = engine.handle
    gc.collect()  # exclude the garbage collection of other engines
    began = time.process_time()
    for event in events:
        handle(event)
    return (time.process_time() - began) / len(events)


def sweep(count: int, **fields: Any) -> JobGroup:
    """Return a group with ``KEYS`` values of a parameter, each ``count`` times."""
    values = tuple(number / 1000 for number in range(KEYS))
    return JobGroup(name="sim", command=("true",), parameters={"T": values}, count=count, **fields)


def rows(each: Any) -> float:
    """Return seconds per row of a thousand jobs with ten rules."""
    rules = [rule(number, "observed", f"x > {number + 1e9}", each) for number in range(10)]
    engine, jobs = begun(study(sweep(1), rules))
    for job in jobs:
        for name in LIFE:
            engine.handle(JobEvent(1.0, job, name, {}))
    events: list[Event] = [
        Observed(2.0 + turn, job, "o", {"x": float(turn)}) for turn in range(20) for job in jobs
    ]
    return timed(engine, events)


def lives(jobs: int, with_study: bool) -> float:
    """Return seconds per event of jobs with a result, or of the same jobs without."""
    count = max(1, jobs // KEYS)
    if with_study:
        group = sweep(count, result={"E": expression("duration * 2")})
        rules = [
            rule(0, "job-done", "mean.E > 1e9", ("T",), ["mean.E"]),
            rule(1, "idle", "count.done < 0 and mean.E > 0", ("T",), ["count.done", "mean.E"]),
            rule(2, "job-fail", "count.failed > 9", "job", ["count.failed"]),
        ]
    else:
        group, rules = sweep(count), []
    checked = study(group, rules)
    if with_study:
        checked = replace(checked, tables={TABLE.name: TABLE})
    engine, ids = begun(checked)
    events: list[Event] = []
    now = 1000.0
    for job in ids:
        now += 0.01
        events += [JobEvent(now, job, name, {}) for name in LIFE]
        events.append(JobEvent(now + 1.5, job, "finish", {"status": 0}))
        events += [JobEvent(now + 2, job, name, {}) for name in END]
    took = timed(engine, events)
    assert not with_study or len(engine.tables()[TABLE.name]) == KEYS, "jobs are not in the table"
    return took


def pivoted(jobs: int, event: str = "", *, result: bool = False) -> float:
    """Return the seconds per event of jobs with or without a ``result``.

    ``event`` adds a result, a rule on a filtered statistic and two rules on a pivot table.
    """
    group = sweep(max(1, jobs // KEYS // 2))
    group = replace(group, parameters={"L": (16, 32), **group.parameters})
    rules: list[BoundRule] = []
    if event or result:
        group = replace(group, result={"E": expression("duration * 2")})
    if event:
        rules = [
            rule(0, "job-done", "mean.E(L == 16) > 1e9", None, ["mean.E(L == 16)"]),
            rule(1, event, "max.pivoted.gap(err < 1) > 1e9", None),
            rule(2, event, "min.pivoted.T(gap < 0) > 1e9", None),
        ]
        rules[0] = replace(rules[0], reads_of="sim")
        for number in (1, 2):
            condition = rules[number].condition
            assert condition is not None
            rules[number] = replace(rules[number], of_tables=condition.names)
    checked = study(group, rules)
    if event:
        checked = replace(checked, tables={PIVOTED.name: PIVOTED})
    engine, ids = begun(checked)
    events: list[Event] = []
    now = 1000.0
    for number, job in enumerate(ids):
        now += 0.01
        events += [JobEvent(now, job, name, {}) for name in LIFE]
        events.append(JobEvent(now + 1 + number % 7, job, "finish", {"status": 0}))
        events += [JobEvent(now + 8, job, name, {}) for name in END]
    took = timed(engine, events)
    if event:
        assert len(engine.tables()[PIVOTED.name]) == KEYS, "jobs are not in the table"
        assert engine.state.metric("mean.sim-E(L == 16)") is not None, "no filtered statistic"
    return took


def peak(jobs: int, event: str = "") -> int:
    """Return the largest memory of the jobs of ``pivoted`` and their events, in bytes."""
    gc.collect()
    tracemalloc.start()
    pivoted(jobs, event)
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


def vary(combinations: int) -> float:
    """Return seconds for a vary whose combinations all exist already."""

    def ask(firing: Any, options: Any) -> Iterable[Decision]:
        yield from firing.vary({"T": list(range(combinations))})

    again = BoundRule(
        id="again",
        trigger=Trigger(events=("job-submit",), group="sim"),
        actions=(BoundAction(name="vary", plan=ask, varies=frozenset({"sim"})),),
    )
    group = JobGroup(name="sim", command=("x",), parameters={"T": tuple(range(combinations))})
    engine, jobs = begun(study(group, [again]))
    event = JobEvent(1.0, jobs[0], "submit", {})
    began = time.process_time()
    decided = engine.handle(event)
    took = time.process_time() - began
    assert not any(isinstance(one, Submit) for one in decided), "submitted again"
    assert engine.state.firings == 2, "the rule did not fire"
    return took


def main() -> None:
    """Measure alternately and print medians of ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for each, what in (("job", "each: job"), (("T",), "each: [T]")):
        ratios = [rows(each) / rows(None) for _ in range(options.rounds)]
        print(f"a row, ten rules with {what}: {statistics.median(ratios):.2f} times without")
    rates = [lives(options.jobs, False) / lives(options.jobs, True) for _ in range(options.rounds)]
    print(
        f"{options.jobs} jobs with results and slices: {statistics.median(rates):.2f} of the rate"
    )
    for event in ("idle", "job-done"):
        bare, with_result = [], []
        for _ in range(options.rounds):
            took = pivoted(options.jobs, event)
            bare.append(pivoted(options.jobs) / took)
            with_result.append(pivoted(options.jobs, result=True) / took)
        print(
            f"{options.jobs} jobs with a filtered statistic, a pivot table of {KEYS} rows and two "
            f"rules on it at {event}: {statistics.median(bare):.2f} of the rate without, "
            f"{statistics.median(with_result):.2f} of the rate with results only"
        )
    more = peak(options.jobs, "job-done") - peak(options.jobs)
    print(f"their statistics and table: {more / options.jobs:.0f} bytes a job")
    print(f"a vary of 100,000 combinations that were had: {vary(100_000):.2f} s")


if __name__ == "__main__":
    main()
