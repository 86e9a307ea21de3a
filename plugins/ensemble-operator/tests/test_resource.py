"""Tests of the custom resource: its definition, validation and reader."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import ensemble_operator
import pytest
import yaml
from click.testing import CliRunner
from ensemble_operator.crd_schema import RULES, definition
from ensemble_operator.main import crd_text, main
from ensemble_operator.resource import Reference, problems, read
from fake_namespace import FILE, ensemble, member

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.yaml"))

Object = dict[str, Any]


def without(found: Object, key: str) -> Object:
    return {k: v for k, v in found.items() if k != key}


def test_the_shipped_definition_equals_the_generated_one() -> None:
    shipped = Path(ensemble_operator.__file__).parent / "crd.yaml"
    assert shipped.read_text(encoding="utf-8") == crd_text(), "ensemble-operator crd > crd.yaml"


def test_upstreams_group_version_and_kind_are_kept() -> None:
    spec = definition()["spec"]
    assert spec["group"] == "ensemble.flux-framework.org"
    assert [each["name"] for each in spec["versions"]] == ["v1alpha1"]
    assert (spec["names"]["kind"], spec["names"]["plural"]) == ("Ensemble", "ensembles")
    assert spec["names"]["shortNames"] == ["ens"]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_valid(file: Path) -> None:
    done = CliRunner().invoke(main, ["check", str(file)], standalone_mode=False)
    assert done.exception is None, done.exception
    assert "valid" in done.output


def test_every_list_has_a_bound_and_every_object_is_structural() -> None:
    def walk(schema: Object, path: str) -> None:
        if schema.get("x-kubernetes-int-or-string"):
            return
        assert schema.get("type") in ("object", "array", "string", "integer", "boolean"), path
        if schema["type"] == "array":
            assert schema["maxItems"] <= 50, path
            walk(schema["items"], f"{path}[]")
        for key, part in schema.get("properties", {}).items():
            walk(part, f"{path}.{key}")

    walk(definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "")


RUNS_FLUX: Object = {"image": "a", "runFlux": True}
SERVICE: Object = {"image": "b", "name": "b", "commands": {"pre": "true"}}
CLAIM: Object = {"claimName": "data"}
BAD: dict[str, tuple[Object, str]] = {
    "no members": (ensemble() | {"spec": {"members": []}}, "spec.members"),
    "members missing": (ensemble() | {"spec": {}}, "spec.members: is required"),
    "33 members": (ensemble(*[member()] * 33), "spec.members: has 33"),
    "no minicluster": (ensemble(without(member(), "minicluster")), "minicluster: is required"),
    "no container": (ensemble(member(spec={"containers": []})), "containers: has 0 items"),
    "size over maxSize": (ensemble(member(4, spec={"maxSize": 2})), "size is greater than maxSize"),
    "minSize over size": (ensemble(member(1, spec={"minSize": 2})), "minSize is greater than size"),
    "minSize over maxSize": (
        ensemble(member(spec={"minSize": 3, "maxSize": 2})),
        "minSize is greater than maxSize",
    ),
    "size 0": (ensemble(member(0)), "0 must be at least 1"),
    "cleanup": (ensemble(member(spec={"cleanup": True})), "cleanup"),
    "no file": (ensemble(without(member(), "ensemble")), "exactly one ensemble file"),
    "two files": (ensemble(member(), ensemble=FILE), "exactly one ensemble file"),
    "both places": (
        ensemble(member(ensembleFrom={"configMapKeyRef": {"name": "a"}})),
        "exactly one ensemble file",
    ),
    "names that are equal": (ensemble(member(name="a"), member(name="a")), "the same name"),
    "a name that is an index": (ensemble(member(), member(name="0")), "does not match"),
    "a long name": (ensemble(member(name="a" * 16)), "has 16 characters"),
    "a name with capitals": (ensemble(member(name="Aa")), "does not match"),
    "a long name of the whole": (ensemble(name="a" * 41), "at most 40"),
    "a dot in the name": (ensemble(name="a.b"), "no dots"),
    "a digit first": (ensemble(name="1a"), "start with a letter"),
    "port 0": (ensemble(sidecar={"port": 0}), "a port must be between"),
    "port as words": (ensemble(sidecar={"port": "grpc"}), "a port must be between"),
    "port too large": (ensemble(sidecar={"port": "65536"}), "a port must be between"),
    "an invalid port": (ensemble(sidecar={"port": 1.5}), "integer or a string"),
    "two places for state": (ensemble(state={"claim": "a", "size": "1Gi"}), "cannot be combined"),
    "an unknown field": (ensemble(sidecar={"prot": 1}), "is unknown"),
    "an unknown field of a member": (ensemble(member(algorithm="x")), "is unknown"),
    "another word for suspend": (ensemble(suspend="yes"), "must be a boolean"),
    "an invalid policy": (ensemble(updatePolicy="Now"), "is not one of"),
    "a command that never could run": (
        ensemble(member(spec={"containers": [{"image": "a", "command": "lmp"}]})),
        "would never run",
    ),
    "a container that is not there": (ensemble(member(container="x")), "unknown container 'x'"),
    "a container without a name": (
        ensemble(member(spec={"containers": [{"image": "a"}, {"image": "b"}]})),
        "containers[1].name: every container but the one that runs the ensemble needs a name",
    ),
    "two containers with Flux": (
        ensemble(
            member(spec={"containers": [RUNS_FLUX, {**RUNS_FLUX, "name": "b"}]}),
        ),
        "containers[1].runFlux: only the container that runs the ensemble",
    ),
    "a batch": (
        ensemble(member(spec={"containers": [{"image": "a", "batch": True}]})),
        "containers[0].batch: cannot be combined with 'launcher'",
    ),
    "a script": (
        ensemble(member(spec={"containers": [{"image": "a", "commands": {"script": "lmp"}}]})),
        "containers[0].commands.script: the container that runs the ensemble has no script",
    ),
    "a service without a name": (
        ensemble(member(spec={"containers": [{"image": "a"}], "services": [{"image": "b"}]})),
        "services[0].name: every service container needs a name",
    ),
    "a service with commands": (
        ensemble(member(spec={"containers": [{"image": "a"}], "services": [SERVICE]})),
        "services[0].commands.pre: service containers have no commands",
    ),
    "a claim without a path": (
        ensemble(member(spec={"containers": [{"image": "a", "volumes": {"v": CLAIM}}]})),
        "containers[0].volumes.v.path: a claim or a hostPath needs a path",
    ),
    "a negative limit": (ensemble(member(spec={"backoffLimit": -1})), "must not be negative"),
    "a claim's size": (ensemble(state={"size": "1GB"}), "spec.state.size"),
    "a size of the service's claim": (
        ensemble(sidecar={"storage": {"size": "one"}}),
        "spec.sidecar.storage.size",
    ),
    "a volume's name": (
        ensemble(member(spec={"containers": [{"image": "a", "volumes": {"My_data": {}}}]})),
        "'My_data' is not a valid volume name",
    ),
    "no image": (ensemble(member(spec={"containers": [{}]})), "must have an image"),
    "an autoscaler without its metrics": (
        ensemble(member(resize="HPA")),
        "and allowed only with it",
    ),
    "pip without versions": (ensemble(install={"method": "Pip"}), "and allowed only with it"),
}


@pytest.mark.parametrize(("found", "words"), BAD.values(), ids=BAD)
def test_a_mistake_is_reported_with_its_place(found: Object, words: str) -> None:
    wrong = [str(each) for each in problems(found)]
    assert any(words in each for each in wrong), wrong


@pytest.mark.parametrize(
    "spec",
    [
        {"backoffLimit": None},
        {"backoffLimit": "x"},
        {"services": ["x"]},
        {"services": "x"},
        {"containers": [{"image": "i", "volumes": {"v": None}}]},
        {"containers": [{"image": "i", "volumes": ["v"]}]},
        {"containers": [{"image": "i", "commands": "x"}]},
    ],
    ids=str,
)
def test_a_field_of_a_wrong_type_is_left_to_the_api_server(spec: Object) -> None:
    problems(ensemble(member(spec=spec)))  # does not raise


def test_a_size_may_only_be_set_at_the_start() -> None:
    old = ensemble(member(2), member(3, name="a"), member(4, name="b", resize="None"))
    assert problems(old, old) == []
    for index, allowed in enumerate([False, False, True]):
        new = copy.deepcopy(old)
        new["spec"]["members"][index]["minicluster"]["spec"]["size"] += 1
        assert (problems(new, old) == []) == allowed
    reordered = ensemble(*reversed(old["spec"]["members"][1:]), old["spec"]["members"][0])
    assert problems(reordered, old) == []


def test_an_invalid_ensemble_file_is_reported_with_line_and_column(tmp_path: Path) -> None:
    found = ensemble(member(ensemble=FILE.replace("label: a", "label: b")))
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(found))
    done = CliRunner().invoke(main, ["check", str(tmp_path / "e.yaml")])
    assert done.exit_code == 2
    assert "there is no job group 'b'" in done.output
    assert "e.yaml[spec.members[0].ensemble]:2:" in done.output


def test_a_file_over_the_limit_of_a_configmap_is_rejected_with_a_message(tmp_path: Path) -> None:
    for size, code in ((900_000, 0), ((1 << 20) - 100, 2)):
        text = FILE + "#" * (size - len(FILE))
        (tmp_path / "e.yaml").write_text(yaml.safe_dump(ensemble(member(ensemble=text))))
        done = CliRunner().invoke(main, ["check", str(tmp_path / "e.yaml")])
        assert done.exit_code == code, done.output
    assert "a ConfigMap holds" in done.output


def test_a_file_without_an_ensemble_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text("kind: Pod\n")
    done = CliRunner().invoke(main, ["check", str(tmp_path / "e.yaml")])
    assert done.exit_code == 2
    assert "no object of kind Ensemble in" in done.output


# -- reader ------------------------------------------------------------------------------------------


def test_without_a_sidecar_there_is_a_default_port() -> None:
    assert read(ensemble()).sidecar.port == 50051
    assert read(ensemble(sidecar={"port": "6000"})).sidecar.port == 6000


def test_upstreams_image_is_ignored_and_remembered() -> None:
    image = "ghcr.io/converged-computing/ensemble-python:latest"
    sidecar = read(ensemble(sidecar={"image": image, "pullAlways": True})).sidecar
    assert (sidecar.image, sidecar.foreign, sidecar.pull_policy) == ("", image, "Always")
    mine = read(ensemble(sidecar={"image": "registry/ours:1"})).sidecar
    assert (mine.image, mine.foreign) == ("registry/ours:1", "")


def test_the_container_is_the_named_one_or_the_first_with_flux_or_the_first() -> None:
    containers = [{"image": "a", "name": "x"}, {"image": "b", "name": "y", "runFlux": True}]
    with_flux = member(spec={"containers": containers})
    named = {**with_flux, "container": "x"}
    found = read(ensemble(with_flux, named, member()))
    assert [each.container for each in found.members] == [1, 0, 0]


def test_runs_are_resumed_if_their_journals_outlive_the_pod() -> None:
    assert read(ensemble()).restart_policy == "Fail"
    assert read(ensemble(state={"claim": "c"})).restart_policy == "Resume"
    assert read(ensemble(state={"size": "1Gi"}, restartPolicy="Fail")).restart_policy == "Fail"


def test_members_are_named_by_name_or_index_and_files_are_found() -> None:
    reference = {"configMapKeyRef": {"name": "files"}}
    found = read(
        ensemble(member(), without(member(name="b"), "ensemble") | {"ensembleFrom": reference})
    )
    assert [each.name for each in found.members] == ["0", "b"]
    assert found.members[1].file == Reference("files", "ensemble.yaml")
    assert not found.outside
    shared = read(ensemble(without(member(), "ensemble"), ensemble=FILE))
    assert (shared.outside, shared.file, shared.members[0].file) == (True, FILE, None)


# -- validation rules in CEL -------------------------------------------------------------------------


def _defaulted(value: Any, schema: Object) -> Any:
    """Return a value with its defaults, which the API server adds before it checks the rules."""
    if isinstance(value, dict):
        found = dict(value)
        for key, part in schema.get("properties", {}).items():
            if key not in found and "default" in part:
                found[key] = copy.deepcopy(part["default"])
            if key in found:
                found[key] = _defaulted(found[key], part)
        return found
    if isinstance(value, list):
        return [_defaulted(each, schema["items"]) for each in value]
    return value


def _places(place: str, found: Object) -> list[Any]:
    spec = found["spec"]
    return {
        "object": [found],
        "spec": [spec],
        "minicluster.spec": [each["minicluster"]["spec"] for each in spec["members"]],
        "sidecar.port": [spec["sidecar"]["port"]],
        "state": [spec["state"]],
    }[place]


SIZES = [
    (ensemble(member(2)), ensemble(member(2))),
    (ensemble(member(2)), ensemble(member(3))),
    (ensemble(member(2)), ensemble(member())),
    (ensemble(member(2, name="a")), ensemble(member(3, name="a"))),
    (ensemble(member(2, name="a")), ensemble(member(3, name="b"))),
    (ensemble(member(2, name="a"), member(3)), ensemble(member(3), member(2, name="a"))),
    (ensemble(member(2, resize="None")), ensemble(member(3, resize="None"))),
    (ensemble(*[member(1)] * 32), ensemble(*[member(1)] * 31, member(2))),
]


@pytest.mark.checkout
def test_the_rules_are_equal_in_cel_and_in_python() -> None:
    cel = pytest.importorskip("cel", reason="common-expression-language needs Python 3.11")
    schema = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    sound = [ensemble(), ensemble(member(3, spec={"minSize": 2, "maxSize": 4})), ensemble(
        sidecar={"port": "50051"}, state={"claim": "c"})]  # fmt: skip
    objects = [*sound, *(found for found, _ in BAD.values()), *(new for _, new in SIZES)]
    seen: dict[str, set[bool]] = {rule.cel: set() for rule in RULES}
    for found in objects:
        if any(x in str(problems(found)) for x in ("required", "must be a", "may have 1 to")):
            continue  # the schema rejects it first
        whole = _defaulted(found, schema)
        for rule in RULES:
            for value in _places(rule.place, whole):
                if rule.old or (rule.place == "sidecar.port" and isinstance(value, float)):
                    continue
                said = cel.evaluate(rule.cel, {"self": value})
                assert said == rule.holds(value), (rule.cel, value)
                seen[rule.cel].add(said)
    for old, new in SIZES:
        (rule,) = (each for each in RULES if each.old)
        values = [_defaulted(each, schema)["spec"] for each in (new, old)]
        said = cel.evaluate(rule.cel, {"self": values[0], "oldSelf": values[1]})
        assert said == rule.holds(*values), (old, new)
        seen[rule.cel].add(said)
    assert all(each == {True, False} for each in seen.values()), seen
