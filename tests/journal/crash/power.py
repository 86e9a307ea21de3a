"""Writes a journal by itself, for a test that follows each of its system calls:
``power.py FOLDER MODE``. Each order writes its event's number to the file ``orders``."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from ensemble_core.journal import reader as journal
from ensemble_core.journal.writer import Recorder
from ensemble_core.model.decisions import Log
from ensemble_core.model.events import PluginEvent


def note(performed: int, seq: int) -> None:
    os.write(performed, b"%d\n" % seq)


def main() -> None:
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    if mode == "truncate":
        setattr(journal, "shared_storage", lambda path: "nfs4")  # noqa: B010  (for mypy)
    performed = os.open(folder / "orders", os.O_WRONLY | os.O_CREAT)
    recorder = Recorder(folder / journal.NAME)
    recorder.describe({"tag": "run"})
    recorder.text("e.yaml", "jobs: []", ())
    recorder.begin(1.0, {})
    # Pages move from the write-ahead file into the journal itself all the time.
    recorder._connection.execute("PRAGMA wal_autocheckpoint=6")
    recorder._connection.execute("PRAGMA cache_size=4")
    for seq in range(1, 61):
        event = PluginEvent(float(seq), "x", {"text": "y" * (seq * 37 % 3000)})
        orders = [partial(note, performed, seq)] if seq % 3 == 0 else []
        recorder.append(event, [Log(message="z" * (seq % 200))], orders)
        if seq % 10 == 0:
            recorder.snapshot("power", os.urandom(9000))
        if seq % 4 == 0:
            recorder.flush(None)
    recorder.end(2.0, {"over": True})
    recorder.close()


if __name__ == "__main__":
    main()
