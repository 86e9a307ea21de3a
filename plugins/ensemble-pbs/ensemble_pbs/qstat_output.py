"""Parser of the output of PBS's commands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from ensemble_batch import QueueJob, status_of

_STATES: Mapping[str, Literal["waiting", "running", "suspended", "held", "stuck", "over"]] = {
    **dict.fromkeys("QHWT", "waiting"),
    **dict.fromkeys("RBEM", "running"),
    # by qsig or preemption; because the workstation is in use
    **dict.fromkeys("SU", "suspended"),
    **dict.fromkeys("FX", "over"),
}
#: Reasons that PBS reports as negative exit codes.
_REASONS: Mapping[int, tuple[str, str]] = {
    -11: ("node-failure", "PBS requeued it"),
    -20: ("node-failure", "its node was unreachable"),
    -24: ("exec", "it used more cores than requested"),
    -25: ("exec", "it used more cores than requested"),
    -26: ("out-of-memory", "it used more virtual memory than requested"),
    -27: ("out-of-memory", "it used more memory than requested"),
    -28: ("timeout", "it used more CPU time than requested"),
    -29: ("timeout", "it exceeded its walltime"),
}
#: Comments of jobs that wait until somebody acts.
_NEVER = re.compile("can never run|too many failed|queue not started", re.IGNORECASE)
#: The substate of a deleted job.
_DELETED = "91"


# Not JSON: in some releases, 'qstat -F json' lists only the first of several jobs; others escape
# environments wrongly.
def blocks(text: str) -> dict[str, dict[str, str]]:
    """Return the attributes of each object in the output of ``qstat -f`` and similar commands."""
    found: dict[str, dict[str, str]] = {}
    for part in re.split(r"\n{2,}", text.replace("\n\t", "")):
        first, *lines = part.strip("\n").split("\n")
        pairs = (line.strip().partition(" = ") for line in lines if line[:1] == " ")
        fields = {name: value for name, equals, value in pairs if equals}
        if fields:
            found[first.partition(": ")[2] or first] = fields
    return found


def count(fields: Mapping[str, str], name: str) -> int:
    """Return a numeric attribute; 0 if it is missing."""
    value = fields.get(name, "")
    return int(value) if value.isdigit() else 0


def array_id(id_: str) -> str:
    """Return the id of a job's array, or the job's own id if it belongs to no array.

    >>> array_id("7[12].head"), array_id("8.head")
    ('7[].head', '8.head')
    """
    return re.sub(r"\[\d*\]", "[]", id_)


def queue_job(id_: str, fields: Mapping[str, str]) -> QueueJob:
    """Return a job's state from its attributes."""
    state = _STATES.get(fields.get("job_state", ""), "waiting")
    comment = fields.get("comment", "")
    if state != "over":
        # A job that waits although it was run before was requeued. PBS counts runs, also failed
        # attempts to start.
        restarts = max(0, count(fields, "run_count") - (state != "waiting"))
        note = "suspended in PBS (qsig or preemption)" if state == "suspended" else ""
        # A waiting job of a held array has the state Q. PBS changes only whole arrays.
        whole = array_id(id_)
        kinds = "".join(re.findall("[uos]", fields.get("Hold_Types", "")))
        held = state == "waiting" and kinds and "depend" not in fields
        release = f"'qrls -h {kinds} {whole}' lets it start"
        if state == "waiting" and _NEVER.search(comment):
            then = release if held else "'qdel', 'qmove' or 'qalter' it"
            state, note = "stuck", f"{comment} ('qstat -f {whole}'; {then})"
        elif held:
            state, note = "held", f"somebody holds it: {release}"
        return QueueJob(id_, state, note=note, restarts=restarts)
    if fields.get("substate") == _DELETED:  # a job that never ran has exit status 0
        return QueueJob(id_, "over", exception="cancel", note="deleted in PBS")
    code = fields.get("Exit_status", "")
    number = int(code) if re.fullmatch(r"-?\d+", code) else None
    if "run_count" not in fields and (number is None or number >= 0):
        # PBS has no record of its own of a job of an array that never ran (or, without a history,
        # that has ended), and prints the array's exit status.
        note = "deleted in PBS before it ran"
        return QueueJob(id_, "unknown", exception="cancel", note=note)
    if number is None:
        return QueueJob(id_, "over")
    if number < 0:
        kind, note = _REASONS.get(number, ("exec", "PBS could not start it"))
        note = f"{note} (PBS's code {number}{': ' if comment else ''}{comment})"
        return QueueJob(id_, "over", exception=kind, note=note)
    status = number - 256 if number >= 256 else status_of(number)
    if status & 0x7F and (note := _memory_note(fields, comment)):
        return QueueJob(id_, "over", status=status, exception="out-of-memory", note=note)
    return QueueJob(id_, "over", status=status)


_UNITS = {"b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40}


def _bytes(text: str) -> int:
    """Parse a size such as ``300kb``. Return 0 for any other text."""
    match = re.fullmatch(r"(\d+)([kmgt]?b)", text.lower())
    return int(match[1]) * _UNITS[match[2]] if match else 0


def _memory_note(fields: Mapping[str, str], comment: str) -> str:
    """Return why a killed job exceeded its memory; an empty string if it did not.

    >>> _memory_note({"resources_used.mem": "300000kb", "Resource_List.mem": "50mb"}, "")
    'it used 300000kb of memory and requested 50mb'
    """
    used, limit = fields.get("resources_used.mem", ""), fields.get("Resource_List.mem", "")
    if 0 < _bytes(limit) <= _bytes(used):
        return f"it used {used} of memory and requested {limit}"
    return comment if re.search("oom|memory", comment, re.IGNORECASE) else ""
