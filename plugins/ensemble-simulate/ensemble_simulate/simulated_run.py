"""Simulates one run, and shows and keeps it like a real one. It cannot be resumed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ensemble_core import ExecutorPlugin
from ensemble_core.cli.toolkit import (
    ControlledRun,
    Display,
    ExecutorChoice,
    PreparedRun,
    RunSession,
    fit_tag,
    new_tag,
    print_warning,
    state_folder,
)
from ensemble_simulate.virtual_runtime import VirtualRuntime, open_look_up

if TYPE_CHECKING:
    from ensemble_core import EnsembleError, VirtualExecutor
    from ensemble_core.cli.toolkit import Call, Ensemble, Profile, Purpose, Registry, Watcher


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
    reuse: Sequence[str] = (),
    profile: Profile | None = None,
) -> int:
    """Simulate an ensemble on this executor and show the run. Return the exit code.

    - ``said``: description of the executor for the first line of output
    - ``tag``: tag of the run; created if missing
    - ``until``: maximum length of the run in seconds
    - ``takes``, ``answers``, ``purpose``: as in ``VirtualRuntime``
    - ``reuse``: earlier runs whose results are reused
    - ``profile``: the profile with which the ensemble was loaded
    """
    record = ExecutorPlugin(name="simulated", summary="", build=lambda options: executor)
    if profile is not None:
        said = f"{said}; profile {profile.name} without its executor"
    choice = ExecutorChoice("simulated", record, "", said, profile=profile)
    tag = tag or new_tag(fit_tag(f"{ensemble.name}-simulated"))
    home = state_folder(state)
    folders: tuple[str, ...] = ()
    earlier: Mapping[str, Any] = {}  # the executor of the earlier runs
    look_up = None
    if reuse:
        folders, earlier, look_up = open_look_up(home, reuse, ensemble, print_warning)
    ensemble = ensemble.begun(tag, os.getcwd(), folders, earlier)
    began = float(int(time.time()))
    session = RunSession(ensemble, choice, display)
    output = home / "runs" / tag / "output"

    def run(kept: ControlledRun | None) -> int:
        def make(watchers: Sequence[Watcher]) -> VirtualRuntime:
            return VirtualRuntime(
                ensemble,
                executor,
                actions=registry.actions,
                watchers=watchers,
                folder=output,
                tag=tag,
                journal=kept.journal if kept is not None else None,
                maker=kept.maker if kept is not None else "",
                began=began,
                until=began + until,
                takes=takes,
                answers=answers,
                purpose=purpose,
                look_up=look_up,
            )

        prepared = PreparedRun(ensemble, registry, choice, executor, tag, output, kept)
        return session.run(prepared, make=make)

    if not keep:
        return run(None)
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
        **({"reuse": list(folders)} if folders else {}),
        **({"profile": profile.described()} if profile else {}),
    }
    with ControlledRun.new(
        home, about, registry, text, list(overrides), executor, ensemble.attached
    ) as kept:
        return run(kept)
