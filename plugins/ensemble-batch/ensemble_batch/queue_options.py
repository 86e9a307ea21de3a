"""Options that several executors of batch queues have: their schemas and parsers."""

from __future__ import annotations

from typing import Any

from ensemble_core import UsageError

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


def address_option(text: str) -> tuple[str, int] | None:
    """Parse the option ``listen``: an address (empty: find one) and a port (0: any), or ``None``.

    Raises :class:`UsageError`.

    >>> address_option("10.0.0.7:9000"), address_option("auto"), address_option("none")
    (('10.0.0.7', 9000), ('', 0), None)
    """
    if text == "none":
        return None
    if text == "auto":
        return "", 0
    address, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (":" in address and not address.endswith("]")):
        return text.strip("[]"), 0  # just a name, or an IPv6 address
    if not port.isdigit() or int(port) > 65535:
        raise UsageError(
            f"listen={text}: {port!r} is not a port",
            hint="use -o listen=ADDRESS or -o listen=ADDRESS:PORT",
            code="bad-option",
        )
    return address.strip("[]"), int(port)
