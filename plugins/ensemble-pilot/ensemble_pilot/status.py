"""Status of a run's pilots, read from the controller's ledger: for ``ensemble status``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ensemble_core.cli.toolkit import format_duration, format_time
from ensemble_pilot.ledger import PilotRecord, Records

__all__ = ["nodes_text", "pilot_status"]

#: How many pilots are shown: of those that are not over, and of those that are.
_LIVE_SHOWN, _PAST_SHOWN = 10, 3
_HOSTS_SHOWN = 4


def nodes_text(hosts: Sequence[str]) -> str:
    """Return the names of some nodes: ``n17, n18 and 6 more``."""
    shown = ", ".join(hosts[:_HOSTS_SHOWN])
    more = len(hosts) - _HOSTS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _state(record: PilotRecord) -> str:
    if record.ended is not None:
        return "ended"
    if record.ready is not None:
        return "ready"
    return "waiting" if record.began is None else "starting"


def _text(number: int, record: PilotRecord) -> str:
    job = f" (job {record.queue_id})" if record.queue_id else ""
    if record.ended is not None:
        lasted = ""
        if record.began is not None:
            lasted = f" after {format_duration(record.ended - record.began)}"
        why = f": {record.why}" if record.why else ""
        told = f"ended at {format_time(record.ended)}{lasted}{why}"
    elif record.ready is not None:
        hosts = f" on {nodes_text(record.hosts)}" if record.hosts else ""
        told = f"ready since {format_time(record.ready)}{hosts}"
    elif record.began is not None:
        told = f"starting since {format_time(record.began)}"
    else:
        told = f"waiting in the queue since {format_time(record.requested)}"
    return f"  pilot {number}{job} {told}"


def pilot_status(folder: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the pilots of a run as lines, and as data. ``folder`` is ``Run.state``.

    A pilot counts as it was when a controller last looked. Raises :class:`ExecutorError` if the
    ledger is damaged.
    """
    records = Records(folder / "pilots.log")
    every = {**records.past, **records.pilots}
    if not every:
        return [" pilots      none requested"], []
    counts = [f"{sum(_state(each) == name for each in every.values())} {name}"
              for name in ("ready", "starting", "waiting", "ended")]  # fmt: skip
    lines = [f" pilots      {', '.join(text for text in counts if not text.startswith('0 '))}"]
    live, past = list(records.pilots.items()), list(records.past.items())
    shown = [*live[:_LIVE_SHOWN], *reversed(past[-_PAST_SHOWN:])]
    lines += [_text(number, record) for number, record in shown]
    if len(shown) < len(every):
        lines.append(f"  and {len(every) - len(shown)} more; --json has them all")
    data = [
        {
            "pilot": number,
            "state": _state(record),
            "queue_id": record.queue_id or None,
            "requested": record.requested,
            "began": record.began,
            "ready": record.ready,
            "hosts": list(record.hosts),
            "ended": record.ended,
            "why": record.why or None,
        }
        for number, record in sorted(every.items())
    ]
    return lines, data
