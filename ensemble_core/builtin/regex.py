"""Observer of lines that match regular expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from ensemble_core.builtin.line_observer import LineObserver, count_of
from ensemble_core.errors import EnsembleError
from ensemble_core.late_pattern import late_pattern
from ensemble_core.model.numbers import GOES_ON, read_number

#: What follows a group of a pattern that ends within a number, and what is before one that begins
#: within a number: digits, an exponent, or a sign.
_CUT = late_pattern(rf"(?<=\d)(?:\d|\0(?!$)|[.,'\u2019]\d|[eEdD][-+]?\d|{GOES_ON})")
_CUT_BEFORE = late_pattern(r"(?:\d(?:\.|[eEdDqQ][-+]?)?|(?:^|[\s=:(\[{<>,;|])[-+\u2212.]|\d,)$")
#: How many characters around a group are looked at.
_AROUND = 40
#: The name of a group, and what has another meaning in a text of several lines.
_GROUP_NAME = late_pattern(r"\?P?<[A-Za-z_]\w*>")
_ONE_LINE = late_pattern(r"\\[AzZ]|\(\?[a-zA-Z]*-")


# RE2 matches in linear time, so no pattern can block the run.
class Regex(LineObserver):
    """Observer of regular expressions: each line that matches at least one of them forms a row.

    The value of a pattern is the number in its first group, or 1 if it has no group. If the group
    contains no number, the value is nan. A list of patterns gives a column for each named group.
    ``take`` says which match of a line counts: the first, or the last. Raises
    :class:`EnsembleError` for an invalid pattern.
    """

    def __init__(
        self,
        patterns: Mapping[str, str] | Sequence[str],
        path: str | None = None,
        clock: str | None = None,
        stream: Literal["stdout", "stderr"] = "stdout",
        take: Literal["first", "last"] = "first",
    ) -> None:
        #: Each pattern with the column of each of its groups.
        self._patterns: list[tuple[Any, dict[str, int]]] = []
        columns: dict[str, None] = {}
        if isinstance(patterns, Mapping):
            for name, text in patterns.items():
                self._patterns.append((compile_pattern(name, text), {name: 1}))
                columns[name] = None
        else:
            for text in patterns:
                pattern = compile_pattern("fields", text)
                groups = {name.decode(): group for name, group in pattern.groupindex.items()}
                if not groups:
                    raise EnsembleError(
                        f"the pattern has no named group: {text!r:.80}",
                        hint="name the groups: 'Step +(?P<step>[0-9]+)', or write a mapping with a "
                        "pattern for each field",
                        code="bad-pattern",
                    )
                self._patterns.append((pattern, groups))
                columns |= dict.fromkeys(groups)
        super().__init__(path, [*columns], clock, stream)
        self._last = take == "last"
        texts = patterns.values() if isinstance(patterns, Mapping) else patterns
        self._search_any = _any_of(texts)

    def _finder(self, text: bytes) -> Callable[[bytes, int], Any] | None:
        return self._search_any

    def _parse(self, line: bytes) -> Mapping[str, float] | None:
        text = line if line.isascii() else line.decode("utf-8", "replace").encode()
        found: dict[str, float] = {}
        matched = False
        for pattern, groups in self._patterns:
            match = pattern.search(text)
            if match is None:
                continue
            matched = True
            if self._last:
                *_, match = pattern.finditer(text)
            if not pattern.groups:
                found |= dict.fromkeys(groups, 1)
                continue
            for name, group in groups.items():
                found_bytes = match.group(group)
                if found_bytes is not None:
                    spelled = found_bytes.decode("utf-8", "replace")
                    whole = self._token(text, match, group, spelled)
                    number = read_number(spelled) if whole == spelled else None
                    found[name] = self._unreadable(name, whole) if number is None else number
                    if self._is_surveyed:
                        self._units.note(name, _around(text, match.end(group)), 0)
        return found if matched else None

    @staticmethod
    def _token(text: bytes, match: Any, group: int, spelled: str) -> str:
        """Return what a group found, with the rest of a number of which it is only a part."""
        start, end = match.span(group)
        if spelled[-1:].isdigit():
            after = spelled[-1] + _around(text, end)
            if _CUT.match(after, 1):
                return spelled + after[1:21]
        if start and (spelled[:1].isdigit() or spelled[:1] == "."):
            before = text[max(0, start - _AROUND) : start].decode("utf-8", "replace")
            cut = _CUT_BEFORE.search(before)
            # A pattern that begins with the group does not say what is before it.
            if cut and (cut[0][-1] != "," or (start == match.start() and len(spelled) > 2)):
                return cut[0].strip(" =:([{<>;|") + spelled
        return spelled

    def complaint(self) -> str | None:
        # A pattern without a group may search for an error message, so it is normal if it never
        # matches.
        numbers = sorted(
            name for pattern, groups in self._patterns if pattern.groups for name in groups
        )
        if not self._lines:
            return super().complaint() if numbers else None
        if not numbers or self._found.intersection(numbers):
            return self._unread_complaint()
        return (
            f"no number for {', '.join(map(repr, numbers))} in {count_of(self._lines)}"
            f"{self._suggestion()}"
        )


def _around(text: bytes, end: int) -> str:
    """Return the text that follows."""
    return text[end : end + _AROUND].decode("utf-8", "replace")


def _any_of(patterns: Iterable[str]) -> Callable[[bytes, int], Any] | None:
    """Return a function that finds the next match of any pattern in a text of several lines, or
    ``None`` if a pattern is not suitable.
    """
    texts = [_GROUP_NAME.sub("", each) for each in patterns]
    if any(map(_ONE_LINE.search, texts)):
        return None
    try:
        # Control sequences are removed before a line is parsed.
        found = compile_pattern(
            "fields", "(?m)" + "|".join((*(f"(?:{each})" for each in texts), r"\x1b"))
        )
    except EnsembleError:  # together, the patterns are too long
        return None
    return None if found.search(b"") else found.search


def compile_pattern(name: str, text: str) -> Any:
    """Return a compiled pattern for bytes. Raise :class:`EnsembleError` if it is invalid.

    ``name`` is the option with the pattern.
    """
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text.encode(), options)
    except re2.error as error:
        cause = error.args[0] if error.args else error
        said = cause.decode("utf-8", "replace") if isinstance(cause, bytes) else str(cause)
        raise EnsembleError(
            f"invalid pattern for {name!r}: {text!r:.80}",
            cause=said,
            hint="write an RE2 regular expression: no lookaround, no backreferences, and a "
            "backslash before each literal bracket",
            code="bad-pattern",
        ) from None
