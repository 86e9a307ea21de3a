"""The ensemble service connects runs with members: queues elsewhere, each with an agent that runs
jobs there. This is the only package that loads gRPC.

How an event gets from a member to a run, module by module:

1. In the member's agent, ``hosted_run`` takes the event from the queue's executor. If the event is
   a row or a problem, ``kept_events`` writes it to disk, because the executor would not report it
   again to a restarted agent.
2. ``event_stream.Outbox`` numbers the event and keeps it until it is acknowledged. ``agent`` sends
   it.
3. At the service, ``streams`` receives the event, ``router`` finds the run, and ``send_queue``
   bounds the backlog. The service stores nothing.
4. At the run, ``connection`` receives the event, and ``remote_executor`` passes it to the member's
   ``member_proxy`` (``received``), which calls the following modules. ``event_stream.Inbox`` drops
   the event if its number has arrived before.
5. ``event_admission`` drops events that a member may not report. ``member_jobs`` drops job events
   that a restarted agent repeats. The remaining events go to the run through ``remote_executor``,
   and are then acknowledged.

If an event reaches the run twice, look at ``event_stream``. There, ``Inbox.new`` drops events whose
number has already arrived, and ``Inbox.is_repeated`` drops rows and problems that a restarted agent
sends again from ``kept_events``. Job events that it repeats are dropped by ``member_jobs``.

The public names are those in ``__all__``. Each is imported on first use.
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
