"""Sends control requests (submit, retry, set, enable, disable, stop, cancel) to a live run.

The requests are files in the run's folder, because the controller may be on another machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ensemble_core.cli.error_format import errors_as_json
from ensemble_core.cli.json_output import to_json
from ensemble_core.cli.name_completion import switchable
from ensemble_core.cli.options import complete_names, json_option, run_argument, state_option
from ensemble_core.display.text_style import format_fields, printable
from ensemble_core.errors import Location, UsageError

if TYPE_CHECKING:
    from ensemble_core.journal.lock import Lock
    from ensemble_core.session.kept_run import KeptRun

#: Exit code if the same command may succeed later (EX_TEMPFAIL in sysexits.h).
AGAIN = 75
#: Seconds between checks whether the controller has exited.
_LOOK = 0.2
#: Seconds before a command says what it waits for.
_PATIENCE = 30.0


def request(run: str, state: str | None, as_json: bool, action: Mapping[str, Any]) -> int:
    """Send a request to the run and print the resulting decisions. Return the exit code."""
    from ensemble_core.journal.lock import Lock
    from ensemble_core.journal.request_files import ask, requester
    from ensemble_core.journal.run_store import find_run, state_folder

    with errors_as_json(as_json):
        folder = find_run(state_folder(state), run)
        decided = ask(folder, action, requester(), _note_about(Lock(folder)))
    lines = [printable(_decision_text(decision)) for decision in decided] or ["no effect"]
    say(as_json, {"tag": folder.name, "decided": decided}, "\n".join(lines))
    return 0 if any(one["type"] != "log" for one in decided) else 1


def _decision_text(decision: Mapping[str, Any]) -> str:
    kind = decision["type"]
    if kind == "submit":
        jobs = [job["id"] for job in decision["jobs"]]
        shown = ", ".join(jobs if len(jobs) <= 6 else [*jobs[:5], f"... ({len(jobs)} jobs)"])
        return f"submitted {shown}" if shown else "accepted, not submitted yet"
    if kind == "set-group":
        fields = format_fields(decision["fields"])
        names = set(decision["fields"])
        which = "jobs that are not in the queue yet"
        if names <= {"at_once", "uses", "retry"}:
            which = "jobs that are not over"
        elif names <= {"parameters", "points", "count", "replicas"}:
            which = "jobs of later submits"
        return f"{decision['group']}: {fields}, for {which}"
    if kind == "set-limits":
        return f"limits: {format_fields(decision['limits'])}"
    if kind in ("enable-rule", "disable-rule"):
        return f"{kind.partition('-')[0]}d {', '.join(decision['rules'])}"
    if kind == "fired":
        return f"rule {decision['rule']} fired in response"
    if kind == "cancel":
        jobs = decision["jobs"]
        return f"cancelled {', '.join(jobs)}" if jobs else "cancelled jobs that were not submitted"
    if kind == "retry":
        return f"{decision['job']} runs again, as a further attempt"
    if kind == "look-up":
        return f"{len(decision['jobs'])} jobs are looked up in earlier runs (reuse)"
    return str(decision.get("message") or kind)


def wait_for_controller_exit(lock: Lock) -> None:
    """Wait until the run has no controller."""
    note = _note_about(lock)
    while lock.controller() is not None:
        note()
        time.sleep(_LOOK)


def _note_about(lock: Lock) -> Callable[[], None]:
    """Return a function that says once, after some time, which controller a command waits for."""
    from ensemble_core.journal.lock import describe_owner

    due: float | None = time.monotonic() + _PATIENCE

    def note() -> None:
        nonlocal due
        if due is None or time.monotonic() <= due:
            return
        controller = lock.controller()
        if controller is not None:
            due = None
            click.echo(
                f"waiting for the controller of run {lock.path.parent.name} "
                f"({describe_owner(controller)}); Ctrl-C ends this command, not the run",
                err=True,
            )

    return note


def given_values(texts: Sequence[str], example: str, origin: str = "") -> dict[str, Any]:
    """Return the values in texts ``NAME=VALUE``, parsed as in a file.

    Errors show ``origin``, such as the option. Raises :class:`UsageError`.
    """
    from ensemble_core.config.yaml_reader import read_value

    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        where = f"{origin} {text}".strip()
        if not equals or not name.strip():
            raise UsageError(
                f"{text!r} is not of the form NAME=VALUE",
                where=Location(where),
                hint=f"for example: {example}",
                code="bad-override",
            )
        _add(found, name.strip(), read_value(value, where)[0])
    return found


def given_fields(texts: Sequence[str], example: str, origin: str = "") -> dict[str, Any]:
    """Return the fields in texts ``FIELD=VALUE``, with dotted names as mappings.

    >>> given_fields(["retry.times=6", "retry={wait: 5}", "nodes=2"], "nodes=4")
    {'retry': {'times': 6, 'wait': 5}, 'nodes': 2}
    """
    found: dict[str, Any] = {}
    for name, value in given_values(texts, example, origin).items():
        field, *inner = name.split(".")
        for key in reversed(inner):
            value = {key: value}
        _add(found, field, value)
    return found


def _add(found: dict[str, Any], name: str, value: Any) -> None:
    """Add a value. Mappings are merged, whatever their order."""
    if name not in found:
        found[name] = value
    elif isinstance(found[name], dict) and isinstance(value, dict):
        for key, inner in value.items():
            _add(found[name], key, inner)
    else:
        raise UsageError(
            f"{name!r} is set twice", hint="write it once; a list is [1, 2]", code="bad-override"
        )


def switch_command(word: str) -> click.Command:
    """Return the command ``enable`` or ``disable``."""
    enabled = word == "disable"

    def names(kept: KeptRun) -> list[str]:
        return switchable(kept, enabled)

    @click.command(
        word,
        help=f"{word.capitalize()} rules of a live run, like the action '{word}'.\n\n"
        "The run's journal records who made the request: see 'ensemble events' and 'ensemble "
        "why'.",
    )
    @run_argument
    @click.argument(
        "rules",
        metavar="RULE...",
        nargs=-1,
        required=True,
        shell_complete=complete_names(names),
    )
    @state_option
    @json_option
    def switch(run: str, rules: tuple[str, ...], state: str | None, as_json: bool) -> int:
        return request(run, state, as_json, {"name": word, "rules": list(dict.fromkeys(rules))})

    return switch


def say(as_json: bool, told: Mapping[str, Any], text: str) -> None:
    """Print the outcome of a request as text, or as JSON."""
    click.echo(to_json(told) if as_json else text)
