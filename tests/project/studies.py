"""Runs studies of ``examples/``, undisturbed and killed, and compares each with its figure.

A program for the tests in this folder and ``make soak``: each study is run as a user would run it, and its
figure is checked. Further runs have controllers that are killed after a random number of lines and
resumed; the results of their jobs are compared with those of the first run. Prints a line of JSON for
each round. The exit code is 1 if any round failed:

    python studies.py --short --seed 7 --rounds 1 refine ladder
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

from click.testing import CliRunner, Result

from ensemble_core.cli.main import main as ensemble

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COMMAND = [sys.executable, "-m", "ensemble_core.cli"]


@dataclass(frozen=True)
class Done:
    """A successful attempt."""

    group: str
    index: int
    parameters: Mapping[str, Any]
    rows: Sequence[Mapping[str, float]]

    def __getitem__(self, name: str) -> Any:
        """Return a parameter, or the last value of a column."""
        if name in self.parameters:
            return self.parameters[name]
        return next(row[name] for row in reversed(self.rows) if name in row)


@dataclass
class Ran:
    """A run of a study: its exit code, events and decisions, stderr, and start folder."""

    code: int
    lines: list[dict[str, Any]]
    errors: str
    folder: Path
    killed: list[str] = field(default_factory=list)
    replay: str = ""
    #: Output of ``ensemble report`` if it failed.
    report: str = ""

    @cached_property
    def submitted(self) -> list[dict[str, Any]]:
        # A resume repeats submissions that may not have reached the queue.
        jobs = [job for line in self.lines if line["type"] == "submit" for job in line["jobs"]]
        return list({job["id"]: job for job in jobs}.values())

    @cached_property
    def done(self) -> list[Done]:
        rows = defaultdict(list)
        for line in self.lines:
            if line["type"] == "observed":
                rows[line["job"]].append(line["values"])
        good = {
            line["job"]
            for line in self.lines
            if line.get("name") == "finish" and line["context"]["status"] == 0
        }
        return [
            Done(job["group"], job["index"], job["parameters"], rows[job["id"]])
            for job in self.submitted
            if job["id"] in good
        ]

    def of(self, group: str) -> list[Done]:
        return [job for job in self.done if job.group == group]

    def by(self, group: str, *names: str) -> dict[Any, list[Done]]:
        """Return the jobs of a group by the values of these parameters."""
        found = defaultdict(list)
        for job in self.of(group):
            key = tuple(job[name] for name in names)
            found[key if len(key) > 1 else key[0]].append(job)
        return dict(sorted(found.items()))

    def table(
        self, timed: Collection[str] = (), groups: Collection[str] = ()
    ) -> dict[str, list[Any]]:
        """Return the rows of all successful jobs (of these groups) by group and parameters, without
        ``timed`` parameters and columns."""

        def known(values: Mapping[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in values.items() if name not in timed}

        found: dict[str, list[Any]] = defaultdict(list)
        for job in self.done:
            if groups and job.group not in groups:
                continue
            key = json.dumps([job.group, known(job.parameters)], sort_keys=True)
            found[key].append([known(row) for row in job.rows])
        return {key: sorted(rows, key=str) for key, rows in sorted(found.items())}


def near(found: float, exact: float, within: float) -> None:
    assert abs(found - exact) <= within, f"{found} is not {exact} within {within}"


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the slope and the value at 0 of a least-squares line."""
    x0, y0 = mean(x for x, _ in points), mean(y for _, y in points)
    slope = sum((x - x0) * (y - y0) for x, y in points) / sum((x - x0) ** 2 for x, _ in points)
    return slope, y0 - slope * x0


# The check of each study's figure; a ``short`` run has larger errors.


def refine(ran: Ran, short: bool) -> None:
    spans = {
        p: mean(row["spans"] for job in jobs for row in job.rows)
        for p, jobs in ran.by("lattice", "p").items()
    }
    slope, at_zero = line([(p, part) for p, part in spans.items() if 0.3 < part < 0.7])
    near((0.5 - at_zero) / slope, 0.592746, 0.006 if short else 0.003)
    finest = min(job["d"] for job in ran.of("lattice"))
    assert finest == 0.003125
    assert all(abs(job["p"] - 0.593) < 0.02 for job in ran.of("lattice") if job["d"] == finest)


def ladder(ran: Ran, short: bool) -> None:
    exact = {0.1: 1.0652855095437, 1: 1.3923516415303, 10: 2.4491740721184, 100: 4.9994175451376}
    for g, jobs in ran.by("oscillator", "g").items():
        jobs.sort(key=lambda job: job["n"])
        near(jobs[-1]["E"], exact[g], 1e-7)
        assert [job["n"] for job in jobs] == [2**i for i in range(1, len(jobs) + 1)]
        assert abs(jobs[-1]["E"] - jobs[-1]["before"]) <= 1e-8
        assert all(abs(job["E"] - job["before"]) > 1e-8 for job in jobs[:-1])
    assert len(ran.by("oscillator", "g")) == 4


def errors(ran: Ran, short: bool) -> None:
    # Tolerance: half of the last printed digit.
    exact = {
        3.1371: (1.0441, 5e-5),
        12.5484: (2.2330, 5e-5),
        31.371: (3.9810, 5e-5),
        62.742: (6.2570, 5e-5),
        156.855: (11.464, 5e-4),
        313.71: (18.171, 5e-4),
    }
    found = {job["g"]: job["E"] for job in ran.of("gas")}
    assert found.keys() == exact.keys()
    for g, (energy, within) in exact.items():
        near(found[g], energy, within)
    fired = Counter(line["rule"] for line in ran.lines if line["type"] == "fired")
    assert min(fired[rule] for rule in ("sloshes", "walls", "coarse")) > 0
    assert not fired["given-up"]


def restart(ran: Ran, short: bool) -> None:
    until = 100 if short else 200
    for seed, jobs in ran.by("chain", "seed").items():
        rows = sorted((row for job in jobs for row in job.rows), key=lambda row: row["time"])
        assert [row["time"] for row in rows] == list(range(1, until + 1)), f"chain {seed}"
        near(mean(row["rate"] for row in rows), 0.9056, 0.08 if short else 0.03)
    assert len(ran.by("chain", "seed")) == 2


def fan_in(ran: Ran, short: bool) -> None:
    temperatures = [0.25, 0.3, 0.35, 0.4] if short else [0.2, 0.25, 0.3, 0.4]
    assert sorted(job["T"] for job in ran.of("post")) == temperatures
    (fit,) = ran.of("fit")
    near(fit["barrier"], 0.960, 0.12 if short else 0.05)


def mlmc(ran: Ran, short: bool) -> None:
    eps = 5e-4 if short else 1e-4
    levels = ran.by("level", "l")
    assert len(levels) == 5
    price = sum(mean(job["Y"] for job in jobs) for jobs in levels.values())
    near(price, 0.1045058, 3 * eps)
    error = math.sqrt(
        sum(mean(job["V"] for job in jobs) / len(jobs) / 1e5 for jobs in levels.values())
    )
    assert error <= eps / math.sqrt(2) * 1.05, "as many paths as the error asks for"
    assert len(levels[0]) > len(levels[4]) == 2


def screening(ran: Ran, short: bool) -> None:
    cheap, exact, modes = (len(ran.of(group)) for group in ("cheap", "exact", "modes"))
    assert (cheap, exact, modes) == ((20, 1, 1) if short else (200, 10, 3))
    best = min(ran.of("modes"), key=lambda job: job["E"])
    near(best["E"], -44.326801, 1e-6)
    assert best["lowest"] > 0


def asha(ran: Ran, short: bool) -> None:
    rungs = {rung: len(jobs) for rung, jobs in ran.by("train", "rung").items()}
    configs = 9 if short else 27
    assert rungs[0] == configs
    assert all(rungs[rung] < configs * 0.75**rung + 1 for rung in rungs)
    best = min(ran.of("train"), key=lambda job: (-job["rung"], job["loss"]))
    assert best["loss"] < (0.06 if short else 0.015)
    assert best["rung"] >= (1 if short else 3)
    if not short:
        epochs = sum(
            count * (3**rung - (3 ** (rung - 1) if rung else 0)) for rung, count in rungs.items()
        )
        assert epochs <= 27 * 27 / 2


def weighted_ensemble(ran: Ran, short: bool) -> None:
    last = max(ran.of("resample"), key=lambda job: job["iteration"])
    assert last["iteration"] == last["rounds"]
    exact = 1 / 36.584 if short else 1 / 935.93
    near(last["rate"], exact, exact * 0.3)


def replica_exchange(ran: Ran, short: bool) -> None:
    exact = {
        0.4: (0.9930, -0.7899),
        0.8: (0.9203, -0.4309),
        1.6: (0.7661, 0.3579),
        3.2: (0.6354, 1.5491),
    }
    by_temperature = ran.by("walk", "T")
    for temperature, right in exact.items():
        first, last = (9, 11) if short else (10, 40)
        jobs = [job for job in by_temperature[temperature] if job["iteration"] >= first]
        assert len(jobs) == last - first + 1
        # At least three standard errors, from 48 seeds.
        for name, exactly, within in zip(("left", "U"), right, (0.03, 0.06), strict=True):
            near(mean(job[name] for job in jobs), exactly, within * (2 if short else 1))


def simplex(ran: Ran, short: bool) -> None:
    jobs = ran.of("atom")
    best = min(job["E"] for job in jobs)
    # Lower bound: the minimum for three functions, except for rounding errors.
    assert -0.49697926 < best < (-0.494 if short else -0.4969791), best
    assert len(jobs) < (60 if short else 140)
    switches = [line for line in ran.lines if line.get("learns") == ["explore"]]
    assert len(switches) == 1, switches


def bayes(ran: Ran, short: bool) -> None:
    steps = ran.by("helium", "steps")
    assert len(steps) == 2, steps.keys()
    few, many = steps.values()
    assert len(few) in (range(11, 15) if short else range(37, 41))
    (last,) = many
    near(last["E"], -2.890, 0.03 if short else 0.01)
    assert last["error"] < (0.01 if short else 0.0015)


def ising(ran: Ran, short: bool) -> None:
    """The cumulants of both lattices cross between two temperatures near the critical one."""
    found: dict[float, dict[int, float]] = defaultdict(dict)
    for (t, size), jobs in ran.by("ising", "T", "L").items():
        moments = [(mean(r["m2"] for r in j.rows), mean(r["m4"] for r in j.rows)) for j in jobs]
        found[t][size] = mean(1 - m4 / (3 * m2**2) for m2, m4 in moments)
    gaps = {t: U[32] - U[16] for t, U in found.items() if U[16] < 0.66}
    below, above = max(t for t in gaps if gaps[t] >= 0), min(t for t in gaps if gaps[t] < 0)
    assert abs(above - below) <= (0.1 if short else 0.02) + 1e-9, gaps
    near((below + above) / 2, 2.269, 0.15 if short else 0.05)


def peaks(ran: Ran, short: bool) -> None:
    (fit,) = ran.of("fit")
    near(fit["Tc"], 2.269, 0.02 * 2.269 * (2 if short else 1))
    assert fit["error"] < 0.05, fit
    assert 0 < 2 * fit["core_hours"] <= fit["fixed"], fit


@dataclass(frozen=True)
class Study:
    """How a study is checked and shortened.

    - ``racing``: its jobs depend on the order in which earlier ones end, so only jobs of both runs
      are compared.
    - ``timed``: parameters and columns that depend on the jobs' speed.
    - ``options`` of ``ensemble run``, and the expected exit ``code``.
    - ``kills``: how often its controllers are killed at most.
    - ``groups``: the groups whose rows are compared (default: all).
    - ``here``: why it runs only with its own options and on no other queue.
    """

    check: Callable[[Ran, bool], None]
    shorter: Sequence[str] = ()
    racing: bool = False
    file: str = ""
    timed: frozenset[str] = frozenset()
    options: Sequence[str] = ()
    code: int = 0
    kills: int = 3
    groups: frozenset[str] = frozenset()
    here: str = ""


STUDIES: Mapping[str, Study] = {
    "refine": Study(
        refine,
        [
            "jobs.lattice.parameters.batches=4",
            "jobs.lattice.parameters.p={from: 0.55, to: 0.65, step: 0.05}",
            "jobs.lattice.replicas=2",
        ],
    ),
    "ladder": Study(ladder),
    "errors": Study(errors),
    "restart": Study(
        restart, ["jobs.chain.parameters.until=100", "jobs.chain.parameters.trajectories=16"]
    ),
    # At a lower temperature a particle stays longer.
    "fan-in": Study(
        fan_in,
        [
            (
                "jobs.sim.command='python3 {here}/sim.py --T {T} --seed {seed} "
                "--particles {particles} --dt 0.02'"
            ),
            "jobs.sim.parameters.particles=60",
            "jobs.sim.parameters.T=[0.25, 0.3, 0.35, 0.4]",
            "jobs.sim.parameters.seed=[1, 2, 3, 4]",
        ],
    ),
    "screening": Study(screening, ["jobs.cheap.parameters.seed={from: 60, to: 79}"]),
    "mlmc": Study(mlmc, ["jobs.level.parameters.eps=0.0005"]),
    "asha": Study(asha, ["jobs.train.parameters.config={from: 0, to: 8}"], racing=True),
    "weighted-ensemble": Study(
        weighted_ensemble,
        [
            "jobs.resample.parameters.rounds=4",
            "jobs.resample.command='python3 {here}/resample.py --iteration {iteration} --forget 1'",
            (
                "jobs.segment.command='python3 {here}/segment.py --iteration {iteration} "
                "--bin {bin} --T {T} --time 2.5'"
            ),
            "jobs.segment.parameters.T=0.3",
        ],
    ),
    "replica-exchange": Study(replica_exchange, ["jobs.walk.parameters.rounds=11"]),
    "simplex": Study(simplex, ["generators.downhill.with.tolerance=0.2"]),
    "bayes": Study(
        bayes,
        [
            "generators.search.until=count.done >= 11",
            "jobs.helium.parameters.steps=50",
            "rules.precisely.action.with.parameters.steps=400",
        ],
        racing=True,
    ),
    "ising": Study(
        ising,
        [
            "jobs.ising.command='{here}/ising --L {L} --T {T} --seed {L}{replica} --clusters 200'",
            "jobs.ising.parameters.T={from: 2.1, to: 2.5, step: 0.2}",
            "jobs.ising.replicas=2",
            "results.binder.columns.err=0",  # no further seeds
        ],
        file="ising/ensemble.yaml",
    ),
    "peaks": Study(
        peaks,
        ["jobs.ising.parameters.clusters=100"],
        timed=frozenset({"used", "core_hours", "fixed"}),
    ),
}


def surroundings(folder: Path) -> dict[str, Any]:
    bin_folder = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([bin_folder, os.environ.get("PATH", "")]),
        "ENSEMBLE_STATE": str(folder / "state"),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    (folder / "here").mkdir(parents=True, exist_ok=True)
    return {
        "cwd": folder / "here",
        "env": environment,
        "text": True,
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
    }


def play(
    name: str, study: Study, folder: Path, short: bool, chance: random.Random | None, length: int
) -> Ran:
    """Run the study; with ``chance``, kill its controllers."""
    file = EXAMPLES / (study.file or f"studies/{name}/ensemble.yaml")
    sets = [word for one in study.shorter if short for word in ("--set", one)]
    around = surroundings(folder)
    words = ["run", "--json", "--output", str(folder / "kept"), *study.options, *sets, str(file)]
    killed = []
    with (folder / "errors").open("w") as errors:
        for kills in range(study.kills + 1 if chance else 1):
            with subprocess.Popen([*COMMAND, *words], stderr=errors, **around) as process:
                assert process.stdout is not None
                if chance and kills < study.kills:
                    enough = chance.randint(2, max(3, length // 2))
                    told = "".join(itertools.islice(process.stdout, enough))
                    process.kill()
                    killed.append(f"after {enough} lines")
                    told += process.stdout.read()
                else:
                    told = process.stdout.read()
            if process.returncode != -signal.SIGKILL:
                break
            words = ["resume", "last", "--json"]

    def ask(*words: str) -> Result:
        return CliRunner().invoke(
            ensemble, [*words, "last", "--json", "--state", f"{folder}/state"]
        )

    found = ask("events").stdout
    replay = ask("replay")
    plugin = importlib.util.find_spec("ensemble_dashboard") is not None
    report = ask("report", "-o", str(folder / "report.html")) if plugin else None
    return Ran(
        process.returncode,
        [json.loads(line) for line in found.splitlines()],
        (folder / "errors").read_text(),
        folder / "here",
        killed,
        replay.stdout[-2000:] + replay.stderr if replay.exit_code else "",
        report.output if report is not None and '"problem":""' not in report.stdout else "",
    )


def judged(
    name: str, study: Study, ran: Ran, short: bool, undisturbed: Ran | None
) -> dict[str, Any]:
    """Return the result of a round, in the format of ``make soak``."""
    other = []
    ended = re.search(r"has ended.*with exit code (\d+)", ran.errors)
    if ran.code != study.code and not (ended and ended[1] == str(study.code)):
        other.append(f"exit code {ran.code}: {ran.errors[-2000:]}")
    try:
        study.check(ran, short)
    except (AssertionError, KeyError, StopIteration, ValueError) as error:
        other.append(f"the figure: {error!r}")
    if ran.report:
        other.append(f"its report: {ran.report}")
    ids = {job["id"] for job in ran.submitted}
    starts = Counter(line["job"] for line in ran.lines if line.get("name") == "start")
    if undisturbed is not None:
        tables = [each.table(study.timed, study.groups) for each in (ran, undisturbed)]
        now, before = tables
        if study.racing:
            # Two jobs of one run may happen to have the same parameters.
            both = now.keys() & before.keys()
            now, before = ({key: sorted(set(map(str, one[key]))) for key in both} for one in tables)
        other += [
            f"{key}: {now.get(key)} was {before.get(key)}"
            for key in sorted(now.keys() | before.keys())
            if str(now.get(key)) != str(before.get(key))  # as text, nan equals nan
        ][:5]
    found = {
        "round": name,
        "killed": ran.killed,
        "jobs": len(ids),
        "lost": [],
        "doubled": [job for job, count in starts.items() if count > 1],
        "fired_again": [],
        "replay_differences": [ran.replay] if ran.replay else [],
        "other": other,
    }
    return {**found, "good": not (other or found["doubled"] or ran.replay)}


def rounds(
    name: str, study: Study, base: Path, kills: int = 1, seed: int = 0, *, short: bool = True
) -> Iterator[dict[str, Any]]:
    """Run a study once undisturbed and ``kills`` times with kills; yield the result of each run."""
    undisturbed: Ran | None = None
    for number in range(kills + 1):
        folder = base.absolute() / f"{name}-{seed}-{number}"
        folder.mkdir(parents=True)
        chance = random.Random(f"{name} {seed} {number}") if number else None
        length = len(undisturbed.lines) if undisturbed else 0
        ran = play(name, study, folder, short, chance, length)
        found = judged(name, study, ran, short, undisturbed)
        undisturbed = undisturbed or ran
        if found["good"]:
            shutil.rmtree(folder)
        yield found


def main(studies: Mapping[str, Study]) -> int:
    parser = argparse.ArgumentParser(
        epilog="After --: options of ensemble run, instead of each one's own, for those that can "
        "run on any queue."
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1, help="of kills, of each study")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--base", type=Path)
    parser.add_argument("names", nargs="*")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    chosen, options = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    base = chosen.base or Path(tempfile.mkdtemp(prefix="studies-"))
    good = True
    for name in chosen.names or [name for name in studies if not (options and studies[name].here)]:
        study = replace(studies[name], options=options) if options else studies[name]
        for found in rounds(name, study, base, chosen.rounds, chosen.seed, short=chosen.short):
            print(json.dumps(found), flush=True)
            good = good and found["good"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(STUDIES))
