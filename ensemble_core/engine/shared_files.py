"""Finds jobs of a run that would overwrite one another's files."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import field

from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.job_group import JobGroup
from ensemble_core.model.jobs import Job
from ensemble_core.model.numbers import as_text
from ensemble_core.model.placeholders import fill, placeholders
from ensemble_core.quick_dataclass import dataclass

#: Placeholders that differ between the jobs of a group: ``{id}`` and ``{index}`` with ``{group}``
#: also between groups.
_INDEX, _GROUP = late_pattern(r"\{index[:}]"), late_pattern(r"\{group[:}]")
_ID = late_pattern(r"\{id[:}]")


@dataclass(slots=True, eq=False)
class SharedFiles:
    """Which job of the run writes which file, or runs a combination of parameters in which folder.

    The attempts of a job share its files.
    """

    #: The first job, or for numbered files the first group, by the digest of a claim.
    first: dict[bytes, str] = field(default_factory=dict)
    #: Groups for which a shared file was reported.
    reported: dict[str, None] = field(default_factory=dict)

    def claim(self, jobs: Iterable[tuple[Job, JobGroup | None]], *, strict: bool) -> str | None:
        """Note jobs that are about to be submitted.

        Return what the first of them shares with an earlier job, as text, or ``None``. With
        ``strict``, the jobs are then not submitted, so they own nothing.
        """
        shared = None
        new: list[bytes] = []
        for job, source in jobs:
            if not job.workdir and job.stdout is None and job.stderr is None:  # nearly always
                continue
            for claim, owner, what in _claims(job, source):
                digest = hashlib.blake2b(repr(claim).encode(), digest_size=16).digest()
                earlier = self.first.get(digest)
                if earlier is None:
                    self.first[digest] = owner
                    new.append(digest)
                elif earlier != owner and shared is None:
                    shared = f"{earlier} and {owner} {what}"
        if strict and shared is not None:
            for digest in new:
                del self.first[digest]
        return shared


def _claims(job: Job, source: JobGroup | None) -> Iterator[tuple[object, str, str]]:
    """Yield what only one job, or one group, of a run should have.

    Each comes with its owner, and with the words for two owners.
    """
    label = f"{job.group}.{job.index}"
    folder = _joined("" if source is None else source.cwd, job.workdir)
    for name in ("stdout", "stderr"):
        path = getattr(job, name)
        if path is None or _joined(folder, path).startswith("/dev/"):
            continue
        shown = _joined("", job.workdir, path)
        texts = "" if source is None else _joined(source.workdir, getattr(source, name))
        if _ID.search(texts):
            continue
        if not _INDEX.search(texts):
            yield _joined(folder, path), label, f"would both write {shown}"
        elif source is not None and not _GROUP.search(texts):
            # One claim for the whole group, because its own jobs do not share a file.
            names = {"run": source.run, "cwd": source.cwd, "replica": job.replica}
            pattern = fill(
                texts, {**names, **job.parameters, "index": "{index}", "here": source.here}
            )
            file = _joined(source.cwd, pattern)
            yield ("numbered", file), job.group, f"would both write {pattern}"
    if job.workdir and job.parameters and _has_folder_per_combination(source, job):
        workdir = posixpath.normpath(job.workdir)
        pairs = {name: f"{name}={as_text(value)}" for name, value in job.parameters.items()}
        values = ", ".join(pairs.values())
        # Parameters that differ only in their type, 1 and "1", make the same command.
        claim = job.group, folder, sorted(pairs.values()), job.replica
        yield claim, label, f"would both run {values}, replica {job.replica} in {workdir}"
        folders = placeholders("" if source is None else source.workdir or "")
        formatted = [pairs[one.name] for one in folders if one.form and one.name in pairs]
        if formatted and not job.attempt:
            # A format such as {T:.1f} can give different values the same folder.
            yield (job.group, folder), ", ".join(formatted), f"would both run in {workdir}"


def _joined(*parts: str | None) -> str:
    return posixpath.normpath(posixpath.join(*(part or "" for part in parts)))


def _has_folder_per_combination(source: JobGroup | None, job: Job) -> bool:
    """Return True if the folder of a job depends on its parameters, but not on its index.

    A folder that is the same for all jobs is shared on purpose.
    """
    text = "" if source is None or source.workdir is None else source.workdir
    if _INDEX.search(text) or _ID.search(text):
        return False
    names = {one.name for one in placeholders(text)}
    return "replica" in names or not names.isdisjoint(job.parameters)
