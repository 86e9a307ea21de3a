"""Reconcile as a pure function: computes the changes from a custom resource and the observed state.

The function is level-triggered and idempotent. It uses neither a clock nor the API.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ensemble_operator.changes import (
    Change,
    Create,
    Delete,
    Disown,
    DryRun,
    Finalizer,
    Forget,
    Keys,
    Note,
    Observed,
    Part,
    PartPlan,
    Patch,
    Plan,
)
from ensemble_operator.credential_renewal import (
    holders,
    needs_secrets,
    needs_user,
    secret_names,
    value,
)
from ensemble_operator.member_objects import RUNNER, member_objects, run_objects, token_secret
from ensemble_operator.member_reconcile import BEAT, members_leave, plan_part
from ensemble_operator.object_names import (
    HASH,
    ORPHAN,
    RUN,
    TEMPLATE,
    Object,
    content,
    format_time,
    is_owned,
    member_object,
    seconds,
)
from ensemble_operator.pod_state import gone_at, is_set_up, waits_since
from ensemble_operator.resource import (
    Ensemble,
    Member,
    Reference,
    is_readable,
    privilege_problems,
    problems,
    read,
)
from ensemble_operator.service_objects import address, service_objects, tls_secret
from ensemble_operator.settings import Settings
from ensemble_operator.status import (
    Verdict,
    compare_status,
    conditions,
    phase_of,
    service_verdict,
    sums,
    transitions,
)
from ensemble_operator.withdrawal import can_withdraw

#: Seconds between two writes of the status that only change figures.
_FIGURES = 30.0
#: Seconds between checks of Secrets that users must create or remove.
_OTHERS = 10.0
#: Seconds between checks of a waiting pod.
_STUCK = 61.0
#: Kinds whose existing objects never need a change.
_FIXED = ("ConfigMap", "PersistentVolumeClaim", "RoleBinding")
#: Kinds whose objects are removed when no longer needed. Claims contain journals, so they stay.
_PRUNED = ("ConfigMap", "MiniCluster", "HorizontalPodAutoscaler", "Job", "Service")


def plan(found: Object, observed: Observed, settings: Settings, now: float) -> Plan:
    """Return the plan for an Ensemble; ``now`` is in seconds since the epoch."""
    wrong = problems(found) or (privilege_problems(found["spec"]) if settings.restricted else [])
    if not wrong:
        return _Planning(read(found), observed, settings, now).plan()
    unread = empty_ensemble(found)
    if unread.deleting:
        return _Planning(unread, observed, settings, now).plan()
    verdict = (False, "InvalidMember", "; ".join(map(str, wrong))[:4096])
    if not is_readable(found):
        return _refused(unread, verdict, now)
    return _Planning(read(found), observed, settings, now, valid=False).plan_invalid(verdict)


def _refused(
    ensemble: Ensemble, valid: Verdict, now: float, changes: tuple[Change, ...] = ()
) -> Plan:
    """Return the plan for an invalid Ensemble: its objects stay as they are."""
    verdicts: dict[str, Verdict] = {"Valid": valid, "Ready": valid}
    before = ensemble.status
    status: dict[str, Any] = {
        **before,
        "observedGeneration": ensemble.generation,
        "conditions": conditions(ensemble, verdicts, now),
    }
    status["phase"] = before.get("phase") if before.get("members") else "Pending"
    return Plan(changes, status, tuple(transitions(ensemble, verdicts)))


def empty_ensemble(found: Object) -> Ensemble:
    """Return an invalid object as an Ensemble without members, with its metadata and status."""
    empty: dict[str, Any] = {"metadata": found["metadata"], "spec": {"members": []}}
    return read({**empty, "status": found.get("status")})


def files_of(ensemble: Ensemble) -> dict[str, str | Reference | None]:
    """Return the ensemble files by member, or the file that all members share."""
    found: dict[str, str | Reference | None] = {m.name: m.file for m in ensemble.members}
    return {RUNNER: ensemble.file} if ensemble.outside else found


class _Planning:
    """One call of :func:`plan`."""

    def __init__(
        self,
        ensemble: Ensemble,
        observed: Observed,
        settings: Settings,
        now: float,
        *,
        valid: bool = True,
    ) -> None:
        self.ensemble, self.observed = ensemble, observed
        self.settings, self.now = settings, now
        self.changes: list[Change] = []
        self.notes: list[Note] = []
        self.conflicts: list[str] = []
        self.refused: list[str] = []
        #: Whether the running members are of an earlier, valid spec or file.
        self.superseded = False
        self.waited_for = self._awaited_secrets()
        self.parts = self._wanted_parts() if valid else []

    def plan(self) -> Plan:
        ensemble = self.ensemble
        if ensemble.deleting:
            return self._deleting()
        valid = self._valid()
        if not valid[0]:
            return self.plan_invalid(valid)
        self._finalizer()
        own_tls = ensemble.sidecar.tls_secret
        finished = self._was_finished()
        if finished and self._is_expired():
            return self._forget()
        self.conflicts += [f"Secret {each}" for each in self.waited_for if each != own_tls]
        if not self.waited_for and needs_secrets(ensemble, self.observed.secrets, self.now):
            self.changes.append(Keys())
        for body in service_objects(ensemble, self.settings, replicas=0 if finished else 1):
            self._make(body)
        ready = service_verdict(ensemble, self.observed, needed=not finished)
        authority = value(self.observed.secrets.get(tls_secret(ensemble)), "ca.crt")
        if own_tls and not authority:
            ready = (False, "NoSecret", f"the Secret {own_tls} is missing or has no ca.crt")
        parts = self._parts(ready[0] and not self.conflicts, finished)
        self._prune(parts)
        self.changes = [each for each in self.changes if not self._was_rejected(each)]
        if self.refused:
            valid = (False, "InvalidMember", "; ".join(self.refused)[:4096])
        if self.conflicts:
            named = ", ".join(dict.fromkeys(self.conflicts))
            valid = (False, "Conflict", f"{named} exists and does not belong to this Ensemble")
        return self._result(valid, [each for _, each in parts], ready)

    def plan_invalid(self, valid: Verdict) -> Plan:
        """Return the plan for an Ensemble with an invalid file or spec."""
        self._finalizer()
        if self.observed.flux and self.ensemble.status.get("members"):
            return self._follow_running(valid)
        return _refused(self.ensemble, valid, self.now, tuple(self.changes))

    def _follow_running(self, valid: Verdict) -> Plan:
        """Return the plan for an Ensemble that became invalid while it ran: nothing is created or
        changed, but the ends of runs are recorded, and what is over is removed.
        """
        self.superseded = True
        self.parts = self._known_parts()
        finished = self._was_finished()
        if finished and self._is_expired():
            return self._forget()
        parts = self._parts(False, finished)
        over = [each for _, each in parts if each.over]
        self.changes = [each for each in self.changes if isinstance(each, Finalizer)]
        self.changes += [c for each in over for c in each.changes if isinstance(c, Delete)]
        service = service_verdict(self.ensemble, self.observed, needed=not finished)
        return self._result(valid, [each for _, each in parts], service)

    # -- the Ensemble itself -----------------------------------------------------------------------

    def _finalizer(self) -> None:
        orphan = self.ensemble.on_delete == "Orphan"
        if orphan != (ORPHAN in self.ensemble.finalizers):
            self.changes.append(Finalizer(orphan))

    def _deleting(self) -> Plan:
        """Return the plan for a deleted Ensemble.

        Objects that should stay lose their owner; Kubernetes deletes the others.
        """
        ensemble = self.ensemble
        if ORPHAN in ensemble.finalizers:
            kept = [*self.observed.children.values(), *self.observed.secrets.values()]
            mine = [each for each in kept if each is not None and is_owned(ensemble, each)]
            self.changes += [Disown(each) for each in mine] or [Finalizer(False)]
        return Plan(tuple(self.changes), {**ensemble.status, "phase": "Terminating"})

    def _was_finished(self) -> bool:
        """Return whether everything is over according to the recorded status."""
        if not self.ensemble.status.get("finishedAt"):
            return False
        entries = {e["name"]: e for e in self.ensemble.status.get("members") or ()}
        return all(
            entries.get(part.name, {}).get("run") == part.tag
            and bool(entries[part.name].get("finishedAt"))
            for part in self.parts
            if part.runs
        )

    def _is_expired(self) -> bool:
        """Return whether the time to live of a finished Ensemble has passed."""
        ended, ttl = seconds(self.ensemble.status.get("finishedAt")), self.ensemble.ttl
        return ttl is not None and ended + ttl <= self.now

    def _forget(self) -> Plan:
        return Plan((*self.changes, Forget()), self.ensemble.status)

    def _valid(self) -> Verdict:
        if not self.observed.flux:
            why = "the MiniCluster CRD is not installed: install the Flux Operator"
            return False, "NoFluxOperator", why
        wrong = []
        for name, file in files_of(self.ensemble).items():
            where = f"member {name}" if name != RUNNER else "the ensemble file"
            text = self._text(file)
            if text is None and isinstance(file, Reference):
                wrong.append(f"{where}: no ConfigMap {file.name} with a key {file.key}")
            errors = self.observed.errors.get(content(text), ()) if text is not None else ()
            wrong += [f"{where}: {each}" for each in errors]
            if name == RUNNER and text is not None:
                wrong += self._unknown_members(self.observed.named.get(content(text), ()))
        if wrong:
            return False, "InvalidFile", "\n".join(wrong)
        for name, faults in self.observed.options.items():
            if faults:
                return False, "InvalidMember", f"options of member {name}: {'; '.join(faults)}"
        reserved = [m.name for m in self.ensemble.members if m.name == RUNNER]
        if self.ensemble.outside and reserved:
            return (
                False,
                "InvalidMember",
                f"the name {RUNNER!r} is reserved for the run",
            )
        return True, "Sound", ""

    def _unknown_members(self, named: Sequence[str]) -> list[str]:
        """Return a mistake for each member that a file names but this Ensemble does not have."""
        ensemble = self.ensemble
        there = [member_object(ensemble, each.name) for each in ensemble.members]
        known = {*there, *(f"{ensemble.namespace}/{each}" for each in there)}
        return [
            f"the ensemble file: unknown member {each!r}; members are {', '.join(there)}"
            for each in named
            if each not in known
        ]

    def _awaited_secrets(self) -> list[str]:
        """Return the Secrets that users must create or remove."""
        ensemble, secrets = self.ensemble, self.observed.secrets
        names = secret_names(ensemble)
        return [each for each in names if needs_user(ensemble, each, secrets.get(each))]

    def _text(self, file: str | Reference | None) -> str | None:
        return self.observed.files.get(file) if isinstance(file, Reference) else file

    # -- objects -----------------------------------------------------------------------------------

    def _was_rejected(self, change: Change) -> bool:
        """Return whether the API server has rejected exactly this body."""
        if not isinstance(change, (Create, Patch)):
            return False
        return self._refused(change.body)

    def _refused(self, body: Object) -> bool:
        kind, metadata = body["kind"], body["metadata"]
        said = self.observed.refused.get((kind, metadata["name"]))
        if said is None or said[0] != metadata["annotations"][HASH]:
            return False
        words = f"{kind} {metadata['name']}: {said[1]}"
        self.refused += [words] if words not in self.refused else []
        return True

    def _may_begin(self, part: Part) -> bool:
        """Request the objects of a part, except the last one, which runs the part. Return whether
        the last one may be created.

        All objects are validated first, so that no incomplete part is created.
        """
        keys = [(each["kind"], each["metadata"]["name"]) for each in part.objects]
        pairs = list(zip(keys, part.objects, strict=True))
        absent = [body for key, body in pairs if key not in self.observed.children]
        refused = [each for each in absent if self._refused(each)]
        if refused:
            return False
        if any(
            self.observed.tried.get(key) != body["metadata"]["annotations"][HASH]
            for key, body in pairs
            if body in absent
        ):
            self.changes.append(DryRun(tuple(absent), part.given))
            return False
        missing = [body for body in part.objects[:-1] if not self._make(body)]
        return not missing

    def _make(self, body: Object) -> bool:
        """Request an object. Return whether it exists."""
        kind, name = body["kind"], body["metadata"]["name"]
        found = self.observed.children.get((kind, name))
        if found is None:
            note = Note("Created", f"made {kind} {name}") if kind == "Deployment" else None
            self.changes.append(Create(body, note))
            return False
        if not is_owned(self.ensemble, found):
            self.conflicts.append(f"{kind} {name}")
            return False
        if "deletionTimestamp" in found["metadata"]:
            return False
        wanted_hash = body["metadata"]["annotations"][HASH]
        same = (found["metadata"].get("annotations") or {}).get(HASH) == wanted_hash
        if not same and kind not in _FIXED:
            note = Note("Updated", f"changed {kind} {name}") if kind == "Deployment" else None
            self.changes.append(Patch(body, found, note))
        return True

    def _wanted_parts(self) -> list[Part]:
        ensemble = self.ensemble
        found: list[Part] = []
        for member in ensemble.members:
            text = "" if ensemble.outside else self._text(member.file) or ""
            size = self._last_size(member)
            objects = member_objects(ensemble, member, self.settings, text, content(text), size)
            name = member_object(ensemble, member.name)
            given = {"spec": member.minicluster}
            runs = not ensemble.outside
            found.append(Part(member.name, tuple(objects), name, runs=runs, given=given))
        if ensemble.outside:
            text = self._text(ensemble.file) or ""
            objects = run_objects(ensemble, self.settings, text, content(text))
            found.append(Part(RUNNER, tuple(objects), "run"))
        return found

    def _known_parts(self) -> list[Part]:
        """Return the parts in the status, with their objects as they are in the cluster."""
        entries = self.ensemble.status["members"]
        outside = any(each["name"] == RUNNER and "minicluster" not in each for each in entries)
        found: list[Part] = []
        for entry in entries:
            kind = "MiniCluster" if "minicluster" in entry else "Job"
            name = member_object(self.ensemble, entry["name"])
            main = self.observed.children.get((kind, name)) or {"kind": kind, "metadata": {}}
            had = main["metadata"].get("annotations") or {}
            noted = {RUN: entry.get("run", ""), TEMPLATE: None, **had}
            main = {**main, "metadata": {**main["metadata"], "name": name, "annotations": noted}}
            runs = kind == "Job" or not outside
            found.append(Part(entry["name"], (main,), "run" if kind == "Job" else name, runs))
        return found

    def _last_size(self, member: Member) -> int | None:
        """Return the size that a member had, if the run that asked for it is resumed."""
        ensemble = self.ensemble
        if member.resize == "None" or not ensemble.durable:
            return None
        part, file = (RUNNER, ensemble.file) if ensemble.outside else (member.name, member.file)
        same = ensemble.entry(part).get("file") == content(self._text(file) or "")
        return ensemble.entry(member.name).get("size") if same else None

    def _parts(self, ready: bool, finished: bool) -> list[tuple[Part, PartPlan]]:
        done: list[tuple[Part, PartPlan]] = []
        leaves = members_leave(self.ensemble, self.parts, self.observed)
        needed = leaves and can_withdraw(self.ensemble, self.observed, self.now)
        for part in self.parts:
            name = part.main["metadata"]["name"]
            there = (part.main["kind"], name) in self.observed.children
            # The run starts when all of its members exist.
            may_begin = ready and (part.name != RUNNER or all(each.ready for _, each in done))
            each = plan_part(
                self.ensemble,
                part,
                self.observed,
                self.now,
                may_begin=may_begin,
                ended=finished,
                needed=needed and not part.runs,
                leaves=leaves and part.runs,
            )
            begins = [c for c in each.changes if isinstance(c, Create) and c.body is part.main]
            if each.conflict:
                self.conflicts.append(each.conflict)
            elif begins:
                if not self._may_begin(part):
                    each.changes = [c for c in each.changes if c not in begins]
            elif not each.over and (there or each.changes):
                for body in part.objects[:-1]:
                    # If an older file is still in use, keep it.
                    if not (there and body["kind"] == "ConfigMap" and each.outdated):
                        self._make(body)
            # Objects that mount a file must come after the file.
            self.changes += each.changes
            self.notes += each.notes
            done.append((part, each))
        return done

    def _prune(self, parts: list[tuple[Part, PartPlan]]) -> None:
        """Remove objects of members and files that are no longer wanted."""
        named = {(b["kind"], b["metadata"]["name"]) for part, _ in parts for b in part.objects}
        in_use = {
            name
            for (kind, _), found in self.observed.children.items()
            if kind in ("MiniCluster", "Job") and is_owned(self.ensemble, found)
            for name in _config_maps(found)
        }
        for (kind, name), found in sorted(self.observed.children.items()):
            if kind not in _PRUNED or (kind, name) in named or not is_owned(self.ensemble, found):
                continue
            if (kind, name) == ("Service", f"{self.ensemble.name}-grpc"):
                continue
            if "deletionTimestamp" in found["metadata"] or (kind == "ConfigMap" and name in in_use):
                continue
            quiet = kind in ("ConfigMap", "Service")
            note = None if quiet else Note("Pruned", f"removed {kind} {name}")
            self.changes.append(Delete(kind, name, found["metadata"]["uid"], note))
        known = {each.secret for each in holders(self.ensemble)}
        for entry in self.ensemble.status.get("members") or ():
            secret = token_secret(self.ensemble, entry["name"])
            found_secret = self.observed.secrets.get(secret)
            if secret not in known and found_secret and is_owned(self.ensemble, found_secret):
                self.changes.append(Delete("Secret", secret, found_secret["metadata"]["uid"]))

    # -- the status --------------------------------------------------------------------------------

    def _result(self, valid: Verdict, parts: list[PartPlan], service: Verdict) -> Plan:
        ensemble, before = self.ensemble, self.ensemble.status
        ended = self._end_verdict(parts)
        over = bool(parts) and ended is not None
        members = self._members_ready(parts, ended)
        verdicts: dict[str, Verdict] = {"Valid": valid, "ServiceReady": service}
        verdicts["MembersReady"] = members
        verdicts["Finished"] = ended or (False, "Running", "")
        outdated = [each.outdated for each in parts if each.outdated]
        reason, _, words = (outdated[0] if outdated else "").partition(": ")
        verdicts["Updated"] = (not outdated, reason or "UpToDate", words)
        first = next((v for v in (valid, service, members) if not v[0]), (True, "Ready", ""))
        was_ready = _condition(before, "Ready") == "True"
        verdicts["Ready"] = (True, "Finished", "") if over and valid[0] and was_ready else first
        if ended is not None and ended[1] != "Succeeded":
            verdicts["Ready"] = (False, *ended[1:])
        status: dict[str, Any] = {
            "observedGeneration": ensemble.generation,
            "phase": phase_of(ensemble, verdicts, parts),
            "conditions": conditions(ensemble, verdicts, self.now, current=not self.superseded),
        }
        count = [each for each in parts if each.entry.get("minicluster")]
        good = ended is None or ended[1] == "Succeeded"
        ready = sum(each.ready or (good and each.succeeded) for each in count)
        status["membersReady"] = f"{ready}/{len(count)}"
        port = f":{ensemble.sidecar.port}"
        status["service"] = {"address": address(ensemble) + port, "ready": service[0]}
        status |= sums(parts)
        codes = [str(e.entry["exitCode"]) for e in parts if "exitCode" in e.entry]
        status |= {"exit": ",".join(codes)} if codes else {}
        status["members"] = [each.entry for each in parts]
        if over:
            status["finishedAt"] = before.get("finishedAt") or format_time(self.now)
        self._add_transition_notes(verdicts)
        again = [each.again for each in parts if each.again is not None]
        return self._with_minimal_status(status, again)

    def _end_verdict(self, parts: list[PartPlan]) -> Verdict | None:
        """Return how everything ended; ``None`` while something has not ended."""
        if not parts or not all(each.over or not self._runs(each) for each in parts):
            return None
        entries = [each.entry for each in parts if self._runs(each)]
        if not all("finishedAt" in each for each in entries):
            return None
        told = [
            f"{each['name']}: exit code {each['exitCode']}" if "exitCode" in each
            else f"{each['name']}: {each.get('message', '')}"
            for each in entries
        ]  # fmt: skip
        results = {each.get("result") for each in entries}
        worst = "Lost" if "Lost" in results else "Failed" if "Failed" in results else "Succeeded"
        return True, worst, "; ".join(told)

    def _runs(self, part: PartPlan) -> bool:
        return not self.ensemble.outside or part.entry["name"] == RUNNER

    def _members_ready(self, parts: list[PartPlan], ended: Verdict | None) -> Verdict:
        if not parts:
            return False, "WaitingForPods", ""
        if ended is not None:
            good = ended[1] == "Succeeded"
            return (True, "NotNeeded", "everything is over") if good else (False, *ended[1:])
        members = [each for each in parts if each.entry.get("minicluster")]
        waiting = [each for each in members if not each.ready and not each.succeeded]
        if not waiting:
            return True, "Ready", ""
        for (kind, name), words in self.observed.troubles.items():
            return False, "NotTaken", f"{kind} {name}: {words}"
        first = waiting[0]
        if first.over:
            words = f"{first.entry['name']}: {first.entry.get('message', '')}".rstrip(": ")
            return False, str(first.entry["result"]), words
        return False, *first.waits

    def _add_transition_notes(self, verdicts: dict[str, Verdict]) -> None:
        ensemble, before = self.ensemble, self.ensemble.status
        self.notes += transitions(ensemble, verdicts)
        if before.get("observedGeneration") == ensemble.generation:
            return
        if ensemble.sidecar.foreign:
            why = "it belongs to upstream's operator and has no service for these members"
            self.notes.append(
                Note("Ignored", f"sidecar.image {ensemble.sidecar.foreign}: {why}", warning=True)
            )
        branches = [each.name for each in ensemble.members if each.branch]
        if branches:
            why = "nothing is installed from git"
            named = ", ".join(branches)
            self.notes.append(Note("Ignored", f"branch of {named}: {why}", warning=True))

    def _with_minimal_status(self, status: dict[str, Any], again: list[float]) -> Plan:
        """Return the plan, keeping the old status if nothing relevant has changed."""
        before = self.ensemble.status
        same, but_figures = compare_status(status, before)
        if same or (but_figures and self.now - self.observed.written < _FIGURES):
            if not same:
                again.append(self.observed.written + _FIGURES)
            status = dict(before)
        beats = [each.beat + BEAT + 1 for each in self.observed.figures.values()]
        leaving = [gone_at(each) for each in self.observed.pods]
        again += [at for at in (*beats, *leaving) if self.now < at < math.inf]
        if self.waited_for or any(map(is_set_up, self.observed.pods)):
            again.append(self.now + _OTHERS)
        if any(waits_since(each) is not None for each in self.observed.pods):
            again.append(self.now + _STUCK)
        if self.ensemble.ttl is not None and status.get("finishedAt"):
            again.append(seconds(status["finishedAt"]) + self.ensemble.ttl)
        return Plan(tuple(self.changes), status, tuple(self.notes), min(again, default=None))


def _condition(status: Any, kind: str) -> str:
    known = [each["status"] for each in status.get("conditions") or () if each["type"] == kind]
    return str(known[0]) if known else ""


def _config_maps(found: Object) -> list[str]:
    """Return the ConfigMaps that a MiniCluster or Job mounts."""
    spec = found.get("spec") or {}
    volumes = [v for c in spec.get("containers") or () for v in (c.get("volumes") or {}).values()]
    pod = ((spec.get("template") or {}).get("spec") or {}).get("volumes") or ()
    named = [v.get("configMapName") for v in volumes]
    return [n for n in [*named, *((v.get("configMap") or {}).get("name") for v in pod)] if n]
