"""Program that kills parts of pilots and their controllers, and prints a line of JSON per run.

    plugins/ensemble-pilot/tests/kills.py --seed 7 --rounds 3 -- -o queue=slurm
    plugins/ensemble-pilot/tests/kills.py -- -o inside=flux -o nodes=2

Arguments after ``--`` are options of ``ensemble run``. Each run has jobs that hold a lock while
they run, so that two of the same job are seen. It is disturbed several times, and resumed until it
is over. All jobs must end with success, each attempt at most once, and no process may be left. The
exit code is 1 if a check failed. The variable ``KILLS_JOBS`` has the number of jobs of a run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ensemble_testing.crash.__main__ import leftover_processes
from ensemble_testing.crash.rounds import Round
from ensemble_testing.processes import process_files

JOBS = int(os.environ.get("KILLS_JOBS", "12"))
#: Jobs are run again if a pilot has taken them along: by a retry, as the study's author decides.
FILE = f"""
logging: {{heartbeat: 0}}
jobs:
  - name: work
    count: {JOBS}
    command: [sh, "{{here}}/job.sh", "{{id}}"]
    retry: {{times: 50, when: cause == "preempted" or cause == "lost"}}
rules:
  - {{trigger: start, action: {{name: submit, label: work}}}}
  - {{id: failed, trigger: job-fail, repetitions: unlimited, action: {{name: log, message: "{{job}}"}}}}
"""
JOB = """cd "$(dirname "$0")"
exec 9>"lock.$ENSEMBLE_INDEX"
flock -n 9 || echo "$1" >> together
echo "$1" >> ran
sleep 0.$(($$ % 10))
sleep 0.2
echo "$1" >> done
"""
#: The same with jobs of two nodes: each task holds a lock, and the first one counts.
FLUX = FILE.replace("count:", "nodes: 2\n    tasks: 2\n    count:")
FLUX_JOB = JOB.replace("$ENSEMBLE_INDEX", "$ENSEMBLE_INDEX.$FLUX_TASK_RANK").replace(
    'echo "$1" >> ran', '[ "$FLUX_TASK_RANK" = 0 ] || { sleep 1; exit; }\necho "$1" >> ran'
)
OPTIONS = (
    *("--executor", "pilot", "-o", "cores=2", "-o", "most=3", "-o", "idle=2"),
    *("-o", "orphan=2", "-o", "grace=0.3"),
)
#: Seconds within which a run must be over, and no process left.
_PATIENCE, _LEAVING = 900.0, 60.0


class Stage:
    """A run and its processes."""

    def __init__(self, folder: Path, options: Sequence[str], chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        folder.mkdir(parents=True)
        inside = "inside=flux" in options
        (folder / "e.yaml").write_text(FLUX if inside else FILE)
        (folder / "job.sh").write_text(FLUX_JOB if inside else JOB)
        self.tag = f"kills-{os.getpid()}-{folder.name}"
        self.controller = self._start("run", "e.yaml", "--tag", self.tag, *options)
        #: When stopped processes continue.
        self.stopped: list[tuple[float, int]] = []
        #: Nodes that Slurm was told to be down.
        self.down: list[str] = []

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ensemble_core.cli", *words, "--state", "state"]
        with (self.folder / "said").open("ab") as said:
            said.write(f"== {' '.join(words)}\n".encode())
            said.flush()
            return subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )

    def said(self) -> str:
        return (self.folder / "said").read_text().rpartition("\n== ")[2]

    def resume(self) -> None:
        self.controller = self._start("resume", self.tag)

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().split() if path.exists() else []

    def parts(self) -> tuple[list[int], list[int], list[int]]:
        """Return the tasks of pilots, their supervisors, and the supervisor of the outer queue."""
        tasks: list[int] = []
        supervisors: list[int] = []
        outer: list[int] = []
        place = str(self.folder / "state").encode()
        for pid, text in process_files("cmdline"):
            words = text.split(b"\0")
            if b"ensemble_pilot.node" in words and place in text:
                tasks.append(pid)
            elif b"supervisor import main" in text and self.tag.encode() in text:
                (supervisors if words[-2].endswith(b"/fence") else outer).append(pid)
        return tasks, supervisors, outer

    def family(self, first: int) -> list[int]:
        """Return a process and its descendants."""
        children: dict[int, list[int]] = {}
        for pid, stat in process_files("stat"):
            children.setdefault(int(stat.rpartition(b")")[2].split()[1]), []).append(pid)
        found, todo = [], [first]
        while todo:
            found.append(todo[0])
            todo += children.get(todo.pop(0), ())
        return found

    def send(self, number: int, *pids: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    # The disturbances. Each returns False if there is nothing to disturb.

    def task(self) -> bool:
        tasks = self.parts()[0]
        self.send(signal.SIGKILL, *self.chance.sample(tasks, min(1, len(tasks))))
        return bool(tasks)

    def supervisor(self) -> bool:
        supervisors = self.parts()[1]
        self.send(signal.SIGKILL, *self.chance.sample(supervisors, min(1, len(supervisors))))
        return bool(supervisors)

    def drain(self) -> bool:
        """End a supervisor by SIGTERM, as a queue that signals each process."""
        supervisors = self.parts()[1]
        self.send(signal.SIGTERM, *self.chance.sample(supervisors, min(1, len(supervisors))))
        return bool(supervisors)

    def term(self) -> bool:
        """End a task by SIGTERM, as a queue that signals the first process."""
        tasks = self.parts()[0]
        self.send(signal.SIGTERM, *self.chance.sample(tasks, min(1, len(tasks))))
        return bool(tasks)

    def _all(self, number: int) -> bool:
        tasks = self.parts()[0]
        for task in self.chance.sample(tasks, min(1, len(tasks))):
            family = self.family(task)
            self.chance.shuffle(family)
            self.send(number, *family)
        return bool(tasks)

    def term_all(self) -> bool:
        return self._all(signal.SIGTERM)

    def kill_all(self) -> bool:
        return self._all(signal.SIGKILL)

    def node(self) -> bool:
        """A node that hangs: its processes stop, the task is gone, and they continue later."""
        tasks, _, _ = self.parts()
        for task in self.chance.sample(tasks, min(1, len(tasks))):
            family = self.family(task)
            self.send(signal.SIGSTOP, *family)
            self.send(signal.SIGKILL, task)
            when = time.monotonic() + self.chance.uniform(0.5, 3.0)
            self.stopped += [(when, pid) for pid in family]
        return bool(tasks)

    def pause_task(self) -> bool:
        """A task that hangs for a while, on a node that works otherwise."""
        tasks = self.parts()[0]
        for task in self.chance.sample(tasks, min(1, len(tasks))):
            self.send(signal.SIGSTOP, task)
            self.stopped.append((time.monotonic() + self.chance.uniform(0.5, 4.0), task))
        return bool(tasks)

    def cut(self) -> bool:
        """End all connections between nodes and the controller."""
        addresses = list(self.folder.glob("state/runs/*/executor/link/address.json"))
        if not addresses or not shutil.which("ss"):
            return False
        port = json.loads(addresses[0].read_text())["addresses"][0][1]
        words = ["ss", "-K", "dport", "=", str(port)]
        told = subprocess.run(words, capture_output=True, check=False).stdout
        return b"ESTAB" in told

    def kill_controller(self) -> bool:
        if self.controller.poll() is not None:
            return False
        self.controller.kill()
        self.controller.wait()
        return True

    def everything(self) -> bool:
        """The controller, and one pilot while there is none."""
        there = self.kill_controller()
        self._all(signal.SIGKILL)
        return there

    def outer(self) -> bool:
        """The outer queue and the controller: this machine's queue has lost its jobs."""
        outer = self.parts()[2]
        self.kill_controller()
        self.send(signal.SIGKILL, *outer)
        return bool(outer)

    def scancel(self) -> bool:
        return bool(self._in_slurm(lambda job, _: ["scancel", job]))

    def node_down(self) -> bool:
        """Slurm declares a node down while the pilot's processes run on it."""
        node = self._in_slurm(
            lambda _, node: ["scontrol", "update", f"nodename={node}", "state=down", "reason=test"],
            before=lambda node: self.send(signal.SIGSTOP, *self._slurmd(node)),
        )
        when = time.monotonic() + self.chance.uniform(2.0, 5.0)
        self.stopped += [(when, pid) for pid in (self._slurmd(node) if node else ())]
        if node:
            self.down.append(node)
        return bool(node)

    def queue_away(self) -> bool:
        """Slurm's controller does not answer for a while."""
        conf = os.environ["SLURM_CONF"].encode()
        daemons = [
            pid
            for pid, text in process_files("cmdline")
            if text.startswith(b"slurmctld\0") and conf in text.split(b"\0")
        ]
        self.send(signal.SIGSTOP, *daemons)
        when = time.monotonic() + self.chance.uniform(1.0, 8.0)
        self.stopped += [(when, pid) for pid in daemons]
        return bool(daemons)

    @staticmethod
    def _slurmd(node: str) -> list[int]:
        """Return the daemon of a node of this Slurm, which ``SLURM_CONF`` names."""
        wanted = {b"-N", node.encode(), os.environ["SLURM_CONF"].encode()}
        return [pid for pid, text in process_files("cmdline") if wanted.issubset(text.split(b"\0"))]

    def _in_slurm(
        self,
        command: Callable[[str, str], list[str]],
        before: Callable[[str], None] = lambda node: None,
    ) -> str:
        """Run a command on a running job of this run's pilots. Return its node."""
        words = ["squeue", "-h", "-t", "running", "-o", "%i %N %Z"]
        told = subprocess.run(words, capture_output=True, text=True, check=False).stdout
        jobs = [
            words for line in told.splitlines() if str(self.folder) in (words := line.split())[2]
        ]
        if not jobs:
            return ""
        job, node, _ = self.chance.choice(jobs)
        before(node)
        subprocess.run(command(job, node), capture_output=True, check=False)
        return node

    def tick(self) -> None:
        for when, pid in list(self.stopped):
            if time.monotonic() >= when:
                self.stopped.remove((when, pid))
                self.send(signal.SIGCONT, pid)
        if self.down and not self.stopped:
            for node in self.down:
                words = ["scontrol", "update", f"nodename={node}", "state=resume"]
                subprocess.run(words, capture_output=True, check=False)
            self.down.clear()


KINDS: tuple[Callable[[Stage], bool], ...] = (
    *(Stage.task, Stage.supervisor, Stage.drain, Stage.term, Stage.term_all, Stage.kill_all),
    *(Stage.node, Stage.kill_controller, Stage.everything, Stage.pause_task, Stage.cut),
)
#: Those that depend on the outer queue.
LOCAL: tuple[Callable[[Stage], bool], ...] = (Stage.outer,)
SLURM: tuple[Callable[[Stage], bool], ...] = (Stage.scancel, Stage.node_down, Stage.queue_away)
#: Those in which the end of a job may be seen by nobody.
UNSEEN = {"supervisor", "kill_all", "everything"}


def play(
    folder: Path,
    options: Sequence[str],
    kinds: Sequence[Callable[[Stage], bool]],
    round_: Round,
) -> None:
    """Run an ensemble with some disturbances, resume it until it is over, and check it."""
    chance = random.Random(f"pilot {round_.seed}")
    stage = Stage(folder, options, chance)
    left = chance.choice((1, 2, 3, 4))
    early = chance.random() < 0.3
    due = None
    end = time.monotonic() + _PATIENCE
    try:
        while True:
            stage.tick()
            code = stage.controller.poll()
            if code is not None:
                said = stage.said()
                if code == 2 and ("no run" in said or "killed before its first event" in said):
                    round_.killed.append("too early")
                    return
                # A resume while the queue is away is an error, and is tried again.
                again = "'ensemble resume" in said or "does not answer" in said
                if code != -signal.SIGKILL and (code == 0 or not again):
                    break
                time.sleep(chance.choice((0.0, 0.5, 3.0)))
                stage.resume()
            if due is None and (stage.parts()[0] if early else stage.lines("ran")):
                due = time.monotonic() + chance.uniform(0.0, 1.5)
            if left and due is not None and time.monotonic() > due:
                kind = chance.choice(kinds)
                if kind(stage):
                    round_.killed.append(kind.__name__)
                    left -= 1
                    due = time.monotonic() + chance.uniform(0.2, 3.0)
            if time.monotonic() > end:
                stage.send(signal.SIGABRT, stage.controller.pid)
                stage.controller.wait()
                round_.other.append(f"not over within {_PATIENCE:g} s: {stage.said()[-2000:]}")
                break
            time.sleep(0.01)
        check(stage, round_)
    finally:
        for _, pid in stage.stopped:
            stage.send(signal.SIGCONT, pid)


def check(stage: Stage, round_: Round) -> None:
    said = stage.said()[-2000:]
    # It may have been killed after it had ended.
    if stage.controller.returncode != 0 and "has ended, with exit code 0" not in said:
        round_.other.append(f"exit code {stage.controller.returncode}: {said}")
    ran, done = Counter(stage.lines("ran")), Counter(stage.lines("done"))
    round_.jobs = len(ran)
    round_.doubled += [f"{job} ran {count} times" for job, count in ran.items() if count > 1]
    if "node_down" not in round_.killed:  # there, a retry may run beside what still runs
        round_.doubled += [f"{job} ran beside itself" for job in stage.lines("together")]
    finished = {name.partition("~")[0].rpartition(".")[2].partition("-")[0] for name in done}
    round_.lost += sorted(str(n) for n in range(JOBS) if str(n) not in finished)
    end = time.monotonic() + 30.0  # what is stopped may be in the way until it continues
    while (stage.stopped or stage.down) and time.monotonic() < end:
        stage.tick()
        time.sleep(0.05)
    leaving = leftover_processes(stage.folder, stage.tag, _LEAVING)
    round_.other += [f"left behind: {each}" for each in leaving]
    words = ["status", stage.tag, "--json", "--state", "state"]
    command = [sys.executable, "-m", "ensemble_core.cli", *words]
    told = subprocess.run(command, cwd=stage.folder, capture_output=True, text=True, check=False)
    try:
        (group,) = json.loads(told.stdout)["report"]["groups"]
    except (ValueError, KeyError) as error:
        round_.other.append(f"status: {error}: {told.stderr}")
        return
    causes = {"preempted", "lost"} if UNSEEN.intersection(round_.killed) else {"preempted"}
    wrong = group["causes"].keys() - causes or group["cancelled"]
    if wrong or group["success"] != JOBS:
        round_.other.append(f"status: {group}")


def rounds(
    base: Path,
    options: Sequence[str],
    seed: int,
    count: int,
    kinds: Sequence[Callable[[Stage], bool]],
) -> Iterator[Round]:
    for number in range(seed, seed + count):
        round_ = Round("pilot", number)
        folder = base / f"pilot-{number}"
        play(folder, options, kinds, round_)
        if round_.good:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            round_.other.append(f"see {folder}")
        yield round_


def main() -> int:
    """Run the rounds that the command line requests."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--base", type=Path)
    every = (*KINDS, *LOCAL, *SLURM)
    parser.add_argument("--kinds", nargs="+", choices=[kind.__name__ for kind in every])
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    chosen, options = parser.parse_args(words[:end]), words[end + 1 :]
    base = (chosen.base or Path(tempfile.mkdtemp(prefix="kills-"))).absolute()
    if "queue=slurm" not in options:
        options += ["-o", 'options={"slots": 12, "pool": "none"}']
    kinds = (*KINDS, *(SLURM if "queue=slurm" in options else LOCAL))
    if chosen.kinds:
        kinds = tuple(kind for kind in every if kind.__name__ in chosen.kinds)
    good = True
    for each in rounds(base, (*OPTIONS, *options), chosen.seed, chosen.rounds, kinds):
        good = good and each.good
        print(json.dumps({**vars(each), "good": each.good}), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
