"""The executor ``kubernetes``, which runs each job as one ``batch/v1`` Job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

from ensemble_batch import Records

from ensemble_core import Cause, Emit, Executor, ExecutorError, Job, Run, start_folder
from ensemble_kubernetes.api import Api
from ensemble_kubernetes.kubernetes_run import KubernetesRun
from ensemble_kubernetes.manifest import Settings


class KubernetesExecutor(Executor):
    """Runs jobs in Kubernetes."""

    capabilities = frozenset({"submit", "cancel", "avoid", "reattach", "detach"})
    causes: ClassVar[frozenset[Cause]] = frozenset(
        ("exit", "signal", "timeout", "memory", "node-failure", "preempted", "cancelled",
         "submit", "lost")
    )  # fmt: skip
    shared = True
    live_output = False  # logs are copied when jobs end, or, for observers, while they run

    def __init__(
        self,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
        namespace: str | None = None,
        **options: Any,
    ) -> None:
        self._place = (kubeconfig, context, namespace)
        self._settings = Settings.of(options)
        unknown = options.keys() - {each.name for each in fields(Settings)}
        if unknown:
            raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
        self._run: KubernetesRun | None = None

    def open(self, run: Run, emit: Emit) -> None:
        here, folder = start_folder(), os.path.abspath(run.folder)
        api = Api(*self._place)
        place = None
        try:
            api.check()
            if run.state is not None:
                place = os.path.join(os.path.realpath(run.state), "kubernetes")
                os.makedirs(place, exist_ok=True)
            records = Records(place)
        except OSError as error:
            api.release()
            raise ExecutorError(
                f"cannot use the folder in which the executor records its jobs: {place}",
                cause=error.strerror or str(error),
                hint="choose a writable folder with --state",
                code="no-folder",
            ) from None
        except ExecutorError:
            api.release()
            raise
        self._run = KubernetesRun(run, emit, api, records, self._settings, (folder, here))

    def close(self) -> None:
        """Disconnect from the cluster. Submissions in progress finish first. Jobs in the cluster
        continue.
        """
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def _require_open(self) -> KubernetesRun:
        assert self._run is not None
        return self._run

    def submit(self, jobs: Sequence[Job]) -> None:
        self._require_open().submit(jobs)

    def cancel(self, jobs: Sequence[str]) -> None:
        self._require_open().cancel(jobs)

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        return self._require_open().reattach(jobs)

    def forget(self, jobs: Sequence[str]) -> None:
        self._require_open().forget(jobs)

    @property
    def sees_foreign_jobs(self) -> bool:
        """Return False: only the run's own Jobs are watched."""
        return False
