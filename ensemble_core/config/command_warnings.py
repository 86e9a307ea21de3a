"""Warns about a job group's command, and about shell syntax and placeholders that are not expanded.

Without a shell, ``$HOME``, ``~`` and ``*.dat`` are not expanded, in queue options neither.
``{job.host}`` exists only in rules. A command may start more processes or threads than the job
has cores.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ensemble_core.config.placeholder_check import strings
from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.placeholders import BUILTIN_PLACEHOLDERS, RUN_PLACEHOLDERS

#: A word with an operator of a shell: ``|``, ``&&``, ``2>err``, ``<in``, or ``;`` at its end.
_OPERATOR = late_pattern(
    r"\|&?|&|[^\s&|]*(?:&&|\|\|)[^\s&|]*|(?:\d?|&)>{1,2}[^\s<>=]*|<<?[^\s<>=]*|\S*;"
)
_SHELL = late_pattern(r"(ba|da|z|k|mk|a|c|tc|fi)?sh")
#: Programs that expand their arguments themselves, or for which ``$`` and ``*`` have a meaning.
_OTHERS = late_pattern(
    r"[gmn]?awk|sed|perl|ruby|lua|jq|expr|find|[ef]?grep|rg|make|R|Rscript|ssh|python[\d.]*|node"
)
_VARIABLE = late_pattern(r"\$(?:\{[A-Za-z_]\w*[^{}]*\}|[A-Za-z_]\w*|\()")
_HOME = late_pattern(r"~[\w-]*(?=/|$)")
_PLACEHOLDER = late_pattern(r"\{[^{}]*\}")
#: A path with a wildcard.
_WILDCARD = late_pattern(r"\*|(?=.*\*)(?=.*[./]|.*\*$)[\w./~+@*-]*[A-Za-z_./*][\w./~+@*-]*")
#: A field of the event's job. Doubled braces, and those after ``$``, are meant literally.
_OF_A_JOB = late_pattern(r"(?<![{$])\{job\.(?:outputs\[\d+\]|[A-Za-z_]\w*)\}")
#: A name after ``$``, or in doubled braces.
_LITERAL = late_pattern(r"\$\{(\w+)\}|\$(\w+)|\{\{(\w+)(?::[^{}\s]*)?\}\}")
#: What a shell would not take for the beginning of a new line, and words that only a shell knows.
_JOINED = late_pattern(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\\n", re.DOTALL)
_BUILTIN = late_pattern(r"cd|export|source|\.|module|ulimit|set|unset|[A-Za-z_]\w*=.*")
#: ``mdrun`` of GROMACS with thread-MPI, and its options. ``gmx_mpi`` starts no ranks itself.
_MDRUN = late_pattern(r"(?:^|[\s/])(gmx(?:_d)?)\s(?:[^;|&\n]*\s)?mdrun(?=[\s;|&]|$)([^;|&\n]*)")
#: Programs that start the ranks of an MPI program.
_LAUNCHERS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "srun"})


def command_warnings(group: JobGroup, *, split: bool) -> Iterator[str]:
    """Yield the warnings about a group. ``split``: the command was a string, which has been split
    into words.
    """
    yield from _shell_warnings(group, split)
    yield from _thread_warnings(group)


def _shell_warnings(group: JobGroup, split: bool) -> Iterator[str]:
    """Yield a warning for each kind of text in a group that stays as it is without a shell."""
    own = f"job group {group.name!r}: "
    found = _in_command(group, split)
    if found is not None:
        yield (
            f"{own}the command is not run by a shell, so {found[0]!r} {found[1]}; write "
            "bash -c '...' to use a shell"
        )
    for name, value in group.environment.items():
        meant = _VARIABLE.search(value) or _HOME.match(value)
        if meant is not None:
            yield (
                f"{own}the environment is not expanded, so {value!r} in {name} stays as it is; "
                f"write command: bash -c '{name}=... exec ...'"
            )
            break
    paths = [(field, getattr(group, field) or "") for field in ("workdir", "stdout", "stderr")]
    paths += [("a path in outputs", path) for path in group.outputs]
    paths += [("a path in discard", path) for path in group.discard]
    for field, path in paths:
        if _VARIABLE.search(path) or _HOME.match(path):
            yield (
                f"{own}{field} is not expanded, so {path!r} is the name of a folder or file; "
                "write the whole path, or begin with {here} or {cwd}"
            )
            break
    if (literal := _literal_name(group)) is not None:
        yield (
            f"{own}no shell expands options, so {literal[0]!r} does not become the value of "
            f"{literal[1]}; write {{{literal[1]}}}"
        )
    texts = [*group.command, *map(repr, (group.environment, group.options, group.within))]
    texts += [*group.avoid, *(path for _, path in paths)]
    of_a_job = next(filter(None, map(_OF_A_JOB.search, texts)), None)
    if of_a_job is not None:
        yield (
            f"{own}{of_a_job[0]} stays as it is, because only an event has a job; write it under "
            "'with' of a rule or of 'retry'"
        )


def _literal_name(group: JobGroup) -> tuple[str, str] | None:
    """Return the first ``${T}``, ``$T`` or ``{{T}}`` in the options that names a placeholder, and
    this name.
    """
    known = BUILTIN_PLACEHOLDERS | RUN_PLACEHOLDERS | {*group.points, *group.parameters}
    for text, _ in strings(group.options):
        for found in _LITERAL.finditer(text):
            name = next(filter(None, found.groups()))
            if name in known:
                return found[0], name
    return None


def _in_command(group: JobGroup, split: bool) -> tuple[str, str] | None:
    """Return the first word that the user probably expects a shell to change, and what it is."""
    words = _words(group, split)
    is_find = any(os.path.basename(word) == "find" for word in words)  # it ends -exec with ";"
    operators = {"&&", "||", "|"}.intersection(group.command[1:]) if not split else ()
    for word in operators:
        if not any(map(_SHELL.fullmatch, map(os.path.basename, group.command))):
            return word, "is an ordinary argument"
    for word in words if split else ():
        if _OPERATOR.fullmatch(word) and not (is_find and word == ";"):
            return word, "is an ordinary argument"
    if split and words and _BUILTIN.fullmatch(words[0]):
        return words[0], "is no program"
    lines = [line.strip() for line in _JOINED.sub("x", group.text).splitlines()] if split else []
    further = [line for line in lines if line][1:]
    if further and not all(line.startswith("-") for line in further):
        return further[0], "is not a second command, but arguments of the first one"
    if any(_OTHERS.fullmatch(os.path.basename(word)) for word in words):
        return None
    before = ""
    for word in words:
        if _VARIABLE.search(word) or _HOME.match(word) or _HOME.match(word.partition("=")[2]):
            return word, "stays as it is"
        is_operand = not before or before.startswith("-") or _is_number(before) or _is_number(word)
        if not is_operand and _WILDCARD.fullmatch(_PLACEHOLDER.sub("x", word)):
            return word, "names no files"
        before = word
    return None


def _words(group: JobGroup, split: bool) -> list[str]:
    """Return the words of the command before the program of a shell, without quoted ones."""
    found: list[str] = []
    shell = False
    for number, word in enumerate(group.command):
        shell = shell or _SHELL.fullmatch(os.path.basename(word)) is not None
        if shell and number and re.fullmatch(r"-[a-z]*c", group.command[number - 1]):
            break
        if not (split and (f"'{word}'" in group.text or f'"{word}"' in group.text)):
            found.append(word)
    return found


def _is_number(word: str) -> bool:
    """Return True for a number or a product such as ``2*3``, in which ``*`` is no wildcard."""
    return re.fullmatch(r"[-+\d.*/()]*\d[-+\d.*/()]*|\{[^{}]*\}", word) is not None


def _thread_warnings(group: JobGroup) -> Iterator[str]:
    """Yield a warning if the queue starts several launchers of MPI programs, or if the command does
    not tell GROMACS how many threads to start.

    GROMACS up to 2022 starts a thread for each core of the machine. If ``OMP_NUM_THREADS`` is
    set, the threads are ranks that wait for one another without sleeping.
    """
    launcher = os.path.basename(group.command[0]) if group.command else ""
    tasks = group.nodes if group.tasks is None else group.tasks
    once = any(
        options.get("launch") == "none" or options.get("instance")
        for options in group.options.values()
    )
    if launcher in _LAUNCHERS and tasks > 1 and not once:
        otherwise = f"write tasks: 1 and cores_per_task: {tasks * group.cores_per_task}"
        if group.nodes > 1:
            otherwise = "on Slurm write options: {slurm: {launch: none}}"
        yield (
            f"job group {group.name!r}: the queue starts the command once for each of {tasks} "
            f"tasks, so {launcher!r} would start {tasks} programs of several ranks; leave out "
            f"{launcher!r}, or {otherwise}"
        )
    found = _MDRUN.search(" ".join(group.command))
    if found is not None and not re.search(r"\s-nt(mpi)?\s", f"{found[2]} "):
        yield (
            f"job group {group.name!r}: '{found[1]} mdrun' may start threads for all cores of the "
            f"machine, which then share the cores of the task; write "
            f"{found[1]} mdrun -nt {{cores_per_task}}"
        )
