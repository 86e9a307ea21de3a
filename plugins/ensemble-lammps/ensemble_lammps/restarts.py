"""Finds the newest complete restart file of a LAMMPS job."""

from __future__ import annotations

import glob
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import BinaryIO, Literal

from ensemble_programs import checkpoints
from ensemble_programs.outcome import open_regular

from ensemble_core import EnsembleError

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
#: Number of bytes that hold these values.
_HEAD = 1 << 16
#: The values at the end of a file.
_PARTS = struct.Struct("<5i")
#: Seconds by which the clocks of nodes may differ. Each node writes one of the numbered files.
_CLOCKS = 1.0
_TRUNCATED = "it is truncated, or still being written"


@dataclass(frozen=True, slots=True)
class Restart:
    """A restart file. Damaged files sort first, so that they are reported."""

    path: str  #: argument of ``read_restart``, with ``%`` if there are several files
    step: float
    time: float  #: when the file was written, in seconds since the epoch
    damage: str | None = None  #: why the file is not usable


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
) -> checkpoints.Search:
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
        Start of the job, in seconds since the epoch. Older files are skipped: an attempt that
        failed just before may have left them.
    also:
        Further files, of any age: those that the job itself started from.
    newest:
        Criterion for the newest file. ``step``: the highest step, then the latest time. ``time``:
        the latest time, then the highest step, for scripts that reset the step.
    """
    kept = {os.path.join(folder, path) for path in also}
    at = glob.escape(folder)
    shapes = [os.path.join(at, each.replace("%", "base")) for each in patterns or ["*", ".*"]]
    found: dict[str, Restart] = {}
    for path in kept.union(*(glob.iglob(shape, recursive=True) for shape in shapes)):
        try:
            each = read(path)
        except IncompleteRestart as error:
            if not error.meant:
                continue
            each = Restart(path, inf, inf, error.what)
        found[each.path] = each
    order = ("step", "time") if newest == "step" else ("time", "step")
    ranked = sorted(found.values(), key=attrgetter(*order, "path"), reverse=True)
    times = {each.path: each.time for each in ranked}
    return checkpoints.choose(times, lambda path: found[path].damage, begun, kept)


def read(path: str) -> Restart:
    """Return the restart file at ``path``, which may contain ``%`` for several files.

    Reads only the start and end of each file. Raises :class:`IncompleteRestart` with the reason.
    """
    head, sign, tail = path.rpartition("%")
    if sign and not os.path.exists(path):
        path = f"{head}base{tail}"
    try:
        return _read(path)
    except struct.error:
        raise IncompleteRestart(_TRUNCATED) from None
    except OSError as error:
        name = error.filename or path
        what = f"cannot read {os.path.basename(name)}: {error.strerror}"
        raise IncompleteRestart(what, meant=name != path) from None


def _read(path: str) -> Restart:
    with open_regular(path) as file:
        step, order = _head(file.read(_HEAD))
        end, time = _end(file)
    count = _parts(end, order) if "base" in os.path.basename(path) else 0
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
        with open_regular(f"{before}{number}{after}") as file:
            _, written = _end(file)
        if written < time - _CLOCKS:
            raise IncompleteRestart(f"the file of process {number} is from an earlier step")
        last = max(last, written)
    return last


def _head(data: bytes) -> tuple[int, str]:
    """Return the step, and the byte order in the notation of :mod:`struct`."""
    if not data.startswith(MAGIC):
        raise IncompleteRestart("it is not a restart file", meant=False)
    at, size = len(MAGIC), 8
    order = {1: "<", 1 << 24: ">"}.get(*struct.unpack_from("<i", data, at))
    if order is None:
        raise IncompleteRestart("its byte order is unknown")
    pair = struct.Struct(f"{order}2i")
    if pair.unpack_from(data, at)[1] < _FIRST_REVISION:
        raise IncompleteRestart(
            "it is from an old LAMMPS whose files do not show whether they are complete"
        )
    for _ in range(_MOST_VALUES):
        at += pair.size
        tag, value = pair.unpack_from(data, at)
        if tag == _STEP:
            return struct.unpack_from(order + ("q" if size == 8 else "i"), data, at + 4)[0], order
        if tag == _BIGINT and value in (4, 8):
            size = value
        elif tag in _STRINGS:
            if not 0 <= value <= _LONGEST_STRING:
                break
            at += value
    raise IncompleteRestart("it has no step at the expected place")


def _end(file: BinaryIO) -> tuple[bytes, float]:
    """Return the bytes before the mark at the end, and when the file was written."""
    stat = os.fstat(file.fileno())
    file.seek(max(len(MAGIC), stat.st_size - len(MAGIC) - _PARTS.size))
    end = file.read()
    if not end.endswith(MAGIC):
        raise IncompleteRestart(_TRUNCATED)
    return end.removesuffix(MAGIC), stat.st_mtime


def _parts(end: bytes, order: str) -> int:
    """Return how many other files belong to this one; 0 for a single file."""
    if len(end) < _PARTS.size:
        return 0
    first, second, third, fourth, last = struct.unpack(order + _PARTS.format[1:], end)
    older = first == _MULTIPROC and third == _MPIIO  # the layout of older versions of LAMMPS
    count = fourth if third == _MULTIPROC else second if older else 0
    return max(0, int(count)) if last == -1 else 0
