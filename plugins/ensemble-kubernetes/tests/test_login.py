"""Tests of credentials that are replaced while a run uses them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ensemble_testing import Session

if TYPE_CHECKING:
    from conftest import Cluster


def test_a_run_uses_the_new_token_after_another_login(world: Cluster, session: Session) -> None:
    """A token of ``oc login`` is valid for a day. Meanwhile, the user has changed the context."""
    script = "until [ -e gate ]; do sleep 0.1; done"
    session.submit(job := session.job("sh", "-c", script, workdir=str(session.folder)))
    session.wait_for(job, "start")
    before = world.kubeconfig.read_text()
    access, file = world.cluster.access, json.loads(before)
    old, new = file["users"][0]["user"]["token"], access.token(world.user)
    try:
        access.revoke(old)
        world.cluster.cut()
        world.wait(lambda: bool(session.problems()))
        file["users"][0]["user"]["token"] = new
        file["clusters"].append({"name": "other", "cluster": {"server": "http://localhost:9"}})
        context = {"cluster": "other", "user": "user", "namespace": "other"}
        file["contexts"].append({"name": "other", "context": context})
        file["current-context"] = "other"
        world.kubeconfig.write_text(json.dumps(file))
        (session.folder / "gate").touch()
        session.wait_clean(job)
        assert session.context(job, "finish")["status"] == 0
        session.run(session.job("true"))
    finally:
        access._users[old] = world.user
        world.kubeconfig.write_text(before)
