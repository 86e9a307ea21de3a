"""Options of the executor ``minicluster``, as a JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["OPTIONS", "PASSED_ON"]

_TEXT = {"type": "string", "minLength": 1}
_NODES = {"type": "integer", "minimum": 1}

#: Options that are those of the executor that jobs go to.
PASSED_ON = ("uri", "queue", "bank", "output", "events")

#: How the service is reached may be another when a run is taken up again.
_REACH: Mapping[str, Any] = {"commands": ["run", "resume", "cancel"]}

#: What ``--option KEY=VALUE`` may set.
OPTIONS: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "name": {
            "x-ensemble-flag": {"metavar": "NAME", "help": "The MiniCluster's own name."},
            "description": "The member whose nodes are asked for: NAMESPACE/NAME, or NAME for one "
            "in 'default'. Needed without mock.",
            **_TEXT,
        },
        "host": {
            "x-ensemble-flag": {"metavar": "HOST", **_REACH},
            "description": "Where the ensemble service is.",
            "default": "localhost",
            **_TEXT,
        },
        "port": {
            "x-ensemble-flag": {"metavar": "PORT", **_REACH},
            "description": "The port of the ensemble service.",
            "type": "integer",
            "minimum": 1,
            "maximum": 65535,
            "default": 50051,
        },
        "token_file": {
            "x-ensemble-flag": {"metavar": "FILE", "path": True, **_REACH},
            "description": "A file with this member's token; default: ENSEMBLE_TOKEN, else the "
            "file that ENSEMBLE_TOKEN_FILE names.",
            **_TEXT,
        },
        "ca": {
            "x-ensemble-flag": {
                "metavar": "FILE",
                "path": True,
                "instead_of": ["insecure"],
                **_REACH,
            },
            "description": "The certificate of the authority that vouches for the service; "
            "default: ENSEMBLE_CA; of a service on this machine its own.",
            **_TEXT,
        },
        "insecure": {
            "x-ensemble-flag": {"instead_of": ["ca"], **_REACH},
            "description": "Speak to a service on another machine without TLS.",
            "type": "boolean",
            "default": False,
        },
        "arrival_timeout": {
            "description": "Seconds that nodes may take to come up in Flux once they are granted, "
            "or to go.",
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 600,
        },
        "drain_timeout": {
            "description": "Seconds that a shrink waits for jobs on the nodes that are to go.",
            "type": "number",
            "minimum": 0,
            "default": 3600,
        },
        "settle_time": {
            "description": "Seconds after which a node that was up before it was asked for is "
            "taken for a new one, and not for one on its way out.",
            "type": "number",
            "minimum": 0,
            "default": 35,
        },
        "report": {
            "description": "Tell the service how the queue stands; false where a member agent does "
            "(ensemble member start).",
            "type": "boolean",
            "default": True,
        },
        "mock": {
            "x-ensemble-flag": {"help": "Rehearse without the ensemble service."},
            "description": "Ask no service: sizes are made up, within min_size and max_size. Jobs "
            "go to Flux, or where there is none to this machine, a core for each node.",
            "type": "boolean",
            "default": False,
        },
        "kubernetes": {
            "x-ensemble-flag": {"help": "Nothing: as upstream's operator calls the program."},
            "description": "Accepted and ignored, with a warning: upstream's operator says it.",
            "type": "boolean",
            "default": False,
        },
        "size": {"description": "Nodes to begin with (mock); default: min_size.", **_NODES},
        "min_size": {"description": "Fewest nodes (mock).", "default": 1, **_NODES},
        "max_size": {"description": "Most nodes (mock).", "default": 4, **_NODES},
        "compose": {
            "description": "The executor that jobs go to; default: flux, or with mock and without "
            "Flux local.",
            **_TEXT,
        },
        "uri": {"description": "As of executor flux: the instance.", **_TEXT},
        "queue": {"description": "As of executor flux: the queue for jobs.", **_TEXT},
        "bank": {"description": "As of executor flux: the bank for jobs.", **_TEXT},
        "output": {"description": "As of executor flux: where output goes.", **_TEXT},
        "events": {"description": "As of executor flux: where events come from.", **_TEXT},
    },
}
