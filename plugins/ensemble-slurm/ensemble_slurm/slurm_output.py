"""Parsers for the output of ``squeue``, ``sacct``, ``sinfo`` and ``scontrol``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ensemble_slurm.job_states import Row, base_state, wait_status

__all__ = [
    "SACCT",
    "SACCT_SCRIPT",
    "SEPARATOR",
    "SINFO",
    "SINFO_REASON",
    "SQUEUE",
    "SQUEUE_COMMENT",
    "SQUEUE_SCRIPT",
    "Row",
    "Site",
    "failed_prologs",
    "read_config",
    "read_jobs",
    "read_nodes",
    "read_sacct",
    "read_squeue",
    "unreadable",
]

# The output of ``--json`` would be ten times as long, and differs between releases.
#: Separator of columns, which occurs in no name.
SEPARATOR = "\x1f"


def _columns(**widths: int) -> str:
    return ",".join(f"{name}:{width}{SEPARATOR}" for name, width in widths.items())


_JOB = {
    "JobArrayID": 40, "State": 20, "Reason": 60, "exit_code": 12, "RestartCnt": 8,
    "SubmitTime": 24, "StartTime": 24, "EndTime": 24, "NodeList": 40, "Name": 90,
}  # fmt: skip
#: Columns of ``squeue --Format``: for the state of jobs only, with comments, and with scripts too.
SQUEUE = _columns(**_JOB)
SQUEUE_COMMENT = _columns(**_JOB, Comment=1000)
SQUEUE_SCRIPT = _columns(**_JOB, Comment=1000, Command=4096)
#: Columns of ``sacct --format``, printed with ``--parsable2 --delimiter``.
SACCT = "JobID,State,ExitCode,Submit,Start,End,NodeList,JobName,Comment"
SACCT_SCRIPT = f"{SACCT},SubmitLine"
#: Columns of ``sinfo --Format``.
SINFO = _columns(NodeList=120, StateLong=30, CPUsState=40, Gres=200, GresUsed=200)
SINFO_REASON = _columns(NodeList=120, Reason=200, Timestamp=30)

#: States of nodes where jobs may start, without suffixes (``*``, ``~`` …).
_UP = frozenset({"idle", "mixed", "allocated", "completing", "alloc", "mix", "comp", "planned"})
_BAD_MARKS = "*$@^!%"


def _time(text: str) -> float | None:
    return float(text) if text.isdigit() and text != "0" else None


def _nodes(text: str) -> str:
    return "" if text in ("(null)", "None assigned", "None") else text


def _task(text: str) -> tuple[str, int | None] | None:
    """Split ``12_3`` into the job id and the array task; the task of ``12`` is ``None``."""
    match = re.fullmatch(r"(\d+)(?:_(\d+))?", text)
    if match is None:
        return None  # a step, a part of a heterogeneous job, or tasks that wait on one line
    return match[1], None if match[2] is None else int(match[2])


def unreadable(text: str) -> str | None:
    """Return the invalid or truncated end of ``squeue``'s output; ``None`` if it is complete."""
    lines = [line.rstrip(" ") for line in text.split("\n") if line.strip()]
    # Job names may contain newlines, so not every line is complete.
    whole = any(line.count(SEPARATOR) >= len(_JOB) for line in lines)
    if not lines or (whole and lines[-1].endswith(SEPARATOR)):
        return None
    return repr(lines[-1][-60:])


def read_squeue(text: str) -> Iterator[Row]:
    """Yield the jobs in the output of ``squeue --noheader --array --Format``.

    Times are in seconds since the epoch (``SLURM_TIME_FORMAT=%s``).
    """
    for line in text.split("\n"):
        fields = [field.strip() for field in line.split(SEPARATOR)]
        if len(fields) < len(_JOB):
            continue
        known = _task(fields[0])
        if known is None:
            continue
        yield Row(
            known[0], known[1], base_state(fields[1]), fields[2], wait_status(fields[3]),
            int(fields[4]) if fields[4].isdigit() else 0,
            _time(fields[5]), _time(fields[6]), _time(fields[7]),
            _nodes(fields[8]), fields[9], *fields[len(_JOB) : -1][:2],
        )  # fmt: skip


def read_sacct(text: str) -> Iterator[Row]:
    """Yield the jobs in the output of ``sacct --allocations --noheader --parsable2``.

    For a job that ran several times, the last run comes last.
    """
    for line in text.splitlines():
        fields = line.split(SEPARATOR)
        if len(fields) < 9:
            continue
        known = _task(fields[0])
        if known is None:
            continue
        yield Row(
            known[0], known[1], base_state(fields[1]), fields[1].strip(), wait_status(fields[2]),
            0, _time(fields[3]), _time(fields[4]), _time(fields[5]),
            _nodes(fields[6]), fields[7], fields[8], *fields[9:10],
        )  # fmt: skip


def read_jobs(text: str) -> Iterator[Row]:
    """Yield the jobs in the output of ``scontrol show job``.

    Tasks that wait are in one block, and more than one of them is skipped.
    """
    for block in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"(\w+)=(\S*)", block))
        # These fields may contain spaces; each ends its line.
        fields |= dict(re.findall(r"\b(JobName|Comment|Command)=(.*)$", block, re.M))
        array, task = fields.get("ArrayJobId"), fields.get("ArrayTaskId", "")
        known = _task(f"{array}_{task}" if array else fields.get("JobId", ""))
        if known is None:
            continue
        restarts = fields.get("Restarts", "")
        yield Row(
            known[0], known[1], base_state(fields.get("JobState", "")), fields.get("Reason", ""),
            wait_status(fields.get("ExitCode", "")), int(restarts) if restarts.isdigit() else 0,
            _time(fields.get("SubmitTime", "")), _time(fields.get("StartTime", "")),
            _time(fields.get("EndTime", "")), _nodes(fields.get("NodeList", "")),
            fields.get("JobName", ""), fields.get("Comment", ""), fields.get("Command", ""),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Site:
    """Settings from a site's Slurm configuration. Times are in seconds."""

    version: tuple[int, ...] = ()
    controller: str = ""  # host of slurmctld, if known
    largest_array: int = 1001
    most_jobs: int = 10000
    least_age: float = 300.0
    kill_wait: float = 30.0
    message_timeout: float = 10.0
    accounting: bool = False
    restart_codes: frozenset[int] = frozenset()  # exit codes after which jobs are requeued


def _number(values: dict[str, str], name: str, otherwise: float) -> float:
    match = re.match(r"\d+", values.get(name, ""))
    return float(match[0]) if match else otherwise


def _largest_array(values: dict[str, str]) -> int:
    largest = int(_number(values, "MaxArraySize", 1001))
    match = re.search(r"\bmax_array_tasks=(\d+)", values.get("SchedulerParameters", ""))
    return min(largest, int(match[1])) if match and int(match[1]) else largest


def _codes(text: str) -> Iterator[int]:
    """Yield the exit codes in a list such as ``99,120-122``."""
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        yield from range(int(first), min(int(last or first), 255) + 1)


def read_config(text: str) -> Site:
    """Parse ``scontrol show config``; missing settings get Slurm's defaults."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign:
            values.setdefault(name.strip(), value.strip())
    host = values.get("SlurmctldHost[0]", values.get("ControlMachine", ""))
    # In HOST(ADDRESS), the address is used for connections.
    match = re.fullmatch(r"([^()]*)(?:\(([^()]*)\))?", host)
    version = tuple(int(part) for part in re.findall(r"\d+", values.get("SLURM_VERSION", "")))
    storage = values.get("AccountingStorageType", "(null)")
    requeue = (values.get(name, "") for name in ("RequeueExit", "RequeueExitHold"))
    return Site(
        restart_codes=frozenset(code for text in requeue for code in _codes(text)),
        version=version[:3],
        controller=(match[2] or match[1]) if match else "",
        largest_array=_largest_array(values),
        most_jobs=int(_number(values, "MaxJobCount", 10000)),
        least_age=_number(values, "MinJobAge", 300.0),
        kill_wait=_number(values, "KillWait", 30.0),
        message_timeout=_number(values, "MessageTimeout", 10.0),
        accounting=storage not in ("(null)", "", "accounting_storage/none"),
    )


def _gpus(text: str) -> int:
    """Return the number of GPUs in ``gpu:a100:4(S:0-1),gpu:2(IDX:0)``."""
    return sum(int(found) for found in re.findall(r"\bgpu(?::[^:,()]+)?:(\d+)", text))


def read_nodes(text: str) -> dict[str, float]:
    """Return the gauges of nodes, cores and GPUs from ``sinfo --noheader --Node --Format``."""
    gauges = dict.fromkeys(
        ("nodes.up", "nodes.free", "cores.up", "cores.free", "gpus.up", "gpus.free"), 0.0
    )
    seen: set[str] = set()
    for line in text.split("\n"):
        fields = [field.strip() for field in line.split(SEPARATOR)]
        if len(fields) < 5 or fields[0] in seen:
            continue  # a node has a line for each of its partitions
        seen.add(fields[0])
        word = fields[1].lower()
        # A suffix means: not responding, powering up or down, in maintenance, or rebooting.
        if word.rstrip("~#+-") not in _UP or any(mark in word for mark in _BAD_MARKS):
            continue
        cores = [int(part) if part.isdigit() else 0 for part in fields[2].split("/")]
        if len(cores) != 4:
            continue
        used, idle = cores[0], cores[1]
        gauges["nodes.up"] += 1
        gauges["nodes.free"] += not used
        gauges["cores.up"] += used + idle
        gauges["cores.free"] += idle
        gpus = _gpus(fields[3])
        gauges["gpus.up"] += gpus
        gauges["gpus.free"] += max(0, gpus - _gpus(fields[4]))
    return gauges


def failed_prologs(text: str) -> list[tuple[str, str, float]]:
    """Return node, reason and time of each failed prolog, from ``sinfo --Format=SINFO_REASON``."""
    rows = [[field.strip() for field in line.split(SEPARATOR)] for line in text.split("\n")]
    found = [
        (node, reason, _time(at))
        for node, reason, at in (row[:3] for row in rows if len(row) > 3)
        if "prolog" in reason.lower()
    ]
    return [(node, reason, at) for node, reason, at in found if at is not None]
