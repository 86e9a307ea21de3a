"""Web server of the dashboard: serves the page and the data of runs, read-only.

Data is sent only to requests with the token. Requests whose ``Host`` or ``Origin`` is not this
machine are rejected, so that pages of other sites cannot read anything. Limits on connections keep
other users of this machine from taking all of them, or from filling the disk with error messages.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import resource
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from ensemble_core import EnsembleError, UsageError
from ensemble_core.cli.toolkit import Inspection, KeptRun
from ensemble_dashboard.documents import CLIENT, NAMES, client_file, document, dumps

#: Hours without a request after which a dashboard ends.
_HOURS = 8.0
_LOCAL = ("localhost", "127.0.0.1", "::1")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
#: Maximum number of open runs.
_OPEN = 8
#: Maximum number of cached answers for each run. An answer is cached for ``_REST`` times as long as
#: it took to compute, so that the viewers of a large live run do not occupy a core.
_REMEMBERED, _REST = 64, 10
#: Seconds that a request waits for a new answer. After that, it gets the previous answer or none,
#: and the page asks again.
_PATIENCE = 0.05
#: Documents that do not need all jobs. A separate thread computes them, so that they never wait for
#: other documents.
_QUICK = ("overview", "job", "log")
#: Documents to compute as soon as a run is shown, because the page will request them.
_AHEAD: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("jobs", {"where": "{}", "offset": "0", "limit": "100"}),
    *((name, {}) for name in NAMES if name not in _QUICK),
)


@dataclass
class _Answer:
    text: str
    seq: int
    #: Time from which the answer may be computed again.
    until: float
    #: Whether the run has no newer events.
    current: bool = True


class _Runs:
    """Reads the runs that the dashboard shows, in one thread."""

    def __init__(
        self, state: str | None, runs: Callable[[], Sequence[str]], problems: dict[str, str]
    ) -> None:
        self._state = state
        #: Damage found so far, by run. The mapping is shared with other instances; the overview
        #: shows it.
        self._problems = problems
        self.tags = runs
        self._thread = ThreadPoolExecutor(1, "documents")
        #: Runs and their cached answers; the one requested last is the last.
        self._open: OrderedDict[str, tuple[Inspection, dict[Any, _Answer]]] = OrderedDict()
        #: Answers that are being computed.
        self._made: dict[Any, asyncio.Future[_Answer]] = {}

    async def answer(
        self, tag: str, name: str, query: Mapping[str, str], patience: float | None = None
    ) -> _Answer | None:
        """Return an answer.

        If the answer takes longer than ``patience`` seconds, return the previous answer, or
        ``None`` if none is cached.
        """
        key = (name, *sorted(query.items()))
        made = self._made.get((tag, key))
        if made is None:
            made = self._made[tag, key] = asyncio.ensure_future(self._make(tag, key, query))
            made.add_done_callback(partial(self._is_made, tag, key))
        if (await asyncio.wait([made], timeout=patience))[0]:
            return made.result()
        opened = self._open.get(tag)
        kept = None if opened is None else opened[1].get(key)
        return None if kept is None else replace(kept, current=False)

    def _is_made(self, tag: str, key: Any, made: asyncio.Future[_Answer]) -> None:
        self._made.pop((tag, key), None)
        if not made.cancelled():
            made.exception()  # mark it as retrieved, in case no request waits

    async def _make(self, tag: str, key: Any, query: Mapping[str, str]) -> _Answer:
        run = asyncio.get_running_loop().run_in_executor
        return await run(self._thread, self._answer, tag, key, query)

    def _answer(self, tag: str, key: Any, query: Mapping[str, str]) -> _Answer:
        inspection, answers = self._opened(tag)
        # For each request: the page may know of an event from the other instance, and would not
        # ask again for a document that lacks this event.
        inspection.refresh()
        name, kept, now = key[0], answers.get(key), time.monotonic()
        # These documents change without an event; the timeline does so while the run is active.
        changes = name in ("overview", "log") or (
            name == "timeline" and inspection.state == "running"
        )
        if kept is None or ((changes or kept.seq != inspection.seq) and now >= kept.until):
            if len(answers) >= _REMEMBERED:
                answers.clear()
            data = document(inspection, name, query)
            if inspection.problem:
                self._problems[tag] = inspection.problem
            if name == "overview":
                data["problem"] = data["problem"] or self._problems.get(tag, "")
            text, done = dumps(data), time.monotonic()
            kept = answers[key] = _Answer(text, inspection.seq, done + _REST * (done - now))
        return replace(kept, current=kept.seq == inspection.seq)

    def _opened(self, tag: str) -> tuple[Inspection, dict[Any, _Answer]]:
        if tag not in self._open:
            if tag not in self.tags():
                raise UsageError(
                    f"this dashboard does not show the run {tag!r}", code="no-such-run"
                )
            if len(self._open) >= _OPEN:
                self._open.popitem(last=False)[1][0].__exit__()
            inspection = Inspection(KeptRun(self._state, tag, salvage=True))
            self._open[tag] = (inspection, {})
        self._open.move_to_end(tag)
        return self._open[tag]


def application(
    state: str | None, runs: Callable[[], Sequence[str]], token: str, seen: Callable[[], None]
) -> Starlette:
    """Return the server.

    The callback ``runs`` returns the tags of the runs to show. The callback ``seen`` is called for
    each request that has the token.
    """
    problems: dict[str, str] = {}
    quick, thorough = _Runs(state, runs, problems), _Runs(state, runs, problems)
    ahead: dict[str, asyncio.Task[None]] = {}

    async def read_ahead(tag: str) -> None:
        # Compute one at a time, so that requests can come in between.
        for name, query in _AHEAD:
            with suppress(EnsembleError):
                await thorough.answer(tag, name, query)

    def refusal(request: Request) -> tuple[int, str] | None:
        try:
            host = urlsplit(f"//{request.headers.get('host', '')}").hostname
        except ValueError:
            host = None
        origin = request.headers.get("origin")
        if host not in _LOCAL:
            return 421, "the host is not one of this machine's own names"
        if origin is not None and origin != f"http://{request.headers['host']}":
            return 403, "the request is from a page of another site"
        return None

    def authorized(request: Request) -> bool:
        given = request.headers.get("authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {token}".encode())

    async def page(request: Request) -> Response:
        if (refused := refusal(request)) is not None:
            return _error(*refused)
        name = request.path_params.get("name") or "index.html"
        if name not in CLIENT:
            return _error(404, "no such page")
        return Response(client_file(name), headers={**_HEADERS, "Content-Type": CLIENT[name]})

    async def api(request: Request) -> Response:
        if (refused := refusal(request)) is not None:
            return _error(*refused)
        if not authorized(request):
            return _error(401, "the token is missing or wrong")
        seen()
        tag, name = request.path_params.get("tag"), request.path_params.get("name")
        try:
            if tag is None or name is None:
                return _response(200, dumps(await asyncio.to_thread(runs)))
            chosen = quick if name in _QUICK else thorough
            answer = await chosen.answer(tag, name, dict(request.query_params), _PATIENCE)
            # Do not start this while the first answer is computed: that answer would take twice as
            # long.
            if answer is not None and tag not in ahead:
                ahead[tag] = asyncio.ensure_future(read_ahead(tag))
        except EnsembleError as error:
            status = 404 if getattr(error, "code", "").startswith("no-such") else 400
            return _error(status, error.what)
        if answer is None:
            return _response(202, "null", again=True)
        return _response(200, answer.text, again=not answer.current)

    return Starlette(
        routes=[
            Route("/api/runs", api, methods=["GET"]),
            Route("/api/runs/{tag}/{name}", api, methods=["GET"]),
            Route("/", page, methods=["GET"]),
            Route("/{name:path}", page, methods=["GET"]),
        ]
    )


def serve(
    listener: socket.socket, state: str | None, runs: Callable[[], Sequence[str]], token: str
) -> None:
    """Serve these runs until Ctrl-C, or until no page has requested data for some hours."""
    seen = [time.monotonic()]

    def note_request() -> None:
        seen[0] = time.monotonic()

    app = application(state, runs, token, note_request)
    config = uvicorn.Config(
        app, http=GuardedConnection, log_level="error", access_log=False, lifespan="off"
    )
    server = uvicorn.Server(config)

    async def serve_while_viewed() -> None:
        async def end_when_idle() -> None:
            while (left := seen[0] + _HOURS * 3600 - time.monotonic()) > 0:
                await asyncio.sleep(left)
            server.should_exit = True

        report_errors_rarely(asyncio.get_running_loop())
        watcher = asyncio.ensure_future(end_when_idle())
        try:
            await server.serve(sockets=[listener])
        finally:
            watcher.cancel()

    # Switch threads often, so that quick replies are not delayed while a large run is read.
    sys.setswitchinterval(0.001)
    with suppress(KeyboardInterrupt):
        asyncio.run(serve_while_viewed())


def _error(status: int, error: str) -> Response:
    return _response(status, dumps({"error": error}))


def _response(status: int, text: str, *, again: bool = False) -> Response:
    """Return a response. The flag ``again`` tells the page to request a newer document."""
    headers = {**_HEADERS, "Retry-After": "1"} if again else _HEADERS
    return Response(text, status, headers=headers, media_type="application/json")


#: Seconds until the first request must be complete.
_FIRST_REQUEST = 10.0
#: Seconds between two error messages.
_PAUSE = 60.0
#: How ``/proc/net/tcp6`` begins an IPv4 address (``::ffff:``).
_MAPPED = "0" * 16 + f"{int.from_bytes(bytes((0, 0, 255, 255)), sys.byteorder):08X}"


def _most_connections() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 256 if limit == resource.RLIM_INFINITY else min(256, limit // 4)


class GuardedConnection(H11Protocol):
    """A connection from this user or root, of which there are at most 256."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Drop the connection of another user, and one too many."""
        super().connection_made(transport)
        if len(self.connections) > _most_connections() or not _is_ours(transport):
            transport.abort()
        else:
            self.loop.call_later(_FIRST_REQUEST, self._expire)

    def _expire(self) -> None:
        if getattr(self, "cycle", None) is None:  # no complete request so far
            self.transport.abort()


def _is_ours(transport: asyncio.Transport) -> bool:
    peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    if not isinstance(own, tuple):
        return True  # a Unix socket, which only this user can open
    uid = uid_of_peer(peer, own) if isinstance(peer, tuple) else None
    return uid is None or uid in (0, os.geteuid())


def uid_of_peer(
    peer: tuple[Any, ...], own: tuple[Any, ...], net: Path = Path("/proc/self/net")
) -> int | None:
    """Return the user id at the other end of a connection on this machine.

    ``peer`` and ``own`` are the addresses and ports of its two ends: other addresses have the same
    ports. Returns ``None`` if the system does not list connections, and -1 if it does not list this
    one, because it has been closed.
    """
    ends = [_end(*peer[:2]), _end(*own[:2])]
    found = None
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(net / name, encoding="ascii") as lines:
            found = -1
            for line in lines:
                fields = line.split()
                if [field.removeprefix(_MAPPED) for field in fields[1:3]] == ends:
                    return int(fields[7])
    return found


def _end(address: str, port: int) -> str:
    """Return one end of a connection as ``/proc/net/tcp`` writes it.

    The address is in four-byte words of native byte order.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    ip = getattr(ip, "ipv4_mapped", None) or ip
    words = (ip.packed[at : at + 4] for at in range(0, len(ip.packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"


def report_errors_rarely(loop: asyncio.AbstractEventLoop) -> None:
    """Print unexpected errors of the server in one line, at most one in a minute."""
    last = -_PAUSE

    def report(loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _PAUSE:
            last = now
            error = context.get("exception")
            what = f"{context['message']}{f': {error}' if error else ''}"
            print(f"warning: {what} (further errors of this minute are not shown)", file=sys.stderr)

    loop.set_exception_handler(report)
