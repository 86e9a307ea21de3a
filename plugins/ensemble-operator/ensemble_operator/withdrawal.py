"""Withdraws a shared run: cancels its jobs and waits until they end.

This happens before members are deleted or another run replaces it. An Ensemble has a shared run if
all its members share one ensemble file.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ensemble_operator.changes import Create, Note, Observed, Part, PartPlan, deletion, kept_status
from ensemble_operator.member_objects import RUNNER, wrap_script
from ensemble_operator.object_names import (
    FILE,
    RUN,
    WITHDRAWS,
    Object,
    child,
    is_owned,
    member_object,
)
from ensemble_operator.pod_state import (
    any_stopping,
    first_pods,
    job_failed,
    late_until,
    newest,
    pod_state,
)
from ensemble_operator.resource import Ensemble

#: Seconds until Kubernetes ends the Job; the run's jobs are then abandoned. Half of this time is
#: for unreachable members.
_LONGEST = 600

#: Repeat while the queue may have jobs (exit code 75). A run that never started has none.
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


def run_to_withdraw(ensemble: Ensemble, observed: Observed) -> str:
    """Return the tag of the run that may still have jobs at members; empty if no run has jobs."""
    entry, there = ensemble.entry(RUNNER), observed.children.items()
    members = any(kind == "MiniCluster" and is_owned(ensemble, each) for (kind, _), each in there)
    if not ensemble.durable or entry.get("finishedAt") or not members:
        return ""
    return str(entry.get("run", ""))


def can_withdraw(ensemble: Ensemble, observed: Observed, now: float) -> bool:
    """Return whether the run that is being stopped may still cancel its jobs."""
    name = member_object(ensemble, RUNNER)
    job = observed.children.get(("Job", name))
    mine = job is not None and is_owned(ensemble, job)
    return (
        mine or any_stopping(observed.pods, name, now) or bool(run_to_withdraw(ensemble, observed))
    )


# If the run's journal is in a PersistentVolumeClaim, a Job with the same name replaces the run's
# Job, so that both never coexist. Its pod reads the journal and cancels the jobs, whatever happened
# to the run's pod. Otherwise the journal is lost with the run's pod, so the run itself cancels its
# jobs when it is stopped. The withdrawal is over when the run's status entry no longer contains the
# run's tag (``run``). A resume submits the cancelled jobs again.
def _withdrawal(ensemble: Ensemble, job: Object, tag: str) -> Object:
    """Return the Job that cancels a run's jobs. It replaces the run's Job."""
    spec = copy.deepcopy(job["spec"])
    spec |= {"activeDeadlineSeconds": _LONGEST, "backoffLimit": 6}
    (container,) = spec["template"]["spec"]["containers"]
    container["command"] = ["/bin/sh", "-c", wrap_script(_SCRIPT.format(tag=tag))]
    found = child(ensemble, "Job", job["metadata"]["name"], "run", {"spec": spec})
    noted = job["metadata"]["annotations"]
    found["metadata"]["annotations"] |= {FILE: noted[FILE], RUN: tag, WITHDRAWS: "true"}
    return found


def _outcome(found: Object, observed: Observed, container: str, now: float) -> str | float | None:
    """Return the outcome of the Job that cancels a run's jobs.

    - ``None``: the Job is still running
    - a time: the Job has ended, but its pod has not reported yet; wait for the report until then
    - an empty text: all jobs are cancelled
    - another text: why it is unknown whether all jobs are cancelled
    """
    pods = first_pods(observed.pods, found, None)
    state = pod_state(newest(pods), container)
    if state.phase == "over":
        words = f"'ensemble stop --cancel-jobs' ended with exit code {state.exit_code}"
        return "" if state.exit_code == 0 else state.message or words
    if not job_failed(found):
        return None
    late = late_until(found, pods, observed.ended)
    return late if now < late else state.message or f"not within {_LONGEST} s"


def plan_withdrawal(
    ensemble: Ensemble,
    part: Part,
    before: Mapping[str, Any],
    plan: PartPlan,
    found: Object | None,
    observed: Observed,
    now: float,
    *,
    leaves: bool,
) -> bool:
    """Plan the withdrawal of the part's run. Return whether one is in progress or has just
    ended.
    """
    tag = run_to_withdraw(ensemble, observed)
    due = bool(tag) and (leaves or tag != part.tag)
    name = part.main["metadata"]["name"]
    if found is None:
        plan.entry |= kept_status(before) if tag else {}
        if due and not any_stopping(observed.pods, name, now):
            made = Note("Created", f"created Job {name}, which cancels the jobs of run {tag}")
            plan.changes.append(Create(_withdrawal(ensemble, part.main, tag), made))
        return due
    if WITHDRAWS not in (found["metadata"].get("annotations") or {}):
        return False
    why = _outcome(found, observed, part.container, now) if due else None
    if isinstance(why, float):
        plan.again, why = why, None
    if why is None:
        plan.entry |= kept_status(before)
    elif why:
        words = f"jobs of run {tag} may be lost, because not all could be cancelled: {why}"
        plan.notes.append(Note("NotWithdrawn", words, warning=True))
    if why is not None or not due:
        plan.changes.append(deletion(found, Note("Pruned", f"removed {name}: its work is done")))
    return True
