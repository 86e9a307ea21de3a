"""Plugin record of the executor ``remote``, loaded by the entry point of that name.

What it builds is in ``remote_executor``, which is imported when a run uses it: gRPC with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_core import Executor, ExecutorPlugin, hookimpl
from ensemble_service.capabilities import CAPABILITIES

__all__ = ["OPTIONS", "ensemble_executors"]


def _flag(metavar: str, text: str, **more: object) -> Mapping[str, Any]:
    """A mark that makes an option a flag of every command that reaches the service."""
    commands = ["run", "resume", "cancel"]
    return {"x-ensemble-flag": {"metavar": metavar, "help": text, "commands": commands, **more}}


OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "host": {
            **_flag("HOST", "Where the ensemble service is."),
            "type": "string",
            "minLength": 1,
            "description": "Where the ensemble service is; default localhost.",
        },
        "port": {
            **_flag("PORT", "Its port."),
            "type": "integer",
            "minimum": 1,
            "maximum": 65535,
            "description": "Its port; default 50051.",
        },
        "name": {
            "x-ensemble-flag": {"metavar": "NAME", "help": "The members' namespace."},
            "type": "string",
            "minLength": 1,
            "description": "The namespace of the members that job groups name; default 'default'.",
        },
        "default": {
            "type": "string",
            "minLength": 1,
            "description": "The member for job groups that name none; default: the only one there.",
        },
        "members": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Members to wait for, some seconds, at the start; default: the file's.",
        },
        "token_file": {
            **_flag(
                "FILE",
                "A file with the token.  [default: $ENSEMBLE_TOKEN, or the file "
                "$ENSEMBLE_TOKEN_FILE]",
                path=True,
            ),
            "type": "string",
            "minLength": 1,
            "description": "A file with the credential; default: what ENSEMBLE_TOKEN or "
            "ENSEMBLE_TOKEN_FILE say.",
        },
        "ca": {
            **_flag(
                "FILE",
                "The authority to check the service by.  [default: $ENSEMBLE_CA; of a service on "
                "this machine, the ca.crt in its own folder]",
                path=True,
                instead_of=["insecure"],
            ),
            "type": "string",
            "minLength": 1,
            "description": "A file with the certificate of the service's authority; default: what "
            "ENSEMBLE_CA says; of a service on this machine its own.",
        },
        "insecure": {
            "x-ensemble-flag": {
                "help": "Speak plaintext, also to another machine: everyone on the way can read "
                "the token.",
                "commands": ["run", "resume", "cancel"],
                "instead_of": ["ca"],
            },
            "type": "boolean",
            "description": "Plaintext, also to another machine; default false.",
        },
        "patience": {
            "type": "number",
            "minimum": 0,
            "description": "Seconds to wait, when a run is resumed, for members that are away; "
            "default 300.",
        },
        "shared": {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "description": "Folders that members see under the same path: output of jobs that a "
            "member says is there is read there; default: none.",
        },
    },
}


def _build(options: Mapping[str, Any]) -> Executor:
    from ensemble_service.remote_executor import RemoteExecutor

    return RemoteExecutor(**options)


def _available() -> tuple[bool, str]:
    # It is used where it is named: what would be steered cannot be guessed.
    return False, "name it with --executor remote"


@hookimpl
def ensemble_executors() -> Iterable[ExecutorPlugin]:
    """The executor ``remote``."""
    return [
        ExecutorPlugin(
            name="remote",
            summary="Steers members of the ensemble service, each with a queue of its own",
            build=_build,
            capabilities=CAPABILITIES,
            options=OPTIONS,
            available=_available,
            members=True,
        )
    ]
