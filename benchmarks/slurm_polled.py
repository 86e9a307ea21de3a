"""Slurm with jobs that report through files, compared with ensemble-slurm's network reports.

`PolledSlurm` is an executor for Slurm on BatchExecutor with claims, like ensemble-gridengine for
Grid Engine. Unlike the plugin, it does not support accounting, requeued jobs, several nodes or site
configuration. Each round runs the same jobs through both on one cluster, and measures

- requests to slurmctld (by sdiag) per 1,000 jobs;
- milliseconds from the end of a job's command to our event;
- jobs per second, from the submit to the last clean.

If SLURM_CONF is not set, a temporary cluster is started, like in the plugin's tests.

    python benchmarks/slurm_polled.py [--jobs N] [--rounds N]
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from ensemble_batch import Batch, BatchExecutor, QueueJob
from ensemble_slurm.executor import SlurmExecutor
from ensemble_slurm.slurm_output import SINFO, read_nodes
from slurm_rate import fixture, requests, settle

from ensemble_core import Event, Executor, ExecutorError, Job, JobEvent, Run

WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED")


class PolledSlurm(BatchExecutor):
    """Slurm executor with claims."""

    name = "slurm"
    most_jobs = 1000
    task_place = "$SLURM_ARRAY_TASK_ID"
    task_id = "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
    own_variables = ("SLURM_", "PMI_", "PMIX_")
    poll = 30.0

    def _said(self, *words: str) -> str:
        code, out, err = self.command(words)
        if code:
            raise ExecutorError(err.strip(), transient="contact" in err or "timed out" in err)
        return out

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        words = ["sbatch", "--parsable", f"--job-name={batch.name}", "-o/dev/null", "-e/dev/null"]
        if len(batch.jobs) > 1:
            words.append(f"--array=1-{len(batch.jobs)}")
        words += [f"--ntasks={batch.job.tasks}", f"--cpus-per-task={batch.job.cores_per_task}"]
        return _ids(self._said(*words, batch.script).split(";")[0].strip(), len(batch.jobs))

    def _rows(self) -> Iterable[list[str]]:
        out = self._said(
            "squeue", "--me", "-har", "-t", "all", "-O", "JobArrayID:40,State:20,Name:80"
        )
        return (
            [line[:40].strip(), line[40:60].strip(), line[60:].strip()] for line in out.splitlines()
        )

    def ask(self, ids: Collection[str]) -> Iterable[QueueJob]:
        for id_, state, _ in self._rows():
            if state in WAITING:
                yield QueueJob(id_, "waiting")
            else:
                yield QueueJob(id_, "running" if state in ("RUNNING", "COMPLETING") else "over")

    def find_batch(self, name: str, size: int) -> Sequence[str] | None:
        found = [re.split("_", id_)[0] for id_, _, called in self._rows() if called == name]
        return _ids(found[0], size) if found else None

    def end_jobs(self, ids: Collection[str]) -> None:
        self._said("scancel", *ids)

    def nodes(self) -> Mapping[str, float]:
        return read_nodes(self._said("sinfo", "--noheader", "--Node", f"--Format={SINFO}"))


def _ids(job: str, size: int) -> list[str]:
    return [job] if size == 1 else [f"{job}_{task}" for task in range(1, size + 1)]


def one(executor: Executor, jobs: int, folder: Path) -> tuple[float, float, list[float]]:
    """Return requests per 1,000 jobs, jobs per second, and milliseconds from ends to events."""
    settle()
    before = requests()
    settle()
    look = requests() - before  # the cost of both queries
    folder.mkdir()
    told: dict[str, float] = {}
    over: set[str] = set()
    done = threading.Event()

    def consume(events: Sequence[Event]) -> None:
        now = time.time()
        for event in events:
            if isinstance(event, JobEvent) and event.name == "finish":
                told[event.job] = now
            elif isinstance(event, JobEvent) and event.name == "clean":
                over.add(event.job)
        if len(over) == jobs:
            done.set()

    made = [
        Job(
            id=f"t.{n}", group="t", index=n,
            command=("bash", "-c", f"date +%s.%N > {folder}/end.{n}"),
        )
        for n in range(jobs)
    ]  # fmt: skip
    before = requests()
    executor.open(Run(f"r-{time.time()}", folder, time.time, folder / "state"), consume)
    began = time.perf_counter()
    executor.submit(made)
    done.wait(600)
    took = time.perf_counter() - began
    executor.close()
    asked = requests() - before - look // 2
    late = [1000 * (told[f"t.{n}"] - float((folder / f"end.{n}").read_text())) for n in range(jobs)]
    return asked * 1000 / jobs, jobs / took, late


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200, help="jobs of a round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    cluster = None
    if "SLURM_CONF" not in os.environ:
        module = fixture()
        missing = module.programs()
        if missing is not None:
            print(f"skipped: {missing} (Debian: apt install slurm-wlm munge)")
            return
        cluster = module.Cluster()
        os.environ.update({k: cluster.environment[k] for k in ("SLURM_CONF", "PATH")})
    kinds = {"plugin": SlurmExecutor, "files": PolledSlurm}
    found: dict[str, list[tuple[float, float, list[float]]]] = {kind: [] for kind in kinds}
    try:
        with tempfile.TemporaryDirectory() as name:
            for turn in range(options.rounds):
                for kind in sorted(kinds, reverse=bool(turn % 2)):
                    executor = kinds[kind]()
                    found[kind].append(
                        one(executor, options.jobs, Path(name, f"{kind[:4]}-{turn}"))
                    )
    finally:
        if cluster is not None:
            cluster.close()
    for kind, rounds in found.items():
        late = sorted(each for _, _, latencies in rounds for each in latencies)
        print(
            f"{kind}: {statistics.median(r[0] for r in rounds):.0f} requests for 1,000 jobs, "
            f"{statistics.median(r[1] for r in rounds):.1f} jobs/s, from an end to its event "
            f"{statistics.median(late):.1f} ms (longest {late[-1]:.0f} ms)"
        )


if __name__ == "__main__":
    main()
