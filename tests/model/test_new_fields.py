"""A field that is added to a class of jobs or events is stored and sent everywhere.

The package is copied, one line is added to each of three classes, and a program that uses the copy
checks the journal, the supervisor's ledger and protocol, and, if installed, the service's messages.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: The last field of each class; the new one is added after it.
CLASSES = {
    "jobs.py": ("class Job(", "    options: "),
    "events.py": ("class JobEvent(", "    ours: "),
}

PROGRAM = """
import json, sys, threading, time
from pathlib import Path
copy, folder = map(Path, sys.argv[1:])
sys.path.insert(0, str(copy))
from ensemble_core import Decision, Job, JobEvent, Observed, Run
import ensemble_core
assert Path(ensemble_core.__file__).is_relative_to(copy)
from ensemble_core.journal.reader import Journal
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.decisions import Submit

job = Job(id="a.0", group="a", index=0, command=("true",), colour="red")
told = [
    JobEvent(1.0, "a.0", "start", {"pid": 1}, colour="red"),
    JobEvent(1.0, "a.0", "start", colour="red"),
    JobEvent(1.0, "42", "start", {"pid": 1}, False, colour="red"),
    JobEvent(1.0, "a.0", "start", {"pid": 1}),
    Observed(1.0, "a.0", "lammps", {"x": float("inf")}, 1.0, colour="red"),
]

def journal():
    writer = JournalWriter(folder / "journal.db")
    writer.begin(1.0, {})
    for event in told:
        writer.append(event, [Submit(group="a", jobs=(job,))])
    writer.end(2.0, {})
    writer.close()
    with Journal(folder / "journal.db") as kept:
        rows = list(kept.rows())
    assert [row.event() for row in rows] == told
    for row in rows:
        assert Decision.from_dict(json.loads(row.decisions)[0]).jobs == (job,)

def supervisor():
    from ensemble_core.local.executor import LocalExecutor
    from ensemble_core.local.protocol import decode, encode_event, encode_job, to_event, to_job
    assert to_job(decode(json.dumps(encode_job(job)))) == job
    for event in told:
        if isinstance(event, JobEvent) and not event.ours:
            continue  # this executor tells of no others' jobs
        for extra in ((), ({"a": 1},), (1.0, [2])):
            assert to_event(decode(encode_event(event, extra).decode())) == event
    over = threading.Event()
    executor = LocalExecutor(slots=1)
    executor.open(
        Run("new-field", folder / "output", time.time, folder),
        lambda events: any(e.type == "job" and e.name == "clean" for e in events) and over.set(),
    )
    (folder / "output").mkdir()
    executor.submit([job])
    assert over.wait(60)
    texts = (folder / "local.log").read_text().splitlines()
    ledger = [json.loads(text[text.index("[") :]) for text in texts]
    executor.close()
    (kept,) = [line[5] for line in ledger if line[0] == "e" and line[3] == "submit"]
    assert to_job(kept) == job

def service():
    from ensemble_service.proto import ensemble_pb2 as pb
    from ensemble_service.wire import from_event, from_jobs, to_event, to_jobs
    assert to_jobs([pb.Job.FromString(m.SerializeToString()) for m in from_jobs([job])]) == [job]
    for event in told:
        assert to_event(pb.Event.FromString(from_event(event).SerializeToString())) == event

{place}()
"""


def add_fields(model: Path) -> None:
    for name, (start, last) in CLASSES.items():
        text = (model / name).read_text()
        at = text.index("\n", text.index(last, text.index(start)))
        text = f'{text[:at]}\n    colour: str = "grey"{text[at:]}'
        if name == "events.py":
            at = text.index("\n", text.index("    restarted: bool"))
            text = f'{text[:at]}\n    colour: str = "grey"{text[at:]}'
        (model / name).write_text(text)


@pytest.mark.parametrize(
    "place", ["journal", "supervisor", pytest.param("service", marks=pytest.mark.checkout)]
)
def test_a_new_field_is_written_and_sent_everywhere(tmp_path: Path, place: str) -> None:
    wanted = ["ensemble_core"]
    if place == "service":
        wanted.append("ensemble_service")
    copy = tmp_path / "copy"
    for name in wanted:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        shutil.copytree(Path(spec.origin).parent, copy / name)
    add_fields(copy / "ensemble_core" / "model")
    state = tmp_path / "state"
    state.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{place}", place), str(copy), str(state)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
