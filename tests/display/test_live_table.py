"""The live table and the lines above it, on a terminal simulated in Python."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import threading
from collections.abc import Iterator

import pytest

from ensemble_core.display.event_lines import OutputLine
from ensemble_core.display.live_table import LiveTable, can_be_live
from ensemble_core.display.output_thread import Output
from ensemble_core.display.text_style import TextStyle
from ensemble_core.engine.report import GroupReport, Report
from ensemble_core.model.decisions import Decision, Log
from ensemble_core.model.events import Event

_TOKEN = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|(.)", re.DOTALL)


class Screen(io.StringIO):
    """Simulated terminal with the features that the table needs: wrap, scroll, cursor up, erase.

    ``rows`` has everything since the start; ``top`` is the first row that the cursor can reach.
    """

    encoding = "utf-8"

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        super().__init__()
        self.size = os.terminal_size((columns, lines))
        self.rows: list[str] = [""]
        self.row = self.column = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        for number, letter, character in _TOKEN.findall(text):
            if character:
                self._put(character)
            elif letter == "A":
                top = max(0, len(self.rows) - self.size.lines)
                self.row = max(top, self.row - int(number or 1))
            elif letter == "J":
                del self.rows[self.row + 1 :]
                self.rows[self.row] = self.rows[self.row][: self.column]
            elif letter == "K":
                self.rows[self.row] = self.rows[self.row][: self.column]
            else:
                assert letter == "m", f"the screen does not know {letter}"
        return len(text)

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self._down()
        else:
            if self.column == self.size.columns:
                self._down()
            line = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        self.column = 0
        if self.row == len(self.rows):
            self.rows.append("")

    def resize(self, columns: int, lines: int = 24) -> None:
        """Change the size, and rewrap the rows as terminals do."""
        rows: list[str] = []
        for number, row in enumerate(self.rows):
            if number == self.row:
                self.row = len(rows)
            rows += [row[at : at + columns] for at in range(0, len(row), columns)] or [""]
        self.rows = rows
        self.size = os.terminal_size((columns, lines))

    @property
    def text(self) -> list[str]:
        return [row.rstrip() for row in self.rows]


def report(groups: int = 2, running: int = 1) -> Report:
    return Report(
        groups=tuple(
            GroupReport(name=f"group-{number}", submitted=3, running=running, mean_duration=1.5)
            for number in range(groups)
        ),
        events=7,
    )


def block(screen: Screen, **environ: str) -> LiveTable:
    made = LiveTable(
        TextStyle(color=True, unicode=True), lambda: screen.size, clock=lambda: 0.0, environ=environ
    )
    made.report = report()
    return made


def write_above(screen: Screen, table: LiveTable, text: str) -> None:
    screen.write(table.erase() + text + table.draw())


def test_lines_go_above_the_table() -> None:
    screen = Screen()
    table = block(screen)
    for number in range(50):
        write_above(screen, table, f"line {number}\n")
        screen.write(table.refresh())
    text = screen.text
    assert text[:50] == [f"line {number}" for number in range(50)]
    assert text[50].split()[0] == "group"
    assert [line.split()[0] for line in text[51:54]] == ["group-0", "group-1", "all"]
    assert text[54].startswith(" elapsed")
    assert text[55:] == [""]


def test_long_lines_above_the_table_wrap() -> None:
    screen = Screen(columns=40)
    table = block(screen)
    long = "x" * 40 + "y" * 40 + "z"
    for _ in range(5):
        write_above(screen, table, long + "\n")
    assert "".join(screen.text[:15]) == long * 5
    assert screen.text[15].split()[0] == "group"


@pytest.mark.parametrize("columns", [200, 80, 60, 40, 25])
def test_table_never_wraps(columns: int) -> None:
    screen = Screen(columns=columns)
    table = block(screen)
    screen.write(table.refresh())
    assert len(screen.text) == 6  # heading, two groups, total, foot, and the cursor's line
    assert max(map(len, screen.text)) < columns


@pytest.mark.parametrize("columns", [120, 60, 41, 33])
def test_narrowed_terminal_keeps_the_lines_and_one_table(columns: int) -> None:
    screen = Screen(columns=100)
    table = block(screen)
    for number in range(5):
        write_above(screen, table, f"line {number}\n")
    screen.resize(columns)
    screen.write(table.refresh())
    screen.write(table.refresh())
    assert screen.text[:5] == [f"line {number}" for number in range(5)]
    assert sum("elapsed" in line for line in screen.text) == 1
    assert sum(line.startswith(" group-0") for line in screen.text) == 1


def test_hundreds_of_groups_fit_with_busy_ones_first() -> None:
    screen = Screen(lines=10)
    table = block(screen)
    groups = [GroupReport(name=f"g{number}", submitted=1, success=1) for number in range(300)]
    groups[250] = GroupReport(name="busy", submitted=1, running=1)
    table.report = Report(groups=tuple(groups))
    screen.write(table.refresh())
    assert len(screen.text) <= 10
    assert any(line.startswith(" busy") for line in screen.text)
    assert any("more groups" in line for line in screen.text)
    (total,) = [line for line in screen.text if line.startswith(" all")]
    assert "300" in total


def test_small_terminal_shows_no_table() -> None:
    screen = Screen(columns=80, lines=3)
    table = block(screen)
    write_above(screen, table, "line\n")
    assert screen.text == ["line", ""]


def test_table_is_erased_at_the_end() -> None:
    screen = Screen()
    table = block(screen)
    write_above(screen, table, "line\n")
    screen.write(table.refresh() + table.erase())
    assert screen.text == ["line", ""]


def test_refresh_overwrites_the_table_without_erasing_it() -> None:
    screen = Screen()
    table = block(screen)
    screen.write(table.refresh())
    again = table.refresh()
    assert "\x1b[J" not in again[: again.rindex("elapsed")]


def test_pipes_and_dumb_terminals_have_no_table() -> None:
    assert can_be_live(Screen(), {"TERM": "xterm"})
    assert not can_be_live(Screen(), {"TERM": "dumb"})
    assert not can_be_live(Screen(), {})
    assert not can_be_live(io.StringIO(), {"TERM": "xterm"})


def words(item: Event | Decision) -> Iterator[OutputLine]:
    assert isinstance(item, Log)
    yield OutputLine(item.message, item.level == "error")


def test_lines_printed_in_pieces_by_threads_stay_whole() -> None:
    screen = Screen()
    table = block(screen)
    before = sys.stdout

    def talk(name: str) -> None:
        for number in range(50):
            print(f"{name} ", end="", flush=True)
            print(number, file=sys.stderr if number % 2 else sys.stdout)

    with Output(words, screen, screen, block=table) as output:
        threads = [threading.Thread(target=talk, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for number in range(50):
            output.put(Log(message=f"told {number}"))
        for thread in threads:
            thread.join()
        print("not ended", end="")
        output.close(["the end"])
    assert sys.stdout is before
    text = screen.text
    assert text[-2:] == ["the end", ""]
    assert not any("elapsed" in line for line in text)
    assert [line for line in text if line.startswith("told")] == [f"told {n}" for n in range(50)]
    for name in ("one", "two"):
        said = " ".join(text)
        assert said.count(f"{name} ") == 50
    assert any("not ended" in line for line in text)


def test_errors_go_to_stderr_in_order_and_lines_to_stdout() -> None:
    out, err = io.StringIO(), io.StringIO()
    with Output(words, out, err) as output:
        for number in range(10):
            output.put(Log(message=str(number), level="error" if number % 3 == 0 else "info"))
    assert out.getvalue().split() == ["1", "2", "4", "5", "7", "8"]
    assert err.getvalue().split() == ["0", "3", "6", "9"]


def test_lines_that_come_close_together_are_written_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counted(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            self.writes += 1
            return super().write(text)

    monkeypatch.setattr("ensemble_core.display.output_thread._GATHER", 3600.0)
    out = Counted()
    with Output(words, out, out) as output:
        for number in range(3):
            output.put(Log(message=str(number)))
    assert (out.getvalue().split(), out.writes) == (["0", "1", "2"], 1)  # the end waits for no time


class Broken(io.StringIO):
    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def write(self, text: str) -> int:
        raise OSError(self._number, os.strerror(self._number))


def test_slow_reader_of_a_non_blocking_pipe_gets_every_line() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)  # as another program with the same pipe may do
    got: list[bytes] = []

    def read() -> None:
        while data := os.read(reading, 4096):
            got.append(data)

    thread = threading.Thread(target=read)
    with open(writing, "w") as stream, Output(words, stream, io.StringIO()) as output:
        for number in range(3000):
            output.say(f"{number} {'x' * 200}")
        thread.start()  # the pipe is full, or will be
    thread.join()
    os.close(reading)
    numbers = [line.split()[0] for line in b"".join(got).decode().splitlines()]
    assert numbers == [str(number) for number in range(3000)]


def test_closed_pipe_is_no_error() -> None:
    err = io.StringIO()
    with Output(words, Broken(errno.EPIPE), err) as output:
        for number in range(10):
            output.put(Log(message=str(number)))
        output.put(Log(message="trouble", level="error"))
    assert err.getvalue() == "trouble\n"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_full_disk_or_lost_terminal_does_not_end_the_run(number: int) -> None:
    err = io.StringIO()
    with Output(words, Broken(number), err) as output:
        output.put(Log(message="one"))
        output.put(Log(message="two"))
        output.put(Log(message="trouble", level="error"))
    assert err.getvalue().count("the run continues without it") == 1
    assert "trouble" in err.getvalue()


def test_item_that_cannot_be_formatted_does_not_hide_the_rest() -> None:
    def tell(item: Event | Decision) -> Iterator[OutputLine]:
        assert isinstance(item, Log)
        if item.message == "bad":
            raise KeyError("bad")
        yield OutputLine(item.message)

    out, err = io.StringIO(), io.StringIO()
    with Output(tell, out, err) as output:
        for message in ("one", "bad", "two"):
            output.put(Log(message=message))
    assert out.getvalue() == "one\ntwo\n"
    assert "cannot show" in err.getvalue()


def test_text_that_cannot_be_encoded_is_escaped() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    with Output(words, out, out) as output:
        output.put(Log(message="é \udcff"))
    assert raw.getvalue() == b"\\xe9 \\udcff\n"


def test_elapsed_time_excludes_loading() -> None:
    times = iter([100.0, 103.0, 105.5])
    block = LiveTable(
        TextStyle(unicode=True), lambda: os.terminal_size((80, 24)), clock=lambda: next(times)
    )
    block.begin()
    block.report = Report()
    assert " elapsed 2.50 s" in block.draw()
