"""Writes a journal for a test that traces system calls: ``power.py FOLDER MODE``.

The number of each performed event is written to the file ``orders``. In the mode ``late``, only every
other order needs a synced journal.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ensemble_core.journal import database as journal
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.decisions import Log
from ensemble_core.model.events import PluginEvent


def main() -> None:
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    if mode == "truncate":
        setattr(journal, "shared_storage", lambda path: "nfs4")  # noqa: B010  (for mypy)
    performed = os.open(folder / "orders", os.O_WRONLY | os.O_CREAT)
    writer = JournalWriter(folder / journal.NAME)
    writer.describe({"tag": "run"})
    writer.store_file_version("e.yaml", "jobs: []", ())
    writer.perform = lambda seq: os.write(performed, b"%d\n" % seq)
    writer.begin(1.0, {})
    if mode == "late":
        writer.sync_late(lambda seq: bool(seq % 2 == 0))
        writer.flush(None)
    # Frequent checkpoints of the write-ahead log.
    writer._connection.execute("PRAGMA wal_autocheckpoint=6")
    writer._connection.execute("PRAGMA cache_size=4")
    for seq in range(1, 61):
        event = PluginEvent(float(seq), "x", {"text": "y" * (seq * 37 % 3000)})
        orders = [seq] if seq % 3 == 0 else []
        writer.append(event, [Log(message="z" * (seq % 200))], orders)
        if seq % 10 == 0:
            writer.snapshot("power", os.urandom(9000))
        if seq % 4 == 0:
            writer.flush(None)
    writer.end(2.0, {"over": True})
    writer.close()


if __name__ == "__main__":
    main()
