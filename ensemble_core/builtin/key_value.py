"""Observer of ``name=NUMBER`` and ``name: NUMBER`` in any text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from ensemble_core.builtin.line_observer import MOST_FIELDS, MOST_TOLD, SURVEYED, LineObserver
from ensemble_core.late_pattern import late_pattern
from ensemble_core.metrics.store import VARIABLES
from ensemble_core.model.numbers import GOES_ON, NUMBER, read_number

_BEFORE = r"(?<![\w./-])"
#: A name. Searching is quick if a pattern begins with a set of characters.
_NAME = rf"([A-Za-z_]{_BEFORE.replace(')', '.)')}[A-Za-z0-9_-]*)"
_BETWEEN = r"[ \t]{0,40}[=:][ \t]{0,120}"
#: What must not follow a number: otherwise it is a part of something else (10ms, 12:30, 0,253).
#: Zero bytes are a hole in the file, but one at the end of a line is the end of a text in C.
#: ``1=100.0%`` is a name with a value, ``5+`` is five or more, or five of a kind.
_AFTER = (
    r"(?![\w#=]|\0(?!$)|\.[#.]|[.:/^*'+-]\w|[-+](?=[\s,;]|$)|,\d|[\u00d7\u00b7~]\s?\d"
    rf"|[\u00a0\u2009\u202f\u2019]\d|{GOES_ON})"
)
#: What most numbers are followed by, and what each begins with: both are quick to see.
_PLAIN = (
    r"(?=$|[;)\]]|,(?!\d)|[ \t](?:[eE][A-Za-z]|(?![ \teEdDqQ*x\u00d7\u00b71^hHmMJFASONj+-]))"
    r"|:[ \t][A-Za-z])"
)
_FIRST = "[-+.0-9nNiI\u2212\u221e]"
#: A name, and its number unless something else follows.
_PAIR = late_pattern(rf"{_NAME}{_BETWEEN}(?:(?={_FIRST})({NUMBER})(?:{_PLAIN}|{_AFTER}))?")
_LABEL = late_pattern(rf"{_NAME}[ \t]{{0,40}}([=:])[ \t]{{0,120}}(?=(\S*))")
#: What can be the sign and the first character of a pair's number.
_VALUE = f"[=:][ \\t]{{0,120}}{_FIRST}".encode()
_WORD = late_pattern(r"[A-Za-z_][A-Za-z0-9_-]*")
#: A pair at the end of a line of fields between backslashes, as in the archive of Gaussian, which
#: divides its fields where a line ends.
_ARCHIVE = late_pattern(r"\\([A-Za-z]\w*)=([^\\\s]*)$")
#: The words before a name, and a further number after a pair.
_WORDS = late_pattern(r"(?:(?<![\w(])\(?(?!(?i:nan|inf)\b)[^\W\d][\w.'/-]*\)? ){0,8}$")
_FURTHER = late_pattern(
    rf"(?:[ \t]+(?:[-=]>[ \t]*|\u2192[ \t]*)?{NUMBER}(?=\s|$)|,[ \t]*{NUMBER}(?=[ \t]*(?:,|$)))"
)
#: The beginning of a line that says what its pairs are about, as in ``clat (usec): min=18``.
#: Levels of loggers are no such beginning.
_TOPIC = late_pattern(
    r"\s*(?!(?i:debug|info|notice|warn|warning|error|critical|trace)\b)"
    r"([^\W\d]\w*)(?: ?\([^():=]*\))?[ \t]*:"
)


class KeyValue(LineObserver):
    """Observer of ``name=value`` and ``name: value`` pairs with numeric values.

    The pairs in a line form a row. If a name occurs twice, the last value counts. Numbers that are
    part of a longer word (``10ms``, ``12:30``, ``0,253``) are no numbers.
    """

    _noun = "with name=NUMBER or name: NUMBER"

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        #: How each name is printed, with the words before it, and names before several numbers.
        self._labels: dict[str, dict[str, None]] = {}
        self._lists: dict[str, str] = {}
        #: The first words of lines with a name.
        self._topics: dict[str, dict[str, None]] = {}
        #: The first name before something that begins like a number, such as 12ms.
        self._no_number = ""
        #: For wanted names before a number with only blanks between, what is printed.
        self._bare: dict[str, str] = {}

    def _survey(self, text: str) -> None:
        """Remember what shows that a name does not stand for one value."""
        known = self._wanted
        topic = _TOPIC.match(text)
        for pair in _PAIR.finditer(text):
            name = pair[1]
            if len(self._labels) > MOST_FIELDS:
                return
            if pair[2] and (known is None or name in known):
                words = _WORDS.search(text[max(0, pair.start() - 100) : pair.start()])
                label = f"{words[0]}{name}" if words else name
                self._labels.setdefault(name, {})[label] = None
                if topic is not None and topic.end() <= pair.start():
                    self._topics.setdefault(name, {})[topic[1]] = None
                self._units.note(name, text, pair.end())
                if _FURTHER.match(text, pair.end()):
                    self._lists.setdefault(name, " ".join(text[pair.start() :].split())[:60])
        for found in () if self._odd is None else self._odd.finditer(text):
            self._units.note(found[1], text, found.end())
            if read_number(found[3]) is not None and _FURTHER.match(text, found.end()):
                self._lists.setdefault(found[1], " ".join(text[found.start(1) :].split())[:60])

    def _unread_complaint(self) -> str | None:
        texts = [super()._unread_complaint()]
        known = self._seen if self._wanted is None else self._wanted
        for name, labels in self._labels.items():
            if len(labels) > 1 and name in known:
                first, second = [*labels][:2]
                longer = max(first, second, key=len)
                texts.append(
                    f"{name!r} is printed as {first!r} and {second!r}, and all of them were read: "
                    f"name the one that you mean, as in fields: {{{name}: {longer!r}}}"
                )
        for name, topics in self._topics.items():
            if len(topics) > 1 and len(self._labels[name]) == 1 and name in known:
                first, second = [*topics][:2]
                texts.append(
                    f"{name!r} is in lines that begin with {first!r} and {second!r}, and all of "
                    f"them were read: to read one kind, use regex: {{fields: {{{name}: '^ *"
                    f"{first}\\b.*\\b{name} *[=:] *([^ ,]+)'}}}}"
                )
        for name, shown in self._lists.items():
            texts.append(f"only the first of the numbers after {name!r} was read: {shown!r}")
        return "; ".join(filter(None, texts[:MOST_TOLD])) or None

    def _suggestion(self) -> str:
        self._alike["key-value"] = 0
        shown = f"; {self._no_number!r} is no number" if self._no_number else ""
        return shown + super()._suggestion()

    def complaint(self) -> str | None:
        said = super().complaint()
        for name, shown in self._bare.items():
            column = (self._wanted or {}).get(name, name)
            if said and column not in self._found:
                pattern = re.escape(name).replace("\\ ", " ")
                return (
                    f"{said}; {shown!r} has neither = nor : between name and number: use regex: "
                    f"{{fields: {{{column}: '{pattern} +(\\S+)'}}}}"
                )
        return said

    @cached_property
    def _names(self) -> re.Pattern[str]:
        """Pattern of the wanted names before a number with only blanks between."""
        names = "|".join(map(re.escape, self._wanted or ()))
        return re.compile(rf"{_BEFORE}({names})[ \t]+{NUMBER}(?![\w.])")

    @cached_property
    def _odd(self) -> re.Pattern[str] | None:
        """Pattern of wanted labels that are not single words, such as ``Temperature (K)``."""
        odd = [name for name in self._wanted or () if not _WORD.fullmatch(name)]
        if not odd:
            return None
        names = "|".join(map(re.escape, sorted(odd, key=len, reverse=True)))
        return re.compile(
            rf"(?:^|[\t,;|]|  |(?<=[\d:*!>#\]]) )[ \t]*({names})"
            r"(?:[ \t]*([=:])[ \t]*|[ \t]{2,}|\t)(\S+)"
        )

    def _finder(self, text: bytes) -> Callable[[bytes, int], Any]:
        # In other lines, only values of known names matter that cannot be read.
        import re2

        known = sorted(self._seen if self._wanted is None else self._wanted)
        there = [re2.escape(name.encode()) for name in known if name.encode() in text]
        if self._wanted is None:
            there.append(_VALUE)
        search: Callable[[bytes, int], Any] = re2.compile(b"|".join((*there, rb"\x1b"))).search
        return search

    def _parse(self, line: bytes) -> Mapping[str, float] | None:
        text = line.decode("utf-8", "replace")
        found: dict[str, float] = {}
        known = self._seen if self._wanted is None else self._wanted
        odd: tuple[str, ...] = ()  # wanted names with a value that may be no number
        for name, spelled in _PAIR.findall(text):
            if not spelled:
                if name in known:
                    odd += (name,)
                continue
            number = read_number(spelled)
            if number is not None:
                found[name] = number
            elif name in known:  # too large for a float
                found[name] = self._unreadable(name, spelled)
        if odd:
            for match in _LABEL.finditer(text):
                name, sign, spelled = match.groups()
                if name in odd and name not in VARIABLES:
                    pair = _PAIR.match(text, match.start())
                    number = read_number(pair[2]) if pair and pair[2] else None
                    if number is not None:
                        found[name] = number  # the last value of a name counts
                    elif spelled or sign == "=":
                        if read_number(spelled) is not None:  # a part of '1.5 E+3'
                            spelled = text[match.end() :]
                        found[name] = self._unreadable(name, spelled)
        if "\\" in text and (cut := _ARCHIVE.search(text)) and cut[1] in known:
            found[cut[1]] = self._unreadable(cut[1], f"{cut[2]}, which may go on in the next line")
        if self._odd is not None:
            for name, sign, spelled in self._odd.findall(text):
                number = read_number(spelled.rstrip(",;"))
                if number is not None or sign:  # otherwise, the line may be a header
                    found[name] = self._unreadable(name, spelled) if number is None else number
        if not found and not self._understood and not self._no_number and self._lines <= SURVEYED:
            odd_values = (each for each in _LABEL.finditer(text) if each[3][:1].isdigit())
            for each in odd_values:
                whole = each[3] if read_number(each[3]) is None else text[each.end() :].strip()
                self._no_number = f"{each[0]}{whole}"[:60]
                break
        if found and (self._understood < SURVEYED or not self._understood % SURVEYED):
            self._survey(text)
        if self._lines <= SURVEYED and self._wanted and len(self._found) < len(self._wanted):
            for match in self._names.finditer(text):
                self._bare.setdefault(match[1], " ".join(match[0].split())[:60])
        return found or None
