"""Direct calls of Flux's C library, for functions that are called for every message.

Flux's Python bindings check and convert every argument, which is too slow for a thousand jobs per
second. Use the direct calls only in the thread of Flux's event loop (the reactor).
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any


class DirectCalls:
    """Calls C functions with futures and reactors of the Python bindings."""

    def __init__(self) -> None:
        core = import_module("_flux._core")
        self._ffi: Any = core.ffi
        self._lib: Any = core.lib
        self._text = self._ffi.new("const char *[1]")
        self._id = self._ffi.new("flux_jobid_t [1]")

    def text(self, future: Any) -> str | None:
        """Return the payload of a response. Raises :class:`OSError` with Flux's message."""
        if self._lib.flux_rpc_get(future.pimpl.handle, self._text) < 0:
            raise self._error(future)
        text = self._text[0]
        return None if text == self._ffi.NULL else self._ffi.string(text).decode()

    def reset(self, future: Any) -> None:
        """Let a stream's future receive the next response.

        The owner must keep a reference to the future.
        """
        self._lib.flux_future_reset(future.pimpl.handle)

    def jobid(self, future: Any) -> int:
        """Return the id of a submitted job. Raises :class:`OSError` with Flux's message."""
        if self._lib.flux_job_submit_get_id(future.pimpl.handle, self._id) < 0:
            raise self._error(future)
        return int(self._id[0])

    def run(self, reactor: Any, flags: int) -> int:
        """Run a reactor. Returns a negative number after an error."""
        return int(self._lib.flux_reactor_run(reactor, flags))

    def _error(self, future: Any) -> OSError:
        number = self._ffi.errno
        text = self._lib.flux_future_error_string(future.pimpl.handle)
        words = "" if text == self._ffi.NULL else self._ffi.string(text).decode()
        return OSError(number, words or os.strerror(number))
