"""Simulates power cuts of runs, with a model of the disk and of a queue.

Each round records the steps of one run: writes and syncs of the ledger, commits and syncs of the
journal, and started processes. A power cut after any step leaves: all synced commits of the journal,
and the later ones up to any of them (see ``test_power_cut.py``); the synced part of the ledger, and
any sectors and names written since; likewise for the progress note beside the journal. Another
controller resumes from these files. Its steps are recorded, and may be cut again.

Rounds with an even seed use the local executor, whose jobs end with the power; the others use a queue
that survives with its jobs.

Errors are: a job that began before the cut, according to the journal, the ledger or the queue, runs
again; a job that did not begin does not run; a submitted job has no end; the replay differs; the
journal is reported as damaged or truncated. Prints one line of JSON for each round:
``power_cuts.py --seed N --rounds N --cuts N --base FOLDER``.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import re
import shutil
import sqlite3
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ensemble_testing.crash.rounds import Round

from ensemble_core.config import load_text
from ensemble_core.errors import EnsembleError
from ensemble_core.journal import writer as writer_module
from ensemble_core.journal.damage_detection import WRITE_ALL, Progress, add_functions
from ensemble_core.journal.database import PERFORMED
from ensemble_core.journal.reader import NAME, Journal
from ensemble_core.journal.replay import recover
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.local import ledger as ledger_module
from ensemble_core.local.launch import Launcher
from ensemble_core.local.ledger import Ledger
from ensemble_core.local.ledger_reader import ledger_messages
from ensemble_core.local.process_tree import become_subreaper
from ensemble_core.local.protocol import Splitter, decode, encode_job, line, to_event, to_job
from ensemble_core.local.slots import Slots
from ensemble_core.local.supervisor_loop import SupervisorLoop
from ensemble_core.model.codec import NOTHING
from ensemble_core.model.events import JobEvent
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.executor import Emit, Executor, Run
from ensemble_core.posix import sync_folder
from ensemble_core.runtime.controller import Runtime

TEXT = """
jobs:
  - {name: a, command: "true", count: 6}
  - {name: b, command: "false"}
  - {name: c, command: sleep 0.01, count: 2}
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: job-success, name: a, repetitions: 4, action: {name: submit, label: b}}
  - {trigger: job-fail, name: b, repetitions: 2, action: {name: submit, label: c}}
"""
REGISTRY = discover(())
_SECTOR = 512
_ALLOTTED = re.compile(rb'\["e","([^"]+)",[\d.]+,"alloc"|\["l","([^"]+)"\]')
#: The value of ``PRAGMA synchronous`` with which SQLite does not sync each commit.
_NORMAL = 1
#: Seconds after which a run counts as stuck.
_PATIENCE = 120.0


class File:
    """File on the disk: its synced content, and the writes since, in order."""

    def __init__(self, content: bytes = b"") -> None:
        self.synced = self.now = content
        #: ``(offset, bytes)``, or ``(length, None)`` if truncated.
        self.since: list[tuple[int, bytes | None]] = []

    def write(self, offset: int, data: bytes) -> None:
        self.now = self.now[:offset] + data + self.now[offset + len(data) :]
        self.since.append((offset, data))

    def cut(self, length: int) -> None:
        self.now = self.now[:length]
        self.since.append((length, None))

    def sync(self) -> None:
        self.synced, self.since = self.now, []

    def image(self, chance: random.Random) -> bytes:
        """Return the content after a power cut, with all, none or any part of the unsynced writes."""
        content = bytearray(self.synced)
        share = chance.choice((0.0, 0.3, 0.7, 1.0))
        for offset, data in self.since:
            if data is None:
                if chance.random() < share:
                    del content[offset:]
                continue
            first = offset // _SECTOR * _SECTOR
            for start in range(first, offset + len(data), _SECTOR):
                if chance.random() < share:
                    begin, end = max(start, offset), min(start + _SECTOR, offset + len(data))
                    content.extend(b"\0" * (end - len(content)))
                    content[begin:end] = data[begin - offset : end - offset]
        return bytes(content)


@dataclass
class Disk:
    """Simulated disk with the ledger's folder and the journal."""

    #: The files now, and at the last sync of the folder.
    names: dict[str, File] = field(default_factory=dict)
    synced: dict[str, File] = field(default_factory=dict)
    #: The newest synced event of the journal, and those with which the commits since end.
    commits: list[int] = field(default_factory=lambda: [0])
    #: The newest event of the current commit.
    committing: int = 0
    #: The progress note beside the journal.
    note: File = field(default_factory=File)
    #: Jobs whose processes were started in this run, and jobs that ever had slots.
    spawned: set[str] = field(default_factory=set)
    allotted: set[str] = field(default_factory=set)
    #: Events of the jobs of a queue that survives, and those that were submitted twice.
    queue: dict[str, list[JobEvent]] = field(default_factory=dict)
    twice: set[str] = field(default_factory=set)

    def submit(self, job: str, events: list[JobEvent]) -> None:
        if job in self.queue:
            self.twice.add(job)
        self.queue[job] = events

    def image(self, chance: random.Random) -> dict[str, bytes]:
        found = {}
        for name in self.names.keys() | self.synced.keys():
            file = chance.choice((self.names, self.synced)).get(name)
            if file is not None:
                found[name] = file.image(chance)
        return found


class Recorder:
    """Steps of a run, each a function that repeats the step on a :class:`Disk`."""

    def __init__(
        self,
        committed: int = 0,
        ledger: Mapping[str, bytes] = NOTHING,
        begun: Iterable[str] = (),
        note: bytes = b"",
        queue: Mapping[str, list[JobEvent]] = NOTHING,
    ) -> None:
        self.steps: list[Callable[[Disk], object]] = []
        self._committed = committed
        self._ledger = ledger
        self._begun = frozenset(begun)
        self._note = note
        self.queue = dict(queue)
        self._lock = threading.Lock()

    def add(self, step: Callable[[Disk], object]) -> None:
        with self._lock:
            self.steps.append(step)

    def disk(self, at: int) -> Disk:
        """Return the disk after ``at`` steps."""
        files = {name: File(content) for name, content in self._ledger.items()}
        disk = Disk(dict(files), files, [self._committed], self._committed, File(self._note))
        disk.allotted.update(self._begun)
        disk.queue.update(self.queue)
        for step in self.steps[:at]:
            step(disk)
        return disk


class RecordedOs:
    """Replacement of ``os`` for the ledger, which records its calls."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self._names: dict[int, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        fd = os.open(path, flags, mode)
        name = os.path.basename(path)
        if name.startswith(ledger_module.NAME):
            self._names[fd] = name
            fresh = flags & os.O_TRUNC

            def create(disk: Disk) -> None:
                if fresh or name not in disk.names:
                    disk.names[name] = File()

            self.recorder.add(create)
        else:
            self._names.pop(fd, None)
        return fd

    def write(self, fd: int, data: bytes) -> int:
        count = os.write(fd, data)
        name, text = self._names[fd], bytes(data[:count])

        def write(disk: Disk) -> None:
            disk.names[name].write(len(disk.names[name].now), text)
            disk.allotted.update((one or other).decode() for one, other in _ALLOTTED.findall(text))

        self.recorder.add(write)
        return count

    def ftruncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)
        name = self._names[fd]
        self.recorder.add(lambda disk: disk.names[name].cut(length))

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)

    def fsync(self, fd: int) -> None:
        name = self._names[fd]
        content = os.pread(fd, 1 << 30, 0)

        def sync(disk: Disk) -> None:
            if disk.names[name].now != content:  # written by a file object
                disk.names[name].write(0, content)
            disk.names[name].sync()

        self.recorder.add(sync)

    def sync_folder(self, folder: str) -> None:
        sync_folder(folder)

        def sync_names(disk: Disk) -> None:
            disk.synced = dict(disk.names)

        self.recorder.add(sync_names)

    def replace(self, old: str, new: str) -> None:
        os.replace(old, new)
        content = Path(new).read_bytes()
        here, there = os.path.basename(old), os.path.basename(new)
        for fd, name in self._names.items():
            if name == here:
                self._names[fd] = there

        def rename(disk: Disk) -> None:
            file = disk.names.pop(here)
            if file.now != content:
                file.write(0, content)
            disk.names[there] = file

        self.recorder.add(rename)


RECORDED = RecordedOs()


class InProcess(Executor):
    """Executor with the supervisor's loop and ledger in this process."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"submit", "cancel", "reattach", "detach"})
    survives_power_cut = False

    def open(self, run: Run, emit: Emit) -> None:
        self._closing = False
        self.ledger = Ledger(str(run.state), run.tag, run.clock())
        self.loop = SupervisorLoop(
            run,
            lambda lines: emit([to_event(one) for one in Splitter().feed(b"".join(lines))]),
            Slots(2, 1, 2),
            0.2,
            dict(os.environb),
            os.getcwd(),
            lambda: self._closing,
            self.ledger,
        )
        self.loop.start()

    @property
    def queue_is_new(self) -> bool:
        return self.ledger.rebooted

    def submit(self, jobs: Sequence[Job]) -> None:
        received = (decode(line(encode_job(job)).decode()) for job in jobs)
        self.loop.post(("submit", [(to_job(data), data) for data in received]))

    def cancel(self, jobs: Sequence[str]) -> None:
        self.loop.post(("cancel", jobs))

    def forget(self, jobs: Sequence[str]) -> None:
        self.loop.post(("forget", jobs))

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        answers: queue.SimpleQueue[Mapping[str, bool]] = queue.SimpleQueue()
        self.loop.post(("reattach", jobs, answers.put))
        return answers.get(timeout=_PATIENCE)

    def close(self) -> None:
        self._closing = True
        self.loop.post(("call", lambda: None))
        self.loop.join()
        self.ledger.close()


class Queue(Executor):
    """Queue that survives power cuts, in which each job ends at once."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"submit", "cancel", "reattach", "detach"})

    def open(self, run: Run, emit: Emit) -> None:
        self._run, self._emit = run, emit
        self._jobs = dict(RECORDED.recorder.queue)

    def submit(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            now = self._run.clock()
            status = 256 if job.command == ("false",) else 0
            names = ("submit", "alloc", "start", "finish", "clean")
            events = [
                JobEvent(now + n / 1e6, job.id, name, {"status": status} if n == 3 else {})
                for n, name in enumerate(names)
            ]
            self._jobs[job.id] = events
            RECORDED.recorder.add(lambda disk, job=job, events=events: disk.submit(job.id, events))
            self._emit(events)

    def cancel(self, jobs: Sequence[str]) -> None:
        """All jobs are over."""

    def reattach(self, jobs: Mapping[str, float]) -> Mapping[str, bool]:
        for job, since in jobs.items():
            if events := [each for each in self._jobs.get(job, ()) if each.timestamp > since]:
                self._emit(events)
        return {job: job in self._jobs for job in jobs}

    def close(self) -> None:
        """Nothing to release."""


def loading(text: Any) -> Any:
    return load_text(text.text, REGISTRY)


def play(folder: Path, recorder: Recorder, kind: type[Executor]) -> str:
    """Run or resume the run in a folder to its end; return the error, or an empty text."""
    RECORDED.recorder = recorder
    engine = None
    path = folder / NAME
    if path.exists():
        with Journal(path) as journal:
            if missing := journal.missing_tail():
                return str(missing)
            journal.check_records()
            engine = recover(journal, loading, None).engine
    writer = JournalWriter(path)
    if engine is None:
        writer.describe({"tag": "run"})
        writer.store_file_version("e.yaml", TEXT, ())
    writer.begin(1.0, {})
    try:
        runtime = Runtime(
            load_text(TEXT, REGISTRY),
            kind(),
            actions=REGISTRY.actions,
            observers=REGISTRY.observers,
            folder=folder / "output",
            tag="run",
            journal=writer,
            maker="power",
            state=folder / "executor",
            engine=engine,
        )
        wrong = [f"{folder} hangs"]

        def run() -> None:
            try:
                runtime.run()
                wrong.clear()
            except BaseException as error:
                wrong[:] = traceback.format_exception(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(_PATIENCE)
    finally:
        writer.close()
    return "".join(wrong)


def cut_power(
    source: Path, folder: Path, disk: Disk, chance: random.Random
) -> tuple[int, Any, bytes]:
    """Create the folder after a power cut; return its newest event, ledger files and note."""
    (folder / "executor").mkdir(parents=True)
    last = chance.choice((*disk.commits, disk.committing))
    shutil.copy(source / NAME, folder / NAME)
    with sqlite3.connect(folder / NAME) as journal:
        journal.execute("DELETE FROM event_lists WHERE first > ?", (last,))
        journal.execute("DELETE FROM snapshots WHERE seq > ?", (last,))
        journal.execute("UPDATE sessions SET ended = NULL, outcome = NULL")
        # The last value of a row is the number of the event that ended its job.
        journal.execute("DELETE FROM job_rows WHERE json_extract(row, '$[#-1]') > ?", (last,))
        if not last:
            journal.executescript("DELETE FROM job_layouts;")
        journal.execute(
            "UPDATE event_lists SET jobs = (SELECT coalesce(sum(crc + replaced), 0) FROM job_rows)"
            " + (SELECT coalesce(sum(crc), 0) FROM job_layouts)"
        )
        add_functions(journal)
        journal.executescript(WRITE_ALL)
    journal.close()
    ledger = disk.image(chance)
    for name, content in ledger.items():
        (folder / "executor" / name).write_bytes(content)
    note = disk.note.image(chance)
    (folder / PERFORMED).write_bytes(note)
    return last, ledger, note


def job_events(folder: Path) -> dict[str, set[str]]:
    """Return the names of each job's events in the journal, and the types of exceptions."""
    found: dict[str, set[str]] = {}
    with Journal(folder / NAME) as journal:
        for row in journal.rows():
            event = row.event()
            if isinstance(event, JobEvent):
                names = found.setdefault(event.job, set())
                names.add(event.name)
                if event.name == "exception":
                    names.add(f"exception {event.context.get('type')}")
            for decision in json.loads(row.decisions or "[]"):
                if decision["type"] == "submit":
                    for job in decision["jobs"]:
                        found.setdefault(job["id"], set())
    return found


def of_run(names: Iterable[str]) -> set[str]:
    """Return the run's names of jobs: in an executor, a job that was handed over again has a suffix
    (``a.5~1``).
    """
    return {name.partition("~")[0] for name in names}


def began(ledger: Mapping[str, bytes]) -> set[str]:
    """Return the jobs that have begun, or were about to, according to the ledger."""
    found: set[str] = set()
    for message in ledger_messages(ledger.get(ledger_module.NAME, b"")):
        if message is not None and (message[0] == "l" or message[3:4] == ["alloc"]):
            found.add(message[1])
    return found


def check(
    folder: Path,
    before: dict[str, set[str]],
    ledger: Mapping[str, bytes],
    disk: Disk,
    again: Disk,
    found: Round,
) -> None:
    """Check a resumed run against the recorded events, the ledger and the disk at the power cut."""
    after = job_events(folder)
    for job in sorted(again.twice):
        found.doubled.append(f"{folder.name}: {job} was in the queue and was submitted again")
    for job in sorted(again.spawned & began(ledger)):
        found.doubled.append(f"{folder.name}: {job} has begun according to the ledger")
    found.jobs += len(after)
    allotted = of_run(disk.allotted)
    for job in sorted(of_run(again.spawned)):
        if "clean" in before.get(job, ()):
            found.doubled.append(f"{folder.name}: {job} was over and ran again")
        elif before.get(job, set()) & {"alloc", "start", "finish"}:
            found.doubled.append(f"{folder.name}: {job} had begun and ran again")
    for job, names in after.items():
        if "clean" not in names:
            found.lost.append(f"{folder.name}: {job} has no end")
        elif "exception lost" in names - before.get(job, set()) and job not in allotted:
            found.lost.append(f"{folder.name}: {job} never began, but is reported as lost")
        if "exception submit" in names:  # by a fault of these tests: such a job tests nothing
            found.other.append(f"{folder.name}: {job} could not be submitted")
    if len({job for job in after if job.startswith("a.")}) != 6:
        found.lost.append(f"{folder.name}: {sorted(after)}")
    try:
        with Journal(folder / NAME) as journal:
            journal.check()
            recover(journal, loading, None)
    except EnsembleError as error:
        found.replay_differences.append(f"{folder.name}: {error}")


def one_round(base: Path, seed: int, cuts: int) -> Round:
    found = Round("power", seed)
    chance = random.Random(f"power {seed}")
    first = base / f"{seed}"
    first.mkdir(parents=True)
    kind = Queue if seed % 2 else InProcess
    set_boot(f"{seed}-0")
    recorder = Recorder()
    if wrong := play(first, recorder, kind):
        found.other.append(wrong)
        return found
    cases = [(first, recorder)]
    while len(found.killed) < cuts:
        source, recorder = chance.choice(cases[-4:] if chance.random() < 0.5 else cases[:1])
        at = chance.randrange(1, len(recorder.steps) + 1)
        number = len(found.killed) + 1
        folder = base / f"{seed}.{number}"
        found.killed.append(f"step {at} of {source.name}")
        disk = recorder.disk(at)
        last, ledger, note = cut_power(source, folder, disk, chance)
        before = job_events(folder)
        set_boot(f"{seed}-{number}")
        again = Recorder(last, ledger, disk.allotted, note, disk.queue)
        if wrong := play(folder, again, kind):
            found.other.append(f"{folder.name}: {wrong}")
            break
        good = found.good
        check(folder, before, ledger, disk, again.disk(len(again.steps)), found)
        if good and not found.good:
            break
        cases.append((folder, again))
    return found


def set_boot(name: str) -> None:
    """Give this machine another boot id, as after a power cut."""
    assert ledger_module.boot_id
    ledger_module.boot_id = lambda: name


def instrument() -> None:
    """Record the steps of ledger, journal and launcher, with more frequent writes."""
    assert ledger_module.sync_folder
    ledger_module.os, ledger_module.sync_folder = RECORDED, RECORDED.sync_folder
    ledger_module.SMALL = 2000
    writer_module._PAUSE = 0.002
    write, noted, spawn = JournalWriter._write, JournalWriter._note, Launcher.spawn
    synced = JournalWriter._sync_log

    def commit(self: JournalWriter, first: int, batch: Any, snapshot: Any) -> None:
        recorder, last = RECORDED.recorder, first + len(batch) - 1
        recorder.add(lambda disk: setattr(disk, "committing", last))
        write(self, first, batch, snapshot)
        recorder.add(lambda disk: disk.commits.append(last))
        if self._connection.execute("PRAGMA synchronous").fetchone() != (_NORMAL,):
            recorder.add(lambda disk: setattr(disk, "commits", [last]))

    def sync(self: JournalWriter) -> None:
        synced(self)
        RECORDED.recorder.add(lambda disk: setattr(disk, "commits", disk.commits[-1:]))

    def note(self: JournalWriter, progress: Progress, *, sync: bool = False) -> None:
        noted(self, progress, sync=sync)
        RECORDED.recorder.add(lambda disk: disk.note.write(0, progress.text()))
        if sync:
            RECORDED.recorder.add(lambda disk: disk.note.sync())

    def started(self: Launcher, job: Job, *rest: Any) -> int:
        RECORDED.recorder.add(lambda disk: disk.spawned.add(job.id))
        return spawn(self, job, *rest)

    JournalWriter._write = commit  # type: ignore[method-assign]
    JournalWriter._sync_log = sync  # type: ignore[method-assign]
    JournalWriter._note = note  # type: ignore[method-assign]
    Launcher.spawn = started  # type: ignore[method-assign]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--cuts", type=int, default=20, help="of each round (20)")
    parser.add_argument("--base", type=Path, required=True)
    chosen = parser.parse_args()
    become_subreaper()
    instrument()
    good = True
    for number in range(chosen.rounds):
        found = one_round(chosen.base.absolute(), chosen.seed + number, chosen.cuts)
        good = good and found.good
        print(json.dumps({**asdict(found), "good": found.good}), flush=True)
        if found.good:
            for folder in chosen.base.glob(f"{chosen.seed + number}*"):
                shutil.rmtree(folder, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
