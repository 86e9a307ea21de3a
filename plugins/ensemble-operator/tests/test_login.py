"""Tests of the login in a pod, when the service account's token is replaced at runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import kopf
import pytest
from ensemble_operator.api import Api
from ensemble_operator.kopf_watch import log_in
from ensemble_operator.object_names import KINDS
from fake_namespace import ensemble
from operator_cluster import Stand

from ensemble_core import UsageError


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow_lease: None) -> Iterator[Stand]:
    stand = Stand(tls=tmp_path / "tls")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(stand.cluster.port))
    yield stand
    stand.close()


@pytest.fixture
def account(stand: Stand, tmp_path: Path) -> Path:
    """Return the files of a pod's service account."""
    found = tmp_path / "account"
    found.mkdir()
    (found / "token").write_text(stand.cluster.token)
    (found / "ca.crt").write_text((tmp_path / "tls" / "ca.crt").read_text())
    return found


Login = Callable[[], kopf.ConnectionInfo]


def replaced(stand: Stand, account: Path) -> None:
    """Replace the token as the kubelet does: write the new one, then the old one expires."""
    old = (account / "token").read_text()
    (account / "token").write_text(stand.cluster.access.token("system:admin") + "\n")
    stand.cluster.access.revoke(old)


def test_a_replaced_token_is_read_again_by_all_parts(stand: Stand, account: Path) -> None:
    running = stand.start(login=partial(log_in, account), lease="default")
    stand.apply(ensemble(name="first"))
    stand.until(lambda: stand.ready("first"))
    for name in ("second", "third"):
        replaced(stand, account)
        stand.cluster.cut()  # so that watches log in again, too
        stand.apply(ensemble(name=name))
        stand.until(lambda: stand.ready(name))  # noqa: B023  # at once
    assert running.alive
    stand.player.end("default", "first-0")
    stand.until(lambda: stand.condition("first", "Finished") == ("True", "Succeeded"))


def test_a_new_token_is_used_before_the_old_one_is_rejected(
    stand: Stand, account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = KINDS["Pod"].path("default")

    async def twice() -> int:
        api = Api(partial(log_in, account))
        await api("GET", path)
        replaced(stand, account)
        monkeypatch.setattr("ensemble_operator.api._FRESH", 0.0)  # a minute later
        before = len(stand.cluster.log)
        await api("GET", path)
        await api.close()
        return len(stand.cluster.log) - before

    assert asyncio.run(twice()) == 1, "it was not refused first"


def test_without_a_configured_cluster_there_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(UsageError) as caught:
        log_in(tmp_path / "none")
    assert caught.value.code == "no-cluster"
    assert "--kubeconfig" in (caught.value.hint or "")
