"""Finds the newest complete restart file of a LAMMPS job."""

from __future__ import annotations

import glob
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Literal

from ensemble_programs.outcome import open_regular

from ensemble_core import EnsembleError

__all__ = ["Found", "IncompleteRestart", "Restart", "find", "read"]

# Format: a magic string, the integer 1 (which shows the byte order), the revision of the format,
# then tagged values, with the step among the first. The magic string at the very end shows that the
# file is complete.
#
# If the name contains ``%``, there are several files. The file with ``base`` in place of ``%`` has
# the number of the other files, which have numbers in place of ``%``. Each file ends with the magic
# string.
MAGIC = b"LammpS RestartT\0"
#: First revision whose files have a mark at the end.
_FIRST_REVISION = 1
#: Tags of the relevant values, and tags of strings.
_BIGINT, _STEP, _MULTIPROC, _MPIIO = 3, 5, 44, 45
_STRINGS = (0, 4)
#: Maximum number of values to read. The step is about the seventh; a file without a step is not a
#: restart file.
_MOST_VALUES = 40
_LONGEST_STRING = 1000
#: Seconds by which the clocks of nodes may differ. Each node writes one of the numbered files.
_CLOCKS = 1.0
#: Maximum number of rejected files to list for the user.
_MOST_PASSED = 5
_TRUNCATED = "it is truncated, or still being written"


@dataclass(frozen=True, slots=True)
class Restart:
    """A complete restart file."""

    path: str  #: argument of ``read_restart``, with ``%`` if there are several files
    step: int
    time: float  #: when the file was written, in seconds since the epoch


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a search."""

    newest: Restart | None
    passed: tuple[tuple[str, str], ...] = ()  #: some rejected files, with the reasons


class IncompleteRestart(EnsembleError):
    """The file is not a complete restart file."""

    def __init__(self, what: str, *, meant: bool = True) -> None:
        super().__init__(what, code="no-restart-file")
        #: Whether the file looks like an incomplete restart file.
        self.meant = meant


def find(
    folder: str,
    patterns: Sequence[str] = (),
    *,
    begun: float | None = None,
    also: Iterable[str] = (),
    newest: Literal["step", "time"] = "step",
) -> Found:
    """Return the newest restart file of a job.

    Parameters
    ----------
    folder:
        The job's workdir.
    patterns:
        Names relative to the folder, with wildcards as in a shell (``*``, ``?``, ``[…]``; ``**``
        for any folders) and ``%`` as in LAMMPS. Default: every restart file in the folder, but not
        in its subfolders, which may belong to other jobs.
    begun:
        Start of the job, in seconds since the epoch. Older files are skipped.
    also:
        Further files, of any age: those that the job itself started from.
    newest:
        Criterion for the newest file. ``step``: the highest step, then the latest time. ``time``:
        the latest time, then the highest step, for scripts that reset the step.
    """
    complete: list[Restart] = []
    passed: list[tuple[str, str]] = []
    kept = {os.path.join(folder, path) for path in also}
    own: set[Restart] = set()
    for path in dict.fromkeys([*_matching_files(folder, patterns), *sorted(kept)]):
        try:
            found = read(path)
        except IncompleteRestart as error:
            if error.meant:
                passed.append((path, error.what))
            continue
        complete.append(found)
        if begun is None or found.time >= begun or path in kept:
            own.add(found)
    best = max(own, key=lambda each: _rank(each, newest), default=None)
    # A chain of jobs in one folder leaves hundreds of files; list only those that could have been
    # chosen.
    passed += [
        (found.path, "it is older than the job")
        for found in complete
        if found not in own and (best is None or _rank(found, newest) > _rank(best, newest))
    ]
    return Found(best, tuple(passed[:_MOST_PASSED]))


def _rank(restart: Restart, newest: Literal["step", "time"]) -> tuple[float, float, str]:
    if newest == "step":
        return restart.step, restart.time, restart.path
    return restart.time, restart.step, restart.path


def _matching_files(folder: str, patterns: Sequence[str]) -> Iterator[str]:
    if patterns:
        for pattern in patterns:
            shape = os.path.join(glob.escape(folder), pattern.replace("%", "base"))
            yield from sorted(glob.iglob(shape, recursive=True))
        return
    with suppress(OSError), os.scandir(folder) as entries:
        yield from sorted(entry.path for entry in entries if entry.is_file())


def read(path: str) -> Restart:
    """Return the restart file at ``path``, which may contain ``%`` for several files.

    Reads only the start and end of each file. Raises :class:`IncompleteRestart` with the reason.
    """
    try:
        return _read(path)
    except OSError as error:
        raise IncompleteRestart(f"cannot read it: {error.strerror}") from None


def _read(path: str) -> Restart:
    head, sign, tail = path.rpartition("%")
    if sign and not os.path.exists(path):
        path = f"{head}base{tail}"
    with _open_regular(path, meant=False) as file:
        step, order = _head(file)
        _check_end(file)
        time = os.fstat(file.fileno()).st_mtime
        count = _parts(file, order) if "base" in os.path.basename(path) else 0
    if not count:
        return Restart(path, step, time)
    folder, name = os.path.split(path)
    parts = name.split("base")
    for at in range(len(parts) - 1, 0, -1):  # the last "base" first
        before, after = os.path.join(folder, "base".join(parts[:at])), "base".join(parts[at:])
        if os.path.exists(f"{before}0{after}"):
            return Restart(f"{before}%{after}", step, _check_parts(before, after, count, time))
    raise IncompleteRestart("the files of the other processes are missing")


def _check_parts(before: str, after: str, count: int, time: float) -> float:
    """Check the ``count`` numbered files of a restart. Return when the last of them was written.

    They are written after the file ``base``, whose time is ``time``. An older file is left over
    from an earlier restart with the same name.
    """
    last = time
    for number in range(count):
        with _open_regular(f"{before}{number}{after}", meant=True) as file:
            written = os.fstat(file.fileno()).st_mtime
            if written < time - _CLOCKS:
                raise IncompleteRestart(f"the file of process {number} is from an earlier step")
            _check_end(file)
            last = max(last, written)
    return last


def _open_regular(path: str, *, meant: bool) -> BinaryIO:
    """Open the regular file at ``path``. Reject a pipe, which would block."""
    try:
        return open_regular(path)
    except OSError as error:
        if error.strerror is None:
            raise IncompleteRestart("it is not a file", meant=False) from None
        what = f"cannot read {os.path.basename(path)}: {error.strerror}"
        raise IncompleteRestart(what, meant=meant) from None


def _head(file: BinaryIO) -> tuple[int, str]:
    """Return the step, and the byte order in the notation of :mod:`struct`."""
    if file.read(len(MAGIC)) != MAGIC:
        raise IncompleteRestart("it is not a restart file", meant=False)
    order = {b"\1\0\0\0": "<", b"\0\0\0\1": ">"}.get(_read_exactly(file, 4))
    if order is None:
        raise IncompleteRestart("its byte order is unknown")
    if _integer(file, order) < _FIRST_REVISION:
        raise IncompleteRestart(
            "it is from an old LAMMPS whose files do not show whether they are complete"
        )
    size = 8
    for _ in range(_MOST_VALUES):
        tag = _integer(file, order)
        value = _integer(file, order, size if tag == _STEP else 4)
        if tag == _STEP:
            return value, order
        if tag == _BIGINT and value in (4, 8):
            size = value
        elif tag in _STRINGS:
            if not 0 <= value <= _LONGEST_STRING:
                break
            _read_exactly(file, value)
    raise IncompleteRestart("it has no step at the expected place")


def _check_end(file: BinaryIO) -> None:
    size = os.fstat(file.fileno()).st_size
    file.seek(max(len(MAGIC), size - len(MAGIC)))
    if file.read() != MAGIC:
        raise IncompleteRestart(_TRUNCATED)


def _parts(file: BinaryIO, order: str) -> int:
    """Return how many other files belong to this one; 0 for a single file."""
    size = os.fstat(file.fileno()).st_size
    layout = struct.Struct(f"{order}5i")
    if size < layout.size + len(MAGIC):
        return 0
    file.seek(size - layout.size - len(MAGIC))
    first, second, third, fourth, end = layout.unpack(_read_exactly(file, layout.size))
    if end != -1:
        return 0
    if third == _MULTIPROC:
        return max(0, int(fourth))
    # older versions of LAMMPS write this layout
    return max(0, int(second)) if first == _MULTIPROC and third == _MPIIO else 0


def _integer(file: BinaryIO, order: str, size: int = 4) -> int:
    return int(struct.unpack(order + ("i" if size == 4 else "q"), _read_exactly(file, size))[0])


def _read_exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise IncompleteRestart(_TRUNCATED)
    return data
