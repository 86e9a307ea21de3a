"""The service's log: one line per event, as JSON or as text for people.

No line may contain a credential.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Literal, TextIO

Level = Literal["debug", "info", "warning", "error"]

_LOGGER = logging.getLogger("ensemble_service")
_LOGGER.addHandler(logging.NullHandler())  # no output unless it is configured
_FIELDS = "ensemble_fields"
_LONGEST = 2_000


def tell(event: str, level: Level = "info", **fields: object) -> None:
    """Log an event: a few constant words, with variable values as ``fields``."""
    number = getattr(logging, level.upper())
    if _LOGGER.isEnabledFor(number):
        _LOGGER.log(number, event, extra={_FIELDS: fields})


def configure(
    form: Literal["text", "json"] = "text", level: Level = "info", stream: TextIO | None = None
) -> None:
    """Write the service's log and gRPC's errors to ``stream``, by default stderr."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    for name in ("ensemble_core", "ensemble_service", "grpc"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    for name in ("ensemble_core", "ensemble_service"):
        logging.getLogger(name).setLevel(level.upper())
    logging.getLogger("grpc").setLevel(logging.ERROR)


def _content(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = dict(getattr(record, _FIELDS, {}))
    if record.exc_info and record.exc_info[0] is not None:
        fields["error"] = f"{record.exc_info[0].__name__}: {record.exc_info[1]}"
    return fields


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        content = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage()[:_LONGEST],
            **_content(record),
        }
        return json.dumps(content, default=str, allow_nan=True)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        fields = "".join(
            f" {name}={_format_value(value)}" for name, value in _content(record).items()
        )
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        return f"{when} {level}{_plain(record.getMessage())[:_LONGEST]}{fields}"


def _format_value(value: object) -> str:
    text = str(value)
    if not text or not text.isprintable() or any(each in text for each in ' "='):
        text = json.dumps(text)
    return text[:_LONGEST]


def _plain(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)
