"""Tests of the whole operator, with kopf, against the stand-in over sockets."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import NoReturn, cast

import pytest
from ensemble_operator.api import Api, ApiError
from ensemble_operator.lease import Lease
from ensemble_operator.reconcile_loop import _event_time
from ensemble_operator.settings import Settings
from fake_namespace import FILE, ensemble, member
from operator_cluster import Stand

OTHER = FILE.replace("'true'", "'false'")


def test_deletion_needs_no_operator(stand: Stand) -> None:
    running = stand.start()
    stand.apply(ensemble())
    stand.until(lambda: stand.ready("study"))
    running.stop()
    found = stand.get("Ensemble", "study")
    assert found is not None
    assert not found["metadata"].get("finalizers")
    assert not found["metadata"].get("annotations"), "kopf leaves nothing on it"
    stand.delete("Ensemble", "study")
    stand.until(lambda: stand.names("MiniCluster") == stand.names("Deployment") == [])


def test_a_lease_renewed_during_the_shutdown_does_not_keep_the_operator() -> None:
    """Before Python 3.12, ``wait_for`` may lose a cancellation."""
    from ensemble_operator.kopf_watch import _end

    async def main() -> int:
        cancelled = 0

        async def holds() -> None:
            nonlocal cancelled
            while cancelled < 2:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    cancelled += 1

        task = asyncio.ensure_future(holds())
        await asyncio.sleep(0)
        await _end([task])
        return cancelled

    assert asyncio.run(main()) == 2


def test_an_operator_that_cannot_renew_its_lease_in_time_gives_it_up() -> None:
    times = iter([0.0, 5.0, 10.0, 10.5, 99.0])

    async def api(*words: object, **options: object) -> NoReturn:
        raise ApiError(0, "connection lost")

    lease = Lease(cast(Api, api), "default", "me", retry=0.0, clock=lambda: next(times))
    asyncio.run(asyncio.wait_for(lease.hold(), 60))
    assert next(times) == 99.0


# -- errors ------------------------------------------------------------------------------------------


def test_a_conflict_ends_when_the_other_object_is_deleted(stand: Stand) -> None:
    theirs = {"data": {"mine": "yes"}}
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "study"}}
    stand.apply(body)
    secret = stand.kind("Secret")
    stand.cluster.store.create(secret, "default", {"metadata": {"name": "study-tls"}, **theirs})
    running = stand.start()
    stand.apply(ensemble())
    stand.until(lambda: "Secret study-tls, ServiceAccount" in str(stand.status("study")))
    stand.delete("ServiceAccount", "study")
    stand.until(lambda: "ServiceAccount" not in str(stand.status("study")))
    assert stand.names("MiniCluster") == [], "nothing is created before the conflict ends"
    assert (stand.get("Secret", "study-tls") or {})["data"] == theirs["data"]
    stand.delete("Secret", "study-tls")
    stand.until(lambda: stand.ready("study"))
    assert running.operator is not None
    assert running.operator.cache.blocking_objects() == []


def test_a_conflict_ends_even_if_watches_missed_the_deletion(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_operator.kopf_watch._AGAIN", 0.2)
    stand.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "study"}})
    running = stand.start()
    stand.apply(ensemble())
    stand.until(lambda: stand.condition("study", "Valid") == ("False", "Conflict"))
    operator = running.operator
    assert operator is not None
    # As if the deletion happened between two watches.
    operator.cache._on_foreign_event = lambda *_, **__: None  # type: ignore[method-assign]  # as if it were missed
    stand.delete("ServiceAccount", "study")
    operator._due = 0.0  # the next comparison with lists is due
    stand.until(lambda: stand.ready("study"))


def test_a_missing_flux_operator_is_reported_until_it_is_installed(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_operator.kopf_watch._AGAIN", 0.2)
    kinds, flux = stand.cluster.store.kinds, ("flux-framework.org", "miniclusters")
    definition = kinds.pop(flux)
    running = stand.start()
    stand.apply(ensemble())
    stand.until(lambda: stand.condition("study", "Valid") == ("False", "NoFluxOperator"))
    assert stand.names("Deployment") == []
    kinds[flux] = definition
    # The process ends, and its Deployment restarts it.
    stand.until(lambda: not running.alive)
    assert running.error is None
    stand.start()
    stand.until(lambda: stand.ready("study"))


def test_a_rejected_object_is_reported_and_not_requested_again(stand: Stand) -> None:
    stand.start()
    stand.apply(ensemble(member(spec={"tasks": "many"})))
    stand.until(lambda: stand.condition("study", "Valid") == ("False", "InvalidMember"))
    (found,) = [c for c in stand.status("study")["conditions"] if c["type"] == "Valid"]
    assert "spec.tasks" in found["message"]
    asked = [p for m, p in stand.cluster.log if m == "POST" and p.endswith("/miniclusters")]
    assert len(asked) == 1, "as a dry run, and nothing of the member was made"
    assert "study-0-flux" not in stand.names("Service")
    stand.apply(ensemble(member(spec={"tasks": 2})))
    stand.until(lambda: stand.ready("study"))


def message_of(stand: Stand, kind: str, name: str = "study") -> str:
    found = [c["message"] for c in stand.status(name)["conditions"] if c["type"] == kind]
    return str(found[0])


def test_unknown_fields_of_an_older_flux_operator_are_left_out(
    stand: Stand,
) -> None:
    """Fields that our operator adds are not reported as the user's errors."""
    kind = stand.cluster.store.kinds[("flux-framework.org", "miniclusters")]
    assert kind.schema is not None
    del kind.schema["properties"]["spec"]["properties"]["jobLabels"]
    stand.start()
    stand.apply(ensemble())
    stand.until(lambda: stand.ready("study"))


def test_the_reason_why_a_pod_waits_is_reported_after_a_minute(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_operator.reconcile_loop._STUCK", 0.5)
    user = {"volumes": {"mine": {"secretName": "absent", "path": "/mine"}}}
    stand.start(settings=Settings(ask=0.2, resync=1.0))
    stand.apply(ensemble(member(spec={"containers": [{"image": "a", **user}]})))
    stand.until(lambda: "FailedMount" in str(stand.status("study").get("conditions")))
    assert 'secret "absent" not found' in message_of(stand, "Ready")


def test_a_file_in_a_configmap_may_come_later_and_change(stand: Stand) -> None:
    found = ensemble({**member(), "ensembleFrom": {"configMapKeyRef": {"name": "files"}}})
    del found["spec"]["members"][0]["ensemble"]
    stand.start()
    stand.apply(found)
    stand.until(lambda: stand.condition("study", "Valid") == ("False", "InvalidFile"))
    kind = stand.kind("ConfigMap")
    body = {"metadata": {"name": "files"}, "data": {"ensemble.yaml": FILE}}
    stand.cluster.store.create(kind, "default", body)
    stand.until(lambda: stand.ready("study"))
    files = stand.get("ConfigMap", "files")
    assert files is not None
    files["data"]["ensemble.yaml"] = OTHER
    stand.cluster.store.write(kind, "default", files)
    stand.until(lambda: stand.condition("study", "Updated") == ("False", "RunningOldFile"))


def test_a_file_of_900_kilobytes_works(stand: Stand) -> None:
    text = FILE + "#" * (900_000 - len(FILE))
    stand.start()
    stand.apply(ensemble(member(ensemble=text)))
    stand.until(lambda: stand.ready("study"))
    files = [each["data"] for each in stand.all("ConfigMap")]
    assert [each["ensemble.yaml"] for each in files if "ensemble.yaml" in each] == [text]


def test_sigterm_ends_it_and_releases_its_lease(stand: Stand, tmp_path: Path) -> None:
    """As a separate process, because kopf handles signals in the main thread."""
    config = stand.cluster.kubeconfig(tmp_path / "config")
    words = ["run", "--namespace", "default", "--kubeconfig", str(config), "--health", ""]
    words += ["--leader-elect", "--lease-namespace", "default"]
    code = "from ensemble_operator.main import main; main()"
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen([sys.executable, "-c", code, *words], stderr=said)
    try:
        stand.apply(ensemble())
        stand.until(lambda: "study-0" in stand.names("MiniCluster"))
        process.terminate()
        assert process.wait(60) == 0, (tmp_path / "said").read_text()
    finally:
        process.kill()
        process.wait()
    (lease,) = stand.all("Lease")
    assert lease["spec"]["holderIdentity"] == ""


# -- few requests ------------------------------------------------------------------------------------


def test_nothing_is_written_while_nothing_changes(stand: Stand) -> None:
    running = stand.start(settings=Settings(resync=1.0, ask=0.2))
    for index in range(3):
        stand.apply(ensemble(name=f"study-{index}"))
    names = [f"study-{index}" for index in range(3)]
    stand.until(lambda: all(map(stand.ready, names)))
    assert running.operator is not None
    counts = running.operator.loop.counts

    def still() -> bool:
        before = len(stand.cluster.log)
        looks = counts["reconciles"]
        stand.until(lambda: counts["reconciles"] > looks + 6)
        return not [m for m, _ in stand.cluster.log[before:] if m != "GET"]

    stand.until(still)


def test_missed_events_are_found_by_comparison(stand: Stand) -> None:
    """A watch that restarts after a gap reports existing objects, but no deletions."""
    from ensemble_operator.cache import Cache

    cache = Cache()
    stand.start()
    stand.apply(ensemble())
    stand.until(lambda: stand.ready("study"))
    for kind in ("Ensemble", "MiniCluster", "ConfigMap"):
        for found in stand.all(kind):
            cache.told(kind, found)
    version = str(stand.cluster.store.version)
    assert cache.listed("MiniCluster", stand.all("MiniCluster"), version, "default") == set()
    assert cache.listed("MiniCluster", [], version, "other") == set(), "another namespace's list"
    assert cache.listed("MiniCluster", [], "1", "default") == set(), "an older list"
    assert cache.listed("MiniCluster", [], version, "default") == {("default", "study")}
    assert ("MiniCluster", "study-0") not in cache.children(("default", "study"))
    assert cache.listed("Ensemble", [], version) == {("default", "study")}
    assert cache.ensembles == {}


def test_of_two_warnings_in_one_second_the_one_written_last_is_shown() -> None:
    """A quota often rejects with "status unknown" first, and with the reason right after it."""
    second = "2026-11-27T10:28:18Z"
    events = [
        {"lastTimestamp": second, "metadata": {"resourceVersion": "99"}},
        {"lastTimestamp": second, "metadata": {"resourceVersion": "100"}},
        {"eventTime": "2026-11-27T10:28:17.5Z", "metadata": {"resourceVersion": "101"}},
    ]
    assert max(events, key=_event_time) is events[1]
