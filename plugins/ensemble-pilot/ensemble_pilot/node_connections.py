"""Connections to the nodes of pilots, at the controller: their messages and their sockets.

A node connects over TLS and sends one line with its name and token. After the answer, the lines are
those between a local supervisor and its controller; the node only copies them. One thread does all
the work, in :meth:`Link.poll`. Only :meth:`Link.wake` may be called from other threads.

Until a peer has named its token, it has :data:`_SECONDS` and :data:`_FIRST_LINE` bytes, and there
are at most :data:`_GUESTS` such peers.

Both ends send a heartbeat each :data:`HEARTBEAT` seconds. A connection that is silent for
:data:`~ensemble_pilot.node.SILENT` heartbeats counts as broken, even if the other end did not
close it.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ensemble_core import Job, JobEvent, Problem
from ensemble_core.local.protocol import JOB_FIELDS, VERSION, Splitter, encode_job, line, to_event
from ensemble_pilot import credentials
from ensemble_pilot.fleet import Fleet
from ensemble_pilot.flux_part import flux_part
from ensemble_pilot.job_tracking import FIRST, Tracking
from ensemble_pilot.ledger import Transaction
from ensemble_pilot.node import BEAT, SILENT
from ensemble_pilot.pilot import Node, Pilot

#: Seconds between two heartbeats.
HEARTBEAT = 15.0

_GUESTS, _SECONDS, _FIRST_LINE = 256, 10.0, 1 << 16
_PIECE = 1 << 18
#: How many jobs a message to a node has at most.
_BATCH = 500


class Connections:
    """The connected nodes. ``on_node`` is called when a node can take jobs.

    Its second argument says whether the node's pilot became ready. ``note`` records a remark about
    a pilot, for the message about its end. Raises :class:`OSError` if the address cannot be used.
    """

    def __init__(
        self,
        transaction: Transaction,
        fleet: Fleet,
        jobs: Tracking,
        folder: Path,
        address: tuple[str, int],
        on_node: Callable[[Node, bool], None],
        note: Callable[[int, str], None],
    ) -> None:
        self._transaction, self._fleet, self._jobs, self._folder = transaction, fleet, jobs, folder
        self._on_node, self._note = on_node, note
        self._peers: dict[tuple[int, int], Peer] = {}
        #: Names in the requests to find jobs that a node has not answered yet.
        self._asked: dict[Peer, list[list[str]]] = {}
        #: Signals to jobs of nodes that are not connected now.
        self._late: dict[Node, list[list[object]]] = {}
        self._hellos: dict[tuple[int, int], Mapping[str, Any]] = {}
        #: The last events of jobs of which other parts are not over.
        self._held: dict[str, JobEvent] = {}
        #: Nodes whose connection has ended since the owner has last emptied this set.
        self.lost: set[Node] = set()
        context = credentials.server_context(folder)
        self.link = Link(address, context, self._on_message, self._on_lost)

    def host(self, node: Node) -> str:
        """Return the name of a node, as it has said it itself."""
        return str(self._hellos.get(node.key, {}).get("host", ""))

    def silence(self, node: Node) -> float:
        """Return for how many seconds a node has sent nothing; 0 if it is not connected."""
        peer = self._peers.get(node.key)
        return 0.0 if peer is None else time.monotonic() - peer.heard

    def submit(self, node: Node, jobs: Sequence[Job]) -> None:
        """Send jobs to a node. If its connection ends before, they are sent at the next one."""
        for begin in range(0, len(jobs), _BATCH):
            batch = [self._part(job, node) for job in jobs[begin : begin + _BATCH]]
            self.tell(node, ["submit", [encode_job(job) for job in batch]])

    def _part(self, job: Job, node: Node) -> Job:
        """Return what a node runs of a job."""
        if not node.pilot.kind.flux or job.nodes == job.tasks == 1:
            return job
        members = self._fleet.members.get(job.id, (node,))
        folder = self._folder.parent / f"pilot-{node.pilot.number}"
        return flux_part(job, members.index(node), folder)

    def tell(self, node: Node, message: list[object], *, later: bool = False) -> None:
        """Send a message to a node. If it is not connected, send it ``later``, or not at all."""
        peer = self._peers.get(node.key)
        if peer in self._asked:
            self.link.send(peer, line(message))
        elif later:
            self._late.setdefault(node, []).append(message)

    def ask(self, node: Node, names: list[str]) -> None:
        """Ask a node for jobs, if it is connected. If not, it is asked when it connects."""
        peer = self._peers.get(node.key)
        if peer in self._asked:
            self._ask(peer, names)

    def drop(self, pilot: Pilot) -> None:
        """End the connections to a pilot. If its nodes connect again, they are told to leave."""
        for node in pilot.nodes:
            self._late.pop(node, None)
            peer = self._peers.get(node.key)
            if peer is not None:
                self.link.drop(peer)

    def _on_message(self, peer: Peer, message: Any) -> None:
        what = message[0]
        node: Node | None = peer.node
        if what == "node" and node is None:
            self._greet(peer, message[1])
        elif node is None:
            self.link.drop(peer)
        elif what == "e":
            if message[3] not in FIRST:
                event = to_event(message)
                assert isinstance(event, JobEvent)
                self._on_event(node, event)
        elif what == "hello":
            self._asked[peer] = []
            peer.listens = True
            self._ask(peer, [name for name in node.jobs if name in self._jobs])
        elif what == "known":
            self._on_known(peer, node, message[1])
        elif what == "recalled":
            if self._peers.get(node.key) is peer:
                self._jobs.recalled([name for name in message[1] if name in node.jobs])
        elif what == "refused":
            if message[1]["code"] != "supervisor-there":  # the supervisor is about to exit
                where = f"node {node.rank} of pilot {node.pilot.number}"
                self._transaction.problem(f"{where}: {message[1]['what']}")
            self.link.drop(peer)
        elif what == "o":
            event = to_event(message)
            if isinstance(event, Problem):
                where = f"node {node.rank} of pilot {node.pilot.number}"
                self._transaction.problem(f"{where}: {event.message}")

    def _on_event(self, node: Node, event: JobEvent) -> None:
        """Deliver an event of a job. Its last one waits until all its parts are over."""
        name, head = event.job, self._fleet.placed.get(event.job)
        if head is not node:
            if event.name == "clean":
                self._end_part(name, node)
        elif event.name == "clean" and self._fleet.has_parts(name):
            self._held[name] = event
            for other in self._fleet.members[name][1:]:  # they end by themselves if they see it
                self.tell(other, ["cancel", [name]])
        else:
            self._jobs.deliver(event)

    def _end_part(self, name: str, node: Node) -> None:
        self._fleet.part_over(name, node)
        if name in self._held and not self._fleet.has_parts(name):
            self._jobs.deliver(self._held.pop(name))

    def _greet(self, peer: Peer, hello: Mapping[str, Any]) -> None:
        number, rank = int(hello["pilot"]), int(hello["rank"])
        right = credentials.token(self._folder, number, rank)
        if not hmac.compare_digest(right, str(hello["token"])):
            self.link.drop(peer)
            return
        node = self._fleet.node(number, rank)
        reason = ""
        if node is None or node.pilot.state not in ("requested", "starting", "ready", "draining"):
            reason = "it counts as ended"
        elif node.pilot.state == "draining":
            reason = "it is given back"
        elif hello["version"] != VERSION or {*JOB_FIELDS}.difference(hello["job_fields"]):
            reason = "it has another version of Ensemble"
            self._note(
                number,
                f"{hello['host']} has another version of Ensemble than this machine: install the "
                "same version of ensemble-core and ensemble-pilot on both",
            )
        if node is None or reason:
            self.link.send(peer, line(["leave", reason]))
            return
        old = self._peers.pop(node.key, None)
        if old is not None:
            self.link.drop(old)
        self.link.accept(peer, node)
        self._peers[node.key] = peer
        # Nothing else is sent until the supervisor has answered, and no job until the node has said
        # which jobs it knows.
        self._hellos[node.key] = hello
        self.link.send(peer, line(["welcome", {"clock": self._transaction.clock()}]))

    def _ask(self, peer: Peer, names: list[str]) -> None:
        """Ask a node for jobs. It answers which of them it knows, and sends their newer events."""
        self._asked[peer].append(names)
        found = {name: self._jobs.get(name) for name in names}
        placed, node = self._fleet.placed, peer.node
        since = {
            name: tracked.newest if placed.get(name) is node else 0.0
            for name, tracked in found.items()
            if tracked is not None
        }
        self.link.send(peer, line(["reattach", since]))

    def _on_known(self, peer: Peer, node: Node, known: Mapping[str, bool]) -> None:
        names = self._asked[peer].pop(0)
        bound = [name for name in names if name in node.jobs]
        # They have never arrived. The node ignores a job that it has had.
        missing = [name for name in bound if not known.get(name)]
        self.submit(node, [node.jobs[name] for name in missing if name not in self._held])
        heads = [name for name in bound if self._fleet.placed[name] is node]
        found = {name: self._jobs.get(name) for name in heads}
        cancelled = [name for name, tracked in found.items() if tracked and tracked.cancelled]
        ended = [name for name in bound if name in self._held and name not in heads]
        cancelled += [name for name in ended if known.get(name)]
        for name in ended:
            if not known.get(name):  # a part that is not needed any more
                self._end_part(name, node)
        if cancelled:
            self.tell(node, ["cancel", cancelled])
        for message in self._late.pop(node, ()):
            self.tell(node, message)
        if not node.connected:
            size, now = self._hellos[node.key], self._transaction.clock()
            if duration := node.pilot.kind.duration:  # the clock of the outer queue may be wrong
                ends = now - size["age"] + duration
                others = any(each.connected for each in node.pilot.nodes)
                node.pilot.ends = min(ends, node.pilot.ends or ends) if others else ends
            became = self._fleet.connect(node, size["cores"], size["gpus"], size["memory"], now)
            self._on_node(node, became)

    def _on_lost(self, peer: Peer) -> None:
        node: Node = peer.node
        self._asked.pop(peer, None)
        if self._peers.get(node.key) is peer:
            del self._peers[node.key]
            self._fleet.disconnect(node)
            self.lost.add(node)


class Peer:
    """A connection. ``node`` is set once the peer has proved which node it is.

    ``listens`` is set once it expects heartbeats. ``heard`` is when it has last sent something.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self.sock = sock
        self.node: Any = None
        self.splitter = Splitter()
        self.unsent: list[bytes] = []
        self.began = self.heard = time.monotonic()
        self.received = 0
        self.listens = False
        self.shaking = True
        self.closed = False


class Link:
    """Listens for nodes. ``on_message`` is called with each message, and ``on_lost`` at the end of
    a connection whose peer has a node.

    Raises :class:`OSError` if the address cannot be used.
    """

    def __init__(
        self,
        address: tuple[str, int],
        context: ssl.SSLContext,
        on_message: Callable[[Peer, Any], None],
        on_lost: Callable[[Peer], None],
    ) -> None:
        self._context, self._on_message, self._on_lost = context, on_message, on_lost
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family, backlog=1024)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._guests: set[Peer] = set()
        self._dirty: set[Peer] = set()
        self._next_beat = time.monotonic() + HEARTBEAT
        self.peers: set[Peer] = set()

    def wake(self) -> None:
        """Let :meth:`poll` return. Safe from any thread."""
        with contextlib.suppress(OSError):  # it is awake, or closed
            os.write(self._wake, b"!")

    def poll(self, timeout: float | None) -> None:
        """Handle what has arrived; wait for it at most ``timeout`` seconds."""
        if self.peers:
            longest = _SECONDS if self._guests else HEARTBEAT
            longest = min(longest, max(0.0, self._next_beat - time.monotonic()))
            timeout = longest if timeout is None else min(longest, timeout)
        for key, mask in self._selector.select(timeout):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj == self._woken:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 1 << 16)
            else:
                peer: Peer = key.data
                if mask & selectors.EVENT_WRITE:
                    self._dirty.add(peer)
                self._read(peer)
        now = time.monotonic()
        for peer in [each for each in self._guests if each.began < now - _SECONDS]:
            self.drop(peer)
        if now >= self._next_beat:
            self._next_beat = now + HEARTBEAT
            self._beat(now)

    def _beat(self, now: float) -> None:
        """Send heartbeats, and end the connections that have been silent for too long."""
        for peer in list(self.peers):
            if peer.heard < now - SILENT * HEARTBEAT:
                self.drop(peer)
            elif peer.listens and not peer.unsent:
                self.send(peer, BEAT)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if len(self._guests) >= _GUESTS:
            sock.close()
            return
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wrapped = self._context.wrap_socket(
                sock, server_side=True, do_handshake_on_connect=False
            )
        except OSError:  # it has been reset already
            sock.close()
            return
        peer = Peer(wrapped)
        self._guests.add(peer)
        self.peers.add(peer)
        self._selector.register(wrapped, selectors.EVENT_READ, peer)

    def _read(self, peer: Peer) -> None:
        try:
            if peer.shaking:
                peer.sock.do_handshake()
                peer.shaking = False
            while not peer.closed:
                piece = peer.sock.recv(_PIECE)
                if not piece:
                    self.drop(peer)
                    return
                peer.received += len(piece)
                peer.heard = time.monotonic()
                for message in peer.splitter.feed(piece):
                    if not peer.closed:
                        self._on_message(peer, message)
                if peer.node is None and peer.received > _FIRST_LINE:
                    self.drop(peer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except (OSError, ValueError, LookupError, TypeError):
            self.drop(peer)

    def accept(self, peer: Peer, node: Any) -> None:
        """Record that a peer has proved which node it is."""
        peer.node = node
        self._guests.discard(peer)

    def send(self, peer: Peer, data: bytes) -> None:
        """Send lines at the next :meth:`flush`."""
        peer.unsent.append(data)
        self._dirty.add(peer)

    def flush(self) -> None:
        """Send what can be sent without waiting."""
        dirty, self._dirty = self._dirty, set()
        for peer in dirty:
            if not peer.closed:
                self._flush(peer)

    def _flush(self, peer: Peer) -> None:
        data = memoryview(b"".join(peer.unsent))
        events = selectors.EVENT_READ
        try:
            while data:
                data = data[peer.sock.send(data[:_PIECE]) :]
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            events |= selectors.EVENT_WRITE
        except OSError:
            self.drop(peer)
            return
        peer.unsent = [bytes(data)] if data else []
        self._selector.modify(peer.sock, events, peer)

    def drop(self, peer: Peer) -> None:
        """Close a connection."""
        if peer.closed:
            return
        peer.closed = True
        self._guests.discard(peer)
        self.peers.discard(peer)
        self._selector.unregister(peer.sock)
        peer.sock.close()
        if peer.node is not None:
            self._on_lost(peer)

    def close(self, patience: float) -> None:
        """Send the rest, and close all connections once the nodes have read it."""
        self._selector.unregister(self._listener)
        self._listener.close()
        deadline = time.monotonic() + patience
        told: set[Peer] = set()
        while self.peers and time.monotonic() < deadline:
            self.flush()
            for peer in [each for each in self.peers - told if not each.unsent]:
                told.add(peer)
                if peer.node is None:
                    self.drop(peer)
                    continue
                with contextlib.suppress(OSError):  # the node closes its end when it has read all
                    socket.socket.shutdown(peer.sock, socket.SHUT_WR)
            if self.peers:
                self.poll(0.1)
        for peer in list(self.peers):
            self.drop(peer)
        self._selector.close()
        wake, self._wake = self._wake, -1
        os.close(self._woken)
        os.close(wake)
