"""Parsers of Flux's job ids (F58) and idsets, without Flux.

Job ids are printed in base 58 (RFC 19). Ranks and cores are printed as idsets such as ``0-3,7``
(RFC 22).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_DIGITS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}


def f58(jobid: int) -> str:
    """Return a job id in the ASCII form that Flux's commands print and accept.

    >>> f58(0), f58(12901679104)
    ('f1', 'fLf5UiB')
    """
    digits = ""
    jobid &= 0xFFFFFFFFFFFFFFFF  # in JSON, the largest ids are negative numbers
    while jobid:
        jobid, digit = divmod(jobid, 58)
        digits = _DIGITS[digit] + digits
    return f"f{digits or _DIGITS[0]}"


def parse_f58(text: str) -> int:
    """Return the job id that :func:`f58` wrote. Raises :class:`ValueError`.

    >>> parse_f58("fLf5UiB")
    12901679104
    """
    jobid = 0
    try:
        for digit in text.removeprefix("f"):
            jobid = jobid * 58 + _VALUES[digit]
    except KeyError:
        raise ValueError(f"{text!r} is not a Flux job id") from None
    return jobid


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    for part in text.strip("[]").split(","):
        if part:
            first, _, last = part.partition("-")
            yield int(first), int(last or first)


def parse_hostlist(text: str) -> list[str]:
    """Return the hosts of a hostlist (RFC 29). Raises :class:`ValueError`.

    >>> parse_hostlist("n[08-10,12]-ib,login")
    ['n08-ib', 'n09-ib', 'n10-ib', 'n12-ib', 'login']
    """
    hosts = []
    for before, numbers, after in re.findall(r"([^,\[]*)(?:\[([^\]]*)\])?([^,\[]*),?", text):
        if not numbers:
            hosts += [before + after] if before else []
            continue
        for part in numbers.split(","):
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                hosts.append(f"{before}{number:0{len(first)}}{after}")
    return hosts


def parse_idset(text: str) -> set[int]:
    """Return the numbers of an idset. Raises :class:`ValueError`.

    >>> sorted(parse_idset("0-2,7"))
    [0, 1, 2, 7]
    """
    return {number for first, last in _ranges(text) for number in range(first, last + 1)}


def count_idset(text: str) -> int:
    """Return how many numbers an idset has. Raises :class:`ValueError`.

    >>> count_idset("0-47")
    48
    """
    return sum(last - first + 1 for first, last in _ranges(text))
