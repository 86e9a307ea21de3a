"""Times as the API writes them, from and to seconds since the epoch."""

from __future__ import annotations

from datetime import datetime, timezone

__all__ = ["said", "seconds"]


def said(when: float) -> str:
    """A time as the API writes it."""
    return datetime.fromtimestamp(int(when), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str | None) -> float:
    """The seconds since the epoch of a time that the API wrote; 0 where it is none."""
    try:
        return datetime.fromisoformat((text or "").replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
