"""What a site or a bad night does to a run: clocks that stop, disks that are full, other clusters,
descriptors that run out, jobs that nobody knows any more."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ensemble_slurm.commands import Done, query_environment
from ensemble_slurm.executor import _listen_option
from ensemble_slurm.job_state import JobStates
from ensemble_slurm.ledger import Ledger
from ensemble_slurm.loop import SlurmLoop
from ensemble_slurm.names import Batch
from ensemble_slurm.parse import SEPARATOR, Site
from ensemble_slurm.queue_poller import QueuePoller
from ensemble_slurm.script import Place, Scripts
from ensemble_slurm.spool import Spool

from ensemble_core import Event, Job, Run, UsageError

# -- the wrapper, run by a bash of this machine --------------------------------------------------


class Wrapped:
    """A job of one batch script, in a session of its own as slurmstepd would have it."""

    def __init__(self, folder: Path, *command: str, grace: float = 0.3, **more: Any) -> None:
        environment = more.pop("outer", {})
        self.folder = folder
        self.job = Job(id="sim.0", group="sim", index=0, command=command, **more)
        (folder / "reports").mkdir()
        writer = Scripts("melt-1", "t0ken", str(folder), str(folder), grace=grace)
        place = Place(str(folder), str(folder / "out"), str(folder / "err"))
        batch = Batch("melt-1", "k1", "sim", (0,))
        script = folder / "slurm_script"
        script.write_bytes(writer.write(batch, [(self.job, place)]))
        self.process = subprocess.Popen(
            ["bash", str(script)],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def family(self) -> list[int]:
        """All processes of its session."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError, IndexError):
                words = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(words[3]) == self.process.pid and words[0] != "Z":
                    found.append(int(entry.name))
        return found

    def signal(self, number: signal.Signals, *, but: Sequence[int] = ()) -> None:
        for pid in self.family():
            if pid not in but:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def wait(self) -> int:
        """Its exit code, once all that has its output open has ended."""
        self.process.communicate(timeout=20)
        return self.process.returncode

    def told(self) -> list[list[str]]:
        files = sorted((self.folder / "reports").iterdir())
        lines = [line for file in files for line in file.read_text().splitlines()]
        return sorted((line.split()[3:] for line in lines), key=lambda words: words[2] == "end")

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        self.process.communicate(timeout=20)


@pytest.fixture
def wrapped(tmp_path: Path) -> Iterator[Callable[..., Wrapped]]:
    made: list[Wrapped] = []

    def make(*command: str, **more: Any) -> Wrapped:
        made.append(Wrapped(tmp_path, *command, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def wait_for(done: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_time_that_a_job_is_suspended_is_not_its_own(wrapped: Callable[..., Wrapped]) -> None:
    job = wrapped("sh", "-c", "touch began; sleep 0.3; sleep 0.3", duration=2.0)
    wait_for((job.folder / "began").exists)
    job.signal(signal.SIGSTOP)
    time.sleep(2.3)
    job.signal(signal.SIGCONT)
    assert job.wait() == 0
    assert job.told()[-1][2:5] == ["end", "0", "-"]


def test_a_command_that_is_only_stopped_costs_no_core_and_has_not_ended(
    wrapped: Callable[..., Wrapped],
) -> None:
    job = wrapped("sh", "-c", "touch began; sleep 0.5; exit 3")
    wait_for((job.folder / "began").exists)
    job.signal(signal.SIGSTOP, but=[job.process.pid])
    time.sleep(0.1)
    before = _ticks(job.process.pid)
    time.sleep(1.0)
    assert _ticks(job.process.pid) - before < os.sysconf("SC_CLK_TCK") // 4
    assert [words[2] for words in job.told() if words[2] == "end"] == []
    job.signal(signal.SIGCONT)
    assert job.wait() == 3
    assert job.told()[-1][2:5] == ["end", "3", "-"]


def _ticks(pid: int) -> int:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


def test_a_job_that_heeds_its_time_limit_leaves_nothing_behind(
    wrapped: Callable[..., Wrapped],
) -> None:
    job = wrapped("sleep", "1000", duration=0.2, grace=600.0)
    assert job.wait() == 143
    wait_for(lambda: not job.family())


def test_a_job_that_slurm_starts_again_unasked_runs_nothing(
    wrapped: Callable[..., Wrapped],
) -> None:
    job = wrapped("touch", "ran", outer={"SLURM_RESTART_COUNT": "1"})
    assert job.wait() != 0
    assert job.told()[-1][1:4] == ["1", "fail", "requeued"]
    assert not (job.folder / "ran").exists()


def test_a_job_that_may_be_started_again_is(wrapped: Callable[..., Wrapped]) -> None:
    options = {"slurm": {"requeue": True}}
    job = wrapped("touch", "ran", outer={"SLURM_RESTART_COUNT": "1"}, options=options)
    assert job.wait() == 0
    assert (job.folder / "ran").exists()


def test_options_of_the_users_shell_are_not_the_wrappers(wrapped: Callable[..., Wrapped]) -> None:
    shell = {"SHELLOPTS": "braceexpand:errexit:nounset:allexport"}
    job = wrapped("sh", "-c", "env; exit 5", outer=shell)
    assert job.wait() == 5
    assert job.told()[-1][2:5] == ["end", "5", "-"]
    assert "t0ken" not in (job.folder / "out").read_text()


def test_a_script_has_no_line_end_of_dos_and_the_command_keeps_its_own(
    wrapped: Callable[..., Wrapped],
) -> None:
    job = wrapped("printf", "%s", "a\r\nb\r'\r")
    assert job.wait() == 0
    assert b"\r" not in (job.folder / "slurm_script").read_bytes()
    assert (job.folder / "out").read_bytes() == b"a\r\nb\r'\r"


# -- what slurmctld does not know ----------------------------------------------------------------


class Queue:
    """A poller's owner, with a ``squeue`` and a ``sacct`` of the test's own."""

    def __init__(self, accounted: str = "", queued: str = "") -> None:
        self.time = 1000.0
        self.queued = queued
        self.cancelled: list[str] = []
        self.accounted = accounted
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.states = JobStates("cancelled")
        self.states.expect("sim.0", {})
        self.states.accepted("sim.0", "7", self.time)
        self.poller = QueuePoller(self, self.states, Site(accounting=True), 30.0)
        self.poller.begin()

    def now(self) -> float:
        return self.time

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self.timers.append((self.time + seconds, what))

    def ask(self, words: Sequence[str], deadline: float, then: Callable[[Done], None]) -> None:
        then(Done(0, self.accounted if words[0] == "sacct" else self.queued, ""))

    def read_spool(self) -> None: ...

    def publish(self) -> None: ...

    def trouble(self, what: str | None, hint: str | None = None) -> None: ...

    def warn(self, message: str) -> None: ...

    def cancel_again(self, jobs: Sequence[str]) -> None:
        self.cancelled += jobs

    def run(self, seconds: float) -> None:
        end = self.time + seconds
        while (due := min(self.timers, key=lambda each: each[0]))[0] <= end:
            self.timers.remove(due)
            self.time = due[0]
            due[1]()
        self.time = end


def accounted(state: str) -> str:
    return SEPARATOR.join(("7", state, "0:0", "900", "950", "Unknown", "n1", "x", "")) + "\n"


def test_a_job_that_only_accounting_believes_to_run_is_lost_in_the_end() -> None:
    queue = Queue(accounted("RUNNING"))
    queue.run(50.0)
    assert "sim.0" in queue.states.jobs
    queue.run(300.0)
    assert [event.name for event in queue.states.take()].count("clean") == 1


def test_a_job_that_slurmctld_has_forgotten_ends_as_accounting_says() -> None:
    queue = Queue(accounted("TIMEOUT"))
    queue.run(50.0)
    events = {event.name: event.context for event in queue.states.take()}
    assert events["exception"]["type"] == "timeout"


def queued(state: str) -> str:
    fields = ("7", state, "None", "0", "0", "900", "950", "N/A", "n1", "x")
    return SEPARATOR.join(fields) + SEPARATOR + "\n"


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_a_cancel_that_a_crashed_slurmctld_forgot_is_made_again(state: str) -> None:
    queue = Queue(queued=queued(state))
    queue.states.cancelling("sim.0")
    queue.poller.soon()
    queue.run(15.0)
    assert queue.cancelled == []
    queue.run(15.0)
    assert queue.cancelled == ["sim.0"]


@pytest.mark.parametrize("state", ["COMPLETING", "RUNNING"])
def test_a_job_that_is_ending_or_was_not_cancelled_is_not_cancelled_again(state: str) -> None:
    queue = Queue(queued=queued(state))
    if state == "COMPLETING":
        queue.states.cancelling("sim.0")
    queue.poller.soon()
    queue.run(90.0)
    assert queue.cancelled == []


# -- the loop ------------------------------------------------------------------------------------


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Callable[..., SlurmLoop]]:
    made: list[SlurmLoop] = []

    def make(emit: Callable[[Sequence[Event]], None] = lambda _: None, **more: Any) -> SlurmLoop:
        run = Run("r-1", tmp_path, time.time, state=tmp_path)
        spool = Spool(str(tmp_path / "slurm"))
        scripts = Scripts("r-1", "t", spool.folder, str(tmp_path))
        options = {"listen": None, "look": 60.0, "rate": 50.0, "gauges": {}, **more}
        loop = SlurmLoop(
            run, emit, Site(), scripts, spool, Ledger(None, "r-1"), dict(os.environ), **options
        )
        loop.start()
        made.append(loop)
        return loop

    yield make
    for each in made:
        each.close()


def test_a_cancel_that_timed_out_for_one_job_is_tried_again_though_another_is_gone(
    loop: Callable[..., SlurmLoop],
) -> None:
    told: list[Event] = []
    cancelling = loop(told.extend)
    later: list[float] = []
    cancelling.after = lambda seconds, what: later.append(seconds)  # type: ignore[method-assign]
    said = (
        "scancel: error: Kill job error on job id 7: Invalid job id specified\n"
        "scancel: error: Kill job error on job id 8: Socket timed out on send/recv operation\n"
    )
    cancelling._cancelled(["7", "8"], Done(1, "", said))
    assert 3.0 in later


def test_a_listener_on_all_addresses_is_not_what_nodes_are_told(
    loop: Callable[..., SlurmLoop], tmp_path: Path
) -> None:
    loop(listen=("0.0.0.0", 0))
    _, *hosts = (tmp_path / "slurm" / "address").read_text().split()
    assert hosts
    assert "0.0.0.0" not in hosts
    assert socket.gethostname() in hosts


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("10.0.0.7", ("10.0.0.7", 0)), ("10.0.0.7:9000", ("10.0.0.7", 9000)),
        ("::1", ("::1", 0)), ("[::1]", ("::1", 0)), ("[::1]:9000", ("::1", 9000)),
        ("login1:9000", ("login1", 9000)), ("none", None), ("auto", ("", 0)),
    ],
)  # fmt: skip
def test_an_address_to_listen_on_is_read(said: str, meant: tuple[str, int] | None) -> None:
    assert _listen_option(said) == meant


def test_a_port_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError):
        _listen_option("10.0.0.7:http")


def test_jobs_are_looked_for_on_the_cluster_that_sbatch_is_told() -> None:
    assert query_environment({"SBATCH_CLUSTERS": "b"})["SLURM_CLUSTERS"] == "b"
    assert query_environment({"SLURM_CLUSTERS": "a"})["SLURM_CLUSTERS"] == "a"


def test_a_run_on_a_full_disk_ends_without_another_error() -> None:
    ledger = Ledger(None, "r")
    ledger._file = open("/dev/full", "a", encoding="utf-8")  # noqa: SIM115 -- the ledger closes it
    with pytest.raises(OSError, match="No space"):
        ledger.cancel(["sim.0"])
    ledger.close()


def test_connections_of_strangers_leave_descriptors_for_the_run() -> None:
    text = """
        import resource, socket, sys
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        from ensemble_slurm.event_loop import EventLoop
        from ensemble_slurm.listener import Listener
        event_loop = EventLoop(lambda: None, print)
        listener = Listener(event_loop.selector, "127.0.0.1", 0, lambda line: True)
        event_loop.start()
        print(listener.port, flush=True)
        sys.stdin.readline()
        files = [open("/dev/null") for _ in range(20)]
        print("well", flush=True)
        sys.stdin.readline()
        event_loop.post(listener.close)
        event_loop.stop()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        strangers = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(100)]
        strangers[-1].settimeout(10)
        assert strangers[-1].recv(1) == b""  # all before it were accepted, or turned away
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "well\n"
        process.stdin.write("\n")
        process.stdin.flush()
        for stranger in strangers:
            stranger.close()
    assert process.returncode == 0
