"""The dashboard's server: the page, and the documents of the runs that it may show.

It only reads. The page itself has nothing of a run in it and is served to everybody who reaches the
server; documents need the token. Requests whose ``Host`` or ``Origin`` is not this machine are
refused, so that no page of another site can read anything.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ensemble_core import EnsembleError, UsageError
from ensemble_core.cli.toolkit import Inspection, KeptRun
from ensemble_dashboard.documents import NAMES, client_file, document, dumps

__all__ = ["application"]

_LOCAL = ("localhost", "127.0.0.1", "::1")
_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "vendor/htm-preact.js": "text/javascript; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
}
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
#: Seconds in which a run is looked at once, and runs that are open at a time.
_PAUSE, _OPEN = 0.5, 8
#: Answers that are remembered for each run, until it has new events; one that took long to make is
#: kept for so many times as long, so that a large live run does not take a core for its viewers.
_REMEMBERED, _REST = 64, 10
#: Documents that are found without reading all jobs. They have a thread of their own, so that none
#: of them waits for one of the others.
_QUICK = ("overview", "job", "log")
#: What is read ahead when a run is looked at for the first time: what the page asks for.
_AHEAD: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("jobs", {"where": "{}", "offset": "0", "limit": "100"}),
    *((name, {}) for name in NAMES if name not in _QUICK),
    ("jobs", {"limit": "2001"}),
)


@dataclass
class _Answer:
    text: str
    seq: int
    #: When it may be made again.
    until: float


class _Runs:
    """The runs that may be shown. All work is done on one thread, whose journals these are."""

    def __init__(self, state: str | None, runs: Callable[[], Sequence[str]]) -> None:
        self._state = state
        self.tags = runs
        self._thread = ThreadPoolExecutor(1, "documents")
        self._open: dict[str, tuple[Inspection, dict[Any, _Answer]]] = {}
        self._looked: dict[str, float] = {}

    async def answer(self, tag: str, name: str, query: Mapping[str, str]) -> str:
        run = asyncio.get_running_loop().run_in_executor
        return await run(self._thread, partial(self._answer, tag, name, query))

    def _answer(self, tag: str, name: str, query: Mapping[str, str]) -> str:
        inspection, answers = self._opened(tag)
        if time.monotonic() - self._looked.get(tag, 0.0) > _PAUSE:
            inspection.refresh()
            self._looked[tag] = time.monotonic()
        if name in ("overview", "log"):
            return dumps(document(inspection, name, query))
        key, now = (name, *sorted(query.items())), time.monotonic()
        kept = answers.get(key)
        # The timeline of a run that goes on changes without an event.
        same = (
            kept is not None
            and kept.seq == inspection.seq
            and (name != "timeline" or inspection.state != "running")
        )
        if kept is None or (not same and now >= kept.until):
            if len(answers) >= _REMEMBERED:
                answers.clear()
            text, done = dumps(document(inspection, name, query)), time.monotonic()
            kept = _Answer(text, inspection.seq, done + _REST * (done - now))
            answers[key] = kept
        return kept.text

    def _opened(self, tag: str) -> tuple[Inspection, dict[Any, _Answer]]:
        if tag not in self._open:
            if tag not in self.tags():
                raise UsageError(f"this dashboard does not show a run {tag!r}", code="no-such-run")
            if len(self._open) >= _OPEN:
                oldest = min(self._open, key=lambda each: self._looked.get(each, 0.0))
                self._open.pop(oldest)[0].__exit__()
            inspection = Inspection(KeptRun(self._state, tag, salvage=True))
            inspection.rest = _REST
            self._open[tag] = (inspection, {})
        return self._open[tag]


def application(
    state: str | None, runs: Callable[[], Sequence[str]], token: str, seen: Callable[[], None]
) -> Starlette:
    """The server for the runs whose tags ``runs`` returns. ``seen`` is called for each request
    that had the token."""
    quick, thorough = _Runs(state, runs), _Runs(state, runs)
    ahead: dict[str, asyncio.Task[None]] = {}

    async def read_ahead(tag: str) -> None:
        # One at a time: what somebody asks for meanwhile comes in between.
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
            return 421, "this dashboard answers to this machine's own names only"
        if origin is not None and origin != f"http://{request.headers['host']}":
            return 403, "this dashboard answers to its own page only"
        return None

    def authorized(request: Request) -> bool:
        given = request.headers.get("authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {token}".encode())

    async def page(request: Request) -> Response:
        if (refused := refusal(request)) is not None:
            return _answer(*refused)
        name = request.path_params.get("name") or "index.html"
        if name not in _TYPES:
            return _answer(404, "there is no such page")
        return Response(client_file(name), headers={**_HEADERS, "Content-Type": _TYPES[name]})

    async def api(request: Request) -> Response:
        if (refused := refusal(request)) is not None:
            return _answer(*refused)
        if not authorized(request):
            return _answer(401, "the token is missing or wrong")
        seen()
        tag, name = request.path_params.get("tag"), request.path_params.get("name")
        try:
            if tag is None or name is None:
                text = dumps(await asyncio.to_thread(runs))
            else:
                chosen = quick if name in _QUICK else thorough
                text = await chosen.answer(tag, name, dict(request.query_params))
                if tag not in ahead:
                    ahead[tag] = asyncio.ensure_future(read_ahead(tag))
        except EnsembleError as error:
            status = 404 if getattr(error, "code", "").startswith("no-such") else 400
            return _answer(status, error.what)
        return Response(text, headers=_HEADERS, media_type="application/json")

    return Starlette(
        routes=[
            Route("/api/runs", api, methods=["GET"]),
            Route("/api/runs/{tag}/{name}", api, methods=["GET"]),
            Route("/", page, methods=["GET"]),
            Route("/{name:path}", page, methods=["GET"]),
        ]
    )


def _answer(status: int, error: str) -> Response:
    text = dumps({"error": error})
    return Response(text, status, headers=_HEADERS, media_type="application/json")
