"""Tests of generators on the command line: points of a run, a faulty generator, a killed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from ensemble_testing import wait_until

from ensemble_core import open_run
from ensemble_core.cli.main import main

FILE = """\
jobs:
  - name: sim
    command: {command}
    observe: {{json-lines: {{fields: [E]}}}}
    result: {{E: last.E}}
generators:
  - name: search
    use: {use}
    group: sim
    variables: {{x: [-2.0, 2.0], n: {{values: [1, 2]}}}}
    objectives: {{E: minimize}}
    at_once: 2
    timeout: {timeout}
    until: count.done >= {count}
"""
JOB = [sys.executable, "-c", "print('{\"E\": %s}' % (({x} - 1) ** 2 + {n}))"]


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    file = tmp_path / "study.yaml"
    text = FILE.format(command=json.dumps(JOB), use="random", timeout=600, count=6)
    file.write_text(text, "utf-8")
    return file


def ensemble(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(main, [*arguments, "--state", str(tmp_path / "state")])
    return found.exit_code, found.output


def points(tmp_path: Path) -> list[dict[str, object]]:
    code, output = ensemble(tmp_path, "results", "last", "search", "--json")
    assert code == 0, output
    found: list[dict[str, object]] = json.loads(output)
    return found


def test_results_show_all_points_of_a_generator_best_first(tmp_path: Path, run_file: Path) -> None:
    code, output = ensemble(tmp_path, "run", "--executor", "local", str(run_file))
    assert code == 0, output
    rows = points(tmp_path)
    assert [list(row) for row in rows] == [["point", "state", "x", "n", "E"]] * len(rows)
    assert len(rows) == 7
    values = [float(str(row["E"])) for row in rows]
    assert values == sorted(values)
    assert {str(row["state"]) for row in rows} == {"done"}
    assert list(open_run("last", state=tmp_path / "state").results("search")) == rows
    code, output = ensemble(tmp_path, "replay", "last")
    assert code == 0, output


@pytest.mark.checkout
def test_simulation_has_the_same_points_as_the_run(tmp_path: Path, run_file: Path) -> None:
    ensemble(tmp_path, "run", "--executor", "local", str(run_file))
    real = {row["point"]: row["x"] for row in points(tmp_path)}
    text = run_file.read_text("utf-8")
    model = "{sim: {duration: 5, rows: {every: 1, columns: {E: '(x - 1) ** 2 + n'}}}}"
    run_file.write_text(f"{text}simulate: {{jobs: {model}}}\n", "utf-8")
    simulated = tmp_path / "simulated"
    code, output = ensemble(simulated, "simulate", str(run_file))
    assert code == 0, output
    found = {row["point"]: row["x"] for row in points(simulated)}
    assert {number: found[number] for number in range(6)} == {n: real[n] for n in range(6)}


def test_first_points_are_the_best_of_an_earlier_run_and_stored_with_the_run(
    tmp_path: Path, run_file: Path
) -> None:
    folder = {"ENSEMBLE_STATE": str(tmp_path / "state")}

    def said(*args: str, code: int = 0) -> str:
        done = CliRunner().invoke(main, [*args], env=folder)
        assert done.exit_code == code, done.output
        return done.output

    given = ("-q", "--executor", "local")
    said("run", *given, "--tag", "one", str(run_file))
    best = [
        line.split(",")[2:] for line in said("results", "one", "search", "--csv").splitlines()[1:3]
    ]
    later = tmp_path / "later.yaml"
    text = run_file.read_text().replace("count.done >= 6", "count.done >= 4")
    later.write_text(text + "    first: {run: one, best: 2}\n    with: {seed: 7}\n")
    said("run", *given, "--tag", "two", "--reuse", "one", str(later))
    rows = {line.split(",")[0]: line.split(",")[2:] for line in
            said("results", "two", "search", "--csv").splitlines()}  # fmt: skip
    assert [rows["0"], rows["1"]] == best
    assert (
        said("metrics", "two", "count.sim.reused", "--csv").splitlines()[1] == "count.sim.reused,2"
    )
    said("clean", "one")
    later.write_text(later.read_text().replace(">= 4", ">= 6"))
    said("resume", "-q", "two", "--accept-changes")
    done = said("metrics", "two", "count.sim.done", "--csv").splitlines()[1]
    assert done in ("count.sim.done,6", "count.sim.done,7")
    assert "byte for byte" in said("replay", "two")
    assert "there is no run" in said("run", *given, "--tag", "three", str(later), code=2)
    later.write_text(later.read_text().replace("run: one", "run: two, generator: serach"))
    wrong = said("run", *given, "--tag", "three", str(later), code=2)
    assert "did you mean 'search'?" in wrong


def test_generator_that_hangs_times_out_and_a_resume_continues(tmp_path: Path) -> None:
    plugin = tmp_path / "odd.py"
    plugin.write_text(
        """
import os, time
from ensemble_core import Generator, GeneratorPlugin, hookimpl


class Odd(Generator):
    number = 0

    def suggest(self, count):
        while self.number >= 2 and not os.path.exists("mended"):
            time.sleep(0.05)
        points = [{"x": float((self.number + i) % 3 - 1), "n": 1} for i in range(count)]
        self.number += count
        return points

    def resume(self, exchanges):
        self.number = sum(len(each.suggested) for each in exchanges)


@hookimpl
def ensemble_generators():
    return [GeneratorPlugin(name="odd", summary="odd", build=lambda vocs, options: Odd())]
""",
        "utf-8",
    )
    file = tmp_path / "study.yaml"
    text = FILE.format(command=json.dumps(JOB), use="odd", timeout=5, count=4)
    file.write_text(text, "utf-8")
    state = ["--state", str(tmp_path / "state")]

    def told(*arguments: str) -> tuple[int, str]:
        found = subprocess.run(
            [sys.executable, "-m", "ensemble_core.cli", *arguments, *state],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        return found.returncode, found.stdout + found.stderr

    code, output = told("run", "--plugin", str(plugin), "--executor", "local", str(file))
    assert code == 1, output
    assert "generator 'search' gave no answer within 5 s" in output
    (tmp_path / "mended").touch()
    code, output = told("resume", "last")
    assert code == 0, output
    assert len(points(tmp_path)) == 5


@pytest.mark.parametrize("pause", [3, 9])
def test_killed_run_neither_loses_nor_duplicates_points(
    tmp_path: Path, run_file: Path, pause: int
) -> None:
    """Kill the run after some recorded events, and resume it."""
    state = tmp_path / "state"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "ensemble_core.cli", "run", "--json", "--executor", "local"]
    with subprocess.Popen(
        [*command, str(run_file), "--state", str(state)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    ) as running:
        assert running.stdout is not None
        ended = 0
        for line in running.stdout:
            ended += b'"call-returned"' in line or b'"finish"' in line
            if ended >= pause:
                break
        running.send_signal(signal.SIGKILL)
        running.wait()
    wait_until(lambda: running.poll() is not None)
    code, output = ensemble(tmp_path, "resume", "last")
    assert code == 0, output
    rows = points(tmp_path)
    assert sorted(int(str(row["point"])) for row in rows) == list(range(len(rows)))
    assert {str(row["state"]) for row in rows} == {"done"}
    code, output = ensemble(tmp_path, "metrics", "last", "generator.search.ingested", "--json")
    assert code == 0, output
    assert str(len(rows)) in output
    undisturbed = tmp_path / "undisturbed"
    ensemble(undisturbed, "run", "--executor", "local", str(run_file))
    plain = {row["point"]: row["x"] for row in points(undisturbed)}
    found = {row["point"]: row["x"] for row in rows}
    both = found.keys() & plain.keys()
    assert len(both) >= 6
    assert {number: found[number] for number in both} == {number: plain[number] for number in both}


VERSIONED = """
from ensemble_core import Generator, GeneratorPlugin, hookimpl


class Walk(Generator):
    number = 0

    def suggest(self, count):
        if self.number >= MOST:
            raise RuntimeError("no further")
        found = [{"x": (self.number + i) * STEP, "n": 1} for i in range(count)]
        self.number += count
        return found

    def ingest(self, points):
        with open("told", "a") as file:
            for point in points:
                file.write(f"VERSION {point.number} {point.parameters['x']} {point.values['E']}\\n")

    def resume(self, exchanges):
        self.number = sum(len(each.suggested) for each in exchanges)


@hookimpl
def ensemble_generators():
    options = {"type": "object", "properties": OPTIONS}
    build = lambda vocs, options: Walk()
    return [GeneratorPlugin(name="walk", summary="walks", build=build, options=options)]
"""


def test_upgraded_plugin_does_not_change_recorded_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new version would suggest other points. It keeps recorded points and continues."""
    monkeypatch.chdir(tmp_path)
    plugin, file = tmp_path / "walk.py", tmp_path / "study.yaml"

    def install(version: int, step: float, most: int, options: str) -> None:
        text = VERSIONED.replace("VERSION", f"v{version}").replace("STEP", str(step))
        plugin.write_text(text.replace("MOST", str(most)).replace("OPTIONS", options), "utf-8")

    def told(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "ensemble_core.cli", *arguments]
        found = subprocess.run(
            [*command, "--state", str(tmp_path / "state")],
            capture_output=True,
            text=True,
            check=False,
        )
        return found.returncode, found.stdout + found.stderr

    text = FILE.format(command=json.dumps(JOB), use="walk", timeout=600, count=5)
    file.write_text(f"{text}    with: {{pace: 1}}\n", "utf-8")
    install(1, 0.25, 3, "{'pace': {'type': 'integer'}}")
    code, output = told("run", "--plugin", str(plugin), "--executor", "local", str(file))
    assert code == 1, output
    assert "raised RuntimeError: no further" in output
    before = {row["point"]: row["x"] for row in points(tmp_path)}
    assert before == {number: number * 0.25 for number in range(len(before))}

    install(2, -0.1, 99, "{'speed': {'type': 'integer'}}")
    code, output = told("resume", "last")
    assert code == 2, (
        output
    )  # the new version rejects the option: reported with its place, nothing is lost
    assert "unknown key 'pace'" in output

    install(3, -0.1, 99, "{'pace': {'type': 'integer'}, 'speed': {'type': 'integer'}}")
    code, output = told("resume", "last")
    assert code == 0, output
    after = {row["point"]: row["x"] for row in points(tmp_path)}
    assert {number: after[number] for number in before} == before
    assert {*after} == {*range(len(after))}
    assert all(after[number] == number * -0.1 for number in {*after} - {*before})
    last = [line.split() for line in (tmp_path / "told").read_text("utf-8").splitlines()]
    of_new = [int(number) for version, number, *_ in last if version == "v3"]
    assert {*of_new} >= {*after} - {*before}
    assert len(of_new) == len({*of_new})
    for _, number, x, value in last:
        assert float(x) == after[int(number)]
        assert float(value) == pytest.approx((float(x) - 1) ** 2 + 1)
    code, output = told("replay", "last")
    assert code == 0, output
