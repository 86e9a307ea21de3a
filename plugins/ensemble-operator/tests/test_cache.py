"""Tests that the cache keeps the newest version of each object, in any order of events."""

from __future__ import annotations

import copy
import json
from typing import Any

from ensemble_operator.cache import Cache
from ensemble_operator.object_names import LABEL
from ensemble_operator.reconcile import plan
from fake_namespace import SETTINGS, running

KEY = ("default", "study")


def found(version: int, uid: str = "a", **more: Any) -> dict[str, Any]:
    metadata = {
        "name": "study",
        "namespace": "default",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": {LABEL: "study"},
    }
    return {"metadata": metadata, **more}


def known(cache: Cache) -> tuple[str, str] | None:
    metadata = cache.children(KEY).get(("Deployment", "study"), {}).get("metadata")
    return metadata and (metadata["uid"], metadata["resourceVersion"])


def test_an_answer_older_than_the_watches_is_ignored() -> None:
    cache = Cache()
    cache.told("Deployment", found(7))
    cache.store_reply(KEY, "Deployment", found(5))
    assert known(cache) == ("a", "7")
    cache.told("Ensemble", found(9))
    cache.store_reply(KEY, "Ensemble", found(8))
    assert cache.ensembles[KEY]["metadata"]["resourceVersion"] == "9"


def test_a_deleted_object_does_not_return_with_a_late_answer() -> None:
    cache = Cache()
    cache.told("Deployment", found(7))
    cache.told("Deployment", found(8), gone=True)
    cache.store_reply(KEY, "Deployment", found(9))
    assert known(cache) is None
    cache.store_reply(KEY, "Deployment", found(10, "b"))
    assert known(cache) == ("b", "10")


def test_the_deletion_of_an_object_does_not_delete_its_successor() -> None:
    """Events of two objects may arrive in any order, so the old one's deletion may come last."""
    cache = Cache()
    cache.told("Deployment", found(7))
    cache.told("Deployment", found(9, "b"))
    cache.told("Deployment", found(8))
    cache.told("Deployment", found(8), gone=True)
    assert known(cache) == ("b", "9")


def test_objects_are_stored_partially_and_plans_are_the_same() -> None:
    world = running()
    world.children["Job", "study-0"] = {
        "kind": "Job",
        "metadata": {
            "name": "study-0",
            "uid": "job",
            "ownerReferences": [
                {"uid": world.children["MiniCluster", "study-0"]["metadata"]["uid"]}
            ],
        },
        "spec": {"template": {"spec": {"containers": [{"name": "a", "command": ["a"] * 100}]}}},
    }
    owner = [{"kind": "Job", "uid": "job"}]
    world.pods["study-0-0"]["metadata"]["ownerReferences"] = owner
    for found in (*world.children.values(), *world.pods.values()):
        found["metadata"].setdefault("labels", {})[LABEL] = "study"
        found["metadata"]["namespace"] = "default"
        note = "kubectl.kubernetes.io/last-applied-configuration"
        found["metadata"].setdefault("annotations", {})[note] = "x" * 1000
        found["metadata"]["managedFields"] = [{"manager": "x" * 1000}]
    world.pods["study-0-0"]["spec"] = {"containers": ["x" * 1000]}
    cache = Cache()
    for (kind, _), found in world.children.items():
        cache.told(kind, found)
    for found in world.pods.values():
        cache.told("Pod", found)
    whole = len(json.dumps([*world.children.values(), *world.pods.values()]))
    kept = [*cache.children(KEY).values(), *cache.pods(KEY)]
    assert len(json.dumps(kept)) < whole / 2

    def planned(children: Any, pods: Any) -> Any:
        world.children, world.pods = children, {str(n): pod for n, pod in enumerate(pods)}
        return plan(copy.deepcopy(world.found), world.observed(), SETTINGS, world.now)

    before = planned(world.children, list(world.pods.values()))
    assert planned(cache.children(KEY), cache.pods(KEY)) == before
