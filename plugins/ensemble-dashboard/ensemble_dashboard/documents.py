"""Data of dashboards and reports, as JSON documents.

Increase ``FORMAT`` with each change that makes a document unreadable for an older page.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ensemble_core import EnsembleError, UsageError
from ensemble_core.cli.toolkit import conclusions, state_folder, why_not_fired

if TYPE_CHECKING:
    from ensemble_core.cli.toolkit import Inspection

FORMAT = 1

#: Content types of the page's files.
CLIENT = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    **dict.fromkeys(
        (
            *("vendor/htm-preact.js", "words.js", "source.js", "tables.js"),
            *("charts.js", "views.js", "pictures.js", "app.js"),
        ),
        "text/javascript; charset=utf-8",
    ),
}

#: Documents that need no argument.
NAMES = (
    *("overview", "failures", "costs", "capacity", "tables"),
    *("curves", "firings", "timeline", "nodes", "reasons", "queue"),
)
#: Maximum number of jobs in one document.
_PAGE = 1_000_000
#: Maximum number of events of a run that is replayed to explain its rules. A replay takes some
#: seconds.
_REPLAYED = 200_000


def document(inspection: Inspection, name: str, query: Mapping[str, str]) -> Any:
    """Return the document with this name.

    Raises :class:`UsageError` for an unknown name or an invalid query.
    """
    if name == "overview":
        found = inspection.overview()
        report = inspection.report()
        reported = () if report is None else report.rules
        rules = zip(found["rules"], reported, strict=True)
        reasons = [(each, "" if rule.fired else why_not_fired(rule)) for each, rule in rules]
        rules_with_reasons = [{**each, "reason": reason} for each, reason in reasons]
        return {
            **found,
            "rules": rules_with_reasons,
            "has_pilots": "pilots" in inspection.queue(),
            "state_option": _state_option(inspection),
        }
    if name == "reasons":
        return _reasons(inspection)
    if name in NAMES:
        return getattr(inspection, name)()
    if name == "jobs":
        return inspection.jobs(
            _parse_where(query.get("where", "{}")),
            text=query.get("text", ""),
            sort=query.get("sort") or None,
            descending=query.get("descending") == "1",
            offset=_number(query.get("offset", "0")),
            limit=min(_number(query.get("limit", "100")), _PAGE),
        )
    if name == "job":
        return inspection.job(query.get("group", ""), _number(query.get("index", "")))
    if name == "log":
        return inspection.log(query.get("job", ""), query.get("stream", "stdout"))
    raise UsageError(f"unknown document {name!r}", code="no-such-document")


def _reasons(inspection: Inspection) -> dict[str, str]:
    """Return why rules never fired, in the words of ``ensemble why``; empty for a long run."""
    report = inspection.report()
    never = [] if report is None else [rule.id for rule in report.rules if not rule.fired]
    if not never or inspection.seq > _REPLAYED:
        return {}
    try:
        return conclusions(inspection.replay(), never, inspection.seq)
    except EnsembleError:  # the journal is damaged; the overview says so
        return {}


def _state_option(inspection: Inspection) -> str:
    """Return the option that commands need to find the run; empty for the default folder."""
    place = inspection.folder.parent.parent.absolute()
    return "" if place == state_folder(None).absolute() else f"--state {shlex.quote(str(place))}"


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise UsageError(f"{text!r} is not a whole number of at least 0", code="bad-option")
    return int(text)


def _parse_where(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError("'where' is not a JSON object", code="bad-option")
    return found


def dumps(data: Any) -> str:
    """Return JSON that browsers can read: null in place of nan and infinity."""
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False, default=str)
    except ValueError:
        return json.dumps(_finite(data), separators=(",", ":"), default=str)


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return data


@cache
def client_file(name: str) -> str:
    """Return the text of one of the page's files, for example ``app.js``."""
    return files(__package__).joinpath("client", *name.split("/")).read_text(encoding="utf-8")


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the documents."""
    text = files(__package__).joinpath("documents.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
