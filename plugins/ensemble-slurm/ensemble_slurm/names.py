"""Names and comments of our jobs in Slurm, by which they are found again.

A batch is one ``sbatch``: a job array, or a single job. Its name begins with what a person looks
for in ``squeue`` and ends with a mark of the run (``sim.0-99@3f9c2a11``); accounting keeps it, also
where it keeps no comment. What ids of jobs have behind their index, since they are tried again or
were handed on again after a stop, is there behind the indices (``sim.7+1~2@3f9c2a11``). Its comment
says all: run, attempt to submit, and our indices by the order of the array's tasks. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from ensemble_batch import mark_of

from ensemble_core import Job

__all__ = ["COMMENT_LIMIT", "Label", "format_indices", "parse_indices", "suffix_of"]

#: Characters that Slurm takes as a comment (1,024 in all releases), less what may be put around it.
COMMENT_LIMIT = 900

_WORD = "ensemble"
_NAME = re.compile(
    r"(?P<group>[^.]+)\.(?P<indices>[0-9,-]+)(?P<suffix>[+~][0-9+~]+)?@(?P<mark>[0-9a-f]{8})"
)


def format_indices(indices: Sequence[int]) -> str:
    """Numbers in Slurm's notation.

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


@dataclass(frozen=True, slots=True)
class Label:
    """A batch's name and comment in Slurm: jobs of ``group`` with these indices, in run ``tag``.

    ``attempt`` is the base's name of it. ``suffix`` is what the ids of its jobs have behind their
    index: ``-1`` of another attempt of the run's, ``~1`` of one that was requeued, ``-1~1``.
    """

    tag: str
    attempt: str
    group: str
    indices: tuple[int, ...]
    suffix: str = ""

    @classmethod
    def of(cls, jobs: Sequence[Job], tag: str, attempt: str) -> Label:
        """The label of jobs of one group and one suffix."""
        first = jobs[0]
        return cls(tag, attempt, first.group, tuple(job.index for job in jobs), suffix_of(first))

    @property
    def name(self) -> str:
        """Slurm's name of the job."""
        shown = format_indices(self.indices)
        if len(shown) > 24:  # cut short, it tells no more which they are
            shown = f"{self.indices[0]}..{self.indices[-1]}"
        # A hyphen stands in a range of indices.
        return f"{self.group}.{shown}{self.suffix.replace('-', '+')}@{mark_of(self.tag)}"

    @property
    def comment(self) -> str:
        """Slurm's comment of the job; :meth:`from_comment` reads it."""
        said = (
            f"{_WORD} {quote(self.tag)} {self.attempt} {quote(self.group)} "
            f"{format_indices(self.indices)}"
        )
        return f"{said} {self.suffix}" if self.suffix else said

    def job(self, task: int | None) -> str | None:
        """Our id of one task, counted from 0; ``None`` where there is no such task."""
        place = 0 if task is None else task
        if not 0 <= place < len(self.indices):
            return None
        return f"{self.group}.{self.indices[place]}{self.suffix}"

    @classmethod
    def from_comment(cls, comment: str, tag: str) -> Label | None:
        """The batch of this run that a comment speaks of, if it does."""
        words = comment.split()
        if len(words) not in (5, 6) or words[0] != _WORD or unquote(words[1]) != tag:
            return None
        try:
            indices = tuple(parse_indices(words[4]))
        except ValueError:
            return None
        return cls(tag, words[2], unquote(words[3]), indices, "".join(words[5:]))

    @classmethod
    def from_name(cls, name: str, tag: str) -> Label | None:
        """The batch that a name alone tells, where accounting has kept no comment; ``None`` if the
        name was cut short."""
        match = _NAME.fullmatch(name)
        if match is None or match["mark"] != mark_of(tag):
            return None
        try:
            indices = tuple(parse_indices(match["indices"]))
        except ValueError:
            return None
        suffix = (match["suffix"] or "").replace("+", "-")
        return cls(tag, "", match["group"], indices, suffix)


def suffix_of(job: Job) -> str:
    """The part of a job's id behind its index.

    >>> suffix_of(Job(id="melt.3-1~2", group="melt", index=3, command=("lmp",), attempt=1))
    '-1~2'
    """
    return job.id.removeprefix(f"{job.group}.{job.index}")
