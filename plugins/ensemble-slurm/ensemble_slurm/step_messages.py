"""Messages of slurmstepd in the standard error of a batch script, such as why it kills a job.

Slurm reports some reasons nowhere else: with ``OverMemoryKill``, the state is ``FAILED`` and the
reason ``JobLaunchFailure``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ensemble_batch import Place, QueueJob

#: Messages about memory: of ``OverMemoryKill``, which ends the job, and of cgroups, after which the
#: job may go on for hours.
_ENDED = re.compile(r"exceeded (job|step|virtual )?\s*memory limit", re.I)
_MEMORY = re.compile(rf"{_ENDED.pattern}|oom[-_ ]kill|out of memory", re.I)
#: Ends with a reason that an earlier message of a cgroup does not explain.
_OTHER_ENDS = ("cancel", "timeout", "preempted")
#: Most bytes of a file that are read.
_MOST = 8192


class StepMessages:
    """Files with the messages about each job, in the run's folder for output.

    Slurm cannot start a job if its node does not see this folder. So the files are used only for
    jobs whose output goes to this folder too.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def path(self, queue_id: str, places: Sequence[Place]) -> str:
        """Return the path of a job's file; an empty string if these jobs have none."""
        # Slurm expands %.
        seen = all(place.kept for place in places) and "%" not in self._folder
        return os.path.join(self._folder, f"slurm-{queue_id}.err") if seen else ""

    def explain(self, job: QueueJob) -> QueueJob:
        """Return a failed job with the cause and note of its messages."""
        words = self._words(job.id)
        if not words:
            return job
        note = f"{job.note}; {words}" if job.note else words
        explains = _ENDED if job.exception in _OTHER_ENDS else _MEMORY
        if not explains.search(words):
            return replace(job, note=note)
        note = f"it used more memory than it requested (--mem); {note}"
        return replace(job, exception="out-of-memory", note=note, cause=None)

    def _words(self, queue_id: str) -> str:
        """Return each message about a job once, without the name of the node."""
        path, text = os.path.join(self._folder, f"slurm-{queue_id}.err"), ""
        with suppress(OSError), open(path, "rb") as file:
            text = file.read(_MOST).decode("utf-8", "replace")
        if not text:
            with suppress(OSError):
                os.unlink(path)
        lines = re.findall(r"^slurmstepd\S*: error: (.*)", text, re.M)
        return "; ".join(dict.fromkeys(line.strip("* ") for line in lines))
