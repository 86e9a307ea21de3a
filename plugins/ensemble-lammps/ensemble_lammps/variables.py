"""LAMMPS' command line: the variables (``-var NAME VALUE``) and the script (``-in FILE``) in it.

``lammps-vary`` and ``lammps-continue`` change commands with these functions, ``lammps-check`` reads
the log's name from one. What LAMMPS does, found out with LAMMPS itself: of a variable that is given
twice, the first value holds, so a value is replaced and not added; a variable has all the words up
to the next option, and one at least, whatever it looks like; of several scripts or logs, the last
counts; options have one dash and two spellings. A variable from the command line is of style
``index``: it takes precedence over ``variable NAME index …`` in the script, and another style there
is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ensemble_core import EnsembleError, Job, JobGroup

__all__ = ["as_number", "as_word", "changed", "given", "log", "script", "with_changes"]

_VARIABLE = ("-var", "-v")
_SCRIPT = ("-in", "-i")
_LOG = ("-log", "-l")
#: What Ensemble would fill in, were it not doubled.
_PLACEHOLDER = re.compile(r"(?<!\$)(?<!\{)\{([A-Za-z_]\w*)\}(?!\})")


def given(command: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The variables on a command line, each with its value or values."""
    found: dict[str, tuple[str, ...]] = {}
    for begin, end in _variables(command):
        found.setdefault(command[begin + 1], tuple(command[begin + 2 : end]))
    return found


def script(command: Sequence[str]) -> str | None:
    """The script that LAMMPS reads, where the command names it."""
    return _last(command, _SCRIPT)


def log(command: Sequence[str]) -> str | None:
    """The log, where the command names it; LAMMPS takes ``none`` to mean that there is none."""
    return _last(command, _LOG)


def changed(job: Job, group: JobGroup) -> tuple[dict[str, tuple[str, ...]], str | None]:
    """The variables that were set for this one job, which its group would not have given it, and
    the script if that is another. They are as words of a group's command are to be.
    """
    chosen = {name: (job.parameters[name],) for name in group.parameters if name in job.parameters}
    like = replace(group, count=1, parameters={**group.parameters, **chosen})
    command = next(like.jobs(job.index)).command
    usual, own = given(command), script(job.command)
    variables = {
        name: tuple(as_word(word) for word in words)
        for name, words in given(job.command).items()
        if usual.get(name) != words
    }
    return variables, None if own is None or own == script(command) else as_word(own)


def with_changes(
    command: Sequence[str],
    variables: Mapping[str, Sequence[str]],
    other_script: str | None = None,
) -> list[str]:
    """The command with these variables, replaced where it has them and added where not, and with
    another script. Raises :class:`EnsembleError` where LAMMPS would never see them."""
    if (variables or other_script is not None) and not any(
        w in _SCRIPT + _VARIABLE for w in command
    ):
        raise EnsembleError(
            f"{' '.join(command)[:200]!r} has neither -in nor -var, so what is added to it would "
            "not reach LAMMPS",
            hint="write the command without a shell or a script around it, or '-var NAME {NAME}' "
            "in it, with NAME under 'parameters'",
            code="no-lammps-command",
        )
    words: list[str] = []
    missing = dict(variables)
    rest = 0
    for begin, end in _variables(command):
        words += command[rest:begin]
        rest, name = end, command[begin + 1]
        if name not in variables:
            words += command[begin:end]
        elif name in missing:
            words += ["-var", name, *missing.pop(name)]
    words += command[rest:]
    for name, values in missing.items():
        words += ["-var", name, *values]
    return words if other_script is None else _with_script(words, other_script)


def as_number(value: float) -> int | float:
    """The value as one writes it: whole where it is, and without the noise of the arithmetic
    (``1.5 * 1.1`` is 1.65, not 1.6500000000000001)."""
    short = float(f"{value:.15g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def as_word(value: object) -> str:
    """The value as a word of a group's command: what looks like a placeholder is none."""
    return _PLACEHOLDER.sub(r"{{\1}}", str(value))


def _variables(command: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where each ``-var NAME VALUE …`` begins and ends."""
    at = 0
    while at + 2 < len(command):
        end = at + 1
        if command[at] in _VARIABLE:
            end = at + 3
            while end < len(command) and not command[end].startswith("-"):
                end += 1
            yield at, end
        at = end


def _last(command: Sequence[str], option: Sequence[str]) -> str | None:
    found = [b for a, b in pairwise(command) if a in option]
    return found[-1] if found else None


def _with_script(command: Sequence[str], name: str) -> list[str]:
    places = [at for at, word in enumerate(command[:-1]) if word in _SCRIPT]
    words = list(command)
    for at in places:
        words[at + 1] = name
    return words if places else [*words, "-in", name]
