"""The ensemble service: where members (queues) and runs meet. The only package that loads gRPC.

The public names are those in ``__all__``, imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ensemble_service.certificate_authority import init as init_certificates
    from ensemble_service.client import GroupStatus, MemberStatus, ServiceClient
    from ensemble_service.reporter import Reporter
    from ensemble_service.tokens import TokenFile
else:
    _HOMES = {
        "Reporter": ("reporter", "Reporter"),
        "TokenFile": ("tokens", "TokenFile"),
        "init_certificates": ("certificate_authority", "init"),
    }

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        home, own = _HOMES.get(name, ("client", name))
        return getattr(import_module(f"{__name__}.{home}"), own)


__all__ = [
    "GroupStatus",
    "MemberStatus",
    "Reporter",
    "ServiceClient",
    "TokenFile",
    "init_certificates",
]
