"""Options of the executor ``pilot``: checks them, and says which jobs can never run with them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ensemble_batch import address_option

from ensemble_core import EnsembleError, ExecutorPlugin, Job, JobGroup, UsageError, executor_record
from ensemble_core.cli.toolkit import option_defaults, parse_duration
from ensemble_core.local.slots import machine_cores
from ensemble_pilot.allocation import Allocation, allocation
from ensemble_pilot.fleet import AT_END, Kind
from ensemble_pilot.node import RANKS
from ensemble_pilot.schema import OPTIONS

__all__ = ["PilotOptions", "never", "read_options"]

#: The least value of ``orphan``: in less time, no node can connect.
_LEAST_ORPHAN = 0.1
#: Options that the allocation decides with ``queue=here``.
_OF_ALLOCATION = {"nodes": 1, "most": 1, "least": 0, "backlog": 2}


@dataclass(frozen=True)
class PilotOptions:
    """Checked options. Durations are in seconds.

    ``of_queue`` are options of the ``outer`` executor, and ``of_jobs`` those of its jobs.
    """

    queue: str
    kind: Kind
    outer: ExecutorPlugin
    of_queue: Mapping[str, Any]
    of_jobs: Mapping[str, Any]
    address: tuple[str, int]
    orphan: float
    grace: float
    requeue: bool
    here: Allocation | None


def read_options(given: Mapping[str, Any]) -> PilotOptions:
    """Check options and complete them. Raises :class:`UsageError`."""
    options = option_defaults(OPTIONS, given)
    queue = options["queue"]
    if queue not in RANKS:
        raise _wrong(
            f"pilots cannot be jobs of the executor {queue!r} yet",
            f"choose one of these: {', '.join(f'-o queue={name}' for name in RANKS)}",
        )
    here = _here(options) if queue == "here" else None
    outer = executor_record("local" if here else queue)
    of_queue, of_jobs = _of_outer(outer, options["options"] or {})
    if here:
        of_queue = {**of_queue, "slots": 1, "pool": "none"}
    lifetime = _duration("duration", options["duration"])
    if here and not lifetime:
        lifetime = here.left
    margin = options.get("margin")
    reserve = _duration("margin", margin if margin is not None else ("2m" if lifetime else 0))
    kind = Kind(
        nodes=here.nodes if here else options["nodes"],
        cores=_cores(queue, options, of_queue, here),
        gpus=options["gpus"],
        duration=lifetime,
        most=options["most"],
        least=1 if here else options["least"],
        idle=_duration("idle", options["idle"]),
        margin=reserve,
        backlog=options["backlog"],
    )
    requeue = options.get("requeue")
    checked = PilotOptions(
        queue,
        kind,
        outer,
        of_queue,
        of_jobs,
        _address(options["listen"], queue),
        _duration("orphan", options["orphan"]),
        float(options["grace"]),
        here is not None if requeue is None else requeue,
        here,
    )
    _check_times(checked)
    return checked


def _wrong(what: str, hint: str) -> UsageError:
    return UsageError(what, hint=hint, code="bad-option")


def _here(options: Mapping[str, Any]) -> Allocation:
    for name, default in _OF_ALLOCATION.items():
        if options[name] != default:
            raise _wrong(
                f"'{name}' has no effect with queue=here: the allocation is the one pilot",
                f"remove -o {name}={options[name]}, or use -o queue=slurm",
            )
    return allocation(os.environ)


def _cores(
    queue: str, options: Mapping[str, Any], of_queue: Mapping[str, Any], here: Allocation | None
) -> int:
    """Return how many cores a node of a pilot has for jobs."""
    nodes, cores = int(options["nodes"]), options.get("cores")
    if here is not None:
        if cores is not None and cores > here.cores:
            raise _wrong(
                f"'cores' is {cores}, but a node of this allocation has {here.cores}",
                f"use -o cores={here.cores}, or remove the option",
            )
        return int(cores or here.cores)
    if queue != "local":
        if cores is None:
            raise _wrong(
                f"the executor {queue!r} does not tell how many cores a node has",
                "say how many each node of a pilot gets, such as -o cores=128",
            )
        return int(cores)
    slots = int(of_queue.get("slots") or machine_cores())
    most = slots // nodes
    if not most or (cores or 0) > most:
        raise _wrong(
            f"a pilot of {nodes} x {cores or 1} cores is larger than this machine's {slots} slots",
            "use fewer nodes or cores, or more slots: -o options='{\"slots\": N}'",
        )
    return int(cores or most)


def _address(listen: str, queue: str) -> tuple[str, int]:
    address = address_option(listen)
    if address is None:
        raise _wrong(
            "nodes of pilots must be able to connect to this machine",
            "use -o listen=ADDRESS or -o listen=ADDRESS:PORT",
        )
    if address[0]:
        return address
    return ("127.0.0.1" if queue == "local" else "0.0.0.0"), address[1]


def _check_times(options: PilotOptions) -> None:
    """Raise :class:`UsageError` if options contradict one another."""
    kind = options.kind
    if kind.most < kind.least:
        raise _wrong(f"'most' is {kind.most}, but 'least' is {kind.least}", "choose least <= most")
    if kind.duration and kind.margin >= kind.duration:
        raise _wrong(
            f"a pilot of {kind.duration:g} s with a margin of {kind.margin:g} s has no time for "
            "jobs",
            "lengthen 'duration', or shorten 'margin'",
        )
    if kind.duration and options.grace > AT_END * kind.margin:
        raise _wrong(
            f"'grace' is {options.grace:g} s, but a pilot ends {AT_END * kind.margin:g} s (half of "
            "'margin') after its jobs get SIGTERM",
            "shorten 'grace', or lengthen 'margin'",
        )
    if options.orphan < _LEAST_ORPHAN:
        raise _wrong(
            f"'orphan' is {options.orphan:g} s: a pilot would end before it can connect",
            "choose a longer time, such as -o orphan=10m",
        )


def _duration(name: str, value: float | str) -> float:
    try:
        return float(parse_duration(value))
    except EnsembleError as error:
        raise UsageError(f"{name!r}: {error.what}", hint=error.hint, code="bad-option") from None


def _of_outer(
    record: ExecutorPlugin, given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the outer executor, and those of its jobs.

    ``given`` may have options of both kinds.
    """
    if "reattach" not in record.capabilities:
        raise UsageError(
            f"pilots cannot be jobs of the executor {record.name!r}",
            cause="it cannot find its jobs again after a restart",
            code="bad-option",
        )
    of_jobs = dict(record.job_options.get("properties", {}))
    of_queue = dict(record.options.get("properties", {}))
    for name in given:
        if name not in of_jobs and name not in of_queue:
            known = ", ".join(sorted({*of_jobs, *of_queue}))
            raise UsageError(
                f"the executor {record.name!r} has no option {name!r}",
                hint=f"its options are {known}",
                code="unknown-option",
            )
    for schema, names in ((record.options, of_queue), (record.job_options, of_jobs)):
        _check(record, dict(schema), {key: given[key] for key in given if key in names})
    return (
        {key: value for key, value in given.items() if key not in of_jobs},
        {key: value for key, value in given.items() if key in of_jobs},
    )


def _check(record: ExecutorPlugin, schema: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    import jsonschema_rs

    for error in jsonschema_rs.validator_for({**schema, "required": []}).iter_errors(given):
        where = ".".join(map(str, error.instance_path))
        raise UsageError(
            f"invalid option {where!r} of the pilots' queue",
            cause=error.message,
            hint=f"'ensemble plugins show executor {record.name}' describes it",
            code="bad-option",
        )


def never(group: JobGroup, options: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return why no pilot can run the jobs of a group: its key, the reason, and what to do."""
    kind = read_options(options).kind
    for part in (group, *group.more):
        job = Job(
            id=part.name,
            group=part.name,
            index=0,
            command=part.command,
            nodes=part.nodes,
            tasks=part.nodes if part.tasks is None else part.tasks,
            cores_per_task=part.cores_per_task,
            gpus_per_task=part.gpus_per_task,
            duration=part.duration,
        )
        found = kind.never(job)
        if found is not None:
            return found
    return None
