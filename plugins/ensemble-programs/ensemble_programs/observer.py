"""Observer of a program: an observer of the core, with columns of the program and convergence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

from ensemble_core import UNREADABLE, Job, Observer, ObserverPlugin, Row, observer_record
from ensemble_programs import convergence

if TYPE_CHECKING:
    from ensemble_programs.program import Program

_record = cache(observer_record)
#: Column of a block's number that its first line does not have. No column of users has this name.
_NUMBER = "number of the block"


class ProgramObserver(Observer):
    """Observer of the core that also computes the columns of ``converged``.

    It joins the rows of a block, if the program's log has blocks. ``sure`` is false if the file
    does not list the columns: then no column needs to be there. ``counts`` returns whether a row
    with these values counts for ``converged``.
    """

    def __init__(
        self,
        inner: Observer,
        program: Program,
        converged: Mapping[str, Mapping[str, Any]] | None,
        *,
        sure: bool,
        counts: Callable[[Mapping[str, float]], bool] = bool,
    ) -> None:
        self._inner, self._sure, self._program = inner, sure, program
        self._counts = counts
        #: Values of the current block, or ``None`` before the first.
        self._block: dict[str, float] | None = None
        #: Number of the last block that ended.
        self._last: float | None = None
        self._convergence = convergence.Convergence(converged) if converged else None
        self._seen = self._unread = 0
        self.rate = inner.rate

    @property
    def rewrites(self) -> bool:  # type: ignore[override] # as that of the inner observer
        return self._inner.rewrites

    @property
    def path(self) -> str | None:
        return self._inner.path

    @property
    def stream(self) -> Literal["stdout", "stderr"]:
        return self._inner.stream

    def feed(self, data: bytes) -> Iterable[Row]:
        return self._more(self._inner.feed(data))

    def finish(self) -> Iterable[Row]:
        return self._more(self._inner.finish(), last=True)

    def truncated(self) -> None:
        self._inner.truncated()
        self._block = self._last = None
        if self._convergence is not None:
            self._convergence.reset()

    def interrupted(self) -> str | None:
        return self._inner.interrupted()

    def complaint(self) -> str | None:
        said = self._inner.complaint()
        if said is None or self._sure or not self._seen:
            return said
        # Programs print some of their columns only in some kinds of calculation.
        return f"{self._unread} values could not be read" if self._unread else None

    def _more(self, rows: Iterable[Row], *, last: bool = False) -> list[Row]:
        out = list(rows)
        self._seen += len(out)
        if not self._sure:
            for row in out:
                self._unread += sum(value is UNREADABLE for value in row.values.values())
        if self._program.block:
            out = [*self._blocks(out), *(self._end_block() if last else ())]
        if self._convergence is None:
            return out
        update = self._convergence.update
        return [
            Row({**row.values, **update(row.clock, row.values)}, row.clock)
            if self._counts(row.values)
            else row
            for row in out
        ]

    def _blocks(self, rows: Iterable[Row]) -> Iterable[Row]:
        """Yield a row for each complete block."""
        program, start = self._program, self._program.block
        for row in rows:
            values = {n: v for n, v in row.values.items() if n not in program.live}
            if len(values) < len(row.values):
                yield Row({n: v for n, v in row.values.items() if n in program.live})
            block = self._block
            if start in values and (block is None or not program.number or _NUMBER in block):
                yield from self._end_block()
                self._block = {}
            if self._block is not None:
                once = {n: self._block[n] for n in program.first if n in self._block}
                self._block |= {**values, **once}

    def _end_block(self) -> Iterable[Row]:
        values, self._block = self._block, None
        if values is None:
            return
        step: float | None = values[self._program.block]
        if self._program.number:
            after = None if self._last is None else self._last + 1
            step = self._last = values.pop(_NUMBER, after)
            if step is None:
                del values[self._program.block]
            else:
                values[self._program.block] = step
        if values:
            yield Row(values, step if step is not None and isfinite(step) else None)


def _options(program: Program) -> dict[str, Any]:
    log = (
        "Log, relative to the job's workdir; a pattern with * for parts of one log; "
        "null for the job's standard output. May contain {index} and the sweep's parameters. "
        f"Default: the one that the command names, or {program.log or 'standard output'}."
    )
    known = ", ".join(program.columns)
    own = program.reader == "table"
    columns = {
        "description": f"Columns to read, of {known}; default: "
        f"{'all' if program.chosen is None else ', '.join(program.chosen)}."
        + (" As a mapping, names with any names in the log." if own else ""),
        "type": ["array", "object"] if own else "array",
        "items": {"type": "string", "enum": list(program.columns)},
        "minItems": 1,
        "uniqueItems": True,
        **(
            {
                "minProperties": 1,
                "propertyNames": {"pattern": "^[A-Za-z0-9_-]+$"},
                "additionalProperties": {"type": "string", "minLength": 1, "maxLength": 200},
            }
            if own
            else {}
        ),
    }
    return options_schema(log, columns, converged=bool(program.clock))


def options_schema(
    log: str, columns: Mapping[str, Any], *, converged: bool = True, **more: Any
) -> dict[str, Any]:
    """Return the schema of the observer's options.

    ``log`` is the description of this option, which has ``more`` keywords; ``columns`` is the
    schema of that one.
    """
    log_schema = {"description": log, "type": ["string", "null"], "minLength": 1, **more}
    clocked = {"converged": convergence.OPTIONS} if converged else {}
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {"log": log_schema, "columns": columns, **clocked},
    }


def _fields(program: Program, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns to read, each with its name or pattern in the log."""
    given = options.get("columns", program.chosen)
    if isinstance(given, Mapping):
        fields = dict(given)
    else:
        fields = {name: program.columns[name] for name in given or program.columns}
    # The core's observer ``regex`` finds the clock by its pattern, other observers by its name.
    clock = program.clock if program.reader == "regex" else program.block
    for name in (clock, *(options.get("converged") or ())):
        if name in program.columns:
            fields.setdefault(name, program.columns[name])
    return fields


def observer(program: Program) -> ObserverPlugin:
    """Return the record of the program's observer."""

    def build(job: Job, options: Mapping[str, Any]) -> ProgramObserver:
        log = options.get("log", program.log_of(job.command) or program.log)
        number = {_NUMBER: program.number} if program.number else {}
        own = {**program.reading, "fields": {**_fields(program, options), **number}}
        if log is not None:
            own["path"] = log
        inner = _record(program.reader).build(job, own)
        return ProgramObserver(inner, program, options.get("converged"), sure="columns" in options)

    def variables(options: Mapping[str, Any]) -> frozenset[str]:
        return convergence.variables(options, _fields(program, options))

    def unasked(options: Mapping[str, Any]) -> Mapping[str, str]:
        return convergence.Unasked(options, _fields(program, options), program.columns)

    return ObserverPlugin(
        name=program.name,
        summary=f"Values in the growing log of {program.title}, by column name.",
        build=build,
        options=_options(program),
        variables=variables,
        unasked=unasked,
    )
