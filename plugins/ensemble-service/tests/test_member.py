"""Tests with members, service and controllers in separate processes, some of which are killed.

Every job must run once, with each of its events once and in order.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ensemble_service.agent import Agent
from ensemble_service.client import open_channel
from ensemble_service.server import Settings, serving
from ensemble_service.tokens import TokenFile
from ensemble_testing.printed_output import printed_ensemble, wrong_answers
from ensemble_testing.processes import Allocation, free_ports

from ensemble_core.cli.main import main
from ensemble_core.local.executor import LocalExecutor

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "two-members.yaml"
ENSEMBLE = [sys.executable, "-m", "ensemble_core.cli"]
SERVER = [sys.executable, "-c", "from ensemble_service.commands.server import main; main()"]
#: Names of the events of every job that runs, in order.
LIFE = ["submit", "depend", "priority", "alloc", "start", "finish", "clean"]


class World:
    """A service and its clients, each in a process. ``stop`` ends the remaining ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self._stack = contextlib.ExitStack()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = 0
        self.move()
        tokens = TokenFile(folder / "service" / "tokens.json")
        self.controller, _ = tokens.add("controller", "default")
        self.member = {name: tokens.add("member", name)[0] for name in ("left", "right")}

    def move(self) -> None:
        """Choose a new port for the service. Restarts keep it."""
        earlier = self.port
        while self.port == earlier:
            (self.port,) = free_ports(1)

    def start(self, name: str, command: list[str], token: str = "") -> None:
        environment = {**os.environ, "ENSEMBLE_STATE": str(self.state), "ENSEMBLE_TOKEN": token}
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if name.startswith("run") else log,
                stderr=log,
            )

    def serve(self, *members: str) -> None:
        """Run a service and members in this process, for tests that kill neither."""
        settings = Settings(state=self.folder / "service", port=self.port)
        self._stack.enter_context(serving(settings))
        for name in members:
            agent = Agent(
                f"default/{name}",
                lambda: LocalExecutor(slots=2, grace=0.5),
                self.state / "members" / "default" / name,
                partial(open_channel, "127.0.0.1", self.port, token=self.member[name]),
                "service",
            )
            agent.start()
            self._stack.callback(agent.stop)
            assert agent.wait_connected(60)

    def server(self) -> None:
        state = str(self.folder / "service")
        self.start("server", [*SERVER, "start", "--port", str(self.port), "--state", state])

    def agent(self, name: str, *options: str) -> None:
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--name", f"default/{name}"]
        command = [*ENSEMBLE, "member", "start", "--executor", "local", *options, *where]
        self.start(name, command, self.member[name])

    def run(self, file: Path, *options: str, name: str = "run") -> None:
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        command = [*ENSEMBLE, "run", "--executor", "remote", *where, "--json", *options, str(file)]
        self.start(name, command, self.controller)

    def resume(self, *options: str, name: str = "run-again") -> None:
        self.start(name, [*ENSEMBLE, "resume", "last", "--json", *options], self.controller)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        process = self.processes.pop(name)
        process.send_signal(number)
        process.wait(60)

    def finish(self, name: str = "run") -> tuple[int, list[dict[str, Any]]]:
        """Wait for a controller to exit. Return its exit code and output."""
        process = self.processes.pop(name)
        try:
            out, _ = process.communicate(timeout=150)
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail(f"the run does not end:\n{self.logs()}")
        return process.returncode, [json.loads(line) for line in out.splitlines()]

    def logs(self) -> str:
        texts = [f"-- {log.name}\n{log.read_text()}" for log in sorted(self.folder.glob("*.log"))]
        return "\n".join(texts)

    def until(self, done: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                pytest.fail(f"{what}: not within {seconds:g} s\n{self.logs()}")
            time.sleep(0.02)

    def connected(self, name: str, times: int = 1) -> None:
        log = self.folder / f"{name}.log"
        self.until(
            lambda: log.exists() and log.read_text().count("is connected to") >= times,
            f"{name} connects",
        )

    def ran(self) -> Counter[str]:
        """Return how often each job of :func:`ensemble` started, from the jobs' files."""
        return Counter(
            line
            for file in (self.folder / "ran").glob("*")
            for line in file.read_text().splitlines()
        )

    def let_end(self, count: int) -> None:
        """Let this many jobs of :func:`ensemble` end, those with the lowest indexes."""
        file = self.folder / "may-end.new"
        file.write_text(str(count))
        file.replace(self.folder / "may-end")

    def ended(self) -> int:
        """Return how many of the first jobs of :func:`ensemble` have ended."""
        return len(os.listdir(self.folder / "ended"))

    def command(self, *words: str) -> Result:
        """Call a command of ``ensemble`` in this process."""
        environment = {"ENSEMBLE_STATE": str(self.state), "ENSEMBLE_TOKEN": self.controller}
        return CliRunner().invoke(main, words, env=environment)

    def events(self) -> list[dict[str, Any]]:
        """Return all job events of the newest run, from its journal."""
        done = self.command("events", "last", "--json")
        assert done.exit_code == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return [line for line in lines if line["type"] == "job"]

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()
        self._stack.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    (tmp_path / "ran").mkdir()
    (tmp_path / "ended").mkdir()
    try:
        yield world
    finally:
        world.stop()


def ensemble(world: World, count: int = 8, seconds: float = 0.3) -> Path:
    """Write an ensemble whose jobs record their starts. Each job triggers another.

    The first jobs also wait for World.let_end, and record their ends.
    """
    world.let_end(count)
    waits = f"while [ $(cat {world.folder}/may-end) -le {{index}} ]; do sleep 0.1; done"
    text = f"""
jobs:
  - name: first
    command: >-
      sh -c 'echo {{id}} >> {world.folder}/ran/{{id}}; {waits}; sleep {seconds};
      touch {world.folder}/ended/{{id}}'
    count: {count}
  - name: second
    command: sh -c 'echo {{id}} >> {world.folder}/ran/{{id}}; sleep 0.1'
rules:
  - {{trigger: start, action: {{name: submit, label: first}}}}
  - {{trigger: job-success, name: first, repetitions: {count}, action: {{name: submit, label: second}}}}
"""
    file = world.folder / "ensemble.yaml"
    file.write_text(text)
    return file


def check(world: World, count: int = 8) -> None:
    """Check that every job ran once and has each event once and in order."""
    names = {f"{group}.{index}" for group in ("first", "second") for index in range(count)}
    assert world.ran() == Counter(names)
    lives: dict[str, list[str]] = {}
    times: dict[str, list[float]] = {}
    for event in world.events():
        times.setdefault(event["job"], []).append(event["timestamp"])
        if event["name"] in LIFE:
            lives.setdefault(event["job"], []).append(event["name"])
        assert event["name"] != "exception", event
    assert lives == dict.fromkeys(names, LIFE)
    for job, when in times.items():
        assert when == sorted(set(when)), job


def test_a_killed_and_restarted_service_loses_and_repeats_nothing(world: World) -> None:
    world.server()
    world.agent("left", "-o", "slots=2")
    world.connected("left")
    file = ensemble(world)
    world.let_end(0)
    world.run(file)
    world.until(lambda: len(world.ran()) >= 2, "jobs run")
    world.kill("server")
    world.let_end(8)
    world.until(lambda: world.ended() >= 2, "jobs continue")
    world.server()
    code, _ = world.finish()
    assert code == 0, world.logs()
    check(world)


def test_a_killed_agent_finds_its_jobs_again(world: World) -> None:
    world.serve()
    world.agent("left", "-o", "slots=2")
    world.connected("left")
    file = ensemble(world)
    world.let_end(0)
    world.run(file)
    for number, how in ((2, signal.SIGKILL), (4, signal.SIGTERM)):
        world.until(lambda number=number: len(world.ran()) >= number, "jobs run")  # type: ignore[misc]
        world.kill("left", how)
        world.let_end(number)
        world.until(lambda number=number: world.ended() >= number, "jobs continue")  # type: ignore[misc]
        world.agent("left", "-o", "slots=2")
    world.let_end(8)
    code, _ = world.finish()
    assert code == 0, world.logs()
    check(world)


TWO_MEMBERS = """
logging: {{heartbeat: 0}}
jobs:
  - {{name: a, executor: left, count: 20, command: &job "sh -c '{command}'"}}
  - {{name: b, executor: right, count: 20, command: *job}}
rules:
  - {{trigger: start, action: {{name: submit, label: a}}}}
  - {{trigger: start, action: {{name: submit, label: b}}}}
"""
#: What makes an agent believe that it runs in an allocation, and which processes get SIGTERM.
ENDS = [
    *(({}, ""), ({}, "again"), ({"SLURM_JOB_ID": "1"}, ""), ({"PBS_JOBID": "1"}, "member start")),
    *(({"FLUX_URI": ""}, ""), ({"FLUX_URI": ""}, "member start")),
]
IDS = ["all", "again", "slurm", "pbs-agent", "flux", "flux-agent"]


def flux() -> str:
    """Return the path of ``flux``. Without Flux, skip the test."""
    folder = Path(os.environ.get("ENSEMBLE_FLUX_PREFIX", ""), "bin")
    found = shutil.which("flux", path=f"{folder}{os.pathsep}{os.environ['PATH']}")
    if found is None or importlib.util.find_spec("ensemble_flux") is None:
        pytest.skip("no Flux: 'flux' is not on the PATH and ENSEMBLE_FLUX_PREFIX is not set")
    return found


@pytest.mark.parametrize(("variables", "who"), ENDS, ids=IDS)
def test_the_next_allocation_runs_what_the_end_of_the_last_one_left(
    world: World, variables: dict[str, str], who: str, request: pytest.FixtureRequest
) -> None:
    world.serve()
    file, ran = world.folder / "two.yaml", world.folder / "ran"
    command = f"echo {{id}} >> {ran}/{{id}}; sleep 0.4; touch {ran}/{{id}}.end"
    file.write_text(TWO_MEMBERS.format(command=command))
    environment = {**os.environ, **variables, "ENSEMBLE_STATE": str(world.state)}
    service = ["--host", "127.0.0.1", "--port", str(world.port)]
    executor, before = ["local", "-o", "slots=2", "-o", "grace=1"], []
    if "FLUX_URI" in variables:  # an instance, in which the agent is the program
        executor, before = ["flux"], [flux(), "start"]
        environment["PATH"] = f"{Path(before[0]).parent}{os.pathsep}{os.environ['PATH']}"
        del environment["FLUX_URI"]
    chance = random.Random(request.node.name)
    with contextlib.ExitStack() as stack, open(world.folder / "agents.log", "ab") as log:

        def allocations() -> Iterator[Allocation]:
            for name, token in world.member.items():
                words = ["--name", f"default/{name}", "--executor", *executor, *service]
                command = [*before, *ENSEMBLE, "member", "start", *words]
                token_of = {**environment, "ENSEMBLE_TOKEN": token}
                allocation = Allocation(command, world.folder, token_of, log)
                stack.callback(allocation.kill)
                yield allocation

        first = list(allocations())
        world.connected("agents", 2)
        world.run(file)
        world.until(lambda: len(world.ran()) >= 8, "jobs run", 100)
        for each in first:
            if who == "member start":
                processes = each.processes().items()
                agents = [pid for pid, line in processes if who in line and "broker" not in line]
                each.send(agents)
            else:
                each.end(chance)
        codes = [each.wait_over() for each in first]
        assert codes == [0, 0] or before  # a broker exits with 143
        assert len(list(ran.glob("*.end"))) < 40
        list(allocations())
        code, _ = world.finish()
    assert code == 0, world.logs()
    status = json.loads(world.command("status", "last", "--json").stdout)
    for group in status["report"]["groups"]:
        assert (group["success"], group["failed"], group["cancelled"]) == (20, 0, 0)
    assert len(list(ran.glob("*.end"))) == 40


def test_a_run_without_its_member_can_be_stopped_and_cancelled_after_the_members_return(
    world: World,
) -> None:
    world.serve()
    world.agent("left", "-o", "slots=2", "-o", "grace=0.5")
    world.connected("left")
    world.run(ensemble(world, seconds=600))
    world.until(lambda: len(world.ran()) >= 2, "jobs run")
    world.kill("left")
    assert world.command("cancel", "last", "--no-wait").exit_code == 0
    left = world.command("cancel", "last", "--leave")
    assert left.exit_code == 0, left.stderr
    assert "ensemble resume" in left.stdout
    world.finish()
    again = world.command("cancel", "last", "--leave")
    assert again.exit_code == 2
    assert "--leave does not apply" in again.stderr
    world.agent("left", "-o", "slots=2", "-o", "grace=0.5")
    ended = world.command("cancel", "last")
    assert ended.exit_code == 0, ended.stderr + world.logs()
    lives = [event["name"] for event in world.events()]
    assert lives.count("clean") == 8


def test_all_three_are_killed_at_once_and_the_service_returns_elsewhere(world: World) -> None:
    world.server()
    world.agent("left", "-o", "slots=2")
    world.connected("left")
    file = ensemble(world)
    world.let_end(0)
    world.run(file)
    world.until(lambda: len(world.ran()) >= 2, "jobs run")
    for name in ("run", "server", "left"):
        world.kill(name)
    world.move()
    # The controller starts first and waits for the member.
    world.server()
    world.resume("--port", str(world.port))
    world.let_end(8)
    world.until(lambda: world.ended() >= 2, "jobs continue")
    world.agent("left", "-o", "slots=2")
    code, _ = world.finish("run-again")
    assert code == 0, world.logs()
    check(world)


def test_the_example_runs_across_two_members(world: World) -> None:
    world.serve("left", "right")
    world.run(EXAMPLE)
    code, lines = world.finish()
    assert code == 0, world.logs()
    groups = {group["name"]: group["success"] for group in lines[-1]["groups"]}
    assert groups == {
        "sim-left": 3,
        "sim-right": 3,
        "analyse-left": 3,
        "analyse-right": 3,
        "report": 1,
    }
    # Each job ran on the member of its group.
    for line in lines:
        if line["type"] == "job" and line["name"] == "start":
            side = "right" if "right" in line["job"] else "left"
            assert f"/members/default/{side}/" in line["context"]["at_member"]["stdout"]


def test_two_runs_on_one_member_share_its_slots(world: World) -> None:
    world.serve()
    world.agent("left", "-o", "slots=2")
    world.connected("left")
    log = world.folder / "at-once"
    text = f"""
jobs:
  - name: work
    command: sh -c 'echo + >> {log}; sleep 0.2; echo - >> {log}'
    count: 10
rules:
  - {{trigger: start, action: {{name: submit, label: work}}}}
"""
    file = world.folder / "shared.yaml"
    file.write_text(text)
    world.run(file, name="run-1")
    world.run(file, name="run-2")
    for name in ("run-1", "run-2"):
        assert world.finish(name)[0] == 0, world.logs()
    running = most = 0
    for sign in log.read_text().split():
        running += 1 if sign == "+" else -1
        most = max(most, running)
    assert (running, most) == (0, 2)
    assert log.read_text().split().count("+") == 20


def test_what_a_members_jobs_print_is_read_as_on_this_machine(world: World) -> None:
    world.serve()
    world.agent("left", "-o", "slots=2")
    world.connected("left")
    world.run(printed_ensemble(world.folder, named=True))
    _, lines = world.finish()
    assert wrong_answers(lines, named=True) == [], (lines, world.logs())
