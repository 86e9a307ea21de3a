"""Tests of the legacy protocol: clients of the first implementation work unmodified."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from ensemble_service.channel import open_channel
from ensemble_service.proto import ensemble_operator_pb2 as old
from ensemble_service.proto import ensemble_operator_pb2_grpc as old_api
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.proto import ensemble_pb2_grpc as api
from ensemble_service.server import Service, Settings, serving

from ensemble_core import Resized, Resizer

#: Fields that clients of the first implementation send for the custom resource.
OBJECT = {"version": "v1alpha2", "group": "flux-framework.org"}


class Nodes(Resizer):
    """Resizer that starts with four nodes for each member and allows one to eight."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.denial: Resized | None = None

    def resize(self, member: str, delta: int) -> Resized:
        if self.denial:
            return self.denial
        before = self.sizes.get(member, 4)
        asked = before + delta
        granted = max(1, min(8, asked))
        self.sizes[member] = granted
        if granted == before:
            code = "at-maximum" if delta > 0 else "at-minimum"
            return Resized(
                outcome="denied",
                before=before,
                asked=asked,
                granted=before,
                code=code,
                reason="at its bound",
            )
        outcome: Any = "granted" if granted == asked else "partial"
        return Resized(outcome=outcome, before=before, asked=asked, granted=granted)

    def size(self, member: str) -> int | None:
        return self.sizes.get(member)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def service(tmp_path: Path, nodes: Nodes) -> Iterator[Service]:
    chosen = Settings(state=tmp_path, port=0, legacy=("ensemble", "lab/two"), rate=0, grace=1)
    with serving(chosen, nodes) as service:
        yield service


@pytest.fixture
def stub(service: Service) -> Iterator[Any]:
    with contextlib.closing(grpc.insecure_channel(f"127.0.0.1:{service.port}")) as channel:
        stub: Any = old_api.EnsembleOperatorStub
        yield stub(channel)


def act(stub: Any, name: str, action: str, payload: object) -> tuple[str, dict[str, Any]]:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    request = old.ActionRequest(member=f"{name}s", name=name, action=action, payload=text)
    response = stub.RequestAction(request, timeout=150)
    return old.Response.ResultType.Name(response.status), json.loads(response.payload)


@pytest.mark.parametrize(
    ("action", "payload", "status", "granted"),
    [
        ("grow", {**OBJECT, "grow": 2}, "SUCCESS", 6),
        ("grow", {}, "SUCCESS", 5),
        ("grow", "", "SUCCESS", 5),
        ("grow", {"grow": 2.0}, "SUCCESS", 6),
        ("grow", {"grow": 100}, "SUCCESS", 8),
        ("shrink", {**OBJECT, "shrink": 1}, "SUCCESS", 3),
        ("shrink", {"shrink": -2}, "SUCCESS", 2),
        ("shrink", {"shrink": 100}, "SUCCESS", 1),
        ("shrink", {"grow": 3}, "SUCCESS", 3),
    ],
)
def test_grow_and_shrink_return_the_sizes(
    stub: Any, action: str, payload: object, status: str, granted: int
) -> None:
    told, content = act(stub, "ensemble", action, payload)
    assert told == status
    assert (content["before"], content["granted"]) == (4, granted)
    assert set(content) == {"before", "asked", "granted", "reason"}


@pytest.mark.parametrize(
    ("action", "payload"),
    [
        ("grow", {"grow": 0}),
        ("grow", {"grow": -1}),
        ("shrink", {"shrink": 0}),
        ("grow", {"grow": "2"}),
        ("grow", {"grow": True}),
        ("grow", {"grow": 1.5}),
        ("grow", {"grow": 1e300}),
        ("grow", {"grow": [1]}),
        ("grow", '{"grow": Infinity}'),
        ("grow", '{"grow": NaN}'),
        ("grow", "[" * 100_000),
        ("grow", "not json"),
        ("grow", [1]),
        ("dance", {}),
        ("", {}),
    ],
)
def test_an_invalid_request_is_an_error_with_a_reason(
    stub: Any, nodes: Nodes, action: str, payload: object
) -> None:
    told, content = act(stub, "ensemble", action, payload)
    assert told == "ERROR"
    assert content["reason"]
    assert nodes.sizes == {}


def test_a_member_of_the_requested_size_already_exists(stub: Any) -> None:
    act(stub, "ensemble", "grow", {"grow": 4})
    told, content = act(stub, "ensemble", "grow", {"grow": 1})
    assert (told, content["granted"]) == ("EXISTS", 8)


def test_a_denial_has_its_reason(stub: Any, nodes: Nodes) -> None:
    nodes.denial = Resized(outcome="denied", code="forbidden", reason="may not be touched")
    assert act(stub, "ensemble", "grow", {}) == (
        "DENIED",
        {"before": 0, "asked": 0, "granted": 0, "reason": "may not be touched"},
    )


def test_a_name_may_have_a_namespace(stub: Any, nodes: Nodes) -> None:
    act(stub, "lab/two", "grow", {"grow": 1})
    act(stub, "default/ensemble", "grow", {"grow": 2})
    assert nodes.sizes == {"lab/two": 5, "default/ensemble": 6}


@pytest.mark.parametrize("name", ["other", "lab/ensemble", "a/b/c", "", "ensemble ", "default/two"])
def test_a_member_not_in_legacy_needs_a_token(stub: Any, nodes: Nodes, name: str) -> None:
    for call in (
        lambda: act(stub, name, "grow", {}),
        lambda: stub.RequestStatus(old.StatusRequest(member="minicluster", name=name), timeout=150),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "--legacy" in error.details()
    assert nodes.sizes == {}


def test_only_legacy_requests_need_no_token(service: Service) -> None:
    with contextlib.closing(grpc.insecure_channel(f"127.0.0.1:{service.port}")) as channel:
        stub: Any = api.EnsembleStub
        with pytest.raises(grpc.RpcError) as caught:
            stub(channel).Resize(
                pb.ResizeRequest(member="default/ensemble", request="a", delta=1), timeout=150
            )
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_token_is_only_valid_for_its_own_member_here_too(service: Service, nodes: Nodes) -> None:
    token, _ = service.tokens.add("member", "lab/one")
    with contextlib.closing(open_channel("127.0.0.1", service.port, token=token)) as channel:
        stub: Any = old_api.EnsembleOperatorStub
        assert act(stub(channel), "lab/one", "grow", {})[0] == "SUCCESS"
        with pytest.raises(grpc.RpcError) as caught:
            act(stub(channel), "ensemble", "grow", {})
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert nodes.sizes == {"lab/one": 5}


def test_status_has_the_documented_fields(service: Service, stub: Any, nodes: Nodes) -> None:
    token, _ = service.tokens.add("member", "default/ensemble")
    gauges = {
        "cores.free": 10,
        "cores.up": 12,
        "nodes.up": 2,
        "nodes.free": 1,
        "queue.run": 3,
        "queue.sched": 1,
    }
    says = [
        pb.FromMember(hello=pb.Hello(member="default/ensemble", executor="flux")),
        pb.FromMember(beat=pb.Beat(gauges=gauges, groups=[pb.Group(name="sim", running=3)], metrics={"mean.sim-duration": float("nan")})),
    ]  # fmt: skip
    with contextlib.closing(open_channel("127.0.0.1", service.port, token=token)) as channel:
        member: Any = api.EnsembleStub
        stream = member(channel).Member(iter(says))
        list(stream)  # the member sends its messages and disconnects
    nodes.sizes["default/ensemble"] = 2
    response = stub.RequestStatus(
        old.StatusRequest(member="minicluster", name="ensemble"), timeout=150
    )
    assert response.status == old.Response.SUCCESS
    content = json.loads(response.payload)
    assert content["nodes"] == {
        "node_cores_free": 10,
        "node_cores_up": 12,
        "node_up_count": 2,
        "node_free_count": 1,
    }
    assert content["queue"] == {
        "new": 0,
        "depend": 0,
        "priority": 0,
        "sched": 1,
        "run": 3,
        "cleanup": 0,
        "inactive": 0,
    }
    assert content["groups"]["sim"]["running"] == 3
    assert content["metrics"] == {"mean.sim-duration": None}
    assert (content["alive"], content["size"], content["executor"]) == (False, 2, "flux")
    assert content["last_heartbeat"] > 0


def test_the_status_of_an_unknown_member_is_an_error_with_a_reason(stub: Any) -> None:
    response = stub.RequestStatus(
        old.StatusRequest(member="minicluster", name="ensemble"), timeout=150
    )
    assert response.status == old.Response.ERROR
    assert "never connected" in json.loads(response.payload)["reason"]


PEER = """
import json, sys
from ensemble.members.client import EnsembleClient
from ensemble.protos import ensemble_service_pb2, ensemble_service_pb2_grpc
import ensemble.members.auth as auth

host = sys.argv[1]
client = EnsembleClient(host=host)
payload = {"version": "v1alpha2", "group": "flux-framework.org"}
answers = []
for action, count in (("grow", 2), ("shrink", 1), ("grow", 0), ("grow", 100), ("grow", 1)):
    answer = client.action_request("ensembles", "ensemble", action, {**payload, action: count})
    answers.append([answer.status, json.loads(answer.payload)])
with auth.grpc_channel(host) as channel:
    stub = ensemble_service_pb2_grpc.EnsembleOperatorStub(channel)
    request = ensemble_service_pb2.StatusRequest(member="minicluster", name="ensemble")
    answer = stub.RequestStatus(request)
answers.append([answer.status, json.loads(answer.payload)])
print("ANSWERS " + json.dumps(answers))
"""


def test_an_unmodified_client_of_the_first_implementation_gets_right_answers(
    service: Service, tmp_path: Path
) -> None:
    python = os.environ.get("ENSEMBLE_PEER_PYTHON")
    if not python:
        pytest.skip("ENSEMBLE_PEER_PYTHON names no interpreter that has ensemble-python 0.0.16")
    script = tmp_path / "peer.py"
    script.write_text(PEER)
    done = subprocess.run(
        [python, str(script), f"localhost:{service.port}"],
        capture_output=True, text=True, timeout=150, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    *resized, (status, told) = json.loads(line.removeprefix("ANSWERS "))
    assert [(code, content.get("granted")) for code, content in resized] == [
        (1, 6), (1, 5), (2, None), (1, 8), (4, 8),
    ]  # fmt: skip
    assert status == 1
    assert told["size"] == 8
    assert set(told["nodes"]) == {
        "node_cores_free",
        "node_cores_up",
        "node_up_count",
        "node_free_count",
    }
