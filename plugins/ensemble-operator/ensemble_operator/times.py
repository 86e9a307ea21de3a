"""Conversion between the Kubernetes API's times and seconds since the epoch."""

from __future__ import annotations

from datetime import datetime, timezone


def format_time(when: float) -> str:
    """Convert seconds since the epoch to the API's time format."""
    return datetime.fromtimestamp(int(when), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str | None) -> float:
    """Return the seconds since the epoch of an API time; 0 if it is invalid."""
    try:
        return datetime.fromisoformat((text or "").replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
