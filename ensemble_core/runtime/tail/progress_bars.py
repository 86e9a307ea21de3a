"""Progress bars: lines that a program rewrites after a carriage return.

Only the newest updates are worth reading, so a bar costs little more than the search for its
carriage returns.
"""

from __future__ import annotations

#: A piece with at most so many updates is read as it is.
_FEW = 4


def is_rewritten(data: bytes) -> bool:
    """Return True if the last line, which has no end yet, has updates."""
    return data.rfind(b"\r") > data.rfind(b"\n")


def newest_updates(data: bytes, *, in_line: bool, final: bool) -> tuple[bytes, int]:
    """Return a piece of a file without updates that later ones replace, and how many of its bytes
    are used.

    Of a line with an end, the last two updates are kept, because the last one may only clear the
    line; of a line without an end, the last whole one. ``in_line``: the piece begins within an
    update. Unless ``final``, an unfinished update at the end of the piece is left for the next one.
    """
    if data.count(b"\r") - data.count(b"\r\n") <= _FEW:
        return data, len(data)
    lines = data.split(b"\n")
    used = len(data)
    for number, line in enumerate(lines):
        if line.count(b"\r") < 2:
            continue
        parts = line.split(b"\r")
        head = [parts.pop(0)] if in_line and not number else []
        ended, tail = number < len(lines) - 1, b""
        if not ended:
            tail = parts.pop()
            if not final and len(tail) < len(data) // 2:
                used -= len(tail)
                tail = b""
        keep = [part for part in parts if part and not part.isspace()][-2 if ended else -1 :]
        lines[number] = b"\r".join((*head, *keep, tail))
    return b"\n".join(lines), used
