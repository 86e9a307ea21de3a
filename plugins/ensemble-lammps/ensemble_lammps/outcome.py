"""Determines how a LAMMPS job ended, from its log and its wait status.

Rules act on the outcome, so it is ``unknown`` in case of doubt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite

from ensemble_programs import outcome as programs

from ensemble_lammps.log_facts import is_thermo
from ensemble_lammps.thermo import KEYWORDS, TIMES, ThermoReader

#: Where the last table begins, or the part of the log that has it: without preparation
#: (``pre no``), only the end of the run before is marked.
_TABLE = rb"^(?:Per MPI rank memory allocation|Memory usage per processor|LAMMPS \()"
_RUN = _TABLE[:-1] + rb"|Loop time of )"
#: Number of bytes before a table in which the command of its run is.
_BEFORE = 1 << 16

_MARKS = re.compile(
    rb"^(?:"
    rb"(?P<banner>LAMMPS \()"
    rb"|(?P<table>Per MPI rank memory allocation|Memory usage per processor)"
    rb"|(?P<loop>Loop time of (?:[^\n]{1,200} for (?P<done>[0-9]{1,18}) steps with )?)"
    rb"|ERROR(?: on proc [0-9]+)?: (?P<error>[^\n]{1,2000})"
    rb"|WARNING: (?P<timeout>Wall time limit reached)"
    rb"|WARNING: (?P<lost>Lost atoms: [^\n]{1,200})"
    rb"|(?P<halt>Fix halt [^\n]{0,200}? met on step [0-9]{1,18}\b[^\n]{0,200})"
    rb"|(?P<wall>Total wall time: [0-9]+:[0-9]{2}:[0-9]{2})"
    rb"|(?P<run>run[ \t]+(?P<asked>[0-9]{1,18})"
    rb"(?P<how>[ \t]*(?:#[^\n]*|(?:upto|start|stop|pre|post|every)\b[^\n]*)?)\r?$"
    rb"|(?:minimize|rerun|neb|prd|tad|temper|hyper)[ \t])"
    rb"|(?P<quit>quit(?:[ \t]+(?P<code>[0-9]{1,3}))?[ \t]*\r?$)"
    rb"|log[ \t]+(?P<log>\S+)"
    rb"|Running on (?P<partitions>[0-9]{1,9}) partitions of processors"
    rb")",
    re.MULTILINE,
)
_AT = re.compile(r"^Fix halt .* met on step ([0-9]{1,18})\b")
_STOPS = {"halt": "halted", "timeout": "timed-out"}
#: Kinds of errors, by words in their messages.
_ERRORS = {"Lost atoms": "lost-atoms", "Fix halt": "halted", "Non-numeric": "nan", "": "error"}
_LOCATION = re.compile(r"\s*\([^()]*\.(?:cpp|h):\d+\)\s*$")


def read(path: str, status: int | None = None, *, over: bool = True) -> programs.Outcome:
    """Return how the job with this log ended.

    The job's wait status is ``status``, if known. Set ``over`` to false if the job may still be
    running. An unreadable log raises no error.
    """
    try:
        with programs.open_regular(path) as file:
            text = programs.read_ends(file, _TABLE, _RUN, _BEFORE)
    except OSError as error:
        what = f"cannot read the log: {error.strerror or error}"
        return programs.Outcome(*_without_end(what, status, over, sure=False))
    if not text:
        return programs.Outcome(*_without_end("the log is empty", status, over))
    log = _Log(text)
    # If the input script cannot be opened, the log has only the line with the error.
    if not log.found and not (text.startswith(b"ERROR") and log.error):
        return programs.Outcome("unknown", "this is not a LAMMPS log")
    # The log takes precedence over the exit status: LAMMPS exits with 0 after ``fix halt`` and
    # ``timer timeout``, and also if the disk is full.
    return programs.Outcome(*log.verdict(status, over), log.step, log.goal)


class _Log:
    """A log, or the part of it that was read, from the last start of LAMMPS on."""

    def __init__(self, text: bytes) -> None:
        #: Whether the log contains anything written by LAMMPS.
        self.found = False
        self.step: int | None = None
        self.goal: int | None = None
        #: Whether the last run ended early and the log does not say why.
        self._early = False
        #: The last row.
        self._row: Mapping[str, float] = {}
        self._complete, self.error = False, ""
        #: Why LAMMPS was made to stop (outcome and message), and whether the stopped run has ended.
        self._stopped: tuple[str, str] | None = None
        self._stopped_ended = False
        self._loop: int | None = None
        #: Requested lengths of the next run, until it starts, and of the last run that started.
        #: Each is a number, and whether the number is the final step (``upto``) or a number of
        #: steps. The next run may never start: after a halt, LAMMPS skips runs.
        self._next: tuple[int | None, bool] | None = None
        self._run: tuple[int | None, bool] = (None, False)
        #: Steps of a run's finished parts (``run … every``), with and without the last part.
        self._done = self._before = 0
        self._quit: int | None = None
        #: A warning about lost atoms. It is the only message if the user has turned the error off.
        self._lost = ""
        #: Description of other destinations of LAMMPS' messages, or empty.
        self._elsewhere = ""
        text, last = text[text.rfind(b"\nLAMMPS (") + 1 :], 0
        for match in _MARKS.finditer(text):
            if match.lastgroup == "table":
                last = match.start()
            self._mark(match)
        self._rows(text, last)

    def _mark(self, match: re.Match[bytes]) -> None:
        kind = match.lastgroup or ""
        words = " ".join(_LOCATION.sub("", match[kind].decode("utf-8", "replace")).split())
        self.found = self.found or kind in ("banner", "table", "loop", "wall")
        if kind in ("table", "loop"):
            if kind == "table" or self._stopped_ended:
                self._stopped = None
            self._stopped_ended = self._stopped is not None
            self._loop = int(match["done"]) if match["done"] else None
            if self._next is not None:
                self._run, self._done, self._next = self._next, 0, None
            self._before = self._done
            self._done += self._loop or 0
            self.error = ""
        elif kind == "error":
            self.error = self.error or words
        elif kind in _STOPS:
            self._stopped, self._stopped_ended = (_STOPS[kind], words), False
        elif kind == "lost":
            self._lost = words
        elif kind == "wall":
            self._complete, self.error = True, ""
        elif kind == "run":
            length = int(match["asked"]) if match["asked"] else None
            self._next = (length, b"upto" in (match["how"] or b"").split())
            self._quit = None
        elif kind == "quit":
            self._quit = int(match["code"] or 0)
        elif kind == "log":
            self._elsewhere = f"LAMMPS continued in {words}"
        elif kind == "partitions":
            self._elsewhere = f"LAMMPS ran on {words} partitions, each with its own log"
        if kind in ("error", "halt") and (at := _AT.search(words)):
            self.step = int(at[1])

    def _rows(self, text: bytes, last: int) -> None:
        """Find the last row, and where the last run started and should end."""
        halted = self.step if self._stopped is not None or self.error else None
        begin = end = None
        reader = ThermoReader()
        for part in (reader.feed(text[:last]), [*reader.feed(text[last:]), *reader.finish()]):
            begin = None
            for row in part:
                if is_thermo(row.values):
                    step = row.clock
                    if step is not None and (begin is None or end is None or step <= end):
                        begin = step
                    end, self._row = step, row.values
        self.found = self.found or bool(self._row)
        # The last step is not always printed, because a stopped run may end between rows.
        looped = None if begin is None or self._loop is None else int(begin) + self._loop
        ends = [int(step) for step in (end, looped, halted) if step is not None]
        self.step = max(ends, default=None)
        asked, upto = self._run
        # If the log does not contain the command of the last run, the goal is unknown.
        if asked is not None and begin is not None and begin >= self._before:
            start = int(begin) - self._before
            self.goal = asked if upto else start + asked
            self._early = self._loop is not None and start + self._done < self.goal

    def verdict(self, status: int | None, over: bool) -> tuple[str, str]:
        """Return the kind and message of the outcome."""
        if self.error:
            return next(k for words, k in _ERRORS.items() if words in self.error), self.error
        # If the log has columns that LAMMPS itself computes, only these count, because user-defined
        # columns may be 0/0 in a healthy run.
        physical = [name for name in self._row if name not in TIMES]
        known = [name for name in physical if name in KEYWORDS]
        broken = [name for name in known or physical if not isfinite(self._row[name])]
        if self._stopped is not None and (self._stopped[0] == "halted" or not broken):
            return self._stopped
        where = "" if self.step is None else f" at step {self.step}"
        if broken and (over or self._complete):
            return "nan", programs.not_finite(broken) + where
        if not self._complete and self._quit is None:
            what = "the log is truncated" + (f": {self._elsewhere}" if self._elsewhere else "")
            return _without_end(what, status, over, sure=not self._elsewhere)
        if self._quit:
            return "error", f"the script ended with 'quit {self._quit}'"
        if self._early:
            return "halted", f"the last run ended early{where}, and the log does not say why"
        words = [self._lost] if self._lost else []
        if status:
            words.append(f"the log is complete, but the job {programs.describe_status(status)[1]}")
        return "completed", "; ".join(words)


def _without_end(
    what: str, status: int | None, over: bool, *, sure: bool = True
) -> tuple[str, str]:
    """Return the kind and message for a log without an end, from the wait status.

    The flag ``sure`` means that LAMMPS has not finished, because it would have written the end to
    this log.
    """
    source = "the job's own output"
    kind, message = programs.without_end(what, status, over, sure=sure, source=source)
    if status:
        kind = "error" if programs.describe_status(status)[0] is None else "killed"
    elif kind != "running":
        kind = "killed" if status is None and sure else "unknown"
    return kind, message
