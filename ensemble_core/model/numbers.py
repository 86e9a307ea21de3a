"""Reads numbers as programs print them, and writes numbers as programs read them.

Programs in C, Python, Fortran, Java, R and JavaScript print numbers in many ways. No part of a
number is a number: ``0,253`` is not 0, and ``10ms`` is not 10.

In commands, paths, environments, options and file names of jobs, a whole number is written as an
integer, however it was computed: 200.0 becomes ``200``, because no queue takes ``--mem=200.0``.
"""

from __future__ import annotations

import math
import re
from numbers import Real
from typing import Any

from ensemble_core.late_pattern import late_pattern

#: Largest whole number that stays an integer, because floats represent larger ones inexactly.
MOST_EXACT = 2**53

_SIGN = "[-+\u2212]?"
#: Digits with an exponent as in C (``e``) or Fortran (``d``, ``q``). If the exponent has three
#: digits, Fortran omits the letter: ``0.456-100``.
_DIGITS = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eEdDqQ][-+]?[0-9]+)?"
_WIDE = r"(?:[0-9]+\.[0-9]*|\.[0-9]+)[-+][0-9]{3}"
_HEX = r"0[xX][0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?[pP][-+]?[0-9]+"
#: nan and infinity in every spelling; ``1.#QNAN`` is of older C libraries of Windows.
_NAN = r"[nN][aA][nN](?:\([\w ]{0,40}\))?|NA\b|1\.#(?:QNAN|SNAN|IND)[0-9]*"
_INF = r"(?:[iI][nN][fF](?:[iI][nN][iI][tT][yY])?|INFINITY|\u221e)|1\.#INF[0-9]*"
#: A number within a text. If what follows shows that it is only a part of something, the next
#: alternative is tried. The most frequent one is the first.
NUMBER = rf"{_SIGN}(?:{_DIGITS}|{_WIDE}|(?:{_NAN}|{_INF})(?!\w)|{_HEX})"
_MINUTES = r"[hH](?:(?:ou)?rs?)?|[mM](?:in(?:ute)?s?)?"
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
#: What follows a number that is only the beginning of a value.
GOES_ON = (
    # an exponent or a factor after a blank: 1.5 E+3, 2 x 10^3, 1.5 10**-3
    r"(?:[ \t]{1,4}[eEdDqQ](?:[-+]\d+|\d\d+)(?!\w|[ \t]*[=:])"
    r"|[ \t]{0,4}(?:[*x\u00d7\u00b7][ \t]?|[ \t])10[ \t]?[\^*]"
    # a power: 10**- 6, 10^(-6)
    r"|[ \t]{0,2}(?:\^|\*\*)[ \t({]*[-+]?[ \t]*\d"
    # the rest of a length of time: 1 h 30 min, 1 day, 2:03:04
    rf"|[ \t]{{0,4}}(?:[dD](?:ays?)?|{_MINUTES})\.?,?[ \t]+(?:and[ \t]+)?"
    rf"(?:\d+:\d\d|\d[\d.]*[ \t]*(?:{_MINUTES}|[sS](?:ec(?:ond)?s?)?)(?!\w))"
    # the rest of a time or date with blanks: 17: 2: 9, 2/ 2/18, 29 Nov 2026
    r"|:[ \t]{1,2}\d{1,2}:[ \t]{0,2}\d|/[ \t]{1,2}\d{1,2}/[ \t]{0,2}\d"
    rf"|[ \t](?:{_MONTHS})[a-z]*\.?,?[ \t]+\d"
    # an imaginary part: 1.2 + 0.5i
    r"|[ \t]{1,2}[-+][ \t]{0,2}\d[\d.eE+-]*[ \t]?(?:i|j|im)(?!\w))"
)
#: A hash such as ``00123e45``: programs pad no whole number that has an exponent without a sign.
_HASH = late_pattern(r"0[0-9]+[eEdDqQ][0-9]+")
_WHOLE = late_pattern(rf"({_SIGN})(?:({_HEX})|({_WIDE})|({_NAN})|({_INF})|({_DIGITS}))")


def read_number(text: str, decimal: str = ".") -> float | None:
    """Return the number that a whole text spells; an integer stays an integer.

    ``decimal`` is the decimal sign, a point or a comma. Returns ``None`` for any other text, and
    for a number that is too large for a float.

    >>> read_number("1.5D+03"), read_number("0.456-100"), read_number("-nan(ind)")
    (1500.0, 4.56e-101, nan)
    >>> read_number("0,253"), read_number("0,253", decimal=","), read_number("10ms")
    (None, 0.253, None)
    """
    if decimal == "." and len(text) < 32 and text.isascii() and "_" not in text:
        try:  # nearly all numbers
            plain = float(text)
        except ValueError:
            pass
        else:
            if plain - plain == 0.0:
                if not plain.is_integer() or "." in text:
                    return plain
                if text.strip().lstrip("+-").isdigit():
                    if abs(plain) < MOST_EXACT:
                        return int(text)
                elif not _HASH.match(text.strip()):
                    return plain
    text = text.strip()
    if decimal != ".":
        if "." in text:
            return None
        text = text.replace(decimal, ".")
    match = _WHOLE.fullmatch(text) if len(text) < 400 else None
    if match is None or _HASH.fullmatch(text):
        return None
    sign, hexadecimal, wide, nan, infinite, digits = match.groups()
    negative = sign in ("-", "\u2212")
    if nan:
        return math.nan
    if infinite:
        return -math.inf if negative else math.inf
    if hexadecimal:
        value: float = finite_or_none(float.fromhex(hexadecimal)) or 0.0
    elif wide:
        value = float(f"{wide[:-4]}e{wide[-4:]}")
    elif digits.isdigit():
        value = int(digits) if int(digits) <= MOST_EXACT else float(digits)
    else:
        value = float(re.sub("[dDqQ]", "e", digits))
    return None if math.isinf(value) else -value if negative else value


def finite_or_none(value: float) -> float | None:
    """Return a number unless it is nan or infinite."""
    return value if math.isfinite(value) else None


#: Whole floats below this become integers: programs read integers of 64 bits.
_LARGEST = 2.0**63


def whole(value: Any) -> Any:
    """Return a whole float as an integer, and any other value unchanged.

    Floats of 2**63 and more stay floats, because they are no integers for programs. Floats of NumPy
    become Python's.

    >>> whole(200.0), whole(1e16), whole(-0.0), whole(1.5), whole(1e22), whole("2.0")
    (200, 10000000000000000, 0, 1.5, 1e+22, '2.0')
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _LARGEST else float(value)
    if isinstance(value, (str, int)) or not isinstance(value, Real):
        return value
    return whole(float(value))  # a number of another library


def as_text(value: object) -> str:
    """Return a value as text: a whole number as an integer, a boolean as ``true`` or ``false``.

    >>> as_text(200.0), as_text(0.1), as_text(1e22), as_text(True), as_text("2.0")
    ('200', '0.1', '1e+22', 'true', '2.0')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value if type(value) is int else whole(value))


def format_number(value: float) -> str:
    """Return a number with six digits, or with all of them if it is a whole number up to 2^53.

    >>> format_number(9007199254740992.0), format_number(1 / 3), format_number(-0.0)
    ('9007199254740992', '0.333333', '0')
    """
    exact = abs(value) <= MOST_EXACT and value == int(value)
    return f"{value + 0.0:.0f}" if exact else f"{value:.6g}"
