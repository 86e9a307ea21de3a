"""Output thread of a run: prints the lines of its events, and its live table.

If stdout can no longer be written, for example after ``| head`` has exited, the run continues
without output.
"""

from __future__ import annotations

import errno
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TextIO, cast

from ensemble_core.display.event_lines import OutputLine, is_relevant
from ensemble_core.display.live_table import LiveTable
from ensemble_core.display.text_style import close_quietly, encodable, is_terminal
from ensemble_core.engine.report import Report
from ensemble_core.model.decisions import Decision, Log, Submit
from ensemble_core.model.events import Event, JobEvent, Problem, StopRequested
from ensemble_core.plugin.discovery import STDOUT
from ensemble_core.runtime.watcher import Watcher

#: Length of the queue at which back-pressure begins: lines are dropped, or the run waits.
LIMIT = 200_000
_BATCH = 500
#: Number of characters that fit into the buffer of a stream, which is 8 KiB, in each encoding.
_PIECE = 2000
_FRAME = 0.25  # seconds between frames without new lines
#: Seconds for which the thread waits for further lines. A wakeup for each line would take the GIL
#: from the engine's thread each time. Messages do not wait: a controller that is killed then has
#: printed them.
_GATHER = 0.02
_AT_ONCE = frozenset((Log, Problem))

_Item = Event | Decision | OutputLine | None


class Output:
    """Context manager with a thread that writes lines in order.

    - ``tell``: formats an event or decision as lines.
    - ``block``: the live table, if any.
    - ``redirects``: the thread also writes the output of ``print`` in users' functions.
    - ``as_json``: stdout contains only JSON, so output of ``print`` goes to stderr.

    If stdout is read too slowly, debug lines are dropped. With ``as_json``, the run waits instead.
    """

    def __init__(
        self,
        tell: Callable[[Event | Decision], Iterable[OutputLine]],
        out: TextIO,
        err: TextIO,
        *,
        block: LiveTable | None = None,
        as_json: bool = False,
        redirects: bool = True,
    ) -> None:
        self._tell = tell
        self._out = out
        self._err = err
        self.block = block
        self._as_json = as_json
        self._redirects = redirects
        self._shares_terminal = block is not None and is_terminal(err)
        self._queue: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._dead: set[int] = set()
        self._left_out = 0
        self._leaving = False
        #: Set if the thread should write what it has without a pause.
        self._hurry = threading.Event()
        self._last: list[OutputLine] = []
        self._thread = threading.Thread(target=self._run, name="ensemble-output", daemon=True)
        self._redirected: tuple[TextIO, TextIO] | None = None

    def put(self, item: Event | Decision) -> None:
        """Queue an event or a decision. Any thread may call this."""
        if self._queue.qsize() >= LIMIT:
            if not self._as_json and isinstance(item, Event) and not is_relevant(item):
                self._left_out += 1
                return
            while self._queue.qsize() >= LIMIT and not self._leaving and self._thread.is_alive():
                time.sleep(0.02)
        self._queue.put(item)
        if type(item) in _AT_ONCE:
            self._hurry.set()

    def say(self, text: str, *, error: bool = False) -> None:
        """Queue a line of text. Any thread or signal handler may call this."""
        self._queue.put(OutputLine(text, error))
        self._hurry.set()

    def __enter__(self) -> Output:
        if self._redirects:
            self._redirected = (sys.stdout, sys.stderr)
            # Only writing is redirected. Other attributes are those of the stream.
            sys.stdout = cast("TextIO", _Redirected(self, sys.stdout, self._as_json))
            sys.stderr = cast("TextIO", _Redirected(self, sys.stderr, True))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, last: Sequence[str] = (), patience: float | None = None) -> None:
        """Write all queued lines, remove the live table, write the ``last`` lines, and stop.

        ``patience`` is how many seconds to wait for a slow reader (``None``: no limit).
        """
        if self._redirected is not None:
            for stream in (sys.stdout, sys.stderr):
                finish = getattr(stream, "finish_lines", None)
                if finish is not None:
                    finish()
            sys.stdout, sys.stderr = self._redirected
            self._redirected = None
        if self._thread.is_alive():
            self._leaving = True
            self._last = [OutputLine(text) for text in last]
            self._queue.put(None)
            self._hurry.set()
            self._thread.join(patience)

    def _run(self) -> None:
        going = True
        while going:
            batch: list[_Item] = []
            try:
                batch.append(self._queue.get(timeout=_FRAME if self.block else None))
                if self._queue.qsize() < _BATCH:
                    self._hurry.wait(_GATHER)
                self._hurry.clear()
                while len(batch) < _BATCH:
                    batch.append(self._queue.get_nowait())
            except queue.Empty:
                pass
            lines: list[OutputLine] = []
            for item in batch:
                if item is None:
                    going = False
                elif isinstance(item, OutputLine):
                    lines.append(item)
                else:
                    lines += self._lines(item)
            if self._left_out and not self._queue.qsize():
                count, self._left_out = self._left_out, 0
                lines.append(OutputLine(f"({count} lines dropped: the output was read too slowly)"))
            self._write(lines)
        if self.block is not None:
            self._send(self._out, self.block.erase())
            self.block = None
        self._write(self._last)

    def _lines(self, item: Event | Decision) -> list[OutputLine]:
        try:
            return list(self._tell(item))
        except Exception as error:  # a line that cannot be formatted must not hide the others
            return [
                OutputLine(f"error: cannot show {item!r}: {type(error).__name__}: {error}", True)
            ]

    def _write(self, lines: list[OutputLine]) -> None:
        block = self.block
        if block is None:
            for stream, text in self._pieces(lines):
                self._send(stream, text)
            return
        above = [line for line in lines if not line.error or self._shares_terminal]
        aside = [line for line in lines if line.error and not self._shares_terminal]
        for stream, text in self._pieces(aside):
            self._send(stream, text)
        if not above:
            self._send(self._out, block.refresh())
            return
        # Both streams are the same terminal, so write everything in one piece.
        text = "".join(text for _, text in self._pieces(above))
        self._send(self._out, block.erase() + text + block.draw())

    def _pieces(self, lines: list[OutputLine]) -> Iterable[tuple[TextIO, str]]:
        """Yield consecutive lines for the same stream as one text."""
        start = 0
        for place in range(1, len(lines) + 1):
            if place == len(lines) or lines[place].error != lines[start].error:
                text = "".join(f"{line.text}\n" for line in lines[start:place])
                yield (self._err if lines[start].error else self._out), text
                start = place

    def _send(self, stream: TextIO, text: str) -> None:
        if not text or id(stream) in self._dead:
            return
        try:
            text = encodable(text, stream)
            with STDOUT:
                for start in range(0, len(text), _PIECE):
                    _write(stream, text[start : start + _PIECE])
        except (OSError, ValueError) as error:
            self._dead.add(id(stream))
            self._lost(stream, error)

    def _lost(self, stream: TextIO, error: OSError | ValueError) -> None:
        close_quietly(stream)
        if stream is not self._out:
            return
        if not (isinstance(error, OSError) and error.errno == errno.EPIPE):
            note = f"warning: cannot write to stdout ({error}); the run continues without it\n"
            self._send(self._err, note)


def _write(stream: TextIO, text: str) -> None:
    """Write a text that fits into the stream's buffer, and wait while a non-blocking pipe is
    full.
    """
    write: Callable[[], object] = partial(stream.write, text)
    while True:
        try:
            write()  # if it raises this exception, the text is in the buffer
            stream.flush()
            return
        except BlockingIOError:
            write = stream.flush
            time.sleep(0.02)


class _Redirected:
    """Replacement for ``sys.stdout`` or ``sys.stderr`` that passes whole lines to the output
    thread.
    """

    def __init__(self, output: Output, stream: TextIO, error: bool) -> None:
        self._output = output
        self._stream = stream
        self._error = error
        self._parts: dict[int, str] = {}

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        thread = threading.get_ident()
        whole, newline, rest = (self._parts.pop(thread, "") + text).rpartition("\n")
        if newline:
            self._output.say(whole, error=self._error)
        if rest:
            self._parts[thread] = rest
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Do nothing, because a line is written when it is complete."""

    def finish_lines(self) -> None:
        """Write lines that are not complete."""
        parts, self._parts = self._parts, {}
        for part in parts.values():
            self._output.say(part, error=self._error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Feed(Watcher):
    """Passes events and decisions to the output thread, except events that need no line."""

    def __init__(self, output: Output, *, everything: bool) -> None:
        self._output = output
        self._everything = everything
        self.wants_ticks = output.block is not None
        #: Function that returns the lines of a results table, which are shown below the live table.
        self.table: Callable[[], list[str] | None] | None = None
        #: Ids of jobs that were submitted and are not over.
        self.active: set[str] = set()
        #: Function that is called once when the run stops, with True if jobs are left to the queue.
        self.announce: Callable[[bool], None] | None = None
        #: The last event that was not shown. If it leads to a decision, it is passed on before the
        #: decision, whose line needs the time of the event.
        self._skipped: Event | None = None

    # The engine's thread calls this class, so it does as little as possible.
    def event(self, event: Event) -> None:
        if type(event) is JobEvent:
            if event.name == "clean":
                self.active.discard(event.job)
        elif type(event) is StopRequested and self.announce is not None:
            self.announce(event.then == "keep")
        self._skipped = None
        if self._everything or is_relevant(event):
            self._output.put(event)
        else:
            self._skipped = event

    def decision(self, decision: Decision) -> None:
        if isinstance(decision, Submit):
            self.active.update(job.id for job in decision.jobs)
        if self._skipped is not None:
            self._output.put(self._skipped)
            self._skipped = None
        self._output.put(decision)

    def tick(self, report: Report) -> None:
        if self._output.block is not None:
            self._output.block.report = report
            lines = None if self.table is None else self.table()
            if lines is not None:
                self._output.block.table = lines
