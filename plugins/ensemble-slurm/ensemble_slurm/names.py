"""Names and comments of our jobs in Slurm, by which they are found again.

A batch is one ``sbatch``: a job array, or a single job. Its name begins with what a person looks
for in ``squeue`` and ends with a mark of the run (``sim.0-99@3f9c2a11``); accounting keeps it, also
where it keeps no comment. What ids of jobs have behind their index, since they are tried again or
were handed on again after a stop, is there behind the indices (``sim.7+1~2@3f9c2a11``). Its comment
says all: run, batch, attempt, and our indices by the order of the array's tasks. Pure; used by
whoever submits or looks for jobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from ensemble_batch import mark_of

from ensemble_core import Job

__all__ = [
    "COMMENT_LIMIT",
    "Batch",
    "fits",
    "format_indices",
    "parse_indices",
    "queue_id",
    "suffix_of",
]

#: Characters that Slurm takes as a comment (1,024 in all releases), less what may be put around it.
COMMENT_LIMIT = 900

_WORD = "ensemble"
_NAME = re.compile(
    r"(?P<group>.+)\.(?P<indices>[0-9,-]+)(?P<suffix>[+~][0-9+~]+)?@(?P<mark>[0-9a-f]{8})"
)


def format_indices(indices: Sequence[int]) -> str:
    """Ascending numbers in Slurm's notation.

    >>> format_indices([0, 1, 2, 5, 8, 9])
    '0-2,5,8-9'
    """
    parts: list[str] = []
    at = 0
    while at < len(indices):
        first = last = indices[at]
        while at + 1 < len(indices) and indices[at + 1] == last + 1:
            at += 1
            last = indices[at]
        parts.append(str(first) if first == last else f"{first}-{last}")
        at += 1
    return ",".join(parts)


def parse_indices(text: str) -> list[int]:
    """The numbers that :func:`format_indices` wrote. Raises ``ValueError``.

    >>> parse_indices("0-2,5")
    [0, 1, 2, 5]
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        found.extend(range(int(first), int(last) + 1) if dash else (int(first),))
    return found


def queue_id(job: str, task: int | None) -> str:
    """How Slurm's commands call a job: ``123``, or ``123_4`` for a task of an array."""
    return job if task is None else f"{job}_{task}"


@dataclass(frozen=True, slots=True)
class Batch:
    """One ``sbatch``: jobs of ``group`` with these ascending indices, the ``attempt``-th time.

    ``key`` names the batch within its run. ``suffix`` is what the ids of its jobs have behind their
    index: ``-1`` of another attempt of the run's, ``~1`` of one that was requeued, ``-1~1``.
    """

    tag: str
    key: str
    group: str
    indices: tuple[int, ...]
    attempt: int = 1
    suffix: str = ""

    @property
    def name(self) -> str:
        """Slurm's name of the job."""
        shown = format_indices(self.indices)
        if len(shown) > 24:
            shown = f"{self.indices[0]}-{self.indices[-1]}"
        # A hyphen stands in a range of indices.
        return f"{self.group}.{shown}{self.suffix.replace('-', '+')}@{mark_of(self.tag)}"

    @property
    def comment(self) -> str:
        """Slurm's comment of the job; :meth:`from_comment` reads it."""
        said = (
            f"{_WORD} {quote(self.tag)} {self.key} {self.attempt} {quote(self.group)} "
            f"{format_indices(self.indices)}"
        )
        return f"{said} {self.suffix}" if self.suffix else said

    @property
    def array(self) -> bool:
        """True if it is a job array."""
        return len(self.indices) > 1

    def jobs(self) -> list[str]:
        """Our ids, in the order of the array's tasks."""
        return [self._id(index) for index in self.indices]

    def queue_ids(self, job: str) -> list[str]:
        """Slurm's ids of its jobs, where the batch's is ``job``."""
        tasks = range(len(self.indices)) if self.array else (None,)
        return [queue_id(job, task) for task in tasks]

    def job(self, task: int | None) -> str | None:
        """Our id of one task; ``None`` where there is no such task."""
        place = 0 if task is None else task
        if not 0 <= place < len(self.indices):
            return None
        return self._id(self.indices[place])

    def _id(self, index: int) -> str:
        return f"{self.group}.{index}{self.suffix}"

    @classmethod
    def from_comment(cls, comment: str, tag: str) -> Batch | None:
        """The batch of this run that a comment speaks of, if it does."""
        words = comment.split()
        if len(words) not in (6, 7) or words[0] != _WORD or unquote(words[1]) != tag:
            return None
        try:
            indices = tuple(parse_indices(words[5]))
            suffix = words[6] if len(words) > 6 else ""
            return cls(tag, words[2], unquote(words[4]), indices, int(words[3]), suffix)
        except ValueError:
            return None

    @classmethod
    def from_name(cls, name: str, tag: str) -> Batch | None:
        """The batch that a name alone tells, where accounting has kept no comment. Only of a
        contiguous batch, for others' names are cut short."""
        match = _NAME.fullmatch(name)
        if match is None or match["mark"] != mark_of(tag):
            return None
        try:
            indices = tuple(parse_indices(match["indices"]))
        except ValueError:
            return None
        suffix = (match["suffix"] or "").replace("+", "-")
        return cls(tag, "", match["group"], indices, suffix=suffix)


def suffix_of(job: Job) -> str:
    """The part of a job's id behind its index.

    >>> suffix_of(Job(id="melt.3-1~2", group="melt", index=3, command=("lmp",), attempt=1))
    '-1~2'
    """
    return job.id.removeprefix(f"{job.group}.{job.index}")


def fits(tag: str, key: str, group: str, indices: Iterable[int]) -> bool:
    """True if a batch of these can say in its comment what it is."""
    return len(Batch(tag, key, group, tuple(indices)).comment) <= COMMENT_LIMIT
