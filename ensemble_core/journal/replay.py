"""Replay and recovery: from a journal back to the engine's state, and whether it is right.

The engine is pure, so the same events bring it to the same place; each event's decisions are
compared, to the byte, with those that the journal has. From the newest snapshot for a run that is
taken up again, from the first event for a replay. Used by the command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

from ensemble_core.engine.engine import Engine
from ensemble_core.errors import EnsembleError
from ensemble_core.journal.codec import JournalRow, decisions_text
from ensemble_core.journal.reader import DAMAGED, Journal, JournalError, Text
from ensemble_core.journal.snapshot import FORMAT, load
from ensemble_core.model.decisions import Decision
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import Event

__all__ = ["Difference", "Replay", "maker_of", "recover"]

#: What functions are told of a job that versions up to 1.0 did not tell.
_TOLD_SINCE = ("cause", "limit", "attempt", "replica", "run")

#: Gives the checked ensemble for a text of the journal.
Loading = Callable[[Text], Ensemble]


def maker_of(versions: Mapping[str, str]) -> str:
    """The key of the readers of a snapshot: the format and the versions of everything in it."""
    parts = [f"{name}={version}" for name, version in sorted(versions.items())]
    return " ".join([f"format={FORMAT}", *parts])


class Difference(JournalError):
    """The engine decides otherwise than the journal says that it did."""

    exit_code = 1

    def __init__(self, row: JournalRow, decided: str | None, versions: str) -> None:
        super().__init__(
            f"at event {row.seq} the engine decides otherwise than the journal says",
            cause=f"journal: {row.decisions or '[]'}\n         engine:  {decided or '[]'}",
            hint=f"the run was made with {versions}; use the same versions",
            code="different",
        )
        self.row = row
        self.decided = decided


class Replay:
    """Replays a journal's events one by one. ``engine`` is the state after event ``seq``;
    ``replayed`` counts events.

    ``compare`` compares each decision with the journal and raises :class:`Difference`.
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
        #: Versions of the file that hold for events to come. A snapshot at ``after`` was made with
        #: those of before: a change at that very event came later.
        self._texts = [text for text in texts[1:] if text.seq >= after]
        self.seq = after
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
        """Each event with what the engine decides on it; then, with ``pending``, a change of the
        file that no event came after yet."""
        for row in self._journal.rows(self.seq, until):
            while self._texts and self._texts[0].seq < row.seq:
                self.engine.adopt(self._loading(self._texts.pop(0)))
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
                if decided != row.decisions and not _told_less(row.decisions, decided):
                    raise Difference(row, decided, _versions_at(self._journal, row.seq))
            self.seq = row.seq
            self.replayed += 1
            yield row, event, decisions
        while pending and self._texts and (until is None or self._texts[0].seq <= until):
            self.engine.adopt(self._loading(self._texts.pop(0)))


def _told_less(kept: str | None, decided: str | None) -> bool:
    """True if decisions differ only by what an older version did not tell functions of a job."""
    if kept is None or decided is None:
        return False
    before, now = json.loads(kept), json.loads(decided)
    for old, new in zip(before, now, strict=False):
        told = new.get("job")
        if isinstance(told, dict) and isinstance(old.get("job"), dict):
            for name in _TOLD_SINCE:
                if name not in old["job"]:
                    told.pop(name, None)
            new["job"] = {name: told[name] for name in [*old["job"], *told] if name in told}
    return decisions_text(before) == decisions_text(now)


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
    """The engine as the journal left it: from the newest snapshot that ``maker`` can read;
    ``None`` reads none.

    ``pending`` false leaves out a change of the file that no event came after, for whoever puts
    another in its place: it was never in force, and the journal will not have it any more.

    Raises :class:`JournalError` where the journal is damaged, :class:`Difference` where the engine
    does not come to the same decisions, and what ``loading`` raises.
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
