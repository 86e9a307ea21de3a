"""Slots: the cores and GPUs of this machine, which of them are in use, and which a task gets."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from ensemble_core.errors import UsageError
from ensemble_core.model.byte_sizes import memory_text
from ensemble_core.model.jobs import Job

#: Variables that list the GPUs of a process: for CUDA, ROCm, HIP, and Level Zero.
_GPU_VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
)


def _quota(folder: Path) -> float | None:
    """Return the CPU quota of a cgroup in cores, or ``None`` if it has no limit."""
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
    """Return the lowest CPU quota of this process's cgroups (v1 or v2) and their parents, or
    ``None``.
    """
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
            # In a container, the path may not be visible; the limit is then on the mount itself.
            for depth in range(len(parts), -1, -1):
                cores = _quota(root.joinpath(mount, *parts[:depth]))
                if cores is not None:
                    found.append(cores)
    return min(found, default=None)


def machine_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use (at least 1).

    The CPU affinity and the quota of the cgroup limit it. A quota of 1.5 cores counts as 1.
    """
    cores = len(os.sched_getaffinity(0))
    quota = _group_quota(root)
    if quota is not None:
        cores = min(cores, int(quota + 1e-6))
    return max(1, cores)


def machine_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that the jobs of this process may use together.

    This is the memory of the machine or, if it is less, the limit of this process's cgroups (v1 or
    v2) and their parents. Return ``None`` if it is unknown.
    """
    found: list[int] = []
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal:")]
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            mount, name = "sys/fs/cgroup", "memory.max"
            if controllers:
                mount, name = f"{mount}/memory", "memory.limit_in_bytes"
                if "memory" not in controllers.split(","):
                    continue
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for depth in range(len(parts), -1, -1):
                limit = _number(root.joinpath(mount, *parts[:depth], name))
                if limit is not None:
                    found.append(limit)
    except (OSError, ValueError, IndexError):
        pass
    return min(found, default=None)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())  # "max": no limit
    except (OSError, ValueError):
        return None


def bindable_cores() -> tuple[int, ...]:
    """Return the numbers of the cores to which tasks can be bound, in ascending order.

    Empty if a quota of the cgroup leaves fewer cores than this process sees: the quota holds for
    the time on all of them, and other containers may be busy on any of them.
    """
    cores = sorted(os.sched_getaffinity(0))
    return tuple(cores) if machine_cores() == len(cores) else ()


def visible_gpus(count: int | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the GPUs for jobs, from the first of ``_GPU_VARIABLES`` that is set.

    If ``count`` is ``None``, return all GPUs in this variable, or none if it is not set. Raises
    :class:`UsageError` if the variable has fewer than ``count`` GPUs.
    """
    name = next((name for name in _GPU_VARIABLES if name in environment), _GPU_VARIABLES[0])
    text = environment.get(name)
    listed = None if text is None else [word.strip() for word in text.split(",") if word.strip()]
    if listed is not None and "-1" in listed:
        listed = listed[: listed.index("-1")]
    if count is None:
        return tuple(listed or ())
    if not listed:
        return tuple(str(number) for number in range(count))
    if count > len(listed):
        raise UsageError(
            f"'gpus' is {count}, but {name} lists only {text}",
            hint=f"set 'gpus' to at most {len(listed)}, or unset {name}",
            code="bad-option",
        )
    return tuple(listed[:count])


def default_pool() -> str:
    """Return the file through which the runs of this user on this machine share cores and GPUs.

    It does not depend on the environment, which may differ between the user's shells.
    """
    return f"/tmp/ensemble-{os.getuid()}.pool"


class Slots:
    """Cores and GPUs, and which of them are free.

    ``size`` may change between ``smallest`` and ``largest``. After shrinking, more slots than
    ``size`` may be in use until enough jobs have ended. ``cores`` are the numbers of the cores to
    which tasks are bound; empty: they are not bound.
    """

    def __init__(
        self,
        size: int,
        smallest: int,
        largest: int,
        gpus: Sequence[str] = (),
        cores: Sequence[int] = (),
        memory: int | None = None,
    ) -> None:
        self.size = size
        self.smallest = smallest
        self.largest = largest
        self.used = 0
        #: How many cores other runs held at the last check, if slots are shared.
        self.others = 0
        #: ``waiting``: whether this run waits for slots of other runs. ``wake_fd``: the descriptor
        #: that wakes it.
        self.waiting = False
        self.wake_fd = -1
        self.gpus = tuple(gpus)
        self.free_gpus = list(gpus)
        #: Bytes for the jobs that request memory, or ``None`` if unknown, and how many they hold.
        self.memory = memory
        self.used_memory = 0
        #: More slots than cores cannot all have their own core.
        self.cores = tuple(cores) if largest <= len(cores) else ()
        self._topology = Topology(self.cores)
        self._free_cores = set(self.cores)

    @property
    def free(self) -> int:
        """Number of free cores."""
        return max(0, self.size - self.used - self.others)

    def begin_choice(self, next_job: Callable[[], Job | None]) -> None:
        """Begin to choose jobs. ``next_job`` returns the next one.

        Until :meth:`end_choice`, no other run can take the slots among which this run chooses.
        """

    def end_choice(self, next_job: Callable[[], Job | None]) -> None:
        """End the choice, also after an error."""

    def settle(self) -> None:
        """At the end of a turn: leave slots that jobs gave back to other runs."""

    def on_wake(self) -> None:
        """Handle a wakeup, which means that another run has released slots."""

    def fits(self, cores: int, gpus: int, memory: int = 0) -> bool:
        """Return True if a job of this size could start now."""
        if memory and self.memory is not None and self.used_memory + memory > self.memory:
            return False
        return cores <= self.size - self.used and gpus <= len(self.free_gpus)

    def bind(self, tasks: int, width: int) -> tuple[int, ...]:
        """Choose ``width`` cores for each task of a job that starts. Return them task by task.

        Return no core if tasks are not bound. Call :meth:`take` next.
        """
        if not self.cores:
            return ()
        free = self._choice()
        if len(free) < tasks * width:  # jobs of an earlier supervisor are not bound
            return ()
        cores = self._topology.choose(free, width)
        for _ in range(1, tasks):
            free.difference_update(cores)
            cores += self._topology.choose(free, width)
        self._free_cores.difference_update(cores)
        return tuple(cores)

    def close(self) -> None:
        """Close all files."""

    def _choice(self) -> set[int]:
        """Return the cores among which those of a job are chosen."""
        return set(self._free_cores)

    def take(self, cores: int, gpus: int, memory: int = 0) -> tuple[str, ...]:
        """Take cores, GPUs and memory. Return the names of the GPUs."""
        self.used += cores
        self.used_memory += memory
        taken = tuple(self.free_gpus[:gpus])
        del self.free_gpus[:gpus]
        return taken

    def hold(
        self, cores: int, gpus: Sequence[str], bound: Collection[int] = (), memory: int = 0
    ) -> tuple[str, ...]:
        """Take what a job holds that runs already. ``bound``: its cores, if known.

        GPUs that are not configured are ignored.
        """
        self.used += cores
        self.used_memory += memory
        self._free_cores.difference_update(bound)
        held = tuple(gpu for gpu in gpus if gpu in self.free_gpus)
        self.free_gpus = [gpu for gpu in self.free_gpus if gpu not in held]
        return held

    def give_back(
        self, cores: int, gpus: Sequence[str], bound: Collection[int] = (), memory: int = 0
    ) -> None:
        """Release what :meth:`take` and :meth:`bind` have returned."""
        self.used -= cores
        self.used_memory -= memory
        self._free_cores.update(bound)
        if gpus:
            self.free_gpus.extend(gpus)
            self.free_gpus.sort(key=self.gpus.index)

    def never(self, job: Job) -> tuple[str, str, str] | None:
        """Return the key because of which this job can never start here, the reason, and what to
        do, or ``None`` if it can start.
        """
        here = os.uname().nodename if job.avoid else ""
        if job.avoid and not {here, here.partition(".")[0]}.isdisjoint(job.avoid):
            why = f"the job must avoid {here}, but all jobs run on this machine"
            return "avoid", why, "remove 'avoid'"
        if job.cores > self.largest:
            per = f" of {job.cores_per_task} cores" if job.cores_per_task != 1 else ""
            tasks = f"{job.tasks} tasks{per} need" if job.tasks != 1 else f"1 task{per} needs"
            had = f"{self.largest} here" if self.largest == self.size else f"{self.largest} at most"
            option = "--slots" if self.largest == self.size else "--max-slots"
            key = "nodes" if job.tasks == job.nodes > 1 else "tasks"
            return (
                key if job.tasks > 1 else "cores_per_task",
                f"{tasks} {job.cores} cores, but there are {had}",
                (
                    f"request less (tasks defaults to nodes), or run with {option} {job.cores} to "
                    "start more processes than cores"
                ),
            )
        if job.gpus > len(self.gpus):
            return (
                "gpus_per_task",
                (
                    f"the job needs {job.gpus} GPU{'s' if job.gpus != 1 else ''}, but"
                    f" {len(self.gpus)} are configured"
                ),
                f"request less, or run with --option gpus={job.gpus}",
            )
        if job.memory and self.memory is not None and job.memory > self.memory:
            return (
                "memory_per_task",
                (
                    f"the job needs {memory_text(job.memory)} of memory, but there are "
                    f"{memory_text(self.memory)} here"
                ),
                (
                    "request less memory_per_task, or run with --option "
                    f"memory={memory_text(job.memory)}"
                ),
            )
        return None

    def resize(self, delta: int) -> int:
        """Change the size by ``delta``, within the bounds. Return the actual change."""
        size = min(max(self.size + delta, self.smallest), self.largest)
        change = size - self.size
        self.size = size
        return change

    def bound(self, smallest: int, largest: int) -> None:
        """Set the bounds, and adjust the size to them."""
        self.smallest, self.largest = smallest, largest
        self.size = min(max(self.size, smallest), largest)

    def occupied(self) -> tuple[int, int, int]:
        """Return the values from which :meth:`gauges` are computed. They are cheap to compare."""
        return self.size, self.used + self.others, len(self.free_gpus)

    def gauges(self) -> dict[str, float]:
        """Return the gauges of cores and GPUs, and of one node, which is free if a core is free."""
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


#: The position after the last item of a list, for ``insert``.
_LAST = 1 << 30


class Topology:
    """The NUMA nodes of cores. Chooses the cores of a task.

    ``order``: which cores to prefer within a node. By default, the one on which this thread runs:
    it starts the task, and need not move for that.
    """

    def __init__(
        self, cores: Iterable[int], order: Sequence[int] = (), root: Path = Path("/")
    ) -> None:
        node_of: dict[int, int] = {}
        for path in root.glob("sys/devices/system/node/node[0-9]*/cpulist"):
            try:
                listed = _numbers(path.read_text())
            except (OSError, ValueError):
                continue
            node_of.update(dict.fromkeys(listed, int(path.parent.name.removeprefix("node"))))
        self._node_of = {core: node_of.get(core, 0) for core in cores}
        self._rank = {core: rank for rank, core in enumerate(order or self._node_of)}
        self._one_node = len(set(self._node_of.values())) == 1
        self._here = _no_core if order or not self._node_of else _current_core()

    def choose(self, free: Collection[int], count: int) -> list[int]:
        """Return ``count`` of the free cores.

        They are on one node if one has as many: on the fullest of these, so that wide tasks find
        room on the others. Otherwise, they are on as few nodes as possible.
        """
        here = self._here()
        if count == 1 and free and self._one_node:  # frequent: fast path
            return [here if here in free else min(free, key=self._rank.__getitem__)]
        by_node: dict[int, list[int]] = defaultdict(list)
        for core in sorted(free, key=self._rank.__getitem__):
            by_node[self._node_of[core]].insert(0 if core == here else _LAST, core)
        nodes = sorted(by_node.values(), key=len)
        whole = next((cores for cores in nodes if len(cores) >= count), None)
        if whole is not None:
            return whole[:count]
        return [core for cores in reversed(nodes) for core in cores][:count]


def _no_core() -> int:
    return -1


def _current_core() -> Callable[[], int]:
    """Return a function that returns the core on which the calling thread runs, or -1."""
    import ctypes  # not at the top: most commands start no process

    try:
        found: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
    except (OSError, AttributeError):
        return _no_core
    return found


def _numbers(text: str) -> list[int]:
    """Return the numbers in a list of the kernel.

    >>> _numbers("0-2,8")
    [0, 1, 2, 8]
    """
    found: list[int] = []
    for part in re.split(r"[,\s]+", text.strip()):
        if part:
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    return found
