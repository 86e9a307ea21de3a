"""Names and comments of jobs in Slurm, by which a later controller finds the jobs of its run.

A name such as ``sim.0-99@3f9c2a11`` has the group, the indices and the beginning of the run's
identity, because the run's tag identifies no run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from ensemble_core import Job

#: Maximum length of our comment: below Slurm's limit (1,024 in all releases), to leave room for
#: additions.
COMMENT_LIMIT = 900

_WORD = "ensemble"
# The name must identify jobs without the comment, because accounting may store no comments. After
# a retry or a resubmission, the suffix follows the indices, with ``+`` for ``-``:
# ``sim.7+1~2@3f9c2a11``.
_NAME = re.compile(
    r"(?P<group>[^.]+)\.(?P<indices>[0-9,-]+)(?P<suffix>[+~][0-9+~]+)?@(?P<mark>[0-9a-f]{8})"
)

_COMMENT = re.compile(
    rf"\b{_WORD} (?P<tag>\S+) (?P<run>\S+) (?P<attempt>\S+) (?P<group>\S+) (?P<indices>[0-9,-]+)"
    r"(?: (?P<suffix>[-~][0-9~-]+))?(?![\w~,-])(?! [-~])"
)


def mark_of(run_id: str) -> str:
    """Return the part of a run's identity that is in the names of its jobs."""
    return run_id[:8]


def format_indices(indices: Sequence[int]) -> str:
    """Format numbers in Slurm's notation for arrays.

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
    """Parse the output of :func:`format_indices`. Raise ``ValueError`` if invalid.

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
    """Name and comment of a batch in Slurm. A batch is a job array or a single job."""

    #: Tag of the run, for people, and the run's identity.
    tag: str
    run_id: str
    #: Identifies the submission, because a batch may be submitted several times.
    attempt: str
    group: str
    indices: tuple[int, ...]
    #: End of the jobs' ids: ``-1`` after one retry, ``~1`` after one resubmission, or ``-1~1``.
    suffix: str = ""

    @classmethod
    def of(cls, jobs: Sequence[Job], tag: str, run_id: str, attempt: str) -> Label:
        """Return the label for jobs of one group and one suffix."""
        first = jobs[0]
        indices = tuple(job.index for job in jobs)
        return cls(tag, run_id, attempt, first.group, indices, suffix_of(first))

    @property
    def name(self) -> str:
        """Return the job's name in Slurm."""
        shown = format_indices(self.indices)
        if len(shown) > 24:  # a truncated list would be useless
            shown = f"{self.indices[0]}..{self.indices[-1]}"
        # Hyphens mark ranges of indices.
        return f"{self.group}.{shown}{self.suffix.replace('-', '+')}@{mark_of(self.run_id)}"

    @property
    def comment(self) -> str:
        """Return the job's comment in Slurm: the run, the submission and the index of each job.

        :meth:`from_comment` parses it.
        """
        said = (
            f"{_WORD} {quote(self.tag)} {self.run_id} {self.attempt} {quote(self.group)} "
            f"{format_indices(self.indices)}"
        )
        return f"{said} {self.suffix}" if self.suffix else said

    def job(self, task: int | None) -> str | None:
        """Return our id of the job that is the array's task ``task``, counted from 0.

        Returns ``None`` if the array has no such task. Without a number, it is the only job.
        """
        place = 0 if task is None and len(self.indices) == 1 else task
        if place is None or not 0 <= place < len(self.indices):
            return None
        return f"{self.group}.{self.indices[place]}{self.suffix}"

    @classmethod
    def from_comment(cls, comment: str, run_id: str) -> Label | None:
        """Return the batch that a comment describes; ``None`` if it is not a batch of this run.

        A site may have added words before and after ours.
        """
        match = _COMMENT.search(comment)
        if match is None or match["run"] != run_id:
            return None
        try:
            indices = tuple(parse_indices(match["indices"]))
        except ValueError:
            return None
        tag, group = unquote(match["tag"]), unquote(match["group"])
        return cls(tag, run_id, match["attempt"], group, indices, match["suffix"] or "")

    @classmethod
    def from_name(cls, name: str, run_id: str) -> Label | None:
        """Return the batch that a name describes. Used if accounting stores no comments.

        Returns ``None`` if the name was truncated.
        """
        match = _NAME.fullmatch(name)
        if match is None or match["mark"] != mark_of(run_id):
            return None
        try:
            indices = tuple(parse_indices(match["indices"]))
        except ValueError:
            return None
        suffix = (match["suffix"] or "").replace("+", "-")
        return cls("", run_id, "", match["group"], indices, suffix)


def suffix_of(job: Job) -> str:
    """Return the part of a job's id after its index.

    >>> suffix_of(Job(id="melt.3-1~2", group="melt", index=3, command=("lmp",), attempt=1))
    '-1~2'
    """
    return job.id.removeprefix(f"{job.group}.{job.index}")
