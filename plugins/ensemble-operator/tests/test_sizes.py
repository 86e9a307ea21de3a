"""Tests of a member's size, set by its rules, an autoscaler, or another client."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ensemble_minicluster.resizer import build as build_resizer
from ensemble_operator.object_names import KINDS
from fake_namespace import ensemble, member
from operator_cluster import Stand

TARGET = {"type": "Utilization", "averageUtilization": 80}
AUTOSCALING = {"metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": TARGET}}]}


class Autoscaler:
    """Simulated controller of a HorizontalPodAutoscaler.

    It reads the object and the scale subresource of its target, and writes ``wanted`` replicas
    there, within its bounds.
    """

    def __init__(self, stand: Stand, name: str) -> None:
        self.wanted = 1
        self._stand, self._name = stand, name
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(120)

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            self._stand.cluster.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self._stand.cluster.token}",
                "Content-Type": "application/merge-patch+json" if body else "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def _work(self) -> None:
        while not self._ended.wait(0.05):
            # Like a real autoscaler, retry a failed request in the next cycle.
            with suppress(OSError):
                self._scale()

    def _scale(self) -> None:
        spec = self._ask("GET", KINDS["HorizontalPodAutoscaler"].path("default", self._name))[
            "spec"
        ]
        target = spec["scaleTargetRef"]
        assert target["apiVersion"] == KINDS[target["kind"]].api_version
        scale = f"{KINDS[target['kind']].path('default', target['name'])}/scale"
        size = min(max(self.wanted, spec["minReplicas"]), spec["maxReplicas"])
        found = self._ask("GET", scale)
        if found["spec"]["replicas"] != size:
            self._ask("PATCH", scale, {"spec": {"replicas": size}})


def resizer_of(stand: Stand, name: str, folder: Path) -> Any:
    """Return the resizer of an Ensemble's service, with the rights of its account."""
    deployment = stand.get("Deployment", name)
    assert deployment is not None
    pod = deployment["spec"]["template"]["spec"]
    said = [a for a in pod["containers"][0]["args"] if a.startswith("--option=")]
    options = dict(each.removeprefix("--option=").split("=", 1) for each in said)
    options["namespace"] = options["namespace"].replace("$(POD_NAMESPACE)", "default")
    account = f"system:serviceaccount:default:{pod['serviceAccountName']}"
    config = stand.cluster.kubeconfig(folder / "config", stand.cluster.access.token(account))
    return build_resizer({**options, "kubeconfig": str(config), "timeout": 30})


def size(stand: Stand, name: str) -> int:
    found = stand.get("MiniCluster", name)
    assert found is not None
    return int(found["spec"]["size"])


def entry(stand: Stand, name: str) -> Mapping[str, Any]:
    entries = stand.status("study").get("members", ())
    return next((each for each in entries if each["name"] == name), {})


def pods_of(stand: Stand, job: str) -> int:
    labels = (pod["metadata"].get("labels", {}) for pod in stand.all("Pod"))
    return sum(each.get("job-name") == job for each in labels)


@pytest.mark.checkout  # the resizer needs the Kubernetes client, which the operator does not
def test_an_autoscaler_sets_one_members_size_and_rules_set_anothers(
    stand: Stand, tmp_path: Path
) -> None:
    pytest.importorskip("kubernetes", reason="the Kubernetes client is not installed")
    stand.start()
    wide = {"size": 1, "maxSize": 4}
    members = (
        member(name="auto", spec=wide, resize="HPA", autoscaling=AUTOSCALING),
        member(name="rules", spec=wide),
        member(name="fixed", spec=wide, resize="None"),
    )
    stand.apply(ensemble(*members))
    stand.until(lambda: stand.ready("study"))
    scaler = Autoscaler(stand, "study-auto")
    resizer = resizer_of(stand, "study", tmp_path)
    try:
        scaler.wanted = 3
        stand.until(lambda: entry(stand, "auto").get("size") == 3)
        stand.until(lambda: "Resized" in stand.events())
        # Rules may not resize these members.
        for name in ("auto", "fixed"):
            answer = resizer.resize(f"default/study-{name}", 1)
            assert (answer.outcome, answer.code) == ("denied", "not-ours"), answer
        answer = resizer.resize("default/study-rules", 1)
        assert (answer.outcome, answer.granted) == ("granted", 2), answer
        # The operator never writes a size, even if other fields change.
        stand.apply(ensemble(*members, sidecar={"image": "mine:2"}))
        stand.until(lambda: entry(stand, "rules").get("size") == 2)
        scaler.wanted = 9
        stand.until(lambda: entry(stand, "auto").get("size") == 4)
        scaler.wanted = 2
        stand.until(lambda: entry(stand, "auto").get("size") == 2)
        sizes = {name: size(stand, f"study-{name}") for name in ("auto", "rules", "fixed")}
        assert sizes == {"auto": 2, "rules": 2, "fixed": 1}
        stand.until(lambda: stand.ready("study"))
        # Removed pods do not count as failed, so the Job still creates others.
        stand.until(lambda: pods_of(stand, "study-auto") == 2)
        scaler.wanted = 3
        stand.until(lambda: pods_of(stand, "study-auto") == 3)
        stand.until(lambda: entry(stand, "auto").get("size") == 3)
    finally:
        resizer.close()
        scaler.stop()
