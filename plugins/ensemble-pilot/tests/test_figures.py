"""Figures of pilots: rules, messages and ``ensemble metrics`` use them, and no used hour is lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ensemble_pilot import ensemble_executors
from ensemble_pilot.fleet import Fleet, Kind
from ensemble_pilot.ledger import PilotLedger, Records
from ensemble_pilot.pilot_controller import Controller
from ensemble_pilot.status import pilot_status, use_text
from ensemble_testing import Session
from ensemble_testing.executor import wait_until
from ensemble_testing.processes import run_and_kill
from pilot_sessions import controller, new_session

from ensemble_core import Job, JobEvent, Resources
from ensemble_core.cli.main import main
from ensemble_core.plugin.records import ExecutorPlugin

(PLUGIN,) = ensemble_executors()
SMALL = ("-o", 'options={"slots": 8, "pool": "none"}', "-o", "cores=1", "-o", "most=2")
USES = {
    "when": "{trigger: metric, name: waiting.jobs, when: pilots.waiting == 0 and value > 1, "
    "action: {name: grow, value: 1}}",
    "trigger": "{trigger: metric, name: pilots.ready, when: '> 1', action: {name: log, message: m}}",
    "expression": "{trigger: idle, action: {name: grow, value: '= pilots.draining + 1'}}",
    "metric()": "{trigger: idle, when: metric('pilots.core_hours') > 9, "
    "action: {name: log, message: m}}",
    "message": "{trigger: idle, action: {name: log, message: '{pilots.used_core_hours:.1f}'}}",
    "statistic": "{trigger: idle, action: {name: log, message: '{max.pilots.ready}'}}",
}


def validate(folder: Path, rule: str, executor: str, more: str = "") -> Result:
    (folder / "e.yaml").write_text(
        f"jobs:\n  - {{name: sim, command: './sim {{x}}', count: 5, duration: 1m, "
        f"parameters: {{x: [1]}}, observe: {{json-lines: {{}}}}, result: {{y: last.y}}}}\n{more}rules:\n"
        f"  - {{trigger: start, action: {{name: submit, label: sim}}}}\n  - {rule}\n"
    )
    return CliRunner().invoke(main, ["validate", str(folder / "e.yaml"), "--executor", executor])


@pytest.mark.parametrize("use", USES)
def test_rules_and_messages_can_use_the_figures_of_pilots(use: str, tmp_path: Path) -> None:
    done = validate(tmp_path, USES[use], "pilot")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("use", ["trigger", "metric()", "message", "statistic"])
def test_other_executors_have_no_pilots_and_one_error_says_so(use: str, tmp_path: Path) -> None:
    done = validate(tmp_path, USES[use], "local")
    assert done.exit_code == 2
    assert done.output.count("can never have a value: the executor 'local' has no pilots") == 1
    assert "hint: run it with --executor pilot" in done.output
    assert done.output.count("hint:") == 1, done.output


@pytest.mark.parametrize("use", ["trigger", "metric()", "message", "statistic"])
def test_a_dry_run_on_a_laptop_accepts_a_file_for_pilots_with_a_warning(
    use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate(tmp_path, USES[use], "pilot", "pilots: {big: {cores: 4}}\n")
    monkeypatch.setattr("ensemble_core.session.executor_choice.probe", only_local)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["run", "--dry-run", "e.yaml"])
    assert done.exit_code == 0, done.output
    assert done.output.count("can never have a value: the executor 'local' has no pilots") == 1
    for words in (["--dry-run", "--executor", "local"], ["--state", "s"]):
        done = CliRunner().invoke(main, ["run", *words, "e.yaml"])
        assert done.exit_code == 2, done.output


def only_local(record: ExecutorPlugin) -> tuple[bool, str]:
    return record.name == "local", ""


def test_until_of_a_generator_can_use_the_figures_of_pilots(tmp_path: Path) -> None:
    log = "{trigger: idle, action: {name: log, message: m}}"
    more = (
        "generators:\n  - {name: g, use: random, group: sim, variables: {x: [0.0, 1.0]}, "
        "objectives: {y: minimize}, until: pilots.core_hours > 1}\n"
    )
    for executor, code in (("pilot", 0), ("local", 2)):
        done = validate(tmp_path, log, executor, more)
        assert done.exit_code == code, done.output


@pytest.mark.parametrize("word", ["pilots.redy", "metric('pilots.redy')"])
def test_misspelt_figure_is_refused_and_what_the_hint_names_is_accepted(
    word: str, tmp_path: Path
) -> None:
    rule = '{{trigger: idle, action: {{name: log, message: "{{{}}}"}}}}'
    done = validate(tmp_path, rule.format(word), "pilot")
    assert done.exit_code == 2
    (meant,) = re.findall(r"hint: did you mean '(.*)'\?", done.output)
    for form in (meant, f"metric('{meant}')"):
        assert validate(tmp_path, rule.format(form), "pilot").exit_code == 0


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ensemble_core.cli", *words, "--state", "state"]
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(command, cwd=folder, stdout=said, stderr=said)


def output(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "ensemble_core.cli", *words, "--state", "state"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


FILE = """
jobs:
  - {name: tick, count: 2, command: sleep 1}
  - {name: sim, count: 8, command: "sh -c 'until [ -e go ]; do sleep 0.05; done'", workdir: "{here}"}
rules:
  - {trigger: start, action: [{name: submit, label: tick}, {name: submit, label: sim}]}
  - trigger: metric
    name: waiting.jobs
    when: pilots.waiting == 0 and pilots.ready == 1 and value > 1
    action: {name: grow, value: 1}
  - {trigger: metric, name: pilots.ready, when: value == 2, action: {name: log, message: "{pilots.ready} ready"}}
  - {trigger: end, action: {name: log, message: "used {pilots.used_core_hours} of {pilots.core_hours} on {nodes.up}"}}
"""


def test_a_rule_grows_by_the_figures_and_the_end_shows_how_much_was_used(folder: Path) -> None:
    (folder / "e.yaml").write_text(FILE)
    run = start(folder, "run", "e.yaml", "--tag", "s", "--executor", "pilot", *SMALL)
    wait_until(lambda: "log 2 ready" in (folder / "said").read_text(), 60.0)
    time.sleep(1.0)
    (folder / "go").touch()
    assert run.wait(200) == 0, (folder / "said").read_text()
    text = (folder / "said").read_text()
    assert "grow 1 granted: size 2" in text
    (found,) = re.findall(r"log used (\S+) of (\S+) on 2$", text, re.MULTILINE)
    used, given = map(float, found)
    assert 2 / 3600 < used <= given, "a second of two jobs"
    # The summary and the status have one plain line, with the same figures.
    (line,) = re.findall(r"^   (pilots had \S+ core-\w+; jobs used .* of them .*)$", text, re.M)
    assert f"  {line}\n" in output(folder, "status", "s")
    metrics = dict(map(str.split, output(folder, "metrics", "s").splitlines()[1:]))
    assert metrics["pilots.ready"] == "2", "as rules have seen it at the end"
    assert float(metrics["pilots.used_core_hours"]) == pytest.approx(used, rel=1e-4)


def test_hours_are_emitted_while_nothing_else_happens(tmp_path: Path) -> None:
    options = {"options": {"slots": 4, "pool": "none"}, "cores": 1, "least": 1, "orphan": 60}
    with Session(PLUGIN.build(options), tmp_path, 60.0, tidy=True) as session:

        def hours() -> list[float]:
            events = [each for each in list(session.events) if isinstance(each, Resources)]
            return [
                e.values["pilots.core_hours"] for e in events if "pilots.core_hours" in e.values
            ]

        wait_until(lambda: len(hours()) >= 3, 60.0)
        assert hours() == sorted(hours())


KILLED = """
jobs:
  - {name: short, count: 3, command: sleep 1}
  - {name: long, command: "sh -c 'until [ -e go ]; do sleep 0.05; done'", workdir: "{here}"}
rules:
  - {trigger: start, action: [{name: submit, label: short}, {name: submit, label: long}]}
"""


def test_what_jobs_have_used_before_the_controller_is_killed_is_not_lost(folder: Path) -> None:
    (folder / "e.yaml").write_text(KILLED)
    options = (*SMALL[:2], "-o", "cores=4", "-o", "idle=1m")
    first = start(folder, "run", "e.yaml", "--tag", "s", "--executor", "pilot", *options)

    def metric(path: str) -> str:
        return output(folder, "metrics", "s", path).split()[-1]

    wait_until(lambda: "pilot 1 ready" in (folder / "said").read_text(), 60.0)
    wait_until(lambda: metric("count.short.success") == "3", 60.0)
    first.send_signal(signal.SIGKILL)
    first.wait()
    (ledger,) = folder.glob("state/runs/*/executor/pilots.log")
    (folder / "go").touch()
    assert start(folder, "resume", "s").wait(100) == 0, (folder / "said").read_text()
    used = 3600 * float(metric("used.core_hours"))
    assert used > 3
    assert Records(ledger).core_seconds[1] == pytest.approx(used, abs=0.5)


def test_a_resume_counts_what_ended_jobs_used_from_the_ledgers_of_the_nodes(folder: Path) -> None:
    """The worst case: the run has the end of the job, and the controller has never counted."""
    first = new_session(folder, least=1)

    def control() -> None:
        Controller._record_use = lambda *_: None  # type: ignore[assignment, method-assign]
        first.__enter__()
        first.run(first.job("sleep", "1"))

    run_and_kill(control, folder / "trace")
    time.sleep(3.0)
    with new_session(folder, least=1).resume(first) as later:
        told = 3600 * controller(later).gauges["pilots.used_core_hours"]
        assert told == pytest.approx(1, abs=0.9), "the first figures that rules see"
        later.executor.reattach({})
        use = controller(later).request(lambda c: c.fleet.core_seconds(time.time()))
        assert use[1] == pytest.approx(1, abs=0.9)
        assert use[1] > 0.9


def test_a_job_that_has_ended_counts_once_however_often_its_start_is_heard() -> None:
    fleet = Fleet(Kind())
    pilot = fleet.add_pilot(1, fleet.demands[""].kind, 0.0)
    fleet.begin(pilot, 0.0)
    job = Job(id="a.0", group="a", index=0, command=("true",))
    fleet.bind(job, pilot.nodes[0], 1)
    pilot.counted = 4.0
    fleet.started("a.0", 1.0, 6.0)
    fleet.started("a.0", 1.0)
    assert pilot.used_until(50.0) == 2.0, "it does not run any more"
    fleet.release("a.0", 100.0)
    assert pilot.used_until(200.0) == 2.0, "from when the earlier controller has counted"


def test_a_resume_days_later_counts_no_hours_after_the_time_limit_of_a_pilot() -> None:
    """The queue has ended the pilot, and its job, while no controller ran."""
    fleet = Fleet(Kind(duration=14400.0))
    pilot = fleet.add_pilot(1, fleet.demands[""].kind, 0.0)
    fleet.begin(pilot, 0.0)
    pilot.ends, days = 14400.0, 3 * 86400.0
    job = Job(id="a.0", group="a", index=0, command=("true",))
    fleet.bind(job, pilot.nodes[0], 1)
    fleet.started("a.0", 400.0)
    assert fleet.core_seconds(days) == (14400.0, 14000.0)
    fleet.drain(pilot, "ended")
    pilot.to("fenced")
    fleet.release("a.0", days)
    fleet.end(pilot, days, wanted=False)
    assert fleet.core_seconds(days) == (14400.0, 14000.0)


def test_a_pilot_ends_when_the_queue_says_that_it_has_ended(folder: Path) -> None:
    """A queue may say it late, above all if no controller has run for days."""
    with new_session(folder, least=1) as session:
        session.run(session.job("true"))
        when = time.time()
        time.sleep(2.0)
        said = [JobEvent(when, "pilot.1", "finish"), JobEvent(time.time(), "pilot.1", "clean")]
        controller(session).request(lambda c: c.pilots.on_outer(said))
        ledger = folder / "state" / session.tag / "pilots.log"
        wait_until(lambda: 1 in Records(ledger).past, 60.0)
        record = Records(ledger).past[1]
        assert (record.ended, record.counted) == (when, when)
        given, used = controller(session).request(lambda c: (c.fleet.past_given, c.fleet.past_used))
        assert record.began is not None
        assert given == record.cores * (when - record.began)
        assert used <= given


@pytest.mark.parametrize(
    ("given", "used", "said"),
    [
        (12.6, 0.1, "pilots had 12.6 core-seconds; jobs used 0.1 of them (1%)"),
        (12.6, 0.00001, "pilots had 12.6 core-seconds; jobs used 0 of them (0%)"),
        (7200.0, 0.1, "pilots had 2 core-hours; jobs used 0.1 core-seconds of them (0%)"),
        (7200.0, 0.0, "pilots had 2 core-hours; jobs used 0 of them (0%)"),
        (7200.0, 3600.0, "pilots had 2 core-hours; jobs used 1 of them (50%)"),
        (9e7, 4.5e6, "pilots had 25000 core-hours; jobs used 1250 of them (5%)"),
    ],
)
def test_hours_are_plain_numbers(given: float, used: float, said: str) -> None:
    assert use_text(given, used) == said


def test_status_of_a_run_without_a_controller_says_until_when_hours_are_counted(
    folder: Path,
) -> None:
    (folder / "e.yaml").write_text(KILLED)
    options = (*SMALL[:2], "-o", "cores=4", "-o", "idle=1m")
    first = start(folder, "run", "e.yaml", "--tag", "s", "--executor", "pilot", *options)
    wait_until(lambda: "pilot 1 ready" in (folder / "said").read_text(), 60.0)
    wait_until(lambda: " until " in output(folder, "status", "s"), 60.0)
    first.send_signal(signal.SIGKILL)
    first.wait()
    (state,) = folder.glob("state/runs/*/executor")
    lines, data = pilot_status(state)
    assert re.match(r"  until \S+ \S+, pilots had \S+ core-\w+; jobs used .* of them", lines[1])
    time.sleep(1.0)
    assert pilot_status(state) == (lines, data), "both figures are of the same time"
    assert os.stat(state / "pilots.log").st_mtime >= data["counted_until"] - 1
    (folder / "go").touch()
    assert start(folder, "resume", "s").wait(100) == 0


def test_the_first_status_does_not_say_that_nothing_was_used(tmp_path: Path) -> None:
    """Before the controller has counted for the first time, no share is shown."""
    ledger = PilotLedger(tmp_path / "pilots.log", "0" * 16)
    ledger.add(["n", 1, 0.0, 36], ["b", 1, 100.0], ["r", 1, 101.0, ["n1"]])
    ledger.close()
    lines, _ = pilot_status(tmp_path)
    assert not any("%" in line for line in lines), lines


def test_hours_are_counted_while_pilots_wait_for_work(tmp_path: Path) -> None:
    options = {"options": {"slots": 4, "pool": "none"}, "cores": 1, "least": 1, "orphan": 60}
    with Session(PLUGIN.build(options), tmp_path, 60.0, tidy=True) as session:
        state = tmp_path / "state" / session.tag
        wait_until(lambda: (state / "pilots.log").exists(), 60.0)
        wait_until(lambda: Records(state / "pilots.log").core_seconds[0] > 2, 60.0)
        lines, _ = pilot_status(state)
    assert "jobs used 0 of them (0%)" in lines[1], lines
