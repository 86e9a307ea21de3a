"""One event with what was decided on it, as the journal has it: to text and back.

The table ``events`` has lists of these. Used by ``recorder.Recorder``, which writes them, by
:class:`ensemble_core.journal.reader.Journal`, which reads them, and by replay, which compares
decisions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ensemble_core.model.decisions import Decision
from ensemble_core.model.events import Event, JobEvent, event_from_dict

__all__ = ["Row", "decisions_text", "event_text", "list_text", "listed", "rows_of"]

#: What a plugin's event holds deeper than this is not kept.
_DEEPEST = 40


class Row(NamedTuple):
    """One event as the journal has it. ``data`` is plain; ``decisions`` is the text of a JSON list,
    or ``None``."""

    seq: int
    time: float
    type: str
    job: str | None
    name: str | None
    data: Mapping[str, Any] | None
    decisions: str | None

    def event(self) -> Event:
        """The event itself."""
        data: dict[str, Any] = dict(self.data or {})
        if self.type in ("job", "stranger"):
            return JobEvent(self.time, self.job or "", self.name or "", data, self.type == "job")
        if self.job is not None:
            data["job"] = self.job
        if self.name is not None:
            data["name"] = self.name
        return event_from_dict({"type": self.type, "timestamp": self.time, **data})


def _plain(value: object) -> object:
    """What JSON does not know, as something that it does."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    item = getattr(value, "item", None)
    if callable(item):  # a number of numpy's
        number = item()
        if isinstance(number, (int, float, str, bool)):
            return number
    return str(value)


#: Text as JSON has it, with its quotation marks.
_quote = json.encoder.encode_basestring_ascii
#: Times beyond are not numbers that every reader of JSON takes (``inf``, ``nan``).
_HUGE = 1e300

_encode_usual = json.JSONEncoder(separators=(",", ":"), default=_plain, check_circular=False).encode


def _tame(value: object, depth: int = 0) -> object:
    """A value of a plugin's that JSON cannot hold, with text for what it cannot: keys that are
    neither text nor numbers, and what is inside itself."""
    if isinstance(value, Mapping) and depth < _DEEPEST:
        return {
            key if isinstance(key, (str, int, float)) or key is None else str(key): _tame(
                item, depth + 1
            )
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)) and depth < _DEEPEST:
        return [_tame(item, depth + 1) for item in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    try:
        plain = _plain(value)
    except Exception:  # a plugin's own class: the journal is written all the same
        return f"<{type(value).__name__}>"
    return plain if isinstance(plain, (str, int, float, bool)) else f"<{type(value).__name__}>"


def _encode(value: object) -> str:
    try:
        return _encode_usual(value)
    except Exception:  # whatever a plugin put into an event: what was decided is to be on record
        return _encode_usual(_tame(value))


def listed(event: Event, decisions: Sequence[Decision]) -> list[Any]:
    """An event and what was decided on it, as the journal's lists have them."""
    if type(event) is JobEvent:
        kind = "job" if event.ours else "stranger"
        row: list[Any] = [event.timestamp, kind, event.job, event.name]
        if event.context:
            row.append(dict(event.context))
    else:
        rest = event.to_dict()
        del rest["timestamp"], rest["type"]
        row = [event.timestamp, event.type, rest.pop("job", None), rest.pop("name", None)]
        if rest:
            row.append(rest)
    if decisions:
        if len(row) == 4:
            row.append(None)
        row.append([decision.compact() for decision in decisions])
    return row


def event_text(event: Event, decisions: Sequence[Decision] = ()) -> str:
    """The same as text. What most events are is written out here, for this is done for each."""
    time = event.timestamp
    if type(event) is JobEvent and event.ours and type(time) is float and -_HUGE < time < _HUGE:
        try:
            head = f'[{time!r},"job",{_quote(event.job)},{_quote(event.name)}'
        except TypeError:  # a plugin's event, with names that are no text
            return _encode(listed(event, decisions))
        context = event.context
        if not decisions:
            return f"{head},{_encode(dict(context))}]" if context else f"{head}]"
        shown = [decision.compact() for decision in decisions]
        return f"{head},{_encode([dict(context) if context else None, shown])[1:]}"
    return _encode(listed(event, decisions))


def list_text(texts: Sequence[str]) -> str:
    """Several of what :func:`event_text` gives, as the column ``list``."""
    return f"[{','.join(texts)}]"


def decisions_text(decisions: Sequence[Decision]) -> str | None:
    """Decisions as replay compares them: to the byte."""
    return _encode([decision.compact() for decision in decisions]) if decisions else None


def _fits(job: object, name: object, data: object) -> bool:
    return (
        (job is None or type(job) is str)
        and (name is None or type(name) is str)
        and (data is None or type(data) is dict)
    )


def rows_of(first: int, last: int, text: str) -> list[Row]:
    """The rows of one list. Raises ``ValueError`` where it is damaged."""
    found = json.loads(text)
    if not isinstance(found, list) or len(found) != last - first + 1:
        raise ValueError(f"events {first} to {last} are not what was written")
    rows = []
    for seq, item in enumerate(found, start=first):
        time, kind, job, name, data, decisions = (*item, None, None)[:6]
        if type(time) not in (float, int) or type(kind) is not str or not _fits(job, name, data):
            raise ValueError(f"event {seq} is not what was written")
        rows.append(
            Row(seq, time, kind, job, name, data, _encode(decisions) if decisions else None)
        )
    return rows
