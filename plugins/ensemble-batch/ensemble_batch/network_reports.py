"""A run whose jobs report over the network: its state, its TCP port, and its shared folder.

The wrapper script of a job reports the result of the job's command. If the queue ended the job,
only the queue reports why. If the controller does not answer, the script writes its report into
the folder.
"""

from __future__ import annotations

import hmac
import os
import re
import resource
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

from ensemble_batch.active_jobs import WrappedRun
from ensemble_batch.job_events import JobLife, Report, end_report, parse_time
from ensemble_batch.job_script import report_script_of
from ensemble_batch.output_files import Place
from ensemble_batch.queue_hooks import QueueHooks, QueueJob
from ensemble_batch.shared_folder import SharedFolder
from ensemble_batch.submission_records import Records
from ensemble_core import Emit, ExecutorError, Job, Run

#: Longest line that is read, in bytes.
LONGEST = 4096

_WORD = "ensemble1"
_JOB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*\.\d+(-\d+)?(~\d+)?", re.ASCII)
_LIFE = re.compile(r"[0-9]{1,9}")
_ID = re.compile(r"[A-Za-z0-9_.\[\]-]+")
#: Exit code of a wrapper script that runs nothing, because its job or batch is in ``void``.
VOIDED = 122

_TAKEN = ".taken"
#: Largest number of bytes to read from a file, and seconds until a file that was read is deleted.
_LARGEST, _WHILE = 64 * 1024, 2.0


class ReportFolder(SharedFolder):
    """Shared folder of one run. Raises :class:`OSError` if it cannot be created.

    - ``address``: where the current controller listens
    - ``token``: the token that each report must contain
    - ``reports``: reports that wrapper scripts could not send
    - ``scripts``: the batches' scripts
    - ``void``: a file for each submission of a batch whose jobs must not run any more
    """

    def __init__(self, folder: str) -> None:
        super().__init__(folder, "reports", "void", "scripts")
        self._reports = os.path.join(folder, "reports")
        self._void = os.path.join(folder, "void")
        #: Number of bytes read of each report file, and when they were read.
        self._read: dict[str, tuple[int, float]] = {}
        self.token = self._token()

    def _token(self) -> str:
        """Return the run's token, the same for all controllers."""
        path = os.path.join(self.folder, "token")
        with suppress(FileNotFoundError), open(path, encoding="ascii") as file:
            token = file.read().strip()
            if token:
                return token
        token = secrets.token_hex(16)
        self.put(path, f"{token}\n".encode())
        return token

    def announce(self, port: int, hosts: Sequence[str]) -> None:
        """Tell wrapper scripts where to report; without ``hosts``, they only write files."""
        self.put(os.path.join(self.folder, "address"), f"{port} {' '.join(hosts)}\n".encode())

    def void(self, name: str) -> None:
        """Prevent the batch of this name from running, in case the queue has accepted it."""
        self.put(os.path.join(self._void, name), b"")

    def is_void(self, *names: str) -> bool:
        """Return whether one of these jobs or batches was prevented from running."""
        return any(os.path.exists(os.path.join(self._void, name)) for name in names)

    def unread_jobs(self) -> set[str]:
        """Return the jobs with reports in files."""
        try:
            names = self.listing("reports")
        except OSError:
            return set()
        return {".".join(name.split(".")[:2]) for name in names}  # GROUP.INDEX.ID

    def reports(self, *, keep: bool = False) -> Iterator[bytes]:
        """Yield the lines that wrappers have written since the last call; some come twice.

        A file is renamed before it is read, so that the next line starts a new file. It is deleted
        a while later, because a wrapper may have opened it just before; with ``keep``, it stays.
        """
        try:
            names = sorted(self.listing("reports"))
        except OSError:
            return
        for name in names:
            path = os.path.join(self._reports, name)
            try:
                if not name.endswith(_TAKEN):
                    # A new name each time, because an earlier file may still exist.
                    taken = f"{path}.{secrets.token_hex(4)}{_TAKEN}"
                    os.rename(path, taken)
                    path = taken
                with open(path, "rb") as file:
                    data = file.read(_LARGEST)
            except OSError:
                continue
            read, since = self._read.get(path, (-1, 0.0))
            now = time.monotonic()
            if read == len(data):
                if now - since > _WHILE and not keep:
                    del self._read[path]
                    with suppress(OSError):
                        os.unlink(path)
                continue
            self._read[path] = (len(data), now)
            yield from data.split(b"\n")[:-1]


_EVERYWHERE = ("0.0.0.0", "::")


class NetworkRun(WrappedRun):
    """A run whose wrapper scripts report over the network, or through files if that fails."""

    ends_copies: ClassVar[bool] = False

    def __init__(
        self,
        hooks: QueueHooks,
        run: Run,
        emit: Emit,
        spool: ReportFolder,
        records: Records,
        places: tuple[str, str],
    ) -> None:
        super().__init__(hooks, run, emit, spool.folder, records, places)
        self.spool = spool
        #: Jobs with reports that no controller had read when this one opened; ``None``: not needed.
        self._unread: set[str] | None = None
        #: Ids of second copies of a job.
        self._twice: set[str] = set()
        self.listener: Listener | None = None
        self.hosts: Sequence[str] = ()
        if hooks.listen is not None:
            self.listener, self.hosts = self._listen(*hooks.listen)
        spool.announce(self.port, self.hosts)

    @property
    def port(self) -> int:
        return 0 if self.listener is None else self.listener.port

    def _listen(self, address: str, port: int) -> tuple[Listener, Sequence[str]]:
        address = address or self._own_address()
        hosts = [address]
        if address in _EVERYWHERE:
            # On a node, a loopback address means the node itself, so use names of this machine.
            hosts = [self._own_address(), socket.gethostname()]
        try:
            return Listener(address, port, self._record_report), hosts
        except OSError as error:
            raise ExecutorError(
                "cannot listen for jobs' reports on this machine",
                cause=error.strerror or str(error),
                hint="name an address of this machine with -o listen=ADDRESS; with -o listen=none, "
                "jobs report only by files in the run's folder",
                code="no-port",
            ) from None

    def _own_address(self) -> str:
        """Return this machine's address in the network of the queue's server or nodes."""
        found = [address_towards(socket.gethostname())]
        for host in self.hooks.faces():
            found.append(address_towards(host))
            if not found[-1].startswith("127.") and found[-1] != "::1":
                return found[-1]
        return found[min(1, len(found) - 1)]

    def script(self, key: str, name: str, orders: Sequence[tuple[Job, Place]]) -> str:
        text = report_script_of(
            name,
            orders,
            tag=self.run.tag,
            folder=self.spool.folder,
            token=self.spool.token,
            port=self.port,
            hosts=self.hosts,
            hooks=self.hooks,
        )
        return self.spool.script(key, text)

    def void(self, name: str) -> None:
        self.spool.void(name)

    def never_runs(self, life: JobLife) -> bool:
        """Return False for a job that has reported: it began before its batch was given up."""
        if self._unread is None:
            self._unread = self.spool.unread_jobs()
        return not life.told and life.job not in self._unread

    # -- what wrappers report ------------------------------------------------------------------

    def _record_report(self, line: bytes) -> bool:
        """Record a report from the network; return whether it was recorded. For the listener's
        thread.
        """
        report = read_report(line, self.spool.token)
        if report is None:
            return False
        with self.lock:
            if self.closed or not (self.sought or report.job in self.lives):
                return False
            if report.kind == "again":
                return self._may_begin(report)
            # The report has just arrived, so our own clock gives its time.
            self.reported(replace(report, at=self.now()))
            self.publish()
            self.lock.notify_all()
            return not self.outlet.unwritten

    def _may_begin(self, report: Report) -> bool:
        """Return whether a job that the queue has restarted may run, because it never began.

        A queue restarts a job that its node could not start, whatever the job's options say.
        """
        self.read()  # an earlier start, which the job could only write to a file
        self.publish()
        life = self.lives.get(report.job)
        known = life is not None and life.queue_id in (None, report.queue_id)
        if life is None or not known or life.over or life.witnessed:
            return False
        return not (life.reported or life.barred or life.cancelled or life.verdict)

    def read(self) -> bool:
        if not self.sought:
            return False
        news = False
        # What cannot be recorded now must reach the next controller.
        for line in self.spool.reports(keep=self.outlet.unwritten):
            report = read_report(line, self.spool.token)
            if report is not None:
                self.reported(report)
                news = True
        return news

    def reported(self, report: Report) -> None:
        """Handle a wrapper's report."""
        if report.kind == "again":
            return
        if report.kind != "start" and report.job in self.lost:
            self.ended_late(self.lost[report.job], report)
        life = self.lives.get(report.job)
        if life is None or life.over:
            return
        now = self.now()
        if life.queue_id is None:
            self.learn(life, report.queue_id)
            if life.cancelled:
                self.cancels.setdefault(report.queue_id, 0.0)
        elif life.queue_id != report.queue_id:
            self.found_twice(life, report.queue_id)
            return
        life.witnessed = life.witnessed or report.kind != "fail"
        if report.life < life.restarts:
            return
        life.arrived(now)
        life.requeued(report.life, self.hooks.name, now, now)
        life.misses, life.absent = 0, 0.0
        if report.kind == "start":
            life.started(report.at, report.host, now)
        else:
            self.end_reported(life, report)

    def found_twice(self, life: JobLife, queue_id: str) -> None:
        if queue_id not in self._twice:
            self._twice.add(queue_id)
            self.cancels[queue_id] = 0.0
            if (sent := self.sent.get(life.key)) is not None:
                self.copies[queue_id] = sent
            self.outlet.warn(
                f"{self.hooks.name} accepted two submissions of the same job: "
                f"cancelling the second one, {queue_id}"
            )

    # -- what the queue says -------------------------------------------------------------------

    def over_in_queue(self, life: JobLife, row: QueueJob) -> bool:
        if row.status == VOIDED << 8 and not (life.verdict or life.reported):
            sent = self.sent.get(life.key)
            if self.spool.is_void(life.job, *(() if sent is None else sent.names)):
                life.verdict = "its submission had been given up when it started: it ran nothing"
        return super().over_in_queue(life, row)

    def bar(self, life: JobLife) -> bool:
        life.barred = life.barred or self.outlet.write(lambda: self.spool.void(life.job))
        return life.barred

    def cancel_on_arrival(self, life: JobLife | None) -> bool:
        return life is not None and not life.over and life.cancelled

    # -- files ---------------------------------------------------------------------------------

    def clear_batch(self, key: str) -> None:
        self.spool.drop_script(key)

    def remove(self) -> None:
        self.spool.remove()


def read_report(line: bytes, token: str) -> Report | None:
    """Parse a line as a report; return ``None`` if it is invalid or lacks the token."""
    if len(line) > LONGEST:
        return None
    words = line.decode("utf-8", "replace").strip().split(" ")
    if len(words) < 6 or words[0] != _WORD:
        return None
    if not hmac.compare_digest(words[1].encode(), token.encode()):
        return None
    job, queue_id, life, kind, *rest = words[2:]
    if not _JOB.fullmatch(job) or not _ID.fullmatch(queue_id) or not _LIFE.fullmatch(life):
        return None
    try:
        made = _report(kind, rest)
    except (ValueError, IndexError):
        return None
    return made and replace(made, job=job, queue_id=queue_id, life=int(life))


def _report(kind: str, words: Sequence[str]) -> Report | None:
    if kind == "again":
        return Report("again", 0.0)
    if kind == "start":
        return Report("start", parse_time(words[0]), host=words[1])
    if kind == "fail":
        note = " ".join(words[3:])
        return Report("fail", parse_time(words[1]), why=words[0], note=note, host=words[2])
    return end_report(*words[:5]) if kind == "end" and len(words) > 4 else None


#: Maximum number of connections, and seconds for each.
_MOST, _SECONDS = 1024, 10.0


def address_towards(host: str) -> str:
    """Return this machine's address on the network route to ``host``. Sends nothing."""
    for name in (host, socket.gethostname()):
        with suppress(OSError, UnicodeError):
            for family, kind, _, _, address in socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM):
                with suppress(OSError), socket.socket(family, kind) as probe:
                    probe.connect(address)
                    return str(probe.getsockname()[0])
    return "127.0.0.1"


class _Connection:
    __slots__ = ("began", "data", "socket")

    def __init__(self, connected: socket.socket, began: float) -> None:
        self.socket = connected
        self.began = began
        self.data = b""


class Listener:
    """Listens on ``address`` and ``port`` (0: any) for one-line reports.

    The callback ``take`` is called with each line and returns whether the report was recorded.
    Raises :class:`OSError` if the address cannot be used.
    """

    def __init__(self, address: str, port: int, take: Callable[[bytes], bool]) -> None:
        self._take = take
        self._connections: dict[int, _Connection] = {}
        # Reserve file descriptors for the run's files and the queue's commands.
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._room = _MOST if limit == resource.RLIM_INFINITY else limit // 4
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((address, port))
            self._socket.listen(1024)
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ, self._accept)
        self._ended, self._end = socket.socketpair()
        self._selector.register(self._ended, selectors.EVENT_READ, lambda: None)

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._socket.accept()
            except OSError:  # no connection, or no free descriptor: it stays in the backlog
                return
            now = time.monotonic()
            most = min(_MOST, self._room)
            if len(self._connections) >= most:
                self._expire(now)
            if len(self._connections) >= most:
                connected.close()
                continue
            connected.setblocking(False)
            connection = _Connection(connected, now)
            self._connections[connected.fileno()] = connection
            self._selector.register(
                connected, selectors.EVENT_READ, lambda each=connection: self._read(each)
            )

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(LONGEST)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        connection.data += data
        line, end, _ = connection.data.partition(b"\n")
        if end:
            # A wrapper that receives no ``ok`` writes its report to a file.
            known = len(line) <= LONGEST and self._take(line)
            with suppress(OSError):
                connection.socket.send(b"ok\n" if known else b"no\n")
        if end or not data or len(connection.data) > LONGEST:
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        del self._connections[connection.socket.fileno()]
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _expire(self, now: float) -> None:
        for connection in list(self._connections.values()):
            if now - connection.began > _SECONDS:
                self._drop(connection)

    def listen(self) -> None:
        """Accept reports until another thread calls :meth:`close`."""
        ended, tidy_at = False, 0.0
        while not ended:
            for key, _ in self._selector.select(_SECONDS):
                ended = ended or key.fileobj is self._ended
                key.data()
            if (now := time.monotonic()) > tidy_at:
                self._expire(now)
                tidy_at = now + 1.0
        for connection in list(self._connections.values()):
            self._drop(connection)
        for each in (self._socket, self._ended, self._selector):
            each.close()

    def close(self) -> None:
        """End :meth:`listen` and release the port."""
        self._end.close()
