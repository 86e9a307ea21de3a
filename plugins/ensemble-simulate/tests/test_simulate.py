"""Tests of the output of ``ensemble simulate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ensemble_core import open_run
from ensemble_core.cli.main import main

STUDY = """
jobs:
  - name: sim
    command: ./sim {T}
    parameters: {T: [1, 2, 3, 4]}
    observe: {json-lines: {fields: [E]}}
    result: {E: last.E}
  - {name: after, command: ./after}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: sim}}
  - {id: hot, trigger: observed, name: sim, each: job, when: E > 12, action: {name: cancel}}
  - {id: then, trigger: count.sim.finished, when: value == 3, action: {name: submit, label: after}}
results:
  energies: {of: sim, columns: {T: T, E: E}}
simulate:
  jobs:
    sim: {duration: '100 * T', rows: {every: 10s, columns: {E: 'T * T'}}}
    after: 5m
"""
STUDY = STUDY.replace(
    "trigger: count.sim.finished, when: value == 3",
    "trigger: metric, name: count.sim.finished, when: value == 3",
)


def _simulate(folder: Path, text: str, *arguments: str, name: str = "study.yaml") -> Result:
    (folder / name).write_text(text)
    state = str(folder / "state")
    return CliRunner().invoke(main, ["simulate", str(folder / name), "--state", state, *arguments])


def _json(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


def test_a_study_is_narrated_on_a_virtual_clock_to_its_end(tmp_path: Path) -> None:
    result = _simulate(tmp_path, STUDY, "--nodes", "1", "--cores-per-node", "4", "--tag", "one")
    assert result.exit_code == 0, result.output
    assert "simulated jobs" in result.output
    assert "cancel sim.3" in result.output  # T = 4: E = 16 at its first row
    assert "ended after 10m" in result.output  # 300 s of T = 3, then 5 minutes
    assert "core-hours used: 0.253 (38% of 0.667)" in result.output


def test_results_why_and_jobs_read_the_simulated_run_and_resume_rejects_it(tmp_path: Path) -> None:
    _simulate(tmp_path, STUDY, "--cores-per-node", "4", "--tag", "one")
    state = ["--state", str(tmp_path / "state")]
    told = CliRunner().invoke(main, ["results", "one", "energies", "--csv", *state])
    assert told.stdout == "index,T,E\n0,1,1\n1,2,4\n2,3,9\n"
    why = CliRunner().invoke(main, ["why", "one", "hot", *state])
    assert "fired" in why.stdout
    resumed = CliRunner().invoke(main, ["resume", "one", *state])
    assert resumed.exit_code == 2
    assert "simulated" in resumed.output


def test_a_limit_on_output_is_said_to_have_no_effect(tmp_path: Path) -> None:
    done = _simulate(tmp_path, f"limits: {{output: 1M}}\n{STUDY}")
    assert "limits.output has no effect: simulated jobs write no files" in done.output


def test_the_same_seed_gives_the_same_figures_with_any_number_of_workers(
    tmp_path: Path,
) -> None:
    text = STUDY.replace("'100 * T'", "'lognormal(100 * T, 0.4)', fail: {exit: 0.2}")
    arguments = ("--runs", "24", "--cores-per-node", "2", "--json")
    one = _json(_simulate(tmp_path, text, *arguments, "--workers", "1"))
    three = _json(_simulate(tmp_path, text, *arguments, "--workers", "3"))
    assert one == three
    other = _json(_simulate(tmp_path, text, *arguments, "--seed", "100"))
    assert other["runs"][0]["quantiles"] != one["runs"][0]["quantiles"]


def test_a_rule_that_never_fired_is_named_with_its_assumptions(tmp_path: Path) -> None:
    text = STUDY.replace("E > 12", "E > 100")
    result = _simulate(tmp_path, text, "--runs", "5")
    assert result.exit_code == 0, result.output
    assert "never fired: hot" in result.output
    assert "sim: 100 * T (the file)" in result.output
    assert "a model, not from a measurement" in result.output


def test_two_files_are_compared_with_the_same_random_numbers(tmp_path: Path) -> None:
    """If the files are the same, the difference is exactly zero."""
    text = STUDY.replace("'100 * T'", "'lognormal(100 * T, 0.5)'")
    (tmp_path / "other.yaml").write_text(text.replace("E > 12", "E > 8"))
    (tmp_path / "same.yaml").write_text(text)
    arguments = ("--runs", "20", "--cores-per-node", "1", "--json", "--vs")
    same = _json(_simulate(tmp_path, text, *arguments, str(tmp_path / "same.yaml")))
    assert same["difference"]["length"] == [0.0, 0.0]
    other = _json(_simulate(tmp_path, text, *arguments, str(tmp_path / "other.yaml")))
    mean, half = other["difference"]["core-hours"]
    assert mean + half < 0  # the job with T = 3 is cancelled as well


def test_an_endless_loop_is_reported_with_its_rule(tmp_path: Path) -> None:
    text = """
jobs: [{name: a, command: x}, {name: b, command: y}]
rules:
  - {id: begin, trigger: start, action: {name: submit, label: a}}
  - {id: ping, trigger: job-finish, name: a, repetitions: unlimited, action: {name: submit, label: b}}
  - {id: pong, trigger: job-finish, name: b, repetitions: unlimited, action: {name: submit, label: a}}
simulate: {jobs: {a: 1h, b: 2h}}
"""
    result = _simulate(tmp_path, text, "--runs", "2", "--for", "10d")
    assert result.exit_code == 1
    assert "2 of 2 runs did not end within 10d" in result.output
    assert "rules in an endless loop: p" in result.output
    once = _simulate(tmp_path, text, "--for", "1d")
    assert once.exit_code == 6
    assert "it did not end in time" in once.output


def test_functions_are_called_at_the_models_times(tmp_path: Path) -> None:
    text = """
jobs: [{name: a, command: x}]
custom: |
  def train(**kwargs):
      return Action({"name": "submit", "label": "a"})
rules:
  - {id: begin, trigger: start, action: {name: custom, label: train}}
simulate: {jobs: {a: 10s}, functions: {train: 50s}}
"""
    result = _simulate(tmp_path, text, "--run-code")
    assert result.exit_code == 0, result.output
    assert "ended after 1m 00s" in result.output
    assert "its functions are called: train" in result.output
    refused = _simulate(tmp_path, text, "--no-custom")
    assert refused.exit_code == 2
    assert "functions (train)" in refused.output


@pytest.mark.parametrize("more", [(), ("--runs", "2"), ("--functions", "called")])
def test_functions_of_a_file_are_not_called_without_consent(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    text = f"""
jobs: [{{name: a, command: x}}]
custom: |
  open({str(tmp_path / "ran")!r}, "w")
  def train(**kwargs):
      pass
rules:
  - {{id: begin, trigger: start, action: {{name: custom, label: train}}}}
simulate: {{jobs: {{a: 10s}}}}
"""
    refused = _simulate(tmp_path, text, *more)
    assert refused.exit_code == 2, refused.output
    assert "add --run-code" in refused.output
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "state").exists()


def test_a_time_limit_ends_a_job_like_a_queue(tmp_path: Path) -> None:
    text = STUDY.replace("command: ./sim {T}", "command: ./sim {T}\n    duration: 150s")
    result = _simulate(tmp_path, text, "--cores-per-node", "4", "--tag", "one")
    assert "2 by timeout" in result.output  # T = 2 and 3; T = 4 is cancelled before
    assert result.exit_code == 1


def test_a_cluster_grows_on_request_up_to_its_largest_size(tmp_path: Path) -> None:
    text = """
jobs: [{name: a, command: x, count: 8}]
rules:
  - {id: begin, trigger: start, action: {name: submit, label: a}}
  - {id: more, trigger: job-start, name: a, action: {name: grow, value: 3}}
simulate: {jobs: {a: 100s}}
"""
    small = _simulate(tmp_path, text, "--cores-per-node", "1")
    assert "ended after 13m 20s" in small.output, small.output
    large = _simulate(tmp_path, text, "--cores-per-node", "1", "--max-nodes", "4")
    assert "ended after 3m 20s" in large.output, large.output


def test_a_job_larger_than_the_cluster_is_rejected_like_by_a_queue(tmp_path: Path) -> None:
    text = STUDY.replace("command: ./after", "command: ./after, nodes: 9")
    result = _simulate(tmp_path, text, "--cores-per-node", "4")
    assert result.exit_code == 1
    assert "the job needs 9 nodes" in result.output


@pytest.mark.parametrize(
    ("old", "new", "place", "said"),
    [
        ("    after: 5m\n", "", "", "no model for the jobs of 'after'"),
        ("after: 5m", "aftre: 5m", ":18:5", "did you mean 'after'?"),
        ("100 * T", "100 * TT", ":17:21", "did you mean 'T'?"),
        ("after: 5m", "after: -3", ":18:12", "-3 is below 0"),
        ("after: 5m", "after: .nan", ":18:12", "not a finite number"),
        ("duration: '100", "duratoin: '100", ":17:11", "did you mean 'duration'?"),
        ("every: 10s", "every: 0", ":17:46", "interval of rows: 0"),
        ("{E: 'T", "{EE: 'T", ":17:61", "did you mean 'E'?"),
        (", rows: {every: 10s, columns: {E: 'T * T'}}", "", ":17:10", "no 'E', which rules use"),
        ("'100 * T',", "'100 * T', fail: {exti: 1},", ":17:39", "did you mean 'exit'?"),
        ("'100 * T',", "'100 * T', fail: {exit: 2},", ":17:45", "between 0 and 1"),
        ("  jobs:\n    sim: {d", "  job:\n    sim: {d", ":16:3", "did you mean 'jobs'?"),
        ("after: 5m", "after: {rows: {columns: {x: t}}, duration: 1}", ":18:19", "not observed"),
    ],
)
def test_an_invalid_model_is_rejected_with_its_place(
    tmp_path: Path, old: str, new: str, place: str, said: str
) -> None:
    assert old in STUDY
    result = _simulate(tmp_path, STUDY.replace(old, new))
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert f"study.yaml{place}" in result.output


def test_a_negative_drawn_duration_is_an_error_that_names_the_job(
    tmp_path: Path,
) -> None:
    text = STUDY.replace("'100 * T'", "'normal(1, 50)'")
    result = _simulate(tmp_path, text, "--runs", "3")
    assert result.exit_code == 2
    assert "invalid duration of sim." in result.output
    assert "lognormal" in result.output


def test_options_out_of_range_are_rejected(tmp_path: Path) -> None:
    for option, value in (("--nodes", "0"), ("--runs", "0"), ("--cores-per-node", "0")):
        result = _simulate(tmp_path, STUDY, option, value)
        assert result.exit_code == 2
        assert f"{option} is 0, expected 1 at least" in result.output
    result = _simulate(tmp_path, STUDY, "--wait", "lgonormal(5m, 1)")
    assert result.exit_code == 2
    assert "did you mean 'lognormal'?" in result.output


def test_the_jobs_of_a_simulated_run_are_in_its_tables(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        "jobs: [{name: sim, command: 'run {T}', parameters: {T: [1, 2, 3]}}]\n"
        "rules: [{trigger: start, action: {name: submit, label: sim}}]\n"
        "simulate: {jobs: {sim: {duration: 60}}}\n"
    )
    state = ["--state", str(tmp_path / "state")]
    played = CliRunner().invoke(main, ["simulate", str(file), *state])
    assert played.exit_code == 0, played.output
    told = CliRunner().invoke(main, ["jobs", "last", "--json", *state])
    rows = json.loads(told.stdout)
    assert [(row["T"], row["outcome"], row["duration"]) for row in rows] == [
        (T, "success", 60.0) for T in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("rows.csv", "t, E\n5, 1\n20, 13\n30, 14\n"),
        ("rows.jsonl", '{"t": 5, "E": 1}\n{"t": 20, "E": 13}\n'),
        ("even.csv", "E\n1\n13\n"),
    ],
)
def test_rows_come_from_a_recorded_file(tmp_path: Path, name: str, rows: str) -> None:
    """At 20 s, E exceeds 12 and all four jobs are cancelled."""
    (tmp_path / name).write_text(rows)
    text = STUDY.replace(
        "rows: {every: 10s, columns: {E: 'T * T'}}", f"rows: {{file: {name}, every: 10s}}"
    )
    assert text != STUDY
    result = _simulate(
        tmp_path,
        text,
        "--cores-per-node",
        "4",
        "--json",
        "--runs",
        "1",
        "--vs",
        str(tmp_path / "study.yaml"),
    )
    told = _json(result)["runs"][0]
    assert told["quantiles"]["cancelled"] == [4.0, 4.0, 4.0]
    assert told["rules"]["hot"]["first"] == [20.0, 20.0, 20.0]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("t,E\n5,x\n", "rows.csv:2:1: 'E' is not a number: 'x'"),
        ("t,E\n5,1\n4,1\n", "rows.csv:3:1: the row is at 4 s, but the previous one at 5"),
        ("t,EE\n5,1\n", "did you mean 'E'?"),
        (None, "rows.csv"),
    ],
)
def test_an_invalid_file_of_rows_is_rejected_with_its_line(
    tmp_path: Path, rows: str | None, said: str
) -> None:
    if rows is not None:
        (tmp_path / "rows.csv").write_text(rows)
    text = STUDY.replace("rows: {every: 10s, columns: {E: 'T * T'}}", "rows: {file: rows.csv}")
    result = _simulate(tmp_path, text)
    assert result.exit_code == 2, result.output
    assert said in result.output


def test_a_study_with_algorithms_is_simulated(tmp_path: Path) -> None:
    text = """
jobs:
  - {name: small, command: echo small, nodes: 1, count: 4}
  - {name: large, command: echo large, nodes: 2, count: 2}
use:
  - as: all
    rules:
      - {id: begin, trigger: start, action: {name: submit-next, count: 6, order: ascending}}
      - {id: over, trigger: idle, action: {name: switch, to: again}}
  - as: again
    enabled: false
    rules:
      - {id: begin, trigger: start, action: {name: submit, label: small}}
simulate: {jobs: {small: 1m, large: 2m}}
"""
    result = _simulate(tmp_path, text, "--nodes", "2", "--cores-per-node", "1", "--tag", "one")
    assert result.exit_code == 0, result.output
    # Four small jobs on two nodes, then two large ones, then the small ones again.
    assert "ended after 8m" in result.output
    told = _json(
        _simulate(tmp_path, text, "--nodes", "2", "--cores-per-node", "1", "--json", "--runs", "2")
    )
    assert told["runs"][0]["quantiles"]["jobs"] == [10.0, 10.0, 10.0]
    assert told["runs"][0]["rules"]["again-begin"]["share"] == 1.0


def test_a_shared_queue_delays_jobs(tmp_path: Path) -> None:
    """Each job waits for about an hour."""
    alone = _json(_simulate(tmp_path, STUDY, "--cores-per-node", "4", "--runs", "9", "--json"))
    shared = _json(
        _simulate(
            tmp_path,
            STUDY,
            "--cores-per-node",
            "4",
            "--runs",
            "9",
            "--json",
            "--wait",
            "lognormal(1h, 0.1)",
        )
    )
    before, after = (each["runs"][0]["quantiles"]["length"][1] for each in (alone, shared))
    assert 6000 < after - before < 10000  # two stages, each delayed by its jobs' longest wait


@pytest.mark.checkout
@pytest.mark.parametrize("how", ["within", "converted"])
def test_a_jobspec_is_simulated_through_an_ensemble_file(tmp_path: Path, how: str) -> None:
    pytest.importorskip("ensemble_jobspec")
    (tmp_path / "work.yaml").write_text("""
version: 1
resources:
  small: {type: slot, count: 1, with: [{type: core, count: 1}]}
tasks:
- {name: build, command: echo building, resources: small}
- {name: test, command: "echo testing", resources: small, replicas: 3, depends_on: [build]}
- {name: report, command: echo done, resources: small, depends_on: [test]}
""")
    text = "jobs: [{jobspec: work.yaml}]"
    if how == "converted":
        told = CliRunner().invoke(
            main, ["jobspec", "convert", str(tmp_path / "work.yaml"), "--to", "ensemble"]
        )
        assert told.exit_code == 0, told.output
        text = told.stdout
    text += "\nsimulate: {jobs: {build: 1m, test: 10m, report: 1m}}\n"
    result = _simulate(tmp_path, text, "--cores-per-node", "2")
    assert result.exit_code == 0, result.output
    assert "ended after 22m" in result.output  # three 'test' jobs on two cores


def test_a_jobspec_given_as_the_study_is_rejected_with_a_hint(
    tmp_path: Path,
) -> None:
    result = _simulate(tmp_path, "version: 1\nresources: {}\ntasks: [{command: hostname}]\n")
    assert result.exit_code == 2
    assert "this is a jobspec, not an ensemble file" in result.output
    assert "jobs: [{jobspec: study.yaml}]" in result.output
    assert "unknown key" not in result.output


def test_an_ensemble_file_with_tasks_is_not_taken_for_a_jobspec(tmp_path: Path) -> None:
    text = "tasks: [{name: a, command: hostname}]\n"
    rules = "rules: [{trigger: start, action: {name: submit, label: a}}]\n"
    result = _simulate(tmp_path, text + rules)
    assert result.exit_code == 2
    assert "jobspec" not in result.output
    assert "'jobs'" in result.output


GENERATOR = """
jobs:
  - name: sim
    command: ./sim {x}
    parameters: {x: null}
    observe: {json-lines: {fields: [E]}}
    result: {E: last.E}
generators:
  - name: search
    use: random
    group: sim
    variables: {x: [-5.0, 5.0]}
    objectives: {E: minimize}
    at_once: 4
    until: 'count.done >= 12'
    with: {seed: 1}
simulate:
  jobs:
    sim: {duration: '10 + x', rows: {every: 1s, columns: {E: 'x * x'}}}
"""


def test_a_study_with_a_generator_can_be_simulated_and_tested(
    tmp_path: Path,
) -> None:
    told = _json(
        _simulate(
            tmp_path, GENERATOR, "--cores-per-node", "4", "--runs", "12", "--workers", "2", "--json"
        )
    )["runs"][0]
    assert told["quantiles"]["jobs"][1] >= 12
    assert told["quantiles"]["length"][1] > 30
    test = tmp_path / "study.ensemble-test.yaml"
    test.write_text("""
ensemble: study.yaml
tests:
  - name: the next point is asked for when one is known
    given:
      - at: 1s
        row: {job: sim.0, E: 3}
      - at: 2s
        finished: sim.0
      - at: 3s
    expect:
      - {at: 1s, metric: {count.sim.submitted: 4}}
      - {at: 3s, metric: {count.sim.submitted: 5}}
""")
    tested = CliRunner().invoke(main, ["test", str(test)])
    assert tested.exit_code == 0, tested.output


def test_a_hanging_generator_does_not_block_the_simulation(tmp_path: Path) -> None:
    plugin = tmp_path / "stuck.py"
    plugin.write_text("""
import threading
from ensemble_core import Generator, GeneratorPlugin, hookimpl


class Stuck(Generator):
    def suggest(self, count):
        threading.Event().wait()


@hookimpl
def ensemble_generators():
    return [GeneratorPlugin(name="stuck", summary="stuck", build=lambda vocs, options: Stuck())]
""")
    text = GENERATOR.replace("use: random", "use: stuck\n    timeout: 0.2s")
    result = _simulate(tmp_path, text.replace("    with: {seed: 1}\n", ""), "--plugin", str(plugin))
    assert result.exit_code == 1, result.output
    assert "generator 'search' gave no answer within 0.2 s" in result.output


#: A study with filters, ``pivot``, ``all.``, ``reused`` and ``notify``.
CURVES = """
jobs:
  - name: g
    command: "./x {L} {T} {replica}"
    parameters: {L: [16, 32], T: [1, 2]}
    replicas: 2
    observe: {json-lines: {fields: [u]}}
    result: {U: mean.u(u > 0)}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: g}}
  - {id: more, trigger: idle, name: g, when: max.t.T(gap > 0) < min.t.T(gap < 0), action:
     [{name: submit, label: g, rows: all.t(abs(gap) > 1), with: {parameters: {L: 64}}},
      {name: log, message: "{mean.U(L == 16)} {all.count.done(T == 1)} {max.t.T(gap > 0)}"}]}
  - {id: over, trigger: end, action: {name: notify, to: bell, message: "all {state}"}}
results:
  t: {of: g(L < 64), by: [T], pivot: L, columns: {U: mean.U, gap: "U[32] - U[16]", new: n - reused}}
"""


def test_a_simulation_handles_filters_pivots_and_messages(tmp_path: Path) -> None:
    rows = (
        "simulate: {jobs: {g: {duration: 10m, rows: {every: 5m, columns:"
        " {u: 'max(1, 5 + (T - 1.5) * (16 - L) / 4)'}}}}}\n"
    )
    (tmp_path / "study.yaml").write_text(CURVES + rows)
    machine = ("--cores-per-node", "4", "--state", str(tmp_path / "state"), "--tag", "s1")
    result = CliRunner().invoke(main, ["simulate", str(tmp_path / "study.yaml"), *machine])
    assert result.exit_code == 0, result.output
    assert "log 5 4 1\n" in result.output
    assert "notify all ended" in result.output
    assert "\a" not in result.output
    words = ["results", "s1", "t", "--json", "--state", str(tmp_path / "state")]
    found = json.loads(CliRunner().invoke(main, words).output)
    assert [row["T"] for row in found] == [1, 2]
    assert found[0]["gap"] > 0 > found[1]["gap"]
    assert [row["new[16]"] for row in found] == [2, 2]


TIMED = """
limits: {at_once: {gpu: 1}}
jobs:
  - name: sim
    command: ./sim {k} {n}
    parameters: {k: [a, b], n: [1, 2]}
    at_once: {jobs: 1, each: [k]}
    observe: {json-lines: {fields: [T]}}
  - {name: post, command: ./post, count: 3, uses: gpu}
rules:
  - {id: begin, trigger: start, action: [{name: submit, label: sim}, {name: submit, label: post}]}
  - {id: warm, trigger: observed, name: sim, each: job, when: T > 50, for: 5m,
     action: {name: log, message: "{job} is warm"}}
  - {id: up, trigger: metric, name: max.sim-T, crosses: "> 50", action: {name: log, message: up}}
  - {id: bad, trigger: metric, name: count.sim.success(within 10m), when: ">= 2",
     action: {name: log, message: two ends}}
simulate:
  jobs:
    sim: {duration: 20m, rows: {every: 1m, columns: {T: t / 6}}}
    post: 30m
"""


def test_rules_that_say_time_and_limits_on_places_hold_on_the_virtual_clock(
    tmp_path: Path,
) -> None:
    result = _simulate(tmp_path, TIMED, "--cores-per-node", "16", "--tag", "one")
    assert result.exit_code == 0, result.output
    run = open_run("one", state=tmp_path / "state")
    with run.inspect() as inspection:
        firings = inspection.firings()
    first = firings[0]["time"]
    minutes = [(each["rule"], (each["time"] - first) / 60) for each in firings]
    warm = [("warm", 11), ("warm", 11), ("bad", 20), ("warm", 31), ("warm", 31)]
    assert minutes == [("begin", 0), ("up", 6), *warm]
    started = [(each["started"] - first) / 60 for each in run.jobs()]
    assert started == [0, 20, 0, 20, 0, 30, 60]  # one of each k, and one post, at a time
