"""Membership of a run: members on record between controllers, and errors for absent ones.

For the executor ``remote``. Loads neither gRPC nor protobuf.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from ensemble_core import ExecutorError, Run

__all__ = [
    "away",
    "listed",
    "no_such_member",
    "read_state",
    "taken_over",
    "write_state",
]

#: What is kept to find a run's members again.
_FILE = "remote.json"


def read_state(run: Run) -> dict[str, Any] | None:
    """The membership that was kept; ``None`` where there is none. Raises :class:`ExecutorError`."""
    if run.state is None:
        return None
    try:
        state: dict[str, Any] = json.loads((run.state / _FILE).read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ExecutorError(
            f"what is known of the run's members cannot be read: {run.state / _FILE}",
            cause=str(error),
            code="no-state",
        ) from None
    return state


def write_state(run: Run | None, state: Mapping[str, Any]) -> None:
    """Keep it, beyond a crash of the machine. Raises :class:`ExecutorError`."""
    if run is None or run.state is None:
        return
    path = run.state / _FILE
    draft = path.with_suffix(".new")
    try:
        run.state.mkdir(parents=True, exist_ok=True)
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        raise ExecutorError(
            f"the run's members cannot be written down: {path}",
            cause=error.strerror or str(error),
            code="no-state",
        ) from None


def taken_over(run: Run | None) -> ExecutorError:
    """Another controller has the run."""
    return ExecutorError(
        "another controller steers this run",
        cause=f"the service knows a newer controller of {run.tag if run else 'it'}",
        hint="look for another 'ensemble run' or 'ensemble resume' of it",
        code="taken-over",
    )


def no_such_member(
    absent: Sequence[str], present: Collection[str], target: str, namespace: str
) -> ExecutorError:
    """These members are not there, or none at all is."""
    there = sorted(present)
    cause = f"there are {listed(there)}" if there else "no member is there"
    hint = "'ensemble member start' starts one beside a queue"
    near = get_close_matches(absent[0], there, 1, 0.75) if absent else []
    if near:
        hint = f"did you mean {near[0]!r}? {hint}"
    what = f"member {absent[0]} is" if len(absent) == 1 else f"members {listed(absent)} are"
    return ExecutorError(
        f"{what} not connected to the service at {target}"
        if absent
        else f"no member of {namespace} is connected to the service at {target}",
        cause=cause,
        hint=hint,
        code="no-member",
    )


def away(run: Run | None, names: Sequence[str], seconds: float) -> ExecutorError:
    """These members did not come back in so many seconds."""
    tag = run.tag if run is not None else "RUN"
    return ExecutorError(
        f"{'member' if len(names) == 1 else 'members'} {listed(names)} "
        f"{'is' if len(names) == 1 else 'are'} away",
        cause=f"waited {seconds:g} s",
        hint=f"nothing is lost: 'ensemble resume {tag}' goes on once they are back",
        code="member-away",
        transient=True,
    )


def listed(names: Sequence[str]) -> str:
    """Names as they are said: 'a, b and c'."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
