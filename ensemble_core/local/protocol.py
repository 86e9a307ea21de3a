"""What the controller and the keeper say to one another, and what the ledger holds: JSON lines.

Both ends of the line and the ledger use these functions; nothing here does any I/O. A job's event
is ``["e",ID,TIME,NAME,CONTEXT]``, with more behind it where the ledger needs more: for ``submit``
the job itself, for ``start`` when its processes were there and which. Other events are
``["o",{...}]``. The id stands first so that a line can be told from others without reading it all.
"""

from __future__ import annotations

import json
import json.decoder
import json.encoder
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ensemble_core.model.events import Event, JobEvent, event_from_dict
from ensemble_core.model.jobs import Job

__all__ = [
    "VERSION",
    "Splitter",
    "decode",
    "encode_event",
    "encode_job",
    "line",
    "line_job",
    "line_time",
    "to_event",
    "to_job",
]

#: Of the protocol and of the ledger; a keeper may be older than the controller that finds it.
VERSION = 1

_quote: Callable[[str], str] = json.encoder.encode_basestring_ascii
_dumps: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
decode: Callable[[str], Any] = json.loads

_NOTHING: Mapping[str, Any] = MappingProxyType({})
#: What of a job the keeper needs; parameters, observers and options of others stay behind.
_JOB_FIELDS = (
    ("index", 0),
    ("tasks", 1),
    ("cores_per_task", 1),
    ("gpus_per_task", 0),
    ("duration", 0.0),
    ("workdir", None),
    ("stdout", None),
    ("stderr", None),
    ("urgency", 16),
)
#: Reads a JSON string whose opening quote is before the place: it, and where it ends.
_SCAN: Callable[[str, int], tuple[str, int]] = vars(json.decoder)["scanstring"]


def line(message: object) -> bytes:
    """A message as a line."""
    return _dumps(message).encode("ascii") + b"\n"


def encode_job(job: Job) -> dict[str, Any]:
    """A job as plain data, without what is as usual."""
    data: dict[str, Any] = {"id": job.id, "group": job.group, "command": list(job.command)}
    for name, usual in _JOB_FIELDS:
        value = getattr(job, name)
        if value != usual:
            data[name] = value
    if job.environment:
        data["environment"] = dict(job.environment)
    return data


def to_job(data: Mapping[str, Any]) -> Job:
    """The job that :func:`encode_job` wrote."""
    return Job.from_dict({"index": 0, **data})


def encode_event(event: Event, extra: tuple[object, ...] = ()) -> bytes:
    """An event as a line; ``extra`` is for the ledger and does not reach :func:`to_event`."""
    if not isinstance(event, JobEvent):
        return line(["o", event.to_dict()])
    context = ",".join([f"{_quote(key)}:{_plain(value)}" for key, value in event.context.items()])
    text = f'["e",{_quote(event.job)},{event.timestamp!r},"{event.name}",{{{context}}}'
    for item in extra:
        text += "," + _dumps(item)
    return text.encode("ascii") + b"]\n"


def _plain(value: object) -> str:
    """What contexts mostly hold, without the cost of an encoder for each."""
    if type(value) is str:
        return _quote(value)
    return str(value) if type(value) is int else _dumps(value)


def to_event(message: list[Any]) -> Event:
    """The event of a message that begins with ``e`` or ``o``."""
    if message[0] == "e":
        return JobEvent(message[2], message[1], message[3], message[4] or _NOTHING)
    return event_from_dict(message[1])


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
    """Puts together the lines of a stream that comes in pieces."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[str]:
        """The lines that this piece completes."""
        begin = 0
        while (end := piece.find(b"\n", begin)) >= 0:
            text = piece[begin:end]
            if self._pieces:
                self._pieces.append(text)
                text = b"".join(self._pieces)
                self._pieces.clear()
            yield text.decode("ascii")
            begin = end + 1
        if begin < len(piece):
            self._pieces.append(piece[begin:])
