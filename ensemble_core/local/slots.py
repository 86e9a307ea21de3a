"""Slots: the cores and GPUs of this machine, and which job holds them.

The executor's thread asks :class:`Slots` for a place for each job and gives it back when nothing of
the job is left. No locks: one thread owns it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ensemble_core.errors import UsageError
from ensemble_core.model.jobs import Job

__all__ = ["Slots", "machine_cores", "visible_gpus"]


def _quota(folder: Path) -> float | None:
    """Cores that a control group's CPU quota is worth; ``None`` where it sets no limit."""
    try:
        quota, _, period = (folder / "cpu.max").read_text().strip().partition(" ")
    except OSError:
        try:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        cores = int(quota) / int(period or 100_000)
    except (ValueError, ZeroDivisionError):
        return None
    return cores if cores > 0 else None


def _group_quota(root: Path) -> float | None:
    """The tightest CPU quota of this process's control groups, v1 or v2, and of their parents."""
    found: list[float] = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        _, controllers, path = fields
        if controllers == "":
            mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        elif "cpu" in controllers.split(","):
            mounts = [f"sys/fs/cgroup/{controllers}", "sys/fs/cgroup/cpu"]
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for mount in mounts:
            # In a container the path may not be visible; the limit is then on the mount itself.
            for depth in range(len(parts), -1, -1):
                cores = _quota(root.joinpath(mount, *parts[:depth]))
                if cores is not None:
                    found.append(cores)
    return min(found, default=None)


def machine_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use: its CPU affinity, or its control group's quota if smaller.

    A quota of one and a half cores counts as one. At least 1.
    """
    cores = len(os.sched_getaffinity(0))
    quota = _group_quota(root)
    if quota is not None:
        cores = min(cores, int(quota + 1e-6))
    return max(1, cores)


def visible_gpus(count: int | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the GPUs that jobs may get, as ``CUDA_VISIBLE_DEVICES`` has them.

    ``count`` ``None`` means all that this process's ``CUDA_VISIBLE_DEVICES`` lists, none if it is
    not set. Raises :class:`UsageError` where ``count`` is more than it lists.
    """
    text = environment.get("CUDA_VISIBLE_DEVICES")
    listed = None if text is None else [word.strip() for word in text.split(",") if word.strip()]
    if listed is not None and "-1" in listed:
        listed = listed[: listed.index("-1")]
    if count is None:
        return tuple(listed or ())
    if not listed:
        return tuple(str(number) for number in range(count))
    if count > len(listed):
        raise UsageError(
            f"gpus: {count} is more than CUDA_VISIBLE_DEVICES lists ({text})",
            hint=f"ask for at most {len(listed)}, or unset CUDA_VISIBLE_DEVICES",
            code="bad-option",
        )
    return tuple(listed[:count])


_ALONE = contextlib.nullcontext()


class Slots:
    """Cores and GPUs, and what is free of them.

    ``size`` may change between ``smallest`` and ``largest``. After it shrank, more may be in use
    than there is: ``free`` is 0 until enough jobs have ended.
    """

    def __init__(self, size: int, smallest: int, largest: int, gpus: Sequence[str] = ()) -> None:
        self.size = size
        self.smallest = smallest
        self.largest = largest
        self.used = 0
        #: Cores that other runs held at the last look, where slots are shared.
        self.others = 0
        #: True while this run waits for what others hold, and what can be read when it is free.
        self.waiting = False
        self.bell = -1
        self.gpus = tuple(gpus)
        self.free_gpus = list(gpus)

    @property
    def free(self) -> int:
        """Cores that no job holds."""
        return max(0, self.size - self.used - self.others)

    def choosing(
        self, next_job: Callable[[], Job | None]
    ) -> contextlib.AbstractContextManager[None]:
        """While jobs are chosen, of which ``next_job`` says the next that waits: no other run with
        these slots chooses."""
        return _ALONE

    def rung(self) -> None:
        """Another run has given something back."""

    def fits(self, cores: int, gpus: int) -> bool:
        """True if a job of this shape could start now."""
        return cores <= self.size - self.used and gpus <= len(self.free_gpus)

    def take(self, cores: int, gpus: int) -> tuple[str, ...]:
        """Hold cores and GPUs; the names of the GPUs."""
        self.used += cores
        taken = tuple(self.free_gpus[:gpus])
        del self.free_gpus[:gpus]
        return taken

    def hold(self, cores: int, gpus: Sequence[str]) -> tuple[str, ...]:
        """Hold cores and those of these GPUs that are here, for a job that has them already."""
        self.used += cores
        held = tuple(gpu for gpu in gpus if gpu in self.free_gpus)
        self.free_gpus = [gpu for gpu in self.free_gpus if gpu not in held]
        return held

    def give_back(self, cores: int, gpus: Sequence[str]) -> None:
        """Free what :meth:`take` held."""
        self.used -= cores
        if gpus:
            self.free_gpus.extend(gpus)
            self.free_gpus.sort(key=self.gpus.index)

    def never(self, job: Job) -> str | None:
        """Why this job can never start here, with what to do about it; ``None`` if it can."""
        if job.cores > self.largest:
            per = f" of {job.cores_per_task} cores" if job.cores_per_task != 1 else ""
            had = f"{self.largest} here" if self.largest == self.size else f"{self.largest} at most"
            option = "--slots" if self.largest == self.size else "--max-slots"
            return (
                f"{job.tasks} task{'s' if job.tasks != 1 else ''}{per} need {job.cores} cores, and"
                f" there are {had}: ask for less (tasks defaults to nodes), or run with"
                f" {option} {job.cores}, which puts more processes than cores on this machine"
            )
        if job.gpus > len(self.gpus):
            return (
                f"the job needs {job.gpus} GPU{'s' if job.gpus != 1 else ''}, and"
                f" {len(self.gpus)} are configured: ask for less, or run with"
                f" --option gpus={job.gpus}"
            )
        return None

    def resize(self, delta: int) -> int:
        """Change the size by ``delta`` as far as the bounds allow; the change that was made."""
        size = min(max(self.size + delta, self.smallest), self.largest)
        change = size - self.size
        self.size = size
        return change

    def bound(self, smallest: int, largest: int) -> None:
        """Set the bounds; the size moves into them."""
        self.smallest, self.largest = smallest, largest
        self.size = min(max(self.size, smallest), largest)

    def occupied(self) -> tuple[int, int, int]:
        """All that :meth:`gauges` depends on, cheaper to compare."""
        return self.size, self.used + self.others, len(self.free_gpus)

    def gauges(self) -> dict[str, float]:
        """The machine as metrics: one node, which is free while a core is."""
        free = self.free
        values: dict[str, float] = {
            "nodes.up": 1.0,
            "nodes.free": 1.0 if free else 0.0,
            "cores.up": float(self.size),
            "cores.free": float(free),
        }
        if self.gpus:
            values["gpus.up"] = float(len(self.gpus))
            values["gpus.free"] = float(len(self.free_gpus))
        return values
