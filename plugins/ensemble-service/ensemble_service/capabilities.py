"""Capabilities of the executor ``remote``, available without loading gRPC."""

from __future__ import annotations

__all__ = ["CAPABILITIES"]

CAPABILITIES = frozenset({"submit", "cancel", "resize", "reattach", "detach"})
