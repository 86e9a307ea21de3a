"""Order in which the local executor starts waiting jobs."""

from __future__ import annotations

import itertools
import random

from ensemble_core.local.local_job import LocalJob
from ensemble_core.local.slots import Slots
from ensemble_core.local.waiting_jobs import BYPASS_LEAST, Queue
from ensemble_core.model.jobs import Job

_numbers = itertools.count()


def waiting(
    cores: int = 1,
    duration: float = 0.0,
    urgency: int = 16,
    gpus: int = 0,
    ends: float | None = None,
) -> LocalJob:
    number = next(_numbers)
    job = Job(
        id=f"g.{number}",
        group="g",
        index=number,
        command=("true",),
        cores_per_task=cores,
        gpus_per_task=gpus,
        duration=duration,
        urgency=urgency,
    )
    record = LocalJob(job, number)
    record.ends = ends
    return record


def start_all(
    queue: Queue, slots: Slots, running: list[LocalJob], now: float = 0.0
) -> list[LocalJob]:
    started = []
    while (entry := queue.choose(slots, running, now, lambda job: 1.0)) is not None:
        assert isinstance(entry, LocalJob)
        entry.gpus = slots.take(entry.job.cores, entry.job.gpus)
        if entry.job.duration:
            entry.ends = now + entry.job.duration + 1.0
        running.append(entry)
        started.append(entry)
    return started


def end(slots: Slots, running: list[LocalJob], record: LocalJob) -> None:
    running.remove(record)
    slots.give_back(record.job.cores, record.gpus)


def filled(*entries: LocalJob) -> Queue:
    queue = Queue()
    for entry in entries:
        queue.add(entry)
    return queue


def test_first_in_first_out() -> None:
    jobs = [waiting(cores=random.choice((1, 2))) for _ in range(20)]
    assert start_all(filled(*jobs), Slots(100, 1, 100), []) == jobs


def test_urgent_jobs_start_first_and_held_ones_never() -> None:
    low, normal, held, high = (waiting(urgency=urgency) for urgency in (8, 16, 0, 31))
    assert start_all(filled(low, normal, held, high), Slots(4, 1, 4), []) == [high, normal, low]


def test_cancelled_jobs_are_skipped() -> None:
    jobs = [waiting() for _ in range(3)]
    jobs[0].over = jobs[2].over = True
    assert start_all(filled(*jobs), Slots(4, 1, 4), []) == [jobs[1]]


def test_endless_small_jobs_do_not_starve_a_big_one() -> None:
    slots, running = Slots(2, 1, 2), [waiting()]
    slots.take(1, 0)
    big = waiting(cores=2)
    queue = filled(big)
    passed = 0
    while big not in running:
        queue.add(waiting())
        started = start_all(queue, slots, running)
        passed += sum(entry is not big for entry in started)
        assert passed <= max(BYPASS_LEAST, 2 * slots.size)
        if big not in running:
            end(slots, running, running[-1])
    assert passed > 0


def test_with_limits_only_jobs_that_end_in_time_pass() -> None:
    slots, running = Slots(4, 1, 4), [waiting(cores=3, ends=100.0)]
    running[0].gpus = slots.take(3, 0)
    big = waiting(cores=4, duration=50.0)
    late, endless, short = waiting(duration=200.0), waiting(), waiting(duration=20.0)
    assert start_all(filled(big, late, endless, short), slots, running) == [short]


def test_with_limits_a_job_that_needs_only_spare_slots_may_pass() -> None:
    slots, running = Slots(4, 1, 4), [waiting(cores=3, ends=100.0)]
    slots.take(3, 0)
    big, endless = waiting(cores=3, duration=50.0), waiting()
    assert start_all(filled(big, endless), slots, running) == [endless]


def test_a_short_job_may_pass_long_ones_of_the_same_shape() -> None:
    slots, running = Slots(4, 1, 4), [waiting(cores=3, ends=100.0)]
    slots.take(3, 0)
    big, short = waiting(cores=4), waiting(duration=20.0)
    queue = filled(big, *(waiting(duration=500.0) for _ in range(10)), short)
    assert start_all(queue, slots, running) == [short]


def test_a_job_that_needs_more_slots_does_not_block_others() -> None:
    slots, running = Slots(2, 1, 4), list[LocalJob]()
    big, small = waiting(cores=4), [waiting() for _ in range(40)]
    queue = filled(big, *small)
    for _ in range(20):
        assert len(start_all(queue, slots, running)) == 2
        while running:
            end(slots, running, running[0])
    slots.resize(2)
    assert start_all(queue, slots, running) == [big]


def test_a_job_waiting_for_a_gpu_lets_others_use_the_cores() -> None:
    slots, running = Slots(4, 1, 4, ("0",)), [waiting(gpus=1)]
    running[0].gpus = slots.take(1, 1)
    gpu, plain = waiting(gpus=1), waiting()
    queue = filled(gpu, plain)
    assert start_all(queue, slots, running) == [plain]
    end(slots, running, running[0])
    assert start_all(queue, slots, running) == [gpu]


def test_slots_are_never_exceeded_and_every_job_starts() -> None:
    chance = random.Random(7)
    slots, running = Slots(6, 1, 6, ("0", "1")), list[LocalJob]()
    jobs = [
        waiting(
            cores=chance.randint(1, 6),
            gpus=chance.choice((0, 0, 0, 1, 2)),
            duration=chance.choice((0.0, 5.0, 50.0)),
            urgency=chance.choice((8, 16, 24)),
        )
        for _ in range(300)
    ]
    queue = filled(*jobs)
    started: list[LocalJob] = []
    for step in range(10_000):
        started += start_all(queue, slots, running, float(step))
        assert slots.used <= slots.size
        taken = [gpu for entry in running for gpu in entry.gpus]
        assert len(taken) == len(set(taken))
        if not running:
            break
        end(slots, running, chance.choice(running))
    assert sorted(entry.number for entry in started) == [entry.number for entry in jobs]
