"""Parses the addresses of notifications: ``bell``, ``desktop``, ``mail:WHO`` and ``webhook:NAME``.

``NAME`` is an environment variable that contains the URL, so the ensemble file and the journal
never contain it. ``webhook:NAME:discord`` also names the message format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def addresses(to: Any) -> tuple[str, ...]:
    """Return the addresses under the action's key ``to:`` as text, without duplicates.

    >>> addresses(["bell", {"mail": "me@uni.edu"}, {"webhook": "HOOK", "format": "discord"}])
    ('bell', 'mail:me@uni.edu', 'webhook:HOOK:discord')
    """
    return tuple(dict.fromkeys(map(_address, to if isinstance(to, (list, tuple)) else (to,))))


def _address(entry: Any) -> str:
    if not isinstance(entry, Mapping):
        return str(entry)
    if "mail" in entry:
        return f"mail:{entry['mail']}"
    form = entry.get("format", "json")
    return f"webhook:{entry['webhook']}" + (f":{form}" if form != "json" else "")


def webhook_of(address: str) -> tuple[str, str] | None:
    """Return the variable and the format of a webhook's address; ``None`` for other addresses."""
    kind, _, rest = address.partition(":")
    name, _, form = rest.partition(":")
    return (name, form or "json") if kind == "webhook" else None
