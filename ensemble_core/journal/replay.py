"""Replays a journal: rebuilds the engine's state from the events, and compares the decisions.

The engine is pure, so the same events lead to the same state and the same decisions.

A changed file may have the first table of a group, or other results of it. Its tables then cover
the earlier jobs as if the file had been so from the start: their results are computed by a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ensemble_core.engine.done_jobs import DoneJob, DoneJobs
from ensemble_core.engine.engine import Engine
from ensemble_core.engine.past_submits import pairs
from ensemble_core.engine.state import State
from ensemble_core.errors import EnsembleError
from ensemble_core.journal.event_encoding import JournalRow, decisions_text
from ensemble_core.journal.reader import DAMAGED, FileVersion, Journal, JournalError
from ensemble_core.journal.snapshot_encoding import FORMAT, load
from ensemble_core.model.decisions import Decision
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import Event
from ensemble_core.model.job_group import JobGroup
from ensemble_core.quick_dataclass import replace

#: Function that returns the checked ensemble for a version of the file in the journal.
Loading = Callable[[FileVersion], Ensemble]


def maker_of(versions: Mapping[str, str]) -> str:
    """Return a text with the snapshot format and the versions of Ensemble, Python and plugins.

    A snapshot can only be read by a program with the same text as the program that wrote it.
    """
    parts = [f"{name}={version}" for name, version in sorted(versions.items())]
    return " ".join([f"format={FORMAT}", *parts])


class Difference(JournalError):
    """Error: the decisions of the engine differ from those in the journal."""

    exit_code = 1

    def __init__(self, row: JournalRow, decided: str | None, versions: str) -> None:
        super().__init__(
            f"at event {row.seq}, the engine's decisions differ from the journal's",
            cause=f"journal: {row.decisions or '[]'}\n         engine:  {decided or '[]'}",
            hint=f"use the versions with which the run was made: {versions}",
            code="different",
        )
        self.row = row
        self.decided = decided


class Replay:
    """Handles the events of a journal again, one by one.

    ``engine`` has the state after event ``seq``. If ``compare`` is true, a decision that differs
    from the journal raises :class:`Difference`.
    """

    def __init__(
        self,
        journal: Journal,
        loading: Loading,
        *,
        after: int = 0,
        engine: Engine | None = None,
        compare: bool = True,
    ) -> None:
        self._journal = journal
        self._loading = loading
        self._compare = compare
        texts = journal.texts()
        #: Versions of the file for later events. A snapshot at the event ``after`` was written
        #: before a change of the file at the same event.
        self._texts = [text for text in texts[1:] if text.seq >= after]
        self.seq = after
        #: Number of events that were replayed.
        self.replayed = 0
        if engine is None:
            if not texts:
                raise JournalError(
                    f"the journal has no ensemble file: {journal.path}",
                    hint=DAMAGED,
                    code="corrupt",
                )
            engine = Engine(loading(texts[0]), shared=bool(journal.about.get("shared")))
        self.engine = engine

    def steps(
        self, until: int | None = None, *, pending: bool = True
    ) -> Iterator[tuple[JournalRow, Event, list[Decision]]]:
        """Yield each event with the engine's decisions.

        With ``pending``, also apply a change of the file after the last event.
        """
        for row in self._journal.rows(self.seq, until):
            while self._texts and self._texts[0].seq < row.seq:
                self._reconfigure(self._texts.pop(0))
            try:
                event = row.event()
            except (ValueError, TypeError, KeyError) as error:
                raise JournalError(
                    f"the journal is damaged: {self._journal.path}",
                    cause=f"event {row.seq} cannot be read: {error}",
                    hint=DAMAGED,
                    code="corrupt",
                ) from error
            decisions = self.engine.handle(event)
            if self._compare:
                decided = decisions_text(decisions)
                if decided != row.decisions:
                    raise Difference(row, decided, _versions_at(self._journal, row.seq))
            self.seq = row.seq
            self.replayed += 1
            yield row, event, decisions
        while pending and self._texts and (until is None or self._texts[0].seq <= until):
            self._reconfigure(self._texts.pop(0))

    def _reconfigure(self, text: FileVersion) -> None:
        reconfigure(self.engine, self._loading(text), self._journal, self._loading)


def reconfigure(
    engine: Engine, ensemble: Ensemble, journal: Journal, loading: Loading
) -> list[str]:
    """Continue with a changed file after the newest event of the engine, which must be that of the
    journal so far.

    Return the rules that were dropped. If the file needs results of earlier jobs that the engine
    has not kept, they are computed from the events.
    """
    stale = stale_groups(engine.state, ensemble)
    return engine.reconfigure(
        ensemble, _earlier_jobs(engine, ensemble, stale, journal, loading) if stale else {}
    )


def _earlier_jobs(
    engine: Engine, ensemble: Ensemble, names: list[str], journal: Journal, loading: Loading
) -> dict[str, DoneJobs]:
    """Replay the events with the results of a changed file, and return the done jobs."""
    until = engine.state.events
    prefix = f"\0{until}:"
    again = Replay(journal, with_results(loading, ensemble, names, prefix), compare=False)
    for name in names:
        again.engine.state.table.done[name] = DoneJobs()
    for _ in again.steps(until, pending=False):
        pass
    done, before = again.engine.state.table.done, engine.state.ensemble.groups
    return {name: renamed_results(done[name], before[name], prefix) for name in names}


def _versions_at(journal: Journal, seq: int) -> str:
    then = [session for session in journal.sessions() if session.seq < seq]
    versions = then[-1].versions if then else {}
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "other versions"


def recover(
    journal: Journal,
    loading: Loading,
    maker: str | None,
    *,
    compare: bool = True,
    pending: bool = True,
) -> Replay:
    """Replay a journal to its last event, from the newest snapshot that ``maker`` can read.

    If ``maker`` is ``None``, begin at the first event. If ``pending`` is true, a change of the
    ensemble file after the last event is applied, too.

    Raises :class:`JournalError` if the journal is damaged, :class:`Difference` if decisions differ,
    and the errors of ``loading``.
    """
    texts = journal.texts()
    replay = None
    for snapshot in journal.snapshots():
        held = [text for text in texts if text.seq < snapshot.seq]
        if maker is None or snapshot.maker != maker or not held:
            continue
        try:
            engine = load(snapshot.state, loading(held[-1]))
        except EnsembleError:
            continue
        if engine is not None:
            replay = Replay(journal, loading, after=snapshot.seq, engine=engine, compare=compare)
            break
    replay = replay or Replay(journal, loading, compare=compare)
    for _ in replay.steps(pending=pending):
        pass
    return replay


def stale_groups(state: State, after: Ensemble) -> list[str]:
    """Return the groups whose earlier done jobs a changed file needs, and the state lacks."""
    needed = dict.fromkeys(table.of for table in after.tables.values())
    needed.update(dict.fromkeys(name for name, group in after.groups.items() if group.asked))
    before = state.ensemble.groups
    return [
        name
        for name in needed
        if name in before
        and state.table.groups[name].counts["done"]
        and (
            name not in state.table.done
            or results_of(before[name]) != results_of(after.groups[name])
        )
    ]


def _entries(group: JobGroup) -> tuple[JobGroup, ...]:
    return (group, *group.more)


def results_of(group: JobGroup) -> list[Mapping[str, object]]:
    """Return the results of each entry of a group."""
    return [entry.result for entry in _entries(group)]


def with_results(
    loading: Callable[..., Ensemble], after: Ensemble, names: Iterable[str], prefix: str
) -> Callable[..., Ensemble]:
    """Return a function that loads a version of the file in which these groups also have the
    results of ``after``, with this prefix.

    No rule uses a name with the prefix, so the run is the same.
    """
    wanted = [*names]

    def load(text: object) -> Ensemble:
        found = loading(text)
        groups = dict(found.groups)
        for name in wanted:
            if name in groups:
                groups[name] = _with_results(groups[name], after.groups[name], prefix)
        return replace(found, groups=groups)

    return load


def _with_results(group: JobGroup, after: JobGroup, prefix: str) -> JobGroup:
    later = {id(one): other for one, other in pairs(group, after) or () if one is not None}
    entries = []
    for place, entry in enumerate(_entries(group)):
        other = later.get(id(entry)) or _entries(after)[min(place, len(after.more))]
        added = {f"{prefix}{name}": formula for name, formula in other.result.items()}
        entries.append(replace(entry, result={**entry.result, **added}, more=()))
    first, *more = entries
    return replace(first, reads=group.reads | after.reads, more=tuple(more))


def renamed_results(done: DoneJobs, before: JobGroup, prefix: str) -> DoneJobs:
    """Return the done jobs with the results that have the prefix instead of their own."""
    own = {name for each in results_of(before) for name in each} - {*before.names}
    found = DoneJobs()
    numbers: dict[tuple[str, ...], int] = {}
    for job in done.jobs.values():
        index, layout, duration, attempt, *values = job
        known = dict(zip(done.layouts[layout], values, strict=True))
        kept = {name: value for name, value in known.items() if name not in own}
        new = {
            name.removeprefix(prefix): value
            for name, value in kept.items()
            if name.startswith(prefix)
        }
        fixed = {name: value for name, value in kept.items() if not name.startswith(prefix)}
        merged = {**new, **fixed}  # a parameter takes precedence
        names = tuple(merged)
        number = numbers.setdefault(names, len(numbers))
        if number == len(found.layouts):
            found.layouts.append(names)
        renamed: DoneJob = (index, number, duration, attempt, *merged.values())
        found.jobs[index] = renamed
    return found
