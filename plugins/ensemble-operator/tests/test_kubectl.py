"""Tests with kubectl against the stand-in. Skipped without kubectl.

kubectl sends no token over plain HTTP, so this stand-in uses TLS.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_namespace import ensemble, member
from operator_cluster import Stand

EXAMPLES = Path(__file__).parents[1] / "examples"
KUBECTL = shutil.which("kubectl")
pytestmark = pytest.mark.skipif(
    KUBECTL is None, reason="no kubectl here: its own requests are not tried"
)


class Kubectl:
    """kubectl with all rights in the stand-in. ``home`` has its caches."""

    def __init__(self, stand: Stand, home: Path) -> None:
        config = stand.cluster.kubeconfig(home / "config")
        kept = {key: each for key, each in os.environ.items() if not key.startswith("KUBE")}
        self._environment = {**kept, "HOME": str(home), "KUBECONFIG": str(config)}
        self._folder = home

    def __call__(self, *words: str, given: Any = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(KUBECTL), *words],
            input=None if given is None else yaml.safe_dump(given),
            env=self._environment, cwd=self._folder, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip

    def says(self, *words: str, given: Any = None) -> str:
        done = self(*words, given=given)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    stand = Stand(tls=tmp_path / "tls")
    yield stand
    stand.close()


@pytest.fixture
def kubectl(stand: Stand, tmp_path: Path) -> Kubectl:
    home = tmp_path / "home"
    home.mkdir()
    return Kubectl(stand, home)


def test_an_example_is_applied_shown_scaled_and_deleted(stand: Stand, kubectl: Kubectl) -> None:
    stand.start()
    file = str(EXAMPLES / "hello-world.yaml")
    assert "created" in kubectl.says("apply", "-f", file)
    assert "condition met" in kubectl.says(
        "wait", "--for=condition=Ready", "ens/ensemble", "--timeout=100s"
    )
    head, row = kubectl.says("get", "ens", "-o", "wide").splitlines()
    assert head.split() == [
        "NAME", "READY", "PHASE", "MEMBERS", "NODES", "RUNNING", "WAITING", "EXIT", "AGE",
        "REASON", "FILE",
    ]  # fmt: skip
    assert row.split()[:5] == ["ensemble", "True", "Running", "1/1", "1"]
    assert row.split()[-2] == "Ready"
    everything = kubectl.says("get", "all")
    for each in ("pod/ensemble-0-0", "service/ensemble-grpc", "deployment.apps/ensemble",
                 "ensemble.ensemble.flux-framework.org/ensemble"):  # fmt: skip
        assert each in everything
    described = kubectl.says("describe", "ens", "ensemble")
    assert "Type:                  MembersReady" in described
    events = described.partition("Events:")[2]
    assert {"Ignored", "Created", "ServiceReady", "MemberReady"} <= set(events.split())
    # Applying it again changes nothing: defaults of the API server do not count as changes.
    before = stand.get("MiniCluster", "ensemble-0")
    kubectl.says("apply", "-f", file)
    found = stand.get("Ensemble", "ensemble")
    assert found is not None
    assert found["metadata"]["generation"] == 1
    assert stand.get("MiniCluster", "ensemble-0") == before
    kubectl.says("scale", "minicluster", "ensemble-0", "--replicas=3")
    stand.until(lambda: stand.status("ensemble")["members"][0]["size"] == 3)
    stand.player.end("default", "ensemble-0")
    kubectl.says("wait", "--for=condition=Finished", "ens/ensemble", "--timeout=100s")
    assert kubectl.says("get", "ens", "ensemble", "-o", "jsonpath={.status.exit}") == "0"
    assert "deleted" in kubectl.says("delete", "ens", "ensemble", "--timeout=100s")
    stand.until(lambda: not any(map(stand.names, ("MiniCluster", "Deployment", "Secret", "Pod"))))


def test_a_dry_run_and_rejected_objects_leave_nothing(stand: Stand, kubectl: Kubectl) -> None:
    file = str(EXAMPLES / "two-members.yaml")
    for words in (("--server-side",), ()):
        said = kubectl.says("apply", *words, "--dry-run=server", "-f", file)
        assert "server dry run" in said
    wrong = ensemble(member(spec={"size": "many"}))
    wrong["metadata"] = {"name": "study"}
    done = kubectl("apply", "-f", "-", given=wrong)
    assert done.returncode == 1
    assert "spec.members[0].minicluster.spec.size" in done.stderr
    wrong["spec"] = {**ensemble()["spec"], "checkSeconds": 10}
    done = kubectl("apply", "-f", "-", given=wrong)
    assert done.returncode == 1
    assert 'unknown field "spec.checkSeconds"' in done.stderr
    assert stand.names("Ensemble") == []


def test_a_large_file_works_with_server_side_apply(stand: Stand, kubectl: Kubectl) -> None:
    """Otherwise kubectl keeps a copy in an annotation, which is limited to 256 KiB."""
    found = ensemble(member(ensemble=member()["ensemble"] + "#" * 300_000))
    found["metadata"] = {"name": "study"}
    done = kubectl("apply", "-f", "-", given=found)
    assert done.returncode == 1
    assert "Too long" in done.stderr
    assert "serverside-applied" in kubectl.says("apply", "--server-side", "-f", "-", given=found)
    kept = json.loads(kubectl.says("get", "ens", "study", "-o", "json"))
    assert kept["spec"]["members"][0]["ensemble"] == found["spec"]["members"][0]["ensemble"]
    assert not kept["metadata"].get("annotations")


@pytest.mark.parametrize("folder", ["one-namespace", "all-namespaces"])
def test_the_manifests_can_be_applied_again_and_deleted(
    stand: Stand, kubectl: Kubectl, folder: str
) -> None:
    """With the README's commands. The stand-in already has the definition."""
    manifests = str(Path(__file__).parents[1] / "deploy" / folder)
    definition = str(Path(__file__).parents[1] / "deploy" / "definition")
    stand.apply(ensemble(name="kept"))
    for _ in range(2):
        kubectl.says("apply", "--server-side", "--force-conflicts", "-k", definition)
        said = kubectl.says("apply", "--server-side", "--force-conflicts", "-k", manifests)
        assert "deployment.apps/ensemble-operator serverside-applied" in said
    assert stand.get("Deployment", "ensemble-operator", "ensemble") is not None
    # The namespace's deletion may delete an object before kubectl does; hence --ignore-not-found.
    kubectl.says("delete", "--ignore-not-found", "-k", manifests, "--timeout=100s")
    assert stand.get("Deployment", "ensemble-operator", "ensemble") is None
    assert stand.get("Ensemble", "kept") is not None, "the definition stays"


def test_an_object_created_in_another_way_is_a_conflict(stand: Stand, kubectl: Kubectl) -> None:
    """This is why the README, the manifests and the command all apply in the same way."""
    found = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}
    kubectl.says("create", "--field-manager=another-way", "-f", "-", given=found)
    done = kubectl("apply", "--server-side", "-f", "-", given={**found, "data": {"a": "2"}})
    assert done.returncode == 1
    assert 'conflict with "another-way"' in done.stderr
