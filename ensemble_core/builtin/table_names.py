"""Names of a table's columns: how headers spell them, and how an ensemble file may call them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.numbers import read_number

#: A name, possibly with its unit in brackets after one blank.
_LABEL = late_pattern(r"\S+(?: (?:\([^()]*\)|\[[^\[\]]*\]))?")
_UNIT = late_pattern(r"[ _]?(?:\([^()]*\)|\[[^\[\]]*[^\d\[\]][^\[\]]*\])\s*$")
#: What cannot be in the name of a column that the ensemble file does not list.
_ODD = late_pattern(r"[^\w.\[\]/-]+")
_WORD = late_pattern(r"\S+")
#: Words of a header with single blanks between them.
_PIECE = late_pattern(r"\S+(?: \S+)*")


def is_unit(name: str) -> bool:
    """Return True if a name is only a unit in brackets."""
    return _UNIT.fullmatch(name) is not None


def spans_of(text: str) -> list[tuple[int, int]]:
    """Return where the words of a line begin and end."""
    return [found.span() for found in _WORD.finditer(text)]


def overlap(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Return True if two words of different lines are above each other, by their places."""
    return first[0] < second[1] and second[0] < first[1]


def without_mark(text: str) -> str:
    """Return a header without the mark of a comment, which is replaced by blanks."""
    return re.sub(r"^\s*(?:#!\s*FIELDS|[#%!]+)", lambda found: " " * len(found[0]), text)


def names_above(header: str, text: str) -> list[str]:
    """Return the names of the columns of a row that is separated by blanks.

    Names may contain blanks, if two blanks are between them or if they end or begin where the
    numbers do.
    """
    spans = spans_of(text)
    for names in (_LABEL.findall(header), re.split(r"\s{2,}|\t", header.strip())):
        if len(names) == len(spans):
            return names
    ends = [0, *(end for _, end in spans)]
    starts = [start for start, _ in spans] + [max(len(header), len(text))]
    for cuts in (ends, starts):
        whole = len(header.rstrip()) <= cuts[-1] and not header[: cuts[0]].strip()
        if whole and not any(_within(header, cut) for cut in cuts):
            names = [
                _name_over(header, part, span)
                for part, span in zip(pairwise(cuts), spans, strict=True)
            ]
            if all(names):
                return names
    # Data frames of R and pandas: the first column has no name.
    words = spans_of(header)
    unnamed = len(words) == len(spans) - 1 and words[0][0] >= spans[0][1]
    in_line = unnamed and [end for _, end in words] == ends[2:]
    return ["", *header.split()] if in_line else []


def _name_over(header: str, part: tuple[int, int], span: tuple[int, int]) -> str:
    """Return the name of a column in its part of the header.

    If wide gaps divide the part, some cells are empty: the name is the one above the number.
    """
    name = header[slice(*part)].strip()
    pieces = [*_PIECE.finditer(header, *part)]
    over = [piece[0] for piece in pieces if overlap(piece.span(), span)]
    return over[0] if len(pieces) > 1 and len(over) == 1 else name


def below_others(header: str, text: str) -> set[int]:
    """Return the columns whose number stands below another word of the header than its own.

    This is only certain if the header has both names of several words and wider gaps.
    """
    words = re.split(r"\s{2,}|\t", header.strip())
    if len(words) < 2 or not any(" " in name for name in words):
        return set()
    names = spans_of(header)
    above = [
        {at for at, name in enumerate(names) if overlap(name, number)} for number in spans_of(text)
    ]
    return {at for at, found in enumerate(above) if found and at not in found}


def first_name(below: str, text: str) -> str | None:
    """Return the name of only the first column, if the line below the names of the others has it.

    Probes of OpenFOAM have such a header: their times are below the word ``Probe``.
    """
    words = spans_of(below)
    if len(words) != 1 or words[0][1] != spans_of(text)[0][1]:
        return None
    name = below.strip()
    return None if is_unit(name) or read_number(name) is not None else name


def _within(text: str, cut: int) -> bool:
    """Return True if this place is within a word."""
    return 0 < cut < len(text) and not text[cut - 1].isspace() and not text[cut].isspace()


def divided(text: str, first_row: str, latest_row: str) -> list[str] | None:
    """Divide a row where the columns of earlier rows end. Return ``None`` if that is not certain.

    It is certain if the columns of all rows end at the same places, and a sign or a blank follows.
    """
    first, latest = ([end for _, end in spans_of(row)] for row in (first_row, latest_row))
    if first != latest or len(text) != first[-1]:
        return None
    cells = [text[a:b].strip() for a, b in zip((0, *first), first, strict=False)]
    certain = all(text[end] in " \t-+*" for end in first[:-1])
    return cells if certain and all(cells) and all(" " not in cell for cell in cells) else None


def own_names(names: Sequence[str]) -> list[str]:
    """Return the names of columns for rules: without units and blanks, if they stay distinct."""
    short = [_UNIT.sub("", name) or name for name in names]
    counts = Counter(short)
    chosen = [a if counts[a] == 1 else b for a, b in zip(short, names, strict=True)]
    return [_ODD.sub("_", name.strip()).strip("_.") or name for name in chosen]


def places_of(names: Sequence[str], take: Literal["first", "last"]) -> dict[str, int]:
    """Return the column for each name by which the file may call it.

    These are the printed name, the name without its unit, and the name for rules.
    """
    order = [*enumerate(names)]
    places = {name: at for at, name in (order if take == "last" else reversed(order))}
    short = [_UNIT.sub("", name) for name in names]
    for spelled in (short, own_names(names)):
        counts = Counter(spelled)
        for at, name in enumerate(spelled):
            if (
                counts[name] == 1
                or len({names[i] for i, s in enumerate(spelled) if s == name}) == 1
            ):
                places.setdefault(name, at)
    return places
