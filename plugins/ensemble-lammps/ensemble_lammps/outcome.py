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
from ensemble_programs.outcome import open_regular, read_ends, signal_name, signal_of

from ensemble_core import Row
from ensemble_lammps.log_facts import LOOP, is_thermo
from ensemble_lammps.thermo import KEYWORDS, ThermoReader

__all__ = ["KINDS", "Outcome", "read"]

KINDS = (
    "completed",
    "lost-atoms",
    "nan",  # values in the last row are not finite, or LAMMPS reports such values
    "halted",  # by ``fix halt``
    "timed-out",  # by ``timer timeout``
    "error",  # any other error
    "killed",  # by a signal, or the log is truncated
    "running",
    "unknown",
)

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
    rb"|(?P<loop>Loop time of )"
    rb"|ERROR(?: on proc [0-9]+)?: (?P<error>[^\n]{1,2000})"
    rb"|WARNING: (?P<timeout>Wall time limit reached)"
    rb"|WARNING: (?P<lost>Lost atoms: [^\n]{1,200})"
    rb"|(?P<halt>Fix halt [^\n]{0,200}? met on step (?P<at>[0-9]{1,18})\b[^\n]{0,200})"
    rb"|(?P<wall>Total wall time: [0-9]+:[0-9]{2}:[0-9]{2})"
    rb"|run[ \t]+(?P<run>[0-9]{1,18})"
    rb"(?P<how>[ \t]*(?:#[^\n]*|(?:upto|start|stop|pre|post|every)\b[^\n]*)?)\r?$"
    rb"|(?P<minimize>(?:minimize|rerun|neb|prd|tad|temper|hyper)[ \t])"
    rb"|(?P<quit>quit)(?:[ \t]+(?P<code>[0-9]{1,3}))?[ \t]*\r?$"
    rb"|log[ \t]+(?P<log>\S+)"
    rb"|Running on (?P<partitions>[0-9]{1,9}) partitions of processors"
    rb")",
    re.MULTILINE,
)
_AT = re.compile(r"^Fix halt .* met on step ([0-9]{1,18})\b")
_LOCATION = re.compile(r"\s*\([^()]*\.(?:cpp|h):\d+\)\s*$")


@dataclass(frozen=True, slots=True)
class Outcome(programs.Outcome):
    """How a job ended: one of :data:`KINDS`. Unknown numbers are ``None``."""

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
    if not log.found:
        # If the input script cannot be opened, the log has only this line.
        verdict = log.verdict() if text.startswith(b"ERROR") else None
        return Outcome(*(verdict or ("unknown", "this is not a LAMMPS log")))
    # The log takes precedence over the exit status: LAMMPS exits with 0 after ``fix halt`` and
    # ``timer timeout``, and also if the disk is full.
    kind, message = log.verdict() or _other(log, status, over)
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
            self._mark(match, text)
        self._rows(text, last)

    def _on_start(self) -> None:
        """Handle the start of LAMMPS."""
        self.complete = False
        self._error = ""
        #: Why LAMMPS was made to stop (outcome and message), and whether the stopped run has ended.
        self._stopped: tuple[str, str] | None = None
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

    def _mark(self, match: re.Match[bytes], text: bytes) -> None:
        found = match.groupdict()
        self.found = self.found or bool(
            found["banner"] or found["table"] or found["loop"] or found["wall"]
        )
        if found["banner"]:
            self._on_start()
        elif found["table"]:
            self._stopped, self._error, self._loop = None, "", None
            self._begins()
        elif found["loop"]:
            if self._stopped_ended:
                self._stopped = None
            self._stopped_ended = self._stopped is not None
            line = LOOP.match(text, match.start())
            self._loop = None if line is None else _parse_int(line[3])
            self._begins()
            self._done += self._loop or 0
            self._error = ""
        elif found["error"]:
            self._error = self._error or _message_text(found["error"])
            if at := _AT.search(self._error):
                self.step = int(at[1])
        elif found["timeout"]:
            self._stop("timed-out", found["timeout"])
        elif found["lost"]:
            self.lost = _message_text(found["lost"])
        elif found["halt"]:
            self.step = _parse_int(found["at"])
            self._stop("halted", found["halt"])
        elif found["wall"]:
            self.complete, self._error = True, ""
        elif found["run"]:
            upto = b"upto" in (found["how"] or b"").split()
            self._next, self._is_new = (_parse_int(found["run"]), upto), True
            self.quit = None
        elif found["minimize"]:
            self._next, self._is_new = (None, False), True
            self.quit = None
        elif found["quit"]:
            self.quit = int(found["code"] or 0)
        elif found["log"]:
            log = found["log"].decode("utf-8", "replace")
            self.elsewhere = f"LAMMPS continued in {log}"
        elif found["partitions"]:
            count = found["partitions"].decode()
            self.elsewhere = f"LAMMPS ran on {count} partitions, each with its own log"

    def _begins(self) -> None:
        """Handle the start of a run or of a part of one."""
        if self._is_new:
            self._run, self._done, self._is_new = self._next, 0, False
        self._before = self._done

    def _stop(self, kind: str, words: bytes) -> None:
        self._stopped, self._stopped_ended = (kind, _message_text(words)), False

    def _rows(self, text: bytes, last: int) -> None:
        """Find the last row, and where the last run started."""
        halted = self.step if self._stopped is not None or self._error else None
        self.step = None
        reader = ThermoReader()
        self._record_rows(reader.feed(text[:last]))
        self._record_rows([*reader.feed(text[last:]), *reader.finish()], last=True)
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

    def _record_rows(self, rows: Iterable[Row], *, last: bool = False) -> None:
        """Find the last of these rows, and the first one of the last table."""
        if last:
            self._first = None
        for row in rows:
            if not is_thermo(row.values):
                continue
            step = row.clock
            if step is not None and (
                self._first is None or self._last is None or step <= self._last
            ):
                self._first = step
            self._last, self._row = step, row.values

    def verdict(self) -> tuple[str, str] | None:
        """Return how the run ended according to the log, as kind and message.

        Returns ``None`` if the log shows neither an error nor a stop.
        """
        if self._error:
            if "Lost atoms" in self._error:
                return "lost-atoms", self._error
            if "Fix halt" in self._error:
                return "halted", self._error
            return ("nan" if "Non-numeric" in self._error else "error"), self._error
        if self._stopped is not None and (self._stopped[0] == "halted" or not self.broken()):
            return self._stopped
        return None

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


def _other(log: _Log, status: int | None, over: bool) -> tuple[str, str]:
    """Return the kind and message for a log that shows neither an error nor a stop."""
    broken = log.broken()
    if broken and (over or log.complete):
        where = "" if log.step is None else f" at step {log.step}"
        return "nan", f"{', '.join(broken)} {'is' if len(broken) == 1 else 'are'} not finite{where}"
    if not log.complete and log.quit is None:
        what = "the log is truncated" + (f": {log.elsewhere}" if log.elsewhere else "")
        return _explain_end(what, status, over, sure=not log.elsewhere)
    if log.quit:
        return "error", f"the script ended with 'quit {log.quit}'"
    if log.early():
        done = "" if log.step is None else f" at step {log.step}"
        return "halted", f"the last run ended early{done}, and the log does not say why"
    how = _describe_wait_status(status)
    words = [log.lost] if log.lost else []
    if how is not None:
        words.append(f"the log is complete, but the job {how[1]}")
    return "completed", "; ".join(words)


def _explain_end(
    what: str, status: int | None, over: bool, *, sure: bool = True
) -> tuple[str, str]:
    """Return the kind and message for a log without an end, from the wait status.

    The flag ``sure`` means that LAMMPS has not finished, because it would have written the end to
    this log.
    """
    if status is None:
        if not over:
            return "running", what
        return ("killed" if sure else "unknown"), what
    how = _describe_wait_status(status)
    if how is None:
        hint = "; was the disk full?" if sure else ""
        return "unknown", f"the job exited with 0, but {what}{hint}"
    kind, words = how
    more = "; the job's own output may say why" if kind == "error" else ""
    return kind, f"the job {words}, and {what}{more}"


def _describe_wait_status(status: int | None) -> tuple[str, str] | None:
    """Return the kind and message for a failed job's wait status.

    Returns ``None`` if the status means success or is unknown.
    """
    if not status:
        return None
    killer = signal_of(status)
    if os.WIFSIGNALED(status):
        return "killed", f"was killed by {signal_name(os.WTERMSIG(status))}"
    code = os.WEXITSTATUS(status)
    if killer is not None:
        return "killed", f"exited with {code}, as after {signal_name(killer)}"
    return "error", f"exited with {code}"


def _parse_int(digits: bytes) -> int | None:
    return int(digits) if len(digits) <= 18 else None


def _message_text(text: bytes) -> str:
    """Return a message on one line, without the place in LAMMPS' source."""
    return " ".join(_LOCATION.sub("", text.decode("utf-8", "replace")).split())
