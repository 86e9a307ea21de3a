"""The order in which events of different jobs arrive at one time does not change which rules fire."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from ensemble_testing import Story

from ensemble_core.model.decisions import Fired

JOBS = 4
FILE = f"""
jobs: [{{name: sim, command: x, count: {JOBS}, observe: {{key-value: {{fields: [T]}}}}}}]
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}
  - {{id: hot, trigger: observed, name: sim, each: job, when: T > 50, repetitions: 3, ACTION}}
  - {{id: twice, trigger: observed, name: sim, each: job, when: T > 50, for: 2, repetitions: 2, ACTION}}
  - {{id: lasts, trigger: observed, name: sim, each: job, when: T > 50, for: 20s, ACTION}}
  - {{id: rises, trigger: observed, name: sim, each: job, crosses: T > 50, repetitions: 9, ACTION}}
  - {{id: first, trigger: observed, name: sim, each: job, crosses: T > 60, at_first: true, ACTION}}
  - {{id: failed, trigger: metric, name: count.sim.failed(within 30s), when: ">= 2", ACTION}}
  - {{id: rising, trigger: metric, name: count.sim.failed(within 30s), crosses: ">= 2", ACTION}}
  - {{id: all, trigger: metric, name: count.sim.finished, when: ">= {JOBS - 1}", for: 7s, ACTION}}
  - {{id: each, trigger: job-fail, name: sim, each: job, ACTION}}
  - {{id: over, trigger: idle, name: sim, ACTION}}
""".replace("ACTION", "action: {name: log, message: m}")

Happening = Callable[[Story], object]


def _row(job: str, value: float) -> Happening:
    return lambda story: story.observe(job, T=value)


def _end(job: str, status: int) -> Happening:
    return lambda story: story.end(job, status=status, duration=0)


def _plan(chance: random.Random) -> list[tuple[float, dict[str, list[Happening]]]]:
    """Return what happens to each job, at some times."""
    plan: list[tuple[float, dict[str, list[Happening]]]] = []
    live = [f"sim.{n}" for n in range(JOBS)]
    while live:
        now: dict[str, list[Happening]] = {}
        for job in [*live]:
            now[job] = [
                _row(job, chance.choice([40, 55, 70, float("nan")]))
                for _ in range(chance.choice([0, 1, 1, 2]))
            ]
            if chance.random() < 0.15:
                now[job].append(_end(job, chance.choice([0, 256])))
                live.remove(job)
        plan.append((chance.choice([0.5, 3.0, 8.0, 21.0]), now))
    return plan


def _firings(
    plan: list[tuple[float, dict[str, list[Happening]]]], chance: random.Random
) -> list[tuple[str, str, float]]:
    """Play the plan, with the jobs in a random order at each time; return what fired, and when."""
    story = Story(FILE)
    story.start()
    for number in range(JOBS):
        story.begin(f"sim.{number}")
    found = []
    for pause, now in plan:
        before = len(story.decisions)
        left = {job: [*happened] for job, happened in now.items() if happened}
        while left:
            job = chance.choice([*left])
            left[job].pop(0)(story)
            if not left[job]:
                del left[job]
        found += _fired(story, before)
        before = len(story.decisions)
        story.wait(pause)
        found += _fired(story, before)
    return found


def _fired(story: Story, before: int) -> list[tuple[str, str, float]]:
    fired = [one for one in story.decisions[before:] if isinstance(one, Fired)]
    return sorted((one.rule or "", _job(one), story.now) for one in fired)


def _job(fired: Fired) -> str:
    """Return the job of an instance. A rule about all jobs fires at the job that comes last."""
    return "" if fired.rule in ("failed", "rising", "all", "over") else fired.job or ""


@pytest.mark.parametrize("seed", range(30))
def test_order_of_arrival_at_one_time_does_not_change_which_rules_fire(seed: int) -> None:
    plan = _plan(random.Random(seed))
    first, *others = [_firings(plan, random.Random(order)) for order in range(4)]
    assert first
    assert others == [first] * len(others)
