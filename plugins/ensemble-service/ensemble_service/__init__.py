"""The ensemble service: connects runs with queues on other machines.

The public names are those in ``__all__``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# How an event gets from a member to a run:
#
# 1. Agent: hosted_run takes the event from the executor. event_delivery.KeptEvents writes rows
#    and problems to disk, because the executor would not report them again to a restarted agent.
# 2. Agent: event_delivery.Outbox numbers the event and keeps it until it is acknowledged.
# 3. Service: servicer receives the event, router finds the run, send_queue limits the backlog.
#    Nothing is stored.
# 4. Run: connection, remote_executor, and member_proxy receive the event. event_delivery.Inbox
#    drops it if its number has arrived before.
# 5. Run: event_admission drops what a member may not report, and job events that a restarted agent
#    repeats. The run gets the remaining events, which are then acknowledged.

# Each public name is imported on first use, because gRPC is slow to load.
if TYPE_CHECKING:
    from ensemble_service.access import member_name
    from ensemble_service.certificates import init as init_certificates
    from ensemble_service.client import GroupStatus, MemberStatus, ServiceClient
    from ensemble_service.heartbeats import Reporter
    from ensemble_service.tokens import TokenFile
else:
    _HOMES = {
        "Reporter": ("heartbeats", "Reporter"),
        "TokenFile": ("tokens", "TokenFile"),
        "init_certificates": ("certificates", "init"),
        "member_name": ("access", "member_name"),
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
    "member_name",
]
