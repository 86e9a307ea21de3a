"""Faults of a queue during ``soak.py --faults``: blind and partial lists, suspended jobs.

Programs first on the PATH replace the queue's command that lists jobs. Add further faults to
``_LISTS`` (what a list shows) or ``_ACTS`` (what others do to a running job). Flux has no such
command: brokers of its instance on this machine are stopped and continued, the leader or another.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

__all__ = ["QueueFaults"]

#: Commands that print the ids of running jobs.
_RUNNING = {
    "slurm": "squeue --noheader --array --states=R --format=%i",
    "gridengine": "qstat -s r | awk 'NR > 2 {print $1}'",
    "pbs": "qselect -s R",
    "flux": "flux jobs --no-header --format={id.f58plain} --filter=running",
}
#: The command that lists jobs with an argument that only lists have, its output without jobs, a
#: filter that removes the first job.
_LISTS = {
    "slurm": ("squeue", "", "", "sed 1d"),
    "gridengine": (
        "qstat", "-xml", "<job_info><queue_info/><job_info/></job_info>",
        "perl -0pe 's{<job_list.*?</job_list>}{}s'",
    ),
    "pbs": (
        "qstat", "-t", "qstat: Unknown Job Id 1.head",
        "perl -0pe 's{Job Id: .*?\\n\\n}{}s'",
    ),
}  # fmt: skip
#: Commands that change a job and undo that.
_ACTS = {
    "slurm": ("scontrol suspend {id}", "scontrol resume {id}"),
    "gridengine": ("qmod -sj {id}", "qmod -usj {id}"),
    "pbs": ("qsig -s suspend {id}", "qsig -s resume {id}"),
    "flux": ("flux job kill -s STOP {id}", "flux job kill -s CONT {id}"),
}
_PROGRAM = """#!/bin/sh
case " $* " in *" {first}"*)
    case $(cat {folder}/mode 2>/dev/null) in
    nothing) printf '%s\\n' '{nothing}'; exit 0 ;;
    partial) {real} "$@" | {partial}; exit ;;
    esac ;;
esac
exec {real} "$@"
"""


class QueueFaults:
    """Troubles a queue from another thread until :meth:`close`."""

    def __init__(self, queue: str, seed: int) -> None:
        self._running = _RUNNING[queue]
        self._acts = _ACTS[queue]
        self._chance = random.Random(f"faults {queue} {seed}")
        self._folder = Path(tempfile.mkdtemp(prefix="ensemble-faults-"))
        self._path = os.environ["PATH"]
        #: Process ids of Flux's brokers, by rank.
        self._brokers: list[int] = []
        if queue == "flux":
            lines = self._run("flux exec -l flux getattr broker.pid").stdout.splitlines()
            pids = (line.split(": ") for line in lines)
            self._brokers = [pid for _, pid in sorted((int(rank), int(pid)) for rank, pid in pids)]
        else:
            self._replace(*_LISTS[queue])
        self.counts: Counter[str] = Counter()
        #: Why the queue refused to continue a job; mostly because it has ended.
        self.refused: Counter[str] = Counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._trouble)
        self._thread.start()

    def _replace(self, name: str, first: str, nothing: str, partial: str) -> None:
        """Put a program that lists no jobs or only some at times first on the PATH."""
        text = _PROGRAM.format(
            first=first, folder=self._folder, nothing=nothing, real=shutil.which(name),
            partial=partial,
        )  # fmt: skip
        program = self._folder / name
        program.write_text(text)
        program.chmod(0o755)
        os.environ["PATH"] = f"{self._folder}{os.pathsep}{self._path}"

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": self._path}
        return subprocess.run(
            ["sh", "-c", command], env=environment, capture_output=True, text=True, check=False
        )

    def _blind(self, kind: str, seconds: float) -> None:
        """Let the queue list nothing or only some jobs for some time."""
        if self._brokers:
            leader, *others = self._brokers
            broker = leader if kind == "nothing" or not others else self._chance.choice(others)
            os.kill(broker, signal.SIGSTOP)
            self._ended.wait(seconds)
            os.kill(broker, signal.SIGCONT)
            return
        mode = self._folder / "mode"
        mode.write_text(kind)
        self._ended.wait(seconds)
        mode.unlink()

    def _trouble(self) -> None:
        while not self._ended.wait(self._chance.uniform(0.5, 3.0)):
            kind = self._chance.choice(("nothing", "partial", "suspend"))
            seconds = self._chance.uniform(0.5, 8.0)
            self.counts[kind] += 1
            if kind != "suspend":
                self._blind(kind, seconds)
                continue
            ids = self._run(self._running).stdout.split()
            if ids:
                id_ = self._chance.choice(ids)
                act, undo = (each.format(id=id_) for each in self._acts)
                self._run(act)
                self._ended.wait(min(seconds, 3.0))
                self._undo(undo)

    def _undo(self, command: str) -> None:
        """Continue a job; repeat that, because a busy queue may refuse, or may not have suspended
        the job yet.
        """
        for seconds in (0.0, 1.0, 2.0, 5.0, 10.0):
            time.sleep(seconds)
            done = self._run(command)
            if done.returncode == 0:
                break
            self.counts["refused"] += 1
            self.refused[(done.stderr or done.stdout).strip()] += 1

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        os.environ["PATH"] = self._path
        with suppress(OSError):
            shutil.rmtree(self._folder)
