"""The ensemble service: where members (queues) and runs meet. The only package that loads gRPC.

The public names are those in ``__all__``, imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ensemble_service.client import GroupStatus, MemberStatus, ServiceClient
else:

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from ensemble_service import client

        return getattr(client, name)


__all__ = ["GroupStatus", "MemberStatus", "ServiceClient"]
