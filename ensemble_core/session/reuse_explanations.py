"""Opens the earlier runs of ``--reuse``, and explains why a job is reused or not.

``journal.reusable_jobs`` finds the equal job.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from ensemble_core.engine.replicas import combination
from ensemble_core.errors import UsageError
from ensemble_core.journal.reader import NAME, Journal
from ensemble_core.journal.reusable_jobs import EarlierJobs, identities
from ensemble_core.journal.run_folder import require_own
from ensemble_core.journal.run_state import read_info
from ensemble_core.journal.run_store import find_run
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.identity import Source, parts_of
from ensemble_core.model.job_group import JobGroup
from ensemble_core.runtime.identities import identify, uses_job_files
from ensemble_core.runtime.input_files import Inputs, has_shell_text, unknown


def open_earlier(
    state: Path, runs: Sequence[str], ensemble: Ensemble, warn: Callable[[str], None]
) -> tuple[tuple[str, ...], EarlierJobs]:
    """Return the folders and the jobs of these runs.

    Raises :class:`EnsembleError` for a run that is unknown, damaged, live, simulated, owned by
    another user, or written by a newer version.
    """
    earlier = EarlierJobs(files=uses_job_files(ensemble))
    folders = []
    try:
        for run in runs:
            folder = find_run(state, run)
            _check(folder)
            if not earlier.read(folder):
                warn(
                    f"no jobs of {folder.name} are reused: its journal has no job identities "
                    "(an earlier version of Ensemble wrote it, or the run submitted no jobs)"
                )
            folders.append(str(folder.absolute()))
        for warning in _unseen_files(ensemble):
            warn(warning)
    except BaseException:
        earlier.close()
        raise
    return tuple(folders), earlier


def executor_of(folders: Sequence[str]) -> Mapping[str, Any]:
    """Return the ``name`` and ``options`` of the executor of the first of these runs.

    A run that has not been started yet is compared with the same executor.
    """
    with Journal(Path(folders[0]) / NAME) as journal:
        found: Mapping[str, Any] = journal.about.get("executor", {})
        return found


def _unseen_files(ensemble: Ensemble) -> Iterator[str]:
    """Yield warnings about groups without ``inputs``, some of whose files may not be compared."""
    groups = ensemble.begun("{run}", os.getcwd()).groups.values()
    entries = [entry for group in groups for entry in (group, *group.more)]
    entries = [entry for entry in entries if entry.reuse and not entry.inputs]
    inputs, seen = Inputs(), dict[str, dict[str, str]]()
    scripts = [entry for entry in entries if has_shell_text(entry)]
    blind = [
        entry
        for entry in entries
        if entry not in scripts and not inputs.of(entry.job(0, _first_values(entry)), entry, seen)
    ]
    for found, problem in (
        (blind, "no file of {} is compared, because the command names no file"),
        (scripts, "some files of {} may not be compared, because the command is a shell script"),
    ):
        if found:
            names = ", ".join(dict.fromkeys(repr(entry.name) for entry in found))
            yield (
                f"--reuse: {problem.format(names)}. If such a file has changed, old results are "
                "reused; list the program and its files under 'inputs' of the group"
            )


def _first_values(group: JobGroup) -> dict[str, object]:
    columns = {**group.points, **group.parameters}
    return {name: values[0] for name, values in columns.items() if values}


def _check(folder: Path) -> None:
    """Raise :class:`EnsembleError` if jobs of the run in this folder cannot be reused."""
    require_own(folder)
    if read_info(folder).state == "running":
        raise UsageError(
            f"run {folder.name} is live: its jobs cannot be reused yet",
            hint=f"wait until it ends, or stop it: ensemble stop {folder.name}",
            code="run-active",
        )
    with Journal(folder / NAME) as journal:
        journal.check_if_small()
        if journal.about.get("simulated"):
            raise UsageError(
                f"run {folder.name} was simulated: it has no real jobs",
                hint="name a run that 'ensemble run' started",
                code="run-simulated",
            )


class Reason(NamedTuple):
    """Reason why no earlier job is reused."""

    part: str  #: The part of the identity that differs: ``parameters``, an input …
    text: str  #: Describes the difference.
    job: str | None  #: The most similar earlier job.


class EarlierIdentities:
    """The identities of the jobs of earlier runs, to explain why a job is not reused."""

    def __init__(self, folders: Iterable[Path]) -> None:
        #: By parameters and replica, with and without the name of the group.
        self._nearest: dict[tuple[object, ...], tuple[str, Mapping[str, Any]]] = {}
        self._same: dict[str, str] = {}
        for folder in folders:
            with Journal(folder / NAME) as journal:
                for found in identities(journal):
                    name = f"{folder.name}/{found.job}"
                    key = combination(found.parts["parameters"]), found.parts["replica"]
                    for each in (key, (*key, found.job.rpartition(".")[0])):
                        self._nearest.setdefault(each, (name, found.parts))
                    self._same.setdefault(found.identity, name)

    def reason(self, group: str, identity: str, parts: Mapping[str, Any]) -> Reason:
        """Return the reason why no earlier job is reused for a job of this group with this identity
        and these parts.
        """
        unclear = unknown(parts.get("inputs", {}))
        if unclear is not None:
            return Reason(f"{unclear[0]} ({unclear[1]})", f"{unclear[0]}: {unclear[1]}", None)
        same = self._same.get(identity)
        if same is not None:
            text = (
                "the same, but it is already reused for another job, did not succeed, continued an "
                "earlier attempt, or its inputs changed before its end"
            )
            return Reason("not usable", text, same)
        given, replica = parts["parameters"], parts["replica"]
        key = combination(given), replica
        nearest = self._nearest.get((*key, group), self._nearest.get(key))
        if nearest is None:
            values = ", ".join(f"{name}={value}" for name, value in given.items())
            missing = f"no job with {values}" if values else "no job"
            return Reason("parameters", f"{missing}, replica {replica}", None)
        name, earlier = nearest
        part, text = next(_differences(earlier, parts))
        return Reason(part, text, name)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the parts in which two identities differ, each with a description."""
    if before["command"] != now["command"]:
        yield "command", _command_change(before["command"], now["command"])
    for part in ("environment", "options", "inputs", "observe"):
        old, new = before.get(part, {}), now.get(part, {})
        for name in dict.fromkeys([*old, *new]):
            if old.get(name) == new.get(name):
                continue
            if part == "inputs":
                change = (
                    "is new" if name not in old else "is gone" if name not in new else "changed"
                )
                yield name, f"{name} {change}"
            else:
                change = f"{old.get(name)!r} → {new.get(name)!r}"
                yield part, f"{part} {name}: {change}"
    for part in ("tasks", "within", "environment_from", "parameters", "replica"):
        if before.get(part) != now.get(part):
            yield part, f"{part}: {before.get(part)!r} → {now.get(part)!r}"
    yield "version", "another version wrote its identity"


def _command_change(before: Sequence[str], now: Sequence[str]) -> str:
    """Describe how a command has changed: the first word that differs, with its option."""
    if len(before) != len(now):
        return f"'{shlex.join(before)}' → '{shlex.join(now)}'"
    at = next(place for place, word in enumerate(before) if word != now[place])
    first = at - 1 if at and now[at - 1].startswith("-") else at
    old, new = (" ".join(words[first : at + 1]) for words in (before, now))
    return f"'{old}' → '{new}'"


class Preview(NamedTuple):
    """Preview of a group: how many of its ``jobs`` can be ``reused``."""

    group: str
    jobs: int
    reused: int
    #: Number of jobs that cannot be reused, by the part of the identity that differs.
    missing: Mapping[str, int]
    #: Files that are compared, as written in the ensemble file, over all jobs.
    files: Sequence[str]


def preview(
    ensemble: Ensemble, state: Path, runs: Sequence[str], warn: Callable[[str], None]
) -> list[Preview]:
    """Look up the jobs of one submit of each group, as a run would do.

    The options of the executor are those of the first run. Raises the errors of
    :func:`open_earlier`.
    """
    folders, earlier = open_earlier(state, runs, ensemble, warn)
    known = EarlierIdentities(map(Path, folders))
    inputs, seen = Inputs(), dict[str, dict[str, str]]()
    found = []
    with closing(earlier):
        begun = ensemble.begun("{run}", os.getcwd(), folders, executor_of(folders))
        for group in begun.groups.values():
            if group.missing or not group.reuse:
                continue
            reused, missing, names = 0, Counter[str](), dict[str, str]()
            for place, job in enumerate(group.jobs(0)):
                entry = group.element(place)[0]
                source = Source.of(entry)
                identity, files = identify(job, entry, source, inputs, seen)
                names |= files
                if unknown(files) is None and earlier.take(identity) is not None:
                    reused += 1
                else:
                    parts = parts_of(job, source.parts, files)
                    missing[known.reason(group.name, identity, parts).part] += 1
            found.append(Preview(group.name, group.size, reused, missing, tuple(names)))
    return found


def explain(journal: Journal, job: str | None) -> Iterator[tuple[str, str | None, Reason | None]]:
    """Yield each job of a run with the earlier job that it reuses, or the reason why it reuses
    none.

    If ``job`` is given, yield only this job. Raises :class:`EnsembleError` if the run was started
    without ``--reuse`` or has no such job.
    """
    folders = [Path(folder) for folder in journal.about.get("reuse", ())]
    if not folders:
        raise UsageError(
            f"run {journal.tag} was started without --reuse",
            hint="'ensemble validate FILE --reuse RUN' shows what a run could reuse",
            code="no-reuse",
        )
    known = EarlierIdentities(folder for folder in folders if folder.exists())
    there = False
    for found in identities(journal):
        if job is not None and found.job != job:
            continue
        there = True
        if found.reused is not None:
            yield found.job, found.reused, None
        else:
            group = found.job.rpartition(".")[0]
            yield found.job, None, known.reason(group, found.identity, found.parts)
    if job is not None and not there:
        raise UsageError(
            f"run {journal.tag} has no job {job!r}, or did not compare it with earlier jobs",
            hint=f"'ensemble jobs {journal.tag}' lists its jobs",
            code="no-such-job",
        )
