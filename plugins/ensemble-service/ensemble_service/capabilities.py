"""Capabilities of the executor ``remote``.

They have a module of their own, because every run reads them from the plugin's record, and the
module of the executor would load gRPC.
"""

from __future__ import annotations

__all__ = ["CAPABILITIES"]

CAPABILITIES = frozenset({"submit", "cancel", "resize", "reattach", "detach"})
