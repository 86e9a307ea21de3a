"""The observer ``gromacs-edr``: energies in a growing ``.edr`` file.

Format: ``do_enxnms`` and ``do_enx`` in ``enxio.cpp`` of GROMACS. All numbers are in XDR. A file has
the names of the energies, then frames; a file of a later part (``-noappend``) follows in the same
way. Frames are in single or double precision.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from math import isfinite

from ensemble_core import Observer, Row

#: Marks of a file and of a frame.
_FILE, _FRAME = -55555, -7777777
_BEGIN = _FILE.to_bytes(4, "big", signed=True)
#: Versions of the format that can be read: those since GROMACS 4.5.
_OLDEST, _NEWEST = 5, 5
#: Maximum size of a frame, and of the names, to limit memory.
_LONGEST = 1 << 24
#: Format of a value in a block, by its type. Strings (5) have a length.
_TYPES = ("i", "f", "d", "q", "i")


class _Incomplete(Exception):
    """More bytes are needed."""


class _Xdr:
    """Reads numbers and texts from XDR, from a position on."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def read(self, form: str, count: float = 1) -> tuple[float, ...]:
        """Return so many numbers. Raise :class:`ValueError` if there cannot be so many."""
        if not 0 <= count <= _LONGEST:
            raise ValueError(f"{count:g} numbers")
        layout = struct.Struct(f">{int(count)}{form}")
        if self.at + layout.size > len(self.data):
            raise _Incomplete
        self.at += layout.size
        return layout.unpack_from(self.data, self.at - layout.size)

    def text(self) -> str:
        (size,) = self.read("i")
        # A text fills whole numbers of four bytes.
        return bytes(map(int, self.read("B", -(-size // 4) * 4)))[: int(size)].decode("latin-1")


class EdrObserver(Observer):
    """Reads energies of an ``.edr`` file. ``fields`` maps names in rows to names in the file."""

    def __init__(self, path: str, fields: Mapping[str, str]) -> None:
        self._path, self._fields = path, fields
        self._missing: set[str] = set()
        self.truncated()

    @property
    def path(self) -> str:
        return self._path

    def truncated(self) -> None:
        self._rest, self._names = b"", list[str]()
        self._damage, self._lost = "", False

    def feed(self, data: bytes) -> Iterable[Row]:
        rows: list[Row] = []
        data = self._rest + data
        while True:
            if self._lost:  # the next part of the run begins with this mark
                begin = data.find(_BEGIN, 1)
                data, self._lost = data[begin if begin > 0 else 1 - len(_BEGIN) :], begin <= 0
                if self._lost:
                    break
            xdr, at = _Xdr(data), 0
            try:
                while True:
                    row = self._next(xdr)
                    at = xdr.at
                    rows += () if row is None else (row,)
            except _Incomplete:
                data = data[at:]
                self._lost = len(data) > _LONGEST
                why = "a frame that does not end"
            except ValueError as error:
                data, self._lost, why = data[at:], True, str(error)
            if not self._lost:
                break
            self._damage = f"it is no .edr file of GROMACS 4.5 or newer, or damaged ({why})"
        self._rest = data
        return rows

    def complaint(self) -> str | None:
        if self._damage:
            return self._damage
        if not self._names:
            return "it has no names of energies"
        missing = ", ".join(sorted(self._missing))
        return f"it has no {missing}; it has {', '.join(self._names)}" if missing else None

    def _next(self, xdr: _Xdr) -> Row | None:
        """Return the next frame, or ``None`` for the names at the start of a file."""
        mark, second, third = xdr.read("i", 3)
        if mark == _FILE:
            self._check_version(second)
            # Each name is followed by its unit.
            self._names = [(xdr.text(), xdr.text())[0] for _ in range(int(third))]
            self._missing |= {*self._fields.values()}.difference(self._names)
            return None
        if _FRAME not in (second, third) or not self._names:
            raise ValueError("no frame where one should begin")
        real = "f" if second == _FRAME else "d"
        xdr.at -= 4 if second == _FRAME else 0
        self._check_version(*xdr.read("i"))
        _, step, sums, _, _, energies, _, blocks = xdr.read("dqiqdiii")
        parts: list[tuple[float, ...]] = []
        for _ in range(int(blocks)):
            _, subs = xdr.read("i", 2)
            parts += [xdr.read("i", 2) for _ in range(int(subs))]
        xdr.read("i", 3)
        # Each energy is followed by two sums, if the frame has sums.
        each = 3 if sums > 0 else 1
        values = xdr.read(real, energies * each)[::each]
        for kind, size in parts:
            if kind == len(_TYPES):
                [xdr.text() for _ in range(int(size))]
            elif 0 <= kind < len(_TYPES):
                xdr.read(_TYPES[int(kind)], size)
            else:
                raise ValueError(f"a block of type {kind:g}")
        by_name = dict(zip(self._names, values, strict=False))
        found = {name: by_name[own] for name, own in self._fields.items() if own in by_name}
        return Row(found, step) if found and isfinite(step) else None

    @staticmethod
    def _check_version(version: float) -> None:
        if not _OLDEST <= version <= _NEWEST:
            raise ValueError(f"version {version:g} of the format")
