"""Tests of the action ``ping``, with a server in a thread instead of the network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from ensemble_ping import OPTIONS, PING
from ensemble_testing import ActionContract, ReadmeContract


class Handler(BaseHTTPRequestHandler):
    """Records the posted JSON."""

    posted: list[Any]

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.posted.append(json.loads(self.rfile.read(length)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


class TestPing(ActionContract):
    """The contract of actions, and a test of the request."""

    plugin = PING
    bad_options = ({}, {"url": "example.org"}, {"url": "http://a", "timeout": 0})

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        Handler.posted = []
        with HTTPServer(("127.0.0.1", 0), Handler) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            self.options = {"url": f"http://127.0.0.1:{server.server_port}"}
            yield
            server.shutdown()

    def test_the_event_is_posted(self) -> None:
        PING.run(self.context())
        (posted,) = Handler.posted
        assert posted["rule"] == "rule-1"
        assert posted["event"]["job"] == "sim.0"


class TestReadme(ReadmeContract):
    """The study in the README is valid and shows every option."""

    distribution = "ensemble-ping"
    options = OPTIONS
    tests = Path(__file__).parent
