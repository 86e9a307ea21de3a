"""Observer of tables: columns of numbers under a header line, read by name."""

from __future__ import annotations

import csv
import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from ensemble_core.builtin.line_observer import MOST_TOLD, Fields, LineObserver, count_of
from ensemble_core.builtin.regex import compile_pattern
from ensemble_core.builtin.table_names import (
    below_others,
    divided,
    first_name,
    is_unit,
    names_above,
    overlap,
    own_names,
    places_of,
    spans_of,
    without_mark,
)
from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.numbers import read_number

#: Separators of cells that are recognized without the option ``separator``.
_SEPARATORS = ("\t", "|", ";", ",")
#: A line that only divides parts of a table.
_RULE = "-=+|:~_ \t" + "".join(map(chr, range(0x2500, 0x2580)))
#: Vertical lines of tables that are drawn.
_DRAWN = str.maketrans("\u2502\u2503\u2551\u2506\u250a", "|||||")
_SEPARATING = (*_SEPARATORS, *map(chr, _DRAWN))
#: Legends of grace files (``.xvg``).
_LEGEND = late_pattern(r'@\s*(?:s(\d+)\s+legend|([xy])axis\s+label)\s+"(.*)"')
#: A word before the numbers of each row, as in ``ENERGY:   100   12.5``. Only if fields are listed,
#: it may be any word.
_ROW_LABEL = late_pattern(r"\s*(?:@|[^\W\d]\w*:)(?=\s)")
_ROW_WORD = late_pattern(r"\s*[^\W\d]\w*(?=\s)")
#: A step with a mark, as in ``12r`` of IPOPT.
_MARKED = late_pattern(r"\d+[A-Za-z*]")
#: A number that may have a decimal comma.
_COMMA = late_pattern(r"[-+]?\d+,\d+")
#: Two numbers without a blank between them.
_TOUCHING = late_pattern(r"\d[-+]|\.\d+\.")
#: The first characters of words that can be numbers.
_NUMERIC = late_pattern(r"(?:^|(?<=\s))[-+\u2212]?(?:[.*\d\u221e]|[nN][aA]|[iI][nN][fF])")
#: Longest line that can be a header.
_LONGEST_HEADER = 1 << 14
#: The names, cells, separator and header of a first row.
_Fit = tuple[list[str], list[str], str | None, str]
#: After how many lines of text a table can continue without its header.
_MOST_BETWEEN = 2


def _blanked(text: str, found: re.Match[str]) -> str:
    """Return a text with blanks in the place of a match."""
    return " " * found.end() + text[found.end() :]


def _stand_alike(first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]]) -> bool:
    """Return True if the words of two lines begin or end at the same places."""
    return all(a[0] == b[0] or a[1] == b[1] for a, b in zip(first, second, strict=False))


class Table(LineObserver):
    """Observer of rows of numbers below a header with the names of the columns.

    Cells are separated by blanks, tabs, commas, semicolons or vertical lines. The header may come
    again, with other columns or another order. Units in brackets are no part of a name.
    """

    _noun = "a row of numbers below a header"

    def __init__(
        self,
        path: str | None = None,
        fields: Fields | None = None,
        clock: str | None = None,
        stream: Literal["stdout", "stderr"] = "stdout",
        *,
        header: str | None = None,
        until: str | None = None,
        separator: str | None = None,
        decimal: str = ".",
        take: Literal["first", "last"] | None = None,
    ) -> None:
        super().__init__(path, fields, clock, stream)
        self._header = None if header is None else compile_pattern("header", header)
        self._until = None if until is None else compile_pattern("until", until)
        self._given, self._decimal, self._take = separator, decimal, take or "first"
        #: A wanted name that several columns have, unless ``take`` says which one counts.
        self._twice, self._chosen = "", take is not None
        #: The first cell or line that has no number because of a comma.
        self._comma = ""
        #: A wanted name that is also in a later line of its header.
        self._again = ""
        #: A line with the wanted names below which no table begins: its number, the line, and the
        #: next one with a number.
        self._named: tuple[int, str, str] | None = None
        #: A part of each wanted name as every header spells it.
        self._keys = [(re.findall(r"[^\W_]+", name) or [name])[0] for name in self._wanted or ()]
        #: False before the first line that matches ``header``, and after ``until``.
        self._open = header is None
        #: The last lines of text since the last row, without those that only divide the table.
        self._texts: deque[str] = deque(maxlen=_MOST_BETWEEN + 1)
        #: Those of them that are comments.
        self._comments: set[str] = set()
        #: Names of columns in a grace file, by column.
        self._legends: dict[int, str] = {}
        self._separator: str | None = None
        #: The number of columns, the columns to read with their names, and those with text.
        self._width = 0
        self._names: list[str] = []
        self._reads: list[tuple[int, str]] = []
        self._words: set[int] = set()
        #: The word before the numbers of the first row, its header, and how many cells it has.
        self._label = self._head = ""
        self._least = 0
        #: Whether a line since the header may be the header of another table with such a label.
        self._renamed = False
        #: The first and the latest row, which show where columns end.
        self._first = self._latest = self._shown = ""
        #: For the complaint: why a header was not used, and how many rows were left out because of
        #: which header. ``_doubtful``: the rows of this table could belong to the one before.
        self._problem = ""
        self._doubtful = False
        self._outside: tuple[int, str] = (0, "")
        #: How many tables were begun, and their headers.
        self._tables, self._headers = 0, set[str]()

    def truncated(self) -> None:
        super().truncated()
        self._forget()
        self._legends.clear()
        self._open = self._header is None
        #: The number of tabs at the end of the current line.
        self._empty = 0

    def _forget(self) -> None:
        self._texts.clear()
        self._width = 0

    def _parse(self, line: bytes) -> Mapping[str, float] | None:
        whole, line = line, line.rstrip()
        self._empty = whole[len(line) :].count(b"\t")
        text = line.decode("utf-8", "replace")
        if self._until is not None and self._until.search(line):
            self._forget()
            self._open = False
            return None
        if self._header is not None and self._header.search(line):
            self._forget()
            self._open = True
            self._texts.append(without_mark(text))
            return None
        # Some blanks of Unicode are no blanks in bytes.
        if not self._open or text.isspace() or (len(text) > 1 and not text.strip(_RULE)):
            return None
        if text[0] in "@&" and (self._is_grace(text) or self._legends or text[1:2] != " "):
            return None
        if text.lstrip()[0] in "#%!":
            text = without_mark(text)
            self._comments = {*self._comments.intersection(self._texts), text}
            if len(self._texts) > _MOST_BETWEEN and self._texts[1] in self._comments:
                del self._texts[1]  # comments are often between a header and its rows
            self._keep(text)
            return None
        return self._line_of_table(text)

    def _keep(self, text: str) -> None:
        """Keep a line of text that may be a header."""
        if not self._understood and not self._comma and "," in text:
            cells = re.split(r"[;\s]+", text.strip())
            if all(_COMMA.match(cell) or self._is_numeric(cell) for cell in cells):
                self._comma = next(filter(_COMMA.match, cells), "")
        if self._header is None and len(text) <= _LONGEST_HEADER:
            self._texts.append(text)
        if self._named is None:
            names = self._wanted if self._wanted and not self._reads else ()
            if names and all(name in text for name in names) and not self._has_numbers(text):
                self._named = self._line_number, text, ""
        elif not self._named[2] and any(map(str.isdigit, text)):
            several = (
                len(re.findall(r"(?<!\w)[-+]?[.\d]", text)) > 1
            )  # otherwise, it was other text
            self._named = (*self._named[:2], text) if several else None

    def _has_numbers(self, text: str) -> bool:
        return any(map(self._is_numeric, text.split()))

    def _is_grace(self, text: str) -> bool:
        """Return True for the legend of a grace file, which is the name of a column."""
        found = _LEGEND.match(text)
        if found is not None:
            number, axis, label = found.groups()
            self._width = 0
            if number is not None:
                self._legends[int(number) + 1] = label
            else:
                self._legends.setdefault("xy".index(axis), label)
        return found is not None

    def _line_of_table(self, text: str) -> Mapping[str, float] | None:
        numbers = self._numbers_of(text) if self._label else text
        if self._width and not self._texts:
            row = self._row_of(numbers) if numbers else None
            if row is not None:
                return row
        elif self._begin(text):
            return self._row_of(self._numbers_of(text) if self._label else text)
        elif self._width and numbers and self._continues(numbers, labelled=self._has_label(text)):
            self._texts.clear()
            return self._row_of(numbers)
        if self._label and not self._renamed:
            self._renamed = self._may_be_names(text)
        self._keep(text)
        return None

    def _numbers_of(self, text: str) -> str:
        """Return a row without its label, or an empty text if it is no row."""
        found = _ROW_LABEL.match(text) or _ROW_WORD.match(text)
        if found is None:
            return ""
        numbers = _blanked(text, found)
        if found[0].split() == self._label.split():
            return numbers
        # VASP prints DAV: and RMM: in one table.
        alike = found[0].endswith(":") and self._label.endswith(":")
        cells = numbers.split()
        fits = len(cells) == self._width or (
            len(cells) >= self._least and self._has_empty_end(numbers, cells)
        )
        if alike and fits:
            return numbers
        if fits and all(map(self._is_numeric, cells)) and self._lines_up(numbers):
            self._leave_out()
        return ""

    def _has_label(self, text: str) -> bool:
        """Return True if the label of the first row, such as ``ENERGY:``, is before this row."""
        return self._label.endswith(":") and text.lstrip().startswith(self._label.lstrip())

    def _may_be_names(self, text: str) -> bool:
        """Return True if this line may be the header of another table with the same label."""
        names = _ROW_LABEL.sub("", text, count=1).split()
        return len(names) >= self._width and not any(map(self._is_numeric, names))

    # -- headers -------------------------------------------------------------------------------

    def _begin(self, text: str) -> bool:
        """Begin a table if this is its first row: one of the last lines is its header."""
        if self._legends and not self._width:
            cells = text.split()
            if len(cells) > 1 and all(self._number(cell) is not None for cell in cells):
                names = [self._legends.get(at, f"s{at - 1}") for at in range(len(cells))]
                self._adopt(names, cells, text, None)
                self._least = 0
                return True
        if not self._may_begin(text):
            return False
        label, numbers, found = "", text, self._fits(text, self._texts)
        maybe = None if self._given else _ROW_LABEL.match(text)
        if maybe is None and not found and self._wanted is not None and self._given is None:
            maybe = _ROW_WORD.match(text)
        if maybe and all(map(self._is_numeric, text.split()[1:])):
            others = _blanked(text, maybe)
            texts = [_blanked(each, own) if (own := _ROW_LABEL.match(each)) else each
                     for each in self._texts]  # fmt: skip
            if fits := [each for each in self._fits(others, texts) if self._wants(each[0])]:
                label, numbers, found = maybe[0], others, fits
        if not found:
            return False
        wanted = [each for each in found if self._wants(each[0])]
        if not wanted:
            if self._wanted is None:
                return False
            if self._reads and self._width and self._comments.issuperset(each[3] for each in found):
                return False
        self._label, text = label, numbers
        # Below the names may be a line with units, or any other line.
        names, cells, separator, head = (wanted or found)[0]
        printed = names
        if separator is None and len(self._texts) > 1:
            names = [first_name(self._texts[-1], text) or names[0], *names[1:]]
        self._doubtful = bool(self._reads and len(cells) == self._width and self._lines_up(text))
        above = [*self._texts]
        self._adopt(names, cells, text, separator)
        if head in above and not self._again:
            later = {word for each in above[above.index(head) + 1 :] for word in each.split()}
            self._again = next((printed[at] for at, _ in self._reads if printed[at] in later), "")
        self._renamed = False
        same = self._least if head == self._head else 0
        self._least = min(same or self._width, self._width)
        self._head = head
        for each in above if self._reads else ():
            if self._is_short_row(each) or self._is_long_row(self._cells(each, separator)):
                self._leave_out()
        self._comma = self._comma if self._tables else ""
        self._tables += 1
        if len(self._headers) < MOST_TOLD:
            self._headers.add(self._shown)
        return True

    def _may_begin(self, text: str) -> bool:
        """Return False if this can be no first row below any of the last lines, at a glance.

        In most lines of text, fewer than half of the words begin as numbers do.
        """
        if (
            self._header is not None
            or self._given is not None
            or any(each in text for each in _SEPARATING)
        ):
            return True
        if 2 * len(_NUMERIC.findall(text)) >= len(text.split()):
            return True
        return any(key in header for header in self._texts for key in self._keys)

    def _is_short_row(self, text: str) -> bool:
        """Return True for a line of numbers above the first row: a row with empty cells."""
        cells = text.split()
        several = len(cells) > 1 or _TOUCHING.search(text)
        return bool(several) and text not in self._comments and all(map(self._is_numeric, cells))

    def _fits(self, text: str, headers: Iterable[str]) -> list[_Fit]:
        """Return the fits of a first row below each of these lines, the nearest one first."""
        found = []
        for header in reversed([*headers]):
            fit = self._fit(text, header)
            if fit is not None:
                found.append(fit)
            if self._is_other(header, text):
                break
        return found

    def _is_other(self, text: str, below: str) -> bool:
        """Return True for a line of words and numbers that is no row as that below it: then its
        header is not that of the row.
        """
        cells = [] if text in self._comments else text.split()
        numbers = sum(map(self._is_numeric, cells))
        if not 2 <= numbers < len(cells) or self._is_numeric(cells[0]):
            return False
        return not _stand_alike(spans_of(text)[:3], spans_of(below))

    def _fit(self, text: str, header: str) -> _Fit | None:
        """Return the names, cells, separator and header if this can be its first row."""
        separator = self._separator_of(header, text)
        names, cells = self._cells(header, separator), self._cells(text, separator)
        if not names:
            return None
        cells = self._with_empty(cells, separator, len(names))
        if separator is None and (len(names) != len(cells) or self._has_units(names)):
            names = names_above(header, text)
            if self._has_units(names):
                return None
        if not self._is_first_row(names, cells, separator):
            return None
        if separator is None and not self._stand_below(names, header, text):
            kind = "numbers" if all(map(self._is_numeric, cells)) else "words"
            self._problem = (
                f"{kind} in {text.strip()[:60]!r} are no columns of its header: use 'regex'"
            )
            return None
        unnamed = separator is None and spans_of(header)[0][0] >= spans_of(text)[0][1]
        if unnamed and not self._is_numeric(cells[0]):  # a word left of the first name
            return None
        if len(names) != len(cells):
            if self._header is not None:
                self._problem = (
                    f"{len(cells)} numbers do not fit the header {header.strip()[:80]!r}"
                )
            return None
        # The first name of probes may be followed by their numbers.
        maybe = names[:1] if header in self._comments else names
        if self._header is None and any(self._number(name) is not None for name in maybe):
            return None
        words = [word.strip("[](),") for word in " ".join(names).split()]
        unasked = self._header is None and self._wanted is None
        if unasked and 2 * sum(map(self._is_numeric, words)) > len(words):
            return None
        return names, cells, separator, header

    def _has_units(self, names: Sequence[str]) -> bool:
        """Return True if some words of a header are units, which are no columns."""
        units = set(filter(is_unit, names))
        return 0 < len(units) < len(names) and units.isdisjoint(self._wanted or ())

    def _stand_below(self, names: Sequence[str], header: str, text: str) -> bool:
        """Return False if a wanted number stands below another name than its own.

        Equal numbers of words and cells may be a coincidence.
        """
        if names != header.split():
            return True
        words, numbers = spans_of(header), spans_of(text)
        left = numbers[0][1] <= words[0][0] and header not in self._comments
        if left and self._header is None and len(words) > 1:
            above = [at for at in (0, 1) if overlap(words[at], numbers[1])]
            if above == [0]:  # the first column has no name, as in the second line of a header
                return False
        places, astray = places_of(names, self._take), below_others(header, text)
        return not any(places.get(name) in astray for name in self._wanted or names)

    def _is_first_row(
        self, names: Sequence[str], cells: Sequence[str], separator: str | None
    ) -> bool:
        """Return True if enough of these cells are numbers."""
        numbers = sum(map(self._is_numeric, cells))
        if all(self._number(cell) is None for cell in cells):
            return False
        if self._wanted is None and self._header is None:
            return len(cells) > 1 and numbers >= (1 if separator else len(cells))
        if separator or (self._wanted or {}).keys() <= places_of(names, self._take).keys():
            return numbers > 0
        return 2 * numbers > len(cells)

    def _wants(self, names: Sequence[str]) -> bool:
        """Return True if a column of this header is wanted."""
        if self._wanted is None:
            words = all(any(map(str.isalnum, name)) for name in filter(None, names))
            return words and not all(map(is_unit, names))
        clock = {self._clock} if self._clock else set()
        return not {*self._wanted, *clock}.isdisjoint(places_of(names, self._take))

    def _separator_of(self, header: str, text: str) -> str | None:
        """Return the separator of this table's cells. ``None`` means blanks."""
        if self._given is not None:
            return None if self._given == " " else self._given
        header, text = header.translate(_DRAWN), text.translate(_DRAWN)
        for each in _SEPARATORS:
            if each in header and each in text and each != self._decimal:
                return each
        return None

    def _with_empty(self, cells: list[str], separator: str | None, width: int) -> list[str]:
        """Return the cells with the empty ones at the end of the current line."""
        if separator != "\t" or len(cells) >= width:
            return cells
        return cells + [""] * min(self._empty, width - len(cells))

    @staticmethod
    def _cells(text: str, separator: str | None) -> list[str]:
        if separator is None:
            return text.split()
        if separator == "|":
            text = text.translate(_DRAWN).strip().removeprefix("|").removesuffix("|")
        if '"' in text:
            # Python limits the length of a cell.
            with suppress(csv.Error):
                return [cell.strip() for cell in next(csv.reader([text], delimiter=separator), [])]
        return [cell.strip() for cell in text.split(separator)]

    def _adopt(
        self, names: Sequence[str], cells: Sequence[str], text: str, separator: str | None
    ) -> None:
        """Use these columns from now on. ``text`` is the first row."""
        places = places_of(names, self._take)
        if self._wanted is None:
            chosen = {name: places.get(name, at) for at, name in enumerate(own_names(names))}
        else:
            chosen = {name: places[name] for name in self._wanted if name in places}
            self._unasked |= dict.fromkeys(
                [name for at, name in enumerate(names) if at not in chosen.values()]
            )
        if self._clock in places:
            chosen.setdefault(self._clock, places[self._clock])
        if not self._chosen and not self._twice:
            wanted = self._wanted or chosen
            self._twice = next((a for a, n in Counter(names).items() if n > 1 and a in wanted), "")
        self._shown, self._names = " ".join(names)[:60], [*names]
        self._width, self._separator = len(names), separator
        self._reads = [(at, name) for name, at in chosen.items()]
        self._words = {at for at, cell in enumerate(cells) if cell and not self._is_numeric(cell)}
        self._first = self._latest = text
        self._texts.clear()

    # -- rows ----------------------------------------------------------------------------------

    def _number(self, cell: str) -> float | None:
        return read_number(cell, self._decimal)

    def _row_of(self, text: str) -> Mapping[str, float] | None:
        """Return the row in this line, or ``None`` if the line is no row of the table."""
        cells = self._with_empty(self._cells(text, self._separator), self._separator, self._width)
        if len(cells) != self._width or (self._separator is None and self._touch(cells)):
            return self._uneven_row(text, cells)
        row: dict[str, float] = {}
        odd: list[tuple[str, str]] = []
        for at, name in self._reads:
            number = read_number(cells[at], self._decimal)
            if number is not None:
                row[name] = number
            elif cells[at]:
                odd.append((name, cells[at]))
        if not self._is_plausible(cells, sure=bool(row) and not odd):
            return None
        if not self._reads and self._doubtful:
            self._leave_out()
        for name, cell in odd:
            if self._is_wanted(name):
                row[name] = self._unreadable(name, cell)
            elif not self._comma and _COMMA.match(cell):
                self._comma = cell
        self._latest = text
        return row

    def _touch(self, cells: Sequence[str]) -> bool:
        """Return True if numbers touch each other in a column that had a number at first."""
        odd = [at for at, cell in enumerate(cells) if _TOUCHING.search(cell)]
        odd = [at for at in odd if self._number(cells[at]) is None and self._is_numeric(cells[at])]
        first = self._cells(self._first, None) if odd else ()
        return any(self._number(first[at]) is not None for at in odd if at < len(first))

    def _leave_out(self) -> None:
        count, header = self._outside
        self._outside = (count + 1, header or self._shown)

    def _is_wanted(self, name: str) -> bool:
        return name in self._seen if self._wanted is None else name in self._wanted

    def _is_plausible(self, cells: Sequence[str], *, sure: bool) -> bool:
        """Return True unless this is a line of text with as many words as the table has columns.

        If blanks separate the cells, the first one must not be a word. At least half of all cells
        must be numbers; the columns that had words from the beginning do not count. ``sure``: all
        wanted cells are numbers.
        """
        if self._separator is not None:
            if sure or (self._words and list(cells) != self._names):
                return True
        elif 0 not in self._words and not self._is_numeric(cells[0]):
            if not _MARKED.fullmatch(cells[0]):
                return False
        elif sure and (self._width - 1 in self._words or self._is_numeric(cells[-1])):
            return True
        kept = [cell for at, cell in enumerate(cells) if at not in self._words and cell]
        numbers = sum(self._number(cell) is not None for cell in kept)
        return bool(kept) and (2 * numbers >= len(kept) or all(map(self._is_numeric, kept)))

    def _is_numeric(self, cell: str) -> bool:
        """Return True for a number, touching numbers, and numbers that did not fit (``****``)."""
        if self._number(cell) is not None:
            return True
        inner = not cell.strip("-+0123456789.eEdDqQ*")
        return inner and (any(map(str.isdigit, cell)) or "**" in cell)

    def _uneven_row(self, text: str, cells: Sequence[str]) -> Mapping[str, float] | None:
        """Return the row in a line with another number of cells, or ``None`` if it is no row.

        If numbers touch each other, they are divided only if all rows so far show where.
        """
        pieces: Sequence[str] | None = None
        if self._separator is not None:
            numbers = sum(self._number(cell) is not None for cell in cells)
            if 2 * numbers < len(cells) or not numbers:
                return None
        elif not all(map(self._is_numeric, cells)):
            if self._has_remark(text, cells):
                return self._row_of(text[: spans_of(text)[self._width - 1][1]])
            self._count_uneven(cells)
            return None
        elif self._has_empty_end(text, cells):
            read = {at: number for at, cell in enumerate(cells)
                    if (number := self._number(cell)) is not None}  # fmt: skip
            return {name: read[at] for at, name in self._reads if at in read}
        else:
            pieces = divided(text, self._first, self._latest)
        row: dict[str, float] = {}
        for at, name in self._reads:
            number = None if pieces is None else self._number(pieces[at])
            if number is not None:
                row[name] = number
            elif self._is_wanted(name):
                row[name] = self._unreadable(name, text.strip() if pieces is None else pieces[at])
        return row

    def _has_remark(self, text: str, cells: Sequence[str]) -> bool:
        """Return True if only words follow a row whose numbers are in line with those before."""
        remark = cells[self._width :]
        if not remark or self._words or any(map(self._is_numeric, remark)):
            return False
        if not all(map(self._is_numeric, cells[: self._width])):
            return False
        return _stand_alike(spans_of(self._latest), spans_of(text))

    def _has_empty_end(self, text: str, cells: Sequence[str]) -> bool:
        """Return True if the last cells of this row or of the first row are empty.

        This is certain if all other cells end at the same places. In ``OSZICAR`` of VASP, only
        some rows have the last column.
        """
        if not 0 < self._least <= len(cells) or any(self._number(cell) is None for cell in cells):
            return False
        ends, first = ([end for _, end in spans_of(row)] for row in (text, self._first))
        common = min(len(ends), len(first))
        if ends[:common] != first[:common]:
            return False
        if len(cells) > self._width:
            names = names_above(self._head, text)
            if len(names) != len(cells) or names[: self._width] != self._names:
                return False
            self._adopt(names, cells, text, None)
        return True

    def _count_uneven(self, cells: Sequence[str]) -> None:
        """Count a line that begins with a number and has words between or after its numbers."""
        if len(cells) == self._width or not self._reads:
            return
        if not self._is_numeric(cells[0]):
            if self._is_long_row(cells):
                self._leave_out()
            return
        if 2 <= sum(map(self._is_numeric, cells)) >= len(cells) / 2:
            self._leave_out()

    def _is_long_row(self, cells: Sequence[str]) -> bool:
        """Return True for a row with a text that has blanks, in the last column of words."""
        longer = {0, self._width - 1} <= self._words and len(cells) > self._width
        return longer and all(self._is_numeric(cells[at]) for at, _ in self._reads)

    def _continues(self, text: str, *, labelled: bool) -> bool:
        """Return True if the table continues with this row after lines of text.

        ``labelled``: the row has the label of the first row. Then any number of lines may be
        between, as in logs of NAMD, if none of them may be another header. Otherwise, only a few.
        """
        cells = self._cells(text, self._separator)
        numbers = (cell for at, cell in enumerate(cells) if cell and at not in self._words)
        if len(cells) != self._width or not all(map(self._is_numeric, numbers)):
            if len(self._texts) <= _MOST_BETWEEN and self._has_remark(text, cells):
                return True
            self._count_uneven(cells)
            return False
        if labelled and not self._renamed:
            return True
        if len(self._texts) <= _MOST_BETWEEN and self._lines_up(text):
            return True
        if self._reads:
            self._shown = self._texts[-1].strip()[:60]
            self._leave_out()
        return False

    def _lines_up(self, text: str) -> bool:
        """Return True if a line of numbers can be a row of the table, by the places of its cells.

        Each column begins or ends at the same place as in the latest row.
        """
        if self._separator is not None or self._header is not None:
            return True
        return _stand_alike(spans_of(self._latest), spans_of(text))

    def complaint(self) -> str | None:
        said, (count, header) = super().complaint(), self._outside
        if self._lines and not self._long and not self._understood and self._problem:
            return self._problem
        if self._long:
            return said
        left_out = f"not read: {count_of(count)} of numbers below {header!r}" if count else None
        twice = (
            f"several columns have the name {self._twice!r}, and the first one was read; to read "
        )
        twice += "the last one, use take: last"
        again = (
            f"the header has several lines with the name {self._again!r}, and the column below the "
            "first one was read: its name may go on in the next line"
        )
        texts = (said, left_out, twice if self._twice else None, again if self._again else None,
                 self._advice())  # fmt: skip
        return "; ".join(filter(None, texts)) or None

    def _advice(self) -> str | None:
        """Return a text that says why a table is not found, or what else to use."""
        lost = self._named is not None and self._found.isdisjoint((self._wanted or {}).values())
        line, names, row = (str(each).strip()[:60] for each in (self._named or ("", "", "")))
        shown = [self._comma, *(first for _, first, _ in self._unread.values())]
        if self._decimal != "," and any(map(_COMMA.fullmatch, re.split(r"[;\s]+", row) + shown)):
            return "if a comma is the decimal sign, use decimal: ','"
        if self._comma:
            return f"{self._comma!r} is no number: let the program print it without commas"
        if lost:
            return (
                f"the names are in line {line}, {names!r}, but the next line with numbers does not "
                f"fit them: {row!r}: use 'regex', with a pattern for such lines"
                if row
                else f"the names are in line {line}, {names!r}, but no numbers follow"
            )
        if self._wanted is not None and self._understood and not self._found and self._problem:
            return self._problem
        if len(self._headers) < 2 or self._tables < 4 or 2 * self._tables <= self._understood:
            return None
        return (
            "lines of names and of numbers alternate: with 'layout: pairs-of-lines', each block "
            "is a row"
        )
