"""Rate-limited runner of Slurm's commands: for the whole run not more than so many a second.

Each has a deadline, an environment in which nothing changes what it prints or does, and a session
of its own, so that Ctrl-C does not break off what slurmctld may have begun. Commands that submit
and commands that ask have a thread each: neither waits for the other.
"""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from ensemble_batch import CommandResult, kill_command, run_command

__all__ = ["Commands", "Then", "job_environment", "query_environment"]

#: What is done with how a command ended.
Then = Callable[[CommandResult], None]

#: Variables of an outer job or launcher: inherited, they would have a job take itself for that one.
_OUTER = ("PMI_", "PMI2_", "PMIX_", "OMPI_COMM_WORLD_", "HYDI_", "SLURM_")
#: What Slurm's commands read themselves from the environment and what is ours to say.
_CHANGING = ("SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_")
_UNWANTED = frozenset(
    {"SBATCH_WAIT", "SBATCH_ARRAY_INX", "SBATCH_EXPORT", "SBATCH_OPEN_MODE", "SBATCH_REQUEUE"}
    | {"SBATCH_NO_REQUEUE", "SBATCH_JOB_NAME", "SBATCH_OUTPUT", "SBATCH_ERROR", "SBATCH_INPUT"}
)
#: Those of Slurm's variables that say where it is.
_WHERE = frozenset({"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_CONF_SERVER"})
#: Commands that may follow one another at once before the rate counts.
_BURST = 10


def job_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment that jobs start from: this one, without an outer job's."""
    return {
        name: value
        for name, value in environment.items()
        if name in _WHERE or not (name.startswith((*_OUTER, *_CHANGING)) or name in _UNWANTED)
    }


def query_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for commands that ask: times in seconds since the epoch, plain words."""
    found = {
        name: value
        for name, value in environment.items()
        if name in _WHERE or not name.startswith(("SLURM_", "SBATCH_", *_CHANGING))
    }
    # Jobs are looked for where sbatch puts them.
    if "SBATCH_CLUSTERS" in environment:
        found["SLURM_CLUSTERS"] = environment["SBATCH_CLUSTERS"]
    return {**found, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


class _Lane:
    """A thread that runs one command after the other."""

    def __init__(self, name: str, gate: Callable[[], bool], post: Callable[..., None]) -> None:
        self._gate = gate
        self._post = post
        self._orders: queue.SimpleQueue[tuple[Callable[[], CommandResult], Then] | None] = (
            queue.SimpleQueue()
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.thread = threading.Thread(target=self._work, name=f"slurm {name}", daemon=True)
        self.thread.start()

    def put(self, order: Callable[[], CommandResult], then: Then) -> None:
        self._orders.put((order, then))

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            if not self._gate():
                return
            done = order[0]()
            self.process = None
            self._post(lambda then=order[1], done=done: then(done))

    def end(self) -> None:
        self._orders.put(None)


class Commands:
    """Runs commands on two threads; ``post`` has each result handed on in the loop's own.

    ``rate`` is commands a second, over a burst of ten.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        rate: float,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._asking = query_environment(environment)
        self._submitting = job_environment(environment)
        self._rate = rate
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._budget, self._counted = float(_BURST), time.monotonic()
        self._submit = _Lane("submit", self._gate, post)
        self._ask = _Lane("ask", self._gate, post)

    def _gate(self) -> bool:
        """Wait until another command may be run; ``False`` once closed."""
        with self._lock:
            now = time.monotonic()
            self._budget = min(_BURST, self._budget + (now - self._counted) * self._rate)
            self._counted = now
            self._budget -= 1
            wait = max(0.0, -self._budget / self._rate)
        return not self._closed.wait(wait)

    def submit(
        self,
        words: Sequence[str],
        script: bytes,
        deadline: float,
        then: Then,
    ) -> None:
        """Run ``sbatch`` with a script."""
        environment = self._submitting
        self._submit.put(
            lambda: run_command(words, environment, given=script, deadline=deadline), then
        )

    def ask(self, words: Sequence[str], deadline: float, then: Then) -> None:
        """Run a command that asks or cancels."""
        lane = self._ask

        def began(process: subprocess.Popen[bytes]) -> None:
            lane.process = process
            if self._closed.is_set():
                kill_command(process)

        lane.put(lambda: run_command(words, self._asking, deadline=deadline, began=began), then)

    def close(self) -> None:
        """No more commands. One that asks is killed, one that submits is waited for."""
        self._closed.set()
        for lane in (self._ask, self._submit):
            lane.end()
        process = self._ask.process
        if process is not None:
            kill_command(process)
        for lane in (self._ask, self._submit):
            lane.thread.join()
