"""Schemas of options that several executors of batch queues have."""

from __future__ import annotations

from typing import Any

LOST_AFTER: dict[str, Any] = {
    "type": "number",
    "minimum": 0,
    "default": 600,
    "description": "A job is lost if the queue says so, or if its lists of jobs omit this "
    "job but no others for so many seconds.",
}
POLL: dict[str, Any] = {
    "type": "number",
    "minimum": 0.2,
    "default": 15,
    "description": "If a job could not report its end, notice the end after at most this "
    "many seconds; values below 6 act as 6.",
}


def extra(ours: str) -> dict[str, Any]:
    """Return the schema of further options of ``qsub``, which do not match the pattern ``ours``.

    These are options that the run sets, or with which it would lose track of its jobs.
    """
    return {
        "type": "array",
        "description": "Further options of qsub, each '-X VALUE'.",
        "items": {
            "type": "string",
            "description": "an option of qsub, with its value if it has one: -X VALUE",
            "pattern": "^-[a-zA-Z_]+( .+)?$",
            "not": {
                "description": "the run sets this option of qsub: use the fields of the group "
                "(tasks, duration, workdir, stdout …) or the other options",
                "pattern": ours,
            },
        },
    }
