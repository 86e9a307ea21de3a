"""The resizer ``kubernetes``: sets the size of the MiniCluster that belongs to a member.

Built by the record in :mod:`ensemble_minicluster.kubernetes_plugin`, called by the ensemble
service. A size is read, the new one is worked out within the bounds, and set on the condition that
nobody changed the object in between; then it is looked at again, for the Flux Operator sets back
what it does not like. A request to set it whose answer was lost is not simply sent again: whether
it was carried out can be seen.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from ensemble_core import EnsembleError, Resized, Resizer
from ensemble_minicluster.api import Fault, connect
from ensemble_minicluster.naming import member_name
from ensemble_minicluster.resizer_options import check_namespace, fixed_of, names_of
from ensemble_minicluster.sizes import Plan, Sizes, Unsized, read

__all__ = ["KubernetesResizer", "build"]

#: How often a change by others is given way to.
_CONFLICTS = 8
#: Seconds after trouble in which an API server that has just started does not know yet what
#: everybody may do: it refuses a right token.
_STARTING = 10.0
#: Seconds between two tries of an API server in trouble, at most.
_LAST_TRY = 1.0
#: Seconds that the operator is given to act, before the size on record has to do; and after how
#: many its Job is asked, for what it writes to the status may be lost for good.
_CONFIRM, _STALE = 3.0, 1.0
_FIRST_LOOK, _LAST_LOOK = 0.1, 0.5


class Objects(Protocol):
    """The MiniClusters of a cluster, as :class:`ensemble_minicluster.api.MiniClusters` has them."""

    def get(self, namespace: str, name: str, timeout: float) -> Mapping[str, Any]: ...

    def scale(self, namespace: str, name: str, size: int, version: str, timeout: float) -> None: ...

    def parallelism(self, namespace: str, name: str, timeout: float) -> int | None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Request:
    """One request under way: what it is about, what was seen, and what was sent."""

    namespace: str
    name: str
    delta: int
    deadline: float
    member: str = ""
    seen: Sizes | None = None
    plan: Plan | None = None
    #: Set, with what was seen then, but whether it was carried out is not known.
    unsure: tuple[Sizes, Plan] | None = None
    #: That was by an earlier request for the same.
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
        The only namespace whose MiniClusters may be touched; ``None``: any.
    names:
        MiniClusters that are not called as their member is, by the member's name.
    ceiling:
        Most nodes that are given, whatever a MiniCluster allows.
    fixed:
        Members that are not resized here, by their full names: somebody else sets their size.
    timeout:
        Seconds that a whole request may take.
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
        #: When the API server was last in trouble.
        self._trouble = -_STARTING
        #: By object: what was set without an answer, for which delta. Whoever asks for the same
        #: again gets it, if it was carried out, and not as much once more.
        self._lost: dict[tuple[str, str], tuple[int, Sizes, Plan]] = {}

    def resize(self, member: str, delta: int) -> Resized:
        request: _Request | None = None
        try:
            namespace, name = self._object(member)
            if member_name(member) in self._fixed:
                raise Fault("not-ours", f"the size of {member} is not its rules': others set it")
            until = self._clock() + self._timeout
            request = _Request(namespace, name, delta, until, member)
            return self._resize(request)
        except (Fault, Unsized) as fault:
            transient = isinstance(fault, Fault) and fault.transient
            return _denied(request, fault.code, fault.reason, transient)
        except EnsembleError as error:
            return _denied(request, error.code, error.what, error.transient)
        except Exception as error:  # by contract nothing is raised; the client may raise anything
            return _denied(request, "failed", f"the resizer failed: {error!r}", False)

    def size(self, member: str) -> int | None:
        try:
            namespace, name = self._object(member)
            return self._sizes(namespace, name, self._timeout / 2).before
        except Exception:  # by contract: where it cannot be known, for whatever reason
            return None

    def decide(self, member: str, delta: int, kept: Mapping[str, Any]) -> Resized | None:
        """Carried out, when the object is as it was to become; carried out now, when it is as it
        was; ``None`` when others have set its size since, or it is another."""
        if not kept:  # nothing was sent before something was put on record
            return self.resize(member, delta)
        try:
            then, plan = Sizes(**kept["seen"]), Plan(**kept["plan"])
            namespace, name = self._object(member)
            now = self._sizes(namespace, name, self._timeout / 2)
        except Exception:  # by contract: where it cannot be known, for whatever reason
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
        """The namespace and the name of a member's MiniCluster."""
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
        while True:
            try:
                seen = self._look(request)
                if request.unsure is not None and self._settled(request, seen):
                    return self._verify(request, seen)
                request.seen = seen
                request.plan = seen.plan(request.delta)
                if request.plan.target == request.plan.before:
                    return _answer(request, request.plan)
                self._set(request, seen, request.plan)
            except Fault as fault:
                self._again(request, fault)
                continue
            return self._verify(request, None)

    def _look(self, request: _Request) -> Sizes:
        return self._sizes(request.namespace, request.name, self._time(request))

    def _sizes(self, namespace: str, name: str, timeout: float) -> Sizes:
        seen = read(self._objects.get(namespace, name, timeout), self._ceiling)
        if seen.ignored:  # then what the operator has done counts, and its status may be stale
            pods = self._pods(namespace, name, timeout)
            return seen if pods is None else replace(seen, acted_on=pods)
        return seen

    def _pods(self, namespace: str, name: str, timeout: float) -> int | None:
        """The size that the operator has set; ``None`` where we may not know."""
        try:
            return self._objects.parallelism(namespace, name, timeout)
        except Fault:
            return None

    def _set(self, request: _Request, seen: Sizes, plan: Plan) -> None:
        if self.keep is not None:  # a service that is killed now can tell what came of it
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

    def _settled(self, request: _Request, seen: Sizes) -> bool:
        """True if a change that was sent without an answer has been carried out, or overtaken."""
        assert request.unsure is not None
        then, plan = request.unsure
        if seen.uid == then.uid and (seen.generation, seen.size) == (then.generation, then.size):
            # Not yet; if it still comes, then what we send next meets a conflict.
            return False
        ours = seen.generation == then.generation + 1 and seen.size == plan.target
        if seen.uid != then.uid or (request.earlier and not ours):
            # Another object of that name, to which nothing was ever sent; or, after an earlier
            # request, others have set the size since.
            request.unsure = None
            return False
        request.plan = plan
        return True

    def _again(self, request: _Request, fault: Fault) -> None:
        """Wait before the next try, or raise what there is to say."""
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
        # Jitter, so that those who were in each other's way are not so again.
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
                f"{sent.reason}; whether {request.unsure[1].target} nodes were set is not known",
                transient=True,
            )
        if fault.code == "conflict":
            times = request.conflicts
            return Fault(
                "conflict",
                f"it was changed by others each of the {times} times that it was to be resized",
                transient=True,
            )
        if fault.code == "forbidden" and request.troubles:
            return Fault(fault.code, fault.reason, transient=True)
        if fault.code == "timeout":
            # What the server said before tells more than a last answer that came too late.
            return next((each for each in request.faults[::-1] if each.code != "timeout"), fault)
        return fault

    def _time(self, request: _Request) -> float:
        """Seconds for the next question: half of all there is, so that one may stay unanswered."""
        left = request.deadline - self._clock()
        if left <= 0:
            raise Fault("timeout", "Kubernetes takes too long", transient=True)
        return max(min(left, self._timeout / 2), 0.05)

    # -- what came of it -------------------------------------------------------------------------

    def _verify(self, request: _Request, seen: Sizes | None) -> Resized:
        """Look whether the size stays as it was set, until the operator has acted on it."""
        plan = request.plan
        assert plan is not None
        began = self._clock()
        until = min(began + _CONFIRM, request.deadline)
        pause = _FIRST_LOOK
        while True:
            try:
                if seen is None:
                    seen = self._look(request)
            except (Fault, Unsized):
                return _answer(request, plan)  # it is set, and that was acknowledged
            if seen.size != plan.target:
                return _overridden(request, plan, seen)
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


def _overridden(request: _Request, plan: Plan, seen: Sizes) -> Resized:
    """The size was set, and then somebody set another."""
    gone = (seen.size - plan.before) * (1 if plan.asked > plan.before else -1)
    wanted = abs(plan.asked - plan.before)
    outcome: Any = "granted" if gone >= wanted else "partial" if gone > 0 else "denied"
    return Resized(
        outcome=outcome,
        before=plan.before,
        asked=plan.asked,
        granted=seen.size,
        reason=f"{request.shown}: {plan.target} nodes were set, and then {seen.size} by the Flux "
        "Operator or somebody else",
        code="overridden",
        transient=outcome == "denied",
    )


def _denied(request: _Request | None, code: str, reason: str, transient: bool) -> Resized:
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
    """The resizer that these options describe. Raises :class:`EnsembleError` with a hint."""
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
