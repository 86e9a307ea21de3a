"""Each example, run as a user would run it, does what its first lines promise.

A ``*.yaml`` file in ``examples/`` without an entry in ``PROMISES`` fails.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from jsonschema_rs import validator_for

from ensemble_core.cli.main import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RULE_TESTS = sorted(EXAMPLES.rglob("*.ensemble-test.yaml"))
FILES = sorted({*EXAMPLES.glob("*.yaml")}.difference(RULE_TESTS))
COMMAND = [sys.executable, "-m", "ensemble_core.cli"]

#: Search path of an activated environment.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

needs_lammps_plugin = pytest.mark.skipif(
    importlib.util.find_spec("ensemble_lammps") is None,
    reason="no plugin: pip install ensemble-lammps to test this example",
)
needs_minicluster = pytest.mark.skipif(
    importlib.util.find_spec("ensemble_minicluster") is None,
    reason="no plugin: pip install ensemble-minicluster to test this example",
)
needs_lammps = pytest.mark.skipif(
    shutil.which("lmp", path=PATH) is None,
    reason="no lmp on the PATH: pip install 'lammps[mpi]' to test this example",
)
needs_mpiexec = pytest.mark.skipif(
    shutil.which("mpiexec", path=PATH) is None,
    reason="no mpiexec on the PATH: pip install 'lammps[mpi]' to test this example",
)
LAMMPS = (pytest.mark.checkout, needs_lammps_plugin, needs_lammps)


@dataclass
class Ran:
    """A run of an example: its exit code, JSON lines, stderr, and start folder."""

    code: int
    lines: list[dict[str, Any]]
    errors: str
    folder: Path
    #: Whether the run had the options ``fewer`` of its promise.
    fewer: bool = False
    #: Whether the controller was killed: the last lines that it printed may be lost.
    killed: bool = False

    @property
    def summary(self) -> dict[str, Any]:
        return self.lines[-1]

    @cached_property
    def fired(self) -> dict[str, int]:
        """Number of firings of each rule that fired."""
        return dict(Counter(line["rule"] for line in self.lines if line["type"] == "fired"))

    @cached_property
    def never(self) -> set[str]:
        """Rules that the summary reports as never fired."""
        return {rule["id"] for rule in self.summary["rules"] if not rule["fired"]}

    @cached_property
    def submits(self) -> list[tuple[str, int]]:
        """Group and number of jobs of each submit that a rule decided."""
        return [
            (line["group"], len(line["jobs"]))
            for line in self.lines
            if line["type"] == "submit" and line["rule"] is not None
        ]

    @cached_property
    def groups(self) -> dict[str, tuple[int, int, int]]:
        """Number of successful, failed and cancelled jobs of each group."""
        return {
            group["name"]: (group["success"], group["failed"], group["cancelled"])
            for group in self.summary["groups"]
        }

    @cached_property
    def messages(self) -> list[str]:
        return [line["message"] for line in self.lines if line["type"] == "log"]

    @cached_property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """Submitted jobs by id."""
        return {
            job["id"]: job
            for line in self.lines
            if line["type"] == "submit"
            for job in line["jobs"]
        }

    def cancelled(self) -> list[str]:
        """Return the ids of jobs that rules cancelled."""
        return [
            job
            for line in self.lines
            if line["type"] == "cancel" and line["rule"] is not None
            for job in line["jobs"]
        ]

    def place(self, kind: str, **fields: object) -> int:
        """Return the index of the first line of this kind with these fields."""
        for number, line in enumerate(self.lines):
            if line["type"] == kind and fields.items() <= line.items():
                return number
        raise AssertionError(f"there is no {kind} with {fields}")

    def events(self, job: str) -> list[str]:
        """Return the names of a job's events in order."""
        return [line["name"] for line in self.lines if line.get("job") == job and "name" in line]

    def rows(self) -> list[tuple[str, dict[str, float]]]:
        """Return each observed row with its job."""
        return [(line["job"], line["values"]) for line in self.lines if line["type"] == "observed"]

    def output(self, job: str) -> str:
        """Return a job's output."""
        return (Path(self.summary["output"]) / f"{job}.out").read_text()


@dataclass(frozen=True)
class Promise:
    """Expected result of an example, as its first lines promise it."""

    check: Callable[[Ran], None]
    options: Sequence[str] = ()
    code: int = 0
    #: Names or patterns of files that the example leaves in its start folder.
    litter: Iterable[str] = ()
    marks: Sequence[pytest.MarkDecorator] = field(default_factory=tuple)
    #: Whether it is also killed and resumed: for state other than jobs and counts.
    killed: bool = False
    #: Options that reduce the number of jobs of the killed run.
    fewer: Sequence[str] = ()


def surroundings(folder: Path, path: str = PATH) -> dict[str, Any]:
    """Return the arguments of ``subprocess`` for an example."""
    environment = {**os.environ, "PATH": path, "ENSEMBLE_STATE": str(folder / "state")}
    for name in ("NO_COLOR", "FORCE_COLOR", "ENSEMBLE_DEBUG"):
        environment.pop(name, None)
    (folder / "here").mkdir(exist_ok=True)
    return {
        "cwd": folder / "here",
        "env": environment,
        "text": True,
        "stdin": subprocess.DEVNULL,
    }


def words(file: Path, folder: Path, *options: str) -> list[str]:
    return [*COMMAND, "run", "--json", "--output", str(folder / "kept"), *options, str(file)]


def run(
    file: Path, folder: Path, *options: str, path: str = PATH
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words(file, folder, *options),
        capture_output=True,
        timeout=240,
        **surroundings(folder, path),
    )


def command(folder: Path, *arguments: str) -> Result:
    """Run a command on the runs of this folder, in this process."""
    return CliRunner().invoke(main, [*arguments, "--state", str(folder / "state")])


def check_report(folder: Path, state: str) -> None:
    """Check that the run's report can be written and its data is valid."""
    if importlib.util.find_spec("ensemble_dashboard") is None:
        return
    from ensemble_dashboard.documents import schema

    page = folder / "report.html"
    done = command(folder, "report", "last", "-o", str(page), "--json")
    assert done.exit_code == 0, done.output
    found = re.search(r'id="data">(.*?)</script>', page.read_text(), re.S)
    assert found
    data = json.loads(found[1])
    assert [str(each) for each in validator_for(schema()).iter_errors(data)] == []
    assert (data["overview"]["state"], data["overview"]["problem"]) == (state, "")
    done = command(folder, "jobs", "last", "--json")
    assert data["jobs"]["total"] == len(json.loads(done.stdout))


# Checks of the promises.


def hello_world(ran: Ran) -> None:
    assert ran.fired == {"rule-1": 1, "rule-2": 1}
    assert ran.submits == [("sleep", 5), ("echo", 5)]
    assert ran.groups == {"sleep": (5, 0, 0), "echo": (5, 0, 0)}
    assert ran.lines[ran.place("fired", rule="rule-2")]["value"] == 3
    finished = [
        line["job"]
        for line in ran.lines[: ran.place("submit", group="echo")]
        if line.get("name") == "finish"
    ]
    assert len(finished) == 3
    assert ran.summary["natural"] is True
    assert ran.output("echo.4") == "hello world\n"


def terminate(ran: Ran) -> None:
    assert ran.fired == {"rule-1": 1, "rule-2": 1, "rule-3": 1}
    assert ran.submits == [("sleep", 5), ("echo", 5), ("watch", 1)]
    assert ran.groups == {"sleep": (5, 0, 0), "echo": (5, 0, 0), "watch": (0, 0, 1)}
    end = ran.lines[ran.place("terminate")]
    assert (end["cancel"], end["exit_code"], end["natural"]) == (["watch.0"], 0, False)
    assert ran.events("watch.0")[-1] == "clean"


def backoff(ran: Ran) -> None:
    assert ran.fired == {"rule-1": 1, "each": 3, "every-third": 3, "later": 2}
    good = {name: good for name, (good, _, _) in ran.groups.items()}
    assert good == {"sleep": 7, "each": 6, "every-third": 3, "later": 2}
    finishes: list[tuple[str, float]] = []
    at: dict[str, list[int]] = {}
    when: list[float] = []
    for line in ran.lines:
        if line.get("name") == "finish" and line["job"].startswith("sleep."):
            finishes.append((line["job"], line["timestamp"]))
        elif line["type"] == "fired" and line["label"] == "job-finish (sleep)":
            assert line["job"] == finishes[-1][0]
            at.setdefault(line["rule"], []).append(len(finishes))
            if line["rule"] == "later":
                when.append(finishes[-1][1])
    assert at["each"] == [1, 2, 3]
    assert at["every-third"] == [1, 4, 7]
    assert at["later"][0] == 1
    waited = [moment for _, moment in finishes if moment - when[0] >= 0.3]
    assert when[1] == waited[0]


def heartbeat(ran: Ran) -> None:
    # On a slow machine, the second beat may already find it late.
    beats = ran.fired.pop("beat")
    assert beats in (2, 3)
    assert ran.fired == {"rule-1": 1, "waited-too-long": 1}
    assert ran.submits == [("held", 1), ("instead", 1)]
    assert ran.groups == {"held": (0, 0, 1), "instead": (1, 0, 0)}
    assert ran.cancelled() == ["held.0"]
    assert "start" not in ran.events("held.0")
    late = ran.place("fired", rule="waited-too-long")
    assert ran.lines[late]["value"] > 0.6
    before = ran.lines[late - 1]
    assert (before["type"], before["timer"]) == ("timer", "heartbeat")
    assert ran.messages == ["beat"] * beats


def grow_shrink(ran: Ran) -> None:
    resumed = any(line["type"] == "resume" for line in ran.lines)
    # If all jobs have ended before the resume, the second growth is not requested.
    once = resumed and ran.fired["too-slow"] == 1
    denied = {} if once else {"denied": 1}
    assert ran.fired == {"rule-1": 1, "too-slow": 2 - once, "done": 1, "granted": 2, **denied}
    asked = [
        line["delta"]
        for line in ran.lines
        if line["type"] == "resize" and "delta" in line and line["attempt"] == 1
    ]
    told = [
        (line["outcome"], line["size"])
        for line in ran.lines
        if line["type"] == "resize-outcome" and "outcome" in line
    ]
    assert asked == ([3, -3] if once else [3, 3, -3])
    assert [one for one in told if one != ("denied", 4)] == [("granted", 4), ("granted", 1)]
    assert len(told) == len(asked)
    assert ran.groups == {"sleep": (8, 0, 0)}
    if not resumed:
        # After a kill, the answer may come with the repeated request, when more jobs have started
        # or ended.
        assert most_at_once(ran, before=ran.place("resize-outcome", outcome="granted")) == 1
        assert most_at_once(ran) == 4
    assert most_at_once(ran) <= 4
    said = [message for message in ran.messages if not message.startswith("mock ")]
    assert said[0] == "4 at a time now"
    assert said[-1] == "1 at a time now"


def minicluster(ran: Ran) -> None:
    more = ran.fired["more"]  # it fires on waiting times, so the machine's speed decides
    assert 1 <= more <= 3
    assert ran.fired == {"rule-1": 1, "more": more, "rest": 1, "granted": more + 1}
    assert ran.never == {"denied", "late"}
    told = [
        (line["outcome"], line["size"])
        for line in ran.lines
        if line["type"] == "resize-outcome" and "outcome" in line
    ]
    assert told == [("granted", size) for size in (*range(2, more + 2), 1)]
    assert ran.groups == {"sim": (10, 0, 0)}
    assert ran.messages[-1] == "1 nodes now"


def most_at_once(ran: Ran, before: int | None = None) -> int:
    running = most = 0
    for line in ran.lines[:before]:
        if line["type"] == "job":
            running += {"start": 1, "finish": -1}.get(line["name"], 0)
            most = max(most, running)
    return most


def custom_action(ran: Ran) -> None:
    assert ran.fired == {"begin": 1, "again": 3, "enough": 1}
    assert ran.submits == [("echo", 1), ("echo", 1), ("echo", 1), ("done", 1)]
    assert ran.groups == {"echo": (3, 0, 0), "done": (1, 0, 0)}
    assert ran.lines[ran.place("add-rule")]["id"] == "enough"
    calls = [line for line in ran.lines if line["type"] == "call"]
    names = [line["name"] for line in calls if line["attempt"] == 1]
    assert names == ["plan_the_end", *["echo_again"] * 3]
    # With --json, functions print to stderr. A call without a recorded result is repeated.
    assert ran.errors.count("once more") <= 2 + len(calls) - len(names)
    assert ran.killed or ran.errors.count("once more") >= 2


def parameter_sweep(ran: Ran) -> None:
    assert ran.fired == {"begin": 1, "refine": 1, "collect": 1}
    assert ran.submits == [("sweep", 6), ("sweep", 2), ("collect", 1)]
    assert ran.groups == {"sweep": (8, 0, 0), "collect": (1, 0, 0)}
    cause = ran.jobs[ran.lines[ran.place("fired", rule="refine")]["job"]]["parameters"]
    assert cause == {"T": 1.5, "P": 10}
    coarse = [(T, P) for T in (0.5, 1.0, 1.5) for P in (1, 10)]
    values = [*coarse, (1.4, 10), (1.6, 10)]
    wanted = [f"T={T:g} P={P} seed={seed}" for seed, (T, P) in enumerate(values)]
    (folder,) = (ran.folder / "runs").iterdir()
    assert [(folder / f"{n}" / "result.txt").read_text().strip() for n in range(8)] == wanted
    assert sorted(ran.output("collect.0").splitlines()) == sorted(wanted)


def failure_handling(ran: Ran) -> None:
    assert ran.fired == {
        "begin": 1,
        "retry": 2,
        "hopeless": 1,
        "too-slow": 1,
        "all-over": 1,
        "end": 1,
    }
    assert ran.never == {"give-up"}
    assert ran.groups == {
        "flaky": (1, 2, 0),
        "broken": (0, 1, 0),
        "slow": (0, 1, 0),
        "depends": (0, 0, 2),
        "cleanup": (1, 0, 0),
    }
    codes = {
        line["job"]: os.waitstatus_to_exitcode(line["context"]["status"])
        for line in ran.lines
        if line.get("name") == "finish"
    }
    assert [codes[job] for job in ("flaky.0", "flaky.0-1", "flaky.0-2")] == [75, 75, 0]
    assert codes["broken.0"] == 2
    assert sorted(ran.cancelled()) == ["depends.0", "depends.1"]
    # The clean-up starts after all other jobs.
    last = ran.place("submit", group="cleanup")
    for job in ("flaky.0-2", "broken.0", "slow.0", "depends.0", "depends.1"):
        assert ran.place("job", job=job, name="clean") < last
    assert ran.lines[ran.place("terminate")]["rule"] == "end"
    assert "license server is busy" in ran.errors


def json_lines(ran: Ran) -> None:
    assert ran.fired == {"begin": 1, "diverges": 2, "converged": 3, "first": 1}
    assert ran.submits == [("descend", 5)]
    assert ran.groups == {"descend": (3, 0, 2)}
    rates = [ran.jobs[job]["parameters"]["rate"] for job in ran.cancelled()]
    assert sorted(rates) == [1.1, 1.2]
    for job in ran.cancelled():
        rows = [
            row["values"] for row in ran.lines if row["type"] == "observed" and row["job"] == job
        ]
        assert rows[10]["step"] == 10
        assert len(rows) < 1000  # cancelled long before its end
    assert len([text for text in ran.messages if "converged" in text]) == 3


def lammps_melt(ran: Ran) -> None:
    assert ran.fired == {"begin": 1, "too-hot": 1, "melted": 1, "cooled": 1}
    assert ran.never == {"failed"}
    assert ran.submits == [("melt", 4), ("cool", 1)]
    assert ran.groups == {"melt": (3, 0, 1), "cool": (1, 0, 0)}
    assert [ran.jobs[job]["parameters"]["T"] for job in ran.cancelled()] == [3.4]
    assert ran.lines[ran.place("fired", rule="melted")]["value"] > 0.5
    rows = Counter(line["job"] for line in ran.lines if line["type"] == "observed")
    assert rows["melt.1"] == 41  # every 50th step from 0 to 2000
    assert rows["cool.0"] == 21


def lammps_sweep(ran: Ran) -> None:
    assert ran.fired == {"begin": 1, "diverges": 1, "conserves": 4}
    assert ran.never == {"failed"}
    assert ran.submits == [("md", 4), ("md", 1)]
    (diverged,) = ran.cancelled()
    assert ran.jobs[diverged]["parameters"] == {"T": 2.0, "dt": 0.014}
    assert ran.jobs["md.4"]["parameters"] == {"T": 2.0, "dt": 0.007}
    # While the controller is dead, the diverging job may end.
    good, bad, cancelled = ran.groups["md"]
    assert (good + cancelled, bad) == (5, 0)
    assert cancelled <= 1
    for job, values in ran.rows():
        drift, allowed = abs(values.get("v_drift", 0.0)), 0.05 * ran.jobs[job]["parameters"]["T"]
        assert drift <= allowed or job == diverged


def lammps_converge(ran: Ran) -> None:
    seeds = 1 if ran.fewer else 2
    jobs = 2 * seeds
    assert ran.fired == {"begin": 1, "settled": jobs, "go-on": jobs, "known": jobs}
    assert ran.never == {"never-settled", "failed"}
    assert ran.submits == [("equilibrate", jobs), *[("production", 1)] * jobs]
    assert ran.groups == {"equilibrate": (0, 0, jobs), "production": (0, 0, jobs)}
    begun_from = set()
    for job in (job for job in ran.jobs.values() if job["group"] == "production"):
        restart = Path(job["command"][job["command"].index("restart") + 1])
        assert restart.parent.parent.name == "equilibrate"
        before = ran.jobs[f"equilibrate.{restart.parent.name}"]
        assert before["parameters"] == job["parameters"]
        begun_from.add(before["id"])
    assert len(begun_from) == jobs
    told = [re.findall(r"[\d.]+", text) for text in ran.messages if "pressure" in text]
    for temperature, expected in (("1.5", 5.2), ("2", 7.5)):
        replicas = [
            (float(mean), float(error)) for t, _, mean, error, _ in told if t == temperature
        ]
        assert len(replicas) == seeds
        assert all(error <= 0.1 for _, error in replicas)
        assert all(abs(mean - expected) < 0.5 for mean, _ in replicas)


def lammps_bisect(ran: Ran) -> None:
    tried = [job["parameters"] for job in ran.jobs.values()]
    assert [job["T"] for job in tried[:3]] == [0.8, 0.6, 0.7]
    assert len(tried) == 4
    assert sum(ran.groups["probe"]) == 4
    low, high = 0.4, 1.2
    for job_id, job in ran.jobs.items():
        tried_between = job["parameters"]
        assert (tried_between["low"], tried_between["high"]) == (low, high)
        fired = [
            line["rule"]
            for line in ran.lines
            if line["type"] == "fired" and line["job"] == job_id and line["rule"] != "begin"
        ]
        rows = [values for j, values in ran.rows() if j == job_id]
        if fired[0].endswith("melted"):
            assert max(values["c_msd[4]"] for values in rows) > 0.5
            high = tried_between["T"]
        else:
            assert rows[-1]["Step"] == 2000
            assert max(values["c_msd[4]"] for values in rows) <= 0.5
            low = tried_between["T"]
        assert len(fired) == 1
    assert sum(ran.fired.values()) == 5
    assert ran.messages[-1] == f"a crystal at {low}, melted at {high}"
    assert 0.6 <= low < high <= 0.8
    assert high - low <= 0.05 + 1e-9


def lammps_restart(ran: Ran) -> None:
    links = len(ran.jobs)
    assert ran.fired == {"begin": 1, "next": links}
    assert ran.groups == {"chain": (links, 0, 0)}
    assert ran.messages[-1] == f"chain.{links - 1} has completed the chain at step 12000"
    reached = 0.0
    for link in range(links):
        steps = [
            values["Step"]
            for job, values in ran.rows()
            if job == f"chain.{link}" and "Step" in values
        ]
        assert steps[0] == reached, "each step is computed once"
        assert steps == sorted(steps)
        reached = steps[-1]
    assert reached == 12000


def lammps_shape(ran: Ran) -> None:
    speed = {job: values.get("StepsPerSecond") for job, values in ran.rows()}
    one, two = speed["trial-one.0"], speed["trial-two.0"]
    assert one is not None
    assert two is not None
    too_wide = two < 1.5 * one
    expected = {"begin": 1, "and-two": 1, "work": 1}
    assert ran.fired == (expected | {"too-wide": 1} if too_wide else expected)
    assert ran.submits == [("trial-one", 1), ("trial-two", 1), ("melt", 6)]
    assert ran.groups == {"trial-one": (1, 0, 0), "trial-two": (1, 0, 0), "melt": (6, 0, 0)}
    ranks = {values["Ranks"] for job, values in ran.rows() if "Ranks" in values and "melt" in job}
    assert ranks == {1 if too_wide else 2}


def two_members(ran: Ran) -> None:
    assert ran.groups == {
        "sim-left": (3, 0, 0),
        "sim-right": (3, 0, 0),
        "analyse-left": (3, 0, 0),
        "analyse-right": (3, 0, 0),
        "report": (1, 0, 0),
    }
    assert not ran.never


def switch_algorithms(ran: Ran) -> None:
    (switch,) = [line for line in ran.lines if line["type"] == "switch"]
    assert (switch["off"], switch["on"]) == (["explore"], ["enough"])
    assert ran.groups["refine"][0] == 4
    assert 6 <= ran.groups["try"][0] <= 8
    tried = [job["parameters"]["T"] for job in ran.jobs.values() if job["group"] == "try"]
    assert len(set(tried)) == len(tried)
    instances = {each["name"]: each["on"] for each in ran.summary["instances"]}
    assert instances == {"explore": False, "enough": True}


def workload_demand(ran: Ran) -> None:
    asked = [line["delta"] for line in ran.lines if line["type"] == "resize"]
    assert any(delta > 0 for delta in asked)
    assert any(delta < 0 for delta in asked)
    assert ran.groups == {"small": (6, 0, 0), "wide": (2, 0, 0)}
    assert ran.fired["demand-over"] == 1
    assert ran.fired["demand-granted"] >= 2


PROMISES: Mapping[str, Promise] = {
    "backoff": Promise(backoff, killed=True),
    "custom-action": Promise(custom_action, killed=True),
    "failure-handling": Promise(failure_handling, code=3, killed=True),
    "grow-shrink": Promise(
        grow_shrink,
        options=("--slots", "1", "--min-slots", "1", "--max-slots", "4"),
        killed=True,
    ),
    "heartbeat": Promise(heartbeat, killed=True),
    "hello-world": Promise(hello_world),
    "json-lines": Promise(json_lines, killed=True),
    "lammps-melt": Promise(
        lammps_melt,
        litter=[*(f"runs/*/melt/{n}/log.lammps" for n in range(4)), "runs/*/cool/0/log.lammps"],
        marks=LAMMPS,
    ),
    "lammps-bisect": Promise(
        lammps_bisect,
        litter=["runs/*/0.?/log.lammps", "runs/*/0.?5/log.lammps"],
        killed=True,
        marks=LAMMPS,
    ),
    "lammps-converge": Promise(
        lammps_converge,
        litter=[
            f"runs/*/{group}/{n}/{file}"
            for group in ("equilibrate", "production")
            for n in range(4)
            for file in ("log.lammps", "state.[ab]")
        ],
        killed=True,
        fewer=("--set", "jobs.equilibrate.parameters.seed=[4711]"),
        marks=LAMMPS,
    ),
    "lammps-restart": Promise(
        lammps_restart,
        litter=[f"runs/*/chain/*/{file}" for file in ("log.lammps", "chain.[ab]", "chain.end")],
        marks=LAMMPS,
    ),
    "lammps-shape": Promise(
        lammps_shape,
        litter=["runs/*/trial-*/log.lammps", *(f"runs/*/melt/{n}/log.lammps" for n in range(6))],
        marks=[*LAMMPS, needs_mpiexec],
    ),
    "lammps-sweep": Promise(
        lammps_sweep,
        litter=[f"runs/*/md/{n}/log.lammps" for n in range(5)],
        marks=LAMMPS,
    ),
    "minicluster": Promise(
        minicluster,
        options=("--executor", "minicluster", "--mock"),
        marks=[pytest.mark.checkout, needs_minicluster],
        killed=True,
    ),
    "parameter-sweep": Promise(
        parameter_sweep, litter=[f"runs/*/{n}/result.txt" for n in range(8)]
    ),
    "switch-algorithms": Promise(switch_algorithms, killed=True),
    "terminate": Promise(terminate, killed=True),
    "workload-demand": Promise(
        workload_demand,
        options=("--executor", "minicluster", "--mock"),
        marks=[pytest.mark.checkout, needs_minicluster],
        killed=True,
    ),
    # Needs two members: ensemble-service/tests/test_member.py runs it.
    "two-members": Promise(two_members, options=("--executor", "remote")),
}


def examples(*, killed: bool = False) -> list[Any]:
    return [
        pytest.param(EXAMPLES / f"{name}.yaml", id=name, marks=promise.marks)
        for name, promise in PROMISES.items()
        if name != "two-members" and (promise.killed or not killed)
    ]


def test_each_example_has_a_promise_and_each_promise_an_example() -> None:
    assert {file.stem for file in FILES} == set(PROMISES)


@pytest.mark.checkout
@needs_lammps_plugin
def test_every_example_is_valid() -> None:
    done = CliRunner().invoke(main, ["validate", *map(str, FILES)])
    assert (done.exit_code, done.stderr) == (0, "")
    for file in FILES:
        assert f"{file}: valid" in done.stdout


@pytest.fixture(scope="module")
def lengths() -> dict[str, int]:
    """Number of lines that each undisturbed example printed."""
    return {}


def parsed(result: subprocess.CompletedProcess[str], folder: Path) -> Ran:
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return Ran(result.returncode, lines, result.stderr, folder / "here")


@pytest.mark.parametrize("file", examples())
def test_an_example_does_what_it_promises(
    file: Path, tmp_path: Path, lengths: dict[str, int]
) -> None:
    promise = PROMISES[file.stem]
    before = {path: path.stat().st_mtime_ns for path in EXAMPLES.rglob("*")}
    result = run(file, tmp_path, *promise.options)
    ran = parsed(result, tmp_path)
    lengths[file.stem] = len(ran.lines)

    assert ran.code == promise.code, result.stderr
    assert ran.summary["exit_code"] == promise.code
    assert ran.summary["errors"] == 0
    promise.check(ran)
    for group in ran.summary["groups"]:
        assert (group["waiting"], group["running"]) == (0, 0)
    assert "Traceback" not in result.stderr
    left = {str(path.relative_to(ran.folder)) for path in ran.folder.rglob("*") if path.is_file()}
    assert {file for file in left if not any(fnmatch(file, p) for p in promise.litter)} == set()
    assert {p for p in promise.litter if not any(fnmatch(file, p) for file in left)} == set()
    assert {path: path.stat().st_mtime_ns for path in EXAMPLES.rglob("*")} == before
    replay = command(tmp_path, "replay", "last", "--json")
    assert replay.exit_code == 0, replay.output
    check_report(tmp_path, "ended")


@pytest.mark.parametrize("file", examples(killed=True))
def test_a_killed_and_resumed_example_does_what_it_promises(
    file: Path, tmp_path: Path, lengths: dict[str, int]
) -> None:
    """It is killed after a number of lines that ``ENSEMBLE_SEED`` sets."""
    promise = PROMISES[file.stem]
    seed = int(os.environ.get("ENSEMBLE_SEED", "1"))
    enough = random.Random(seed).randint(
        2, lengths.get(file.stem, 30) // (2 if promise.fewer else 1)
    )
    first = subprocess.Popen(
        words(file, tmp_path, *promise.options, *promise.fewer),
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "errors").open("w"),
        **surroundings(tmp_path),
    )
    assert first.stdout is not None
    told = "".join(itertools.islice(first.stdout, enough))
    first.kill()
    told += first.communicate()[0]
    errors = (tmp_path / "errors").read_text()
    (kept,) = map(json.loads, command(tmp_path, "runs", "--json").stdout.splitlines())
    # Killed before the first event was recorded, so nothing was submitted.
    if kept["state"] == "new":
        return
    if first.returncode == -signal.SIGKILL:
        # It may be killed between the end of the run and its exit.
        check_report(tmp_path, "ended" if kept["state"] == "ended" else "interrupted")
        second = subprocess.run(
            [*COMMAND, "resume", "last", "--json"],
            capture_output=True,
            timeout=240,
            **surroundings(tmp_path),
        )
        if "run-ended" in second.stdout:
            assert f"with exit code {promise.code}" in second.stdout
            return
        code, told, errors = second.returncode, second.stdout, errors + second.stderr
    else:  # ended before the kill
        code = first.returncode
    events = command(tmp_path, "events", "last", "--json").stdout
    lines = [json.loads(line) for line in events.splitlines()]
    lines.append(json.loads(told.splitlines()[-1]))
    killed = first.returncode == -signal.SIGKILL
    ran = Ran(code, lines, errors, tmp_path / "here", bool(promise.fewer), killed)
    assert ran.code == promise.code, f"killed after {enough} lines: {told}{errors}"
    promise.check(ran)
    replay = command(tmp_path, "replay", "last", "--json")
    assert replay.exit_code == 0, replay.output


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_begins_with_its_purpose_and_exit_code(file: Path) -> None:
    text = file.read_text()
    opening = re.match(r"(?:#.*\n)+\n", text)
    assert opening is not None, "it opens with a comment, then an empty line"
    assert "expect" in opening[0].lower()
    code = PROMISES[file.stem].code
    assert re.search(rf"exit\s+code\s+{code}", opening[0].replace("#", " "), re.IGNORECASE)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_table_of_examples_names_each_with_the_command_that_runs_it(file: Path) -> None:
    rows = [
        line
        for line in (EXAMPLES / "README.md").read_text().splitlines()
        if line.startswith(f"| [{file.name}]({file.name}) |")
    ]
    assert len(rows) == 1
    command = " ".join(["ensemble run", *PROMISES[file.stem].options, file.name])
    assert f"`{command}`" in rows[0]


def test_jobs_finish_even_if_requests_to_grow_are_denied(tmp_path: Path) -> None:
    result = run(EXAMPLES / "grow-shrink.yaml", tmp_path, "--slots", "1", "--max-slots", "1")
    ran = parsed(result, tmp_path)
    assert ran.code == 0
    assert ran.fired["denied"] == 3
    assert ran.never == {"granted"}
    assert ran.groups == {"sleep": (8, 0, 0)}


@pytest.mark.checkout
@needs_minicluster
def test_a_simulated_minicluster_grows_and_shrinks_the_same_way(
    tmp_path: Path,
) -> None:
    options = ("--executor", "minicluster", "--mock", "--name", "default/ensemble")
    result = run(EXAMPLES / "grow-shrink.yaml", tmp_path, *options)
    ran = parsed(result, tmp_path)
    assert ran.code == 0
    grow_shrink(ran)


@pytest.mark.checkout
@needs_lammps_plugin
def test_the_lammps_example_without_lammps_exits_with_a_message(tmp_path: Path) -> None:
    result = run(EXAMPLES / "lammps-melt.yaml", tmp_path, path=str(tmp_path))
    assert result.returncode == 1
    assert "lmp: command not found" in result.stderr
    ran = parsed(result, tmp_path)
    assert ran.fired == {"begin": 1, "failed": 1}
    assert ran.submits == [("melt", 4)]
    assert not any("{" in message for message in ran.messages)
