"""Asynchronous client of the Kubernetes API."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
#: Timeout of a request in seconds, and lifetime of credentials. Kubernetes replaces the token file
#: of a service account long before the token expires.
_TIMEOUT, _FRESH = 30.0, 60.0


class ApiError(Exception):
    """A request that failed."""

    def __init__(self, status: int, message: str, reason: str = "", after: float = 0.0) -> None:
        super().__init__(f"{status} {message}" if status else message)
        #: HTTP status (0: no reply), message and reason, and seconds to wait before a retry.
        self.status, self.message, self.reason, self.after = status, message, reason, after
        self.path = ""  #: target of the request


class Api:
    """Requests of one event loop.

    The callback ``login`` returns kopf's ConnectionInfo. The callback ``count`` gets the HTTP
    method of each request.
    """

    def __init__(
        self,
        login: Callable[[], Any],
        count: Callable[[str], None] = lambda method: None,
    ) -> None:
        self._login = login
        self._count = count
        self._session: aiohttp.ClientSession | None = None
        self._server = ""
        self._logged_in = 0.0

    async def __call__(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """Return the body of the reply. Raises :class:`ApiError`."""
        try:
            try:
                return await self._request(method, path, body, content_type, query)
            except ApiError as error:
                if error.status != 401:
                    raise
            await self.close()
            return await self._request(method, path, body, content_type, query)
        except ApiError as error:
            error.path = path
            raise

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _request(
        self,
        method: str,
        path: str,
        body: object,
        content_type: str,
        query: Mapping[str, str] | None,
    ) -> Any:
        session = self._open()
        self._count(method)
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type}
        try:
            async with session.request(
                method, self._server + path, data=data, params=query, headers=headers
            ) as answer:
                text = await answer.text()
                if answer.status < 400:
                    return json.loads(text)
                raise _error(answer.status, text, answer.headers.get("Retry-After", ""))
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
            raise ApiError(0, f"{method} {path}: {str(error) or type(error).__name__}") from None

    def _open(self) -> aiohttp.ClientSession:
        """Return the session with the current token."""
        now = time.monotonic()
        if self._session is not None and now - self._logged_in < _FRESH:
            return self._session
        info = self._login()
        self._logged_in = now
        token = f"{info.scheme or 'Bearer'} {info.token}" if info.token else ""
        if self._session is not None:
            if token:
                self._session.headers["Authorization"] = token
            return self._session
        self._server = info.server.rstrip("/")
        headers = {"Authorization": token} if token else {}
        limits = aiohttp.TCPConnector(limit=16, ssl=_tls(info))
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
        self._session = aiohttp.ClientSession(connector=limits, timeout=timeout, headers=headers)
        return self._session


def _error(status: int, text: str, after: str) -> ApiError:
    try:
        said = json.loads(text)
        message, reason = str(said.get("message", "")), str(said.get("reason", ""))
    except (ValueError, AttributeError):
        message, reason = text[:300], ""
    return ApiError(status, message, reason, float(after) if after.isdigit() else 0.0)


def _tls(info: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(info.ca_path) if info.ca_path else None)
    if info.ca_data:
        context.load_verify_locations(cadata=_decode(info.ca_data).decode())
    if info.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    with contextlib.ExitStack() as stack:
        certificate = _file(stack, info.certificate_path, info.certificate_data)
        key = _file(stack, info.private_key_path, info.private_key_data)
        if certificate:
            context.load_cert_chain(certificate, key)
    return context


def _decode(data: str | bytes) -> bytes:
    raw = data.encode() if isinstance(data, str) else data
    return raw if raw.lstrip().startswith(b"-----") else base64.b64decode(raw)


def _file(stack: contextlib.ExitStack, path: Any, data: str | bytes | None) -> str | None:
    """Return the path of a certificate or key. If ``data`` is given, write it to a temporary
    file.
    """
    if not data:
        return str(path) if path else None
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ensemble-operator-"))
    found = Path(folder, "pem")
    found.write_bytes(_decode(data))
    return str(found)
