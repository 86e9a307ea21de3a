"""Passes the bytes of a job's file to its observer, and its rows as events to the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from ensemble_core.errors import raised_at, written_at
from ensemble_core.model.events import Event, Observed
from ensemble_core.plugin.observer import UNREADABLE, Observer, Row

#: An observer whose rest of a file would need more than so many seconds of CPU time is too slow.
_LONGEST_CATCH_UP = 5.0
#: A progress bar is read at most once in so many seconds while its job runs.
_UPDATE = 0.1
#: The speed of an observer is measured over so many bytes, or seconds of CPU time. Its first bytes
#: are not measured, because they often take longer.
_MEASURED, _MEASURED_TIME = 1 << 20, 1.0
#: Smaller pieces are not measured: an observer that is behind reads larger ones.
_LARGE = 1 << 12


class _InvalidRow(Exception):
    """Error: an observer returned something that is not a row."""


def _check(row: object) -> None:
    """Raise :class:`_InvalidRow` if an observer has returned something that is not a row."""
    if not isinstance(row, Row):
        raise _InvalidRow(f"returned {_shown(row)}, not a Row")
    values: Mapping[str, object] = row.values
    for name, value in values.items():
        if not isinstance(value, (float, int)):
            raise _InvalidRow(f"returned a Row in which {name!r} is {_shown(value)}, not a float")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


class ObserverFeed:
    """An observer of a job, and what it has made of the bytes so far.

    - ``tell`` receives the rows as events. ``clock`` returns the events' time.
    - ``fail`` is called with an error of the observer, which is then not called again.
    - ``skip`` is the number of rows to skip, because an earlier controller has handled them.
    """

    def __init__(
        self,
        job: str,
        name: str,
        observer: Observer,
        path: str,
        *,
        skip: int,
        tell: Callable[[Event], None],
        clock: Callable[[], float],
        fail: Callable[[str], None],
    ) -> None:
        self.name = name
        #: The file that is read now, for errors.
        self.path = path
        self.skip = skip
        #: True after an error of the observer.
        self.failed = False
        #: Whether the job is over, and the number of rows before and after that.
        self.ended = False
        self.rows = [0, 0]
        #: Whether the last bytes are no whole line.
        self.in_line = False
        self._job = job
        self._observer = observer
        self._tell = tell
        self._clock = clock
        self._fail = fail
        #: True after the file was truncated or replaced, until the next row.
        self._restarted = False
        #: The rows since the last one that was handed over, merged, and when that may be next.
        self._held: Row | None = None
        self._due = 0.0
        self._pause = 0.0 if observer.rate is None else 1 / observer.rate
        #: The CPU time of the observer in seconds, and for how many bytes; its seconds per byte.
        self._cost, self._fed = 0.0, 0
        self._pace: float | None = None
        self._warm = False

    @property
    def rewrites(self) -> bool:
        """True if a carriage return ends a line, and only the newest updates of a line matter."""
        return self._observer.rewrites and not self.skip

    @property
    def update_pause(self) -> float:
        """In how many seconds a progress bar is read at most once."""
        return self._pause or _UPDATE

    @property
    def due(self) -> float | None:
        """When a row that is held must be handed over, as in ``time.monotonic``, or ``None``."""
        return None if self._held is None else self._due

    def release(self, *, final: bool = False) -> None:
        """Hand over the row that is held, if it is time."""
        if self._held is not None and (final or time.monotonic() >= self._due):
            row, self._held = self._held, None
            self._due = time.monotonic() + self._pause
            self._tell(self._event(self._clock(), row))

    def feed(self, data: bytes) -> None:
        """Pass the next bytes to the observer."""
        self.in_line = not data.endswith(b"\n")
        began = time.thread_time() if len(data) >= _LARGE else None
        self._observe(lambda: self._observer.feed(data), "feed")
        if began is not None:
            self._measure(time.thread_time() - began, len(data))

    def end_line(self) -> None:
        """End an unfinished line, because its file is complete."""
        if self.in_line:
            self.feed(b"\n")

    def truncated(self, *, repeats: bool = True) -> None:
        """Discard buffered bytes, because the file was truncated or replaced.

        Unless it ``repeats`` them, the rows so far still count.
        """

        def forget() -> Iterable[Row]:
            self._observer.truncated()
            return ()

        self._observe(forget, "truncated")
        self._restarted = self._restarted or repeats

    def interrupted(self) -> str | None:
        """Discard an unfinished line. Return a text that says what was discarded, or ``None``."""
        dropped: list[str | None] = [None]

        def interrupt() -> Iterable[Row]:
            dropped.append(self._observer.interrupted())
            return ()

        self.in_line = False
        self._observe(interrupt, "interrupted")
        return dropped[-1]

    def finish(self) -> None:
        """Take the rows that are complete at the end of the file."""
        self._observe(self._observer.finish, "finish")
        self.release(final=True)

    def complaint(self) -> str | None:
        """Return what the observer could not parse, or ``None``."""
        try:
            return self._observer.complaint()
        except Exception:  # errors of the plugin no longer matter
            return None

    def is_too_slow(self, size: int) -> bool:
        """Return True if the observer would need too much CPU time for this number of bytes."""
        if self.skip or self._pace is None:
            return False
        return size * self._pace > _LONGEST_CATCH_UP

    def _observe(self, rows: Callable[[], Iterable[Row]], method: str) -> None:
        """Turn rows into events. Drop an observer that raises an error or returns other objects."""
        if self.failed:
            return
        timestamp = self._clock()
        try:
            given = rows()
            if given is None:
                raise _InvalidRow("returned None and not a list of Row")
            for row in given:
                _check(row)
                self.rows[self.ended] += 1
                if row.values and self.skip:
                    self.skip -= 1
                elif row.values and self._pause:
                    self._hold(row)
                elif row.values:
                    self._tell(self._event(timestamp, row))
        except (Exception, SystemExit) as error:  # an error in a plugin's code
            self.failed = True
            if isinstance(error, _InvalidRow):
                written = written_at(getattr(type(self._observer), method))
                what = f"its {method} {error} ({written})"
            else:
                what = f"{type(error).__name__}: {error} ({raised_at(error)})"
            self._fail(
                f"job {self._job}: the observer {self.name!r} failed and no longer reads "
                f"{self.path}, so rules that wait for it will not fire: {what}"
            )

    def _measure(self, seconds: float, size: int) -> None:
        """Note that so many bytes took so many seconds of CPU time."""
        self._cost += seconds
        self._fed += size
        if self._fed >= _MEASURED or self._cost >= _MEASURED_TIME:
            if self._warm or self._cost >= _MEASURED_TIME:
                self._pace = self._cost / self._fed
            self._warm, self._cost, self._fed = True, 0.0, 0

    def _hold(self, row: Row) -> None:
        """Hand over a row, or hold it until it is time: newer values replace older ones."""
        if self._held is not None:
            clock = self._held.clock if row.clock is None else row.clock
            row = Row({**self._held.values, **row.values}, clock)
        self._held = row
        self.release()

    def _event(self, timestamp: float, row: Row) -> Observed:
        values, restarted, self._restarted = row.values, self._restarted, False
        unread: tuple[str, ...] = ()
        if UNREADABLE in values.values():  # no other nan is equal to it
            unread = tuple(name for name, value in values.items() if value is UNREADABLE)
        return Observed(timestamp, self._job, self.name, values, row.clock, restarted, unread)
