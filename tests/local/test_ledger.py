"""The ledger of local jobs: compaction, truncation and damage."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ensemble_core.errors import ExecutorError
from ensemble_core.local import ledger as ledger_module
from ensemble_core.local.ledger import Ledger
from ensemble_core.local.protocol import decode, encode_event, encode_job, line
from ensemble_core.local.slots import Slots
from ensemble_core.local.supervisor_loop import SupervisorLoop
from ensemble_core.model.events import Event, JobEvent
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.executor import Run


def life(job: Job, now: float, upto: str = "clean") -> list[tuple[str, bytes]]:
    lines = []
    for step, name in enumerate(("submit", "priority", "alloc", "start", "finish", "clean")):
        extra = {"submit": (encode_job(job),), "start": (5.0, [17])}.get(name, ())
        event: Event = JobEvent(now + step / 1000, job.id, name, {"n": step})
        lines.append((job.id, encode_event(event, extra)))
        if name == upto:
            break
    return lines


def made(number: int) -> Job:
    return Job(id=f'a"b,c.{number}', group="g", index=number, command=("true", "\udcff"))


def test_the_ledger_is_compacted_when_most_of_it_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "SMALL", 10_000)
    ledger = Ledger(str(tmp_path), "t", 100.0)
    monkeypatch.setattr(ledger, "_not_before", 10_000)
    biggest = 0
    for number in range(500):
        for name, text in life(made(number), 200.0 + number):
            ledger.add(name, text)
        assert ledger.flush(200.0 + number + 0.005)
        if number >= 10:
            ledger.forget([made(number - 10).id])
        biggest = max(biggest, (tmp_path / "local.log").stat().st_size)
    ledger.answered(900.0, "r1", "granted", 3, "")
    ledger.flush(900.0)
    assert biggest < 40_000
    wanted = {made(number).id: 0.0 for number in range(480, 500)}
    wanted = {name: since for name, since in wanted.items() if ledger.knows(name)}
    assert list(wanted) == [made(number).id for number in range(490, 500)]
    told = list(ledger.replay(wanted))
    ledger.close()
    again = Ledger(str(tmp_path), "t", 100.0)
    assert not again.knows(made(489).id)
    assert all(again.knows(name) for name in wanted)
    assert told == list(again.replay(wanted))
    assert len(told) == 60
    assert (again.newest, again.size, again.requests) == (900.0, 3, {"r1": "granted"})
    assert again.past == {}
    assert again.began == 100.0
    again.close()


def test_a_truncated_ledger_is_read_up_to_its_end(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "whole"), "t", 100.0)
    for number, upto in enumerate(("clean", "priority", "alloc", "start")):
        for name, text in life(made(number), 200.0 + number, upto):
            ledger.add(name, text)
    ledger.flush(300.0)
    ledger.close()
    whole = (tmp_path / "whole" / "local.log").read_bytes()
    cut = tmp_path / "cut"
    cut.mkdir()
    for length in range(0, len(whole) + 1, 7):
        (cut / "local.log").write_bytes(whole[:length])
        found = Ledger(str(cut), "t", 100.0)
        assert found.unreadable == 0
        complete = whole[:length].count(b'"submit"')
        assert len(found.past) <= complete + 1
        found.add(made(9).id, life(made(9), 400.0, "submit")[0][1])
        assert found.flush(400.0)
        found.close()
        after = Ledger(str(cut), "t", 100.0)
        assert after.knows(made(9).id)
        assert after.unreadable == 0
        after.close()


def test_damaged_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "t", 100.0)
    for name, text in life(made(0), 200.0, "start"):
        ledger.add(name, text)
    ledger.flush()
    ledger.close()
    path = tmp_path / "local.log"
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(n for n, text in enumerate(lines) if b'"submit"' in text)
    lines[at] = b"\0" * 20 + b"\n"
    path.write_bytes(b"".join(lines) + b"[3]\nnonsense\n")
    ledger = Ledger(str(tmp_path), "t", 100.0)
    assert ledger.unreadable == 3
    assert ledger.past[made(0).id].data is None
    assert ledger.past[made(0).id].launched
    ledger.close()


def test_a_line_without_a_checksum_is_damaged(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), "t", 100.0)
    for name, text in life(made(1), 200.0, "submit"):
        ledger.add(name, text)
    ledger.flush()
    ledger.close()
    with (tmp_path / "local.log").open("ab") as file:
        file.write(life(made(2), 300.0, "submit")[0][1])
    ledger = Ledger(str(tmp_path), "t", 400.0)
    assert ledger.unreadable == 1
    assert ledger.knows(made(1).id)
    assert not ledger.knows(made(2).id)
    ledger.close()


@pytest.mark.parametrize("kept", [1, 4])
def test_repeated_events_of_waiting_jobs_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """Lost lines are written again, and events that a killed supervisor left are sent again."""
    ledger = Ledger(str(tmp_path), "t", 100.0)
    waits = ("submit", "validate", "depend", "priority")
    for step, name in enumerate(waits[:kept]):
        extra = (encode_job(made(0)),) if name == "submit" else ()
        ledger.add(made(0).id, encode_event(JobEvent(200.0 + step, made(0).id, name), extra))
    ledger.flush()
    ledger.close()
    synced = b""
    fdatasync = os.fdatasync

    def sync(fd: int) -> None:
        nonlocal synced
        fdatasync(fd)
        synced = (tmp_path / "local.log").read_bytes()

    monkeypatch.setattr(os, "fdatasync", sync)
    heard: dict[str, bool] = {}

    def hear(lines: Sequence[bytes]) -> None:
        for text in b"".join(lines).splitlines(keepends=True):
            message = decode(text.decode("ascii"))
            if message[0] == "e":
                heard[message[3]] = text in synced

    run = Run("t", tmp_path, time.time, tmp_path)
    again = Ledger(str(tmp_path), "t", 300.0)
    slots = Slots(1, 1, 1)
    environment = dict(os.environb)
    loop = SupervisorLoop(run, hear, slots, 0.1, environment, str(tmp_path), lambda: True, again)
    loop.post(("reattach", {made(0).id: 0.0}, lambda known: None))
    loop.run()
    loop.close()
    again.close()
    assert [heard[name] for name in waits] == [True] * 4
    assert "clean" in heard


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (["v", 1, "t", 1.0], "another version"),
        (["v", 99, "t", 1.0], "another version"),
        (["v", 2, "someone", 1.0, "id"], "belongs to another run: someone"),
    ],
)
def test_a_foreign_ledger_is_rejected(tmp_path: Path, header: list[object], words: str) -> None:
    (tmp_path / "local.log").write_text(json.dumps(header) + "\n")
    with pytest.raises(ExecutorError, match=words):
        Ledger(str(tmp_path), "t", 100.0)


@pytest.mark.parametrize(
    "elsewhere", [{1: "login7", 2: "another boot"}, {1: "login7", 4: "another container"}]
)
def test_jobs_that_may_run_on_another_machine_are_not_taken_over(
    tmp_path: Path, elsewhere: dict[int, str]
) -> None:
    ledger = Ledger(str(tmp_path), "t", 100.0)
    for name, text in life(made(0), 200.0, "start"):
        ledger.add(name, text)
    for place, words in elsewhere.items():
        ledger._supervisor[place] = words
    ledger._buffer.append(line(ledger._supervisor))
    ledger.flush()
    ledger.close()
    with pytest.raises(ExecutorError, match="may still run on login7"):
        Ledger(str(tmp_path), "t", 100.0)


def test_a_run_can_be_resumed_after_the_host_was_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(str(tmp_path), "t", 100.0)
    for name, text in life(made(0), 200.0, "start"):
        ledger.add(name, text)
    ledger.flush()
    ledger.close()
    before = os.uname()
    named = (before.sysname, "renamed", before.release, before.version, before.machine)
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(named))
    again = Ledger(str(tmp_path), "t", 200.0)
    assert len(again.past) == 1
    assert not again.rebooted
    again.close()
