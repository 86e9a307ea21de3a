"""Tests of ``ensemble test``, which tests rules without a queue, a clock or a job."""

from __future__ import annotations

import inspect
import json
import os
import re
import sqlite3
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ensemble_testing.rule_tests import given_steps as words

from ensemble_core.cli.main import main
from ensemble_core.journal.damage_detection import WRITE_ALL, add_functions
from ensemble_core.model.events import Event

EXAMPLES = Path(__file__).parents[3] / "examples"

#: The study on the manual's page, with a rule for each kind of event.
STUDY = """
logging: {heartbeat: 60s}
jobs:
  - {name: sim, command: ./sim, count: 4, observe: {json-lines: {fields: [Temp]}}}
  - {name: after, command: ./after}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: sim}}
  - {id: too-hot, trigger: observed, name: sim, each: job, when: Temp > 4, action: {name: cancel}}
  - {id: melted, trigger: metric, name: mean.sim-Temp, when: "> 100", action: {name: terminate, exit_code: 3}}
  - {id: lost-one, trigger: metric, name: count.sim.failed, when: 1, action: {name: submit, label: after}}
  - {id: slow, trigger: job-exception, name: sim, when: type == "timeout", repetitions: 9,
     action: {name: log, message: "{job} was slow"}}
  - {id: nodes, trigger: metric, name: nodes.up, when: 3, action: {name: log, message: three nodes}}
  - {id: more, trigger: job-start, name: after, action: {name: grow, value: 2}}
  - {id: had, trigger: resize-granted, action: {name: log, message: "{size} nodes"}}
  - {id: later, trigger: interval, seconds: 300, repetitions: 2, action: {name: log, message: time}}
"""

#: The test on the manual's page, verbatim.
PAGE = """
ensemble: study.yaml
tests:
  - name: a hot run is cancelled once
    given:
      - submitted: {sim: 4}
      - at: 10s
        row: {job: sim.0, Temp: 4.2}
      - at: 20s
        finished: {job: sim.1, exit_code: 75}
    expect:
      - at: 10s
        fired: too-hot
        decisions: [{cancel: sim.0}]
      - never: melted
      - metric: {count.sim.failed: 1}
"""


def _test(folder: Path, text: str, *arguments: str, study: str = STUDY) -> Result:
    (folder / "study.yaml").write_text(study)
    file = folder / "study.ensemble-test.yaml"
    file.write_text(text)
    return CliRunner().invoke(main, ["test", str(file), *arguments])


def _one(folder: Path, given: str, expect: str, study: str = STUDY, *arguments: str) -> Result:
    """Run one test with these steps and expectations, one per line of YAML."""
    text = "ensemble: study.yaml\ntests:\n  - name: it\n    given:\n"
    text += "".join(f"      - {line.strip()}\n" for line in given.strip().splitlines())
    text += "    expect:\n"
    text += "".join(f"      - {line.strip()}\n" for line in expect.strip().splitlines())
    return _test(folder, text, *arguments, study=study)


def test_the_manuals_test_passes_and_lists_untested_rules(tmp_path: Path) -> None:
    result = _test(tmp_path, PAGE)
    assert result.exit_code == 0, result.output
    assert "1 test passed" in result.output
    assert "3 of 9 rules fired in the tests; never fired: melted, slow, nodes" in result.output


def test_a_failure_shows_the_step_the_expectation_the_decisions_and_the_reason(
    tmp_path: Path,
) -> None:
    result = _test(tmp_path, PAGE.replace("Temp: 4.2", "Temp: 3.9"))
    assert result.exit_code == 1
    told = result.output
    assert re.search(r"study\.ensemble-test\.yaml:\d+:\d+: a hot run is cancelled once", told)
    assert "expected: too-hot fires at 10 s" in told
    assert "decided:  too-hot did not fire" in told
    assert "expected: decisions by too-hot at 10 s: [{cancel: sim.0}]" in told
    assert "its condition was false: Temp=3.9" in told
    assert "It has not fired so far: 'Temp > 4' was false once (last Temp=3.9)" in told


@pytest.mark.parametrize(
    ("given", "expect", "said"),
    [
        ("at: 10s\n", "never: begin", "at 0 s begin fired: [{submit: [sim.0, sim.1, sim.2, sim.3]}]"),
        ("", "metric: {count.sim.submitted: 5}", "count.sim.submitted is 4"),
        ("", "metric: {mean.sim-Temp: '> 1'}", "mean.sim-Temp has no value"),
        ("", "{at: 0s, fired: [], metric: {nodes.up: null}}", "begin fired"),
        ("finished: sim", "ended: 1", "the run continues"),  # rule 'later' still waits
        ("{at: 11m, finished: sim}", "ended: 4", "ended with exit code 0: nothing more can happen"),
        ("{at: 11m, finished: sim}", "ended: false", "ended with exit code 0"),
        ("", "{at: 0s, fired: begin, decisions: [{submit: after}]}", "[{submit: [sim.0"),
        ("", "fired: {begin: 2}", "begin fired"),
        ("{at: 5s, finished: sim.0}\n{at: 6s, finished: sim.0}", "fired: begin", "sim.0 is already over"),
        ("started: sim.9", "fired: begin", "sim.9 was not submitted; jobs in the queue: sim.0, sim.1"),
        ("resized: granted", "fired: begin", "no request for nodes is open"),
        ("submitted: {sim: 2}", "fired: begin", "4 jobs of sim were submitted"),
        ("{at: 1s, stopped: enough}\n{at: 9s, finished: sim}", "fired: begin", "the run ended at 1 s: enough"),
    ],
)  # fmt: skip
def test_an_unmet_expectation_fails(tmp_path: Path, given: str, expect: str, said: str) -> None:
    result = _one(tmp_path, given or "at: 0s", expect)
    assert result.exit_code == 1, result.output
    assert said in result.output


@pytest.mark.parametrize(
    ("given", "expect"),
    [
        ("start: {nodes.up: 3}", "{at: 0s, fired: nodes, decisions: [{log: three nodes}]}"),
        ("at: 1m\n{at: 2m, gauges: {nodes.up: 3}}", "{at: 2m, fired: {nodes: 1}}"),
        ("{at: 11m}", "{at: 5m, fired: later}\n{at: 10m, fired: later}\nfired: {later: 2}"),
        ("{at: 1s, failed: {job: sim, cause: timeout}}", "fired: {slow: 4}\nmetric: {count.sim.failed: 4}"),
        ("failed: {job: sim.2, cause: memory}", "fired: lost-one\ndecisions: [{submit: sim}, {submit: after.0}]"),
        ("failed: {job: sim.2, cause: lost}", "metric: {count.sim.failed: 1}"),
        ("failed: {job: sim.2, cause: submit}", "metric: {count.sim.failed: 1, mean.sim-duration: null}"),
        ("{at: 1s, finished: {job: sim.3, signal: 9}}", "fired: lost-one"),
        ("cancelled: [sim.0, sim.1]", "metric: {count.sim.cancelled: 2}"),
        ("ran: {job: sim, pending: 1m, duration: 3m}\nat: 5m", "metric: {mean.sim-duration: 180, mean.sim-pending: 60}"),
        ("ran: {job: sim.0, duration: 1m, exit_code: 2}\nat: 2m", "{at: 1m, fired: lost-one}"),
        ("{at: 1s, rows: {job: sim.0, every: 2s, Temp: [1, 5, 9]}}\nat: 9s", "{at: 3s, fired: too-hot, decisions: [{cancel: sim.0}]}"),
        ("{at: 1s, finished: {job: sim.0, exit_code: 1}}\n{at: 2s, started: after}\n{at: 3s, resized: {outcome: granted, size: 5}}", "{at: 2s, fired: more, decisions: [{grow: 2}]}\n{at: 3s, fired: had, decisions: [{log: 5 nodes}]}"),
        ("{at: 1s, reused: {job: sim.0, rows: [{Temp: 1}, {Temp: 5}], duration: 3m}}\n{at: 2s, finished: sim.1}", "{at: 1s, fired: too-hot}\nmetric: {count.sim.cancelled: 1}"),
        ("reused: {job: sim, rows: [{Temp: 1}], duration: 3m}", "metric: {count.sim.reused: 4, mean.sim-duration: 180, mean.sim-Temp: 1}"),
        ("requested: {name: submit, label: after}", "metric: {count.after.submitted: 1}"),
        ("requested: {name: disable, rules: too-hot}\n{at: 1s, row: {job: sim.0, Temp: 9}}", "never: too-hot"),
        ("{at: 2s, stopped: {reason: enough, exit_code: 9}}", "{at: 2s, ended: {exit_code: 9, reason: enough}}"),
        ("{at: 2s, stopped: {exit_code: 5, then: cancel-left}}", "{at: 2s, ended: {exit_code: 5}}"),
        ("queue-lost: it burnt", "ended: 1"),
        ("problem: {message: no more disk, level: error}", "fired: begin"),
        ("job-event: {job: sim.0, name: exception, context: {type: timeout, severity: 1, note: slow}}", "fired: slow"),
    ],
)  # fmt: skip
def test_each_kind_of_event_has_a_word(tmp_path: Path, given: str, expect: str) -> None:
    result = _one(tmp_path, given, expect)
    assert result.exit_code == 0, result.output


#: A study of 16 values with 3 jobs each. Limits hold some of the jobs.
LIMITED = """
limits: {LIMITS}
jobs:
  - {name: ising, command: "./ising {T}", count: 3, duration: 2m, parameters: {T: {from: 1, to: 16}},
     observe: {json-lines: {fields: [E]}}}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: ising}}
  - {id: hot, trigger: observed, name: ising, each: job, when: E > 3,
     action: [{name: cancel}, {name: log, message: "{job} was too hot"}]}
"""


@pytest.mark.parametrize(
    ("limits", "held"),
    [
        ("limits: {core_hours: 0.5}", "held by limits.core_hours (0.5; 0 used, 0.5 committed)"),
        ("limits: {jobs: 15}", "held by limits.jobs (15; 15 used, 0 committed)"),
        ("limits: {submits_per_second: 15}", "held by limits.submits_per_second (15)"),
        ("at_once: 15", "held by at_once: 15"),
    ],
)
def test_jobs_held_by_a_limit_count_as_submitted_and_the_limit_is_named(
    tmp_path: Path, limits: str, held: str
) -> None:
    study = LIMITED.replace("limits: {LIMITS}", limits)
    if limits.startswith("at_once"):
        study = LIMITED.replace("limits: {LIMITS}", "").replace("count: 3", f"count: 3, {limits}")
    metric = "metric: {count.ising.submitted: 48}"
    result = _one(tmp_path, "submitted: {ising: 48}", metric, study=study)
    assert result.exit_code == 0, result.output
    result = _one(tmp_path, "submitted: {ising: 60}", "ended: 0", study=study)
    said = f"48 jobs of ising were submitted (33 {held}), and each submit adds a multiple of 16"
    assert said in result.stdout
    result = _one(tmp_path, "finished: ising.40", "ended: 0", study=study)
    assert f"ising.40 is not in the queue (1 {held})" in result.stdout


def test_a_message_is_compared_only_if_the_test_names_one(tmp_path: Path) -> None:
    """Unless the test names them, the limit's warning and the rule's message are ignored."""
    study = LIMITED.replace("{LIMITS}", "{core_hours: 0.5}")
    given = "started: ising\n{at: 1s, row: {job: ising.3, E: 4}}"
    for expect in (
        "{at: 1s, fired: hot, decisions: [{cancel: ising.3}]}",
        "{at: 1s, fired: hot, decisions: [{cancel: ising.3}, {log: too hot}]}",
        "{at: 0s, fired: begin, decisions: [{submit: {ising: 15}}]}",
        "{at: 0s, fired: begin, decisions: [{submit: {ising: 15}}, {log: 33 of 48 jobs are held}]}",
    ):
        result = _one(tmp_path, given, expect, study=study)
        assert result.exit_code == 0, (expect, result.output)
    for wrong in (
        "{at: 1s, fired: hot, decisions: [{log: too cold}, {cancel: ising.3}]}",
        "{at: 1s, fired: hot, decisions: [{cancel: ising.3}, {log: too cold}]}",
        "{at: 1s, fired: hot, decisions: [{log: too hot}]}",
        "{at: 1s, fired: hot, decisions: []}",
    ):
        result = _one(tmp_path, given, wrong, study=study)
        assert result.exit_code == 1, (wrong, result.output)
    assert "decided:  [{cancel: ising.3}]\n" in result.stdout


def test_every_kind_of_event_has_a_word() -> None:
    """A new event type needs a word. Exempt are events that happen automatically (elapsed timers,
    received messages, job identities) and answers of the queue.
    """
    text = inspect.getsource(words)
    kinds = {kind.__name__ for kind in Event.kinds.values()} - {
        "Started",
        "TimerElapsed",
        "Delivered",
        "Signalled",
        "Identified",
        "LookedUp",
    }
    assert [
        kind for kind in kinds if f"{kind}(queue.now" not in text and f"{kind}(now" not in text
    ] == []


FUNCTIONS = """
jobs: [{name: a, command: x}]
custom: |
  def train(metrics, **kwargs):
      return Action({"name": "submit", "label": "a"})
rules:
  - {id: begin, trigger: start, action: {name: submit, label: a}}
  - {id: next, trigger: job-success, name: a, action: {name: custom, label: train}}
"""


def test_functions_need_consent_unless_the_test_has_their_results(tmp_path: Path) -> None:
    given, expect = "finished: a", "metric: {count.a.submitted: 2}"
    refused = _one(tmp_path, given, expect, FUNCTIONS)
    assert refused.exit_code == 2
    assert "study.yaml: error: the function 'train' is not run without --run-code" in refused.output
    assert "add --run-code" in refused.output
    as_it_is = _one(tmp_path, given, expect, FUNCTIONS, "--run-code")
    assert as_it_is.exit_code == 0, as_it_is.output
    answered = "finished: a\n{at: 1h, returned: {function: train, result: {action: {name: terminate, exit_code: 7}}}}"
    result = _one(
        tmp_path,
        answered,
        "{at: 0s, decisions: [{submit: a.0}, {call: train}]}\n{at: 1h, ended: 7}",
        FUNCTIONS,
    )
    assert result.exit_code == 0, result.output
    raised = _one(
        tmp_path, "finished: a\nraised: {function: train, error: no data}", "ended: 1", FUNCTIONS
    )
    assert raised.exit_code == 0, raised.output


@pytest.mark.parametrize(
    ("old", "new", "word", "said"),
    [
        ("fired: too-hot", "fired: to-hot", "to-hot", "did you mean 'too-hot'?"),
        ("never: melted", "never: meltd", "meltd", "did you mean 'melted'?"),
        ("{sim: 4}", "{sin: 4}", "sin: 4", "did you mean 'sim'?"),
        ("job: sim.0", "job: sin.0", "sin.0", "did you mean 'sim.0'?"),
        ("Temp: 4.2", "Tmp: 4.2", "Tmp", "did you mean 'Temp'?"),
        ("Temp: 4.2", "Temp: hot", "hot}", "'hot' is not a number"),
        ("count.sim.failed: 1", "count.sim.faled: 1", "1}", "count.sim.failed"),
        ("count.sim.failed: 1", "mean.sim-Tmp: 1", "1}", "did you mean 'mean.sim-Temp'?"),
        ("count.sim.failed: 1", "count.sim.failed: '> x'", "'> x'", "a metric has only 'value'"),
        ("at: 20s", "at: 5s", "5s", "before the step above it, at 10 s"),
        ("at: 20s", "at: -5s", "-5s", "is not a duration"),
        ("at: 20s", "at: .nan", ".nan", "out of range"),
        ("at: 20s", "at: 200y", "200y", "is not a duration"),
        ("      - at: 10s\n        fired", "      - at: soon\n        fired", "soon", "is not a duration"),
        ("finished: {", "finishd: {", "finishd", "did you mean 'finished'?"),
        ("exit_code: 75", "exitcode: 75", "exitcode", "did you mean 'exit_code'?"),
        ("exit_code: 75", "exit_code: 750", "750", "not between 0 and 255"),
        ("{cancel: sim.0}", "{cancle: sim.0}", "cancle", "did you mean 'cancel'?"),
        ("{cancel: sim.0}", "{cancel: sin.0}", "sin.0", "did you mean 'sim.0'?"),
        ("- never: melted", "- nevr: melted", "nevr", "did you mean 'never'?"),
        ("expect:", "expects:", "expects", "did you mean 'expect'?"),
        ("tests:", "test:", "test:", "did you mean 'tests'?"),
        ("study.yaml", "stud.yaml", "", "stud.yaml"),
    ],
)  # fmt: skip
def test_an_invalid_test_is_rejected_with_its_place_and_a_suggestion(
    tmp_path: Path, old: str, new: str, word: str, said: str
) -> None:
    assert old in PAGE
    text = PAGE.replace(old, new, 1)
    result = _test(tmp_path, text)
    assert result.exit_code == 2, result.output
    assert said in result.output
    before = text[: text.rindex(word)]
    place = f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}: "
    assert f"study.ensemble-test.yaml:{place}" in result.output or not word


def test_an_error_of_the_study_is_reported_as_usual(tmp_path: Path) -> None:
    result = _test(tmp_path, PAGE, study=STUDY.replace("name: cancel", "name: cancle"))
    assert result.exit_code == 2
    assert "study.yaml:8:" in result.output
    assert "did you mean 'cancel'?" in result.output


def test_a_junit_report_has_each_test_and_its_failure(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    text = PAGE + PAGE.split("tests:\n")[1].replace("once", "twice").replace("4.2", "3")
    result = _test(tmp_path, text, "--junit", str(report))
    assert result.exit_code == 1
    (suite,) = ET.parse(report).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    good, bad = suite
    assert good.find("failure") is None
    failure = bad.find("failure")
    assert failure is not None
    assert failure.text is not None
    assert "too-hot did not fire" in failure.text
    nowhere = _test(tmp_path, PAGE, "--junit", str(tmp_path / "no" / "report.xml"))
    assert nowhere.exit_code == 2


def test_json_lists_each_test_and_untested_rules(tmp_path: Path) -> None:
    result = _test(tmp_path, PAGE, "--json")
    told: Any = json.loads(result.stdout)
    assert told["passed"] is True
    assert [test["name"] for test in told["tests"]] == ["a hot run is cancelled once"]
    assert "melted" in told["coverage"][0]["not_fired"]


def test_a_file_or_a_run_is_needed() -> None:
    assert CliRunner().invoke(main, ["test"]).exit_code == 2
    assert CliRunner().invoke(main, ["test", "--record", "none", "file"]).exit_code == 2


@pytest.mark.parametrize(
    ("example", "options"),
    [
        ("failure-handling", ()),
        ("json-lines", ()),
        ("custom-action", ()),
        ("grow-shrink", ("--slots", "1", "--min-slots", "1", "--max-slots", "4")),
    ],
)
def test_a_test_recorded_from_a_run_passes_and_has_its_decisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: str, options: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    state = ["--state", str(tmp_path / "state")]
    file = str(EXAMPLES / f"{example}.yaml")
    run = ["run", "-q", "--executor", "local", *options, *state, "--tag", "one", file]
    CliRunner().invoke(main, run)
    recorded = CliRunner().invoke(main, ["test", "--record", "one", *state])
    assert recorded.exit_code == 0, recorded.output
    assert recorded.stderr == ""
    test = tmp_path / "one.ensemble-test.yaml"
    test.write_text(recorded.stdout)
    result = CliRunner().invoke(main, ["test", str(test)])
    assert result.exit_code == 0, result.output
    events = CliRunner().invoke(main, ["events", "one", "--json", *state]).stdout
    told = [json.loads(line) for line in events.splitlines()]
    fired = [each["rule"] for each in told if each["type"] == "fired"]
    # The recorded test would pass with fewer expectations, so check that it has every firing.
    assert fired
    assert len(re.findall(r"fired: \{", recorded.stdout)) >= 1
    for rule in set(fired):
        told = sum(map(int, re.findall(rf"fired: {{[^}}]*\b{rule}: (\d+)", recorded.stdout)))
        assert told == fired.count(rule), rule


def test_a_recorded_test_omits_rows_that_triggered_no_rule(tmp_path: Path) -> None:
    """Most rows often belong to groups that no rule uses."""
    study = """
jobs:
  - {name: quiet, command: 'sh -c "for i in 1 2 3; do echo {\\\\\\"x\\\\\\": $i}; done"', observe: {json-lines: {fields: [x]}}}
rules: [{id: begin, trigger: start, action: {name: submit, label: quiet}}]
"""
    file = tmp_path / "study.yaml"
    file.write_text(study)
    state = ["--state", str(tmp_path / "state")]
    run = ["run", "-q", "--executor", "local", *state, "--tag", "one", str(file)]
    assert CliRunner().invoke(main, run).exit_code == 0
    recorded = CliRunner().invoke(main, ["test", "--record", "one", *state])
    assert recorded.exit_code == 0, recorded.output
    assert "row:" not in recorded.stdout
    assert "finished: quiet.0" in recorded.stdout


RULE_TESTS = sorted(EXAMPLES.rglob("*.ensemble-test.yaml"))


def test_the_rule_tests_of_the_examples_pass_and_cover_every_rule() -> None:
    assert len(RULE_TESTS) >= 3
    result = CliRunner().invoke(main, ["test", "--json", *map(str, RULE_TESTS)])
    told: Any = json.loads(result.stdout)
    assert told["passed"], [test for test in told["tests"] if not test["passed"]]
    assert [each["not_fired"] for each in told["coverage"]] == [[]] * len(RULE_TESTS)


def test_pytest_collects_rule_tests(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "good.ensemble-test.yaml").write_text(PAGE)
    (tmp_path / "failing.ensemble-test.yaml").write_text(PAGE.replace("4.2", "3.9"))
    (tmp_path / "bad.ensemble-test.yaml").write_text(PAGE.replace("finished", "fin"))
    pytest_ = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*pytest_, "--continue-on-collection-errors"], cwd=tmp_path, capture_output=True, text=True
    )
    assert "1 failed, 1 passed, 1 error" in run.stdout
    assert "too-hot did not fire" in run.stdout
    assert "there is no event 'fin'" in run.stdout
    left_out = subprocess.run([*pytest_, "-p", "no:ensemble"], cwd=tmp_path, capture_output=True)
    assert left_out.returncode == pytest.ExitCode.NO_TESTS_COLLECTED


# -- recorded from a run ---------------------------------------------------------------------------

#: A generator, a rule that steers it, and parameters from a function.
SEARCH = """
jobs:
  - {name: sim, command: 'echo "E: {x}"', observe: {key-value: {fields: [E]}}, result: {E: last.E}}
  - {name: more, command: 'echo {T}', parameters: {T: {function: next_T}}}
custom: |
  open("ran", "a").close()
  def next_T(**kwargs):
      return [1.5, 2.5]
generators:
  - {name: s, use: random, group: sim, variables: {x: [-1.0, 1.0]}, objectives: {E: minimize}, until: count.done >= 3}
rules:
  - {id: again, trigger: job-success, name: sim, action: [{name: pause, generator: s}, {name: suggest, generator: s}]}
  - {id: given, trigger: start, action: {name: submit, label: more}}
"""


def _run_and_record(folder: Path, study: str, *options: str) -> Result:
    (folder / "study.yaml").write_text(study)
    state = ["--state", str(folder / "state")]
    run = ["run", "-q", "--executor", "local", *options, *state, "--tag", "one", "study.yaml"]
    result = CliRunner().invoke(main, run)
    assert result.exit_code == 0, result.output
    (folder / "ran").unlink(missing_ok=True)
    return CliRunner().invoke(main, ["test", "--record", "one", *state])


def test_a_run_with_a_generator_is_recorded_with_its_suggestions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded = _run_and_record(tmp_path, SEARCH)
    assert recorded.exit_code == 0, recorded.output
    assert recorded.stderr == ""
    assert len(re.findall(r"suggested: \{generator: s, points: \[\{x: ", recorded.stdout)) >= 3
    assert "returned: {function: next_T, parameters: {T: [1.5, 2.5]}}" in recorded.stdout
    assert "{suggest: s}" in recorded.stdout
    test = tmp_path / "one.ensemble-test.yaml"
    test.write_text(recorded.stdout)
    result = CliRunner().invoke(main, ["test", str(test)])
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "ran").exists()  # executed neither while recording nor in the test
    changed = recorded.stdout.replace("points: [{x: ", "points: [{x: 7", 1)
    test.write_text(changed)
    result = CliRunner().invoke(main, ["test", str(test)])
    assert result.exit_code == 2
    assert "not a point of 's'" in result.output


def test_a_generator_may_fail_in_a_test_and_excess_points_are_rejected(
    tmp_path: Path,
) -> None:
    study = SEARCH.partition("  - {id: given")[0]
    failed = "raised: {generator: s, error: no more memory}"
    result = _one(tmp_path, failed, "{ended: {exit_code: 1}}", study)
    assert result.exit_code == 0, result.output
    many = "suggested: {generator: s, points: [{x: 0.5}, {x: 0.7}]}"
    result = _one(tmp_path, many, "ended: false", study)
    assert result.exit_code == 1
    assert "2 points are suggested, but only 1 were requested" in result.output


@pytest.mark.parametrize("foreign", [True, False])
def test_recording_a_run_executes_none_of_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, foreign: bool
) -> None:
    """The run of another user names a plugin file whose content is not trusted."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.py").write_text(
        "from ensemble_core import ActionPlugin, hookimpl\n"
        "open('loaded', 'a').close()\n"
        "@hookimpl\n"
        "def ensemble_actions():\n"
        "    return [ActionPlugin(name='theirs', summary='x', plan=lambda firing, options: ())]\n"
    )
    study = FUNCTIONS.replace("command: x", "command: 'true'").replace('"submit"', '"terminate"')
    study = study.replace(', "label": "a"', "").replace("  def", "  open('ran', 'a')\n  def")
    _run_and_record(tmp_path, study, "--plugin", "theirs.py")
    assert not (tmp_path / "ran").exists()
    (tmp_path / "loaded").unlink()
    (tmp_path / "study.yaml").write_text(study.replace("train():", "train(): 1 / 0"))
    if foreign:
        somebody = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: somebody)
    words = ["test", "--record", "one", "--state", str(tmp_path / "state")]
    recorded = CliRunner().invoke(main, words)
    assert recorded.exit_code == 0, recorded.output
    assert "returned: {function: train" in recorded.stdout
    assert ("belongs to another user: its plugin files are not" in recorded.stderr) == foreign
    assert (tmp_path / "loaded").exists() != foreign  # files of our own runs are loaded
    assert not (tmp_path / "ran").exists()


def test_the_name_of_a_study_cannot_forge_lines_of_a_recorded_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _run_and_record(
        tmp_path,
        FUNCTIONS.partition("custom:")[0] + "rules: [{trigger: start, action: {name: terminate}}]",
    )
    journal = sqlite3.connect(tmp_path / "state" / "runs" / "one" / "journal.db")
    with journal:
        journal.execute("UPDATE texts SET file = ?", ("/x.yaml\nplugins: [evil.py]\n#",))
        add_functions(journal)
        journal.executescript(WRITE_ALL)
    journal.close()
    recorded = CliRunner().invoke(
        main, ["test", "--record", "one", "--state", str(tmp_path / "state")]
    )
    assert recorded.exit_code == 0, recorded.output
    assert "plugins: [evil.py]" not in recorded.stdout.splitlines()


def test_a_plugin_named_by_a_test_file_is_not_loaded_without_consent(tmp_path: Path) -> None:
    plugin = tmp_path / "theirs.py"
    plugin.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nimport ensemble_lost")
    result = _test(tmp_path, "plugins: [theirs.py]" + PAGE)
    assert result.exit_code == 2
    assert "study.ensemble-test.yaml:1:" in result.output
    assert "theirs.py' is not run without --run-code" in result.output
    assert "add --run-code" in result.output
    assert not (tmp_path / "ran").exists()
    assert "ensemble_lost" in _test(tmp_path, "plugins: [theirs.py]" + PAGE, "--run-code").output


@pytest.mark.checkout
def test_snippets_about_messages_are_valid_and_their_test_passes(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/howto-notify.md").read_text("utf-8")
    study, test = re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
    (tmp_path / "ising.yaml").write_text(study)
    file = tmp_path / "ising.ensemble-test.yaml"
    file.write_text(test)
    result = CliRunner().invoke(main, ["test", str(file)])
    assert result.exit_code == 0, result.output
    file.write_text(test.replace("3 jobs failed", "9 jobs failed"))
    result = CliRunner().invoke(main, ["test", str(file)])
    assert result.exit_code == 1
    assert "decided:  [{notify: test: 3 jobs failed}]" in result.output
    played = ["simulate", str(tmp_path / "ising.yaml")]
    result = CliRunner().invoke(main, played)
    assert result.exit_code == 0, result.output
    assert "notify ising-simulated-" in result.output


def test_a_resume_in_a_test_repeats_no_message(tmp_path: Path) -> None:
    study = """
jobs: [{name: a, command: x}]
rules:
  - {id: begin, trigger: start, action: [{name: submit, label: a},
     {name: notify, to: [bell, {mail: me}], message: begun}]}
"""
    given = "{at: 2s, resumed: {}}"
    expect = """{at: 0s, decisions: [{submit: a.0}, {notify: begun}]}
        {at: 2s, decisions: []}"""
    result = _one(tmp_path, given, expect, study)
    assert result.exit_code == 0, result.output
    wrong = "{at: 2s, decisions: [{notify: begun}]}"
    assert _one(tmp_path, given, wrong, study).exit_code == 1


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
  - {id: over, trigger: end, action: {name: notify, to: bell, message: "{run}: {state}"}}
results:
  t: {of: g(L < 64), by: [T], pivot: L, columns: {U: mean.U, gap: "U[32] - U[16]", new: n - reused}}
"""


def test_a_rule_test_handles_filters_pivots_and_reused_jobs(tmp_path: Path) -> None:
    values = (1, 3, 1, 3, 4, 8, -1, 1)
    told = [
        f"{{at: 1s, reused: {{job: g.{number}, rows: [{{u: {values[number]}}}, {{u: -9}}]}}}}"
        for number in range(4)
    ]
    told += [f"{{at: 2s, row: {{job: g.{n}, u: {values[n]}}}}}" for n in range(4, 8)]
    told += ["{at: 3s, finished: g}"]
    expect = """{at: 3s, fired: more, decisions: [{look-up: [g.8, g.9]}, {log: "2 4 1"}, {submit: [g.8, g.9]}]}
        metric: {count.g.reused: 4}"""
    result = _one(tmp_path, "\n".join(told), expect, CURVES)
    assert result.exit_code == 0, result.output
    assert _one(tmp_path, "\n".join(told), expect.replace("2 4", "3 4"), CURVES).exit_code == 1


#: Rules that say time, and limits for each value, over groups and the run.
TIMED = """
limits: {at_once: {gpu: 1}}
jobs:
  - name: sim
    command: ./sim {k} {n}
    parameters: {k: [a, b], n: [1, 2]}
    at_once: {jobs: 1, each: [k]}
    observe: {json-lines: {fields: [T]}}
  - {name: post, command: ./post, count: 4, uses: gpu}
rules:
  - {trigger: start, action: [{name: submit, label: sim}, {name: submit, label: post}]}
  - {id: warm, trigger: observed, name: sim, each: job, when: T > 50, for: 5m,
     action: {name: log, message: "{job} is warm"}}
  - {id: up, trigger: metric, name: last.sim-T, crosses: "> 50", repetitions: 9,
     action: {name: log, message: up}}
  - {id: bad, trigger: metric, name: count.sim.failed(within 10m), when: ">= 2",
     action: {name: terminate, exit_code: 3}}
"""


def test_rules_that_say_time_and_limits_on_places_are_tested(tmp_path: Path) -> None:
    given = """
      - started: [sim.0, sim.2, post.0]
      - {at: 1m, row: {job: sim.0, T: 60}}
      - {at: 3m, row: {job: sim.0, T: 70}}
      - {at: 6m}
      - {at: 7m, row: {job: sim.0, T: 40}}
      - {at: 8m, row: {job: sim.0, T: 55}}
      - {at: 9m, finished: {job: sim.0, exit_code: 1}}
      - {at: 9m, row: {job: sim.2, T: 45}}
      - {at: 20m, finished: {job: sim.2, exit_code: 1}}
      - {at: 20m, started: [sim.1]}
      - {at: 25m, finished: {job: sim.1, exit_code: 1}}
"""
    expect = """
      - {at: 0s, metric: {count.sim.active: 4}}
      - {at: 6m, fired: warm, decisions: [{log: sim.0 is warm}]}
      - {at: 8m, fired: {up: 1}}
      - {at: 9m, metric: {count.sim.failed(within 10m): 1}}
      - {at: 20m, fired: []}
      - {at: 25m, fired: bad, decisions: [{terminate: 3}]}
      - fired: {warm: 1, up: 1, bad: 1}
      - ended: 3
"""
    (tmp_path / "study.yaml").write_text(TIMED)
    name = tmp_path / "t.ensemble-test.yaml"
    name.write_text(
        f"ensemble: study.yaml\ntests:\n  - name: x\n    given:{given}    expect:{expect}"
    )
    result = CliRunner().invoke(main, ["test", str(name)])
    assert result.exit_code == 0, result.output
    name.write_text(name.read_text().replace("at: 6m, fired: warm", "at: 7m, fired: warm"))
    result = CliRunner().invoke(main, ["test", str(name)])
    assert result.exit_code == 1
    assert "why:" in result.output
    for job, held in (("sim.1", "at_once: 1 for each k"), ("post.1", "limits.at_once.gpu: 1")):
        name.write_text(
            f"ensemble: study.yaml\ntests:\n  - name: x\n    given: [{{started: {job}}}]\n"
            "    expect: [{ended: false}]\n"
        )
        result = CliRunner().invoke(main, ["test", str(name)])
        assert held in result.output
