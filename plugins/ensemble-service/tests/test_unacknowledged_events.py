"""Tests of the file that keeps unacknowledged rows and problems."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from ensemble_service import event_delivery
from ensemble_service.event_delivery import Inbox, KeptEvents, origin_of
from ensemble_service.wire import from_event, to_event

from ensemble_core import Event, JobEvent, Observed, Problem

ROWS = [Observed(float(n), "t.1", "o", {"x": float(n)}) for n in range(1, 5)]


def add(kept: KeptEvents, number: int, events: Sequence[Event]) -> None:
    kept.add(number, events, [from_event(event) for event in events])


def test_the_next_life_has_unacknowledged_events_and_their_origin(tmp_path: Path) -> None:
    kept = KeptEvents(tmp_path / "kept")
    assert kept.begin("a") == []
    add(kept, 7, [ROWS[0], JobEvent(2.0, "t.1", "start"), Problem(2.0, "p", jobs=("t.1",))])
    again = KeptEvents(tmp_path / "kept").begin("b")
    assert [to_event(each) for each in again] == [ROWS[0], Problem(2.0, "p", jobs=("t.1",))]
    assert [origin_of(each) for each in again] == [("a", 7), ("a", 9)]
    assert origin_of(from_event(JobEvent(1.0, "t", "start", {"x": {"origin": ["a", 1]}}))) is None


def test_a_partial_line_is_skipped_and_costs_no_other_row(tmp_path: Path) -> None:
    kept = KeptEvents(tmp_path / "kept")
    kept.begin("a")
    add(kept, 1, ROWS[:2])
    data = (tmp_path / "kept").read_bytes()
    (tmp_path / "kept").write_bytes(data[:-9])
    later = KeptEvents(tmp_path / "kept")
    assert len(later.begin("b")) == 1
    add(later, 2, ROWS[2:])
    assert [to_event(each) for each in KeptEvents(tmp_path / "kept").begin("c")] == [
        ROWS[0],
        *ROWS[2:],
    ]


def test_the_file_does_not_grow_while_rows_are_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_delivery, "_LARGE", 1_000)
    kept = KeptEvents(tmp_path / "kept")
    kept.begin("a")
    for number in range(1, 200):
        add(kept, number, ROWS[:1])
        kept.acknowledge("a", number - 1)  # all but the last event
        kept.acknowledge("earlier", 1_000)
        assert (tmp_path / "kept").stat().st_size < 2_000
    assert origin_of(KeptEvents(tmp_path / "kept").begin("b")[-1]) == ("a", 199)


def test_an_inbox_remembers_events_of_earlier_lives() -> None:
    inbox = Inbox()
    inbox.begin("a", 1)
    inbox.new("a", 1, [from_event(row) for row in ROWS[:2]])
    inbox.begin("b", 1)
    assert [inbox.is_repeated("a", number) for number in (1, 2, 3, 3, 4)] == [
        True,
        True,
        False,
        True,
        False,
    ]
    for number in range(300):
        inbox.is_repeated(f"life {number}", 1)
    assert len(inbox._earlier) <= 100
