"""Tests of two operators at a time, and of two Ensembles of one name, one after the other."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any, cast

import pytest
from ensemble_operator import kopf_watch
from ensemble_operator.api import Api
from ensemble_operator.lease import Lease
from ensemble_testing import wait_until
from fake_namespace import ensemble
from operator_cluster import Stand

KEY = ("default", "study")


class QuickLoop(asyncio.SelectorEventLoop):
    """Event loop that skips all pauses: its time advances by them."""

    def __init__(self) -> None:
        super().__init__(selectors.SelectSelector())
        self._now, select = 0.0, self._selector.select  # type: ignore[attr-defined]

        def skip(timeout: float | None = None) -> Any:
            self._now += timeout or 0.0
            return select(0)

        self._selector.select = skip  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now


@pytest.mark.parametrize("slow", [0.0, 4.9])
@pytest.mark.parametrize("good", [0, 3])
def test_an_operator_stops_before_its_lease_ends_for_others(slow: float, good: int) -> None:
    """The API server answers slowly, and then not at all."""
    loop, renewed = QuickLoop(), [0.0]

    async def api(method: str, path: str, body: Any = None, **more: Any) -> Any:
        if len(renewed) > good:
            await asyncio.sleep(3600)
        if method == "PATCH":
            renewed.append(loop.time())  # from now on, others wait for ``duration``
            await asyncio.sleep(slow)
        return {"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": "me"}}

    lease = Lease(cast(Api, api), "default", "me", clock=loop.time)
    try:
        loop.run_until_complete(lease.hold())
        assert loop.time() - renewed[-1] <= 10.0
    finally:
        loop.close()


def test_an_operator_that_was_stopped_for_longer_than_its_lease_ends_at_once() -> None:
    """Its machine was frozen, so another operator may be active. The API server is slow."""
    loop, frozen = QuickLoop(), [0.0]

    async def api(method: str, path: str, body: Any = None, **more: Any) -> Any:
        await asyncio.sleep(3600)

    lease = Lease(cast(Api, api), "default", "me", clock=lambda: loop.time() + frozen[0])
    try:
        loop.call_later(1.0, lambda: frozen.__setitem__(0, 60.0))
        loop.run_until_complete(lease.hold())
        assert loop.time() == 2.0
    finally:
        loop.close()


def test_an_operator_that_has_lost_its_lease_does_nothing_more(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kopf takes up to ten seconds to end."""
    lost, ended = [False], []

    async def hold(self: Lease) -> None:
        while not lost[0]:
            await asyncio.sleep(0.05)

    async def end() -> None:
        reconciles = running.operator.loop.counts["reconciles"]
        running.operator.loop.reconcile_soon(KEY)
        await asyncio.sleep(1.0)
        ended.append(running.operator.loop.counts["reconciles"] - reconciles)
        await real()

    real = kopf_watch._end_kopf
    monkeypatch.setattr(kopf_watch, "_end_kopf", end)
    monkeypatch.setattr(Lease, "hold", hold)
    running: Any = stand.start(lease="default")
    stand.apply(ensemble())
    stand.until(lambda: stand.ready("study"))
    lost[0] = True
    wait_until(lambda: not running.alive)
    assert ended == [0]


def test_an_operator_with_an_old_view_does_not_overwrite_a_newer_status(stand: Stand) -> None:
    """Its watches are silent, and another operator has recorded the end of the run."""
    old: Any = stand.start()
    stand.apply(ensemble())
    stand.until(lambda: stand.ready("study"))
    cache = old.operator.cache
    cache.told = lambda *args, **more: None
    old.operator.loop._ask = silent
    stand.start()
    stand.player.end("default", "study-0", 3)
    stand.until(lambda: stand.condition("study", "Finished") == ("True", "Failed"))
    loop = old.operator.loop
    before = dict(loop.counts)
    loop._known[KEY].figures = {}
    loop.reconcile_soon(KEY)
    wait_until(lambda: loop.counts["reconciles"] > before["reconciles"] + 1)
    assert loop.counts["statuses"] == before["statuses"]
    assert stand.condition("study", "Finished") == ("True", "Failed")
    assert stand.status("study")["members"][0]["exitCode"] == 3


def test_an_ensemble_made_again_at_once_is_not_ready_by_heartbeats_of_the_earlier_one(
    stand: Stand,
) -> None:
    """``kubectl replace --force``: the operator sees both changes at once."""
    running: Any = stand.start()
    stand.apply(ensemble())
    stand.until(lambda: stand.ready("study"))
    running.operator.loop._ask = silent
    with stand.cluster.store.changed:
        stand.delete("Ensemble", "study")
        stand.apply(ensemble())
    reasons = ("WaitingForFlux", "Ready")
    stand.until(lambda: stand.condition("study", "MembersReady")[1] in reasons)
    assert stand.condition("study", "MembersReady") == ("False", "WaitingForFlux")


async def silent(*words: Any) -> None:
    """Return no figures."""
