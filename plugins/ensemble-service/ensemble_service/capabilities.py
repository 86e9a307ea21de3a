"""Capabilities of the executor ``remote``, in a module that does not load gRPC."""

from __future__ import annotations

CAPABILITIES = frozenset({"submit", "cancel", "resize", "reattach", "detach"})
