"""The network between the nodes of pilots and the controller fails, and is found to have failed."""

from __future__ import annotations

import json
import selectors
import socket
import struct
import threading
from pathlib import Path

import pytest
from ensemble_pilot import credentials
from ensemble_pilot.node_connections import Link
from ensemble_testing import Session
from ensemble_testing.executor import wait_until
from ensemble_testing.processes import run_and_kill
from pilot_sessions import WORK, controller, new_session

from ensemble_core.local.ledger_reader import read_ledger


class Proxy:
    """A path to the controller that can swallow bytes, as a firewall does that forgets connections.

    It acknowledges what it swallows, and says nothing about it. New connections work again.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._stop, self._stopped = socket.socketpair()
        #: Pairs of connections: from a node, and to the controller.
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        #: Sockets of which nothing is passed on any more.
        self._swallowed: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def swallow(self, up: bool, down: bool) -> None:
        """Pass on nothing more on the connections so far, towards the controller or from it."""
        for node, upstream in list(self._pairs):
            self._swallowed |= {node} if up else set()
            self._swallowed |= {upstream} if down else set()

    @property
    def connections(self) -> int:
        return len(self._pairs)

    def _run(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._server, selectors.EVENT_READ, None)
        selector.register(self._stopped, selectors.EVENT_READ, None)
        while True:
            for key, _ in selector.select():
                if key.fileobj is self._stopped:
                    return
                if key.fileobj is self._server:
                    node, _ = self._server.accept()
                    upstream = socket.create_connection(("127.0.0.1", self._port))
                    self._pairs.append((node, upstream))
                    selector.register(node, selectors.EVENT_READ, upstream)
                    selector.register(upstream, selectors.EVENT_READ, node)
                    continue
                source, other = key.fileobj, key.data
                assert isinstance(source, socket.socket)
                try:
                    piece = source.recv(1 << 16)
                    if source not in self._swallowed:
                        other.sendall(piece)
                        if not piece:
                            other.shutdown(socket.SHUT_WR)
                except OSError:
                    piece = b""
                if not piece:
                    selector.unregister(source)

    def close(self) -> None:
        self._stop.close()
        self._thread.join()
        self._stopped.close()
        self._server.close()
        for pair in self._pairs:
            for each in pair:
                each.close()


def through_proxy(session: Session) -> Proxy:
    """Let the nodes of pilots that are not requested yet connect through a proxy."""
    path = session.folder / "state" / session.tag / "link" / "address.json"
    found = json.loads(path.read_text())
    ((_, port),) = found["addresses"]
    proxy = Proxy(port)
    path.write_text(json.dumps({**found, "addresses": [["127.0.0.1", proxy.port]]}))
    return proxy


@pytest.mark.parametrize("way", ["up", "down", "both"])
def test_connection_that_swallows_bytes_is_replaced_and_events_arrive_once(
    folder: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing reports that it is dead: without heartbeats, both sides would wait forever."""
    monkeypatch.setattr("ensemble_pilot.node_connections.HEARTBEAT", 0.5)
    with new_session(folder) as session:
        proxy = through_proxy(session)
        try:
            job = session.job("sh", "-c", WORK)
            session.submit(job)
            session.wait_for(job, "start")
            before = proxy.connections
            proxy.swallow(up=way != "down", down=way != "up")
            (folder / "go").touch()
            state = folder / "state" / session.tag / "pilot-1" / "node-0"
            wait_until(lambda: read_ledger(state, {}).state(job.id) == "ended")
            session.wait_clean(job)
            assert session.cause(job) == "exit"
            session.check_ended_once()
            wait_until(lambda: proxy.connections > before)
        finally:
            proxy.close()
    assert (folder / "ran").read_text().split() == [job.id]


@pytest.mark.parametrize("resumed", [False, True])
def test_nodes_without_a_route_to_the_controller_are_named_with_the_address(
    folder: Path, resumed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller listens where nodes cannot reach it: from the start, or after a resume."""
    session = new_session(folder, least=1)
    if resumed:
        first = session

        def control() -> None:
            first.__enter__()
            wait_until(lambda: controller(first).gauges["pilots.ready"])

        run_and_kill(control, folder / "trace")
        session = new_session(folder, least=1).resume(first)
    monkeypatch.setattr("ensemble_pilot.outer_queue._CONNECTING", 0.5)
    monkeypatch.setattr("ensemble_pilot.pilot_controller._hosts", lambda address: ["127.0.0.2"])
    with session:
        session.wait(session.problems, "the warning")
        (problem,) = session.problems()
        assert problem.startswith("pilot 1 runs, but its nodes 0 have not been connected to")
        assert "127.0.0.2" in problem
        assert "-o listen=ADDRESS" in problem
        assert str(folder / "state" / session.tag / "pilot-1" / "err") in problem
        assert controller(session).gauges["pilots.ready"] == 0


def test_connection_that_is_reset_before_it_is_accepted_harms_nobody(folder: Path) -> None:
    """As one of a port scanner, or one that the network has cut at this moment."""
    credentials.make(folder)
    link = Link(
        ("127.0.0.1", 0), credentials.server_context(folder), lambda *_: None, lambda _: None
    )
    try:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", link.port)) as sock:
                sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.poll(10.0)
        with socket.create_connection(("127.0.0.1", link.port)):
            link.poll(10.0)
            assert len(link.peers) == 1
    finally:
        link.close(0.0)
