"""Tests of deadlines and rate limits of requests."""

from __future__ import annotations

import asyncio

import pytest
from ensemble_service.request_limits import Deadline, RateLimiter


def test_each_request_has_its_own_deadline_from_its_start() -> None:
    loop_time: list[tuple[str, float]] = []

    async def one(name: str, seconds: float) -> str:
        began = asyncio.get_running_loop().time()
        deadline = Deadline(0.1)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            loop_time.append((name, asyncio.get_running_loop().time() - began))
            return f"{name} over" if deadline.end() else f"{name} cancelled"
        return f"{name} late" if deadline.end() else f"{name} done"

    async def all_of_them() -> list[str]:
        tasks = [asyncio.create_task(one("quick", 0.0))]
        tasks.append(asyncio.create_task(one("long", 5.0)))
        await asyncio.sleep(0.05)
        tasks.append(asyncio.create_task(one("later", 5.0)))
        tasks.append(asyncio.create_task(one("left", 5.0)))
        await asyncio.sleep(0)
        tasks[3].cancel()
        told = list(await asyncio.gather(*tasks))
        # Again, while no other request is in progress.
        return [*told, await one("again", 5.0), await one("short", 0.01)]

    told = asyncio.run(all_of_them())
    assert told == [
        "quick done",
        "long over",
        "later over",
        "left cancelled",
        "again over",
        "short done",
    ]
    took = dict(loop_time)
    assert all(took[name] >= 0.099 for name in ("long", "later", "again"))


def test_a_request_is_not_cancelled_again_after_its_deadline() -> None:
    async def one() -> None:
        deadline = Deadline(0.01)
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            assert deadline.end()
        await asyncio.sleep(0.03)
        # The cancellation leaves no trace: the task's own timeout still works.
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.sleep(5), 0.01)

    asyncio.run(one())


def test_rate_limits_recover_with_time_and_are_independent() -> None:
    buckets = RateLimiter(rate=2, burst=2)
    assert [buckets.take("a", 0.0) for _ in range(3)] == [True, True, False]
    assert buckets.take("b", 0.0)
    assert [buckets.take("a", 0.5) for _ in range(2)] == [True, False]
