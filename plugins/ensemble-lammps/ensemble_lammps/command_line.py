"""Reads and changes a LAMMPS command line: its variables (``-var``) and its script (``-in``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise

from ensemble_core import EnsembleError, Job, JobGroup, as_text, escape_braces

# LAMMPS behaves as follows (seen in tests):
#
# - If a command sets a variable twice, the first value counts. So a new value replaces the old one.
# - The value of a variable is the next word, even if it begins with a dash, and all further words
#   up to the next option.
# - If a command has several scripts or logs, the last counts.
# - Each option begins with one dash and has a long and a short form.
# - A value in the command replaces that of ``variable NAME index …`` in the script. If the script
#   defines the variable with another style, LAMMPS ends with an error.
_VARIABLE = ("-var", "-v")
_SCRIPT = ("-in", "-i")
_LOG = ("-log", "-l")


def parse_variables(command: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of each variable on a command line."""
    found: dict[str, tuple[str, ...]] = {}
    for name, words in _parts(command):
        if name:
            found.setdefault(name, tuple(words[2:]))
    return found


def script(command: Sequence[str]) -> str | None:
    """Return the script that the command names, if any."""
    return _last(command, _SCRIPT)


def log(command: Sequence[str]) -> str | None:
    """Return the log that the command names, if any; ``none`` means no log."""
    return _last(command, _LOG)


def find_changes(job: Job | None, group: JobGroup) -> tuple[dict[str, tuple[str, ...]], str | None]:
    """Return the variables and the script that differ between this job and its group.

    Placeholders in values are escaped. The script is ``None`` if it does not differ. A job of
    another group has nothing to compare.
    """
    if job is None or job.group != group.name:
        return {}, None
    chosen = {name: (job.parameters[name],) for name in group.parameters if name in job.parameters}
    like = replace(group, count=1, parameters={**group.parameters, **chosen})
    command = next(like.jobs(job.index)).command
    usual, own = parse_variables(command), script(job.command)
    variables = {
        name: tuple(as_word(word) for word in words)
        for name, words in parse_variables(job.command).items()
        if usual.get(name) != words
    }
    return variables, None if own is None or own == script(command) else as_word(own)


def with_changes(
    command: Sequence[str], variables: Mapping[str, Sequence[str]], other_script: str | None = None
) -> list[str]:
    """Return the command with these variables and this script replaced or added.

    Raises :class:`EnsembleError` if LAMMPS would not see the variables.
    """
    if (variables or other_script is not None) and {*_SCRIPT, *_VARIABLE}.isdisjoint(command):
        raise EnsembleError(
            f"{' '.join(command)[:200]!r} has neither -in nor -var, so LAMMPS would not see the "
            "variables or the script that this action sets",
            hint="start LAMMPS directly in 'command', without a shell or a script around it; or "
            "write '-var NAME {NAME}' in the command, and NAME under 'parameters'",
            code="no-lammps-command",
        )
    missing = {name: ["-var", name, *values] for name, values in variables.items()}
    words: list[str] = []
    for name, part in _parts(command):
        words += missing.pop(name, []) if name in variables else part
    words += chain.from_iterable(missing.values())
    if other_script is None:
        return words
    places = [at for at, word in enumerate(words[:-1]) if word in _SCRIPT]
    for at in places:
        words[at + 1] = other_script
    return words if places else [*words, "-in", other_script]


def as_number(value: float) -> int | float:
    """Return the value as people write it: an integer if possible, and without rounding noise.

    ``1.5 * 1.1`` is 1.65, not 1.6500000000000001.
    """
    short = float(f"{value:.15g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def as_word(value: object) -> str:
    """Return the value as a word of a group's command, with placeholders escaped."""
    return escape_braces(as_text(value))


def _parts(command: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield each ``-var NAME VALUE …`` with the name, and each other word with an empty name."""
    at = 0
    while at < len(command):
        name, end = "", at + 1
        if command[at] in _VARIABLE and at + 2 < len(command):
            name, end = command[at + 1], at + 3
            while end < len(command) and not command[end].startswith("-"):
                end += 1
        yield name, command[at:end]
        at = end


def _last(command: Sequence[str], option: Sequence[str]) -> str | None:
    return next((b for a, b in reversed([*pairwise(command)]) if a in option), None)
