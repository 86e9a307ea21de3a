"""Protocol between controller and supervisor, and format of the supervisor's ledger: JSON lines.

Both ends of the connection and the ledger use these functions; nothing here does any I/O. Fields
of jobs and events are encoded by ``model.codec``. A job's event is
``["e",ID,TIME,NAME,CONTEXT,A,B,MORE]``, cut off after the last that is there: ``A`` and ``B`` are
for the ledger (for ``submit`` the job itself, for ``start`` when its processes were there and
which), ``MORE`` is what else the event says. Other events are ``["o",{...}]``. The id stands first
so that a line can be told from others without reading it all.
"""

from __future__ import annotations

import json
import json.decoder
import json.encoder
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import isfinite
from typing import Any, cast

from ensemble_core.model.codec import NOTHING, dumps, layout
from ensemble_core.model.events import Event, JobEvent
from ensemble_core.model.jobs import Job

__all__ = [
    "JOB_FIELDS",
    "VERSION",
    "Splitter",
    "decode",
    "encode_context",
    "encode_event",
    "encode_job",
    "encode_value",
    "event_head",
    "line",
    "line_job",
    "line_time",
    "to_event",
    "to_job",
]

#: Of the protocol and of the ledger; a supervisor may be older than the controller that finds it.
VERSION = 1
#: The fields of a job in this version of Ensemble. A supervisor that knows fewer of them than the
#: controller refuses it: it would not do what the others ask for.
JOB_FIELDS = layout(Job).names

_quote: Callable[[str], str] = json.encoder.encode_basestring_ascii
decode: Callable[[str], Any] = json.loads

#: What of a job the supervisor does not need.
_NOT_SENT = ("parameters", "observe", "executor", "options")
#: Where a job's event has what else it says.
_MORE_AT = 7
#: Fields of a job's event that have a place of their own in its line.
_PLACED = ("type", "timestamp", "job", "name", "context")
#: Whether there are others, but for ``ours``, which the events of jobs here always are.
_MORE = not {*_PLACED, "ours"}.issuperset(layout(JobEvent).names)
#: Reads a JSON string whose opening quote is before the place: it, and where it ends.
_SCAN: Callable[[str, int], tuple[str, int]] = vars(json.decoder)["scanstring"]


def line(message: object) -> bytes:
    """A message as a line."""
    return dumps(message).encode("ascii") + b"\n"


def encode_job(job: Job) -> dict[str, Any]:
    """A job as plain data, without what is as usual and what the supervisor does not need."""
    data = job.compact()
    for name in _NOT_SENT:
        data.pop(name, None)
    return data


def to_job(data: Mapping[str, Any]) -> Job:
    """The job that :func:`encode_job` wrote."""
    return Job.from_dict({"index": 0, **data})


def encode_event(event: Event, extra: tuple[object, ...] = ()) -> bytes:
    """An event as a line; ``extra`` as for :func:`encode_context`."""
    if not isinstance(event, JobEvent):
        return line(["o", event.compact()])
    if _MORE:
        more = {name: v for name, v in event.compact().items() if name not in _PLACED}
        if more:
            extra = (*(*extra, None, None)[:2], more)
    context = encode_context(event.name, event.context, *extra)
    return f"{event_head(event.job)}{event.timestamp!r},{context}]\n".encode("ascii")


def event_head(job: str) -> str:
    """How the lines of a job's events begin; a time and what :func:`encode_context` makes follow,
    and a bracket closes the line."""
    return f'["e",{_quote(job)},'


def encode_context(name: str, context: Mapping[str, Any] = NOTHING, *extra: object) -> str:
    """A job's event as text, without its job and time; ``extra`` is for the ledger and does not
    reach :func:`to_event`."""
    values = ",".join([f"{_quote(key)}:{_plain(value)}" for key, value in context.items()])
    text = f'"{name}",{{{values}}}'
    for item in extra:
        text += "," + _plain(item)
    return text


@lru_cache(maxsize=1024)
def encode_value(name: str, key: str, value: int) -> str:
    """:func:`encode_context` where there is one value, which mostly is the same for each job."""
    return encode_context(name, {key: value})


def _plain(value: object) -> str:
    """A value as JSON, without the cost of an encoder for the types that contexts mostly hold."""
    kind = type(value)
    if kind is str:
        return _quote(cast(str, value))
    if kind is int or (kind is float and isfinite(cast(float, value))):
        return repr(value)
    if kind is list:
        return f"[{','.join(map(_plain, cast(list[object], value)))}]"
    return dumps(value)


def to_event(message: list[Any]) -> Event:
    """The event of a message that begins with ``e`` or ``o``."""
    if message[0] == "e":
        if len(message) <= _MORE_AT:
            return JobEvent(message[2], message[1], message[3], message[4] or NOTHING)
        _, job, time, name, context = message[:5]
        more = {"timestamp": time, "job": job, "name": name, "context": context}
        return JobEvent.from_dict({**more, **message[_MORE_AT]})
    return Event.from_dict(message[1])


def line_job(text: str) -> str | None:
    """The job of an event's line; ``None`` where it is not a job's."""
    if not text.startswith('["e","'):
        return None
    return _SCAN(text, 6)[0]


def line_time(text: str) -> float:
    """When a job's event was."""
    begin = _SCAN(text, 6)[1] + 1
    return float(text[begin : text.index(",", begin)])


class Splitter:
    """Reads the messages of a stream that comes in pieces."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, piece: bytes) -> list[Any]:
        """The messages that this piece completes. ``ValueError`` where there is none in a line."""
        end = piece.rfind(b"\n")
        if end < 0:
            self._pieces.append(piece)
            return []
        whole = b"".join((*self._pieces, piece[:end]))
        self._pieces = [piece[end + 1 :]] if end + 1 < len(piece) else []
        # All of them at once: to begin with a text costs as much as to read a short one.
        messages: list[Any] = decode("[" + whole.decode("ascii").replace("\n", ",") + "]")
        return messages
