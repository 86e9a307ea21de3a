"""Stops and kills controllers at random times, and resumes them until the end.

The controllers of each round get SIGTERM, SIGHUP, SIGINT or SIGKILL, sometimes two of them, while
functions run, retries wait, jobs are held, and rules with ``each`` and ``for`` count. With local
jobs, some signals go to every process of an allocation, also to the jobs. In some rounds on Flux,
each controller has an instance of its own, which ends with its allocation. Some rounds
call ``ensemble stop --cancel-jobs`` between two controllers, which gets signals, too. If its exit
code is 0, no process of a job may be left. The tables (``ensemble results``) must equal those of an
undisturbed run. Prints one line of JSON for each round, for ``scripts/soak.py``. A test uses this
module, too.

Imports would take most of the time. So only one controller in four is a new process, which a
signal may hit during imports. The others are forks of this process, after all imports.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from click.testing import CliRunner
from ensemble_testing.processes import Allocation, process_files

from ensemble_core.cli import end_at_ctrl_c
from ensemble_core.cli.command_group import FAULT
from ensemble_core.cli.main import main as ensemble

__all__ = ["main", "play_round", "undisturbed"]

#: Unblocks Ctrl-C after the start of Python: until then, Python sets the exit code.
BEGIN = """
import signal
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
from ensemble_core.cli.main import main
main()
"""
#: Starts a Flux instance that ends with its controller.
INSTANCE = ("flux", "start", "--test-size=2")
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL)
STUDY = """
name: stops
on_stop: {on_stop}
limits: {{submits_per_second: 200, jobs: 1000}}
logging: {{heartbeat: 0.3}}
jobs:
  - name: sim
    command: '{{here}}/sim.sh {{T}} {{replica}} {{attempt}}'
    parameters: {{T: [1, 2, 3]}}
    replicas: 2
    at_once: 4
    observe: {{json-lines: {{}}}}
    result: {{e: mean.e, m: max.e}}
    retry: {{times: 2, wait: 0.2s, when: exit_code == 3}}
  - name: post
    command: '{{here}}/sim.sh {{T}} 9 1'
    parameters: {{T: null}}
    observe: {{json-lines: {{}}}}
    result: {{e: last.e}}
  - {{name: more, command: '{{here}}/sim.sh {{x}} 8 1', parameters: {{x: null}},
     observe: {{json-lines: {{}}}}, result: {{e: last.e}}}}
custom: |
  import time
  def more(**kwargs):
      time.sleep(0.2)
      return Action({{"name": "submit", "label": "more", "with": {{"parameters": {{"x": 7}}}}}})
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}
  - {{id: each-T, trigger: idle, name: sim, each: [T], action: {{name: vary, label: post}}}}
  - {{id: ask, trigger: idle, name: sim, action: {{name: custom, label: more}}}}
  - {{id: held, trigger: heartbeat, for: 2, when: metric("count.sim.done") >= 1,
     action: {{name: log, message: looked}}}}
results:
  sim: {{of: sim, by: [T], columns: {{e: mean.e, m: max.m, tried: max.attempt, n: n}}}}
  post: {{of: post, by: [T], columns: {{e: mean.e, n: n}}}}
  more: {{of: more, by: [x], columns: {{e: mean.e, n: n}}}}
"""
#: Prints three rows within 0.3 s. The first attempts of jobs with T = 2 fail.
SIM = """#!/bin/sh
for row in 1 2 3; do
    echo "{\\"e\\": $(($1 * 100 + $2 * 10 + row))}"
    sleep 0.1
done
if [ "$1" = 2 ] && [ "$3" = 0 ]; then exit 3; fi
"""
TABLES = ("sim", "post", "more")


#: Exit codes after a signal.
INTERRUPTED = frozenset(code for n in SIGNALS for code in (-n, 128 + n))


def prepare(folder: Path, on_stop: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "ensemble.yaml").write_text(STUDY.format(on_stop=on_stop))
    (folder / "sim.sh").write_text(SIM)
    (folder / "sim.sh").chmod(0o755)
    return folder


def command(*words: str) -> tuple[int, str]:
    """Run a command in this process; return its exit code and its output without notes, or its
    errors.
    """
    done = CliRunner().invoke(ensemble, words, prog_name="ensemble")
    return done.exit_code, done.output if done.exit_code else done.stdout


def tables(folder: Path) -> dict[str, Any]:
    """Return the run's tables, with rows sorted because their order is random."""
    found = {}
    for name in TABLES:
        code, printed = command("results", "last", name, "--json", "--state", f"{folder}/state")
        if code:
            raise RuntimeError(printed)
        found[name] = sorted(json.loads(printed), key=json.dumps)
    return found


def words_of(folder: Path, executor: str, options: Sequence[str]) -> list[str]:
    # The queue identifies runs by their tags, so each round needs its own.
    tag = f"stops-{zlib.crc32(bytes(folder)):08x}"
    same = ["--tag", tag, "--or-resume", "--state", "state", "--quiet"]
    return ["run", "ensemble.yaml", "--executor", executor, *options, *same]


class Controller:
    """Running controller, with output to the file ``said``: a new process or a fork of this one."""

    def __init__(self, folder: Path, words: Sequence[str], said: Path, *, program: bool) -> None:
        # Blocked until the controller has its own handler of Ctrl-C.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        self.code: int | None = None
        self._process = os.fork()
        if not self._process:
            _become(folder, words, said, program)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def ended(self, within: float) -> bool:
        """Return whether the controller ends in time.

        ``code`` is then its exit code, or minus the number of a signal.
        """
        deadline = time.monotonic() + within
        while self.code is None:
            process, status = os.waitpid(self._process, os.WNOHANG)
            if process:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                return False
            else:
                time.sleep(0.01)
        return True

    def send(self, number: signal.Signals) -> None:
        if not self.ended(0):
            os.kill(self._process, number)


class Allocated:
    """A controller in an allocation of its own; signals go to every process of it."""

    def __init__(
        self,
        folder: Path,
        words: Sequence[str],
        said: Path,
        chance: random.Random,
        before: Sequence[str] = (),
    ) -> None:
        with said.open("wb") as output:
            command = [*before, sys.executable, "-c", BEGIN, *words]
            self._allocation = Allocation(command, folder, None, output)
        self._chance = chance
        self.code: int | None = None

    def ended(self, within: float) -> bool:
        """Return whether the allocation's last process ends in time. ``code`` is then set."""
        with contextlib.suppress(AssertionError):
            self.code = self._allocation.wait_over(within)
        return self.code is not None

    def send(self, number: signal.Signals) -> None:
        """End the allocation as a queue does at its time limit: SIGTERM, and SIGKILL later.

        Without a SIGTERM, running jobs would rightly be lost.
        """
        self._allocation.end(self._chance, signal.SIGTERM)
        if number is signal.SIGKILL:
            self.ended(100)
            self._allocation.kill()


def _become(folder: Path, words: Sequence[str], said: Path, program: bool) -> NoReturn:
    """Turn this process, a fork, into a controller."""
    code: object = FAULT
    try:
        os.chdir(folder)
        output = os.open(said, os.O_WRONLY | os.O_CREAT)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        if program:
            os.execv(sys.executable, [sys.executable, "-c", BEGIN, *words])
        # As in a new process: a Ctrl-C before the command line handles it ends the process.
        signal.signal(signal.SIGINT, end_at_ctrl_c)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        ensemble(words, prog_name="ensemble")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 0)


def undisturbed(folder: Path, executor: str, options: Sequence[str]) -> dict[str, Any]:
    """Return the tables of an undisturbed run."""
    prepare(folder, "keep")
    controller = Controller(
        folder, words_of(folder, executor, options), folder / "said", program=True
    )
    if not controller.ended(300) or controller.code:
        raise RuntimeError((folder / "said").read_text())
    return tables(folder)


def disturb(controller: Controller | Allocated, chance: random.Random) -> list[str]:
    """Wait for a random time, and end the controller; return the signals sent."""
    if controller.ended(chance.uniform(0.1, 2.0)):
        return []
    sent = [chance.choice(SIGNALS)]
    if chance.random() < 0.2:
        sent.append(chance.choice((signal.SIGTERM, signal.SIGINT, signal.SIGKILL)))
    for at, number in enumerate(sent):
        if at:
            time.sleep(chance.uniform(0.3, 0.8))
        controller.send(number)
    return [number.name for number in sent]


def cancel_jobs(folder: Path, said: Path, tag: str, chance: random.Random) -> list[str]:
    """Cancel the jobs that a controller left; a signal may interrupt this. Return the errors."""
    words = ["stop", tag, "--cancel-jobs", "--state", "state"]
    controller = Controller(folder, words, said, program=False)
    if chance.random() < 0.3:
        disturb(controller, chance)
    if not controller.ended(300):
        controller.send(signal.SIGKILL)
        controller.ended(300)
        return ["a stop with --cancel-jobs did not end within 300 s"]
    told = said.read_text()
    if controller.code == 0 and (there := processes(folder)):
        return [f"--cancel-jobs ended with 0, but processes {there} are left: {told}"]
    begun = controller.code != 2 or "there is no run" in told or "before its first event" in told
    fine = controller.code in {0, 2, 75, *INTERRUPTED} and begun
    return [] if fine else [f"--cancel-jobs ended with {controller.code}: {told}"]


def processes(folder: Path) -> list[int]:
    """Return the processes of the round's jobs."""
    script = os.fsencode(folder / "sim.sh")
    return [pid for pid, command in process_files("cmdline") if script in command]


def play_round(
    folder: Path, seed: int, executor: str, options: Sequence[str], expected: dict[str, Any]
) -> dict[str, Any]:
    """Play one round, and return its errors by kind."""
    chance = random.Random(seed)
    prepare(folder, chance.choice(("keep", "cancel")))
    killed: list[str] = []
    code: int | None = 0
    other: list[str] = []
    nested = executor == "flux" and chance.random() < 0.5
    for number in range(40):
        said = folder / f"said-{number}"
        words = words_of(folder, executor, options)
        controller: Controller | Allocated
        if nested:
            controller = Allocated(folder, words, said, chance, INSTANCE)
            killed.append("instance:")
        elif executor == "local" and number < 8 and chance.random() < 0.4:
            controller = Allocated(folder, words, said, chance)
            killed.append("allocation:")
        else:
            controller = Controller(folder, words, said, program=not number % 4)
        if number < 8:
            killed += disturb(controller, chance)
        if not controller.ended(300):
            controller.send(signal.SIGKILL)
            controller.ended(300)
            other.append(f"controller {number} did not end within 300 s")
            break
        code = controller.code
        if code not in INTERRUPTED:
            break
        if number < 8 and chance.random() < 0.4:
            tag = words[words.index("--tag") + 1]
            other += cancel_jobs(folder, folder / f"said-cancel-{number}", tag, chance)
            killed.append("--cancel-jobs")
    if code and not other:
        other.append(f"the last controller ended with {code}: {said.read_text()[-2000:]}")
    try:
        found = tables(folder)
        wrong = [name for name in TABLES if found[name] != expected[name]]
        other += [f"table {name}: {found[name]} and not {expected[name]}" for name in wrong]
        failed, printed = command("replay", "last", "--state", f"{folder}/state")
        differences = [printed] if failed else []
    except RuntimeError as error:
        other.append(str(error))
        differences = []
    good = not other and not differences
    if good:
        shutil.rmtree(folder)
    return {
        "seed": seed, "good": good, "killed": killed, "jobs": 10, "lost": [], "doubled": [],
        "fired_again": [], "replay_differences": differences, "other": other,
    }  # fmt: skip


def rounds(
    base: Path, seed: int, count: int, executor: str, options: Sequence[str]
) -> Iterator[dict[str, Any]]:
    expected = undisturbed(base / f"undisturbed-{seed}", executor, options)
    for each in range(seed, seed + count):
        yield play_round(base / f"round-{each}", each, executor, options, expected)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--on", default="local", help="the executor")
    parser.add_argument("options", nargs="*", help="of ensemble run, after --")
    chosen = parser.parse_args()
    os.environ.pop("ENSEMBLE_STATE", None)
    # This process may ignore signals (nohup, "&"), but controllers must handle them.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    good = True
    given = chosen.base.absolute(), chosen.seed, chosen.rounds, chosen.on, chosen.options
    for found in rounds(*given):
        good = good and found["good"]
        print(json.dumps(found), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
