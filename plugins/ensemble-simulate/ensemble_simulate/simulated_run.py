"""A simulated run, shown and kept as a real one is.

Its journal says that it was simulated, so that nobody resumes it for real.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ensemble_core import ExecutorPlugin
from ensemble_core.cli.toolkit import (
    ControlledRun,
    Display,
    ExecutorChoice,
    RunSession,
    fit_tag,
    new_tag,
    state_folder,
)
from ensemble_simulate.virtual_runtime import VirtualRuntime

if TYPE_CHECKING:
    from ensemble_core import EnsembleError, VirtualExecutor
    from ensemble_core.cli.toolkit import Call, Ensemble, Purpose, Registry

__all__ = ["run_simulated"]


def run_simulated(
    ensemble: Ensemble,
    text: str,
    registry: Registry,
    executor: VirtualExecutor,
    display: Display,
    *,
    said: str,
    tag: str | None = None,
    state: str | None = None,
    keep: bool = True,
    overrides: Sequence[str] = (),
    plugins: Sequence[str] = (),
    until: float = math.inf,
    takes: Callable[[Call], float] = lambda call: 0.0,
    answers: Callable[[Call], Sequence[Mapping[str, Any]] | EnsembleError | None] = (
        lambda call: None
    ),
    purpose: Purpose = "check",
) -> int:
    """Play an ensemble on this executor, and show it; the exit code.

    ``said`` describes the executor in the first line; without a ``tag`` one is made. ``until`` are
    seconds after the begin; ``takes``, ``answers`` and ``purpose`` are those of
    ``VirtualRuntime``.
    """
    record = ExecutorPlugin(name="simulated", summary="", build=lambda options: executor)
    choice = ExecutorChoice("simulated", record, "", said)
    tag = tag or new_tag(fit_tag(f"{ensemble.name}-simulated"))
    ensemble = ensemble.begun(tag, os.getcwd())
    began = float(int(time.time()))
    make = partial(
        VirtualRuntime,
        began=began,
        until=began + until,
        takes=takes,
        answers=answers,
        purpose=purpose,
    )
    session = RunSession(ensemble, choice, display)
    home = state_folder(state)
    output = home / "runs" / tag / "output"
    if not keep:
        return session.run(registry, executor, output, tag, make=make)
    about: Mapping[str, Any] = {
        "tag": tag,
        "name": ensemble.name,
        "file": os.path.abspath(ensemble.file),
        "executor": {"name": "simulated", "options": {}},
        "plugins": [os.path.abspath(plugin) for plugin in plugins],
        "cwd": os.getcwd(),
        "folders": [],
        "output": str(output),
        "shared": False,
        "simulated": True,
    }
    with ControlledRun.new(
        home, about, registry, text, list(overrides), executor, ensemble.attached
    ) as kept:
        return session.run(registry, executor, output, tag, kept, make=make)
