"""Runs the use cases of ``examples/``, undisturbed and killed, and compares each with its figures.

A program based on ``studies.py``, for the tests in this folder and ``make soak``:

    python use_cases.py --seed 7 --rounds 1 branches
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from math import isclose, sin
from statistics import mean
from typing import Any

from studies import Ran, Study, main, near

#: The methods of ``phases``, with bounds of the number of iterations.
METHODS = {"jacobi": (1000, 2000), "gauss-seidel": (500, 1000), "sor": (40, 100)}
#: The solution of E - 0.9 sin E = 0.5.
KEPLER = 1.3844127202


def fired(ran: Ran) -> dict[str, int]:
    """Return the number of firings of each rule that fired."""
    return dict(Counter(line["rule"] for line in ran.lines if line["type"] == "fired"))


def branches(ran: Ran, short: bool) -> None:
    counts = fired(ran)
    ways = ("gains-energy", "still-moving", "busy", "given-up", "at-rest")
    assert [counts[way] for way in ways] == [1, 2, 1, 1, 5], counts
    swings = {job["damping"]: job for job in ran.of("swing")}  # the last job of each damping
    assert {damping: (job["dt"], job["until"]) for damping, job in swings.items()} == {
        3.0: (0.01, 30),
        0.4: (0.02, 30),
        0.05: (0.02, 240),
        0.1: (0.02, 60),
        0.5: (0.02, 30),
    }
    assert all(job["energy"] < 0.01 for job in swings.values())
    (creeps,) = ran.of("decay")
    assert creeps["of"] == 0
    near(creeps["rate"], (3 - 5**0.5) / 2, 0.005)
    assert len(ran.of("frequency")) == 4
    for job in ran.of("frequency"):
        near(job["omega"], 1, 0.07)


def bisect(ran: Ran, short: bool) -> None:
    jobs = ran.of("try")
    assert len(jobs) == 12
    near(jobs[-1]["E"], KEPLER, 0.001)
    widths = [job["high"] - job["low"] for job in jobs]
    assert all(isclose(width, 3.2 / 2**n, rel_tol=1e-6) for n, width in enumerate(widths))
    assert all(job["low"] <= KEPLER <= job["high"] for job in jobs)


def function(ran: Ran, short: bool) -> None:
    jobs = ran.of("try")
    assert [job["at"] for job in jobs[:2]] == [1, 2]
    assert 6 <= len(jobs) <= 10
    near(jobs[-1]["E"], KEPLER, 1e-9)
    calls = [line for line in ran.lines if line["type"] == "call" and line["attempt"] == 1]
    assert [line["kind"] for line in calls] == ["parameters"] * len(jobs)


def optimise(ran: Ran, short: bool) -> None:
    jobs = ran.of("measure")
    assert 8 <= len(jobs) <= 25
    assert len({job["x"] for job in jobs}) == len(jobs), "each point is measured once"
    best = min(jobs, key=lambda job: job["y"])
    near(best["y"], -6.0207, 0.02 * 6.0207)
    near(best["x"], 0.7572, 0.02 * 0.7572)


def ams(ran: Ran, short: bool) -> None:
    physics, trained = ran.of("physics"), ran.of("train")
    assert (len(physics), len(trained)) == (11, 3)
    asked = Counter(job["x"] for job in physics)
    assert set(asked.values()) == {1}, "the same is never computed twice"
    (good,) = [job for job in trained if job.rows[0]["worst_std"] <= 0.05]
    assert good["rows"] == 11
    assert good["error"] < 0.05
    later = [job for job in ran.of("ask") if job["std"] < 0.05]
    assert len(later) == 11, "the surrogate answers alone"
    for job in later:
        near(job["y"], job["x"] * sin(job["x"]), 0.05)
    kept = [json.loads(file.read_text()) for file in ran.folder.glob("runs/*/data/*.json")]
    assert Counter((row["x"], row["y"]) for row in kept) == Counter(
        (job["x"], job["y"]) for job in physics
    )


def ams_unsure(ran: Ran, short: bool) -> None:
    """Check a run with the threshold 0.2 instead of 0.05."""
    physics, trained = ran.of("physics"), ran.of("train")
    assert (len(physics), len(trained)) == (9, 2)
    assert 0.05 < max(job["error"] for job in trained[-1:]) < 0.2


def retrain(ran: Ran, short: bool) -> None:
    lost = {wave: failures(ran, wave=wave) for wave in (1, 2)}
    assert [len(each) for each in lost.values()] == [24, 24]
    assert sum(lost[1]) == 8
    assert sum(lost[2]) <= 2
    trained = [row for job in ran.of("train") for row in job.rows]
    assert len(trained) == 3
    assert any(row["accuracy"] > 0.9 and row["rows"] >= 16 for row in trained)
    groups = [line.get("group") if line["type"] == "submit" else None for line in ran.lines]
    before = ran.lines[: groups.index("train")]
    ended = [line for line in before if line.get("name") == "finish"]
    assert len(ended) == 8, "it is trained while simulations go on"


def training(ran: Ran, short: bool) -> None:
    count = 12 if short else 24
    assert len([job for job in ran.submitted if job["group"] == "train"]) == count
    done = ran.of("train")
    assert 4 <= len(done) < count * 2 / 3, "the others are cancelled"
    assert min(job["eval_loss"] for job in done) < (0.05 if short else 0.005)
    (kept,) = [path for path in (ran.folder / "runs").rglob("*.npz") if path.stat().st_size]
    assert kept.name == "best.npz"


def online(ran: Ran, short: bool) -> None:
    lost = failures(ran)
    assert len(lost) == 60
    assert 4 <= sum(lost[:20]) <= 9
    assert sum(lost[40:]) <= 2
    last = [job["parameters"]["dt"] for job in ran.submitted if job["index"] >= 40]
    assert max(last) > 1.5, "it was not only cautious"


def shape(ran: Ran, short: bool) -> None:
    jobs = sorted(ran.of("sim"), key=lambda job: job.index)
    assert [job["cores"] for job in jobs] == [1, 2, 4, 2, 2, 2, 2, 2]
    assert fired(ran) == {"rule-1": 1, "too-long": 2, "too-wide": 1, "next": 7}
    done = {job["cores"]: job["speedup"] / 1.2 / job["cores"] for job in jobs}
    assert max(done, key=lambda cores: done[cores]) == 2, "most completions for a core-second"
    assert {cores: round(rate, 2) for cores, rate in done.items()} == {1: 0.83, 2: 0.92, 4: 0.48}


def rate(ran: Ran, short: bool) -> None:
    told = [line for line in ran.lines if line["type"] == "resize-outcome" and "outcome" in line]
    assert [line["outcome"] for line in told] == ["granted", "denied"]
    assert [line["size"] for line in told] == [4, 4]
    nodes = {job["parameters"]["case"]: job["nodes"] for job in ran.submitted}
    assert sorted(nodes) == [*range(1, 41)], "each case once"
    ordered = [nodes[case] for case in sorted(nodes)]
    assert ordered == sorted(ordered, reverse=True), "narrower from the denial on"
    assert set(ordered) == {1, 2}
    assert all(job["cores"] == nodes[job["case"]] for job in ran.of("sim"))


def phases(ran: Ran, short: bool) -> None:
    explored, _, finished = of_phases(ran, "switch")
    check_explored(ran, explored)
    check_exploited(ran, "switch")
    assert set(finished) == {"tune"}
    tuned = [job["iterations"] for job in ran.of("tune")]
    assert sum(iterations < 105 for iterations in tuned) >= 3
    assert 10 <= len(tuned) <= 12
    assert fired(ran)["finish-valid"] == 3


def plain(ran: Ran, short: bool) -> None:
    explored, _ = of_phases(ran, "disable-rule")
    check_explored(ran, explored)
    check_exploited(ran, "disable-rule")


def potential(ran: Ran, short: bool) -> None:
    assert len(ran.submitted) == (16 if short else 30)
    best = min(ran.of("liquid"), key=lambda job: job["v_miss"])
    near(best["sigma"], 1, 0.02 if short else 0.01)
    pruned = [line for line in ran.lines if line["type"] == "log" and "pruned" in line["message"]]
    if not short:
        # Counts steps of the last observed rows; jobs of a short run are too fast for that.
        reached = {line["job"]: line["values"] for line in ran.lines if line["type"] == "observed"}
        assert sum(row["Step"] for row in reached.values()) < 30 * 6000 / 2
    assert pruned


def potential_unpruned(ran: Ran, short: bool) -> None:
    done = ran.of("liquid")
    assert [job["Step"] for job in done] == [6000] * 30
    near(min(done, key=lambda job: job["v_miss"])["sigma"], 1, 0.01)


def of_phases(ran: Ran, switch: str) -> list[Counter[str]]:
    """Return the number of submitted jobs of each group before, between and after ``switch`` decisions."""
    found = [Counter[str]()]
    for line in ran.lines:
        if line["type"] == switch:
            found.append(Counter())
        # Submissions without a rule are repetitions by a resume.
        elif line["type"] == "submit" and line["rule"] is not None:
            found[-1].update(job["group"] for job in line["jobs"])
    return found


def check_explored(ran: Ran, explored: Counter[str]) -> None:
    assert 12 <= sum(explored.values()) <= 16
    assert min(explored[method] for method in METHODS) >= 2
    done = [job for job in ran.done if job.group in METHODS]
    assert 30 <= len(done) <= 34
    for job in done:
        least, most = METHODS[job.group]
        assert least < job["iterations"] < most


def check_exploited(ran: Ran, switch: str) -> None:
    """Check that each job of the second phase has the method with the shortest mean duration so far.

    That is ``sor``, unless the queue or other load disturbs the durations.
    """
    took: dict[str, list[float]] = {method: [] for method in METHODS}
    began: dict[str, float] = {}
    groups = {job["id"]: job["group"] for job in ran.submitted}
    phase, chosen = 1, Counter[str]()
    for line in ran.lines:
        phase += line["type"] == switch
        if line.get("name") == "start":
            began[line["job"]] = line["timestamp"]
        elif line.get("name") == "finish" and (method := groups[line["job"]]) in took:
            took[method].append(line["timestamp"] - began[line["job"]])
        elif line["type"] == "submit" and line["rule"] is not None and phase == 2:
            means = {method: mean(took[method]) for method in METHODS if took[method]}
            for job in line["jobs"]:
                # Methods with almost equal means differ by rounding errors only.
                assert means[job["group"]] <= min(means.values()) + 1e-6, (means, job["id"])
                chosen[job["group"]] += 1
    assert sum(chosen.values()) >= 14, chosen


def failures(ran: Ran, **parameters: Any) -> list[bool]:
    """Return whether each simulation with these parameters failed, in the order of indices."""
    exits = {
        line["job"]: line["context"]["status"] != 0
        for line in ran.lines
        if line.get("name") == "finish"
    }
    jobs = [job for job in ran.submitted if job["group"] == "sim"]
    jobs.sort(key=lambda job: int(job["index"]))
    return [exits[job["id"]] for job in jobs if parameters.items() <= job["parameters"].items()]


#: Options of ``ams`` that raise the threshold of uncertainty, so that fewer physics jobs are needed.
UNSURE = ["--set", "jobs.ask.parameters.sure=0.2", "--set", "jobs.train.parameters.sure=0.2"]
SLOTS = ["--slots", "2", "--max-slots", "4"]
MOCK = ["--executor", "minicluster", "--mock", "-o", "size=2"]
USE_CASES: Mapping[str, Study] = {
    "phases": Study(phases, file="phases/ensemble.yaml", racing=True, kills=1),
    "phases/plain": Study(plain, file="phases/plain.yaml", racing=True, kills=1),
    "potential": Study(
        potential,
        ["jobs.liquid.parameters.cells=3", "generators.fit.until=generator.fit.suggested >= 16"],
        file="potential/ensemble.yaml",
        racing=True,
        kills=1,
    ),
    "potential/unpruned": Study(
        potential_unpruned,
        file="potential/ensemble.yaml",
        options=["--set", "generators.fit.prune=null"],
        racing=True,
        kills=1,
        here="'potential' once more, with another option",
    ),
    "shape/shape": Study(shape, file="shape/shape.yaml", options=["--slots", "4"], kills=1),
    "shape/rate": Study(
        rate,
        file="shape/rate.yaml",
        options=SLOTS,
        timed=frozenset({"cores"}),
        kills=1,
        here="it grows, which a queue of a fixed size refuses before anything runs",
    ),
    "shape/mock": Study(
        rate,
        file="shape/rate.yaml",
        options=MOCK,
        timed=frozenset({"cores"}),
        kills=1,
        here="it is of a MiniCluster",
    ),
    "ams": Study(ams, file="ams/ensemble.yaml", kills=1),
    "ams/unsure": Study(
        ams_unsure,
        file="ams/ensemble.yaml",
        options=UNSURE,
        kills=1,
        here="'ams' once more, with another option",
    ),
    "retrain": Study(
        retrain,
        file="retrain/ensemble.yaml",
        racing=True,
        groups=frozenset({"sim"}),
        kills=1,
    ),
    "training": Study(
        training,
        [
            "generators.search.until=generator.search.suggested >= 12",
            "jobs.train.parameters.epochs=120",
        ],
        file="training/ensemble.yaml",
        racing=True,
        groups=frozenset({"train"}),
        kills=1,
    ),
    "retrain/online": Study(online, file="retrain/online.yaml", racing=True, kills=1),
    # Which of two repeated swings gets which index depends on the ends of jobs, and the analyses name
    # a swing by its index.
    "branches": Study(
        branches, file="branches/ensemble.yaml", groups=frozenset({"swing"}), kills=1
    ),
    "parameters/bisect": Study(bisect, file="parameters/bisect.yaml", kills=1),
    "parameters/function": Study(function, file="parameters/function.yaml", kills=1),
    "parameters/optimise": Study(optimise, file="parameters/optimise.yaml", kills=1),
}

if __name__ == "__main__":
    sys.exit(main(USE_CASES))
