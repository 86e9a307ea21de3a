"""Tests of records: a later controller reads the records of an executor."""

from __future__ import annotations

from pathlib import Path

import pytest
from ensemble_batch import Records, Sent

from ensemble_core import JobEvent


def test_records_restore_submissions_and_events(tmp_path: Path) -> None:
    records = Records(str(tmp_path))
    assert not records.resumed
    jobs = {"sim.0": {"stdout": "/a"}, "sim.1": {"stdout": "/b"}}
    records.send(Sent("k1", jobs, ["first"], 5.0))
    records.send(Sent("k1", jobs, ["first", "second"], 7.0))
    records.accept("k1", ["77.1", "77.2"])
    records.tell(
        [JobEvent(6.5, "sim.0", "submit", {"queue_id": "77_0"}), JobEvent(7.0, "sim.1", "clean")]
    )
    records.cancel(["sim.0"])
    records.empty("/out")
    records.close()
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('["e","sim.0",[[9.0,"sta')  # the controller was killed here
    for forget in (False, True):
        again = Records(str(tmp_path))
        assert again.resumed
        assert again.sent == {"k1": Sent("k1", jobs, ["first", "second"], 7.0, ["77.1", "77.2"])}
        assert again.told["sim.0"] == [(6.5, "submit", {"queue_id": "77_0"})]
        assert again.cancelled == {"sim.0"}
        assert again.was_emptied("/out")
        if not forget:
            again.forget(["sim.1"])
        again.close()
    last = Records(str(tmp_path))
    assert "sim.1" not in last.told
    last.close()


def test_an_incomplete_line_does_not_swallow_the_next(tmp_path: Path) -> None:
    whole, cut = '["e","sim.0",[[1.0,"submit",{}]]]\n', '["e","sim.0",[[2.0,"al'
    (tmp_path / "records.jsonl").write_text(whole + cut)
    records = Records(str(tmp_path))
    records.tell([JobEvent(3.0, "sim.0", "clean")])
    records.close()
    again = Records(str(tmp_path))
    assert [name for _, name, _ in again.told["sim.0"]] == ["submit", "clean"]
    again.close()


def test_records_do_not_grow_with_forgotten_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Records, "renewal", 100)
    records = Records(str(tmp_path))
    sizes = []
    for number in range(1000):
        job = f"sim.{number}"
        records.send(Sent(f"k{number}", {job: {"stdout": "/o"}}, [f"n{number}"], 1.0))
        records.tell([JobEvent(1.0, job, "submit"), JobEvent(2.0, job, "clean")])
        if number != 7:
            records.forget([job])
        sizes.append((tmp_path / "records.jsonl").stat().st_size)
    records.close()
    assert max(sizes) < 120 * max(sizes[:1])
    again = Records(str(tmp_path))
    assert [name for _, name, _ in again.told["sim.7"]] == ["submit", "clean"]
    assert "k7" in again.sent
    assert len(again.sent) < 101
    again.close()


def test_a_run_on_a_full_disk_ends_without_another_error() -> None:
    records = Records(None)
    records._file = open("/dev/full", "a", encoding="utf-8")  # noqa: SIM115 -- the records closes it
    with pytest.raises(OSError, match="No space"):
        records.cancel(["sim.0"])
    records.close()
