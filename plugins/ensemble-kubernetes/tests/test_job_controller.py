"""Test of the stand-in's Job controller: a reconcile that races with the end of a pod."""

from __future__ import annotations

import threading

import pytest
from kubernetes_stand_in.jobs import JobController
from kubernetes_stand_in.store import Store


def test_a_job_whose_pod_ends_during_a_reconcile_gets_no_second_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
    store.create(store.kinds[("", "namespaces")], "", namespace)
    jobs, pods = store.kinds[("batch", "jobs")], store.kinds[("", "pods")]
    template = {"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}
    body = {"metadata": {"name": "one"}, "spec": {"backoffLimit": 0, "template": template}}
    store.create(jobs, "default", {"apiVersion": "batch/v1", "kind": "Job", **body})
    controller = JobController(store)
    controller.look(store.all(jobs))
    (pod,) = store.all(pods)
    owned = store.owned

    def end() -> None:
        store.write(pods, "default", {**pod, "status": {"phase": "Succeeded"}}, part="status")

    ending = threading.Thread(target=end)

    def owned_a_moment_later(*kind: object) -> object:
        ending.start()
        ending.join(0.3)  # waits for the lock, or has ended
        return owned(*kind)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "owned", owned_a_moment_later)
    controller.look(store.all(jobs))
    monkeypatch.undo()
    ending.join(60)
    controller.look(store.all(jobs))
    assert len(store.all(pods)) == 1
    assert store.all(jobs)[0]["status"]["succeeded"] == 1
