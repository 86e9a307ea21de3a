"""Encodes events and their decisions for the journal, and decodes them.

In the table ``event_lists``, each value of the column ``list`` is a JSON list of events. Each event
is a list ``[time, type, job, name, data, decisions, more]``, without nulls at the end.

- For a job event, ``data`` is the context, and ``more`` has all other fields.
- For other events, ``data`` has the fields that differ from their defaults.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ensemble_core.model.codec import dumps, layout
from ensemble_core.model.decisions import Decision
from ensemble_core.model.events import Event, JobEvent

#: True if all fields of a job event have a fixed place in a row.
_PLACED = {"timestamp", "job", "name", "context", "ours"}.issuperset(layout(JobEvent).names)


class JournalRow(NamedTuple):
    """An event in the journal."""

    seq: int
    time: float
    type: str
    job: str | None
    name: str | None
    data: Mapping[str, Any] | None
    decisions: str | None  # text of a JSON list
    more: Mapping[str, Any] | None = None

    def event(self) -> Event:
        """Return the row as an event."""
        data: dict[str, Any] = dict(self.data or {})
        if self.type in ("job", "foreign-job"):
            ours = self.type == "job"
            if self.more is None:
                return JobEvent(self.time, self.job or "", self.name or "", data, ours)
            data = {"type": JobEvent.type, "context": data, "ours": ours, **self.more}
        if self.job is not None:
            data["job"] = self.job
        if self.name is not None:
            data["name"] = self.name
        return Event.from_dict({"type": self.type, "timestamp": self.time, **data})


#: Function that encodes a string as JSON.
_quote = json.encoder.encode_basestring_ascii
#: Bound that keeps ``inf`` and ``nan`` out of the fast path, because some JSON parsers reject them.
_HUGE = 1e300


def to_list(event: Event, decisions: Sequence[Decision]) -> list[Any]:
    """Return an event and its decisions as a list, in the form that the journal stores."""
    rest = event.compact()
    row = [rest.pop(key, None) for key in ("timestamp", "type", "job", "name")]
    data, more = rest, {}
    if isinstance(event, JobEvent):
        if not rest.pop("ours", True):
            row[1] = "foreign-job"
        data, more = rest.pop("context", None), rest
    row += [data or None, list(decisions) or None, more or None]
    while len(row) > 4 and row[-1] is None:
        row.pop()
    return row


def event_text(event: Event, decisions: Sequence[Decision] = ()) -> str:
    """Return :func:`to_list` as text. Frequent events have a fast path."""
    time = event.timestamp
    if (
        type(event) is JobEvent
        and event.ours
        and _PLACED
        and type(time) is float
        and -_HUGE < time < _HUGE
    ):
        try:
            head = f'[{time!r},"job",{_quote(event.job)},{_quote(event.name)}'
        except TypeError:  # the name of a plugin's event is not a string
            return dumps(to_list(event, decisions))
        context = event.context
        if not decisions:
            return f"{head},{dumps(context)}]" if context else f"{head}]"
        return f"{head},{dumps([context or None, decisions])[1:]}"
    return dumps(to_list(event, decisions))


def list_text(texts: Sequence[str]) -> str:
    """Join results of :func:`event_text` to a value for the column ``list``."""
    return f"[{','.join(texts)}]"


def decisions_text(decisions: Sequence[Decision]) -> str | None:
    """Encode decisions as text, or return ``None`` without decisions.

    A replay compares these texts.
    """
    return dumps(decisions) if decisions else None


def rows_of(first: int, last: int, text: str, *, plain: bool = False) -> list[JournalRow]:
    """Decode a value of the column ``list``, which has the events ``first`` to ``last``.

    If ``plain`` is true, the decisions are a list instead of text. Raises ``ValueError`` if the
    value is damaged.
    """
    found = json.loads(text)
    if not isinstance(found, list) or len(found) != last - first + 1:
        raise ValueError(f"events {first} to {last} are damaged")
    rows = []
    for seq, item in enumerate(found, start=first):
        time, kind, job, name, data, decisions, more = (*item, None, None, None)[:7]
        if not (
            type(time) in (float, int)
            and type(kind) is str
            and (job is None or type(job) is str)
            and (name is None or type(name) is str)
            and (data is None or type(data) is dict)
        ):
            raise ValueError(f"event {seq} is damaged")
        decided = decisions if plain else dumps(decisions) if decisions else None
        rows.append(JournalRow(seq, time, kind, job, name, data, decided, more))
    return rows
