"""Fields of a firing, with ``job.NAME`` of its job: these are looked up when they are asked for.

Made by a firing, and for a group's own ``retry``.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from ensemble_core.engine.job_record import JobRecord

__all__ = ["JobFields"]


class JobFields(Mapping[str, Any]):
    """These fields, and ``job.NAME`` of the job in ``record``, which are not listed among them."""

    def __init__(self, fields: Mapping[str, Any], record: JobRecord) -> None:
        self._fields = fields
        self._record = record

    def __getitem__(self, name: str) -> Any:
        if name not in self._fields and name.startswith("job."):
            found = _of_job(self._record, name.removeprefix("job."))
            if found is not None:
                return found
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def _of_job(record: JobRecord, name: str) -> Any:
    """Value of ``job.NAME``; ``None`` where there is none, or where it is not known."""
    job, files = record.job, record.files or {}
    if name in ("workdir", "stdout", "stderr"):
        source = record.source
        start = "" if source is None else source.cwd
        workdir = _path(start, files.get("workdir"), job.workdir or start)
        if name == "workdir":
            return workdir
        given = getattr(job, name)
        return _path(workdir or "", files.get(name), given)
    if name == "queue_id":
        return record.queue_id
    found = getattr(job, name, None) if name in _PLAIN else None
    return job.parameters.get(name) if found is None else found


_PLAIN = frozenset(
    {
        "id", "group", "index", "attempt", "replica", "nodes", "tasks", "cores_per_task",
        "gpus_per_task", "duration", "urgency", "executor",
    }
)  # fmt: skip


def _path(start: str, told: object, given: str | None) -> str | None:
    """The absolute path of what its keeper told, or else of what was given."""
    for path in (told, given):
        if isinstance(path, str) and path:
            whole = posixpath.normpath(posixpath.join(start, path))
            if whole.startswith("/"):
                return whole
    return None
