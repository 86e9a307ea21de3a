"""Determines how a LAMMPS job ended, from its log and its wait status.

Rules act on the outcome, so it is ``unknown`` in case of doubt.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite

from ensemble_programs import outcome as programs
from ensemble_programs.outcome import describe_status, open_regular, read_ends

from ensemble_core import Row
from ensemble_lammps.log_facts import is_thermo
from ensemble_lammps.thermo import KEYWORDS, ThermoReader

__all__ = ["Outcome", "read"]

#: Where the last table begins, or the part of the log that has it: without preparation
#: (``pre no``), only the end of the run before is marked.
_TABLE = rb"^(?:Per MPI rank memory allocation|Memory usage per processor|LAMMPS \()"
_RUN = _TABLE[:-1] + rb"|Loop time of )"
#: Number of bytes before a table in which the command of its run is.
_BEFORE = 1 << 16

#: Columns without physics, which may be infinite or nan in a healthy run.
_TIMES = frozenset({
    "Step", "Elapsed", "Elaplong", "Dt", "Time", "CPU", "T/CPU", "S/CPU", "CPULeft", "Part",
    "TimeoutLeft", "Nbuild", "Ndanger", "NonFinite",
})  # fmt: skip

_MARKS = re.compile(
    rb"^(?:"
    rb"(?P<banner>LAMMPS \()"
    rb"|(?P<table>Per MPI rank memory allocation|Memory usage per processor)"
    rb"|(?P<loop>Loop time of (?:[^\n]{1,200} for (?P<done>[0-9]{1,18}) steps with )?)"
    rb"|ERROR(?: on proc [0-9]+)?: (?P<error>[^\n]{1,2000})"
    rb"|WARNING: (?P<timeout>Wall time limit reached)"
    rb"|WARNING: (?P<lost>Lost atoms: [^\n]{1,200})"
    rb"|(?P<halt>Fix halt [^\n]{0,200}? met on step (?P<at>[0-9]{1,18})\b[^\n]{0,200})"
    rb"|(?P<wall>Total wall time: [0-9]+:[0-9]{2}:[0-9]{2})"
    rb"|(?P<run>run[ \t]+(?P<asked>[0-9]{1,18})"
    rb"(?P<how>[ \t]*(?:#[^\n]*|(?:upto|start|stop|pre|post|every)\b[^\n]*)?)\r?$)"
    rb"|(?P<minimize>(?:minimize|rerun|neb|prd|tad|temper|hyper)[ \t])"
    rb"|(?P<quit>quit(?:[ \t]+(?P<code>[0-9]{1,3}))?[ \t]*\r?$)"
    rb"|log[ \t]+(?P<log>\S+)"
    rb"|Running on (?P<partitions>[0-9]{1,9}) partitions of processors"
    rb")",
    re.MULTILINE,
)
_AT = re.compile(r"^Fix halt .* met on step ([0-9]{1,18})\b")
_LOCATION = re.compile(r"\s*\([^()]*\.(?:cpp|h):\d+\)\s*$")


@dataclass(frozen=True, slots=True)
class Outcome(programs.Outcome):
    """How a job ended. Unknown numbers are ``None``."""

    begin: int | None = None  #: first step of the last run
    asked: int | None = None  #: number of steps that the last run should do


def read(path: str | os.PathLike[str], status: int | None = None, *, over: bool = True) -> Outcome:
    """Return how the job with this log ended.

    The job's wait status is ``status``, if known. Set ``over`` to false if the job may still be
    running. An unreadable log raises no error.
    """
    try:
        with open_regular(os.fspath(path)) as file:
            text = read_ends(file, _TABLE, _RUN, _BEFORE)
    except OSError as error:
        what = f"cannot read the log: {error.strerror or error}"
        return Outcome(*_explain_end(what, status, over, sure=False))
    if not text:
        return Outcome(*_explain_end("the log is empty", status, over))
    log = _Log(text)
    # If the input script cannot be opened, the log has only the line with the error.
    if not log.found and not (text.startswith(b"ERROR") and log.error):
        return Outcome("unknown", "this is not a LAMMPS log")
    # The log takes precedence over the exit status: LAMMPS exits with 0 after ``fix halt`` and
    # ``timer timeout``, and also if the disk is full.
    kind, message = _verdict(log, status, over)
    return Outcome(kind, message, log.step, begin=log.begin, asked=log.asked)


class _Log:
    """A log, or the part of it that was read."""

    def __init__(self, text: bytes) -> None:
        #: Whether the log contains anything written by LAMMPS.
        self.found = False
        self.step: int | None = None
        self.begin: int | None = None
        self.asked: int | None = None
        #: The last row, and the steps of the first and last row of its table.
        self._row: Mapping[str, float] = {}
        self._first: float | None = None
        self._last: float | None = None
        self._on_start()
        last = 0
        for match in _MARKS.finditer(text):
            if match.lastgroup in ("banner", "table"):
                last = match.start()
            self._mark(match)
        self._rows(text, last)

    def _on_start(self) -> None:
        """Handle the start of LAMMPS."""
        self.complete, self.error = False, ""
        #: Why LAMMPS was made to stop (outcome and message), and whether the stopped run has ended.
        self.stopped: tuple[str, str] | None = None
        self._stopped_ended = False
        self._loop: int | None = None
        #: Requested lengths of the next run and of the last run that started. Each is a number, and
        #: whether the number is the final step (``upto``) or a number of steps.
        self._next: tuple[int | None, bool] = (None, False)
        self._run: tuple[int | None, bool] = (None, False)
        #: Whether the next run has not started. It may never start: after a halt, LAMMPS skips
        #: runs.
        self._is_new = False
        #: Steps of a run's finished parts (``run … every``), with and without the last part.
        self._done = self._before = 0
        self.quit: int | None = None
        #: A warning about lost atoms. It is the only message if the user has turned the error off.
        self.lost = ""
        #: Description of other destinations of LAMMPS' messages, or empty.
        self.elsewhere = ""

    def _mark(self, match: re.Match[bytes]) -> None:
        kind = match.lastgroup or ""
        words = _message_text(match[kind])
        self.found = self.found or kind in ("banner", "table", "loop", "wall")
        if kind == "banner":
            self._on_start()
        elif kind == "table":
            self.stopped, self.error, self._loop = None, "", None
            self._begins()
        elif kind == "loop":
            if self._stopped_ended:
                self.stopped = None
            self._stopped_ended = self.stopped is not None
            self._loop = int(match["done"]) if match["done"] else None
            self._begins()
            self._done += self._loop or 0
            self.error = ""
        elif kind == "error":
            self.error = self.error or words
            if at := _AT.search(self.error):
                self.step = int(at[1])
        elif kind == "timeout":
            self.stopped, self._stopped_ended = ("timed-out", words), False
        elif kind == "lost":
            self.lost = words
        elif kind == "halt":
            self.step = int(match["at"])
            self.stopped, self._stopped_ended = ("halted", words), False
        elif kind == "wall":
            self.complete, self.error = True, ""
        elif kind in ("run", "minimize"):
            length = int(match["asked"]) if kind == "run" else None
            self._next, self._is_new = (length, b"upto" in (match["how"] or b"").split()), True
            self.quit = None
        elif kind == "quit":
            self.quit = int(match["code"] or 0)
        elif kind == "log":
            self.elsewhere = f"LAMMPS continued in {words}"
        elif kind == "partitions":
            self.elsewhere = f"LAMMPS ran on {words} partitions, each with its own log"

    def _begins(self) -> None:
        """Handle the start of a run or of a part of one."""
        if self._is_new:
            self._run, self._done, self._is_new = self._next, 0, False
        self._before = self._done

    def _rows(self, text: bytes, last: int) -> None:
        """Find the last row, and where the last run started."""
        halted = self.step if self.stopped is not None or self.error else None
        self.step = None
        reader = ThermoReader()
        self._record_rows(reader.feed(text[:last]))
        self._record_rows([*reader.feed(text[last:]), *reader.finish()])
        self.found = self.found or bool(self._row)
        if self._last is not None:
            self.step = int(self._last)
        if self._first is not None:
            self.begin = int(self._first)
            if self._loop is not None:
                # The last step is not always printed, because a stopped run may end between rows.
                self.step = max(self.begin + self._loop, self.step or 0)
        if halted is not None:
            self.step = max(halted, self.step or 0)
        asked, upto = self._run
        if asked is not None and self.begin is not None:
            self.begin -= self._before
            self.asked = asked - self.begin if upto else asked
            if self.begin < 0:
                # The log does not contain the command of the last run, so the run's first step is
                # unknown.
                self.begin = self.asked = None

    def _record_rows(self, rows: Iterable[Row]) -> None:
        """Find the last of these rows, and the first one of their last table."""
        self._first = None
        for row in rows:
            if is_thermo(row.values):
                step = row.clock
                if step is not None and (
                    self._first is None or self._last is None or step <= self._last
                ):
                    self._first = step
                self._last, self._row = step, row.values

    def broken(self) -> list[str]:
        """Return the columns that are not finite at the end, if that means that the run is broken.

        If the log has columns that LAMMPS itself computes, only these count, because user-defined
        columns may be 0/0 in a healthy run.
        """
        physical = [name for name in self._row if name not in _TIMES]
        known = [name for name in physical if name in KEYWORDS]
        return [name for name in known or physical if not isfinite(self._row[name])]

    def early(self) -> bool:
        """Return whether the last run ended early and the log does not say why."""
        return self._loop is not None and self.asked is not None and self._done < self.asked


#: Kinds of errors, by words in their messages.
_ERRORS = {"Lost atoms": "lost-atoms", "Fix halt": "halted", "Non-numeric": "nan", "": "error"}


def _verdict(log: _Log, status: int | None, over: bool) -> tuple[str, str]:
    """Return the kind and message for a log of LAMMPS."""
    if log.error:
        return next(kind for words, kind in _ERRORS.items() if words in log.error), log.error
    broken = log.broken()
    if log.stopped is not None and (log.stopped[0] == "halted" or not broken):
        return log.stopped
    where = "" if log.step is None else f" at step {log.step}"
    if broken and (over or log.complete):
        return "nan", f"{', '.join(broken)} {'is' if len(broken) == 1 else 'are'} not finite{where}"
    if not log.complete and log.quit is None:
        what = "the log is truncated" + (f": {log.elsewhere}" if log.elsewhere else "")
        return _explain_end(what, status, over, sure=not log.elsewhere)
    if log.quit:
        return "error", f"the script ended with 'quit {log.quit}'"
    if log.early():
        return "halted", f"the last run ended early{where}, and the log does not say why"
    words = [log.lost] if log.lost else []
    if status:
        words.append(f"the log is complete, but the job {describe_status(status)[1]}")
    return "completed", "; ".join(words)


def _explain_end(
    what: str, status: int | None, over: bool, *, sure: bool = True
) -> tuple[str, str]:
    """Return the kind and message for a log without an end, from the wait status.

    The flag ``sure`` means that LAMMPS has not finished, because it would have written the end to
    this log.
    """
    if status is None:
        return ("running" if not over else "killed" if sure else "unknown"), what
    if not status:
        hint = "; was the disk full?" if sure else ""
        return "unknown", f"the job exited with 0, but {what}{hint}"
    killer, words = describe_status(status)
    if killer is not None:
        return "killed", f"the job {words}, and {what}"
    return "error", f"the job {words}, and {what}; the job's own output may say why"


def _message_text(text: bytes) -> str:
    """Return a message on one line, without the place in LAMMPS' source."""
    return " ".join(_LOCATION.sub("", text.decode("utf-8", "replace")).split())
