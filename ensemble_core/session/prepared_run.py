"""A run that is prepared: everything that its controller needs, for a new run and for a resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ensemble_core.model.codec import NOTHING

if TYPE_CHECKING:  # these are loaded while the executor prepares itself
    from ensemble_core.engine.engine import Engine
    from ensemble_core.journal.reusable_jobs import EarlierJobs
    from ensemble_core.model.ensemble import Ensemble
    from ensemble_core.model.events import StopRequested
    from ensemble_core.plugin.executor import Executor
    from ensemble_core.plugin.python_callables import Program
    from ensemble_core.plugin.registry import Registry
    from ensemble_core.runtime.controller import Runtime
    from ensemble_core.runtime.watcher import Watcher
    from ensemble_core.session.controlled_run import ControlledRun
    from ensemble_core.session.executor_choice import ExecutorChoice


class PreparedRun(NamedTuple):
    """Everything that the controller of a run needs."""

    ensemble: Ensemble
    registry: Registry
    choice: ExecutorChoice
    executor: Executor
    tag: str
    output: Path  #: For the output of jobs for which no output file is given.
    #: The run's folder, with its lock and journal; ``None`` without a journal.
    kept: ControlledRun | None
    run_id: str = ""  #: The run's identity. A simulated run has none.
    earlier: EarlierJobs | None = None  #: Jobs of the runs that this run reuses.
    #: Of a resumed run: the engine, recovered from the journal.
    engine: Engine | None = None
    #: Of a run that is resumed only to stop it, for example to cancel its jobs: the stop.
    stop_first: StopRequested | None = None
    #: True if the run had ended and is reopened; ``request``: by which request.
    reopened: bool = False
    request: Mapping[str, Any] | None = None

    def runtime(
        self,
        watchers: Sequence[Watcher],
        *,
        wall: float | None = None,
        program: Program | None = None,
    ) -> Runtime:
        """Build the runtime.

        - ``wall``: the number of seconds after which the run is stopped (default: the file's).
        - ``program``: the callables of the Python program that runs the ensemble.
        """
        from ensemble_core.runtime.controller import Runtime

        kept = self.kept
        runtime = Runtime(
            self.ensemble,
            self.executor,
            actions=self.registry.actions,
            observers=self.registry.observers,
            watchers=watchers,
            folder=self.output,
            tag=self.tag,
            run_id=self.run_id,
            name=self.choice.name,
            journal=kept.journal if kept is not None else None,
            maker=kept.maker if kept is not None else "",
            state=kept.executor_folder if kept is not None else None,
            engine=self.engine,
            wall=wall,
            functions=program.functions if program is not None else NOTHING,
            earlier=self.earlier,
        )
        if self.stop_first is not None:
            runtime.stop_first(self.stop_first)
        runtime.reopened = self.reopened
        runtime.reopened_by = self.request or NOTHING
        return runtime
