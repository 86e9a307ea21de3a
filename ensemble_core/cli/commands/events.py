"""``ensemble events RUN``: prints a run's events and decisions from its journal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import click

from ensemble_core.cli.error_format import print_error, print_warning
from ensemble_core.cli.json_output import to_json
from ensemble_core.cli.name_completion import all_jobs, no_such_job
from ensemble_core.cli.options import KeptRun, complete_names, kept_run_options
from ensemble_core.display.event_lines import Narrator
from ensemble_core.display.text_style import print_line, style_of
from ensemble_core.errors import EnsembleError
from ensemble_core.journal.event_encoding import JournalRow
from ensemble_core.journal.lock import Lock
from ensemble_core.journal.reader import Journal, JournalError
from ensemble_core.model.decisions import Cancel, Decision, Signal, Submit, Terminate
from ensemble_core.model.ensemble import Binder, Ensemble
from ensemble_core.quick_dataclass import replace

#: Seconds between polls for new events.
_LOOK = 0.3
#: If a damaged journal has an unknown length, reading ends after this many unreadable rows in a
#: row.
_GIVEN_UP = 10_000


_Cannot = Callable[[int, str, "int | None"], None]


@click.command()
@kept_run_options(salvage=True)
@click.option(
    "-f", "--follow", is_flag=True, help=("Follow the run until it has ended or has no controller.")
)
@click.option(
    "--job",
    metavar="JOB",
    help="Only what concerns this job, such as sim.3.",
    shell_complete=complete_names(all_jobs),
)
@click.option(
    "--decisions/--no-decisions",
    default=True,
    help="Show or hide decisions.  [default: show]",
)
@click.option(
    "--since",
    type=click.IntRange(min=1),
    default=1,
    metavar="SEQ",
    help="Start at this event.  [default: the first]",
)
def events(
    kept: KeptRun,
    follow: bool,
    job: str | None,
    decisions: bool,
    since: int,
    as_json: bool,
) -> int:
    """Show a run's events and decisions.

    RUN is the run's tag, a unique prefix or suffix of it, or 'last'. With --json, each line is an
    event or a decision, as in 'ensemble run --json', with the number of the event ('seq'). If the
    journal is damaged, everything readable is shown and the exit code is 1. If the run has no such
    job at the end, the exit code is 2.
    """
    return _EventPrinter(kept, job, decisions, as_json).tell(since, follow)


class _EventPrinter:
    """Prints the events and decisions in one journal."""

    def __init__(self, kept: KeptRun, job: str | None, decisions: bool, as_json: bool) -> None:
        self._kept = kept
        self._job = job
        self._decisions = decisions
        self._as_json = as_json
        self._look = style_of(sys.stdout)
        self._narrator = None if as_json else self._make_narrator()
        self._about_job = False  # whether anything was about the selected job
        self._unreadable = 0
        self._lost_from: int | None = None

    def _make_narrator(self) -> Narrator:
        narrator = Narrator(self._ensemble(), self._look, debug=True)
        # Times are relative to the run's first event, even if that event is not shown.
        try:
            for row in self._kept.journal.rows(0, 1):
                list(narrator.tell(row.event()))
        except (ValueError, TypeError, KeyError, JournalError):
            pass  # reported as unreadable when its turn comes
        return narrator

    def _ensemble(self) -> Ensemble:
        """Return the ensemble of the run, or a minimal one if the ensemble file cannot be read."""
        try:
            return self._kept.loading(self._kept.journal.texts()[-1])
        except (EnsembleError, IndexError) as error:
            print_warning(f"cannot read the run's ensemble file: {error}")
        return Ensemble(
            name=self._kept.tag,
            groups={},
            rules=(),
            statistics={},
            binder=Binder(rule=_refuse_binding, action=_refuse_binding, group=_refuse_binding),
        )

    def tell(self, since: int, follow: bool) -> int:
        lock = Lock(self._kept.folder)
        at = since - 1
        while True:
            # Check for a controller before reading, so that its last events are read too.
            going = follow and lock.controller() is not None
            for row in _salvage_rows(self._kept.journal, at, self._cannot):
                at = row.seq
                self._row(row)
            sys.stdout.flush()
            if not going:
                break
            time.sleep(_LOOK)
        lost = []
        if self._unreadable:
            lost.append("1 event" if self._unreadable == 1 else f"{self._unreadable:,} events")
        if self._lost_from is not None:
            lost.append(f"possible events from {self._lost_from} on")
        if not lost:
            damage = self._kept.damage()
            if damage is not None:
                print_error(damage)
                return 1
            if self._job is not None and not self._about_job:
                self._check_job(self._job)
            return 0
        said = ", and ".join(lost) + "," * (len(lost) - 1)
        click.echo(f"error: the journal is damaged: {said} cannot be read", err=True)
        return 1

    def _check_job(self, name: str) -> None:
        """Raise an error if the run has no such job."""
        for row in self._kept.journal.rows():
            if row.job == name or (row.decisions and self._names_job(row.decisions)):
                return
        raise no_such_job(self._kept, name, all_jobs(self._kept))

    def _cannot(self, seq: int, why: str, until: int | None) -> None:
        """Note that the events from ``seq`` to ``until`` (``None``: unknown) cannot be read."""
        if not self._unreadable and self._lost_from is None:
            print_warning(f"event {seq} cannot be read: {why}")
        if until is None:
            self._lost_from = seq
        else:
            self._unreadable += 1

    def _row(self, row: JournalRow) -> None:
        """Print one event and its decisions, as far as they are selected."""
        about = self._job is None or row.job == self._job
        found: list[Decision] = []
        try:
            event = row.event()
            if self._decisions and row.decisions and (about or self._names_job(row.decisions)):
                found = [Decision.from_dict(each) for each in json.loads(row.decisions)]
        except (ValueError, TypeError, KeyError) as error:
            self._cannot(row.seq, str(error), row.seq)
            return
        if not about:
            found = [part for each in found if (part := self._part(each)) is not None]
        self._about_job |= about or bool(found)
        if self._as_json:
            if about:
                self._print("event", row, event.to_dict())
            for decision in found:
                self._print("decision", row, decision.to_dict())
            return
        assert self._narrator is not None
        number = f"{row.seq:>6} "
        for item in (*((event,) if about else ()), *found):
            for line in self._narrator.tell(item):
                print_line(self._look.paint(number, "dim") + line.text.replace("\n", "\n       "))
                number = " " * len(number)

    def _print(self, kind: str, row: JournalRow, data: dict[str, Any]) -> None:
        print_line(to_json({"kind": kind, "seq": row.seq, "timestamp": row.time, **data}))

    def _names_job(self, decisions: str) -> bool:
        """Return True if these decisions may name the selected job."""
        return json.dumps(self._job) in decisions

    def _part(self, decision: Decision) -> Decision | None:
        """Return the part of a decision that is about the selected job."""
        if isinstance(decision, Submit):
            jobs = tuple(job for job in decision.jobs if job.id == self._job)
            return replace(decision, jobs=jobs) if jobs else None
        if isinstance(decision, (Cancel, Signal)) and self._job in decision.jobs:
            return replace(decision, jobs=(self._job,))
        if isinstance(decision, Terminate) and self._job in decision.cancel:
            return replace(decision, cancel=(self._job,))
        return None


def _refuse_binding(*_: object) -> Any:
    raise EnsembleError("the run's ensemble file cannot be read")


def _salvage_rows(journal: Journal, after: int, cannot: _Cannot) -> Iterator[JournalRow]:
    """Yield the readable rows after ``after`` in order. Report unreadable rows to ``cannot``."""
    at = after
    while True:
        try:
            for row in journal.rows(at):
                yield row
                at = row.seq
            return
        except JournalError as error:
            why = error.cause or error.what
        try:
            last: int | None = journal.last()
        except JournalError:
            last = None
        # Read single rows until the end of the damage, and then batches again.
        bad: list[int] = []
        for seq in count(at + 1):
            if (seq > last) if last is not None else len(bad) >= _GIVEN_UP:
                if last is None:
                    cannot(at + 1, why, None)
                for missing in bad if last is not None else ():
                    cannot(missing, why, missing)
                return
            try:
                rows = list(journal.rows(seq - 1, seq))
            except JournalError:
                rows = []
            if not rows:
                bad.append(seq)
                continue
            for missing in bad:
                cannot(missing, why, missing)
            yield rows[0]
            at = seq
            if bad:
                break
