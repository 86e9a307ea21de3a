"""Protocol between controller and supervisor, and format of the supervisor's ledger: JSON lines.

The functions in this module are used at both ends of the connection and for the ledger. They do no
I/O. ``model.codec`` encodes the fields of jobs and events. The line of a job's event is
``["e",ID,TIME,NAME,CONTEXT,A,B,MORE]``, without missing items at the end. ``A`` and ``B`` are for
the ledger: for ``submit``, ``A`` is the job; for ``start``, they are the uptime and the process
ids. ``MORE`` has further fields of the event. The lines of other events are ``["o",{...}]``. The id
comes first, so that lines can be filtered without being decoded.
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

#: Version of the protocol, because a supervisor may be older than its controller.
VERSION = 1
#: The fields of a job in this version of Ensemble. If a controller's jobs have other fields, the
#: supervisor rejects the controller, because it would ignore these fields.
JOB_FIELDS = layout(Job).names

_quote: Callable[[str], str] = json.encoder.encode_basestring_ascii
decode: Callable[[str], Any] = json.loads

#: Fields of a job that the supervisor does not need.
_NOT_SENT = ("parameters", "observe", "executor", "options")
#: Index of ``MORE`` in a job's event.
_MORE_AT = 7
#: Fields of a job's event that have a fixed place in its line.
_PLACED = ("type", "timestamp", "job", "name", "context")
#: True if ``JobEvent`` has further fields (except ``ours``, which is always true here).
_MORE = not {*_PLACED, "ours"}.issuperset(layout(JobEvent).names)
#: Function that parses a JSON string, given the position after its opening quote. It returns the
#: string and the position of its end.
_SCAN: Callable[[str, int], tuple[str, int]] = vars(json.decoder)["scanstring"]


def line(message: object) -> bytes:
    """Return a message as a line."""
    return dumps(message).encode("ascii") + b"\n"


def encode_job(job: Job) -> dict[str, Any]:
    """Return a job as plain data, without defaults and fields that the supervisor does not need."""
    data = job.compact()
    for name in _NOT_SENT:
        data.pop(name, None)
    return data


def to_job(data: Mapping[str, Any]) -> Job:
    """Return the job that :func:`encode_job` encoded."""
    return Job.from_dict({"index": 0, **data})


def encode_event(event: Event, extra: tuple[object, ...] = ()) -> bytes:
    """Return an event as a line. :func:`encode_context` describes ``extra``."""
    if not isinstance(event, JobEvent):
        return line(["o", event.compact()])
    if _MORE:
        more = {name: v for name, v in event.compact().items() if name not in _PLACED}
        if more:
            extra = (*(*extra, None, None)[:2], more)
    context = encode_context(event.name, event.context, *extra)
    return f"{event_head(event.job)}{event.timestamp!r},{context}]\n".encode("ascii")


def event_head(job: str) -> str:
    """Return the beginning of a job's event lines.

    The time, the result of :func:`encode_context` and a closing bracket complete the line.
    """
    return f'["e",{_quote(job)},'


def encode_context(name: str, context: Mapping[str, Any] = NOTHING, *extra: object) -> str:
    """Return a job's event as text, without job and time. ``extra`` is for the ledger only."""
    values = ",".join([f"{_quote(key)}:{_plain(value)}" for key, value in context.items()])
    text = f'"{name}",{{{values}}}'
    for item in extra:
        text += "," + _plain(item)
    return text


@lru_cache(maxsize=1024)
def encode_value(name: str, key: str, value: int) -> str:
    """Return :func:`encode_context` for one value. Cached, because values recur often."""
    return encode_context(name, {key: value})


def _plain(value: object) -> str:
    """Return a value as JSON, with fast paths for types that are common in contexts."""
    kind = type(value)
    if kind is str:
        return _quote(cast(str, value))
    if kind is int or (kind is float and isfinite(cast(float, value))):
        return repr(value)
    if kind is list:
        return f"[{','.join(map(_plain, cast(list[object], value)))}]"
    return dumps(value)


def to_event(message: list[Any]) -> Event:
    """Return the event of a message that begins with ``e`` or ``o``."""
    if message[0] == "e":
        if len(message) <= _MORE_AT:
            return JobEvent(message[2], message[1], message[3], message[4] or NOTHING)
        _, job, time, name, context = message[:5]
        more = {"timestamp": time, "job": job, "name": name, "context": context}
        return JobEvent.from_dict({**more, **message[_MORE_AT]})
    return Event.from_dict(message[1])


def line_job(text: str) -> str | None:
    """Return the job in the line of an event; ``None`` for other lines."""
    if not text.startswith('["e","'):
        return None
    return _SCAN(text, 6)[0]


def line_time(text: str) -> float:
    """Return the time in the line of a job's event."""
    begin = _SCAN(text, 6)[1] + 1
    return float(text[begin : text.index(",", begin)])


class Splitter:
    """Splits a stream that arrives in pieces into messages."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, piece: bytes) -> list[Any]:
        """Return the messages that this piece completes. Raises ``ValueError`` for invalid ones."""
        end = piece.rfind(b"\n")
        if end < 0:
            self._pieces.append(piece)
            return []
        whole = b"".join((*self._pieces, piece[:end]))
        self._pieces = [piece[end + 1 :]] if end + 1 < len(piece) else []
        # Parse all messages in one call, because a call costs as much as parsing a short message.
        messages: list[Any] = decode("[" + whole.decode("ascii").replace("\n", ",") + "]")
        return messages
