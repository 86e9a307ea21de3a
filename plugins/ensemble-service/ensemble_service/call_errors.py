"""Errors of gRPC calls: :class:`Refused` in the service, and their explanations in clients."""

from __future__ import annotations

import os
import re
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ensemble_core import EnsembleError, ExecutorError
from ensemble_service.channel import is_loopback, read_certificate, tls_context, trusted_file

if TYPE_CHECKING:
    import grpc


class Refused(Exception):
    """The RPC is rejected. ``code`` is a name in ``grpc.StatusCode``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def without_traceback(self) -> Refused:
        """Return a copy without traceback.

        A traceback's frames would keep the call, and all its data, in memory.
        """
        return Refused(self.code, self.message)


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Why the service cannot be reached, and what to do."""

    cause: str
    hint: str
    code: str = "unavailable"  # for programs


#: Codes of errors that waiting will not fix: wrong protocol, or an untrusted certificate.
MISMATCHED = frozenset({"untrusted", "speaks-tls", "no-tls"})


def fault(error: grpc.RpcError, target: str, away: Unreachable | None = None) -> EnsembleError:
    """Convert a failed call into an error that a user can act on.

    The error is ``transient`` if repeating the call may help. Even if the call failed, the service
    may have carried it out.
    """
    import grpc

    refusal = getattr(error, "refusal", None)
    if isinstance(refusal, EnsembleError):
        return refusal  # the call was not made
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    details = (error.details() if hasattr(error, "details") else "") or str(error)
    words, hint, transient = _FAULTS.get(code.name, ("sent an unexpected answer", None, False))
    name = code.name.lower().replace("_", "-")
    if code is grpc.StatusCode.UNAVAILABLE:
        hint = "try again later" if is_answer(details) else _THERE
        if away is not None and not is_answer(details):
            details, hint, name = away.cause, away.hint, away.code
    elif "larger than max" in details:
        words, transient = "does not accept a message of this size", False
    if hint and details.endswith(hint):  # the service's message already has the hint
        details = details[: -len(hint)].rstrip("; ")
    return ExecutorError(
        f"the service at {target} {words}",
        cause=" ".join(details.split())[:500],
        hint=hint,
        code=name,
        transient=transient,
    )


_FAULTS: dict[str, tuple[str, str | None, bool]] = {
    "UNAVAILABLE": ("cannot be reached", None, True),
    "DEADLINE_EXCEEDED": ("did not answer in time", None, True),
    "CANCELLED": ("did not get the whole request", None, True),
    "UNKNOWN": ("failed", None, True),
    "INTERNAL": ("failed", None, True),
    "ABORTED": ("aborted the request", None, True),
    "RESOURCE_EXHAUSTED": ("is overloaded", None, True),
    "UNAUTHENTICATED": (
        "does not know this credential",
        (
            "set ENSEMBLE_TOKEN or ENSEMBLE_TOKEN_FILE; create a token with 'ensemble-server token "
            "add'"
        ),
        False,
    ),
    "PERMISSION_DENIED": (
        "does not allow this with your credential",
        "see 'ensemble-server token list' for what each token allows",
        False,
    ),
    "ALREADY_EXISTS": (
        "rejected the name, because another connection uses it",
        "stop the other process, or choose another name",
        True,
    ),
    "INVALID_ARGUMENT": ("rejected the request", None, False),
    "NOT_FOUND": ("did not find what the request names", None, False),
    "FAILED_PRECONDITION": ("rejected the request", None, False),
    "OUT_OF_RANGE": ("rejected the request", None, False),
    "UNIMPLEMENTED": (
        "does not know the request",
        "check that it is an ensemble service, and not an older one",
        False,
    ),
}


_THERE = "check that it is running; if it uses TLS, pass its ca.crt with --ca or ENSEMBLE_CA"


def is_absence(details: str) -> bool:
    """Return whether a call failed with ``UNAVAILABLE`` because a member is not connected.

    ``details`` is the text of the gRPC status.
    """
    return details.startswith("member ") and is_answer(details)


def is_answer(details: str) -> bool:
    """Return whether ``UNAVAILABLE`` came from the service, not from gRPC at the caller."""
    return _OURS.match(details) is not None


#: Matches the whole phrase, because a system error is similar: "Transport endpoint is not
#: connected".
_OURS = re.compile(r"the service (stops|keeps no record)|member \S+ is not connected")


def diagnose(
    host: str,
    port: int,
    *,
    ca: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    seconds: float = 2.0,
) -> Unreachable:
    """Find out why the service cannot be reached, with a separate connection.

    Arguments and errors are those of :func:`open_channel`.
    """
    # gRPC itself only reports the last address that it tried.
    trusted = trusted_file(host, ca, insecure)
    plain = not trusted and (insecure or is_loopback(host))
    context = tls_context(read_certificate(trusted) if trusted else None)
    if plain:  # unverified: this only checks whether it speaks TLS, and sends nothing secret
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    bare = host.strip("[]")
    try:
        plug = socket.create_connection((bare, port), seconds)
    except OSError as error:
        words = error.strerror or str(error) or "no answer"
        return Unreachable(
            words, "check that it is running; start one with 'ensemble-server start'"
        )
    with plug:
        try:
            with context.wrap_socket(plug, server_hostname=bare):
                if plain:
                    words = "it speaks TLS, but this client used plaintext"
                    return Unreachable(
                        words, "pass its ca.crt with --ca or ENSEMBLE_CA", "speaks-tls"
                    )
        except ssl.SSLCertVerificationError as error:
            return _untrusted_certificate(
                error, trusted, own=not (ca or os.environ.get("ENSEMBLE_CA"))
            )
        except (OSError, ValueError) as error:
            if not plain and getattr(error, "reason", None) in _NO_TLS:
                words = "it does not speak TLS, or another program listens there"
                return Unreachable(words, _plaintext_hint(ca, trusted), "no-tls")
    return Unreachable(
        ("it accepts the connection but does not answer"),
        ("check whether another program listens there"),
    )


#: OpenSSL's error reasons for a reply that is not TLS. A closed connection is not included, because
#: it may be temporary.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")


def _plaintext_hint(
    ca: str | os.PathLike[str] | None, trusted: str | os.PathLike[str] | None
) -> str:
    """Return a hint on how to use plaintext."""
    if ca or not trusted:
        return "leave out --ca to use plaintext"
    where = os.fspath(trusted)
    if os.environ.get("ENSEMBLE_CA"):
        return f"unset ENSEMBLE_CA ({where}) to use plaintext"
    return f"{where} requires TLS; pass --insecure to use plaintext"


def _untrusted_certificate(
    error: ssl.SSLCertVerificationError, trusted: str | os.PathLike[str] | None, *, own: bool
) -> Unreachable:
    words, said = f"its certificate is not trusted: {error.verify_message}", error.verify_message
    if "expired" in said:
        hint = "renew it on the service's machine: ensemble-server init-tls --renew"
    elif "not yet valid" in said:
        hint = "compare the clocks of this machine and the service's"
    elif "mismatch" in said or "not valid for" in said:
        hint = "create one for this name on the service's machine: init-tls --renew --host NAME"
    else:
        hint = "pass the ca.crt of this service with --ca or ENSEMBLE_CA"
        if trusted:
            found = ", found automatically" if own else ""
            hint += f"; used {os.fspath(trusted)}{found}"
    return Unreachable(words, hint, "untrusted")
