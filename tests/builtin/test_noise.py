"""Lines that cannot have a row are only counted, and this never changes the rows."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ensemble_core.builtin.json_lines import JsonLines
from ensemble_core.builtin.key_value import KeyValue
from ensemble_core.builtin.line_observer import LineObserver
from ensemble_core.builtin.regex import Regex

MAKE: dict[str, Callable[[], LineObserver]] = {
    "json, listed": lambda: JsonLines(None, {"E": "a.E", "T": "T"}, "step"),
    "json": JsonLines,
    "key-value, listed": lambda: KeyValue(None, {"E": "E", "T": "Temp (K)"}, "step"),
    "key-value": KeyValue,
    "regex": lambda: Regex({"E": r"^ *E *= *(\S+)$", "word": "Wort: ü"}),
    "regex over lines": lambda: Regex({"E": r"E[^;]*= *(\S+)", "any": r"(?i)STEP\s*=\s*(\d+)"}),
    "regex of one line": lambda: Regex({"E": r"\AE=(\S+)\z"}),
    "regex of groups": lambda: Regex([r"step=(?P<step>\d+) E=(?P<E>\S+)"], None, "step"),
}
LINES = [
    b"Read-only file system: /mnt/repo", b"", b"", b"step=3 E=-1.5", b"E=2", b"E = *****",
    b"\x1b[31mE\x1b[0m = \x1b[1m9.5\x1b[0m", b"E\x1b[0m=7", b"Temp (K) = 300.5", b"Wort: \xc3\xbc",
    b'{"step": 4, "a": {"E": 0.25}, "T": 3}', b'{"E": "bad", "T": NaN}', b"{'E': 1.5}", b"{broken",
    b"\xff\xfe E=4", b"10%|#|\rE=5\r20%|##|\rE=6", b"x" * 300, b"E:text", b"\xef\xbb\xbfE=8",
]  # fmt: skip


def read(observer: LineObserver, pieces: list[bytes]) -> list[str]:
    return [repr((row.values, row.clock)) for piece in pieces for row in observer.feed(piece)]


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("noise", [0, 50])
def test_rows_do_not_depend_on_which_lines_are_searched(name: str, noise: int) -> None:
    choose = random.Random(name)
    lines = [choose.choice(LINES) + choose.choice((b"\n", b"\r\n")) for _ in range(3000)]
    for at in range(0, 3000, 7):
        lines[at] = b"nothing to see: here\n" * noise + lines[at]
    text = b"begin\n" + b"".join(lines)
    one_by_one, at_once, odd = MAKE[name](), MAKE[name](), MAKE[name]()

    rows = read(one_by_one, text.splitlines(keepends=True))

    assert rows
    assert read(at_once, [text[at : at + 65536] for at in range(0, len(text), 65536)]) == rows
    assert read(odd, [text[at : at + 4097] for at in range(0, len(text), 4097)]) == rows
    assert at_once.complaint() == one_by_one.complaint()


@pytest.mark.parametrize("name", [name for name in MAKE if "one line" not in name])
def test_noise_is_not_parsed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    observer = MAKE[name]()
    parse = observer._parse  # type: ignore[attr-defined]
    monkeypatch.setattr(observer, "_parse", lambda line: parsed.append(line) or parse(line))

    for _ in range(100):
        read(observer, [b"Read-only file system: /mnt/repo\n" * 1000])

    assert len(parsed) < 3000
    assert "100000 lines" in (observer.complaint() or "")


def test_a_line_of_a_gigabyte_takes_no_memory() -> None:
    observer = KeyValue(None, ["E"])
    block = b"E=1 " * 250_000
    for _ in range(1000):
        observer.feed(block)
    rows = read(observer, [b"\nE=2\n"])

    assert rows == ["({'E': 2}, None)"]
    assert "longer than 1 MiB" in (observer.complaint() or "")
    assert len(observer._line) < 1 << 20
