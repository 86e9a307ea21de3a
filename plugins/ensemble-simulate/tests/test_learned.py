"""Tests of models learnt from a run: the simulation makes the same decisions as the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ensemble_core.cli.main import main

STUDY = """
jobs:
  - name: sim
    command: [sh, -c, 'for i in 1 2 3; do echo "{\\"E\\": $((i * {T}))}"; sleep 0.1; done; test {T} -ne 2']
    parameters: {T: [1, 2, 3, 4]}
    observe: {json-lines: {fields: [E]}}
    result: {E: last.E}
  - {name: after, command: [sh, -c, 'sleep 0.2; exit 3'], parameters: {T: null}, environment: {T: '{T}'}}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: sim}}
  - {id: hot, trigger: observed, name: sim, each: job, when: E > 7, action: {name: log, message: '{E}'}}
  - {id: then, trigger: job-success, name: sim, repetitions: 2, action: {name: vary, label: after}}
  - {id: again, trigger: job-fail, name: after, each: job, action: {name: retry}}
  - {id: end, trigger: idle, action: {name: log, message: over}}
"""


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learned")
    (folder / "study.yaml").write_text(STUDY)
    state = str(folder / "state")
    done = _run(
        "run", str(folder / "study.yaml"), "--slots", "1", "--state", state, "--tag", "real"
    )
    assert done.exit_code == 1, done.output
    return folder


def _decisions(kept: Path, tag: str) -> list[tuple[Any, ...]]:
    told = _run("events", tag, "--json", "--state", str(kept / "state"))
    assert told.exit_code == 0, told.output
    found: list[tuple[Any, ...]] = []
    for line in told.stdout.splitlines():
        data = json.loads(line)
        if data["kind"] == "decision":
            jobs = [
                str(job["id"] if isinstance(job, dict) else job) for job in data.get("jobs", ())
            ]
            found.append((data["type"], data.get("rule"), data.get("job"), jobs))
    return found


def _times(kept: Path, name: str) -> dict[str, float]:
    """Return the time of this event for each job of the real run."""
    told = _run("events", "real", "--json", "--state", str(kept / "state"))
    events = map(json.loads, told.stdout.splitlines())
    return {each["job"]: each["timestamp"] for each in events if each.get("name") == name}


def test_the_simulated_run_makes_the_real_runs_decisions(kept: Path) -> None:
    played = _run(
        "simulate", str(kept / "study.yaml"), "--model-from", "real", "--cores-per-node", "1",
        "--state", str(kept / "state"), "--tag", "played",
    )  # fmt: skip
    assert played.exit_code == 1, played.output
    real = _decisions(kept, "real")
    assert "retry" in {kind for kind, *_ in real}
    assert real[-1][0] == "terminate"
    assert _decisions(kept, "played") == real
    assert "run real, 4 jobs" in played.output


def test_other_jobs_of_the_group_are_drawn_from_the_measured_ones(kept: Path) -> None:
    played = _run(
        "simulate", str(kept / "study.yaml"), "--model-from", "real", "--cores-per-node", "1",
        "--set", "jobs.sim.parameters.T=[1, 2, 3, 4, 5, 6, 7, 8]", "--runs", "10", "--json",
        "--state", str(kept / "state"),
    )  # fmt: skip
    assert played.exit_code == 0, played.output
    told = json.loads(played.stdout.splitlines()[-1])["runs"][0]
    low, middle, high = told["quantiles"]["length"]
    began, ended = (_times(kept, name) for name in ("start", "finish"))
    took = [ended[job] - began[job] for job in began]
    assert 8 * min(took) < low <= middle <= high < 25 * max(took)  # eight jobs, retries, and others
    assert told["quantiles"]["failed"][1] > 2  # measured: 1 of 4 'sim' and all 'after' jobs failed


def test_durations_that_grow_with_a_parameter_are_found(kept: Path) -> None:
    from random import Random

    from ensemble_simulate.recorded_model import _durations, _RecordedAttempt

    from ensemble_core import Job
    from ensemble_core.cli.toolkit import RunningTime

    random = Random(3)
    seen = []
    for index in range(40):
        length = 8 + index % 10
        job = Job(id=f"a.{index}", group="a", index=index, command=("x",), parameters={"L": length})
        seconds = 2.0 ** (length / 4) * (1 + 0.02 * random.random())
        ran = RunningTime(seconds=seconds)
        seen.append(_RecordedAttempt(job, began=0.0, ended=seconds, ran=ran))
    learned = _durations(seen)
    assert learned.text == "regression on L over 40 jobs"
    assert learned.number({"L": 24}, random) == pytest.approx(64, rel=0.05)


def test_a_group_without_jobs_in_the_run_is_asked_for(kept: Path) -> None:
    text = STUDY.replace("{name: after,", "{name: other, command: x}\n  - {name: after,")
    (kept / "other.yaml").write_text(text)
    played = _run(
        "simulate", str(kept / "other.yaml"), "--model-from", "real", "--state", str(kept / "state")
    )
    assert played.exit_code == 2
    assert "no model for the jobs of 'other'" in played.output
    assert "none of their jobs ran in real" in played.output


def test_a_run_of_another_file_is_rejected_and_another_command_reported(kept: Path) -> None:
    arguments = ("--model-from", "real", "--state", str(kept / "state"), "--no-journal")
    (kept / "other.yaml").write_text(
        "jobs: [{name: fold, command: ./fold}]\n"
        "rules: [{trigger: start, action: {name: submit, label: fold}}]\n"
    )
    other = _run("simulate", str(kept / "other.yaml"), *arguments)
    assert other.exit_code == 2
    assert "run real belongs to another study: its job groups are sim, after" in other.output
    assert "those of" in other.output
    text = (kept / "study.yaml").read_text()
    (kept / "changed.yaml").write_text(text.replace("sleep 0.1", "sleep 0.3"))
    changed = _run("simulate", str(kept / "changed.yaml"), *arguments)
    assert "run real had another command for" in changed.output


def test_results_of_a_plugins_action_are_repeated_without_a_call(tmp_path: Path) -> None:
    plugin = tmp_path / "asking.py"
    plugin.write_text("""
from pathlib import Path

from ensemble_core import Action, ActionPlugin, hookimpl


def ask(context):
    with (Path(__file__).parent / "asked").open("a") as file:
        file.write(".")
    return Action({"name": "submit", "label": "after"})


@hookimpl
def ensemble_actions():
    return [ActionPlugin(name="ask", summary="asks what comes next", run=ask)]
""")
    (tmp_path / "study.yaml").write_text("""
jobs: [{name: sim, command: 'true'}, {name: after, command: 'true'}]
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {id: next, trigger: job-success, name: sim, action: {name: ask}}
""")
    more = (
        "--plugin",
        str(plugin),
        "--state",
        str(tmp_path / "state"),
        str(tmp_path / "study.yaml"),
    )
    assert _run("run", "-q", "--executor", "local", "--tag", "real", *more).exit_code == 0
    played = _run("simulate", "--model-from", "real", "--tag", "played", *more)
    assert played.exit_code == 0, played.output
    assert _decisions(tmp_path, "played") == _decisions(tmp_path, "real")
    assert (tmp_path / "asked").read_text() == "."  # once, in the real run


def test_a_job_that_the_run_did_not_have_prints_the_nearest_jobs_rows() -> None:
    from ensemble_simulate.distributions import Stream
    from ensemble_simulate.models import ReplayedRows

    lives = [({"T": 1.0}, 10.0, [(5.0, {"E": 1.0})]), ({"T": 3.0}, 20.0, [(20.0, {"E": 9.0})])]
    rows = ReplayedRows(lives, {"T": 2.0})
    assert list(rows.printed({"T": 1.8}, Stream("x"), 20.0)) == [(10.0, {"E": 1.0})]
    assert list(rows.printed({"T": 2.5}, Stream("x"), 10.0)) == [(10.0, {"E": 9.0})]
    either = {next(rows.printed({"T": 2.0}, Stream(str(n)), 1.0))[1]["E"] for n in range(20)}
    assert either == {1.0, 9.0}


def test_a_life_belongs_to_the_job_with_its_parameters_whatever_its_id() -> None:
    """If rules decide differently, an id may belong to another job."""
    from dataclasses import replace

    from ensemble_simulate.distributions import parse
    from ensemble_simulate.models import GroupModel, Model, Recorded, keys_of

    from ensemble_core import Job

    hot = Job(id="a.0", group="a", index=0, command=("x",), parameters={"T": 9})
    cold = replace(hot, parameters={"T": 1})
    elsewhere = replace(cold, id="a.7", index=7)
    lives = {key: Recorded(9.0, None, 0) for key in keys_of(hot)}
    lives |= {key: Recorded(1.0, None, 0) for key in keys_of(elsewhere)}
    model = Model({"a": GroupModel(parse(5.0, ()), recorded=lives)})
    assert [model.life(job).seconds for job in (hot, cold, elsewhere)] == [9.0, 1.0, 1.0]
    assert model.life(replace(hot, parameters={"T": 4})).seconds == 5.0


def test_functions_that_read_files_of_jobs_return_recorded_results_if_requested(
    tmp_path: Path,
) -> None:
    """A simulated run has no output of jobs. The calls are sequential, because the order of
    concurrent calls depends on the machine.
    """
    (tmp_path / "study.yaml").write_text(
        """
jobs:
  - {name: sim, command: 'touch DIR/real'}
  - {name: after, command: 'true'}
custom: |
  from pathlib import Path

  def look(**kwargs):
      file = Path("DIR/real")
      if file.exists():
          file.unlink()
          return Action({"name": "submit", "label": "after"})
      return Action({"name": "log", "message": "there is no file"})
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {id: look, trigger: job-success, name: sim, action: {name: custom, label: look}}
  - {id: again, trigger: job-success, name: after, action: {name: custom, label: look}}
""".replace("DIR", str(tmp_path))
    )
    state = ("--state", str(tmp_path / "state"))
    file = str(tmp_path / "study.yaml")
    assert _run("run", "-q", "--slots", "1", "--tag", "real", *state, file).exit_code == 0
    words = ("simulate", "--model-from", "real", "--cores-per-node", "1", *state, file)
    recorded = _run(*words, "--functions", "recorded", "--tag", "played")
    assert recorded.exit_code == 0, recorded.output
    assert "its functions return their recorded results: Path, look" in recorded.output
    real = _decisions(tmp_path, "real")
    assert ("submit", "look", None, ["after.0"]) in real
    assert _decisions(tmp_path, "played") == real
    assert "there is no file" in _run(*words, "--run-code", "--tag", "called").output
    refused = _run("simulate", "--functions", "recorded", *state, file)
    assert refused.exit_code == 2
    assert "'--functions recorded' needs a run with recorded results" in refused.output


def test_a_function_that_failed_fails_again_with_recorded_functions(
    tmp_path: Path,
) -> None:
    """The function reads a file of the run's jobs. Called now, it would succeed."""
    (tmp_path / "study.yaml").write_text(
        """
jobs:
  - {name: sim, command: 'true'}
custom: |
  from pathlib import Path

  def look(**kwargs):
      first = Path("DIR/called")
      if not first.exists():
          first.touch()
          raise ValueError("half a file")
      return Action({"name": "log", "message": "called again"})
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {id: look, trigger: job-success, name: sim, action: {name: custom, label: look}}
""".replace("DIR", str(tmp_path))
    )
    state = ("--state", str(tmp_path / "state"))
    file = str(tmp_path / "study.yaml")
    real = _run("run", "-q", "--tag", "real", *state, file)
    words = ("simulate", "--model-from", "real", "--functions", "recorded", *state, file)
    played = _run(*words, "--tag", "played")
    assert (real.exit_code, played.exit_code) == (1, 1)
    assert "called again" not in played.output
    assert "look raised ValueError: half a file" in played.output


def test_recorded_calls_have_their_durations_and_results_in_order() -> None:
    from ensemble_simulate.models import Calls, RecordedCall, key_of_call

    from ensemble_core import EnsembleError
    from ensemble_core.cli.toolkit import Call

    def call(number: int, kind: Any, job: str | None = None) -> Call:
        about = None if job is None else {"job": job}
        return Call(call=str(number), kind=kind, name="ask", job=about)

    error = EnsembleError("ask raised ValueError")
    kept = {key_of_call("ask", None): [RecordedCall(3.0, [{"a": 1}]), RecordedCall(4.0, error)],
            key_of_call("ask", {"job": "sim.0"}): [RecordedCall(5.0, [{"b": 1}])]}  # fmt: skip

    def played(functions: bool, *calls: Call) -> list[Any]:
        one = Calls(kept, lambda call: 9.0, functions=functions)
        return [(one.takes(each), one.answer(each)) for each in calls]

    of_run = [call(number, "custom") for number in range(3)]
    assert played(True, *of_run) == [(3.0, [{"a": 1}]), (4.0, error), (9.0, None)]
    assert played(False, *of_run) == [(3.0, None), (4.0, None), (9.0, None)]
    more = [call(number, "action") for number in range(3)]
    assert played(False, *more) == [(3.0, [{"a": 1}]), (4.0, error), (9.0, [{"a": 1}])]
    of_job = [call(number, "action", "sim.0") for number in range(2)]
    assert played(False, *of_job) == [(5.0, [{"b": 1}]), (9.0, [{"b": 1}])]
    assert played(True, call(0, "generator")) == [(3.0, None)]


def test_a_cancelled_job_prints_and_runs_until_it_has_ended_as_recorded(tmp_path: Path) -> None:
    """When the job is cancelled, it cleans up for a second."""
    (tmp_path / "study.yaml").write_text("""
jobs:
  - name: sim
    command:
      - python3
      - -c
      - |
        import signal, sys, time
        def end(*told):
            time.sleep(1)
            print('{"E": 2}', flush=True)
            sys.exit(1)
        signal.signal(signal.SIGTERM, end)
        print('{"E": 1}', flush=True)
        time.sleep(60)
    observe: {json-lines: {fields: [E]}}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {id: enough, trigger: observed, name: sim, when: E == 1, action: {name: cancel}}
  - {id: dead, trigger: job-cancel, name: sim, action: {name: log, message: dead}}
""")
    state = ("--state", str(tmp_path / "state"))
    file = str(tmp_path / "study.yaml")
    assert _run("run", "-q", "--tag", "real", *state, file).exit_code == 0
    assert _run("simulate", "--model-from", "real", "--tag", "played", *state, file).exit_code == 0
    assert _decisions(tmp_path, "played") == _decisions(tmp_path, "real")
    took = []
    for tag in ("real", "played"):
        told = _run("events", tag, "--json", *state).stdout.splitlines()
        events = [json.loads(line) for line in told]
        assert [each["values"]["E"] for each in events if each["type"] == "observed"] == [1, 2]
        (asked,) = (each["timestamp"] for each in events if each["type"] == "cancel")
        (died,) = (each["timestamp"] for each in events if each.get("name") == "finish")
        took.append(died - asked)
    assert took[0] > 1.0
    assert took[1] == pytest.approx(took[0], abs=1e-3)


def test_the_time_in_which_a_job_was_suspended_is_not_part_of_its_learned_duration(
    tmp_path: Path,
) -> None:
    study = """
jobs:
  - name: sim
    command: [sh, -c, 'echo E={T}; (sleep 4; kill -CONT $$) & kill -STOP $$; echo E=7; sleep 0.5']
    parameters: {T: [1]}
    observe: {key-value: {fields: [E]}}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: sim}}
"""
    (tmp_path / "study.yaml").write_text(study)
    there = (str(tmp_path / "study.yaml"), "--state", str(tmp_path / "state"))
    assert _run("run", *there, "--tag", "real").exit_code == 0
    played = _run("simulate", *there, "--model-from", "real", "--tag", "played")
    assert played.exit_code == 0, played.output

    def jobs(tag: str) -> dict[str, Any]:
        told = _run("jobs", tag, "--json", "--state", str(tmp_path / "state"))
        (row,) = json.loads(told.stdout)
        return dict(row)

    real, simulated = jobs("real"), jobs("played")
    assert real["interrupted"] > 1
    assert simulated["duration"] == pytest.approx(real["duration"])
    # Rows come as late as the job had run when it printed them.
    assert _rows(tmp_path, "played")[-1] <= simulated["duration"]


def test_jobs_that_the_run_cancelled_are_counted_because_they_would_have_run_longer(
    tmp_path: Path,
) -> None:
    study = """
jobs:
  - {name: sim, command: 'sleep {T}', parameters: {T: [0.2, 600]}}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: sim}}
  - {trigger: job-success, name: sim, action: {name: terminate}}
"""
    (tmp_path / "study.yaml").write_text(study)
    there = (str(tmp_path / "study.yaml"), "--state", str(tmp_path / "state"))
    assert _run("run", *there, "--slots", "2", "--tag", "real").exit_code == 0
    played = _run("simulate", *there, "--model-from", "real")
    said = "run real, 2 jobs, 1 of them cancelled before their end, so durations may be too short"
    assert said in played.output


def _rows(folder: Path, tag: str) -> list[float]:
    """Return when rows were printed, in seconds since the job's start."""
    told = _run("events", tag, "--json", "--state", str(folder / "state"))
    events = [json.loads(line) for line in told.stdout.splitlines()]
    (began,) = (each["timestamp"] for each in events if each.get("name") == "start")
    return [each["timestamp"] - began for each in events if each.get("type") == "observed"]
