"""Output files that several attempts of a job write."""

from __future__ import annotations

import time
from pathlib import Path

from ensemble_testing import wait_until

from ensemble_core.model.events import Event, Observed
from ensemble_core.plugin.observer import Observer, Row
from ensemble_core.runtime.tail.follower import Follower


class Lines(Observer):
    path = None

    def feed(self, data: bytes) -> list[Row]:
        return [Row({"E": float(line)}) for line in data.split()]

    def finish(self) -> list[Row]:
        return []

    def truncated(self) -> None:
        pass


def test_a_file_is_read_from_the_earlier_attempts_end_or_from_its_start_if_it_shrank(
    tmp_path: Path,
) -> None:
    file = tmp_path / "out"
    rows: list[tuple[str, float]] = []

    def take(events: list[Event]) -> None:
        rows.extend((e.job, e.values["E"]) for e in events if isinstance(e, Observed))

    def attempt(job: str) -> list[float]:
        done: list[int] = []
        follower.watch(job, "lines", Lines(), file)
        follower.finish(job, lambda: done.append(1))
        wait_until(lambda: bool(done))
        return [value for name, value in rows if name == job]

    follower = Follower(take, time.time)  # type: ignore[arg-type]
    try:
        file.write_text("1\n2\n")
        assert attempt("sim.7") == [1, 2]
        with file.open("a") as more:
            more.write("3\n")
        assert attempt("sim.7-1") == [3]
        file.write_text("4\n")
        assert attempt("sim.7-2") == [4]
        assert attempt("sim.8") == [4]  # a new job reads the whole file
    finally:
        follower.close()
