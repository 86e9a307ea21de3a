"""Withdrawal of a run beside its members, before they go or another run takes its place: its jobs
are cancelled, each end of one is heard, and those that were cancelled are submitted again when it
goes on.

In place of the run's Job comes one of the same name, so that there is never one beside the other,
whose pod has the run's journal and says ``ensemble stop --cancel-jobs``. So it does not matter
whether the run's pod could do anything when it was deleted, or was there at all. A run without a
claim has no journal that another pod could read: its own cancels its jobs when it is stopped.

That a run is not withdrawn is what its entry in the status says by its tag, ``run``. Called by
``plan`` and ``pod_plan``.
"""

from __future__ import annotations

import copy

from .changes import Observed
from .member_objects import RUNNER, following
from .member_state import any_stopping, first_pods, job_failed, late_until, newest, pod_state
from .names import FILE, RUN, WITHDRAWS, Object, child, is_mine, member_object
from .resource import Ensemble

__all__ = ["outcome", "owed", "run_is_there", "withdrawal"]

#: Seconds after which its jobs are given up: Kubernetes ends the Job then. A member that is away
#: is waited for in half of that.
_LONGEST = 600

#: Asked again while the queue may have jobs (75). A run that never began has none.
_SCRIPT = """\
code=0
if [ -e "$ENSEMBLE_STATE/runs/{tag}" ]; then
  follow ensemble stop --cancel-jobs {tag}
  while [ "$code" = 75 ]; do
    follow sleep 2
    [ "$code" = 0 ] && follow ensemble stop --cancel-jobs {tag}
  done
fi
"""


def owed(ensemble: Ensemble, observed: Observed) -> str:
    """The tag of the run that may have jobs at members that are there; empty if there is none."""
    entry, there = ensemble.entry(RUNNER), observed.children.items()
    members = any(kind == "MiniCluster" and is_mine(ensemble, each) for (kind, _), each in there)
    if not ensemble.durable or entry.get("finishedAt") or not members:
        return ""
    return str(entry.get("run", ""))


def run_is_there(ensemble: Ensemble, observed: Observed, now: float) -> bool:
    """True if the run, which is being stopped, may yet have its jobs cancelled at the members."""
    name = member_object(ensemble, RUNNER)
    job = observed.children.get(("Job", name))
    mine = job is not None and is_mine(ensemble, job)
    return mine or any_stopping(observed.pods, name, now) or bool(owed(ensemble, observed))


def withdrawal(ensemble: Ensemble, job: Object, tag: str) -> Object:
    """The Job that withdraws a run, made of the run's own."""
    spec = copy.deepcopy(job["spec"])
    spec |= {"activeDeadlineSeconds": _LONGEST, "backoffLimit": 6}
    (container,) = spec["template"]["spec"]["containers"]
    container["command"] = ["/bin/sh", "-c", following(_SCRIPT.format(tag=tag))]
    found = child(ensemble, "Job", job["metadata"]["name"], "run", {"spec": spec})
    noted = job["metadata"]["annotations"]
    found["metadata"]["annotations"] |= {FILE: noted[FILE], RUN: tag, WITHDRAWS: "true"}
    return found


def outcome(found: Object, observed: Observed, container: str, now: float) -> str | float | None:
    """The outcome of a withdrawal: empty if all jobs are cancelled, else why that is not known;
    ``None`` while it is under way, or until when its end may come to be seen."""
    pods = first_pods(observed.pods, found, None)
    state = pod_state(newest(pods), container)
    if state.phase == "over":
        words = f"'ensemble stop --cancel-jobs' ended with exit code {state.exit_code}"
        return "" if state.exit_code == 0 else state.message or words
    if not job_failed(found):
        return None
    late = late_until(found, pods, observed.ended)
    return late if now < late else state.message or f"they could not be in {_LONGEST} s"
