"""Status of a run's pilots, read from the controller's ledger: for ``ensemble status``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ensemble_core.cli.toolkit import format_duration, format_time
from ensemble_pilot.ledger import PilotRecord, Records

#: How many pilots are shown, and how many of them are over at least.
_SHOWN, _PAST_SHOWN = 10, 3
_HOSTS_SHOWN = 4
#: From how many core-seconds on an amount is shown in core-hours.
_HOURS_FROM = 36.0


def nodes_text(hosts: Sequence[str]) -> str:
    """Return the names of some nodes: ``n17, n18 and 6 more``."""
    shown = ", ".join(hosts[:_HOSTS_SHOWN])
    more = len(hosts) - _HOSTS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _state(record: PilotRecord) -> str:
    if record.ended is not None:
        return "ended"
    if record.draining is not None:
        return "draining"
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
    elif record.draining is not None:
        told = f"draining since {format_time(record.draining)}: it gets no more jobs"
    elif record.ready is not None:
        hosts = f" on {nodes_text(record.hosts)}" if record.hosts else ""
        told = f"ready since {format_time(record.ready)}{hosts}"
    elif record.began is not None:
        told = f"starting since {format_time(record.began)}"
    else:
        told = f"waiting in the queue since {format_time(record.requested)}"
    kind = f" {record.kind}" if record.kind else ""
    return f"  pilot {number}{kind}{job} {told}"


def pilot_status(folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Return the pilots of a run as lines, and as data. ``folder`` is ``Run.state``.

    A pilot counts as it was when a controller last looked. Raises :class:`ExecutorError` if the
    ledger is damaged.
    """
    records = Records(folder / "pilots.log")
    every = {**records.past, **records.pilots}
    (given, used), counted = records.core_seconds, records.counted
    whole = {
        "core_hours": given / 3600,
        "used_core_hours": used / 3600,
        "counted_until": counted,
        "none_requested": records.why_none or None,
    }
    if not every:
        return [" pilots      none requested"], {**whole, "pilots": []}
    names = ("waiting", "starting", "ready", "draining", "ended")
    counts = [(sum(_state(each) == name for each in every.values()), name) for name in names]
    shown = ", ".join(f"{count} {name}" for count, name in counts if count)
    lines = [f" pilots      {len(every)} requested: {shown}"]
    if given:
        until = f"until {format_time(counted)}, " if counted else ""
        lines.append(f"  {until}{use_text(given, used)}")
    if records.why_none:
        lines.append(f"  no other one is requested: {records.why_none}")
    live, past = list(records.pilots.items()), list(records.past.items())
    live = live[: max(_SHOWN - len(past), _SHOWN - _PAST_SHOWN)]
    listed = [*live, *reversed(past[len(live) - _SHOWN :])]
    lines += [_text(number, record) for number, record in listed]
    if len(listed) < len(every):
        lines.append(f"  and {len(every) - len(listed)} more; --json has them all")
    data = [
        {
            "pilot": number,
            "kind": record.kind or None,
            "state": _state(record),
            "queue_id": record.queue_id or None,
            "cores": record.cores,
            "core_hours": record.given / 3600,
            "used_core_hours": record.used / 3600,
            "requested": record.requested,
            "began": record.began,
            "ready": record.ready,
            "draining": record.draining,
            "hosts": list(record.hosts),
            "ended": record.ended,
            "why": record.why or None,
        }
        for number, record in sorted(every.items())
    ]
    return lines, {**whole, "pilots": data}


def use_text(given: float, used: float) -> str:
    """Return how many core-seconds pilots have had, and how many of them jobs have used."""
    share = min(1.0, used / given)
    (whole, unit), (part, smaller) = _amount(given), _amount(used)
    part += f" {smaller}" if smaller != unit and part != "0" else ""
    return f"pilots had {whole} {unit}; jobs used {part} of them ({share:.0%})"


def _amount(core_seconds: float) -> tuple[str, str]:
    """Return an amount without an exponent, and its unit."""
    hours = core_seconds >= _HOURS_FROM
    value = core_seconds / 3600 if hours else round(core_seconds, 2)
    text = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
    return text, "core-hours" if hours else "core-seconds"
