"""Task of a pilot on one node: ``python -m ensemble_pilot.node FOLDER`` in the outer queue's job.

It starts a local supervisor, connects to the controller, and copies bytes between the two. The
supervisor is tied to this process: it ends its jobs and exits if this process is gone. If the
controller is gone, the supervisor continues, and this process looks for a controller's address
until one is there.

The end of the pilot is announced by a signal, or it is half of ``margin`` before the time limit of
the pilot. Then the supervisor drains, so that jobs get SIGTERM and their grace.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import shutil
import signal
import socket
import ssl
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ensemble_core import job_environment
from ensemble_core.local.inside_allocation import ALLOCATION_END
from ensemble_core.local.ledger_reader import read_ledger
from ensemble_core.local.leftover_jobs import supervisor_pid
from ensemble_core.local.process_tree import become_subreaper, kill_descendants
from ensemble_core.local.protocol import JOB_FIELDS, VERSION, line
from ensemble_core.local.slots import bindable_cores, machine_memory, visible_gpus
from ensemble_core.local.supervisor_start import StartedSupervisor, address
from ensemble_pilot.credentials import NAME, client_context, token
from ensemble_pilot.flux_start import FLUX, remove_leftovers

#: A heartbeat, which both ends of a connection send. A supervisor, to which it is copied, ignores
#: it.
BEAT = line(["beat"])
#: Number of missed heartbeats after which a connection counts as broken.
SILENT = 4
#: The variable with the rank of a task, for each outer queue.
RANKS = {
    "local": "ENSEMBLE_TASK_RANK",
    "slurm": "SLURM_PROCID",
    "flux": "FLUX_TASK_RANK",
    # Their jobs have one node.
    "pbs": "",
    "gridengine": "",
}
#: Beginnings of the names of variables that describe the pilot's own job to programs in it.
_QUEUE = (
    *("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI_", "PMIX_", "PMI2_", "OMPI_", "PRTE_"),
    *("FLUX_JOB_", "FLUX_TASK_", "FLUX_KVS_", "FLUX_PMI_", "PBS_", "SGE_"),
)
_OWN = (
    *("ENSEMBLE_JOB_ID", "ENSEMBLE_GROUP", "ENSEMBLE_INDEX", "ENSEMBLE_ATTEMPT", "ENSEMBLE_RUN"),
    *("ENSEMBLE_TASK_RANK", "ENSEMBLE_TASK_COUNT", "ENSEMBLE_CORES"),
)
#: Variables with which Grid Engine and PBS describe a job.
_NAMES = frozenset(
    {"JOB_ID", "JOB_NAME", "JOB_SCRIPT", "TASK_ID", "NSLOTS", "NHOSTS", "NQUEUES", "NCPUS", "QUEUE",
     "PE", "PE_HOSTFILE", "RESTARTED", "REQUEST", "REQNAME", "ARC", "ENVIRONMENT"}
)  # fmt: skip
#: Variables that locate the cluster.
_WHERE = frozenset(
    {"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_CONF_SERVER", "PBS_SERVER",
     "PBS_CONF_FILE", "PBS_EXEC", "PBS_HOME", "SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT",
     "SGE_EXECD_PORT", "SGE_CLUSTER_NAME"}
)  # fmt: skip
_PIECE = 1 << 18
#: Seconds between two looks at the controller's address, for a connection, and between attempts.
_LOOK, _CONNECTING, _LONGEST_PAUSE = 5.0, 20.0, 5.0


def without_queue(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what describes the pilot's own job."""
    # On other queues, users may have variables with these names.
    names = _NAMES if {"SGE_TASK_ID", "PBS_JOBID"} & environment.keys() else frozenset()
    return {
        name: value
        for name, value in environment.items()
        if name in _WHERE or not (name.startswith(_QUEUE) or name in names or name in _OWN)
    }


class _Gone(Exception):
    """Raised if a connection has ended."""


class Task:
    """The task of a pilot on this node."""

    def __init__(self, folder: Path) -> None:
        self._plan = json.loads((folder / "pilot.json").read_text())
        plan, nodes = self._plan, self._plan["nodes"]
        self._rank = int(os.environ[plan["rank"]]) if nodes > 1 else 0
        self._folder, self._link = folder, folder.parent / "link"
        self._state = os.path.realpath(folder / f"node-{self._rank}")
        self._began = time.monotonic()
        self._deadline = None
        if plan["duration"]:
            self._deadline = self._began + max(0.0, plan["duration"] - plan["at_end"])
        self._ending = self._drained = self._said_alone = False
        self._connected = time.monotonic()
        self._address: bytes = b""
        self._problem = ""
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._down: socket.socket | None = None
        bound = bindable_cores()
        if 0 < plan["allocated"] < len(bound):  # others may have jobs on any of these cores
            bound = ()
        gpus = visible_gpus(plan["gpus"] or None, os.environ) if plan["gpus"] else ()
        environment = without_queue(job_environment())
        if plan["flux"]:
            flux = shutil.which("flux")
            if flux is None:
                raise OSError("'flux' is not on its PATH, and jobs start through it (inside=flux)")
            environment[FLUX] = flux
        os.environ.clear()
        os.environ.update(environment)
        #: The part of the hello that is known here.
        self._hello: dict[str, Any] = {
            "version": VERSION,
            "job_fields": JOB_FIELDS,
            "tag": plan["tag"],
            "id": plan["id"],
            "environment": environment,
            "folder": plan["start"],
            "output": plan["output"],
            "state": self._state,
            "slots": [plan["cores"]] * 3,
            "gpus": list(gpus),
            "grace": plan["grace"],
            "pool": None,
            "machine": None,
            "bound": list(bound),
            "memory": machine_memory(),
        }

    def run(self) -> None:
        """Serve controllers until the pilot ends."""
        try:
            self._run()
        finally:
            if self._plan["flux"]:
                remove_leftovers()  # of jobs that were killed
            # A pilot works as a whole, or not at all: the tasks of its other nodes look for this.
            with contextlib.suppress(OSError):
                (self._folder / f"gone-{self._rank}").touch()

    def _run(self) -> None:
        become_subreaper()
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for number in ALLOCATION_END:
            signal.signal(number, self._on_signal)
        pause = 0.1
        while not self._over():
            self._check_supervisor()
            try:
                up = self._connect()
            except OSError as error:
                if str(error) != self._problem and pause >= _LONGEST_PAUSE:
                    self._problem = str(error)
                    self._print(f"no connection to the controller: {error}")
                self._wait(pause * random.uniform(0.5, 1.0))
                pause = min(_LONGEST_PAUSE, 2 * pause)
                continue
            pause = 0.1
            with contextlib.suppress(_Gone, OSError), contextlib.closing(up):
                self._serve(up)
            self._connected = time.monotonic()
            self._close_down()

    # The end.

    def _on_signal(self, number: int, _frame: object) -> None:
        self._end(f"got {signal.Signals(number).name}")

    def _end(self, why: str) -> None:
        if self._ending:
            return
        self._ending = True
        self._print(f"the pilot ends: {why}")
        with contextlib.suppress(OSError):
            (self._folder / f"ending-{self._rank}").write_text(repr(time.time()))
        self._drain()

    def _drain(self) -> None:
        """Let the supervisor end its jobs, once there is one."""
        if self._drained:
            return
        if not self._folder_exists():
            # The supervisor cannot be addressed without its file in this folder, and nobody will
            # read how its jobs ended.
            kill_descendants()
            self._drained = True
        elif pid := supervisor_pid(Path(self._state)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            self._drained = True

    def _check_supervisor(self) -> None:
        """If the supervisor was killed, end what it has started, and exit."""
        if supervisor_pid(Path(self._state)) == 0 and _jobs_left():
            kill_descendants()
            self._print("the supervisor of this node's jobs was killed")
            sys.exit(1)

    def _over(self) -> bool:
        """Return True if this process can exit: nothing of its node's jobs is left."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._end("its time limit is near")
        self._look_for_end()
        alone = time.monotonic() - self._connected >= self._plan["orphan"]
        if self._ending:
            self._drain()
        elif not alone:
            return False
        if supervisor_pid(Path(self._state)):
            if alone and not self._said_alone:
                self._said_alone = True
                self._print("no controller has connected; the jobs go on")
            return False
        self._check_supervisor()
        if self._ending:
            return True
        with contextlib.suppress(OSError):
            (self._folder / f"idle-{self._rank}").touch()
        if len(self._marks("idle")) < self._plan["nodes"] and self._folder_exists():
            return False
        self._print("the pilot ends: no controller has connected, and no job is left")
        return True

    def _folder_exists(self) -> bool:
        """Return False if the run's files were removed: no controller can come any more."""
        try:
            self._folder.stat()
        except FileNotFoundError:
            return False
        except OSError:
            pass  # the file system is away
        return True

    def _marks(self, what: str) -> list[int]:
        """Return the ranks of the nodes whose tasks have left this file in the pilot's folder."""
        with contextlib.suppress(OSError):
            names = os.listdir(self._folder)
            return [rank for rank in range(self._plan["nodes"]) if f"{what}-{rank}" in names]
        return []

    def _look_for_end(self) -> None:
        """Look whether the pilot counts as ended, or another of its nodes has ended."""
        if self._ending:
            return
        if os.path.exists(self._folder / "fence"):
            self._end("it counts as ended")
        elif gone := self._marks("gone"):
            self._end(f"its node {gone[0]} has ended")
        elif self._plan["flux"] and (ending := self._marks("ending")):
            # Its jobs may have tasks here, which have the same time to end.
            self._end(f"its node {ending[0]} ends")

    def _print(self, text: str) -> None:
        print(f"pilot {self._plan['number']}, node {self._rank}: {text}", file=sys.stderr)

    def _wait(self, seconds: float) -> None:
        select.select([self._woken], [], [], seconds)
        self._read_woken()

    def _read_woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)

    # The controller.

    def _connect(self) -> ssl.SSLSocket:
        """Return a connection to the controller. Raises :class:`OSError`."""
        text = (self._link / "address.json").read_bytes()
        context = client_context(self._link)
        problem: OSError = OSError("the controller has no address")
        for host, port in json.loads(text)["addresses"]:
            try:
                plain = socket.create_connection((host, port), _CONNECTING)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                up = context.wrap_socket(plain, server_hostname=NAME)
            except OSError as error:
                problem = error
                continue
            self._address = text
            return up
        raise problem

    def _serve(self, up: ssl.SSLSocket) -> None:
        plan, hello = self._plan, self._hello
        first = {
            "pilot": plan["number"],
            "rank": self._rank,
            "token": token(self._link, plan["number"], self._rank),
            "version": VERSION,
            "job_fields": list(JOB_FIELDS),
            "host": socket.gethostname(),
            "age": time.monotonic() - self._began,
            "cores": hello["slots"][0],
            "gpus": len(hello["gpus"]),
            "memory": hello["memory"],
        }
        up.settimeout(_CONNECTING)
        up.sendall(line(["node", first]))
        # Nothing follows this line before the supervisor has answered.
        answer = b""
        while not answer.endswith(b"\n"):
            piece = up.recv(_PIECE)
            if not piece:
                raise _Gone
            answer += piece
        what, said = json.loads(answer)
        if what == "leave":
            self._print(f"the controller has no use for this pilot: {said}")
            self._end("the controller has no use for it")
            self._wait_for_supervisor()
            raise _Gone
        with contextlib.suppress(OSError):
            (self._folder / f"idle-{self._rank}").unlink()
        down = self._down = self._supervisor()
        clock = [said["clock"], time.monotonic()]
        down.sendall(line(["hello", {**hello, "clock": clock}]))
        up.settimeout(60)
        down.settimeout(60)
        self._copy(up, down)

    def _copy(self, up: ssl.SSLSocket, down: socket.socket) -> None:
        """Copy lines both ways until one side ends, or another controller has taken over."""
        poll = select.poll()
        for each in (up, down, self._woken):
            poll.register(each, select.POLLIN)
        looked = heard = told = time.monotonic()
        heartbeat, unfinished = self._plan["heartbeat"], b""
        while True:
            now = time.monotonic()
            if self._deadline is not None and now >= self._deadline:
                self._end("its time limit is near")
            if self._ending:
                self._drain()
            if now - looked >= _LOOK:
                looked = now
                self._look_for_end()
                with contextlib.suppress(OSError):
                    if (self._link / "address.json").read_bytes() != self._address:
                        raise _Gone
            if now - heard >= SILENT * heartbeat:
                self._print("no word from the controller: connecting again")
                raise _Gone
            if now - told >= heartbeat:
                told = now
                up.sendall(BEAT)
            rest = min(_LOOK, heartbeat)
            if self._deadline is not None and not self._ending:
                rest = max(0.0, min(rest, self._deadline - now))
            ready = {fd for fd, _ in poll.poll(1000 * rest + 1)}
            if self._woken.fileno() in ready:
                self._read_woken()
            if down.fileno() in ready:
                piece = down.recv(_PIECE)
                if not piece:
                    raise _Gone
                # Only whole lines, because a heartbeat may follow.
                whole, newline, unfinished = (unfinished + piece).rpartition(b"\n")
                up.sendall(whole + newline)
            while up.fileno() in ready:
                piece = up.recv(_PIECE)
                if not piece:
                    raise _Gone
                heard = time.monotonic()
                down.sendall(piece)
                if not up.pending():
                    break

    # The supervisor.

    def _supervisor(self) -> socket.socket:
        """Return a socket to the node's supervisor. Start the supervisor if there is none."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect("\0" + address(self._plan["id"], Path(self._state)))
        except ConnectionRefusedError:
            sock.close()
            if self._ending:
                raise _Gone from None
            self._check_supervisor()
            if read_ledger(Path(self._state), {}).unfinished:
                # Another supervisor could not say how these jobs ended; the controller can.
                self._print("the supervisor of this node has ended, and its jobs with it")
                sys.exit(1)
            started = StartedSupervisor(
                self._plan["tag"],
                Path(self._state),
                self._plan["id"],
                fence=self._folder / "fence",
            )
            return started.sock
        return sock

    def _close_down(self) -> None:
        if self._down is not None:
            self._down.close()
            self._down = None

    def _wait_for_supervisor(self) -> None:
        while supervisor_pid(Path(self._state)):
            self._wait(0.1)


def _jobs_left() -> bool:
    """Return True if a process is left that a supervisor has started."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            children = file.read().split()
    except OSError:
        return True
    for pid in children:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:
            if not file.read().startswith("ens-supervisor"):  # it is about to exit
                return True
    return False


def main() -> None:
    """Run the task of a pilot. The argument is the pilot's folder."""
    try:
        Task(Path(sys.argv[1])).run()
    except (OSError, ValueError, KeyError) as error:
        # A key of the plan that another version writes, or the variable with the task's rank.
        what = f"{error} is missing" if isinstance(error, KeyError) else f"{error}"
        print(f"this pilot cannot work on {socket.gethostname()}: {what}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
