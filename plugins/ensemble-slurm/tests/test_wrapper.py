"""The wrapper of a job, run by a bash of this machine: suspended, out of time, started again by Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ensemble_batch import Place
from ensemble_slurm.names import Batch
from ensemble_slurm.script import Scripts
from ensemble_testing import wait_until

from ensemble_core import Job


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
        self.process.communicate(timeout=150)
        return self.process.returncode

    def told(self) -> list[list[str]]:
        files = sorted((self.folder / "reports").iterdir())
        lines = [line for file in files for line in file.read_text().splitlines()]
        return sorted((line.split()[3:] for line in lines), key=lambda words: words[2] == "end")

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        self.process.communicate(timeout=150)


@pytest.fixture
def wrapped(tmp_path: Path) -> Iterator[Callable[..., Wrapped]]:
    made: list[Wrapped] = []

    def make(*command: str, **more: Any) -> Wrapped:
        made.append(Wrapped(tmp_path, *command, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_the_time_that_a_job_is_suspended_is_not_its_own(wrapped: Callable[..., Wrapped]) -> None:
    job = wrapped("sh", "-c", "touch began; sleep 0.3; sleep 0.3", duration=2.0)
    wait_until((job.folder / "began").exists)
    job.signal(signal.SIGSTOP)
    time.sleep(2.3)
    job.signal(signal.SIGCONT)
    assert job.wait() == 0
    assert job.told()[-1][2:5] == ["end", "0", "-"]


def test_a_command_that_is_only_stopped_costs_no_core_and_has_not_ended(
    wrapped: Callable[..., Wrapped],
) -> None:
    job = wrapped("sh", "-c", "touch began; sleep 0.5; exit 3")
    wait_until((job.folder / "began").exists)
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
    wait_until(lambda: not job.family())


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
