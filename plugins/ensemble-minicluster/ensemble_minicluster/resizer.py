"""The resizer ``kubernetes``: sets the size of a Flux MiniCluster."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from ensemble_service import member_name

from ensemble_core import EnsembleError, Resized, Resizer, UsageError
from ensemble_minicluster.api import Fault, connect
from ensemble_minicluster.resize_plan import NotResizable, Plan, Sizes, read

#: Number of conflicts with other writers before giving up.
_CONFLICTS = 8
#: Seconds after a problem during which a restarted API server may not know all permissions yet and
#: may reject a valid token.
_STARTING = 10.0
#: Longest pause between retries, in seconds.
_LAST_TRY = 1.0
#: Seconds to wait for the operator, after which the recorded size counts as set; and seconds until
#: the operator's Job is checked, because the operator's write to the status may be lost.
_CONFIRM, _STALE = 3.0, 1.0
_FIRST_LOOK, _LAST_LOOK = 0.1, 0.5


class Objects(Protocol):
    """Client for MiniClusters, such as :class:`ensemble_minicluster.api.MiniClusters`."""

    def get(self, namespace: str, name: str, timeout: float) -> Mapping[str, Any]: ...

    def scale(self, namespace: str, name: str, size: int, version: str, timeout: float) -> None: ...

    def parallelism(self, namespace: str, name: str, timeout: float) -> int | None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Request:
    """A request in progress."""

    namespace: str
    name: str
    delta: int
    deadline: float
    member: str = ""
    seen: Sizes | None = None
    plan: Plan | None = None
    #: A write without a reply: the sizes read before the write, and the plan that it carried out.
    unsure: tuple[Sizes, Plan] | None = None
    #: Whether that write belonged to an earlier request for the same change.
    earlier: bool = False
    conflicts: int = 0
    troubles: int = 0
    faults: list[Fault] = field(default_factory=list)

    @property
    def shown(self) -> str:
        return f"MiniCluster {self.namespace}/{self.name}"


class KubernetesResizer(Resizer):
    """Resizes MiniClusters within their bounds.

    Parameters
    ----------
    objects:
        The MiniClusters.
    namespace:
        The only namespace whose MiniClusters may be changed; ``None`` for any.
    names:
        Names of MiniClusters by the full names of their members, where the two differ.
    ceiling:
        Maximum number of nodes, even if a MiniCluster allows more.
    fixed:
        Full names of members that are not resized, because something else sets their size.
    timeout:
        Time limit of a request with all its retries, in seconds.
    """

    def __init__(
        self,
        objects: Objects,
        *,
        namespace: str | None = None,
        names: Mapping[str, str] | None = None,
        ceiling: int | None = None,
        fixed: Collection[str] = (),
        timeout: float = 8.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._objects = objects
        self._namespace = namespace
        self._names = dict(names or {})
        self._ceiling = ceiling
        self._fixed = frozenset(fixed)
        self._timeout = timeout
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        #: When the API server last had a problem.
        self._trouble = -_STARTING
        #: Writes without a reply, by object: the delta, the sizes read before the write, and the
        #: plan. If the write took effect, a repeated request gets that outcome and is not applied
        #: twice.
        self._lost: dict[tuple[str, str], tuple[int, Sizes, Plan]] = {}

    def resize(self, member: str, delta: int) -> Resized:
        request: _Request | None = None
        try:
            namespace, name = self._object(member)
            if member_name(member) in self._fixed:
                raise Fault(
                    "not-ours", f"the size of {member} is not set by rules (option 'fixed')"
                )
            until = self._clock() + self._timeout
            request = _Request(namespace, name, delta, until, member)
            return self._resize(request)
        except (Fault, NotResizable) as fault:
            transient = isinstance(fault, Fault) and fault.transient
            return _denied_outcome(request, fault.code, fault.reason, transient)
        except EnsembleError as error:
            return _denied_outcome(request, error.code, error.what, error.transient)
        except Exception as error:  # this method must not raise; the client may raise anything
            return _denied_outcome(request, "failed", f"the resizer failed: {error!r}", False)

    def size(self, member: str) -> int | None:
        try:
            namespace, name = self._object(member)
            return self._sizes(namespace, name, self._timeout / 2).before
        except Exception:  # by contract: ``None`` if it is unknown, for whatever reason
            return None

    def decide(self, member: str, delta: int, kept: Mapping[str, Any]) -> Resized | None:
        """Return the outcome of an interrupted request.

        - If the object has the target size, the request is done.
        - If the object is unchanged, the request is carried out now.
        - If something else has set the size since, or the object was replaced, the result is
          ``None``.
        """
        if not kept:  # without a record, nothing was sent
            return self.resize(member, delta)
        try:
            then, plan = Sizes(**kept["seen"]), Plan(**kept["plan"])
            namespace, name = self._object(member)
            now = self._sizes(namespace, name, self._timeout / 2)
        except Exception:  # by contract: ``None`` if it is unknown, for whatever reason
            return None
        before = now.generation == then.generation and now.size == then.size
        ours = now.generation == then.generation + 1 and now.size == plan.target
        if now.uid != then.uid or not (before or ours):
            return None
        self._lost[namespace, name] = (delta, then, plan)
        return self.resize(member, delta)

    def close(self) -> None:
        self._objects.close()

    # -- a request -------------------------------------------------------------------------------

    def _object(self, member: str) -> tuple[str, str]:
        """Return the namespace and name of a member's MiniCluster."""
        member = member_name(member)
        namespace, _, name = member.partition("/")
        if self._namespace is not None and namespace != self._namespace:
            raise Fault(
                "forbidden",
                f"this service resizes MiniClusters of namespace {self._namespace} only",
            )
        return namespace, self._names.get(member, name)

    def _resize(self, request: _Request) -> Resized:
        key = request.namespace, request.name
        lost = self._lost.pop(key, None)
        if lost is not None and lost[0] == request.delta:
            request.unsure, request.earlier = lost[1:], True
        try:
            return self._attempt(request)
        except Fault:
            if request.unsure is not None:
                self._lost[key] = (request.delta, *request.unsure)
            raise

    def _attempt(self, request: _Request) -> Resized:
        # If a write got no reply, it is not simply repeated: the object shows whether it took
        # effect.
        while True:
            try:
                seen = self._read_sizes(request)
                if request.unsure is not None and self._has_taken_effect(request, seen):
                    return self._verify(request, seen)
                request.seen = seen
                request.plan = seen.plan(request.delta)
                if request.plan.target == request.plan.before:
                    return _answer(request, request.plan)
                self._set(request, seen, request.plan)
            except Fault as fault:
                self._await_retry(request, fault)
                continue
            return self._verify(request, None)

    def _read_sizes(self, request: _Request) -> Sizes:
        return self._sizes(request.namespace, request.name, self._time(request))

    def _sizes(self, namespace: str, name: str, timeout: float) -> Sizes:
        seen = read(self._objects.get(namespace, name, timeout), self._ceiling)
        if seen.ignored:  # its status may be stale, so read the operator's Job
            pods = self._pods(namespace, name, timeout)
            return seen if pods is None else replace(seen, acted_on=pods)
        return seen

    def _pods(self, namespace: str, name: str, timeout: float) -> int | None:
        """Return the size that the operator has set; ``None`` if it cannot be read."""
        try:
            return self._objects.parallelism(namespace, name, timeout)
        except Fault:
            return None

    def _set(self, request: _Request, seen: Sizes, plan: Plan) -> None:
        if self.keep is not None:  # after a kill, the next service can determine the outcome
            try:
                self.keep(request.member, {"seen": asdict(seen), "plan": asdict(plan)})
            except EnsembleError as error:
                raise Fault("no-record", f"{error.what}: {error.cause}", transient=True) from None
        try:
            self._objects.scale(
                request.namespace, request.name, plan.target, seen.version, self._time(request)
            )
        except Fault as fault:
            if fault.perhaps and request.unsure is None:
                request.unsure, request.earlier = (seen, plan), False
            raise

    def _has_taken_effect(self, request: _Request, seen: Sizes) -> bool:
        """Return whether a write without a reply has taken effect, even if others wrote since."""
        assert request.unsure is not None
        then, plan = request.unsure
        if seen.uid == then.uid and (seen.generation, seen.size) == (then.generation, then.size):
            # The write has not arrived. If it still arrives, our next write gets a conflict.
            return False
        ours = seen.generation == then.generation + 1 and seen.size == plan.target
        if seen.uid != then.uid or (request.earlier and not ours):
            # This is another object of the same name, to which nothing was sent; or something else
            # has set the size since an earlier request.
            request.unsure = None
            return False
        request.plan = plan
        return True

    def _await_retry(self, request: _Request, fault: Fault) -> None:
        """Wait before the next attempt, or raise the final error."""
        request.faults.append(fault)
        if fault.code == "conflict":
            request.conflicts += 1
            tries, over = request.conflicts, request.conflicts >= _CONFLICTS
        elif fault.transient or fault.perhaps:
            self._trouble = self._clock()
            request.troubles += 1
            tries, over = request.troubles, False
        elif fault.code == "forbidden" and self._clock() - self._trouble < _STARTING:
            request.troubles += 1
            tries, over = request.troubles, False
        else:
            raise self._final(request, fault)
        # Jitter, so that colliding requests don't collide again.
        longest = 0.5 if fault.code == "conflict" else _LAST_TRY
        pause = min(0.05 * 2**tries, longest) * (0.5 + self._chance() / 2)
        if over or self._clock() + pause >= request.deadline:
            raise self._final(request, fault)
        self._sleep(pause)

    def _final(self, request: _Request, fault: Fault) -> Fault:
        if request.unsure is not None:
            sent = next((each for each in request.faults if each.perhaps), fault)
            return Fault(
                sent.code,
                f"{sent.reason}; it is unknown whether {request.unsure[1].target} nodes were set",
                transient=True,
            )
        if fault.code == "conflict":
            times = request.conflicts
            return Fault(
                "conflict",
                f"others changed its size during each of the {times} attempts to resize it",
                transient=True,
            )
        if fault.code == "forbidden" and request.troubles:
            return Fault(fault.code, fault.reason, transient=True)
        if fault.code == "timeout":
            # The server's earlier message says more than a final timeout.
            return next((each for each in request.faults[::-1] if each.code != "timeout"), fault)
        return fault

    def _time(self, request: _Request) -> float:
        """Return the timeout of the next request: half of the remaining time.

        The other half remains for a second request if this one gets no reply.
        """
        left = request.deadline - self._clock()
        if left <= 0:
            raise Fault("timeout", "Kubernetes takes too long", transient=True)
        return max(min(left, self._timeout / 2), 0.05)

    # -- outcomes -------------------------------------------------------------------------

    def _verify(self, request: _Request, seen: Sizes | None) -> Resized:
        """Wait until the operator has acted on the size, and check that it does not reset the
        size.
        """
        plan = request.plan
        assert plan is not None
        began = self._clock()
        until = min(began + _CONFIRM, request.deadline)
        pause = _FIRST_LOOK
        while True:
            try:
                if seen is None:
                    seen = self._read_sizes(request)
            except (Fault, NotResizable):
                return _answer(request, plan)  # the API server has acknowledged the size
            if seen.size != plan.target:
                return _overridden_outcome(request, plan, seen)
            if seen.acted_on == plan.target or (
                self._clock() - began >= _STALE
                and self._pods(request.namespace, request.name, _STALE) == plan.target
            ):
                return _answer(request, plan)
            if self._clock() + pause >= until:
                words = "the size is set, but the Flux Operator has not acted on it yet"
                reason = f"{plan.reason}; {words}" if plan.reason else words
                return _answer(request, plan, plan.code or "unconfirmed", reason)
            self._sleep(pause)
            pause = min(pause * 1.5, _LAST_LOOK)
            seen = None


def _answer(
    request: _Request, plan: Plan, code: str | None = None, reason: str | None = None
) -> Resized:
    reason = plan.reason if reason is None else reason
    return Resized(
        outcome=plan.outcome,
        before=plan.before,
        asked=plan.asked,
        granted=plan.target,
        reason=f"{request.shown}: {reason}" if reason else "",
        code=plan.code if code is None else code,
    )


def _overridden_outcome(request: _Request, plan: Plan, seen: Sizes) -> Resized:
    """Return the outcome if another size was set afterwards."""
    gone = (seen.size - plan.before) * (1 if plan.asked > plan.before else -1)
    wanted = abs(plan.asked - plan.before)
    outcome: Any = "granted" if gone >= wanted else "partial" if gone > 0 else "denied"
    return Resized(
        outcome=outcome,
        before=plan.before,
        asked=plan.asked,
        granted=seen.size,
        reason=f"{request.shown}: {plan.target} nodes were set, but then the Flux Operator or "
        f"something else set {seen.size}",
        code="overridden",
        transient=outcome == "denied",
    )


def _denied_outcome(request: _Request | None, code: str, reason: str, transient: bool) -> Resized:
    before = asked = 0
    if request is not None:
        reason = f"{request.shown}: {reason}"
        if request.plan is not None:
            before, asked = request.plan.before, request.plan.asked
    return Resized(
        outcome="denied",
        before=before,
        asked=asked,
        granted=before,
        reason=reason,
        code=code,
        transient=transient,
    )


def build(options: Mapping[str, Any]) -> KubernetesResizer:
    """Return the resizer with these options. Raises :class:`EnsembleError` with a hint."""
    namespace = options.get("namespace")
    if namespace is not None:
        check_namespace(namespace)
    names = names_of(options.get("map"), namespace)
    return KubernetesResizer(
        connect(options.get("kubeconfig"), options.get("context")),
        namespace=namespace,
        names=names,
        ceiling=options.get("max_size"),
        fixed=fixed_of(options.get("fixed")),
        timeout=float(options.get("timeout", 8.0)),
    )


_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def check_namespace(text: str) -> None:
    """Raise :class:`UsageError` for an invalid namespace."""
    try:
        member_name(f"{text}/x")
    except UsageError as error:
        raise UsageError(
            f"invalid namespace {text!r}", cause=error.cause, code="bad-option"
        ) from None


def names_of(given: object, namespace: str | None) -> dict[str, str]:
    """Return the option ``map``: names of MiniClusters by the full names of their members."""
    hint = """write it as '{"NAMESPACE/NAME": "MINICLUSTER"}'"""
    if given is None:
        return {}
    given = _parsed("map", given, hint)
    if not isinstance(given, Mapping):
        raise UsageError("the option 'map' is not a JSON object", hint=hint, code="bad-option")
    names: dict[str, str] = {}
    for member, name in given.items():
        full = member_name(member)
        if not isinstance(name, str) or not _OBJECT.fullmatch(name):
            raise UsageError(
                f"the option 'map' has an invalid MiniCluster name for {member}: {name!r}",
                hint=hint,
                code="bad-option",
            )
        if namespace is not None and not full.startswith(f"{namespace}/"):
            raise UsageError(
                f"the option 'map' may only contain members of namespace {namespace}, not {member}",
                code="bad-option",
            )
        if full in names:
            raise UsageError(f"the option 'map' has {full} twice", code="bad-option")
        names[full] = name
    return names


def _parsed(name: str, given: object, hint: str) -> object:
    if not isinstance(given, str):
        return given
    try:
        parsed: object = json.loads(given)
    except ValueError as error:
        raise UsageError(
            f"the option {name!r} is not JSON", cause=str(error), hint=hint, code="bad-option"
        ) from None
    return parsed


def fixed_of(given: object) -> frozenset[str]:
    """Return the option ``fixed``: the full names of members that are not resized."""
    hint = """write it as '["NAMESPACE/NAME"]'"""
    given = _parsed("fixed", given, hint)
    if given is None:
        return frozenset()
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise UsageError("option 'fixed' is not a list of names", hint=hint, code="bad-option")
    return frozenset(map(member_name, given))
