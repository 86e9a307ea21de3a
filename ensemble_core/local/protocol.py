"""Encodes messages between controller and supervisor, and events in the supervisor's ledger.

Messages are JSON lines. An event of a job is a line ``["e",ID,TIME,NAME,CONTEXT,A,B,MORE]``:

- ``ID`` is the job. It directly follows ``"e"``, so that the lines of a job can be found without
  decoding.
- ``A`` and ``B`` are only in the ledger. For ``submit``, ``A`` has the job's fields. For ``start``,
  ``A`` is the machine's uptime in seconds, and ``B`` has the process ids.
- ``MORE`` has all other fields of the event.
- Items at the end that have no value are left out.

An event without a job is a line ``["o",{...}]``.
"""

from __future__ import annotations

import json
import json.decoder
import json.encoder
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ensemble_core.model.codec import NOTHING, dumps, layout
from ensemble_core.model.events import Event, JobEvent
from ensemble_core.model.jobs import Job

if TYPE_CHECKING:
    from ensemble_core.local.launch import Prepared

#: Version of the protocol. A supervisor may be older than its controller.
VERSION = 1
#: Descriptor of the process to which a supervisor in a pilot is tied.
TIE = 3
#: The fields of a job in this version of Ensemble. If the jobs of a controller have other fields,
#: the supervisor rejects the controller, because it would ignore these fields.
JOB_FIELDS = layout(Job).names

_quote: Callable[[str], str] = json.encoder.encode_basestring_ascii
decode: Callable[[str], Any] = json.loads

#: Fields of a job that the supervisor does not need.
_NOT_SENT = ("parameters", "observe", "executor", "options", "discard")
#: Index of ``MORE`` in an event of a job.
_MORE_AT = 7
#: Fields of a job event that have a fixed place in its line.
_PLACED = ("type", "timestamp", "job", "name", "context")
#: True if ``JobEvent`` has further fields (except ``ours``, which is always true here).
_MORE = not {*_PLACED, "ours"}.issuperset(layout(JobEvent).names)
#: Function that parses a JSON string from the position after its opening quote. It returns the
#: string and the position after its end.
_SCAN: Callable[[str, int], tuple[str, int]] = vars(json.decoder)["scanstring"]


def line(message: object) -> bytes:
    """Encode a message as a line."""
    return dumps(message).encode("ascii") + b"\n"


def encode_job(job: Job) -> dict[str, Any]:
    """Return a job as plain data, without fields that the supervisor does not need."""
    data = job.compact()
    for name in _NOT_SENT:
        data.pop(name, None)
    return data


def to_job(data: Mapping[str, Any]) -> Job:
    """Return the job that :func:`encode_job` has encoded."""
    return Job.from_dict({"index": 0, **data})


def encode_event(event: Event, extra: tuple[object, ...] = ()) -> bytes:
    """Encode an event as a line.

    For an event of a job, ``extra`` has the items ``A`` and ``B``.
    """
    if not isinstance(event, JobEvent):
        return line(["o", event.compact()])
    if _MORE:
        more = {name: v for name, v in event.compact().items() if name not in _PLACED}
        if more:
            extra = (*(*extra, None, None)[:2], more)
    context = encode_context(event.name, event.context, *extra)
    return f"{event_head(event.job)}{event.timestamp!r},{context}]\n".encode("ascii")


def event_head(job: str) -> str:
    """Return the beginning of an event's line, up to the id of the job."""
    return f'["e",{_quote(job)},'


def encode_context(name: str, context: Mapping[str, Any] = NOTHING, *extra: object) -> str:
    """Encode the rest of an event's line, from ``NAME`` on.

    ``extra`` has the items ``A``, ``B`` and ``MORE``.
    """
    return dumps([name, dict(context), *extra])[1:-1]


def encode_start(prepared: Prepared, uptime: float, pids: list[int]) -> str:
    """Do the same as :func:`encode_context` for the event ``start`` of a job."""
    workdir, stdout, stderr = map(_quote, (prepared.workdir, prepared.stdout, prepared.stderr))
    where = f'"workdir":{workdir},"stdout":{stdout},"stderr":{stderr}'
    return f'"start",{{{where}}},{uptime:.2f},{pids}'


@lru_cache(maxsize=1024)
def encode_value(name: str, key: str, value: int) -> str:
    """Do the same as :func:`encode_context` for a context with one value, and cache the result."""
    return encode_context(name, {key: value})


def to_event(message: list[Any]) -> Event:
    """Return the event in a message that begins with ``e`` or ``o``."""
    if message[0] == "e":
        if len(message) <= _MORE_AT:
            return JobEvent(message[2], message[1], message[3], message[4] or NOTHING)
        _, job, time, name, context = message[:5]
        more = {"timestamp": time, "job": job, "name": name, "context": context}
        return JobEvent.from_dict({**more, **message[_MORE_AT]})
    return Event.from_dict(message[1])


def line_job(text: str) -> str | None:
    """Return the job in the line of a job event, or ``None`` for other lines."""
    if not text.startswith('["e","'):
        return None
    return _SCAN(text, 6)[0]


def line_time(text: str) -> float:
    """Return the time in the line of a job event."""
    begin = _SCAN(text, 6)[1] + 1
    return float(text[begin : text.index(",", begin)])


class Splitter:
    """Splits a stream of bytes into messages. The stream may arrive in any pieces."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, piece: bytes) -> list[Any]:
        """Return the messages that are complete with this piece.

        Raises ``ValueError`` for invalid ones.
        """
        end = piece.rfind(b"\n")
        if end < 0:
            self._pieces.append(piece)
            return []
        whole = b"".join((*self._pieces, piece[:end]))
        self._pieces = [piece[end + 1 :]] if end + 1 < len(piece) else []
        # Parse all messages in one call, because a call costs as much as parsing a short message.
        messages: list[Any] = decode("[" + whole.decode("ascii").replace("\n", ",") + "]")
        return messages
