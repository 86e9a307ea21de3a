"""Conformance tests of the API server: the behaviour that the resizer depends on.

They run unchanged against the stand-in and any real cluster that has MiniClusters::

    pytest plugins/ensemble-minicluster/tests/kubernetes --kubeconfig FILE -k conformance
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from api_requests import JSON_PATCH, Place, Talk

Make = Callable[..., dict[str, Any]]

_numbers = itertools.count(1)
_DEFINITION = (
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/miniclusters.flux-framework.org"
)
#: No such image exists: it never runs.
_IMAGE = "registry.invalid/nothing:1"


def document(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "flux-framework.org/v1alpha2",
        "kind": "MiniCluster",
        "metadata": {"name": name},
        "spec": {"containers": [{"image": _IMAGE}], **spec},
    }


@pytest.fixture
def make(place: Place) -> Make:
    """Return a function that creates MiniClusters larger than their maximum.

    No operator touches them.
    """

    def make(labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
        body = document(f"c{next(_numbers)}", **{"size": 3, "maxSize": 2, **spec})
        body["metadata"]["labels"] = labels or {}
        found: dict[str, Any] = place.talk.ok("POST", place.path, body)
        return found

    return make


def at(place: Place, found: dict[str, Any]) -> str:
    return f"{place.path}/{found['metadata']['name']}"


def version(found: dict[str, Any]) -> str:
    return str(found["metadata"]["resourceVersion"])


def test_quantities_are_stored_in_canonical_form(place: Place) -> None:
    given = {"cpu": "1000", "memory": "1024Mi", "example.com/a": "1e3"}
    container = {"name": "c", "image": _IMAGE, "resources": {"requests": given, "limits": given}}
    pod = {"containers": [container], "restartPolicy": "Never"}
    body = {"metadata": {"name": "j"}, "spec": {"suspend": True, "template": {"spec": pod}}}
    path = place.path.replace("flux-framework.org/v1alpha2", "batch/v1")
    found = place.talk.ok("POST", path.replace("miniclusters", "jobs"), body)
    (made,) = found["spec"]["template"]["spec"]["containers"]
    stored = {"cpu": "1k", "memory": "1Gi", "example.com/a": "1e3"}
    assert made["resources"] == {"requests": stored, "limits": stored}


# -- the definition ----------------------------------------------------------------------------------


def test_the_definition_is_established(place: Place) -> None:
    found = place.talk.ok("GET", _DEFINITION)
    conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert found["status"]["acceptedNames"]["plural"] == "miniclusters"


def test_defaults_are_filled_in_and_unknown_fields_are_removed(place: Place) -> None:
    body = document("defaults")
    body["spec"]["nonsense"] = 1
    found = place.talk.ok("POST", place.path, body)
    assert found["spec"]["size"] == 1
    assert found["spec"]["tasks"] == 1
    assert found["spec"]["containers"][0]["pullAlways"] is False
    assert "nonsense" not in found["spec"]
    assert "maxSize" not in found["spec"]


@pytest.mark.parametrize(
    "spec",
    [{"size": "two"}, {"size": 1.5}, {"containers": {}}, {"containers": None}, {"size": 2**40}],
)
def test_violations_of_the_schema_are_invalid(place: Place, spec: dict[str, Any]) -> None:
    status, found = place.talk("POST", place.path, document("wrong", **spec))
    assert (status, found["reason"]) == (422, "Invalid")


def test_another_kind_in_the_body_is_invalid_and_another_namespace_a_bad_request(
    place: Place,
) -> None:
    assert place.talk("POST", place.path, {**document("x"), "kind": "Pod"})[0] == 422
    body = document("x")
    body["metadata"]["namespace"] = "elsewhere"
    assert place.talk("POST", place.path, body)[0] == 400


def test_unknown_fields_are_rejected_if_requested(place: Place, make: Make) -> None:
    body = document("strict")
    body["spec"]["nonsense"] = 1
    status, found = place.talk("POST", f"{place.path}?fieldValidation=Strict", body)
    assert (status, found["reason"]) == (400, "BadRequest")
    assert 'unknown field "spec.nonsense"' in found["message"]
    path = f"{at(place, make())}?fieldValidation=Strict"
    assert place.talk.merge(path, {"spec": {"nonsense": 1}})[0] in (400, 422)
    assert place.talk.merge(path, {"spec": {"size": 4}})[0] == 200


def test_a_negative_size_is_invalid(place: Place, make: Make) -> None:
    assert place.talk("POST", place.path, document("negative", size=-1))[0] == 422
    assert place.talk.merge(at(place, make()), {"spec": {"size": -1}})[0] == 422


def test_a_dry_run_checks_everything_and_changes_nothing(place: Place, make: Make) -> None:
    dry = "dryRun=All"
    status, found = place.talk("POST", f"{place.path}?{dry}", document("dry"))
    assert (status, found["spec"]["size"]) == (201, 1)
    assert place.talk("GET", f"{place.path}/dry")[0] == 404
    assert place.talk("POST", f"{place.path}?{dry}", document("dry", size="two"))[0] == 422
    made = make()
    path = at(place, made)
    status, found = place.talk.merge(f"{path}?{dry}", {"spec": {"size": 9}})
    assert (status, found["spec"]["size"]) == (200, 9)
    assert place.talk("DELETE", f"{path}?{dry}")[0] == 200
    assert version(place.talk.ok("GET", path)) == version(made)
    assert place.talk.merge(f"{path}?dryRun=Some", {"spec": {"size": 9}})[0] == 422


# -- objects -----------------------------------------------------------------------------------------


def test_an_object_has_a_uid_a_version_and_a_generation(place: Place, make: Make) -> None:
    first, second = make(), make()
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert version(first) != version(second)
    assert first["metadata"]["generation"] == 1
    assert first["metadata"]["namespace"] == place.namespace
    assert first["metadata"]["creationTimestamp"]


def test_the_generation_counts_changes_of_the_spec_only(place: Place, make: Make) -> None:
    found = make()
    _, labelled = place.talk.merge(at(place, found), {"metadata": {"labels": {"a": "b"}}})
    assert labelled["metadata"]["generation"] == 1
    assert version(labelled) != version(found)
    _, grown = place.talk.merge(at(place, found), {"spec": {"size": 5}})
    assert grown["metadata"]["generation"] == 2


def test_a_patch_without_changes_creates_no_new_version(place: Place, make: Make) -> None:
    found = make()
    status, same = place.talk.merge(at(place, found), {"spec": {"size": 3}})
    assert (status, version(same)) == (200, version(found))


def test_a_missing_object_is_not_found(place: Place) -> None:
    status, found = place.talk("GET", f"{place.path}/nobody")
    assert (status, found["kind"], found["reason"]) == (404, "Status", "NotFound")
    assert place.talk.merge(f"{place.path}/nobody/scale", {"spec": {"replicas": 2}})[0] == 404
    status, text = place.talk("GET", place.path.replace("miniclusters", "maxiclusters"))
    assert (status, text) == (404, "404 page not found\n")


def test_a_name_can_be_used_only_once(place: Place, make: Make) -> None:
    name = make()["metadata"]["name"]
    status, found = place.talk("POST", place.path, document(name))
    assert (status, found["reason"]) == (409, "AlreadyExists")


def test_a_missing_namespace_is_not_found(place: Place) -> None:
    path = place.path.replace(place.namespace, "no-such-namespace")
    assert place.talk("POST", path, document("x"))[0] == 404


# -- changes -----------------------------------------------------------------------------------------


def test_a_change_of_an_older_version_is_a_conflict(place: Place, make: Make) -> None:
    found = make()
    place.talk.merge(at(place, found), {"spec": {"size": 4}})
    stale = {"metadata": {"resourceVersion": version(found)}}
    status, refused = place.talk.merge(at(place, found), {**stale, "spec": {"size": 5}})
    assert (status, refused["reason"]) == (409, "Conflict")
    assert place.talk("PUT", at(place, found), found)[0] == 409
    assert place.talk.ok("GET", at(place, found))["spec"]["size"] == 4


def test_a_change_of_the_latest_version_is_accepted(place: Place, make: Make) -> None:
    found = make()
    fresh = {"metadata": {"resourceVersion": version(found)}}
    status, grown = place.talk.merge(at(place, found), {**fresh, "spec": {"size": 5}})
    assert (status, grown["spec"]["size"]) == (200, 5)


def test_a_replacement_must_name_the_replaced_version(place: Place, make: Make) -> None:
    found = make()
    del found["metadata"]["resourceVersion"]
    assert place.talk("PUT", at(place, found), found)[0] == 422


def test_a_merge_patch_removes_with_null_and_replaces_lists(place: Place, make: Make) -> None:
    found = make(labels={"a": "b"})
    patch = {"spec": {"maxSize": None, "containers": [{"image": "other"}]}}
    _, changed = place.talk.merge(at(place, found), patch)
    assert "maxSize" not in changed["spec"]
    assert [each["image"] for each in changed["spec"]["containers"]] == ["other"]
    assert changed["metadata"]["labels"] == {"a": "b"}


def test_json_patches_test_before_they_change(place: Place, make: Make) -> None:
    found = make()
    path = at(place, found)

    def patch(expected: int) -> tuple[int, Any]:
        operations = [
            {"op": "test", "path": "/spec/size", "value": expected},
            {"op": "replace", "path": "/spec/size", "value": 4},
            {"op": "add", "path": "/spec/containers/-", "value": {"name": "more"}},
        ]
        return place.talk("PATCH", path, operations, JSON_PATCH)

    assert patch(9)[0] == 422
    status, changed = patch(3)
    assert (status, changed["spec"]["size"], len(changed["spec"]["containers"])) == (200, 4, 2)


def test_strategic_merge_patches_are_not_for_custom_resources(place: Place, make: Make) -> None:
    kind = "application/strategic-merge-patch+json"
    assert place.talk("PATCH", at(place, make()), {"spec": {"size": 4}}, kind)[0] == 415


def test_server_side_apply_tracks_the_owners_of_fields(place: Place) -> None:
    path = f"{place.path}/applied"

    def apply(who: str, labels: dict[str, str], query: str = "", **spec: Any) -> tuple[int, Any]:
        body = {**document("applied"), "spec": spec}
        body["metadata"]["labels"] = labels
        kind = "application/apply-patch+yaml"
        return place.talk("PATCH", f"{path}?fieldManager={who}{query}", body, kind)

    containers = [{"image": _IMAGE, "name": "one"}]
    # Its size exceeds its maximum, so no operator touches it.
    one = {"size": 3, "maxSize": 2, "containers": containers}
    assert apply("one", {"a": "1", "b": "1"}, **one)[0] == 201
    status, found = apply("two", {"c": "2"}, minSize=1)
    assert (status, found["spec"]["size"], found["spec"]["minSize"]) == (200, 3, 1)
    status, refused = apply("two", {"c": "2"}, minSize=1, size=4)
    assert (status, refused["reason"]) == (409, "Conflict")
    assert '"one"' in refused["message"]
    assert "spec.size" in refused["message"]
    status, found = apply("two", {"c": "2"}, "&force=true", minSize=1, size=4)
    assert (status, found["spec"]["size"]) == (200, 4)
    status, found = apply("one", {"a": "1"}, maxSize=2, containers=containers)
    assert (status, found["metadata"]["labels"]) == (200, {"a": "1", "c": "2"})
    assert (found["spec"]["size"], found["spec"]["maxSize"]) == (4, 2)
    kind = "application/apply-patch+yaml"
    assert place.talk("PATCH", path, document("applied"), kind)[0] in (400, 422)


# -- subresources ------------------------------------------------------------------------------------


def test_the_status_is_changed_separately_from_the_object(place: Place, make: Make) -> None:
    found = make()
    status = {"jobid": "", "maximumSize": 2, "selector": "a=b", "size": 1}
    _, changed = place.talk.merge(at(place, found), {"status": status})
    assert "size" not in changed.get("status", {})
    _, changed = place.talk.merge(f"{at(place, found)}/status", {"status": status})
    assert changed["status"]["size"] == 1
    assert changed["metadata"]["generation"] == 1
    patch = {"spec": {"size": 9}, "status": {"jobid": "x"}}
    _, changed = place.talk.merge(f"{at(place, found)}/status", patch)
    assert (changed["spec"]["size"], changed["status"]["jobid"]) == (3, "x")


def test_an_incomplete_status_is_invalid(place: Place, make: Make) -> None:
    path = f"{at(place, make())}/status"
    assert place.talk.merge(path, {"status": {"size": 1}})[0] == 422


def test_the_scale_is_the_size(place: Place, make: Make) -> None:
    found = make()
    scale = place.talk.ok("GET", f"{at(place, found)}/scale")
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (3, 0)
    assert version(scale) == version(found)
    _, scaled = place.talk.merge(f"{at(place, found)}/scale", {"spec": {"replicas": 7}})
    assert scaled["spec"]["replicas"] == 7
    after = place.talk.ok("GET", at(place, found))
    assert (after["spec"]["size"], after["metadata"]["generation"]) == (7, 2)
    assert after["spec"]["containers"] == found["spec"]["containers"]


def test_the_scale_has_the_version_of_the_object(place: Place, make: Make) -> None:
    found = make()
    path = f"{at(place, found)}/scale"
    fresh = {"metadata": {"resourceVersion": version(found)}, "spec": {"replicas": 7}}
    assert place.talk.merge(path, fresh)[0] == 200
    status, refused = place.talk.merge(path, fresh | {"spec": {"replicas": 8}})
    assert (status, refused["reason"]) == (409, "Conflict")
    assert place.talk.ok("GET", path)["spec"]["replicas"] == 7


def test_a_negative_scale_is_invalid_and_a_word_is_rejected(place: Place, make: Make) -> None:
    path = f"{at(place, make())}/scale"
    assert place.talk.merge(path, {"spec": {"replicas": -1}})[0] == 422
    assert place.talk.merge(path, {"spec": {"replicas": "many"}})[0] in (400, 422)
    assert place.talk.merge(path, {"spec": {"replicas": 2**40}})[0] in (400, 422)


def test_a_size_over_the_maximum_is_accepted_by_the_api_server(place: Place, make: Make) -> None:
    path = f"{at(place, make(size=1, maxSize=2))}/scale"
    assert place.talk.merge(path, {"spec": {"replicas": 5}})[0] == 200


# -- lists and watches -------------------------------------------------------------------------------


def test_lists_are_filtered_by_selectors(place: Place, make: Make) -> None:
    one, two = make(labels={"color": "red"}), make(labels={"color": "blue"})
    names = {each["metadata"]["name"] for each in (one, two)}

    def found(query: str) -> set[str]:
        items = place.talk.ok("GET", f"{place.path}?{query}")["items"]
        return {each["metadata"]["name"] for each in items} & names

    first, second = one["metadata"]["name"], two["metadata"]["name"]
    assert found("labelSelector=color%3Dred") == {first}
    assert found("labelSelector=color!%3Dred") == {second}
    assert found("labelSelector=color%20in%20(red,blue)") == names
    assert found("labelSelector=color%20notin%20(red)") == {second}
    assert found("labelSelector=!color") == set()
    assert found("labelSelector=color") == names
    assert found(f"fieldSelector=metadata.name%3D{second}") == {second}


def test_lists_have_pages_of_one_version(place: Place, make: Make) -> None:
    labels = {"paged": "yes"}
    names = {make(labels=labels)["metadata"]["name"] for _ in range(3)}
    query = f"{place.path}?labelSelector=paged%3Dyes&limit=2"
    first = place.talk.ok("GET", query)
    assert len(first["items"]) == 2
    make(labels=labels)  # after the returned version
    rest = place.talk.ok("GET", f"{query}&continue={first['metadata']['continue']}")
    assert not rest["metadata"].get("continue")
    assert version(rest) == version(first)
    items = [each["metadata"]["name"] for each in (*first["items"], *rest["items"])]
    assert (set(items), len(items)) == (names, 3)
    assert place.talk("GET", f"{query}&continue=nonsense")[0] == 400


def test_a_list_is_a_table_if_requested(place: Place, make: Make) -> None:
    name = make()["metadata"]["name"]
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    for path, many in ((place.path, True), (f"{place.path}/{name}", False)):
        status, found = place.talk("GET", path, accept=accept)
        assert (status, found["kind"], found["apiVersion"]) == (200, "Table", "meta.k8s.io/v1")
        assert found["columnDefinitions"][0]["name"] == "Name"
        rows = {row["cells"][0]: row["object"] for row in found["rows"]}
        assert rows[name]["kind"] == "PartialObjectMetadata"
        assert rows[name]["metadata"]["name"] == name
        assert len(rows) == 1 or many


def test_writes_declare_their_field_validation(place: Place, make: Make) -> None:
    """kubectl reads the OpenAPI document before it leaves the validation to the server."""
    make()
    status, found = place.talk("GET", "/openapi/v3")
    assert status == 200
    where = found["paths"]["apis/flux-framework.org/v1alpha2"]["serverRelativeURL"]
    described = place.talk.ok("GET", where)
    patches = [each["patch"] for each in described["paths"].values() if "patch" in each]
    names = [{parameter["name"] for parameter in each["parameters"]} for each in patches]
    assert any("fieldValidation" in each for each in names)


def test_a_watch_without_a_version_starts_with_existing_objects(place: Place, make: Make) -> None:
    one, _ = make(), make()
    name = one["metadata"]["name"]
    selector = f"metadata.name%3D{name}"
    told = list(place.talk.watch(place.path, fieldSelector=selector, timeoutSeconds=1))
    assert [(each["type"], each["object"]["metadata"]["name"]) for each in told] == [
        ("ADDED", name)
    ]


def test_a_watch_reports_objects_that_are_no_longer_selected_as_deleted(
    place: Place, make: Make
) -> None:
    start = version(place.talk.ok("GET", place.path))
    path = at(place, make(labels={"turn": "on"}))
    place.talk.merge(path, {"metadata": {"labels": {"turn": "off"}}})
    place.talk.merge(path, {"metadata": {"labels": {"turn": "on"}}})
    query = {"labelSelector": "turn%3Don", "resourceVersion": start, "timeoutSeconds": 1}
    told = [each["type"] for each in place.talk.watch(place.path, **query)]
    assert told == ["ADDED", "DELETED", "ADDED"]


def test_events_are_selected_by_the_object_they_are_about(place: Place, make: Make) -> None:
    found = make()["metadata"]
    path = f"/api/v1/namespaces/{place.namespace}/events"
    about = {"kind": "MiniCluster", "name": found["name"], "uid": found["uid"]}

    def event(namespace: str) -> dict[str, Any]:
        return {
            "metadata": {"generateName": "e-"},
            "involvedObject": {**about, "namespace": namespace},
            "reason": "Resized",
            "message": "4 nodes",
            "type": "Normal",
        }

    place.talk.ok("POST", path, event(place.namespace))
    assert place.talk("POST", path, event("elsewhere"))[0] == 422
    query = f"{path}?fieldSelector=involvedObject.uid%3D{found['uid']},reason%3DResized"
    assert [each["message"] for each in place.talk.ok("GET", query)["items"]] == ["4 nodes"]
    assert place.talk("GET", f"{path}?fieldSelector=message%3Dx")[0] == 400


def test_a_watch_reports_changes_since_a_version(place: Place, make: Make) -> None:
    start = version(place.talk.ok("GET", place.path))
    found = make()
    name = found["metadata"]["name"]
    place.talk.merge(at(place, found), {"spec": {"size": 4}})
    place.talk.ok("DELETE", at(place, found))
    events = [
        (each["type"], each["object"])
        for each in place.talk.watch(place.path, resourceVersion=start, timeoutSeconds=1)
        if each["object"]["metadata"]["name"] == name
    ]
    assert [what for what, _ in events] == ["ADDED", "MODIFIED", "DELETED"]
    assert [each["spec"]["size"] for _, each in events] == [3, 4, 4]


def test_a_watch_that_ended_is_resumed_from_its_last_version(place: Place, make: Make) -> None:
    start = version(place.talk.ok("GET", place.path))
    first = make()
    events = list(place.talk.watch(place.path, resourceVersion=start, timeoutSeconds=1))
    assert events, "the watch ended with its time, and had told what there was"
    second = make()
    last = version(events[-1]["object"])
    again = place.talk.watch(place.path, resourceVersion=last, timeoutSeconds=1)
    names = [each["object"]["metadata"]["name"] for each in again if each["type"] == "ADDED"]
    assert first["metadata"]["name"] not in names
    assert second["metadata"]["name"] in names


def test_a_bookmark_has_the_version_that_a_quiet_watch_has_reached(
    place: Place, make: Make
) -> None:
    """A server sends a bookmark each minute, and perhaps before the end of a watch."""
    latest = version(make())
    seconds = 90 if place.real else 8
    query = {"resourceVersion": latest, "timeoutSeconds": seconds, "allowWatchBookmarks": "true"}
    told = place.talk.watch(place.path, fieldSelector="metadata.name%3Dnobody", **query)
    mark = next(each["object"] for each in told if each["type"] == "BOOKMARK")
    assert mark["kind"] == "MiniCluster"
    assert int(version(mark)) >= int(latest)


def test_a_watch_from_too_old_a_version_is_gone(place: Place, make: Make) -> None:
    make()
    events = place.talk.watch(place.path, resourceVersion=1, timeoutSeconds=1)
    refused = next(iter(events))
    assert refused["type"] == "ERROR"
    assert (refused["object"]["code"], refused["object"]["reason"]) == (410, "Expired")


# -- credentials -------------------------------------------------------------------------------------

_ACCOUNTS = "/api/v1/namespaces/{0}/serviceaccounts"
_ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/{0}/roles"
_BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces/{0}/rolebindings"


@pytest.fixture(scope="module")
def resizer(place: Place) -> Talk:
    """Return a client that may get miniclusters, and get and patch their scale, in one
    namespace.
    """
    talk, namespace = place.talk, place.namespace
    group = "rbac.authorization.k8s.io"
    talk.ok("POST", _ACCOUNTS.format(namespace), {"metadata": {"name": "resizer"}})
    flux = {"apiGroups": ["flux-framework.org"]}
    rules = [
        {**flux, "resources": ["miniclusters"], "verbs": ["get"]},
        {**flux, "resources": ["miniclusters/scale"], "verbs": ["get", "patch"]},
    ]
    talk.ok("POST", _ROLES.format(namespace), {"metadata": {"name": "resizer"}, "rules": rules})
    binding = {
        "metadata": {"name": "resizer"},
        "subjects": [{"kind": "ServiceAccount", "name": "resizer", "namespace": namespace}],
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "resizer"},
    }
    talk.ok("POST", _BINDINGS.format(namespace), binding)
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600},
    }
    answer = talk.ok("POST", f"{_ACCOUNTS.format(namespace)}/resizer/token", request)
    return talk.with_token(answer["status"]["token"])


def test_a_wrong_token_is_unauthorized(place: Place, make: Make) -> None:
    status, found = place.talk.with_token("wrong")("GET", at(place, make()))
    assert (status, found["reason"]) == (401, "Unauthorized")


def test_a_resizer_may_read_and_scale(place: Place, make: Make, resizer: Talk) -> None:
    path = at(place, make())
    end = time.monotonic() + place.patience  # roles take effect after a moment
    while resizer("GET", path)[0] == 403 and time.monotonic() < end:
        time.sleep(0.1)
    assert resizer("GET", path)[0] == 200
    assert resizer("GET", f"{path}/scale")[0] == 200
    assert resizer.merge(f"{path}/scale", {"spec": {"replicas": 4}})[0] == 200


def test_a_resizer_may_do_nothing_else(place: Place, make: Make, resizer: Talk) -> None:
    path = at(place, make())
    refused = {
        "list": resizer("GET", place.path),
        "watch": resizer("GET", f"{place.path}?watch=1&timeoutSeconds=1"),
        "patch": resizer.merge(path, {"spec": {"size": 4}}),
        "update": resizer("PUT", path, document("x")),
        "delete": resizer("DELETE", path),
        "delete all": resizer("DELETE", place.path),
        "create": resizer("POST", place.path, document("x")),
        "read status": resizer("GET", f"{path}/status"),
        "patch status": resizer.merge(f"{path}/status", {"status": {"size": 1}}),
        "replace scale": resizer("PUT", f"{path}/scale", {"spec": {"replicas": 1}}),
        "elsewhere": resizer("GET", path.replace(place.namespace, "default")),
        "pods": resizer("GET", f"/api/v1/namespaces/{place.namespace}/pods"),
    }
    assert {what: status for what, (status, _) in refused.items()} == dict.fromkeys(refused, 403)
    assert "cannot delete resource" in refused["delete"][1]["message"]


# -- deletion ----------------------------------------------------------------------------------------


def test_an_object_with_a_finalizer_stays_until_it_is_removed(place: Place, make: Make) -> None:
    path = at(place, make())
    place.talk.merge(path, {"metadata": {"finalizers": ["example.org/wait"]}})
    place.talk.ok("DELETE", path)
    found = place.talk.ok("GET", path)
    assert found["metadata"]["deletionTimestamp"]
    status, _ = place.talk.merge(path, {"metadata": {"finalizers": None}})
    assert status == 200
    place.talk.until(path, lambda found: found.get("code") == 404, place.patience)


def test_owned_objects_are_deleted_with_their_owner(place: Place, make: Make) -> None:
    owner = make()
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    maps = f"/api/v1/namespaces/{place.namespace}/configmaps"
    name = f"of-{owner['metadata']['name']}"
    metadata = {"name": name, "ownerReferences": [reference]}
    place.talk.ok("POST", maps, {"metadata": metadata})
    place.talk.ok("POST", maps, {"metadata": {"name": f"not-{name}"}})
    place.talk.ok("DELETE", at(place, owner))
    place.talk.until(f"{maps}/{name}", lambda found: found.get("code") == 404, place.patience)
    assert place.talk("GET", f"{maps}/not-{name}")[0] == 200


def belonging(place: Place, name: str, *owners: dict[str, Any]) -> str:
    """Create a ConfigMap with these owners; return its path."""
    references = [
        {
            **{key: each[key] for key in ("apiVersion", "kind")},
            **{key: each["metadata"][key] for key in ("name", "uid")},
        }
        for each in owners
    ]
    maps = f"/api/v1/namespaces/{place.namespace}/configmaps"
    place.talk.ok("POST", maps, {"metadata": {"name": name, "ownerReferences": references}})
    return f"{maps}/{name}"


def test_an_object_with_two_owners_is_deleted_with_the_last(place: Place, make: Make) -> None:
    one, two = make(), make()
    path = belonging(place, f"both-{one['metadata']['name']}", one, two)
    place.talk.ok("DELETE", at(place, one))
    time.sleep(5 if place.real else 0.1)
    assert place.talk("GET", path)[0] == 200
    place.talk.ok("DELETE", at(place, two))
    place.talk.until(path, lambda found: found.get("code") == 404, place.patience)


def test_owned_objects_may_be_orphaned(place: Place, make: Make) -> None:
    owner = make()
    path = belonging(place, f"left-{owner['metadata']['name']}", owner)
    place.talk.ok("DELETE", at(place, owner), {"propagationPolicy": "Orphan"})
    place.talk.until(at(place, owner), lambda found: found.get("code") == 404, place.patience)
    time.sleep(5 if place.real else 0.1)
    assert not place.talk.ok("GET", path)["metadata"].get("ownerReferences")


def test_an_object_whose_owners_do_not_exist_is_deleted(place: Place, make: Make) -> None:
    owner = make()
    place.talk.ok("DELETE", at(place, owner))
    path = belonging(place, f"late-{owner['metadata']['name']}", owner)
    place.talk.until(path, lambda found: found.get("code") == 404, place.patience)


def test_a_deletion_may_name_the_uid(place: Place, make: Make) -> None:
    path = at(place, make())
    assert place.talk("DELETE", path, {"preconditions": {"uid": "another"}})[0] == 409
    assert place.talk("GET", path)[0] == 200


def test_a_replacement_changes_exactly_its_fields(place: Place, make: Make) -> None:
    found = make()
    found["spec"]["size"] = 6
    status, replaced = place.talk("PUT", at(place, found), found)
    assert (status, replaced["spec"]["size"]) == (200, 6)
