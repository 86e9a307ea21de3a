"""The executor plugin ``flux``. Flux itself is imported only when a run starts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_core import Executor, ExecutorPlugin, Job, Rendered, hookimpl


def _build(options: Mapping[str, Any]) -> Executor:
    from ensemble_flux.executor import FluxExecutor

    return FluxExecutor(**options)


def _available() -> tuple[bool, str]:
    uri = os.environ.get("FLUX_URI")
    if not uri:
        return False, "FLUX_URI is not set: not inside a Flux instance"
    return True, f"FLUX_URI={uri}"


def _inside() -> str:
    # A program that starts an instance, as 'flux batch' and 'flux alloc' do, has no FLUX_JOB_ID.
    job, nodes = os.environ.get("FLUX_JOB_ID"), os.environ.get("FLUX_JOB_NNODES", "1")
    return f"Flux job {job} with {nodes} node{'s' if nodes != '1' else ''}" if job else ""


def _render(job: Job, options: Mapping[str, Any]) -> Rendered:
    import json

    from ensemble_flux.jobspec import Jobspecs

    # Omit the environment of this process, because it may contain secrets.
    own = Jobspecs("RUN", "ID", {}, ".", queue=options.get("queue"), bank=options.get("bank"))
    return Rendered(json.dumps(json.loads(own.write(job)), indent=2), "application/json")


@hookimpl
def ensemble_executors() -> Iterable[ExecutorPlugin]:
    """Return the executor ``flux``."""
    from ensemble_flux.options import JOB_OPTIONS, OPTIONS

    return [
        ExecutorPlugin(
            name="flux",
            summary="Runs jobs in the surrounding Flux instance",
            build=_build,
            capabilities=frozenset({"submit", "cancel", "avoid", "signal", "reattach", "detach"}),
            options=OPTIONS,
            job_options=JOB_OPTIONS,
            shared=True,
            available=_available,
            priority=100,
            grace="Flux's kill-timeout",
            memory="Flux's scheduler does not count memory",
            render=_render,
            inside=_inside,
        )
    ]
