"""Plugin record of the executor ``remote``.

Does not load gRPC, because every run imports this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_core import Executor, ExecutorPlugin, hookimpl


def _flag(metavar: str, text: str, **more: object) -> Mapping[str, Any]:
    """Return schema keys that make an option a flag of the commands run, resume and cancel."""
    commands = ["run", "resume", "cancel"]
    return {"x-ensemble-flag": {"metavar": metavar, "help": text, "commands": commands, **more}}


OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "host": {
            **_flag("HOST", "Host of the ensemble service."),
            "type": "string",
            "minLength": 1,
            "description": "Host of the ensemble service; default localhost.",
        },
        "port": {
            **_flag("PORT", "Port of the ensemble service."),
            "type": "integer",
            "minimum": 1,
            "maximum": 65535,
            "description": "Port of the ensemble service; default 50051.",
        },
        "name": {
            "x-ensemble-flag": {"metavar": "NAME", "help": "Namespace of the members."},
            "type": "string",
            "minLength": 1,
            "description": "Namespace of the members that job groups name; default 'default'.",
        },
        "default": {
            "type": "string",
            "minLength": 1,
            "description": "Member for groups that name none; default: the only connected member.",
        },
        "members": {
            "type": "array",
            "items": {"type": "string"},
            "description": (
                "Members to wait for, for some seconds, at the start; default: those in the file."
            ),
        },
        "token_file": {
            **_flag(
                "FILE",
                "File with the token.  [default: $ENSEMBLE_TOKEN, or the file "
                "$ENSEMBLE_TOKEN_FILE]",
                path=True,
            ),
            "type": "string",
            "minLength": 1,
            "description": "File with the token; default: ENSEMBLE_TOKEN or ENSEMBLE_TOKEN_FILE.",
        },
        "ca": {
            **_flag(
                "FILE",
                "Certificate authority that must have signed the service's certificate.  [default: "
                "$ENSEMBLE_CA, or the ca.crt of a service on this machine]",
                path=True,
                instead_of=["insecure"],
            ),
            "type": "string",
            "minLength": 1,
            "description": (
                "File with the certificate of the service's certificate authority; default: "
                "ENSEMBLE_CA, or that of a service on this machine."
            ),
        },
        "insecure": {
            "x-ensemble-flag": {
                "help": (
                    "Use plaintext to other machines too: anyone on the network path can "
                    "read the token."
                ),
                "commands": ["run", "resume", "cancel"],
                "instead_of": ["ca"],
            },
            "type": "boolean",
            "description": "Use plaintext to other machines too; default false.",
        },
        "patience": {
            "type": "number",
            "minimum": 0,
            "description": "Seconds to wait for absent members when a run is resumed; default 300.",
        },
        "shared": {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "description": (
                "Folders that members see under the same path. Output of members' "
                "jobs is only read there; default: none."
            ),
        },
    },
}


def _build(options: Mapping[str, Any]) -> Executor:
    from ensemble_service.remote_executor import RemoteExecutor

    return RemoteExecutor(**options)


def _available() -> tuple[bool, str]:
    # Never chosen automatically, because the members to use cannot be guessed.
    return False, "select it with --executor remote"


@hookimpl
def ensemble_executors() -> Iterable[ExecutorPlugin]:
    """Return the executor ``remote``."""
    return [
        ExecutorPlugin(
            name="remote",
            summary="Runs jobs on members of the ensemble service, each with its own queue",
            build=_build,
            capabilities=frozenset({"submit", "cancel", "resize", "reattach", "detach"}),
            options=OPTIONS,
            available=_available,
            members=True,
            secrets="set these variables in the members' environment",
        )
    ]
