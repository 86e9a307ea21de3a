"""Link: the controller's end of the connections to the nodes of pilots.

A node connects over TLS and sends one line with its name and token. After the answer, the lines are
those between a local supervisor and its controller; the node only copies them. One thread does all
the work of a link, in :meth:`Link.poll`. Only :meth:`Link.wake` may be called from other threads.

Until a peer has named its token, it has :data:`_SECONDS` and :data:`_FIRST_LINE` bytes, and there
are at most :data:`_GUESTS` such peers.

Both ends send a heartbeat each :data:`HEARTBEAT` seconds. A connection that is silent for
:data:`SILENT` heartbeats counts as broken, also if the other end is gone without a word.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from ensemble_core.local.protocol import Splitter, line

#: Seconds between two heartbeats, and after how many of them without a word a connection is broken.
HEARTBEAT, SILENT = 15.0, 4
#: A heartbeat. A supervisor, to which it is copied, ignores it.
BEAT = line(["beat"])

_GUESTS, _SECONDS, _FIRST_LINE = 256, 10.0, 1 << 16
_PIECE = 1 << 18


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
