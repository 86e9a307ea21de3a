"""Identity of a job: a digest by which ``--reuse`` finds an equal job of an earlier run.

The placeholders ``{here}``, ``{cwd}``, ``{run}`` and ``{attempt}`` are not filled in, so the
identity does not depend on folders, the run or the attempt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from ensemble_core.model.codec import dumps
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.model.option_values import fill_options
from ensemble_core.model.placeholders import fill
from ensemble_core.quick_dataclass import dataclass

#: Increase this number when the parts of an identity change. Older identities then no longer match.
_VERSION = 1
#: Encoder that sorts keys, so that the order in the file does not matter.
_sorted_text = json.JSONEncoder(separators=(",", ":"), sort_keys=True, default=str).encode
_AS_WRITTEN = {"here": "{here}", "cwd": "{cwd}", "run": "{run}", "attempt": "{attempt}"}


def short(value: object) -> str:
    """Return a digest of plain data, as 32 hexadecimal digits."""
    try:
        text = _sorted_text(value)
    except (TypeError, ValueError):  # an observer's options, with keys that cannot be sorted
        text = dumps(value)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Source:
    """The parts of an identity that all jobs of a group share, as plain data."""

    parts: Mapping[str, Any]
    key: str  #: A digest of these parts.

    @classmethod
    def of(cls, group: JobGroup) -> Source:
        """Return the parts that the jobs of this group share."""
        parts: dict[str, Any] = {"command": list(group.command)}
        if group.environment:
            parts["environment"] = dict(group.environment)
        if group.environment_from:
            parts["environment_from"] = sorted(group.environment_from)
        if group.observe:
            parts["observe"] = {name: dict(given) for name, given in group.observe.items()}
        if group.within:
            parts["within"] = [dict(each) for each in group.within]
        if options := _compared_options(group):
            parts["options"] = options
        return cls(parts, short(parts)[:12])


def _compared_options(group: JobGroup) -> dict[str, dict[str, Any]]:
    """Return the options that say what runs, by executor."""
    found: dict[str, dict[str, Any]] = {}
    for executor, defaults in group.compared.items():
        values = {**defaults, **group.options.get(executor, {})}
        given = {name: values[name] for name in defaults if values[name] is not None}
        if given:
            found[executor] = given
    return found


def _values(job: Job) -> dict[str, object]:
    return {
        **_AS_WRITTEN,
        "replica": job.replica,
        **job.parameters,
        "group": job.group,
        "index": job.index,
        "id": f"{job.group}.{job.index}",
        "here": "{here}",
    }


def parts_of(job: Job, source: Mapping[str, Any], inputs: Mapping[str, str]) -> dict[str, Any]:
    """Return the parts of a job's identity.

    ``source`` has the parts that the whole group shares. ``inputs`` maps each input file, as
    written in the ensemble file, to its digest or modification time.
    """
    parts: dict[str, Any] = {
        **source,
        "command": _fill_texts(source["command"], job),
        "parameters": dict(job.parameters),
        "replica": job.replica,
        "tasks": job.tasks,
    }
    if "environment" in source:
        names, texts = source["environment"].keys(), source["environment"].values()
        parts["environment"] = dict(zip(names, _fill_texts(texts, job), strict=True))
    if "within" in source:
        parts["within"] = fill_options(source["within"], _values(job))
    if inputs:
        parts["inputs"] = dict(inputs)
    return parts


def _fill_texts(texts: Collection[str], job: Job) -> list[str]:
    if not any("{" in text for text in texts):  # fast path: skip collecting the values
        return [*texts]
    values = _values(job)
    return [fill(text, values) for text in texts]


def written(text: str, job: Job) -> str:
    """Fill in a text's placeholders, except those that identities leave unfilled."""
    return _fill_texts((text,), job)[0]


def identity_of(parts: Mapping[str, Any]) -> str:
    """Return the identity for these parts, as 32 hexadecimal digits."""
    return short([_VERSION, parts])
