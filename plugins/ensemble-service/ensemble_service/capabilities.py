"""Capabilities of the executor ``remote``, known without loading gRPC."""

from __future__ import annotations

__all__ = ["CAPABILITIES"]

CAPABILITIES = frozenset({"submit", "cancel", "resize", "reattach", "detach"})
