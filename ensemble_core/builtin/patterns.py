"""Observer of lines that match regular expressions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ensemble_core.builtin.line_observer import LineObserver, count_of
from ensemble_core.errors import EnsembleError
from ensemble_core.model.numbers import read_number

__all__ = ["Patterns"]

#: What follows a group of a pattern that ends within a number.
_GOES_ON = re.compile(r"\d|[.,]\d|[eEdD][-+]?\d")


# RE2 matches in linear time, so no pattern can block the run.
class Patterns(LineObserver):
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
                self._patterns.append((_compile(name, text), {name: 1}))
                columns[name] = None
        else:
            for text in patterns:
                pattern = _compile("fields", text)
                if not pattern.groupindex:
                    raise EnsembleError(
                        f"the pattern has no named group: {text!r:.80}",
                        hint="name the groups: 'Step +(?P<step>[0-9]+)', or write a mapping with a "
                        "pattern for each field",
                        code="bad-pattern",
                    )
                self._patterns.append((pattern, dict(pattern.groupindex)))
                columns |= dict.fromkeys(pattern.groupindex)
        super().__init__(path, [*columns], clock, stream)
        self._last = take == "last"

    def _parse(self, line: bytes) -> Mapping[str, float] | None:
        text = line.decode("utf-8", "replace")
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
                spelled = match.group(group)
                if spelled is not None:
                    cut = spelled[-1:].isdigit() and _GOES_ON.match(text, match.end(group))
                    number = None if cut else read_number(spelled)
                    found[name] = self._unreadable(name, spelled) if number is None else number
        return found if matched else None

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
        return f"no number for {', '.join(map(repr, numbers))} in {count_of(self._lines)}"


def _compile(name: str, text: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
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
