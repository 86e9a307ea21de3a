"""Generators compared with plain Optuna and libEnsemble: same problem, generator and seeds.

Each row is a study of ``--points`` points on Branin, Hartmann-6 or an Ising model, ``--at-once``
at a time, with ``--seeds`` seeds. It shows the number of points, the median and quartiles of the
regret, wall time, core-seconds of this process and its children, and the study's lines of code. The
Ising model's susceptibility is simulated, so it is noisy; the regret is computed from the exact
value of the best point found.

Optuna and libEnsemble call the objective in this process. To exclude the cost of processes from the
comparison, ensembles run on a virtual clock with an executor that calls it in this process, too.
Each round runs all studies with one seed; the first round is not counted. Times are medians.

``--processes N``: N pairs of studies on Hartmann-6 with libEnsemble's generator, whose objective is
a separate process: with libEnsemble's threads, and as a local run with a journal.

``--suggestions N``: N points of ``random`` compared with a bare loop of N jobs, both on a virtual
clock; the ratio should be at most 2.

0 skips a part.

    python benchmarks/generators.py [--points N] [--at-once N] [--seeds N] [--suggestions N]
        [--processes N]
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import yaml
from ensemble_simulate.virtual_runtime import VirtualRuntime

import ensemble_core
from ensemble_core import Emit, Job, JobEvent, Observed, Run, VirtualExecutor
from ensemble_core.config import load_text
from ensemble_core.engine.engine import Engine
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.registry import Registry

Point = Mapping[str, float]
#: The points of a study with their objective values.
Found = list[tuple[float, Point]]
_A = ((10, 3, 17, 3.5, 1.7, 8), (0.05, 10, 17, 0.1, 8, 14), (3, 3.5, 1.7, 10, 17, 8),
      (17, 8, 0.05, 10, 0.1, 14))  # fmt: skip
_P = ((1312, 1696, 5569, 124, 8283, 5886), (2329, 4135, 8307, 3736, 1004, 9991),
      (2348, 1451, 3522, 2883, 3047, 6650), (4047, 8828, 8732, 5743, 1091, 381))  # fmt: skip


def branin(point: Point) -> float:
    x, y = point["x0"], point["x1"]
    a = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    return a * a + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def hartmann(point: Point) -> float:
    x = [point[f"x{i}"] for i in range(6)]
    return -sum(
        c * math.exp(-sum(a * (v - p / 1e4) ** 2 for a, v, p in zip(_A[i], x, _P[i], strict=True)))
        for i, c in enumerate((1.0, 1.2, 3.0, 3.2))
    )


#: Rows and columns of the Ising model, and clusters that are flipped per measurement.
_SIDE, _CLUSTERS = 4, 150


def ising(point: Point) -> float:
    """Return minus the susceptibility at temperature ``x0``: L^2 (<m^2> - <|m|>^2) / T.

    Simulated with Wolff's cluster algorithm. The seed of its noise follows from the temperature.
    """
    temperature, size = float(point["x0"]), _SIDE**2
    random, join = Random(repr(temperature)).random, 1 - math.exp(-2 / temperature)
    spins, found = [1] * size, []
    for _ in range(_CLUSTERS):
        first = int(random() * size)
        spin = spins[first]
        spins[first] = -spin
        edge = [first]
        while edge:
            for other in _near(edge.pop()):
                if spins[other] == spin and random() < join:
                    spins[other] = -spin
                    edge.append(other)
        found.append(abs(sum(spins)) / size)
    squares = statistics.fmean(m * m for m in found)
    return -size * (squares - statistics.fmean(found) ** 2) / temperature


@cache
def _near(site: int) -> tuple[int, ...]:
    row, column = divmod(site, _SIDE)
    steps = ((row, column + 1), (row, column - 1), (row + 1, column), (row - 1, column))
    return tuple(one % _SIDE * _SIDE + other % _SIDE for one, other in steps)


@cache
def _states() -> tuple[Any, Any]:
    """Return energy and magnetisation of every state of the spins."""
    import numpy as np

    bits = np.arange(2**_SIDE**2)[:, None] >> np.arange(_SIDE**2) & 1
    spins = (2 * bits - 1).reshape(-1, _SIDE, _SIDE)
    energy = -sum((spins * np.roll(spins, 1, axis)).sum((1, 2)) for axis in (1, 2))
    return energy, np.abs(spins.sum((1, 2))) / _SIDE**2


def ising_exact(point: Point) -> float:
    """Return minus the susceptibility without noise, from all states."""
    import numpy as np

    energy, m = _states()
    weights = np.exp((energy.min() - energy) / point["x0"])
    mean = np.average(m, weights=weights)
    squares = np.average(m * m, weights=weights)
    return float(-(_SIDE**2) * (squares - mean**2) / point["x0"])


PROBLEMS: dict[str, tuple[Callable[[Point], float], list[tuple[float, float]], float]] = {
    "branin": (branin, [(-5.0, 10.0), (0.0, 15.0)], 0.397887),
    "hartmann6": (hartmann, [(0.0, 1.0)] * 6, -3.32237),
    "ising": (ising, [(1.0, 5.0)], -0.492236),
}
#: The objective without noise.
EXACT: dict[str, Callable[[Point], float]] = {"ising": ising_exact}
GENERATORS = {
    "optuna": "use: optuna\n    with: {{sampler: tpe, seed: {seed}}}",
    "libensemble": "use: gest\n    with: {{class: libensemble.gen_classes.UniformSample, "
    "options: {{random_seed: {seed}}}}}",
    "random": "use: random\n    with: {{seed: {seed}}}",
}
STUDY = """\
jobs:
  - name: sim
    command: {command}
    observe: {{json-lines: {{fields: [E]}}}}
    result: {{E: last.E}}
generators:
  - name: search
    group: sim
    variables: {{{variables}}}
    objectives: {{E: minimize}}
    at_once: {at_once}
    until: generator.search.suggested >= {points}
    {generator}
"""


def ensemble_text(problem: str, generator: str, points: int, at_once: int, seed: int) -> str:
    _, bounds, _ = PROBLEMS[problem]
    names = " ".join(f"x{i}={{x{i}}}" for i in range(len(bounds)))
    variables = ", ".join(f"x{i}: [{low}, {high}]" for i, (low, high) in enumerate(bounds))
    command = f"{sys.executable} {Path(__file__).resolve()} --evaluate {problem} {names}"
    return STUDY.format(
        command=f"'{command}'",
        variables=variables,
        at_once=at_once,
        points=points,
        generator=GENERATORS[generator].format(seed=seed),
    )


class Inline(VirtualExecutor):
    """Executor that calls the objective of each job after one simulated second."""

    def __init__(self, objective: Callable[[Point], float]) -> None:
        self._objective = objective
        self._ends: deque[tuple[float, Job]] = deque()

    def open(self, run: Run, emit: Emit) -> None:
        self._clock, self._emit = run.clock, emit

    def submit(self, jobs: Sequence[Job]) -> None:
        now = self._clock()
        for job in jobs:
            self._emit([JobEvent(now, job.id, name) for name in ("submit", "alloc", "start")])
            # One at a time, like a loop that reports single results.
            last = self._ends[-1][0] if self._ends else 0.0
            self._ends.append((max(now + 1.0, last + 0.01), job))

    def cancel(self, jobs: Sequence[str]) -> None:
        raise NotImplementedError

    def due(self) -> float | None:
        return self._ends[0][0] if self._ends else None

    def advance(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            end, job = self._ends.popleft()
            value = self._objective({str(k): float(str(v)) for k, v in job.parameters.items()})
            over = JobEvent(end, job.id, "finish", {"status": 0})
            row = Observed(end, job.id, "json-lines", {"E": value})
            self._emit([row, over, JobEvent(end, job.id, "clean")])

    def close(self) -> None:
        pass


def virtual(problem: str, generator: str, points: int, at_once: int, seed: int) -> Found:
    """Run the ensemble on a virtual clock."""
    text = ensemble_text(problem, generator, points, at_once, seed)
    state = _played(text, PROBLEMS[problem][0]).state.generators["search"]
    return [(each.values["E"], each.parameters) for each in state.points if each.state == "done"]


@cache
def _registry() -> Registry:
    return discover()


def _played(text: str, objective: Callable[[Point], float]) -> Engine:
    registry = _registry()
    ensemble = load_text(text, registry)
    runtime = VirtualRuntime(
        ensemble, Inline(objective), actions=registry.actions, purpose="rehearse"
    )
    outcome = runtime.run()
    assert outcome.exit_code == 0, outcome.reason
    return runtime.engine


def plain_optuna(problem: str, points: int, at_once: int, seed: int) -> Found:
    """Run a plain Optuna loop."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    objective, bounds, _ = PROBLEMS[problem]
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    open_trials = []
    found: Found = []
    while len(found) < points:
        while len(open_trials) < at_once:
            trial = study.ask()
            for i, (low, high) in enumerate(bounds):
                trial.suggest_float(f"x{i}", low, high)
            open_trials.append(trial)
        trial = open_trials.pop(0)
        found.append((objective(trial.params), trial.params))
        study.tell(trial, found[-1][0])
    return found


def libensemble(
    problem: str,
    points: int,
    at_once: int,
    seed: int,
    objective: Callable[[Point], float] | None = None,
) -> Found:
    """Run libEnsemble with threads and its own generator."""
    import numpy as np
    from gest_api.vocs import VOCS
    from libensemble import Ensemble
    from libensemble.alloc_funcs.start_only_persistent import only_persistent_gens
    from libensemble.gen_classes import UniformSample
    from libensemble.specs import AllocSpecs, ExitCriteria, GenSpecs, LibeSpecs, SimSpecs

    simple, bounds, _ = PROBLEMS[problem]
    objective = objective or simple
    names = [f"x{i}" for i in range(len(bounds))]
    vocs = VOCS(
        variables={name: list(pair) for name, pair in zip(names, bounds, strict=True)},
        objectives={"E": "MINIMIZE"},
    )
    generator = UniformSample(vocs, random_seed=seed)

    def simulate(asked: Any, persis_info: Any, specs: Any, _: Any) -> tuple[Any, Any]:
        found = np.zeros(1, dtype=specs["out"])
        found["E"] = objective(dict(zip(names, asked["x"][0], strict=True)))
        return found, persis_info

    with tempfile.TemporaryDirectory() as folder:
        specs = LibeSpecs(
            comms="threads", nworkers=at_once, gen_on_manager=True,
            ensemble_dir_path=folder + "/runs",
            save_H_and_persis_on_abort=False, disable_log_files=True,
        )  # fmt: skip
        study = Ensemble(
            libE_specs=specs,
            alloc_specs=AllocSpecs(alloc_f=only_persistent_gens, user={"async_return": True}),
            gen_specs=GenSpecs(generator=generator, persis_in=["x", "E", "sim_id"],
                               outputs=[("x", float, (len(names),))], batch_size=at_once,
                               initial_batch_size=at_once),
            sim_specs=SimSpecs(sim_f=simulate, inputs=["x"], outputs=[("E", float)]),
            exit_criteria=ExitCriteria(sim_max=points),
        )  # fmt: skip
        history, _, _ = study.run()
    over = [each for each in history if each["sim_ended"]]
    return [(float(each["E"]), dict(zip(names, each["x"], strict=True))) for each in over]


def cores() -> float:
    own, children = (resource.getrusage(who) for who in (0, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def lines(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())


def source(function: Callable[..., Any]) -> int:
    return lines(textwrap.dedent(inspect.getsource(function)))


def compare(options: argparse.Namespace) -> None:
    given = options.points, options.at_once
    told = f"{'problem':<10} {'study':<28} {'points':>6} {'regret (quartiles)':>28}"
    print(f"{told} {'wall s':>7} {'core s':>7} {'lines':>5}")
    for problem, (objective, _, best) in PROBLEMS.items():
        file = lines(ensemble_text(problem, "optuna", *given, 0))
        studies: list[tuple[str, int, Callable[[int], Found]]] = [
            ("optuna", source(plain_optuna), lambda s, p=problem: plain_optuna(p, *given, s)),
            ("ensemble with optuna", file, lambda s, p=problem: virtual(p, "optuna", *given, s)),
            ("libensemble", source(libensemble), lambda s, p=problem: libensemble(p, *given, s)),
            (
                "ensemble with libensemble's",
                file,
                lambda s, p=problem: virtual(p, "libensemble", *given, s),
            ),
        ]
        took: dict[str, list[tuple[float, float, float]]] = {name: [] for name, *_ in studies}
        for seed in range(-1, options.seeds):
            for name, _, study in studies:
                began, spent = time.perf_counter(), cores()
                found = study(max(seed, 0))
                wall, spent = time.perf_counter() - began, cores() - spent
                _, chosen = min(found, key=itemgetter(0))
                regret = EXACT.get(problem, objective)(chosen) - best
                if seed >= 0:  # the first round includes imports
                    took[name].append((regret, wall, spent))
        for name, length, _ in studies:
            regrets, walls, spents = zip(*took[name], strict=True)
            quartiles = statistics.quantiles(regrets, n=4) if len(regrets) > 1 else [*regrets] * 3
            low, middle, high = quartiles
            regrets_told = f"{middle:.4f} ({low:.4f} … {high:.4f})"
            print(
                f"{problem:<10} {name:<28} {len(found):>6} {regrets_told:>28} "
                f"{statistics.median(walls):>7.3f} {statistics.median(spents):>7.3f} {length:>5}",
                flush=True,
            )


def with_processes(rounds: int, points: int, at_once: int) -> None:
    """Compare studies whose objective is a process: libEnsemble and a run, alternately."""
    problem, ratios = "hartmann6", []
    for seed in range(rounds):
        text = ensemble_text(problem, "libensemble", points, at_once, seed)
        data = yaml.safe_load(text)
        command = data["jobs"][0]["command"]

        def objective(point: Point, command: str = command) -> float:
            words = shlex.split(command.format_map(point))
            done = subprocess.run(words, capture_output=True, check=True)
            return float(json.loads(done.stdout)["E"])

        began = time.perf_counter()
        peer = libensemble(problem, points, at_once, seed, objective)
        between = time.perf_counter()
        with tempfile.TemporaryDirectory() as state:
            run = ensemble_core.run(
                data, executor="local", state=state, options={"slots": at_once}, show=False
            )
        assert run.exit_code == 0
        ours, theirs = time.perf_counter() - between, between - began
        ratios.append(ours / theirs)
        print(f"{len(peer)} processes: libensemble {theirs:.2f} s, ensemble run {ours:.2f} s")
    print(f"ensemble run / libensemble: {statistics.median(ratios):.2f} (at most 1 is wanted)")


BARE = """\
limits: {{chain: 1000000}}
jobs:
  - {{name: sim, command: {command}, parameters: {{x0: 1.0, x1: 2.0}},
     observe: {{json-lines: {{fields: [E]}}}}, result: {{E: last.E}}}}
rules:
  - {{trigger: start, action: {{name: submit, label: sim, with: {{count: {at_once}}}}}}}
  - {{trigger: job-done, name: sim, repetitions: {more}, action: {{name: submit, label: sim}}}}
"""


def suggestions(count: int, at_once: int, rounds: int = 3) -> None:
    command = yaml.safe_load(ensemble_text("branin", "random", 1, 1, 0))["jobs"][0]["command"]
    bare = BARE.format(at_once=at_once, more=count - at_once, command=f"'{command}'")
    chosen = ensemble_text("branin", "random", count, at_once, 0)
    ratios = []
    for _ in range(rounds):
        took = []
        for text in (bare, chosen):
            began = time.process_time()
            engine = _played(text, branin)
            took.append(time.process_time() - began)
            done = engine.state.metrics.count("sim", "done")
            assert count <= done < count + at_once, done
        ratios.append(took[1] / took[0])
        print(f"{count} jobs: bare loop {took[0]:.2f} s, random {took[1]:.2f} s of CPU time")
    print(f"random / bare loop: {statistics.median(ratios):.2f} (at most 2 is wanted)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--suggestions", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--evaluate", nargs="+", metavar="PROBLEM X=VALUE")
    options = parser.parse_args()
    if options.evaluate:
        problem, *given = options.evaluate
        point = {name: float(value) for name, _, value in (each.partition("=") for each in given)}
        print(f'{{"E": {PROBLEMS[problem][0](point)!r}}}')
        return
    print(f"load {os.getloadavg()[0]:.1f}; {os.cpu_count()} cores")
    if options.suggestions:
        suggestions(options.suggestions, options.at_once)
    compare(options)
    if options.processes:
        with_processes(options.processes, options.points, options.at_once)


if __name__ == "__main__":
    main()
