"""The executor plugin ``pilot`` and its options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ensemble_core import Executor, ExecutorPlugin, JobGroup, VirtualPilots, hookimpl

_COUNT = {"type": "integer", "minimum": 1}
_TIME = {"type": ["string", "number"]}
OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "queue": {
            "type": "string",
            "default": "local",
            "description": "Executor whose jobs are the pilots: local, slurm, flux, pbs or "
            "gridengine; or here: this process's own allocation is the one pilot; default local.",
        },
        "options": {
            "type": "object",
            "default": {},
            "description": 'Options of this queue and its jobs, such as {"partition": "long"}.',
        },
        "nodes": {
            **_COUNT,
            "default": 1,
            "description": "Nodes of each pilot; only 1 with pbs and gridengine; default 1.",
        },
        "cores": {
            **_COUNT,
            "description": "Cores of each node for jobs; required except with local and here.",
        },
        "inside": {
            "enum": ["local", "flux"],
            "default": "local",
            "description": "What starts jobs of several tasks: local, or flux, for MPI and for "
            "jobs of several nodes; 'flux' must be on the PATH of the nodes; default local.",
        },
        "gpus": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "GPUs of each node for jobs; default 0.",
        },
        "memory": {
            "type": ["string", "integer"],
            "description": "Memory of each node for jobs, such as 240G, which is requested from "
            "the queue; default: that of the machine, and nothing is requested.",
        },
        "duration": {
            **_TIME,
            "default": 0,
            "description": "Time limit of each pilot, such as 4h; default: that of the queue.",
        },
        "most": {**_COUNT, "default": 1, "description": "Most pilots at a time; default 1."},
        "least": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "Pilots to keep even if no job waits; default 0.",
        },
        "idle": {
            **_TIME,
            "default": "5m",
            "description": "Time without a job after which a pilot is given back; default 5m.",
        },
        "margin": {
            **_TIME,
            "description": "Part of the duration that is not for jobs: half of it for the start "
            "of a pilot, half for its end; default 2m.",
        },
        "orphan": {
            **_TIME,
            "default": "10m",
            "description": "Time after which a pilot without jobs ends if no controller connects; "
            "default 10m.",
        },
        "backlog": {
            **_COUNT,
            "default": 2,
            "description": "Most pilots that wait in the queue at a time; default 2.",
        },
        "patience": {
            **_TIME,
            "default": "1m",
            "description": "How long a pilot is expected to wait in the queue, until the first one "
            "of this run has started; default 1m.",
        },
        "grace": {
            "type": "number",
            "minimum": 0,
            "default": 5,
            "description": "Seconds between SIGTERM and SIGKILL of a job; default 5.",
        },
        "listen": {
            "type": "string",
            "default": "auto",
            "description": "Address of this machine to which nodes connect: ADDRESS or "
            "ADDRESS:PORT; default: all its addresses, any port.",
        },
        "requeue": {
            "type": "boolean",
            "description": "Whether jobs that had started in a pilot that ended run again, where "
            "it is certain that none of their processes is left; default: only with queue=here.",
        },
        "kinds": {
            "type": ["object", "null"],
            "description": "Several kinds of pilots, by name, each with options as above, except "
            "'listen'. The other options are their defaults. The file's 'pilots' sets this.",
        },
    },
}
#: Options of the whole run.
_OF_RUN = ("listen", "kinds")
#: Schema of an entry under ``pilots:``. The defaults are those of the executor's options.
KIND: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        name: {key: value for key, value in inner.items() if key != "default"}
        for name, inner in OPTIONS["properties"].items()
        if name not in _OF_RUN
    },
}
OPTIONS["properties"]["kinds"]["additionalProperties"] = KIND


def _build(options: Mapping[str, Any]) -> Executor:
    from ensemble_pilot.executor import PilotExecutor

    return PilotExecutor(**options)


def _never(group: JobGroup, options: Mapping[str, Any]) -> tuple[str, str, str] | None:
    from ensemble_pilot.options import never

    return never(group, options)


def _check_kind(name: str, options: Mapping[str, Any]) -> tuple[str, str, str] | None:
    from ensemble_pilot.options import check_kind

    return check_kind(name, options)


def _virtual(
    options: Mapping[str, Any], wait: Callable[[int], float], steered: bool
) -> VirtualPilots:
    from ensemble_pilot.simulation import Virtual

    return Virtual(options, wait, steered)


def _status(folder: Path) -> tuple[Sequence[str], Any]:
    from ensemble_pilot.status import pilot_status

    return pilot_status(folder)


def _remains(_: str, folder: Path, end: bool) -> int:
    from ensemble_pilot.leftover_jobs import leftover

    return leftover(folder, end=end)


@hookimpl
def ensemble_executors() -> Iterable[ExecutorPlugin]:
    """Return the executor ``pilot``."""
    return [
        ExecutorPlugin(
            name="pilot",
            summary="Runs jobs inside a few jobs of another queue (pilots)",
            build=_build,
            capabilities=frozenset({"submit", "cancel", "resize", "signal", "reattach", "detach"}),
            options=OPTIONS,
            never=_never,
            kinds=KIND,
            check_kind=_check_kind,
            virtual=_virtual,
            status=_status,
            remains=_remains,
            available=lambda: (False, "select it with --executor pilot"),
        )
    ]
