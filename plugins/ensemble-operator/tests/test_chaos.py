"""Tests of the operator with API server failures, broken watches, and kills at any moment.

In all cases, each MiniCluster is created only once, and all Ensembles finish.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import random
import threading
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import pytest
from ensemble_operator.api import ApiError
from ensemble_operator.cache import Cache
from ensemble_operator.object_names import KINDS
from ensemble_operator.reconcile_loop import Loop, _EnsembleState
from ensemble_operator.resource import read
from ensemble_operator.settings import Settings
from ensemble_testing import wait_until
from fake_namespace import ensemble, member
from operator_cluster import Running, Stand

if TYPE_CHECKING:
    from ensemble_operator.api import Api

PLURALS = {each.plural for each in KINDS.values()}


def made(stand: Stand, kind: str) -> Counter[str]:
    """Return how often each object of a kind was created, by name."""
    plural = stand.kind(kind).plural
    history = stand.cluster.store.history
    return Counter(key[3] for _, what, key, _, _ in history if what == "ADDED" and key[1] == plural)


class Trouble:
    """API server fault for one in ``every`` requests, up to a number of faults."""

    def __init__(self, seed: int, every: int = 5, most: int = 40) -> None:
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._every, self.left = every, most
        self.seen: Counter[str] = Counter()

    def __call__(self, method: str, path: str) -> tuple[int, str] | float | str | None:
        if "/api" not in path or path.count("/") < 4:
            return None
        with self._lock:
            if not self.left or self._chance.randrange(self._every):
                return None
            self.left -= 1
            code = self._chance.choice(
                [409, 429, 500, 503, 0]
                if method != "GET"
                else [
                    # Only lists and watches are answered with 410.
                    410 if path.rpartition("/")[2] in PLURALS else 503,
                    429,
                    500,
                    503,
                    0,
                ]
            )
            self.seen[f"{method} {code}"] += 1
            if not code:
                return "drop"
            reason = {409: "Conflict", 410: "Expired", 429: "TooManyRequests"}.get(
                code, "InternalError"
            )
            return code, json.dumps(
                {"kind": "Status", "code": code, "reason": reason, "message": "trouble"}
            )


@pytest.mark.parametrize("seed", [1, 2])
def test_a_faulty_api_server_causes_delays_but_no_damage(stand: Stand, seed: int) -> None:
    trouble = Trouble(seed)
    stand.start()
    stand.cluster.trouble = trouble
    for index in range(3):
        stand.apply(ensemble(member(), member(name="b"), name=f"study-{index}"))
    names = [f"study-{index}" for index in range(3)]
    stand.until(lambda: all(map(stand.ready, names)))
    assert sum(trouble.seen.values()) >= 10, trouble.seen
    for name in names:
        stand.player.end("default", f"{name}-0")
        stand.player.end("default", f"{name}-b", 3)
    stand.until(lambda: all(stand.condition(n, "Finished") == ("True", "Failed") for n in names))
    assert set(made(stand, "MiniCluster").values()) == {1}
    assert {stand.status(name)["exit"] for name in names} == {"0,3"}


def test_the_backoff_of_a_reconcile_that_progresses_does_not_grow(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each Secret's read fails three times. If the failures of all Secrets were counted together,
    the ninth pause would exceed a minute.
    """
    monkeypatch.setattr("ensemble_operator.reconcile_loop._FIRST", 0.2)
    seen: Counter[str] = Counter()

    def busy(method: str, path: str) -> tuple[int, str] | None:
        if method != "GET" or "/secrets/" not in path:
            return None
        seen[path] += 1
        return (503, "busy") if seen[path] <= 3 else None

    stand.cluster.trouble = busy
    stand.start()
    stand.apply(ensemble())
    stand.until(lambda: stand.ready("study"))
    assert len(seen) == 3
    assert min(seen.values()) >= 4


def test_too_old_watches_restart(stand: Stand) -> None:
    stand.start()
    stand.apply(ensemble())
    stand.until(lambda: stand.ready("study"))
    for _ in range(3):
        stand.cluster.store.forget()
        stand.cluster.cut()
    stand.apply(ensemble(name="later"))
    stand.until(lambda: stand.ready("later"))


@pytest.mark.parametrize("plural", ["pods", "deployments", "ensembles"])
def test_a_rejected_watch_restarts(stand: Stand, plural: str) -> None:
    """A response with status 410, unlike a 410 event in the stream, ends kopf's watcher."""
    running = stand.start()
    stand.apply(ensemble())
    stand.until(lambda: stand.ready("study"))
    left, lock = [3], threading.Lock()

    def gone(method: str, path: str) -> tuple[int, str] | None:
        with lock:
            if method != "GET" or not path.endswith(f"/{plural}") or not left[0]:
                return None
            left[0] -= 1
        return 410, json.dumps({"kind": "Status", "code": 410, "reason": "Expired"})

    stand.cluster.trouble = gone
    stand.cluster.cut()
    stand.until(lambda: not left[0])
    stand.apply(ensemble(name="later"))
    stand.until(lambda: stand.ready("later"))
    stand.player.end("default", "study-0")
    stand.until(lambda: stand.condition("study", "Finished") == ("True", "Succeeded"))
    assert running.alive
    assert running.operator is not None
    assert running.operator.loop.counts["watch restarts"] >= 1


def test_a_late_answer_does_not_override_the_watches(stand: Stand) -> None:
    """A watch may report an object's later changes before the response to its creation."""
    running = stand.start()
    held = threading.Event()

    def available(found: Mapping[str, Any] | None) -> bool:
        return bool(((found or {}).get("status") or {}).get("availableReplicas"))

    def late(method: str, path: str) -> None:
        if method == "POST" and path.endswith("/deployments") and running.operator is not None:
            cache = running.operator.cache
            own = (("default", "study"), ("Deployment", "study"))
            wait_until(lambda: available(cache.children(own[0]).get(own[1])))
            held.set()

    stand.cluster.afterwards = late
    stand.apply(ensemble())
    stand.until(lambda: stand.ready("study"))
    assert held.is_set()


def test_a_deletion_reported_before_a_late_answer_counts(stand: Stand) -> None:
    running = stand.start()
    stand.apply(ensemble(onDelete="Orphan"))
    stand.until(lambda: (stand.get("Ensemble", "study") or {})["metadata"].get("finalizers"))
    stand.until(lambda: stand.ready("study"))
    held = threading.Event()

    def late(method: str, path: str) -> None:
        if path.endswith("/ensembles/study/status") and not held.is_set():
            held.set()
            stand.delete("Ensemble", "study")
            assert running.operator is not None
            known = running.operator.cache.ensembles
            wait_until(lambda: "deletionTimestamp" in known["default", "study"]["metadata"])

    stand.cluster.afterwards = late
    stand.apply(ensemble(onDelete="Orphan", ttlSecondsAfterFinished=10_000))
    stand.until(lambda: stand.names("Ensemble") == [])
    assert held.is_set()
    assert stand.names("MiniCluster") == ["study-0"]


def test_an_operator_killed_between_any_two_requests_continues(stand: Stand) -> None:
    """Each operator is killed after a random number of writes, and the next one starts."""
    chance = random.Random(7)
    names = [f"study-{index}" for index in range(2)]
    for name in names:
        stand.apply(ensemble(member(), member(name="b"), name=name, state={"claim": "c"}))
    kills, running = 0, None
    ended = False

    def arm(victim: Running, after: int) -> None:
        left = [after]

        def meanwhile(method: str, path: str) -> None:
            if method == "GET" or "/leases" in path:
                return
            left[0] -= 1
            if left[0] == 0:
                victim.kill()

        stand.cluster.meanwhile = meanwhile

    def over() -> bool:
        return all(stand.condition(name, "Finished") == ("True", "Succeeded") for name in names)

    while not over() and kills < 40:
        running = stand.start()
        arm(running, chance.randrange(1, 9))
        alive = running
        stand.until(lambda: not alive.alive or all(map(stand.ready, names)) or over())  # noqa: B023
        if all(map(stand.ready, names)) and not ended:
            ended = True
            for name in names:
                stand.player.end("default", f"{name}-0")
                stand.player.end("default", f"{name}-b")
        stand.until(lambda: not alive.alive or over())  # noqa: B023
        kills += not running.alive
    assert over()
    assert kills >= 4
    assert set(made(stand, "MiniCluster").values()) == {1}
    assert set(made(stand, "Deployment").values()) == {1}


def test_secrets_of_many_ensembles_are_not_all_read_at_once() -> None:
    """With 200 Ensembles, the operator reads less than one Secret per second after its start."""
    times: list[float] = []
    now, chance = [0.0], random.Random(1)

    async def api(method: str, path: str, *given: Any, **more: Any) -> Any:
        times.append(now[0])
        raise ApiError(404, "there is none")

    async def live() -> None:
        loop = Loop(
            cast("Api", api),
            Cache(),
            Settings(),
            cast("Any", None),  # services are not polled here
            clock=lambda: now[0],
            chance=chance.random,
        )
        looks = [(0.0, index) for index in range(200)]
        known = [_EnsembleState() for _ in looks]
        while looks[0][0] < 4 * 3600:
            now[0], index = heapq.heappop(looks)
            found = read(ensemble(member(), member(), member(), name=f"study-{index}"))
            await loop._read_secrets(("default", f"study-{index}"), known[index], found)
            heapq.heappush(looks, (now[0] + 600 * (0.5 + 0.5 * chance.random()), index))

    asyncio.run(live())
    later = [at for at in times if at > 0]
    assert len(later) > 5000, "they are looked at"
    busiest = max(Counter(int(at // 300) for at in later).values())
    assert busiest < 270, f"{busiest} in five minutes"
