"""Errors of calls to the service: what a status of gRPC means, and why nobody could be reached.

Used by clients, member agents and the executor ``remote``. gRPC is loaded when it is needed.
"""

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

__all__ = ["MISMATCHED", "Away", "fault", "is_absence", "is_answer", "why_away"]


@dataclass(frozen=True, slots=True)
class Away:
    """Why the service cannot be reached, and what to do; ``code`` is for programs."""

    cause: str
    hint: str
    code: str = "unavailable"


#: Codes of what no waiting mends: the two do not speak the same language, or do not trust.
MISMATCHED = frozenset({"untrusted", "speaks-tls", "no-tls"})


def fault(error: grpc.RpcError, target: str, away: Away | None = None) -> EnsembleError:
    """A failed call as an error that a user can act on.

    ``transient`` where the same call may succeed later; it is then open whether it was delivered.
    ``away`` is what :func:`why_away` found, where nobody could be reached.
    """
    import grpc

    refusal = getattr(error, "refusal", None)
    if isinstance(refusal, EnsembleError):
        return refusal  # it was not even made
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    details = (error.details() if hasattr(error, "details") else "") or str(error)
    words, hint, transient = _FAULTS.get(code.name, ("did not answer as it should", None, False))
    name = code.name.lower().replace("_", "-")
    if code is grpc.StatusCode.UNAVAILABLE:
        hint = "ask again in a while" if is_answer(details) else _THERE
        if away is not None and not is_answer(details):
            details, hint, name = away.cause, away.hint, away.code
    elif "larger than max" in details:
        words, transient = "takes no message of this size", False
    if hint and details.endswith(hint):  # the service said so too
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
    "CANCELLED": ("was not asked to the end", None, True),
    "UNKNOWN": ("failed", None, True),
    "INTERNAL": ("failed", None, True),
    "ABORTED": ("gave up", None, True),
    "RESOURCE_EXHAUSTED": ("takes no more for now", None, True),
    "UNAUTHENTICATED": (
        "does not know this credential",
        "set ENSEMBLE_TOKEN or ENSEMBLE_TOKEN_FILE; 'ensemble-server token add' makes tokens",
        False,
    ),
    "PERMISSION_DENIED": (
        "refused: the credential does not allow this",
        "'ensemble-server token list' shows for whom each token is",
        False,
    ),
    "ALREADY_EXISTS": (
        "refused: this name is taken",
        "end the other one, or give this one another name",
        True,
    ),
    "INVALID_ARGUMENT": ("refused what was asked", None, False),
    "NOT_FOUND": ("does not know it", None, False),
    "FAILED_PRECONDITION": ("refused", None, False),
    "OUT_OF_RANGE": ("refused", None, False),
    "UNIMPLEMENTED": (
        "does not know the request",
        "is it an ensemble service, and not an older one?",
        False,
    ),
}


_THERE = "is it running there? If it speaks TLS, give its ca.crt with --ca or ENSEMBLE_CA"


def is_absence(details: str) -> bool:
    """True if the words of ``UNAVAILABLE`` are the service's own of a member that is away."""
    return details.startswith("member ") and is_answer(details)


def is_answer(details: str) -> bool:
    """True if the words of ``UNAVAILABLE`` are the service's own: it was reached."""
    return _OURS.match(details) is not None


#: Not any words of the system that are alike: "Transport endpoint is not connected".
_OURS = re.compile(r"the service (stops|keeps no record)|member \S+ is not connected")


def why_away(
    host: str,
    port: int,
    *,
    ca: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    seconds: float = 2.0,
) -> Away:
    """Why the service cannot be reached: looked into with a connection of its own, for gRPC tells
    only what befell the last of the addresses that it tried. The arguments are those of
    :func:`open_channel`; what that raises, this does too."""
    trusted = trusted_file(host, ca, insecure)
    plain = not trusted and (insecure or is_loopback(host))
    context = tls_context(read_certificate(trusted) if trusted else None)
    if plain:  # only to learn whether it speaks TLS: nothing is sent that is to be kept secret
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    bare = host.strip("[]")
    try:
        plug = socket.create_connection((bare, port), seconds)
    except OSError as error:
        words = error.strerror or str(error) or "no answer"
        return Away(words, "is it running there? 'ensemble-server start' starts one")
    with plug:
        try:
            with context.wrap_socket(plug, server_hostname=bare):
                if plain:
                    words = "it speaks TLS, and was asked in plaintext"
                    return Away(words, "give its ca.crt with --ca or ENSEMBLE_CA", "speaks-tls")
        except ssl.SSLCertVerificationError as error:
            return _distrusted(error, trusted, own=not (ca or os.environ.get("ENSEMBLE_CA")))
        except (OSError, ValueError) as error:
            if not plain and getattr(error, "reason", None) in _NO_TLS:
                words = "it does not speak TLS, or something else listens there"
                return Away(words, _plaintext_hint(ca, trusted), "no-tls")
    return Away("it takes the connection and does not answer", "is something else listening there?")


#: What OpenSSL calls an answer that is not TLS. That a connection just ends may pass.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")


def _plaintext_hint(
    ca: str | os.PathLike[str] | None, trusted: str | os.PathLike[str] | None
) -> str:
    """How to ask in plaintext after all."""
    if ca or not trusted:
        return "leave out --ca if it is to be asked in plaintext"
    where = os.fspath(trusted)
    if os.environ.get("ENSEMBLE_CA"):
        return f"unset ENSEMBLE_CA ({where}) if it is to be asked in plaintext"
    return f"{where} says that it does; --insecure asks in plaintext"


def _distrusted(
    error: ssl.SSLCertVerificationError, trusted: str | os.PathLike[str] | None, *, own: bool
) -> Away:
    words, said = f"its certificate is not trusted: {error.verify_message}", error.verify_message
    if "expired" in said:
        hint = "renew it where the service is: ensemble-server init-tls --renew"
    elif "not yet valid" in said:
        hint = "compare the clocks of this machine and of the service's"
    elif "mismatch" in said or "not valid for" in said:
        hint = "make one for this name where the service is: init-tls --renew --host NAME"
    else:
        hint = "give the ca.crt of this service with --ca or ENSEMBLE_CA"
        if trusted:
            found = ", which was found by itself" if own else ""
            hint += f"; this was {os.fspath(trusted)}{found}"
    return Away(words, hint, "untrusted")
