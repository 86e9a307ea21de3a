"""Compares the decisions of real runs of examples with those of their simulations.

    python scripts/same_as_simulated.py [--rounds 5] [EXAMPLE …]

Each example runs ``--rounds`` times and is simulated with a model of each run. The decisions of a
run and of its simulation must be the same and in the same order, except for decisions within 50 ms,
whose order is random. The median length of the simulated runs must be within 15 % of the real ones.
The exit code is 1 if any example differs. Default: all examples that run on this machine. Part of
``make soak``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
COMMAND = (sys.executable, "-m", "ensemble_core.cli")
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
#: Seconds within which decisions may be in any order.
RACING = 0.05
#: Allowed relative difference in length.
LONGER = 0.15


MACHINE = ("--cores-per-node", "2")


class Example(NamedTuple):
    """An example that runs on this machine.

    Has options of ``run``, of the simulated cluster, and of both; ``needs`` is a required program
    or module.
    """

    run: Sequence[str] = ("--slots", "2")
    machine: Sequence[str] = MACHINE
    both: Sequence[str] = ()
    needs: str = ""


def _growing(slots: int, most: int, *run: str) -> Example:
    """Return an example with a number of slots that rules can increase."""
    words = ("--slots", str(slots), "--max-slots", str(most), *run)
    return Example(
        words, ("--nodes", str(slots), "--cores-per-node", "1", "--max-nodes", str(most))
    )


def _shorter(*sets: str, needs: str = "") -> Example:
    return Example(both=[word for each in sets for word in ("--set", each)], needs=needs)


#: Exceptions: less work for examples that take more than ten seconds.
SPECIAL = {
    "grow-shrink.yaml": _growing(1, 4, "--min-slots", "1"),
    "shape/rate.yaml": _growing(2, 4),
    "shape/shape.yaml": Example(("--slots", "4"), ("--cores-per-node", "4")),
    "ising/ensemble.yaml": _shorter(
        "jobs.ising.command='{here}/ising --L {L} --T {T} --seed {L}{replica} --clusters 20'",
        "results.binder.columns.err=0",
    ),
    "studies/peaks/ensemble.yaml": _shorter("jobs.ising.parameters.clusters=50"),
    "studies/peaks/fixed.yaml": _shorter("jobs.ising.parameters.T={from: 2.0, to: 2.6, step: 0.1}"),
    # Their functions read jobs' output.
    "branches/ensemble.yaml": Example(machine=(*MACHINE, "--functions", "recorded")),
    "retrain/online.yaml": Example(machine=(*MACHINE, "--functions", "recorded")),
    "potential/ensemble.yaml": _shorter(
        "generators.fit.until=generator.fit.suggested >= 8", needs="lmp"
    ),
    "studies/replica-exchange/ensemble.yaml": _shorter("jobs.walk.parameters.rounds=8"),
    "studies/simplex/ensemble.yaml": _shorter("generators.downhill.with.tolerance=0.4"),
    "studies/weighted-ensemble/ensemble.yaml": _shorter(
        "jobs.resample.parameters.rounds=6", "jobs.segment.parameters.T=0.3"
    ),
    "ams/ensemble.yaml": Example(needs="sklearn"),
    "retrain/ensemble.yaml": Example(needs="sklearn"),
    "parameters/optimise.yaml": Example(needs="sklearn"),
}
#: Examples that need a queue.
ELSEWHERE = frozenset({"minicluster.yaml", "workload-demand.yaml", "two-members.yaml"})


@cache
def studies() -> Mapping[str, Sequence[str]]:
    """Return the settings that shorten each study in its tests."""
    spec = importlib.util.spec_from_file_location("studies", ROOT / "tests/project/studies.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["studies"] = module  # dataclasses look up their module there
    spec.loader.exec_module(module)
    return {name: study.shorter for name, study in module.STUDIES.items()}


@cache
def local() -> dict[str, Example]:
    """Return every example that runs on this machine, by file."""
    found = {}
    for file in sorted(EXAMPLES.rglob("*.yaml")):
        name = file.relative_to(EXAMPLES).as_posix()
        if name in ELSEWHERE or name.endswith(".ensemble-test.yaml"):
            continue
        study = name.removeprefix("studies/").removesuffix("/ensemble.yaml")
        needs = "lmp" if name.startswith("lammps-") else ""
        usual = _shorter(*studies().get(study, ()), needs=needs)
        found[name] = SPECIAL.get(name, usual)
    return found


def lacking(example: Example) -> bool:
    """Return whether a required program or module is missing."""
    needs = example.needs
    return (
        bool(needs) and not shutil.which(needs, path=PATH) and not importlib.util.find_spec(needs)
    )


class Decided(NamedTuple):
    """A decision and its time in seconds since the start."""

    at: float
    what: tuple[str, ...]


class Compared(NamedTuple):
    """A real run and its simulation; ``difference`` is empty if their decisions are the same."""

    difference: str
    real: float
    simulated: float


def compare(example: str, folder: Path) -> Compared:
    """Run an example, simulate it with a model of that run, and compare."""
    file = str(EXAMPLES / example)
    run, machine, both, _ = local()[example]
    state = ("--state", str(folder / "state"))
    _call(folder, "run", "-q", "--executor", "local", *run, *both, *state, "--tag", "real", file)
    words = (
        "simulate",
        "-q",
        "--run-code",
        "--model-from",
        "real",
        *machine,
        *both,
        *state,
        "--tag",
        "sim",
    )
    _call(folder, *words, file)
    real, simulated = (decisions(folder, tag, state) for tag in ("real", "sim"))
    return Compared(difference(real, simulated), real[-1].at, simulated[-1].at)


def _call(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [*COMMAND, *words],
        cwd=folder,
        env={**os.environ, "PATH": PATH},
        capture_output=True,
        text=True,
    )
    # After a signal the code is negative, or 128 + N if the command handled it.
    if done.returncode in (2, 70) or not 0 <= done.returncode < 128:
        raise RuntimeError(f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def decisions(folder: Path, tag: str, state: Sequence[str]) -> list[Decided]:
    """Return the decisions of a run in order: kind, rule and job, once for each affected job.

    The last entry is the run's end. Jobs are identified by group and parameters, because the ids of
    racing jobs are random. A firing has only its rule, because its event is random too.
    """
    found: list[Decided] = []
    names: dict[str, str] = {}
    alike: Counter[str] = Counter()
    began = last = None
    for line in _call(folder, "events", tag, "--json", *state).splitlines():
        data = json.loads(line)
        if "timestamp" not in data:
            continue
        began = data["timestamp"] if began is None else began
        last = data["timestamp"] - began
        if data["kind"] != "decision":
            continue
        jobs = [] if data.get("job") is None or data["type"] == "fired" else [str(data["job"])]
        for each in data.get("jobs", ()):
            if isinstance(each, dict):
                parts = (each["parameters"], each.get("replica", 0), each.get("attempt", 0))
                name = f"{each['group']} {' '.join(map(str, parts))}"
                alike[name] += 1
                names.setdefault(each["id"], f"{name} {alike[name]}")
            jobs.append(each["id"] if isinstance(each, dict) else str(each))
        about = data["type"], str(data.get("rule"))
        told = [(names.get(job, job),) for job in jobs] or [()]
        found += [Decided(last, (*about, *job)) for job in told]
    if last is None:
        raise RuntimeError(f"the run {tag} has no event on record")
    return [*found, Decided(last, ("end",))]


def difference(real: Sequence[Decided], simulated: Sequence[Decided]) -> str:
    """Describe the first difference; empty if there is none.

    Each decision must occur equally often, and in the same order unless two are within the
    tolerance.
    """
    was, now = (Counter(each.what for each in one) for one in (real, simulated))
    if was != now:
        missing, more = was - now, now - was
        where = next((each for each in real if each.what in missing), None)
        extra = next((each for each in simulated if each.what in more), None)
        if where is None:
            return f"and then, not in the run: {extra and extra.what}"
        return f"at {where.at:.3f} s only in the run: {where.what}, not in it: {extra}"
    places: dict[tuple[str, ...], deque[int]] = {}
    for place, each in enumerate(simulated):
        places.setdefault(each.what, deque()).append(place)
    order = [places[each.what].popleft() for each in real]
    for later, place in enumerate(order):
        for earlier in range(later):
            pair = real[earlier], real[later]
            if order[earlier] > place and pair[1].at - pair[0].at > RACING:
                after = simulated[order[earlier]].at - simulated[place].at
                if after > RACING:
                    return f"at {pair[0].at:.3f} s {pair[0].what} came before {pair[1].what}"
    return ""


class Judged(NamedTuple):
    """The result of all rounds of an example: the lines to print, and whether all are the same."""

    lines: Sequence[str]
    good: bool


def judged(example: str, rounds: int) -> Judged:
    """Run an example a number of times and compare."""
    if lacking(local()[example]):
        return Judged([f"{example}: not played, there is no {local()[example].needs}"], True)
    found = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            try:
                found.append(compare(example, Path(folder)))
            except Exception as error:  # of one round; still report the others
                what = f"{type(error).__name__}: {error}"
                found.append(Compared(what, math.nan, math.nan))
    whole = [each for each in found if each.real > 0]
    ratio = statistics.median([each.simulated / each.real for each in whole] or [math.nan])
    differ = [each.difference for each in found if each.difference]
    good = not differ and len(whole) == rounds and abs(ratio - 1) <= LONGER
    told = (
        f"{example}: {rounds - len(differ)} of {rounds} decided the same, length {ratio - 1:+.1%}"
    )
    length = statistics.median([each.real for each in whole] or [math.nan])
    lines = [f"{told} of {length:.1f} s{'' if good else '  WRONG'}"]
    return Judged(lines + [f"  {text}" for text in differ[:1]], good)


def main() -> int:
    """Compare all examples; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples", nargs="*", metavar="EXAMPLE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=2, help="number of concurrent examples (2)")
    given = parser.parse_args()
    strange = [name for name in given.examples if name not in local()]
    if strange:
        near = get_close_matches(strange[0], local(), 3, 0.3)
        parser.error(f"no example that runs here is {', '.join(strange)}; near: {', '.join(near)}")
    began, bad = time.monotonic(), 0
    with ThreadPoolExecutor(given.at_once) as pool:
        for found in pool.map(lambda name: judged(name, given.rounds), given.examples or local()):
            print(*found.lines, sep="\n", flush=True)
            bad += not found.good
    print(f"{time.monotonic() - began:.0f} s in all; {bad} wrong")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
