"""Stories of Ensembles, on the stand-in or a real cluster.

pytest plugins/ensemble-operator/tests/stories --kubeconfig FILE --images SERVICE,VIEW
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ensemble_operator.api import MERGE, ApiError
from fake_namespace import FILE, ensemble, member
from story_cluster import Place

EXAMPLES = Path(__file__).parents[2] / "examples"
CHILDREN = ("MiniCluster", "Deployment", "Service", "Role", "RoleBinding", "NetworkPolicy")


def test_the_stories_were_played_on_a_real_cluster(place: Place) -> None:
    if place.stand is not None:
        pytest.skip("no --kubeconfig: the stories were played on the stand-in alone")


@pytest.mark.parametrize("file", ["hello-world", "grow-shrink"])
def test_upstreams_examples_run_to_their_end_and_are_removed(place: Place, file: str) -> None:
    if place.stand is None and not place.images:
        pytest.skip("no --images SERVICE,VIEW that the nodes of this cluster can pull")
    (found,) = yaml.safe_load_all((EXAMPLES / f"{file}.yaml").read_text(encoding="utf-8"))
    name = found["metadata"]["name"]
    place.make(found)
    place.until(lambda: place.get("MiniCluster", f"{name}-0") is not None)
    place.end(f"{name}-0")
    place.until(lambda: place.condition(name, "Finished")[0] == "True")
    assert place.condition(name, "Finished") == ("True", "Succeeded")
    assert (place.get("Ensemble", name) or {})["status"]["exit"] == "0"
    place.until(lambda: (place.get("Deployment", name) or {})["spec"]["replicas"] == 0)
    place.delete("Ensemble", name)
    place.until(lambda: place.get("Ensemble", name) is None)
    for kind in CHILDREN:
        place.until(lambda: not [n for n in place.names(kind) if n.startswith(name)])  # noqa: B023


def test_an_invalid_file_is_reported_and_nothing_is_created(place: Place) -> None:
    place.make(ensemble(member(ensemble=FILE.replace("label: a", "label: b")), name="wrong"))
    place.until(lambda: place.condition("wrong", "Valid") == ("False", "InvalidFile"))
    conditions = (place.get("Ensemble", "wrong") or {})["status"]["conditions"]
    (message,) = [each["message"] for each in conditions if each["type"] == "Valid"]
    assert "ensemble.yaml:2" in message
    assert not [each for kind in CHILDREN for each in place.names(kind) if each.startswith("wrong")]
    place.delete("Ensemble", "wrong")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"members": []}, "members"),
        ({"members": [{"minicluster": {"spec": {"containers": []}}, "ensemble": FILE}]}, "containers"),
        ({"members": [member(spec={"size": 3, "maxSize": 2})]}, "size is greater than maxSize"),
        ({"members": [member(spec={"cleanup": True})]}, "cleanup"),
        ({"members": [member(name="a"), member(name="a")]}, "same name"),
        ({"members": [member()], "ensemble": FILE}, "exactly one"),
        ({"members": [member()], "sidecar": {"port": 70_000}}, "65535"),
        ({"members": [member(ensemble=FILE + "#" * (1 << 20))]}, "spec.members[0].ensemble"),
    ],
)  # fmt: skip
def test_an_impossible_spec_is_rejected_or_reported(place: Place, spec: Any, words: str) -> None:
    """An API server checks schema and CEL, the stand-in only the schema. The operator reports the
    rest.
    """
    found = {**ensemble(name="never"), "spec": spec}
    refused = None
    try:
        place.make(found)
    except ApiError as error:
        refused = error
    if refused is not None:
        assert refused.status == 422
        assert words in refused.message
        return
    assert place.stand is not None, "the definition's rules have let it pass"
    place.until(lambda: place.condition("never", "Valid") == ("False", "InvalidMember"))
    assert words in str((place.get("Ensemble", "never") or {})["status"])
    place.delete("Ensemble", "never")


def test_a_size_is_written_only_once(place: Place) -> None:
    place.make(ensemble(member(spec={"size": 1, "maxSize": 3}), name="sized"))
    place.until(lambda: place.get("MiniCluster", "sized-0") is not None)
    scale = f"{place.path('MiniCluster', 'sized-0')}/scale"
    place("PATCH", scale, {"spec": {"replicas": 2}}, content_type=MERGE)
    place.edit("sized", sidecar={"metricsPort": 9465})
    place.until(lambda: "'containerPort': 9465" in str(place.get("Deployment", "sized")))
    entries = lambda: (place.get("Ensemble", "sized") or {})["status"]["members"]  # noqa: E731
    place.until(lambda: entries()[0]["size"] == 2)
    assert (place.get("MiniCluster", "sized-0") or {})["spec"]["size"] == 2
    place.delete("Ensemble", "sized")


def test_a_conflict_lasts_as_long_as_the_other_object(place: Place) -> None:
    place.make({"kind": "ServiceAccount", "metadata": {"name": "taken"}})
    place.make(ensemble(name="taken"))
    place.until(lambda: place.condition("taken", "Valid") == ("False", "Conflict"))
    assert "taken-0" not in place.names("MiniCluster")
    place.delete("ServiceAccount", "taken")
    place.until(lambda: place.condition("taken", "Valid")[0] == "True")
    place.until(lambda: "taken-0" in place.names("MiniCluster"))
    place.delete("Ensemble", "taken")


def test_a_suspended_ensemble_has_no_members_but_its_service_stays(place: Place) -> None:
    place.make(ensemble(name="paused", state={"size": "1Gi"}))
    place.until(lambda: "paused-0" in place.names("MiniCluster"))
    place.edit("paused", suspend=True)
    place.until(lambda: "paused-0" not in place.names("MiniCluster"))
    assert (place.get("Deployment", "paused") or {})["spec"]["replicas"] == 1
    place.edit("paused", suspend=False)
    place.until(lambda: "paused-0" in place.names("MiniCluster"))
    place.delete("Ensemble", "paused")


def test_objects_deleted_by_hand_are_recreated(place: Place) -> None:
    place.make(ensemble(name="hand", state={"size": "1Gi"}))
    place.until(lambda: "hand-0" in place.names("MiniCluster"))
    for kind, name in (
        ("Deployment", "hand"),
        ("Service", "hand-grpc"),
        ("Role", "hand"),
        ("NetworkPolicy", "hand"),
        ("MiniCluster", "hand-0"),
    ):
        before = (place.get(kind, name) or {})["metadata"]["uid"]
        place.delete(kind, name)
        uid = lambda: (place.get(kind, name) or {}).get("metadata", {}).get("uid", before)  # noqa: B023, E731
        place.until(lambda: uid() != before)  # noqa: B023  # at once
    place.delete("Ensemble", "hand")
