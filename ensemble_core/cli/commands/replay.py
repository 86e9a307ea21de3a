"""``ensemble replay RUN``: re-runs the engine on a journal and checks its decisions."""

from __future__ import annotations

import json
import sys
from itertools import zip_longest
from typing import Any

import click

from ensemble_core.cli.error_format import print_error
from ensemble_core.cli.json_output import to_json
from ensemble_core.cli.options import KeptRun, kept_run_options
from ensemble_core.display.summary import report_lines
from ensemble_core.display.text_style import (
    TextStyle,
    print_line,
    printable,
    style_of,
    terminal_width,
)
from ensemble_core.engine.engine import Engine
from ensemble_core.engine.rule_trace import event_words
from ensemble_core.errors import EnsembleError
from ensemble_core.journal.reader import Snapshot
from ensemble_core.journal.replay import Difference, Replay
from ensemble_core.journal.snapshot_encoding import load

#: How many events after each snapshot are also replayed from the snapshot.
_AFTER = 5_000


@click.command()
@kept_run_options()
@click.option(
    "--until",
    type=click.IntRange(min=0),
    metavar="SEQ",
    help="Stop after this event.  [default: the last]",
)
def replay(kept: KeptRun, until: int | None, as_json: bool) -> int:
    """Re-run the engine on the journal and check its decisions.

    RUN is the run's tag, a unique prefix or suffix of it, or 'last'. The command replays all
    events, compares the engine's decisions and state with those in the journal, and prints the
    final state of the run. It also checks the journal file for damage. The exit code is 1 if
    anything differs.
    """
    return _Check(kept, until).tell(as_json)


class _Check:
    """The replay of one run, and what it found."""

    def __init__(self, kept: KeptRun, until: int | None) -> None:
        journal = kept.journal
        journal.check()
        self._kept = kept
        last = journal.last()
        self._until = last if until is None else min(until, last)
        self.events = 0
        self.decisions = 0
        self.difference: Difference | None = None
        #: The events after which a snapshot was compared, the events of snapshots by other
        #: versions, and problems with snapshots.
        self.snapshots: list[int] = []
        self.foreign: list[int] = []
        self.wrong: list[str] = []
        self._replay()

    def _replay(self) -> None:
        journal = self._kept.journal
        waiting = {each.seq: each for each in journal.snapshots() if each.seq <= self._until}
        replay = Replay(journal, self._kept.loading)
        try:
            for row, _, decisions in replay.steps(self._until):
                self.events += 1
                self.decisions += len(decisions)
                if row.seq in waiting:
                    self._compare(waiting[row.seq], replay.engine)
        except Difference as error:
            self.difference = error
        self.report = replay.engine.report()

    def _compare(self, snapshot: Snapshot, engine: Engine) -> None:
        """Compare a snapshot with the replayed state.

        Then replay from it, and compare later decisions.
        """
        kept, seq = self._kept, snapshot.seq
        if kept.maker is None or snapshot.maker != kept.maker:
            self.foreign.append(seq)
            return
        held = [text for text in kept.journal.texts() if text.seq < seq]
        restored = load(snapshot.state, kept.loading(held[-1])) if held else None
        if restored is None:
            self.wrong.append(f"the snapshot after event {seq} cannot be read")
            return
        self.snapshots.append(seq)
        for name, here, there in (
            ("counts and rules", engine.report().to_dict(), restored.report().to_dict()),
            ("metrics", dict(engine.snapshot()), dict(restored.snapshot())),
            ("jobs", _jobs(engine), _jobs(restored)),
            ("timers", engine.next_timer(), restored.next_timer()),
        ):
            # Compare as text, because nan does not equal itself.
            if isinstance(here, dict) and isinstance(there, dict):
                # Ignore the order of gauges, which may differ after a change of the file.
                here, there = dict(sorted(here.items())), dict(sorted(there.items()))
            if repr(here) != repr(there):
                told = _first_difference(here, there)
                self.wrong.append(f"the snapshot after event {seq} has different {name}: {told}")
                return
        onward = Replay(kept.journal, kept.loading, after=seq, engine=restored)
        try:
            for _ in onward.steps(min(self._until, seq + _AFTER)):
                pass
        except Difference as error:
            self.wrong.append(
                f"from the snapshot after event {seq}, the engine's decision at event "
                f"{error.row.seq} differs from the journal"
            )

    # -- output ----------------------------------------------------------------------------------

    def tell(self, as_json: bool) -> int:
        if as_json:
            print_line(to_json(self._data()))
        else:
            for line in self._lines(style_of(sys.stdout)):
                print_line(line)
            sys.stdout.flush()
            self._complain()
        return 0 if self.same else 1

    @property
    def same(self) -> bool:
        return self.difference is None and not self.wrong

    def _data(self) -> dict[str, Any]:
        return {
            "run": self._kept.tag,
            "same": self.same,
            "events": self.events,
            "decisions": self.decisions,
            "until": self._until,
            "snapshots": self.snapshots,
            "snapshots_of_other_versions": self.foreign,
            "problems": self.wrong,
            "difference": None if self.difference is None else _difference_data(self.difference),
            "report": self.report.to_dict(),
        }

    def _lines(self, look: TextStyle) -> list[str]:
        lines = report_lines(self.report, look, terminal_width(sys.stdout))
        tag = printable(self._kept.tag)
        if self.difference is not None:
            said = f"{tag}: identical up to event {self.events}, different after it"
            return [*lines, look.paint(said, "bad")]
        said = (
            f"{tag}: {self.events:,} events gave the same {self.decisions:,} decisions, byte for "
            "byte"
        )
        lines.append(look.paint(said, "bad" if self.wrong else "good"))
        if self.snapshots:
            after = ", ".join(map(str, self.snapshots))
            lines.append(f" snapshots after event {after} compared")
        if self.foreign:
            after = ", ".join(map(str, self.foreign))
            lines.append(f" snapshots after event {after} are from other versions: not compared")
        return lines

    def _complain(self) -> None:
        hint = "a resume would use it; please report this with the journal"
        for problem in self.wrong:
            print_error(EnsembleError(problem, hint=hint))
        if self.difference is not None:
            print_error(_difference_error(self.difference))


def _jobs(engine: Engine) -> list[tuple[object, ...]]:
    return [
        (name, record.state, record.phase, record.outcome, record.cancel, record.rows)
        for name, record in engine.in_queue()
    ]


def _first_difference(here: object, there: object) -> str:
    """Describe the first difference between two values of the same shape."""
    if isinstance(here, dict) and isinstance(there, dict):
        for key in dict.fromkeys([*here, *there]):
            if repr(here.get(key)) != repr(there.get(key)):
                return f"{key}: {_first_difference(here.get(key), there.get(key))}"
    if isinstance(here, list) and isinstance(there, list):
        for place, (one, other) in enumerate(zip(here, there, strict=False)):
            if repr(one) != repr(other):
                return f"{place}: {_first_difference(one, other)}"
        return f"{len(here)} by replay, {len(there)} in the snapshot"
    return f"{here!r} by replay, {there!r} in the snapshot"


def _difference_data(difference: Difference) -> dict[str, Any]:
    """Return a difference as plain data: the event and both lists of decisions."""
    return {
        "seq": difference.row.seq,
        "event": difference.row.event().to_dict(),
        "journal": json.loads(difference.row.decisions or "[]"),
        "engine": json.loads(difference.decided or "[]"),
        "hint": difference.hint,
    }


def _difference_error(difference: Difference) -> EnsembleError:
    """Return a difference as an error, with the event and both lists of decisions."""
    row, data = difference.row, _difference_data(difference)
    journal, engine = data["journal"], data["engine"]
    lines = []
    for one, other in zip_longest(journal, engine):
        if one == other:
            lines.append(f"  both     {_short(one)}")
            continue
        lines += [f"  journal  {_short(one)}", f"  engine   {_short(other)}"]
    if journal == engine:
        lines.append(f"  the same decisions, encoded differently: {row.decisions}")
        lines.append(f"  now: {difference.decided}")
    return EnsembleError(
        f"at event {row.seq} ({event_words(row.event())}) the engine's decisions differ from the "
        "journal",
        cause="\n".join(["decisions:", *lines]),
        hint=difference.hint,
        code="different",
    )


def _short(decision: Any) -> str:
    if decision is None:
        return "-"
    text = json.dumps(decision)
    return text if len(text) <= 400 else f"{text[:399]}…"
