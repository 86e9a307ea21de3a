"""In-memory namespace for tests of ``plan``: objects, a Flux Operator that creates pods, and time.

Changes take effect at once.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from typing import Any

from ensemble_operator.changes import (
    Change,
    Create,
    Delete,
    Disown,
    DryRun,
    Figures,
    Finalizer,
    Forget,
    Keys,
    Note,
    Observed,
    Patch,
    Plan,
)
from ensemble_operator.crd_schema import SPEC
from ensemble_operator.credential_renewal import FILES, RENEW, VIEWER, holders, token_lines, value
from ensemble_operator.object_names import HASH, ORPHAN, child, content, format_time, without_none
from ensemble_operator.pod_state import ended_jobs
from ensemble_operator.reconcile import files_of, plan
from ensemble_operator.resource import Ensemble, Reference, problems, read
from ensemble_operator.service_objects import tls_secret, tokens_secret
from ensemble_operator.settings import Settings

Object = dict[str, Any]
FILE = "jobs: [{name: a, command: 'true'}]\nrules: [{trigger: start, action: {name: submit, label: a}}]\n"
SETTINGS = Settings()


def member(size: int | None = None, **more: Any) -> Object:
    spec: Object = {"containers": [{"image": "lammps"}]} | ({} if size is None else {"size": size})
    spec |= more.pop("spec", {})
    return {"minicluster": {"spec": spec}, "ensemble": FILE, **more}


def ensemble(*members: Object, name: str = "study", **spec: Any) -> Object:
    return {
        "apiVersion": "ensemble.flux-framework.org/v1alpha1",
        "kind": "Ensemble",
        "metadata": {"name": name, "namespace": "default", "uid": "uid-e", "generation": 1},
        "spec": {"members": list(members or (member(),)), **spec},
    }


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class World:
    """Simulated namespace with one Ensemble and its objects."""

    def __init__(self, found: Object, **observed: Any) -> None:
        self.found = found
        self.now = 1_800_000_000.0
        self.children: dict[tuple[str, str], Object] = {}
        self.secrets: dict[str, Object | None] = {}
        self.pods: dict[str, Object] = {}
        self.figures: dict[str, Figures] = {}
        self.events: list[Note] = []
        self.done: list[Change] = []
        self.more = observed
        self.gone = False
        self.written = 0.0
        self.ended: dict[str, float] = {}
        self.tried: dict[tuple[str, str], str] = {}
        #: Message with which the API server rejects an object, by kind and name.
        self.refuses: dict[tuple[str, str], str] = {}
        self.refused: dict[tuple[str, str], tuple[str, str]] = {}
        self._count = 0

    @property
    def ensemble(self) -> Ensemble:
        return read(self.found)

    @property
    def status(self) -> Object:
        return dict(self.found.get("status", {}))

    def condition(self, kind: str) -> tuple[str, str]:
        found = next(each for each in self.status["conditions"] if each["type"] == kind)
        return found["status"], found["reason"]

    def entry(self, name: str = "0") -> Object:
        return next(each for each in self.status["members"] if each["name"] == name)

    def uid(self) -> str:
        self._count += 1
        return f"uid-{self._count}"

    # -- what the operator does ------------------------------------------------------------------

    def observed(self) -> Observed:
        self.ended = ended_jobs(self.children.values(), self.ended, self.now)
        return Observed(
            **{
                "children": copy.deepcopy(self.children),
                "pods": tuple(self.pods.values()),
                "secrets": dict(self.secrets),
                "figures": dict(self.figures),
                "written": self.written,
                "ended": self.ended,
                "tried": dict(self.tried),
                "refused": dict(self.refused),
                **self.more,
            }
        )

    def plan(self) -> Plan:
        return plan(copy.deepcopy(self.found), self.observed(), SETTINGS, self.now)

    def step(self) -> Plan:
        """Reconcile once: write the status, then make the changes."""
        made = self.plan()
        if made.status != self.status:
            self.found["status"] = dict(made.status)
            self.written = self.now
            self.events += made.events
        for change in made.changes:
            self.carry_out(change)
        return made

    def settle(self, most: int = 12) -> None:
        """Reconcile until nothing changes."""
        for _ in range(most):
            made = self.plan()
            if not made.changes and made.status == self.status:
                return
            self.step()
            self.kubernetes()
        raise AssertionError(f"it does not settle: {self.plan().changes}")

    def carry_out(self, change: Change) -> None:
        self.done.append(change)
        if change.note:
            self.events.append(change.note)
        if isinstance(change, DryRun):
            for body in change.bodies:
                key = (body["kind"], body["metadata"]["name"])
                digest = body["metadata"]["annotations"][HASH]
                if key in self.refuses:
                    self.refused[key] = (digest, self.refuses[key])
                else:
                    self.tried[key] = digest
        elif isinstance(change, Create):
            body = without_none(copy.deepcopy(change.body))
            key = (body["kind"], body["metadata"]["name"])
            assert key not in self.children, f"{key} is there"
            body["metadata"]["uid"] = self.uid()
            self.children[key] = body
        elif isinstance(change, Patch):
            key = (change.body["kind"], change.body["metadata"]["name"])
            old = self.children[key]
            assert old["metadata"]["uid"] == change.found["metadata"]["uid"]
            body = without_none(copy.deepcopy(change.body))
            body["metadata"]["uid"] = old["metadata"]["uid"]
            self.children[key] = {**body, **({"status": old["status"]} if "status" in old else {})}
        elif isinstance(change, Delete):
            self.delete(change.kind, change.name, change.uid)
        elif isinstance(change, Keys):
            for each in quick_keys(self.ensemble, self.secrets, self.now):
                name = each["metadata"]["name"]
                each["metadata"]["uid"] = self.uid()
                self.secrets[name] = each
        elif isinstance(change, Disown):
            change.found["metadata"].pop("ownerReferences")
            name = change.found["metadata"]["name"]
            if change.found.get("kind") == "Secret":
                self.secrets[name] = change.found
            else:
                self.children[(change.found["kind"], name)] = change.found
        elif isinstance(change, Finalizer):
            others = set(self.found["metadata"].get("finalizers", ())) - {ORPHAN}
            wanted = others | ({ORPHAN} if change.wanted else set())
            self.found["metadata"]["finalizers"] = sorted(wanted)
            if "deletionTimestamp" in self.found["metadata"] and not wanted:
                self.gone = True
        elif isinstance(change, Forget):
            self.gone = True

    def delete(self, kind: str, name: str, uid: str | None = None) -> None:
        if kind == "Secret":
            self.secrets[name] = None
            return
        found = self.children[(kind, name)]
        assert uid in (None, found["metadata"]["uid"]), "that is another"
        del self.children[(kind, name)]
        if kind in ("MiniCluster", "Job"):
            self.children.pop(("Job", name), None)
            self.pods = {
                n: p
                for n, p in self.pods.items()
                if p["metadata"]["labels"].get("job-name") != name
            }

    # -- what others do --------------------------------------------------------------------------

    def kubernetes(self) -> None:
        """Make Deployments available, and give MiniClusters and Jobs a waiting pod 0."""
        for (kind, name), found in list(self.children.items()):
            if kind == "Deployment":
                found["status"] = {"availableReplicas": found["spec"].get("replicas", 1)}
            if kind in ("MiniCluster", "Job") and not any(
                pod["metadata"]["labels"]["job-name"] == name for pod in self.pods.values()
            ):
                self.pod(name, {"waiting": {"reason": "PodInitializing"}}, phase="Pending")

    def job_made_of(self, name: str, status: Object) -> None:
        """Create the Job of a MiniCluster as the Flux Operator does, with this status."""
        owner = self.children[("MiniCluster", name)]["metadata"]["uid"]
        found = self.children.setdefault(("Job", name), {"metadata": {"uid": self.uid()}})
        found["kind"], found["status"] = "Job", status
        found["metadata"] |= {"name": name, "ownerReferences": [{"uid": owner, "controller": True}]}

    def pod(
        self,
        job: str,
        state: Object,
        phase: str = "Running",
        container: str = "",
        began: float = 1_800_000_000.0,
    ) -> None:
        """Set pod 0 of a MiniCluster, with its container in this state."""
        named = container or ("run" if ("MiniCluster", job) not in self.children else job)
        owner = self.children.get(("Job", job), {"metadata": {"uid": "unknown"}})["metadata"]["uid"]
        self.pods[f"{job}-0"] = {
            "metadata": {
                "name": f"{job}-0-x",
                "uid": self.uid(),
                "labels": {"job-name": job, "batch.kubernetes.io/job-completion-index": "0"},
                "ownerReferences": [{"kind": "Job", "name": job, "uid": owner}],
            },
            "status": {
                "phase": phase,
                "startTime": format_time(began),
                "containerStatuses": [{"name": named, "state": state}],
            },
        }

    def runs(self, job: str, **gauges: float) -> None:
        """Let the pod run, with a new heartbeat of its run."""
        self.pod(job, {"running": {}})
        known = {"nodes.up": 1, "nodes.free": 1, "queue.run": 1, **gauges}
        self.figures[f"default/{job}"] = Figures(self.now, known, ({"name": "a", "success": 1},))

    def ends(self, job: str, code: int = 0) -> None:
        said = {"exitCode": 0, "message": f"ensemble: exit {code}\n"}
        self.pod(job, {"terminated": said}, phase="Succeeded")

    def killed(self, job: str, code: int = 137) -> None:
        self.pod(job, {"terminated": {"exitCode": code, "reason": "Error"}}, phase="Failed")

    def edit(self, change: Callable[[Object], object]) -> None:
        change(self.found["spec"])
        self.found["metadata"]["generation"] += 1


def running(found: Object | None = None, **observed: Any) -> World:
    """Return a world in which all members and runs are running."""
    world = World(found or ensemble(), **observed)
    world.settle()
    for kind, name in list(world.children):
        if kind == "MiniCluster":
            world.runs(name)
    world.settle()
    for kind, name in list(world.children):
        if kind == "Job":
            world.pod(name, {"running": {}}, container="run")
    world.settle()
    return world


def quick_keys(ensemble: Ensemble, secrets: dict[str, Object | None], now: float) -> list[Object]:
    """Return the Secrets that ``credential_issuance`` would create, without real keys."""

    def secret(name: str, data: Object) -> Object:
        texts = {key: encoded(text) for key, text in data.items()}
        return child(ensemble, "Secret", name, "keys", {"data": texts})

    found = []
    tls = secrets.get(tls_secret(ensemble))
    if not ensemble.sidecar.tls_secret:
        tls = secret(tls_secret(ensemble), dict.fromkeys(FILES, "certificate"))
        tls["metadata"]["annotations"][RENEW] = str(now + 1e7)
        found.append(tls)
    lines, texts = [], []
    for index, each in enumerate(holders(ensemble)):
        texts.append(f"ensemble-{index:08x}-{'x' * 43}")
        lines.append(
            {
                "id": f"{index:08x}",
                "role": each.role,
                "member": each.name if each.role == "member" else None,
                "namespace": each.name.partition("/")[0],
            }
        )
    ca = value(tls, "ca.crt")
    document = json.dumps({"version": 1, "tokens": lines})
    found.append(
        secret(tokens_secret(ensemble), {"tokens.json": document, VIEWER: texts[0], "ca.crt": ca})
    )
    found += [
        secret(each.secret, {"token": text, "ca.crt": ca})
        for each, text in list(zip(holders(ensemble), texts, strict=True))[1:]
    ]
    assert token_lines(secrets, ensemble) is not None
    return found


OTHER = FILE.replace("'true'", "'false'")


def kinds(world: World) -> set[str]:
    """Return the kinds of the objects that exist."""
    return {kind for kind, _ in world.children}


def minicluster(world: World, name: str = "study-0") -> dict[str, Any]:
    """Return the spec of a MiniCluster."""
    found: dict[str, Any] = world.children[("MiniCluster", name)]["spec"]
    return found


def told(world: World) -> list[str]:
    """Return the reasons of the events so far."""
    return [each.reason for each in world.events]


def shared(**spec: Any) -> dict[str, Any]:
    """Return an Ensemble of two members with one file for both."""
    found = ensemble(member(name="a"), member(name="b"), ensemble=FILE, **spec)
    for each in found["spec"]["members"]:
        del each["ensemble"]
    return found


__all__ = [
    "FILE", "HASH", "OTHER", "SETTINGS", "SPEC", "Reference", "World", "content", "ensemble",
    "files_of", "kinds", "member", "minicluster", "problems", "running", "shared", "told",
]  # fmt: skip
