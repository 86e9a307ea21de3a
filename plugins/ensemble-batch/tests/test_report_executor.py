"""Tests of BatchExecutor with reports over the network, on a queue that loses answers.

Nothing runs twice and nothing is lost, even if nodes cannot reach this machine or see the run's
folder.
"""

from __future__ import annotations

import re
import socket
import subprocess
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from ensemble_batch import Batch, BatchExecutor, CannotTake, QueueJob, reattach, timing
from ensemble_batch.network_reports import VOIDED, ReportFolder
from ensemble_testing import Session, wait_until

from ensemble_core import ExecutorError, Job


class Node(BatchExecutor):
    """An in-memory queue. Jobs start at submission (``auto``) or by :meth:`begin`."""

    name = "node"
    claims: ClassVar[bool] = False
    explains: ClassVar[bool] = True
    lanes: ClassVar[Literal[1, 2]] = 2
    task_id = "$NODE_ID"
    task_restarts = "$RESTARTS"
    poll = 0.2
    listen = ("127.0.0.1", 0)

    def __init__(self) -> None:
        self.auto = True
        self.batches: dict[str, Batch] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        #: Ids that the queue does not list; number of answers to lose, and of batches to drop.
        self.hidden: set[str] = set()
        self.loses = self.misses = 0
        #: Ids that lists of jobs omit although the queue knows them, and whether lists are empty.
        self.unlisted: set[str] = set()
        self.blind = False
        #: Whether the queue can be asked about a single job.
        self.knows_jobs = True
        self.suspended: set[str] = set()
        self.restarts: dict[str, int] = {}
        self.ended: list[str] = []
        self.asked = 0
        self.gate: threading.Event | None = None
        self.remembers: Mapping[str, str] = {}
        self.looked = 0
        #: Answers of the accounting, which may be errors.
        self.accounts: list[list[str] | Exception] = []

    def begin(self, id_: str) -> None:
        """Start a job as the queue would."""
        self.processes[id_] = subprocess.Popen(
            ["bash", self.kept[id_]],
            start_new_session=True,
            env={
                "NODE_ID": id_,
                "PATH": "/bin",
                "RESTARTS": str(self.restarts.get(id_, 0)),
            },
        )

    def fault(self) -> Mapping[str, float]:
        raise ExecutorError("no nodes")

    @property
    def kept(self) -> dict[str, Path]:
        """Return the queue's copies of the scripts."""
        return {id_: self.folder / f"script.{id_}" for id_ in self.batches}

    folder = Path()

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        if self.gate is not None:
            self.gate.wait(60)
        if self.misses:
            self.misses -= 1
            raise CannotTake("no route to the queue")
        id_ = str(len(self.batches))
        self.batches[id_] = batch
        self.kept[id_].write_bytes(Path(batch.script).read_bytes())
        if self.loses:
            self.loses -= 1
            self.hidden.add(id_)
            raise CannotTake("no answer from the queue")
        if self.auto:
            self.begin(id_)
        return [id_]

    def ask(self, ids: Collection[str]) -> Iterable[QueueJob]:
        self.asked += 1
        yield from () if self.blind else (row for row in self.rows() if row.id not in self.unlisted)

    def rows(self) -> Iterator[QueueJob]:
        for id_ in self.batches.keys() - self.hidden:
            process, restarts = self.processes.get(id_), self.restarts.get(id_, 0)
            if process is None:
                yield QueueJob(id_, "waiting", restarts=restarts)
            elif process.poll() is None:
                state = "suspended" if id_ in self.suspended else "running"
                yield QueueJob(id_, state, began=time.time(), host="n1", restarts=restarts)  # type: ignore[arg-type]  # is narrower
            elif id_ in self.ended:
                yield QueueJob(id_, "over", status=15, exception="cancel", note="cancelled")
            else:
                code = process.returncode
                status = -code if code < 0 else code << 8
                failed = "exec" if code else None
                yield QueueJob(id_, "over", status, failed, began=time.time(), host="n1")

    def account(self, ids: Collection[str]) -> Iterable[QueueJob]:
        if self.knows_jobs:
            rows = {row.id: row for row in self.rows()}
            for id_ in ids:
                known = id_ in rows and id_ not in self.hidden
                yield rows[id_] if known else QueueJob(id_, "unknown")

    def find_batch(self, name: str, size: int) -> Sequence[str] | None:
        found = [id_ for id_, each in self.batches.items() if each.name == name]
        return found if found and not self.hidden & {*found} else None

    def find_ended_batch(self, name: str, size: int, age: float) -> Sequence[str] | None:
        found = self.accounts.pop(0) if self.accounts else None
        if isinstance(found, Exception):
            raise found
        if found is not None:
            self.hidden.clear()
        return found

    def find_jobs(self, run_id: str, age: float) -> Mapping[str, str]:
        self.looked += 1
        return self.remembers

    def end_jobs(self, ids: Collection[str]) -> None:
        for id_ in ids:
            self.ended.append(id_)
            if id_ in self.processes:
                self.processes[id_].terminate()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOON", "SOON_AGAIN", "AWAY", "FULL", "SHOWN"):
        monkeypatch.setattr(timing, name, 0.05)
    monkeypatch.setattr(timing, "SETTLE", 0.3)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node()
    node.folder = tmp_path
    yield node
    for process in node.processes.values():
        process.kill()
        process.wait(120)


def counted(session: Session, folder: Path, **fields: Any) -> Job:
    """Return a job that appends a line to ``ran`` each time it runs."""
    return session.job("sh", "-c", "echo x >> ran", workdir=str(folder), **fields)


def ran(folder: Path) -> int:
    return len((folder / "ran").read_text().split()) if (folder / "ran").exists() else 0


def test_an_end_is_known_at_once_without_asking_the_queue(node: Node, tmp_path: Path) -> None:
    node.poll = 600.0
    with Session(node, tmp_path) as session:
        job = session.job("sh", "-c", "exit 3")
        session.run(job)
        assert session.context(job, "finish")["status"] == 3 << 8
        assert "exception" not in session.names(job)
    assert node.asked == 0


@pytest.mark.parametrize("seen", [True, False])
def test_without_a_listener_an_end_is_known_from_files_or_from_the_queue(
    node: Node, tmp_path: Path, seen: bool
) -> None:
    node.listen = None  # type: ignore[assignment]  # an instance may have another than its class
    with Session(node, tmp_path) as session:
        job = session.job("sh", "-c", "sleep 0.3; exit 3")
        node.auto = False
        session.submit(job)
        session.wait_for(job, "priority")
        if not seen:  # nodes do not see the run's folder
            script = node.kept["0"]
            text, lines = re.subn("_ens_dir=.*", "_ens_dir=/proc/none", script.read_text())
            assert lines == 1
            script.write_text(text)
        node.begin("0")
        session.wait_clean(job)
        assert session.context(job, "finish")["status"] == 3 << 8
        assert ("exception" in session.names(job)) is not seen
        session.check_ended_once()


def test_a_cancelled_job_is_over_when_the_queue_says_so(node: Node, tmp_path: Path) -> None:
    with Session(node, tmp_path) as session:
        job = session.job("sleep", "600")
        session.submit(job)
        session.wait_for(job, "start")
        session.cancel(job)
        session.wait_clean(job)
        assert session.exception(job) == "cancel"
        assert session.context(job, "exception")["note"].startswith("cancelled by run")
    assert set(node.ended) == {"0"}


def test_the_queue_is_asked_while_a_batch_is_being_submitted(node: Node, tmp_path: Path) -> None:
    with Session(node, tmp_path) as session:
        first, second = session.job("sleep", "600"), session.job("true", group="b")
        session.submit(first)
        session.wait_for(first, "start")
        node.gate = threading.Event()
        session.submit(second)
        session.cancel(first)
        session.wait_clean(first)
        assert "submit" not in session.names(second)
        node.gate.set()
        session.wait_clean(second)


def test_a_submission_that_arrives_after_it_was_repeated_runs_nothing(
    node: Node, tmp_path: Path
) -> None:
    node.loses = 1
    with Session(node, tmp_path) as session:
        job = counted(session, tmp_path)
        session.run(job)
        node.begin("0")
        assert node.processes["0"].wait(120) == VOIDED
        session.check_ended_once()
    assert len(node.batches) == 2
    assert ran(tmp_path) == 1


@pytest.mark.parametrize("knows", [True, False])
def test_a_submission_is_repeated_with_a_warning_if_ended_jobs_are_not_known(
    node: Node, tmp_path: Path, knows: bool
) -> None:
    node.loses, node.knows_ended = 1, knows
    with Session(node, tmp_path) as session:
        session.run(counted(session, tmp_path))
        told = [text for text in session.problems() if "may run twice" in text]
    assert len(told) == (not knows)


def test_a_submission_that_began_before_it_was_given_up_is_kept(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue does not list the job, but the job reports."""
    monkeypatch.setattr(timing, "SETTLE", 120.0)  # the job reports before this
    node.loses = 1
    with Session(node, tmp_path) as session:
        job = counted(session, tmp_path)
        session.submit(job)
        wait_until(lambda: node.batches)
        node.begin("0")
        session.wait_clean(job)
    assert len(node.batches) == 1
    assert ran(tmp_path) == 1


def test_a_submission_is_not_repeated_while_the_disk_cannot_record_that_the_first_is_void(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [OSError(28, "No space left on device")] * 3
    void = ReportFolder.void

    def sometimes(spool: ReportFolder, name: str) -> None:
        if full:
            raise full.pop()
        void(spool, name)

    monkeypatch.setattr(ReportFolder, "void", sometimes)
    node.misses = 1
    with Session(node, tmp_path) as session:
        job = counted(session, tmp_path)
        session.run(job)
        assert sum("cannot write" in text for text in session.problems()) == 1
    assert not full
    assert ran(tmp_path) == 1


def test_a_job_that_runs_twice_ends_once(node: Node, tmp_path: Path) -> None:
    """The node does not see that the first attempt is void."""
    node.loses = 1
    with Session(node, tmp_path) as session:
        job = session.job("sleep", "600")
        session.submit(job)
        session.wait_for(job, "start")
        for path in (tmp_path / "state").rglob("void/*"):
            path.unlink()
        node.begin("0")
        session.wait(
            lambda: any("two submissions" in text for text in session.problems()), "a warning"
        )
        wait_until(lambda: node.ended == ["0"])
        assert "clean" not in session.names(job)
        session.cancel(job)
        session.wait_clean(job)


def later(node: Node, first: Session, folder: Path) -> Session:
    return Session(node, folder).resume(first)


def test_a_report_while_no_controller_ran_reaches_the_next_one(node: Node, tmp_path: Path) -> None:
    node.auto = False
    with Session(node, tmp_path) as first:
        job = counted(first, tmp_path)
        first.submit(job)
        first.wait_for(job, "priority")
    node.begin("0")
    node.processes["0"].wait(120)
    node.hidden.add("0")  # the queue has forgotten it
    with later(node, first, tmp_path) as second:
        assert node.reattach({job.id: 0.0}) == {job.id: True}
        second.wait_clean(job)
        assert second.context(job, "finish")["status"] == 0


@pytest.mark.parametrize("arrived", [True, False])
def test_a_submission_in_progress_is_found_or_invalidated(
    node: Node, tmp_path: Path, arrived: bool
) -> None:
    node.loses, node.auto = 1, False
    timing.SETTLE = 60.0
    with Session(node, tmp_path) as first:
        job = counted(first, tmp_path)
        first.submit(job)
        wait_until(lambda: node.batches)
    if arrived:
        node.hidden.clear()
    timing.SETTLE = 0.3
    with later(node, first, tmp_path) as second:
        assert node.reattach({job.id: 0.0}) == {job.id: arrived}
        node.begin("0")
        node.processes["0"].wait(120)
        if arrived:
            second.wait_clean(job)
    assert ran(tmp_path) == arrived


def test_a_cancelled_job_that_has_its_grace_is_not_over_because_a_list_omits_it(
    node: Node, tmp_path: Path
) -> None:
    node.grace = 600.0
    with Session(node, tmp_path) as session:
        command = f"trap 'echo x >> got' TERM; echo x >> ran; until [ -e {tmp_path}/end ]; do sleep 0.1; done; exit 3"
        job = session.job("sh", "-c", command, workdir=str(tmp_path))
        session.submit(job)
        session.wait_for(job, "start")
        wait_until(lambda: ran(tmp_path))
        node.blind, node.knows_jobs = True, False
        session.cancel(job)
        wait_until((tmp_path / "got").exists)
        asked = node.asked
        enough = asked + 2 * timing.MISSES
        wait_until(lambda: node.asked > enough or "clean" in session.names(job))
        assert "clean" not in session.names(job)
        (tmp_path / "end").touch()
        session.wait_clean(job)
        assert session.exception(job) == "cancel"
        assert session.context(job, "finish")["status"] == 3 << 8


class Arrays(Node):
    """The same queue with arrays. The reply to the first one is lost, and lists omit its jobs."""

    most_jobs = 10
    task_place = "$((${NODE_ID##*_} + 1))"

    def submit_batch(self, batch: Batch) -> Sequence[str]:
        ids = [f"{len(self.batches)}_{task}" for task in range(len(batch.jobs))]
        first = not self.batches
        for id_ in ids:
            self.batches[id_] = batch
            self.kept[id_].write_bytes(Path(batch.script).read_bytes())
        if first:
            self.blind = True
            self.begin(ids[0])
            raise CannotTake("no answer from the queue")
        for id_ in ids:
            self.begin(id_)
        return ids

    def find_batch(self, name: str, size: int) -> Sequence[str] | None:
        return None if self.blind else super().find_batch(name, size)

    def end_jobs(self, ids: Collection[str]) -> None:
        """Cancel nothing yet: a cancel of the copy may come too late."""


def test_a_repeated_submission_does_not_run_jobs_of_the_first_one_that_began(
    tmp_path: Path,
) -> None:
    node = Arrays()
    node.folder = tmp_path
    with Session(node, tmp_path) as session:
        end = tmp_path / "end"
        command = f"echo $ENSEMBLE_INDEX >> ran; until [ -e {end} ]; do sleep 0.1; done"
        jobs = [session.job("sh", "-c", command, workdir=str(tmp_path)) for _ in range(2)]
        session.submit(*jobs)
        session.wait_for(jobs[1], "start")
        node.blind = False
        wait_until(lambda: "2_0" in node.processes)
        copy = node.processes["2_0"]
        wait_until(lambda: copy.poll() is not None or ran(tmp_path) > 2)
        end.touch()
        for job in jobs:
            session.wait_clean(job)
            assert session.context(job, "finish")["status"] == 0
    assert (tmp_path / "ran").read_text().split() == ["0", "1"]


def test_a_cancelled_batch_without_a_reply_waits_for_its_jobs_that_began(tmp_path: Path) -> None:
    node = Arrays()
    node.folder = tmp_path
    with Session(node, tmp_path) as session:
        command = f"until [ -e {tmp_path}/end ]; do sleep 0.1; done"
        began, waiting = (session.job("sh", "-c", command) for _ in range(2))
        session.submit(began, waiting)
        session.wait_for(began, "start")
        session.cancel(began, waiting)
        session.wait_clean(waiting)
        assert session.exception(waiting) == "cancel"
        assert "finish" not in session.names(began)
        (tmp_path / "end").touch()
        session.wait_clean(began)
        assert session.context(began, "finish")["status"] == 0
    assert len(node.batches) == 2


@pytest.mark.parametrize("ended", [True, False])
def test_a_job_that_began_after_an_unanswered_submission_runs_once(
    node: Node, tmp_path: Path, ended: bool
) -> None:
    """The queue does not show the batch at the resume: the site has changed its name, or the queue
    has forgotten it.
    """
    node.loses, node.auto = 1, False
    timing.SETTLE = 60.0
    with Session(node, tmp_path) as first:
        wait = "" if ended else f"until [ -e {tmp_path}/end ]; do sleep 0.1; done"
        job = first.job("sh", "-c", f"echo x >> ran; {wait}", workdir=str(tmp_path))
        first.submit(job)
        wait_until(lambda: node.batches)
    node.begin("0")
    wait_until(lambda: node.processes["0"].poll() is not None if ended else ran(tmp_path))
    timing.SETTLE = 0.3
    with later(node, first, tmp_path) as second:
        assert node.reattach({job.id: 0.0}) == {job.id: True}
        (tmp_path / "end").touch()
        second.wait_clean(job)
        assert second.context(job, "finish")["status"] == 0
        assert second.queue_id(job) == "0"
    assert ran(tmp_path) == 1


@pytest.mark.parametrize("resumed", [True, False])
def test_a_job_that_ended_on_a_node_without_the_folder_runs_once(
    node: Node, tmp_path: Path, resumed: bool
) -> None:
    """Its submission got no answer, it could not report, and only the queue's accounting knows
    it. The accounting does not answer at first.
    """
    node.loses, node.auto = 1, False
    timing.SETTLE = 60.0
    with Session(node, tmp_path) as first:
        job = counted(first, tmp_path)
        first.submit(job)
        wait_until(lambda: node.hidden)
        script = node.kept["0"]
        unseen = re.sub("_ens_dir=.*", "_ens_dir=/proc/none", script.read_text())
        script.write_text(re.sub("_ens_port=.*", "_ens_port=0", unseen))
        node.begin("0")
        wait_until(lambda: node.processes["0"].poll() is not None)
        node.accounts = [CannotTake("the accounting does not answer"), ["0"]]
        timing.SETTLE = 0.3
        if not resumed:
            first.wait_clean(job)
    if resumed:
        with later(node, first, tmp_path) as second:
            assert node.reattach({job.id: 0.0}) == {job.id: True}
            second.wait_clean(job)
    assert ran(tmp_path) == 1
    assert len(node.batches) == 1
    assert not node.accounts


def test_a_job_that_begins_just_before_its_batch_is_given_up_runs_once(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report comes a moment later, while the resume waits."""
    node.loses, node.auto = 1, False
    timing.SETTLE = 60.0
    with Session(node, tmp_path) as first:
        job = counted(first, tmp_path)
        first.submit(job)
        wait_until(lambda: node.batches)
    timing.SETTLE = 0.0

    def sleep(seconds: float) -> None:
        if not node.processes:
            for path in (tmp_path / "state").rglob("void/*"):
                path.rename(tmp_path / "void")
                node.begin("0")
                node.processes["0"].wait(120)
                (tmp_path / "void").rename(path)

    with later(node, first, tmp_path) as second:
        monkeypatch.setattr(reattach.time, "sleep", sleep)
        found = node.reattach({job.id: 0.0})
        monkeypatch.undo()
        assert found == {job.id: True}
        second.wait_clean(job)
    assert ran(tmp_path) == 1


def test_a_job_without_a_record_is_found_by_its_name_in_the_queue(
    node: Node, tmp_path: Path
) -> None:
    """As after a power failure."""
    node.auto = False
    with Session(node, tmp_path) as first:
        job = counted(first, tmp_path)
        first.submit(job)
        first.wait_for(job, "priority")
    for path in (tmp_path / "state").rglob("records.jsonl"):
        path.write_text("")
    node.remembers = {job.id: "0"}
    with later(node, first, tmp_path) as second:
        assert node.reattach({job.id: 0.0, "t.99": 0.0}) == {job.id: True, "t.99": False}
        assert node.looked == 1
        node.begin("0")
        second.wait_clean(job)
        assert second.context(job, "finish")["status"] == 0
    assert ran(tmp_path) == 1


def test_an_unusable_address_is_an_error_with_a_hint(node: Node, tmp_path: Path) -> None:
    node.listen = ("192.0.2.1", 0)  # reserved for documentation
    with (
        pytest.raises(ExecutorError, match="cannot listen for") as caught,
        Session(node, tmp_path),
    ):
        pass
    assert caught.value.code == "no-port"
    assert "listen=none" in str(caught.value.hint)


def test_an_executor_that_could_not_be_opened_has_released_its_port(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        node.listen = probe.getsockname()
    with monkeypatch.context() as broken:
        broken.setattr(node, "nodes", lambda: node.fault())
        with pytest.raises(ExecutorError, match="no nodes"), Session(node, tmp_path):
            pass
    with Session(node, tmp_path) as session:
        session.run(session.job("true"))


def test_nodes_get_real_addresses_of_a_listener_on_all_addresses(
    node: Node, tmp_path: Path
) -> None:
    node.listen = ("0.0.0.0", 0)
    with Session(node, tmp_path):
        (path,) = tmp_path.rglob("address")
        _, *hosts = path.read_text().split()
    assert hosts
    assert "0.0.0.0" not in hosts
