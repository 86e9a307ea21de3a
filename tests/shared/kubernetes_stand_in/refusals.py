"""Error answers of the API server (not 2xx), with code, reason and message."""

from __future__ import annotations

from typing import Any

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


class Refusal(Exception):
    """Error answer (not 2xx), with Kubernetes' body of kind ``Status``."""

    def __init__(
        self, code: int, message: str, reason: str = "", details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason or REASONS.get(code, "Unknown")
        self.details = details or {}

    def body(self) -> dict[str, Any]:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def named(plural: str, group: str, name: str) -> str:
    """Return an object's name in messages."""
    return f'{plural}.{group} "{name}"' if group else f'{plural} "{name}"'


def not_found(plural: str, group: str, name: str) -> Refusal:
    """Return the error 404: the object does not exist."""
    details = {"name": name, "group": group, "kind": plural}
    return Refusal(404, f"{named(plural, group, name)} not found", details=details)


def conflict(plural: str, group: str, name: str, why: str = "") -> Refusal:
    """Return the error 409: another client changed the object."""
    why = why or (
        "the object has been modified; please apply your changes to the latest version and try "
        "again"
    )
    message = f"Operation cannot be fulfilled on {named(plural, group, name)}: {why}"
    return Refusal(409, message, details={"name": name, "group": group, "kind": plural})


def invalid(kind: str, group: str, name: str, errors: list[str]) -> Refusal:
    """Return the error 422: the object violates its schema or a rule of its kind."""
    shown = f"{kind}.{group}" if group else kind
    return Refusal(
        422,
        f'{shown} "{name}" is invalid: {"; ".join(errors)}',
        details={"name": name, "kind": kind, "causes": [{"message": each} for each in errors]},
    )
