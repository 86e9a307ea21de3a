"""The record of a simulation program, and the plugin records that are made from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ensemble_core import (
    ActionPlugin,
    EnsembleError,
    ObserverPlugin,
    Trigger,
    TriggerPlugin,
    hookimpl,
)

if TYPE_CHECKING:
    from ensemble_core import Event
    from ensemble_programs.outcome import Outcome


#: How a job can have ended, with the descriptions of the options of ``NAME-check``.
KINDS: Mapping[str, str] = {
    "complete": "the program reached its goal",
    "unfinished": "the program stopped before its goal, without an error",
    "diverged": "its numbers are not finite, or it reported that the calculation is unstable",
    "failed": "it ended with another error",
}


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint from which a job continues, and the command that it had.

    - ``words``: the program's own words of the command, from its name on
    - ``path``: the checkpoint, an absolute path
    - ``workdir``: the job's folder, an absolute path
    """

    words: Sequence[str]
    path: str
    workdir: str


def _no_reason(path: str) -> str | None:
    return None


@dataclass(frozen=True, kw_only=True)
class Program:
    """A simulation program: what its log looks like, how it ends, and how it continues.

    Reading, with an observer of the core:

    - ``name``: prefix of all names, such as ``gromacs``
    - ``title``: name of the program for users
    - ``log``: file that the program writes, relative to the job's workdir, which may be a pattern
      for parts of one log; ``None`` for its standard output
    - ``reader``: the core's observer, ``table``, ``regex``, ``key-value`` or ``json-lines``
    - ``reading``: options of this observer, except ``path`` and ``fields``. A ``clock`` must count
      on when a job continues: rows of the attempts before are skipped. Without it, each row counts
    - ``columns``: names that rules use, each with the entry for ``fields`` of the observer: the
      name in the log, or a pattern
    - ``chosen``: the columns that are read if the file lists none (default: all)
    - ``block``: for logs that print the step in a line above the values: the column with the step.
      All lines up to the next step are one row, and the step is its clock. Lines above the first
      step are ignored
    - ``number``: for blocks whose first line has no number: a pattern of a later line in them that
      has it. Lines up to the first one after this line are the block. One without this line has
      the number after the last one, or none
    - ``live``: columns that blocks repeat: each line with one of them is a row at once
    - ``first``: columns of which a block's first value counts; of the others, the last counts

    How a job ended is decided by lines of its log. Each is found by a regular expression of Python
    for bytes, with ``^`` and ``$`` at lines. What it matches is shown to the user, so let it match
    the part that says what happened.

    - ``began``: a line that this program prints once, when it starts; only what follows the last
      one counts
    - ``complete``: lines that prove that the goal was reached
    - ``ended``: a line at the end of each orderly run; it proves ``complete`` if the program went
      as far as it should, or if it does not say how far it should go
    - ``other``: a line that programs of the same package print when they start: below it, ``ended``
      is the end of another program
    - ``unfinished``: lines that prove a stop before the goal
    - ``diverged``, ``failed``: lines that prove errors. A log whose last values are nan or infinite
      has diverged, too.
    - ``step``, ``goal``: the last match is how far it got, and must go: the number in its group,
      or the sum if several groups match
    - ``accounts``: files besides the log whose lines prove errors; ``stdout`` and ``stderr`` are
      those of the job

    How it continues:

    - ``executables``: names of its executables, or patterns such as ``*Foam``
    - ``checkpoint``: patterns of its checkpoints, relative to the workdir, in order of preference;
      the last pattern that a checkpoint matches counts
    - ``reject``: returns why a checkpoint is not usable, or ``None``
    - ``resume``: returns the program's words of a command that continues from a checkpoint. It
      raises :class:`~ensemble_core.EnsembleError` if the program cannot. ``None``: the program
      cannot continue at all.

    A program whose log needs more than this gives its own functions:

    - ``observer``: the record of its observer, instead of what is above
    - ``read``: returns the outcome of a log, given its path, the job's wait status (``None`` if
      unknown), and whether the job is over
    - ``kinds``: the outcomes that ``read`` returns, with descriptions; the first is the good one

    And if a command may name the log: ``log_of`` returns this name, or ``None``.
    """

    name: str
    title: str
    log: str | None = None
    reader: str = "regex"
    reading: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    chosen: Sequence[str] | None = None
    block: str = ""
    number: str = ""
    live: Sequence[str] = ()
    first: Sequence[str] = ()
    began: str = ""
    complete: Sequence[str] = ()
    ended: str = ""
    other: str = ""
    unfinished: Sequence[str] = ()
    diverged: Sequence[str] = ()
    failed: Sequence[str] = ()
    step: str = ""
    goal: str = ""
    accounts: Sequence[str] = ("stderr",)
    executables: Sequence[str] = ()
    checkpoint: Sequence[str] = ()
    reject: Callable[[str], str | None] = _no_reason
    resume: Callable[[Kept], Sequence[str]] | None = None
    observer: ObserverPlugin | None = None
    read: Callable[..., Outcome] | None = None
    kinds: Mapping[str, str] = field(default_factory=lambda: KINDS)
    log_of: Callable[[Sequence[str]], str | None] = lambda command: None

    @property
    def clock(self) -> str:
        """Name of the column with the step, or empty."""
        return self.block or str(self.reading.get("clock", ""))

    def observers(self) -> list[ObserverPlugin]:
        """Return the observer ``NAME``."""
        from ensemble_programs.observer import observer

        return [self.observer or observer(self)]

    def triggers(self) -> list[TriggerPlugin]:
        """Return the trigger ``NAME-converged``, if rows have a clock: only then means converge."""

        return [converged(self)] if self.observer or self.clock else []

    def actions(self) -> list[ActionPlugin]:
        """Return the actions ``NAME-check`` and, if the program can continue, ``NAME-continue``."""
        from ensemble_programs import actions

        can = [] if self.resume is None else [actions.continuation(self)]
        return [actions.check(self), *can]

    def hooks(
        self,
    ) -> tuple[
        Callable[[], Iterable[ObserverPlugin]],
        Callable[[], Iterable[TriggerPlugin]],
        Callable[[], Iterable[ActionPlugin]],
    ]:
        """Return the hooks of the plugin: ``ensemble_observers``, ``…_triggers``, ``…_actions``."""

        @hookimpl
        def ensemble_observers() -> Iterable[ObserverPlugin]:
            return self.observers()

        @hookimpl
        def ensemble_triggers() -> Iterable[TriggerPlugin]:
            return self.triggers()

        @hookimpl
        def ensemble_actions() -> Iterable[ActionPlugin]:
            return self.actions()

        return ensemble_observers, ensemble_triggers, ensemble_actions


def converged(program: Program) -> TriggerPlugin:
    """Return the record of the trigger ``NAME-converged``."""
    trigger = f"{program.name}-converged"

    def build(name: str | None, options: Mapping[str, Any]) -> Trigger:
        if name is None:
            raise EnsembleError(
                f"{trigger} needs a 'name': the job group whose replicas should converge",
                hint="add 'name: GROUP'",
                code="no-name",
            )
        replicas = options.get("replicas", 1)

        def enough(event: Event, fields: Mapping[str, Any]) -> bool:
            value = fields.get("value")
            return value is not None and bool(value >= replicas)

        return Trigger(metric=f"sum.{name}-Converged", group=name, match=enough)

    return TriggerPlugin(
        name=trigger,
        summary=f"a number of {program.title} jobs of the group have converged",
        build=build,
        name_means="group",
        fields=frozenset({"value"}),
        needs_variables=lambda options: frozenset({"Converged"}),
        options={
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "replicas": {
                    "description": "Number of jobs that must have converged, as defined by the "
                    "observer's option 'converged'.",
                    "type": "integer",
                    "minimum": 1,
                    "default": 1,
                }
            },
        },
    )
