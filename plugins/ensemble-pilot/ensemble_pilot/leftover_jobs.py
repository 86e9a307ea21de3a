"""Counts and ends the jobs in pilots of a run whose journal cannot be read.

It uses the files of the executor alone: the controller's ledger, and those of the nodes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from ensemble_core import ExecutorError
from ensemble_core.local.ledger_reader import read_ledger, set_fence
from ensemble_pilot.ledger import Records

#: How many seconds to wait until pilots have ended their jobs, after the longest grace.
_ENDING = 60.0
_LOOK = 0.1


def leftover(folder: Path, *, end: bool) -> int:
    """Return how many jobs in pilots may be alive; a pilot without jobs counts as one.

    ``folder`` is ``Run.state``. If ``end`` is true, also end these pilots. Raises
    :class:`ExecutorError` if they do not end.
    """
    records = Records(folder / "pilots.log")
    alive = _alive(folder, records)
    if end and alive:
        for number in alive:  # its nodes look for it
            set_fence(folder / f"pilot-{number}" / "fence")
        graces = [_plan(folder, number)["grace"] for number in alive]
        graces += [entry.job.grace or 0.0 for entry in records.jobs.values()]
        deadline = time.monotonic() + max(graces) + _ENDING
        while left := _alive(folder, records):
            if time.monotonic() > deadline:
                raise _not_over(records, left)
            time.sleep(_LOOK)
    return sum(alive.values())


def _plan(folder: Path, number: int) -> Mapping[str, float]:
    plan: Mapping[str, float] = json.loads((folder / f"pilot-{number}" / "pilot.json").read_text())
    return plan


def _alive(folder: Path, records: Records) -> dict[int, int]:
    """Return the pilots that may be alive or start later, each with the number of its jobs."""
    found = {}
    for number in records.pilots:
        place = folder / f"pilot-{number}"
        if not (place / "pilot.json").exists():
            continue  # it was never submitted
        readings = [
            read_ledger(place / f"node-{rank}", {})
            for rank in range(int(_plan(folder, number)["nodes"]))
        ]
        begun = [reading for reading in readings if reading.began is not None]
        fenced = (place / "fence").exists()
        if all(reading.quit is not None for reading in begun) and (begun or fenced):
            continue
        placed = {
            name: entry.place[1]
            for name, entry in records.jobs.items()
            if entry.place is not None and entry.place[0] == number and not entry.ended
        }
        jobs = sum(readings[rank].state(name) != "ended" for name, rank in placed.items())
        found[number] = max(1, jobs)
    return found


def _not_over(records: Records, left: Mapping[int, int]) -> ExecutorError:
    names = ", ".join(
        f"{number} (job {records.pilots[number].queue_id})"
        if records.pilots[number].queue_id
        else str(number)
        for number in left
    )
    return ExecutorError(
        f"it is not known whether the jobs of pilots {names} have ended",
        cause="their nodes were told to end, and have not recorded that no process is left",
        hint="look whether the queue still has these pilots, and end them with its own command, "
        "such as scancel; they start nothing more",
        code="lost",
    )
