"""Supervisor: the parent process of local jobs, which survives the controller.

It has one controller at a time. If the controller exits or dies, jobs continue. The supervisor
exits after the last job.

At SIGTERM or another signal of ``ALLOCATION_END``, it *drains*, because a queue sends these signals
to all processes of an allocation that ends. It starts no job, and running jobs end as interrupted.
The supervisor then exits. Waiting jobs stay in the ledger, from where the next supervisor starts
them. Without a ledger, all jobs are cancelled.

In a pilot, it is *tied* to the process that has started it, and *fenced* (see ``fence``). When that
process is gone, or the fence is there, it kills all jobs. It then exits, as after a drain, with a
last line in the ledger that none is left. A job that a pilot ends has no end in the ledger, unless
its exit code is 0: its exit code would not be its own.

Messages are JSON lines. The controller begins with ``["hello",{...}]``, and the supervisor answers
``["hello",{...}]`` or ``["refused",{...}]`` (the fields of an error). Requests are:

- ``["submit",[job,…]]``
- ``["cancel",[id,…]]``
- ``["signal",[id,…],name]``
- ``["resize",request_id,delta,when_busy]``
- ``["reattach",{id:time,…}]``: send the jobs' events after these times. The supervisor first
  answers ``["known",{id:bool,…}]``.
- ``["forget",[id,…]]``: these jobs may be removed from the ledger
- ``["recall",[id,…]]``: drop those of these jobs that wait. The supervisor answers
  ``["recalled",[id,…]]`` with these, which it does not know any more.
- ``["drain",why]``: do the same as at SIGTERM
- ``["close"]``, answered by ``["bye"]``

All other messages of the supervisor are events (see ``protocol``).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble_core.errors import ExecutorError
from ensemble_core.local.inside_allocation import ALLOCATION_END, allocation_process
from ensemble_core.local.ledger import Ledger
from ensemble_core.local.process_tree import become_subreaper, kill_descendants
from ensemble_core.local.protocol import JOB_FIELDS, TIE, VERSION, Splitter, line, to_job
from ensemble_core.local.slots import Slots
from ensemble_core.local.supervisor_loop import SupervisorLoop
from ensemble_core.plugin.executor import Run
from ensemble_core.quick_dataclass import replace

if TYPE_CHECKING:  # most runs have no pilots
    from ensemble_core.local.fence import Fence

#: How many seconds a new connection has to send its hello.
_PATIENCE = 30.0
_SET_NAME = 15
#: How many seconds the loop has to end when the tie is gone. It may hang in a file system.
_HANGING = 10.0
#: How many bytes are received at a time. For each of more than 128 KiB, the C library maps memory
#: and unmaps it, which takes longer than the reading of a short message.
_PIECE = 1 << 16
#: A signal that arrives at the moment when this process begins to wait does not interrupt the wait.
#: Python runs its handler only after the wait, so each wait has at most this many seconds.
_SIGNAL_WAIT = 1.0


def peer(sock: socket.socket) -> tuple[int, int]:
    """Return the process id and user id of the process at the other end of a socket."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid


class Connection:
    """A non-blocking connection. ``on_message`` is called with each message that arrives."""

    def __init__(
        self, sock: socket.socket, splitter: Splitter, on_message: Callable[[Connection, Any], None]
    ) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.pid = peer(sock)[0]
        self._splitter = splitter
        self._on_message = on_message
        self._unsent: list[bytes] = []

    def read(self, *, again: bool = True) -> bool:
        """Read what has arrived. Return False at the end of the connection.

        Without ``again``, do not look for more after a short piece: the poller reports the rest.
        """
        while True:
            try:
                piece = self.sock.recv(_PIECE)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not piece:
                return False
            try:
                for message in self._splitter.feed(piece):
                    self._on_message(self, message)
            except (ValueError, LookupError, TypeError):
                return False  # the sender is not a controller
            if not again and len(piece) < _PIECE:
                return True

    def send(self, texts: Sequence[bytes]) -> bool:
        """Send lines without blocking. Return True if :meth:`send_rest` has to send the rest."""
        self._unsent.extend(texts)
        return self.send_rest()

    def send_rest(self) -> bool:
        if not self._unsent:
            return False
        data = memoryview(b"".join(self._unsent))
        try:
            while data:
                data = data[self.sock.send(data) :]
        except BlockingIOError:
            self._unsent = [bytes(data)]
            return True
        except OSError:
            pass  # the controller has disconnected, which reading also reports
        self._unsent.clear()
        return False


class Supervisor:
    """Accepts controllers, one at a time, and passes their requests to the loop."""

    def __init__(
        self, hello: Mapping[str, Any], listener: socket.socket, fence: str | None = None
    ) -> None:
        self._tag: str = hello["tag"]
        self._state: str | None = hello["state"]
        self._listener: socket.socket | None = listener
        self._controller: Connection | None = None
        self._pidfd = self._allocation = -1
        self._guests: dict[Connection, float] = {}
        run = _run(hello)
        self._size = hello["slots"][0]
        slots, unshared = _slots(hello)
        self._ledger: Ledger | None = None
        if self._state is not None:
            self._ledger = Ledger(self._state, self._tag, run.clock(), run.id)
            run = replace(run, id=self._ledger.run_id)
        self._fence: Fence | None = None
        if fence is not None and self._ledger is not None:
            from ensemble_core.local.fence import Fence

            self._fence = Fence(fence, self._ledger, lambda: self._loop.quit())
        #: From the ledger: if the journal is lost, a controller does not know the identity.
        self._run_id = run.id
        self._loop = SupervisorLoop(
            run,
            self._send,
            slots,
            hello["grace"],
            _environment(hello),
            hello["folder"],
            self._may_end,
            self._ledger,
            self._fence,
        )
        if unshared:
            self._loop.log.problem(
                "jobs may share cores and GPUs with those of other runs, because their pool cannot "
                f"be opened ({unshared}); remove this file, or run with -o pool=none"
            )
        self._loop.poller.on_ready(listener.fileno(), self._accept)

    def keep(self, first: socket.socket, splitter: Splitter, hello: Mapping[str, Any]) -> None:
        """Serve this controller, then others, until no job is left."""
        connection = Connection(first, splitter, self._on_message)
        self._loop.take(("call", lambda: self._welcome(connection, hello)))
        for number in ALLOCATION_END:
            # If a signal is ignored here, jobs must ignore it too.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        self._loop.start()
        if self._fence is not None:
            threading.Thread(target=self._wait_for_tie, name="ensemble-tie", daemon=True).start()
        # They were blocked since the start of this process, so that none is lost. In other threads
        # they stay blocked: Python runs a handler only when a signal interrupts this thread.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ALLOCATION_END)
        while not self._loop.join(_SIGNAL_WAIT):
            pass
        if self._fence is not None and self._ledger is not None:
            self._loop.postpone_unspawned(self._ledger)
            if kill_descendants():
                self._ledger.quit(self._loop.log.clock())
        self._close_listener()
        self._loop.close()

    def _wait_for_tie(self) -> None:
        """Quit when the process to which this one is tied is gone."""
        poll = select.poll()
        poll.register(TIE, select.POLLIN)
        poll.poll()
        self._loop.quit()
        if not self._loop.join(_HANGING):  # it hangs in a file system
            kill_descendants()
            os._exit(1)

    def _on_signal(self, number: int, _frame: object) -> None:
        name = signal.Signals(number).name
        self._loop.post(("drain", f"the supervisor of local jobs got {name}"))

    def _may_end(self) -> bool:
        # While some events are not written, do not exit: they would be lost with this process.
        return self._controller is None and not self._guests and not self._loop.log.failing

    def _close_listener(self) -> None:
        """Close the ledger, then the listener. The next controller will start a new supervisor."""
        if self._ledger is not None:
            self._ledger.close()
        if self._listener is not None:
            self._loop.poller.unregister(self._listener.fileno())
            self._listener.close()
            self._listener = None

    # The loop's thread.

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if peer(sock)[1] != os.getuid():
            sock.close()
            return
        guest = Connection(sock, Splitter(), self._on_message)
        self._guests[guest] = time.monotonic() + _PATIENCE
        self._loop.poller.on_ready(sock.fileno(), lambda: self._ready(guest))
        self._loop.poller.at(time.monotonic() + _PATIENCE, lambda: self._drop_guest(guest))

    def _drop_guest(self, guest: Connection) -> None:
        if self._guests.pop(guest, None) is not None:
            self._loop.poller.unregister(guest.sock.fileno())
            guest.sock.close()

    def _ready(self, connection: Connection) -> None:
        if not connection.read(again=False):
            if connection is self._controller:
                self._disconnect()
            else:
                self._drop_guest(connection)
        elif connection is self._controller:
            self._wait_for(connection, connection.send_rest())

    def _wait_for(self, connection: Connection, unsent: bool) -> None:
        self._loop.poller.on_ready(
            connection.sock.fileno(), lambda: self._ready(connection), unsent
        )

    def _on_message(self, connection: Connection, message: Any) -> None:
        what = message[0]
        if what == "hello":
            hello = message[1]
            self._loop.take(("call", lambda: self._welcome(connection, hello)))
        elif connection is not self._controller:
            return
        elif what == "submit":
            self._loop.take(("submit", [(to_job(data), data) for data in message[1]]))
        elif what == "cancel":
            self._loop.take(("cancel", message[1]))
        elif what == "signal":
            self._loop.take(("signal", message[1], message[2]))
        elif what == "resize":
            self._loop.take(("resize", message[1], message[2], message[3]))
        elif what == "forget":
            self._loop.take(("forget", message[1]))
        elif what == "reattach":
            self._loop.take(
                ("reattach", message[1], lambda known: self._send([line(["known", known])]))
            )
        elif what == "recall":
            self._loop.take(
                ("recall", message[1], lambda names: self._send([line(["recalled", names])]))
            )
        elif what == "drain":
            self._loop.take(("drain", message[1]))
        elif what == "close":
            self._loop.take(("close", self._release_controller))

    def _send(self, texts: Sequence[bytes]) -> None:
        if self._controller is not None and self._controller.send(texts):
            self._wait_for(self._controller, True)

    def _welcome(self, guest: Connection, hello: Mapping[str, Any]) -> None:
        """Accept a controller, once all requests of the previous controller have been carried
        out.
        """
        if self._controller is not None and not self._controller.read():
            self._disconnect()
        if guest.sock.fileno() < 0:
            return
        if self._loop.waiting:  # requests of the previous controller
            self._loop.take(("call", lambda: self._welcome(guest, hello)))
            return
        first = guest not in self._guests
        refusal = self._refusal(hello)
        if refusal is not None:
            guest.send([line(["refused", refusal.to_dict()])])
            self._drop_guest(guest)
            return
        self._guests.pop(guest, None)
        self._controller = guest
        loop = self._loop
        run = replace(_run(hello), id=self._run_id)
        loop.serve(run, _environment(hello), hello["folder"], hello["grace"], self._send)
        if not first:
            self._resize(hello)
        self._watch_controller(guest)
        self._watch_allocation(guest)
        self._wait_for(guest, False)
        loop.log.add_gauges()
        answer = {
            "version": VERSION,
            "pid": os.getpid(),
            "gauges": dict(loop.log.gauges),
            "jobs": loop.jobs,
            "rebooted": self._loop.rebooted,
        }
        self._send([line(["hello", answer])])

    def _refusal(self, hello: Mapping[str, Any]) -> ExecutorError | None:
        if self._loop.draining:
            return ExecutorError(
                "the supervisor of this run's jobs is about to exit",
                cause="the allocation in which it was started ends",
                hint="resume the run when its processes have ended",
                code="supervisor-there",
            )
        if self._controller is not None:
            return ExecutorError(
                "another controller already controls this run",
                cause=f"process {self._controller.pid} of this machine",
                hint=f"wait until that controller exits, or use 'ensemble stop {self._tag}'",
                code="busy-run",
            )
        unknown = sorted({*hello.get("job_fields", ())}.difference(JOB_FIELDS))
        if hello["version"] != VERSION or unknown:
            cause = f"its protocol has version {VERSION}, not {hello['version']}"
            if unknown:
                cause = f"it does not know these fields of a job: {', '.join(unknown)}"
            return ExecutorError(
                "the supervisor of this run's jobs belongs to another version of Ensemble",
                cause=cause,
                hint="resume the run with the version that it was started with",
                code="other-version",
            )
        if hello["tag"] != self._tag or hello["state"] != self._state:
            return ExecutorError(
                f"the jobs of run {self._tag} belong to the state folder {self._state}",
                cause="this run's folder is a copy of it",
                hint="resume the run in that folder, or start a new run",
                code="other-run",
            )
        return None

    def _resize(self, hello: Mapping[str, Any]) -> None:
        """Use the bounds of the new controller, but keep a size that a resize has set."""
        slots = self._loop.slots
        size, smallest, largest = hello["slots"]
        if size != self._size and (self._ledger is None or self._ledger.size is None):
            slots.size = size
        self._size = size
        slots.bound(smallest, largest)
        if not self._loop.active.running:
            slots.gpus = tuple(hello["gpus"])
            slots.free_gpus = list(slots.gpus)
        self._loop.log.add_gauges()

    def _watch_controller(self, guest: Connection) -> None:
        """Watch the process of the controller.

        The connection alone is not enough, because a fork of the controller may keep it open.
        """
        try:
            self._pidfd = os.pidfd_open(guest.pid)
        except (OSError, AttributeError):
            return  # It is in another container. The end of the connection is probably enough.

        def ended() -> None:
            guest.read()
            self._disconnect()

        self._loop.poller.on_ready(self._pidfd, ended)

    def _watch_allocation(self, guest: Connection) -> None:
        """Drain when the allocation of the controller ends.

        Some queues do not track this process, which is a daemon, so it may get no signal.
        """
        found = None if self._allocation >= 0 else allocation_process(guest.pid)
        if found is None:
            return
        try:
            self._allocation = os.pidfd_open(found)
        except (OSError, AttributeError):
            return

        def ended() -> None:
            self._loop.poller.unregister(self._allocation)
            os.close(self._allocation)
            self._allocation = -1
            self._loop.take(("drain", "the allocation has ended"))

        self._loop.poller.on_ready(self._allocation, ended)

    def _disconnect(self) -> None:
        """Handle the end of the controller's connection."""
        controller, self._controller = self._controller, None
        if controller is None:
            return
        if self._pidfd >= 0:
            self._loop.poller.unregister(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self._loop.poller.unregister(controller.sock.fileno())
        controller.sock.close()
        self._loop.take(("call", self._loop.controller_left))

    def _release_controller(self) -> None:
        """Let the controller exit, because the jobs that it wanted to end are over."""
        self._send([line(["bye"])])
        if not self._loop.busy and not self._loop.log.failing and not self._guests:
            # Close the listener before the controller disconnects, so that the next controller
            # starts a new supervisor.
            self._close_listener()
        self._disconnect()


def _slots(hello: Mapping[str, Any]) -> tuple[Slots, str]:
    """Return the slots, and why this run cannot share them with others, or an empty text."""
    pool, machine = hello.get("pool"), hello.get("machine")
    arguments = *hello["slots"], hello["gpus"], hello.get("bound", ()), hello.get("memory")
    if pool is None:
        return Slots(*arguments), ""
    from ensemble_core.local.shared_slots import SharedSlots

    try:
        return SharedSlots(pool, machine, *arguments), ""
    except OSError as error:
        cause = error.strerror or str(error)
        if machine is not None:
            return Slots(*arguments), f"{pool}: {cause}"
        raise ExecutorError(
            f"slots cannot be shared through {pool}",
            cause=cause,
            hint="name a writable file on a file system with locks: -o pool=FILE",
            code="no-pool",
        ) from None


def _run(hello: Mapping[str, Any]) -> Run:
    wall, base = hello["clock"]

    def clock() -> float:
        return wall + (time.monotonic() - base)  # type: ignore[no-any-return]

    late = hello.get("syncs_late", False)
    return Run(hello["tag"], Path(hello["output"]), clock, id=hello["id"], syncs_late=late)


def _environment(hello: Mapping[str, Any]) -> dict[bytes, bytes]:
    return {os.fsencode(key): os.fsencode(value) for key, value in hello["environment"].items()}


def _inherited_socket(*, tied: bool) -> socket.socket:
    """Close all inherited descriptors except the socket to the controller and the tie. Return the
    socket.
    """
    keep = {0, 1, 2}
    if tied:
        os.set_inheritable(TIE, False)
        keep.add(TIE)
    sock = socket.socket(fileno=os.dup(0))
    keep.add(sock.fileno())
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            with contextlib.suppress(OSError):  # the descriptor for listing the folder
                os.close(int(name))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_NAME, b"ens-supervisor", 0, 0, 0)
    return sock


def _hello(sock: socket.socket, splitter: Splitter) -> Mapping[str, Any] | None:
    """Return the controller's first message, or ``None`` if the controller has exited.

    There is no timeout, because loading plugins on a busy machine may take minutes. The
    controller's process is watched too, because a fork of it (a process pool of custom code) may
    keep the socket open.
    """
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    try:
        pidfd = os.pidfd_open(peer(sock)[0])
    except ProcessLookupError:
        return None
    except (OSError, AttributeError):
        pidfd = -1
    else:
        poll.register(pidfd, select.POLLIN)
    try:
        while True:
            if sock.fileno() not in dict(poll.poll()):
                return None
            piece = sock.recv(_PIECE)
            if not piece:
                return None
            for message in splitter.feed(piece):
                hello: Mapping[str, Any] = message[1]
                return hello
    except OSError:
        return None
    finally:
        if pidfd >= 0:
            os.close(pidfd)


def main() -> None:
    """Run the supervisor. ``sys.argv`` has the run's tag, the socket's name and, in a pilot, the
    fence's path.
    """
    _, _, name, *fence = sys.argv
    sock = _inherited_socket(tied=bool(fence))
    splitter = Splitter()
    try:
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind("\0" + name)
        except OSError as error:
            raise ExecutorError(
                "this run already has a supervisor", cause=error.strerror, code="supervisor-there"
            ) from None
        listener.listen(8)
        listener.setblocking(False)
        hello = _hello(sock, splitter)
        if hello is None:
            return
        if not become_subreaper():
            raise ExecutorError(
                "this system has no subreapers, so jobs' processes cannot be tracked",
                cause="prctl(PR_SET_CHILD_SUBREAPER) was refused",
                hint="run on Linux 3.4 or later, with prctl allowed",
                code="no-subreaper",
            )
        # Thousands of waiting jobs are not garbage, so collect less often.
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        supervisor = Supervisor(hello, listener, *fence)
    except ExecutorError as error:
        with contextlib.suppress(OSError):
            sock.sendall(line(["refused", error.to_dict()]))
        return
    supervisor.keep(sock, splitter, hello)
