"""Output follower: prints the output of tasks with ``watch: true``."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from ensemble_core.cli.toolkit import print_line, printable

#: Minimum seconds between checks, and the maximum share of the time that checks may take.
_LOOK, _SHARE = 0.5, 0.1


class Follower:
    """Prints the output of all jobs of some groups: during the run or, with ``late``, after it."""

    def __init__(self, folder: Path, groups: Sequence[str], *, late: bool) -> None:
        self._folder = folder
        self._groups = groups
        self._read: dict[Path, int] = {}
        self._last: Path | None = None
        self._over = threading.Event()
        # With ``late``, a live table occupies the terminal during the run.
        self._thread = None if late else threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Follower:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if kind is None:
            self._print_new(ended=True)

    def _follow(self) -> None:
        pause = _LOOK
        while not self._over.wait(pause):
            before = time.monotonic()
            try:
                self._print_new()
            except BrokenPipeError:  # the reader has closed the pipe
                return
            except OSError:
                pass  # a temporary error of the file system: try again later
            pause = max(_LOOK, (time.monotonic() - before) / _SHARE)

    def _print_new(self, *, ended: bool = False) -> None:
        """Print new complete lines and, at the end, the rest."""
        for group in self._groups:
            for ending in ("out", "err"):
                for file in sorted(self._folder.glob(f"{group}.*.{ending}")):
                    self._show(file, ended)
        sys.stdout.flush()

    def _show(self, file: Path, ended: bool) -> None:
        begin = self._read.get(file, 0)
        try:
            with file.open("rb") as output:
                output.seek(begin)
                data = output.read()
        except FileNotFoundError:  # removed since then, as empty outputs are
            return
        if not ended:
            data = data[: data.rfind(b"\n") + 1]
        if not data:
            return
        self._read[file] = begin + len(data)
        if file != self._last:
            print_line(f"== {file.name}")
            self._last = file
        for line in data.decode("utf-8", "replace").splitlines():
            print_line(printable(line))
