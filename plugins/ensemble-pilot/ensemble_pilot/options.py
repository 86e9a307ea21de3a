"""Options of the executor ``pilot``: checks them, and says which jobs can never run with them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ensemble_batch import address_option

from ensemble_core import EnsembleError, ExecutorPlugin, JobGroup, UsageError, executor_record
from ensemble_core.cli.toolkit import option_defaults, parse_duration, parse_size
from ensemble_core.local.slots import machine_cores
from ensemble_pilot import OPTIONS
from ensemble_pilot.current_allocation import Allocation, allocation
from ensemble_pilot.node import RANKS
from ensemble_pilot.pilot import AT_END, Kind, never_any

#: The least value of ``orphan``: in less time, no node can connect.
_LEAST_ORPHAN = 0.1
#: Options that the allocation decides with ``queue=here``.
_OF_ALLOCATION = {"nodes": 1, "most": 1, "least": 0, "backlog": 2}


@dataclass(frozen=True)
class KindOptions:
    """Checked options of a kind of pilot. Durations are in seconds.

    ``of_queue`` are options of the ``outer`` executor, and ``of_jobs`` those of its jobs.
    """

    queue: str
    kind: Kind
    outer: ExecutorPlugin
    of_queue: Mapping[str, Any]
    of_jobs: Mapping[str, Any]
    orphan: float
    grace: float
    requeue: bool
    here: Allocation | None


@dataclass(frozen=True)
class PilotOptions:
    """Checked options. The only kind has an empty name if it was given without one."""

    kinds: Mapping[str, KindOptions]
    address: tuple[str, int]

    @property
    def here(self) -> Allocation | None:
        """The allocation of this process, if it is the one pilot."""
        return next(iter(self.kinds.values())).here


class OptionError(UsageError):
    """Error in an option. ``key`` is its name."""

    def __init__(self, key: str, what: str, hint: str, code: str = "bad-option") -> None:
        super().__init__(what, hint=hint, code=code)
        self.key = key


def read_options(given: Mapping[str, Any]) -> PilotOptions:
    """Check options and complete them. Raises :class:`UsageError`."""
    options = option_defaults(OPTIONS, given)
    entries: Mapping[str, Any] = options.pop("kinds", None) or {"": {}}
    kinds = {}
    for name, entry in entries.items():
        try:
            kinds[name] = _read_kind(name, {**options, **entry})
        except UsageError as error:
            if name:
                error.what = f"kind {name!r}: {error.what}"
            raise
    for kind in kinds.values():
        _check_alone(kind, len(kinds))
    on_this_machine = all(
        kind.queue == "local" or (kind.here is not None and not kind.here.launcher)
        for kind in kinds.values()
    )
    return PilotOptions(kinds, _address(options["listen"], on_this_machine))


def check_kind(name: str, options: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return what is wrong with a kind: its key, the reason, and what to do, or ``None``."""
    try:
        whole = option_defaults(OPTIONS, options)
        kinds = whole.pop("kinds")
        _check_alone(_read_kind(name, {**whole, **kinds[name]}), len(kinds))
    except OptionError as error:
        return error.key, error.what, error.hint or ""
    except UsageError as error:
        return "options", error.what, error.hint or error.cause or ""
    return None


def _check_alone(kind: KindOptions, kinds: int) -> None:
    if kind.here and kinds > 1:
        raise OptionError(
            "queue",
            "with queue=here, the allocation of this process is the one pilot, but there are "
            f"{kinds} kinds",
            "use one kind, or name the queue",
        )


def _read_kind(name: str, options: Mapping[str, Any]) -> KindOptions:
    queue = options["queue"]
    if queue not in (*RANKS, "here"):
        raise OptionError(
            "queue",
            f"pilots cannot be jobs of the executor {queue!r}",
            f"choose one of these: {', '.join(f'-o queue={name}' for name in (*RANKS, 'here'))}",
        )
    here = _here(options) if queue == "here" else None
    if options["nodes"] > 1 and not here and not RANKS[queue]:
        raise OptionError(
            "nodes",
            f"pilots in {queue!r} have one node, not {options['nodes']}: its executor runs no jobs "
            "of several nodes",
            "remove 'nodes', and use more pilots: -o most=N",
        )
    outer = executor_record("local" if here else queue)
    of_queue, of_jobs = _of_outer(outer, options["options"] or {})
    if here:
        # The pilot has the cores of the allocation, which are not counted here.
        of_queue = {**of_queue, "slots": 1, "pool": "none", "bind": False}
    lifetime = _duration("duration", options["duration"])
    if here and here.left:
        lifetime = min(lifetime or here.left, here.left)
    margin = options.get("margin")
    reserve = _duration("margin", margin if margin is not None else ("2m" if lifetime else 0))
    kind = Kind(
        name=name,
        nodes=here.nodes if here else options["nodes"],
        cores=_cores(queue, options, of_queue, here),
        gpus=options["gpus"],
        memory=_memory(options.get("memory")),
        duration=lifetime,
        most=options["most"],
        least=1 if here else options["least"],
        idle=_duration("idle", options["idle"]),
        margin=reserve,
        backlog=options["backlog"],
        patience=_duration("patience", options["patience"]),
        flux=options["inside"] == "flux",
    )
    requeue = options.get("requeue")
    checked = KindOptions(
        queue,
        kind,
        outer,
        of_queue,
        of_jobs,
        _duration("orphan", options["orphan"]),
        float(options["grace"]),
        here is not None if requeue is None else requeue,
        here,
    )
    _check_times(checked)
    _check_pilot(checked)
    return checked


def _check_pilot(options: KindOptions) -> None:
    """Raise :class:`UsageError` if the queue can never run a pilot of this size."""
    kind, outer = options.kind, options.outer
    if options.here or outer.never is None:
        return
    pilot = JobGroup(
        name="pilot",
        command=("pilot",),
        nodes=kind.nodes,
        tasks=kind.nodes,
        cores_per_task=kind.cores,
        gpus_per_task=kind.gpus,
    )
    if (found := outer.never(pilot, options.of_queue)) is not None:
        raise OptionError(
            "options",
            f"a pilot can never run in {outer.name!r}: {found[1]}",
            f"{found[2]}, under 'options': -o options='{{\"NAME\": …}}'",
            "cannot-hold",
        )


def _here(options: Mapping[str, Any]) -> Allocation:
    for name, default in _OF_ALLOCATION.items():
        if options[name] != default:
            raise OptionError(
                name,
                f"'{name}' has no effect with queue=here: the allocation is the one pilot",
                f"remove -o {name}={options[name]}, or name a queue: -o queue=slurm",
            )
    return allocation(os.environ)


def _cores(
    queue: str, options: Mapping[str, Any], of_queue: Mapping[str, Any], here: Allocation | None
) -> int:
    """Return how many cores a node of a pilot has for jobs."""
    nodes, cores = int(options["nodes"]), options.get("cores")
    if here is not None:
        if cores is not None and cores > here.cores:
            raise OptionError(
                "cores",
                f"'cores' is {cores}, but a node of this allocation has {here.cores}",
                f"use -o cores={here.cores}, or remove the option",
            )
        return int(cores or here.cores)
    if queue != "local":
        if cores is None:
            raise OptionError(
                "cores",
                f"the executor {queue!r} does not tell how many cores a node has",
                "say how many each node of a pilot gets, such as -o cores=128",
            )
        return int(cores)
    slots = int(of_queue.get("slots") or machine_cores())
    most = slots // nodes
    if not most or (cores or 0) > most:
        raise OptionError(
            "cores",
            f"a pilot of {nodes} x {cores or 1} cores is larger than this machine's {slots} slots",
            "use fewer nodes or cores, or more slots: -o options='{\"slots\": N}'",
        )
    return int(cores or most)


def _memory(given: str | int | None) -> int:
    """Return a size in bytes; 0: not given."""
    try:
        return 0 if given is None else parse_size(given)
    except EnsembleError as error:
        raise OptionError("memory", f"'memory': {error.what}", error.hint or "") from None


def _address(listen: str, on_this_machine: bool) -> tuple[str, int]:
    address = address_option(listen)
    if address is None:
        raise OptionError(
            "listen",
            "nodes of pilots must be able to connect to this machine",
            "use -o listen=ADDRESS or -o listen=ADDRESS:PORT",
        )
    if address[0]:
        return address
    return ("127.0.0.1" if on_this_machine else "0.0.0.0"), address[1]


def _check_times(options: KindOptions) -> None:
    """Raise :class:`UsageError` if options contradict one another."""
    kind = options.kind
    if kind.most < kind.least:
        raise OptionError(
            "most",
            f"'most' is {kind.most}, but 'least' is {kind.least}",
            "choose least <= most",
        )
    if kind.duration and kind.margin >= kind.duration:
        raise OptionError(
            "margin",
            f"a pilot of {kind.duration:g} s with a margin of {kind.margin:g} s has no time for "
            "jobs",
            "lengthen 'duration', or shorten 'margin'",
        )
    if kind.duration and options.grace > AT_END * kind.margin:
        raise OptionError(
            "grace",
            f"'grace' is {options.grace:g} s, but a pilot ends {AT_END * kind.margin:g} s (half of "
            "'margin') after its jobs get SIGTERM",
            "shorten 'grace', or lengthen 'margin'",
        )
    if options.orphan < _LEAST_ORPHAN:
        raise OptionError(
            "orphan",
            f"'orphan' is {options.orphan:g} s: a pilot would end before it can connect",
            "choose a longer time, such as -o orphan=10m",
        )


def _duration(name: str, value: float | str) -> float:
    try:
        return float(parse_duration(value))
    except EnsembleError as error:
        raise OptionError(name, f"{name!r}: {error.what}", error.hint or "") from None


def _of_outer(
    record: ExecutorPlugin, given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the outer executor, and those of its jobs.

    ``given`` may have options of both kinds.
    """
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
    kinds = [each.kind for each in read_options(options).kinds.values()]
    found = (never_any(kinds, job) for job in group.sizes)
    return next((each for each in found if each is not None), None)
