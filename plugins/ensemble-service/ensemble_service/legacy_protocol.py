"""Legacy protocol: the service ``EnsembleOperator`` for clients of ensemble-python 0.0.16.

These clients have no token, so they can resize only the members that ``--legacy`` names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

from ensemble_core import Resized, UsageError
from ensemble_service.access import Identity, member_name
from ensemble_service.call_errors import Refused
from ensemble_service.proto import ensemble_operator_pb2 as old
from ensemble_service.proto import ensemble_operator_pb2_grpc as api
from ensemble_service.proto import ensemble_pb2 as pb
from ensemble_service.resize_requests import Resizes, check_delta
from ensemble_service.rpc_guard import caller
from ensemble_service.servicer import EnsembleServicer

#: Codes of denials that may only mean that the member already has this size.
_AT_BOUND = frozenset({"at-maximum", "at-minimum"})
_STATES = ("new", "depend", "priority", "sched", "run", "cleanup", "inactive")
_NODES = {
    "node_cores_free": "cores.free",
    "node_cores_up": "cores.up",
    "node_up_count": "nodes.up",
    "node_free_count": "nodes.free",
}


# A bad request is answered with ERROR and a reason, not with a gRPC status, as the clients expect.
# The API group and version in a request are ignored.
class LegacyServicer(api.EnsembleOperatorServicer):
    """The gRPC service ``EnsembleOperator``."""

    def __init__(
        self,
        current: EnsembleServicer,
        resizes: Resizes,
        legacy: Collection[str],  # full names of the members that need no token
    ) -> None:
        self._current = current
        self._resizes = resizes
        self._legacy = frozenset(legacy)

    def stand_in(self, request: old.StatusRequest | old.ActionRequest) -> Identity | None:
        """Identify a caller without a credential as the member it names, if that is a legacy
        member.
        """
        try:
            member = member_name(request.name)
        except UsageError:
            return None
        if member not in self._legacy:
            return None
        return Identity("member", member.partition("/")[0], member)

    # -- resize ---------------------------------------------------------------------------------

    async def RequestAction(self, request: old.ActionRequest, context: Any) -> old.Response:  # noqa: N802
        """Grow (action ``grow``) or shrink (``shrink``) a member."""
        who = caller()
        try:
            member = member_name(request.name)
            delta = _delta(request.action, request.payload)
            check_delta(delta)
        except UsageError as error:
            return _error_response("; ".join(part for part in (error.what, error.cause) if part))
        except Refused as refused:
            return _error_response(refused.message)
        if not who.may_resize(member):
            raise Refused("PERMISSION_DENIED", f"this credential may not resize {member}")
        answer = await self._resizes.ask(who, member, "", delta)
        content = {
            "before": answer.before,
            "asked": answer.asked,
            "granted": answer.granted,
            "reason": answer.reason,
        }
        return old.Response(payload=json.dumps(content), status=_result(answer))

    # -- status ---------------------------------------------------------------------------------

    async def RequestStatus(self, request: old.StatusRequest, context: Any) -> old.Response:  # noqa: N802
        """Return the status of a member."""
        try:
            member = member_name(request.name)
        except UsageError as error:
            return _error_response("; ".join(part for part in (error.what, error.cause) if part))
        try:
            status = await self._current.one(caller(), member)
        except Refused as refused:
            if refused.code != "NOT_FOUND":
                raise
            return _error_response(refused.message)
        return old.Response(payload=json.dumps(_status_data(status)), status=old.Response.SUCCESS)


def _error_response(reason: str) -> old.Response:
    return old.Response(payload=json.dumps({"reason": reason}), status=old.Response.ERROR)


def _result(answer: Resized) -> old.Response.ResultType.ValueType:
    if answer.outcome == "denied":
        return old.Response.EXISTS if answer.code in _AT_BOUND else old.Response.DENIED
    return old.Response.EXISTS if answer.granted == answer.before else old.Response.SUCCESS


def _delta(action: str, payload: str) -> int:
    """Return the requested change of size. Raise :class:`UsageError`."""
    if action not in ("grow", "shrink"):
        raise UsageError(f"unknown action {action[:100]!r}", cause="use 'grow' or 'shrink'")
    try:
        content = json.loads(payload) if payload.strip() else {}
    except (ValueError, RecursionError):
        raise UsageError("the payload is not JSON") from None
    if not isinstance(content, dict):
        raise UsageError("the payload is not a JSON object")
    count = content.get(action)
    if count is None:
        count = 1
    if isinstance(count, float) and count.is_integer():
        count = int(count)
    if isinstance(count, bool) or not isinstance(count, int):
        what = f"invalid number of nodes to {action} by: {str(count)[:100]!r}"
        raise UsageError(what, cause="expected a whole number")
    if action == "shrink":
        return -abs(count)
    if count <= 0:
        what = f"cannot grow by {str(count)[:30]} nodes"
        raise UsageError(what, cause="the smallest change is 1")
    return count


def _status_data(status: pb.MemberStatus) -> Mapping[str, Any]:
    """Return a member's status, with the fields of ensemble-python and additional ones."""
    gauges = status.gauges
    groups = {
        group.name: {
            "waiting": group.waiting,
            "running": group.running,
            "success": group.success,
            "failed": group.failed,
            "cancelled": group.cancelled,
        }
        for group in status.groups
    }
    queue: dict[str, float | int | None] = dict.fromkeys(_STATES, 0)
    for name, value in gauges.items():
        if name.startswith("queue."):
            queue[name.removeprefix("queue.")] = _to_int(value)
    return {
        "nodes": {ours: _to_int(gauges.get(path, 0.0)) for ours, path in _NODES.items()},
        "queue": queue,
        "groups": groups,
        "metrics": {
            name: value if math.isfinite(value) else None for name, value in status.metrics.items()
        },
        "last_heartbeat": status.last_beat,
        "alive": status.alive,
        "executor": status.executor,
        "size": status.size if status.HasField("size") else None,
    }


def _to_int(value: float) -> float | int | None:
    """Return a count as a whole number, as those clients expect."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else value
