"""Job groups: the entries under ``jobs:``, each of which expands into jobs."""

from __future__ import annotations

import glob
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ensemble_core.model.codec import NOTHING
from ensemble_core.model.jobs import SIGNALS, Job
from ensemble_core.model.option_values import fill_options, has_braces
from ensemble_core.model.placeholders import fill, placeholders
from ensemble_core.model.sweep_values import GivenBy
from ensemble_core.quick_dataclass import dataclass, replace

if TYPE_CHECKING:
    from ensemble_core.model.conditions import Condition
    from ensemble_core.model.expressions import Expression
    from ensemble_core.model.retry_policy import RetryPolicy

#: Fields of a group that decide whether a queue can run its jobs.
SIZE = (
    "nodes", "tasks", "cores_per_task", "gpus_per_task", "memory_per_task", "executor", "duration",
    "avoid", "options",
)  # fmt: skip


def _names_replica(value: Any) -> bool:
    """Return True if one of these texts has the placeholder ``{replica}``."""
    if isinstance(value, str):
        return "{replica" in value and any(one.name == "replica" for one in placeholders(value))
    if isinstance(value, (list, tuple)):
        return any(map(_names_replica, value))
    return isinstance(value, Mapping) and any(
        _names_replica(key) or _names_replica(inner) for key, inner in value.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """An entry under ``jobs:``. :meth:`jobs` expands it into the jobs of one submit."""

    name: str
    command: tuple[str, ...]
    count: int = 1
    nodes: int = 1
    tasks: int | None = None  #: ``None``: one task per node.
    cores_per_task: int = 1
    gpus_per_task: int = 0
    memory_per_task: int = 0
    duration: float = 0.0
    grace: float | None = None
    #: The ``signal`` that the job gets ``before`` (seconds) its time limit; empty: none.
    warn: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    workdir: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    #: Variables that must be set where the run is started. Jobs inherit their values, which are
    #: not stored.
    environment_from: tuple[str, ...] = ()
    stdout: str | None = None
    stderr: str | None = None
    urgency: int = 16
    avoid: tuple[str, ...] = ()  #: Nodes on which the jobs must not run.
    #: A sweep: every combination of the values has ``count`` jobs. If the only value is ``None``,
    #: each submit must supply values; if it is a :class:`GivenBy`, a function computes them.
    parameters: Mapping[str, Sequence[object]] = field(default_factory=lambda: NOTHING)
    #: Parameters that are not combined with each other but taken row by row: all first values, all
    #: second values …
    points: Mapping[str, Sequence[object]] = field(default_factory=lambda: NOTHING)
    observe: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: NOTHING)
    executor: str | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: NOTHING)
    #: Results of a successful job, by name.
    result: Mapping[str, Expression] = field(default_factory=lambda: NOTHING)
    #: If this is true after a job's last row, the job has failed although it exited with code 0.
    fail_if: Condition | None = None
    retry: RetryPolicy | None = None
    #: How many attempts of this group may be in the queue at the same time; with ``at_once_each``,
    #: so many for each combination of these parameters.
    at_once: int | None = None
    at_once_each: tuple[str, ...] = ()
    #: The limits under ``limits.at_once`` that the group's jobs share with other groups.
    uses: tuple[str, ...] = ()
    #: The ``STAT.NAME`` references in ``result``, ``fail_if`` and ``retry``.
    reads: frozenset[str] = frozenset()
    #: Files that the group's jobs read, in addition to those in the command. The second item says
    #: how to compare a file: by ``content`` or ``mtime``.
    inputs: tuple[tuple[str, str], ...] = ()
    #: Files that a job must leave to be successful; for each, how many seconds to wait for it.
    outputs: Mapping[str, float] = field(default_factory=lambda: NOTHING)
    #: The environments in which the command starts, the outermost first.
    within: tuple[Mapping[str, Any], ...] = ()
    #: Files to remove when a job is over; for each, whether only after a ``success`` or ``always``.
    discard: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    #: Whether jobs of earlier runs may be reused.
    reuse: bool = True
    #: For each executor, the options of jobs that say what runs, so that ``--reuse`` compares them,
    #: with the values that hold for the whole run (else ``None``).
    compared: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: NOTHING)
    #: The command as written in the file, for display.
    text: str = ""
    #: The folder of the ensemble file, for the placeholder ``{here}``.
    here: str = "."
    #: The run's tag and the folder where it was started. Before the run begins, these are the
    #: placeholders ``{run}`` and ``{cwd}``.
    run: str = "{run}"
    cwd: str = "{cwd}"
    #: Whether jobs are numbered within each combination of parameters. True if the group has
    #: ``replicas`` or if one of its texts contains ``{replica}``.
    replicated: bool = False
    #: Further entries of the file with the same name; a submit includes the jobs of all of them.
    more: tuple[JobGroup, ...] = ()

    def __post_init__(self) -> None:
        if self.replicated:
            return
        texts = [*self.command, *filter(None, (self.workdir, self.stdout, self.stderr))]
        rare = self.avoid, self.environment, self.options, self.outputs, self.within, self.discard
        # Look at each text only if one of them has the word: a group is copied at many submits.
        if ("{replica" in "".join(texts) and _names_replica(texts)) or any(
            map(_names_replica, filter(None, rare))
        ):
            object.__setattr__(self, "replicated", True)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the jobs' parameters."""
        own = dict.fromkeys((*self.points, *self.parameters))
        return tuple(dict.fromkeys([*own, *(name for entry in self.more for name in entry.names)]))

    @property
    def sizes(self) -> list[Job]:
        """For each entry with this name, a job with its resources and without a command."""
        return [
            Job(
                id=part.name,
                group=part.name,
                index=0,
                command=(),
                **{
                    **{name: getattr(part, name) for name in SIZE},
                    "tasks": part.nodes if part.tasks is None else part.tasks,
                },
            )
            for part in (self, *self.more)
        ]

    @property
    def metrics(self) -> frozenset[str]:
        """The metric paths in ``fail_if`` and ``retry``."""
        parts = (self.fail_if, self.retry)
        return frozenset().union(*(part.metrics for part in parts if part is not None))

    @property
    def missing(self) -> tuple[str, ...]:
        """Parameters without values. Each submit must supply these."""
        own = (
            name
            for name, values in self.parameters.items()
            if len(values) == 1 and (values[0] is None or isinstance(values[0], GivenBy))
        )
        return (*own, *(name for entry in self.more for name in entry.missing))

    @property
    def asked(self) -> dict[str, str]:
        """The parameters whose values a function computes at each submit, and the name of the
        function.
        """
        found = {}
        for entry in (self, *self.more):
            for name, values in entry.parameters.items():
                if len(values) == 1 and isinstance(values[0], GivenBy):
                    found[name] = values[0].function
        return found

    def with_values(self, given: Mapping[str, Sequence[object]]) -> JobGroup:
        """Return the group with its parameters' values replaced by those in ``given``. Other names
        in ``given`` are ignored.
        """
        own = {name: given.get(name, values) for name, values in self.parameters.items()}
        more = tuple(entry.with_values(given) for entry in self.more)
        return replace(self, parameters=own, more=more)

    @property
    def size(self) -> int:
        """Number of jobs per submit: ``count`` times the number of parameter combinations."""
        return self.own_size + sum(entry.size for entry in self.more)

    @property
    def own_size(self) -> int:
        """Number of jobs per submit, without those of the further entries in ``more``."""
        size = self.count * self._rows
        for values in self.parameters.values():
            size *= len(values)
        return size

    @property
    def _rows(self) -> int:
        """The number of rows in ``points``, or 1 if the group has none."""
        return len(next(iter(self.points.values()))) if self.points else 1

    def combinations(self) -> Iterator[dict[str, object]]:
        """Yield the parameters of each job, without replicas.

        The outermost loop is over the rows of ``points``. The inner loops are over the parameters
        in the order of the file; the last one varies fastest.
        """
        for row in range(self._rows):
            point = {name: column[row] for name, column in self.points.items()}
            for values in itertools.product(*self.parameters.values()):
                yield {**point, **dict(zip(self.parameters, values, strict=True))}

    def element(self, place: int) -> tuple[JobGroup, dict[str, object], int]:
        """Return the entry, parameters and replica of the job at position ``place`` within a
        submit.
        """
        for entry in (self, *self.more):
            size = entry.size - sum(each.size for each in entry.more)
            if place >= size:
                place -= size
                continue
            place, replica = divmod(place, entry.count)
            chosen: dict[str, object] = {}
            for name, values in reversed(tuple(entry.parameters.items())):
                place, at = divmod(place, len(values))
                chosen[name] = values[at]
            point = {name: column[place] for name, column in entry.points.items()}
            return entry, {**point, **{name: chosen[name] for name in entry.parameters}}, replica
        raise IndexError(place)

    def jobs(
        self,
        first: int,
        number: Callable[[Mapping[str, object], int], Iterable[int]] | None = None,
    ) -> Iterator[Job]:
        """Yield the jobs of one submit; ``first`` is the index of the first job.

        ``number`` returns the replica numbers of a combination, given their count. Default: from 0.
        """
        index = first
        for entry in (self, *self.more):
            for chosen in entry.combinations():
                numbers = range(entry.count) if number is None else number(chosen, entry.count)
                for replica in numbers:
                    yield entry.job(index, chosen, replica)
                    index += 1

    def _discarded(self, values: Mapping[str, object]) -> dict[str, str]:
        """Return ``discard`` with its placeholders filled in. A ``*`` in a value is no pattern."""
        literal = {
            name: glob.escape(value) if isinstance(value, str) else value
            for name, value in values.items()
        }
        return {fill(path, literal): when for path, when in self.discard.items()}

    def _avoided(self, values: Mapping[str, object]) -> tuple[str, ...]:
        """Return ``avoid`` with its placeholders filled in, which may stand for several nodes."""
        nodes = ",".join(fill(text, values) for text in self.avoid).split(",")
        return tuple(dict.fromkeys(name for name in map(str.strip, nodes) if name))

    def job(
        self, index: int, parameters: Mapping[str, object], replica: int = 0, attempt: int = 0
    ) -> Job:
        """Return one job with these parameters."""
        job_id = f"{self.name}.{index}-{attempt}" if attempt else f"{self.name}.{index}"
        requests: dict[str, Any] = {
            "nodes": self.nodes,
            "tasks": self.nodes if self.tasks is None else self.tasks,
            "cores_per_task": self.cores_per_task,
            "gpus_per_task": self.gpus_per_task,
            "memory_per_task": self.memory_per_task,
        }
        values = {
            **requests,
            "run": self.run,
            "cwd": self.cwd,
            "replica": replica,
            "attempt": attempt,
            "limit": self.duration,
            **parameters,
            "group": self.name,
            "index": index,
            "id": job_id,
            "here": self.here,
        }
        return Job(
            id=job_id,
            group=self.name,
            index=index,
            command=tuple([fill(word, values) for word in self.command]),
            **requests,
            duration=self.duration,
            grace=self.grace,
            workdir=self.workdir and fill(self.workdir, values),
            stdout=self.stdout and fill(self.stdout, values),
            stderr=self.stderr and fill(self.stderr, values),
            urgency=self.urgency,
            observe=self.observe,
            executor=self.executor,
            environment=fill_options(self.environment, values) if self.environment else NOTHING,
            warn={"signal": SIGNALS[0], **self.warn} if self.warn else NOTHING,
            options=fill_options(self.options, values)
            if self.options and has_braces(self.options)
            else self.options,
            avoid=self._avoided(values) if self.avoid else (),
            outputs={fill(path, values): wait for path, wait in self.outputs.items()}
            if self.outputs
            else NOTHING,
            within=tuple(fill_options(self.within, values)) if self.within else (),
            discard=self._discarded(values) if self.discard else NOTHING,
            parameters=parameters or NOTHING,
            replica=replica if self.replicated else 0,
            attempt=attempt,
        )
