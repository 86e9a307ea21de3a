"""Rate-limited runner of Slurm's commands: for the whole run not more than so many a second.

Each has a deadline, an environment in which nothing changes what it prints or does, and a session
of its own, so that Ctrl-C does not break off what slurmctld may have begun. Commands that submit
and commands that ask have a thread each: neither waits for the other.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["Commands", "Done", "job_environment", "query_environment", "run"]

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


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended. ``code`` is ``None`` where it did not end in time, or never began."""

    code: int | None
    out: str
    err: str

    @property
    def good(self) -> bool:
        return self.code == 0


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


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a command and what it has started, which would keep its output open."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def run(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    given: bytes = b"",
    deadline: float = 30.0,
    began: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> Done:
    """Run a command to its end, or kill it after ``deadline`` seconds. Raises nothing."""
    try:
        process = subprocess.Popen(
            list(words),
            env=dict(environment),
            stdin=subprocess.PIPE if given else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Done(None, "", f"{words[0]}: {error.strerror or error}")
    if began is not None:
        began(process)
    late = False
    with process:
        try:
            out, err = process.communicate(given or None, timeout=deadline)
        except subprocess.TimeoutExpired:
            end(process)
            out, err = process.communicate()
            late = True
    texts = [part.decode("utf-8", "surrogateescape") for part in (out, err)]
    if late:
        texts[1] += f"\nno answer within {deadline:g} s"
    return Done(None if late else process.returncode, texts[0], texts[1])


class _Lane:
    """A thread that runs one command after the other."""

    def __init__(self, name: str, gate: Callable[[], bool], post: Callable[..., None]) -> None:
        self._gate = gate
        self._post = post
        self._orders: queue.SimpleQueue[
            tuple[Callable[[], Done], Callable[[Done], None]] | None
        ] = queue.SimpleQueue()
        self.process: subprocess.Popen[bytes] | None = None
        self.thread = threading.Thread(target=self._work, name=f"slurm {name}", daemon=True)
        self.thread.start()

    def put(self, order: Callable[[], Done], then: Callable[[Done], None]) -> None:
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
        then: Callable[[Done], None],
    ) -> None:
        """Run ``sbatch`` with a script."""
        environment = self._submitting
        self._submit.put(lambda: run(words, environment, given=script, deadline=deadline), then)

    def ask(self, words: Sequence[str], deadline: float, then: Callable[[Done], None]) -> None:
        """Run a command that asks or cancels."""
        lane = self._ask

        def began(process: subprocess.Popen[bytes]) -> None:
            lane.process = process
            if self._closed.is_set():
                end(process)

        lane.put(lambda: run(words, self._asking, deadline=deadline, began=began), then)

    def close(self) -> None:
        """No more commands. One that asks is killed, one that submits is waited for."""
        self._closed.set()
        for lane in (self._ask, self._submit):
            lane.end()
        process = self._ask.process
        if process is not None:
            end(process)
        for lane in (self._ask, self._submit):
            lane.thread.join()
