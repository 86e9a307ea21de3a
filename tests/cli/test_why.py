"""``ensemble why`` and ``ensemble replay``: the engine re-run on a journal, with a tracer."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ensemble_testing import Story
from kept_story import KeptStory

from ensemble_core.cli.main import main
from ensemble_core.engine.engine import Engine
from ensemble_core.engine.rule_trace import RuleTracer, Verdict
from ensemble_core.journal.damage_detection import WRITE_ALL, add_functions
from ensemble_core.journal.event_encoding import decisions_text
from ensemble_core.journal.replay import maker_of
from ensemble_core.journal.snapshot_encoding import dump
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.model.decisions import Decision
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import CallReturned, Event, ExecutorLost, Resumed, Started
from ensemble_core.plugin.discovery import discover
from ensemble_core.session.kept_run import versions

REGISTRY = discover()
MAKER = maker_of(versions(REGISTRY))


class Kept(KeptStory):
    """Story whose events are also passed to a tracing engine."""

    def __init__(self, state: Path, text: str, traced: str = "", tag: str = "told") -> None:
        super().__init__(state, text, tag)
        self.traced = Engine(self.ensemble)
        self.tracer = RuleTracer(self.traced, traced)
        self.verdicts: list[tuple[int, Verdict]] = []

    def tell(self, event: Event) -> list[Decision]:
        decisions = super().tell(event)
        # The tracer must not change the decisions.
        assert decisions_text(self.traced.handle(event)) == decisions_text(decisions)
        self.verdicts += [(self.writer.seq, verdict) for verdict in self.tracer.verdicts]
        return decisions

    def snapshot(self) -> None:
        state = dump(self.engine)
        assert state is not None
        self.writer.snapshot(MAKER, state)
        self.writer.flush(None)

    def keep(self) -> None:
        self.writer.end(self.now, {"over": self.engine.state.ended is not None, "exit_code": 0})
        self.writer.close()

    @property
    def kinds(self) -> list[str]:
        return [verdict.kind for _, verdict in self.verdicts]


TEXT = (
    "jobs: [{name: sim, command: sim, count: 9}, {name: amg, command: amg}]\n"
    "logging: {heartbeat: 10}\n"
    "rules:\n  - {id: begin, trigger: start, action: {name: submit, label: sim}}\n"
)


def story(state: Path, rules: str, traced: str = "r") -> Kept:
    return Kept(state, TEXT + rules, traced)


def ensemble(state: Path, *args: str) -> Result:
    return CliRunner().invoke(main, [*args, "--state", str(state)])


def answer(state: Path, rule: str = "r") -> dict[str, Any]:
    result = ensemble(state, "why", "last", rule, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)  # type: ignore[no-any-return]


LOG = "action: {name: log, message: hello}}"


# -- verdicts --------------------------------------------------------------------------------------


def test_unreached_metric_is_shown_with_its_values(tmp_path: Path) -> None:
    told = story(
        tmp_path, f'  - {{id: r, trigger: metric, name: mean.sim-duration, when: "> 60", {LOG}'
    )
    told.start()
    for job, duration in enumerate((2.0, 40.0, 6.0)):
        told.play(f"sim.{job}", duration=duration)
    told.keep()
    # The index never reads this metric, and the report has its last value only.
    engine = Engine(told.ensemble)
    for event in told.events:
        engine.handle(event)
    watch = engine.state.rules.states["r"].watch
    assert watch is not None
    assert watch.unread
    assert watch.last is None
    assert told.kinds == ["condition"] * 3
    assert [verdict.value for _, verdict in told.verdicts] == [2, 21, 16]
    found = answer(tmp_path)
    (span,) = found["spans"]
    assert (span["count"], span["lowest"], span["highest"], span["value"]) == (3, 2, 21, 16)
    assert found["considered"] == 3
    assert "'> 60' was false 3 times (values 2 to 21)" in found["conclusion"]


def test_firings_and_exhaustion_are_shown_in_order(tmp_path: Path) -> None:
    told = story(tmp_path, f"  - {{id: r, trigger: metric, name: count.sim.success, when: 2, {LOG}")
    told.start()
    for job in range(4):
        told.play(f"sim.{job}")
    told.keep()
    assert told.kinds == ["condition", "fired", "exhausted", "exhausted"]
    found = answer(tmp_path)
    assert (found["fired"], found["considered"]) == (1, 2)
    assert [span["verdict"] for span in found["spans"]] == ["condition", "fired", "exhausted"]
    assert "it may fire once, so its limit is reached" in found["conclusion"]


def test_backoff_is_shown_with_its_remaining_length(tmp_path: Path) -> None:
    rule = "  - {id: r, trigger: job-finish, name: sim, repetitions: 9, backoff: %s, " + LOG
    told = story(tmp_path / "a", rule % "2")
    told.start()
    for job in range(4):
        told.play(f"sim.{job}")
    assert told.kinds == ["fired", "backoff", "backoff", "fired"]
    assert [verdict.skips for _, verdict in told.verdicts if verdict.kind == "backoff"] == [1, 0]
    told.keep()
    told = story(tmp_path / "b", rule % "3s")
    told.start()
    for job in range(5):
        told.play(f"sim.{job}", duration=1.0)
    assert told.kinds == ["fired", "backoff", "backoff", "fired", "backoff"]
    first = told.verdicts[1][1]
    assert first.until == 1001.0 + 3
    told.keep()
    assert "its backoff held it back 3 times" in answer(tmp_path / "b")["conclusion"]


def test_missing_value_differs_from_a_false_condition(
    tmp_path: Path,
) -> None:
    told = story(
        tmp_path,
        "  - {id: r, trigger: job-clean, name: sim, repetitions: 9, "
        f"when: 'duration > 5 and metric(\"mean.amg-duration\") > 1', {LOG}",
    )
    told.start()
    told.play("sim.0", duration=9.0)
    told.keep()
    assert told.kinds == ["no value"]
    assert "mean.amg-duration has no value" in told.verdicts[0][1].saw
    assert "duration=9" in told.verdicts[0][1].saw
    assert "mean.amg-duration has no value" in answer(tmp_path)["conclusion"]


def test_never_triggered_rule_shows_what_happened_instead(tmp_path: Path) -> None:
    told = story(tmp_path, f"  - {{id: r, trigger: job-fail, name: sim, {LOG}")
    told.start()
    told.play("sim.0")
    told.cancel("sim.1")
    told.keep()
    found = answer(tmp_path)
    assert found["considered"] == 0
    assert "never triggered: no job-fail of sim occurred" in found["conclusion"]
    assert "job-success 1, job-cancel 1" in found["conclusion"]


@pytest.mark.parametrize("name", ["name: ising, ", "name: [ising, amg], ", ""])
def test_why_counts_the_open_jobs_that_a_rule_waits_for(tmp_path: Path, name: str) -> None:
    """Firings of another rule of the same group must not be listed as other groups."""
    told = Kept(
        tmp_path,
        "jobs:\n  - {name: ising, command: 'ising {T}', parameters: {T: [1, 2, 3]}}\n"
        "  - {name: amg, command: amg}\nrules:\n"
        "  - {trigger: start, action: {name: submit, label: ising}}\n"
        f"  - {{id: each, trigger: idle, name: ising, each: [T], {LOG}\n"
        f"  - {{id: r, trigger: idle, {name}{LOG}\n",
        "r",
    )
    told.start()
    told.play("ising.0")
    told.play("ising.1")
    told.begin("ising.2")
    told.writer.flush(None)
    conclusion = answer(tmp_path)["conclusion"]
    assert "other groups" not in conclusion
    assert conclusion.endswith(": 1 job of 3 is still open.")
    told.keep()


def test_rule_for_the_wrong_group_shows_the_other_groups(tmp_path: Path) -> None:
    told = story(tmp_path, f"  - {{id: r, trigger: job-success, name: amg, {LOG}")
    told.start()
    told.play("sim.0")
    told.keep()
    assert "only for other groups: sim 1" in answer(tmp_path)["conclusion"]


def test_disabled_rule_shows_who_disabled_it_and_what_it_missed(tmp_path: Path) -> None:
    told = story(
        tmp_path,
        "  - {id: stop, trigger: job-start, name: sim, action: {name: disable, rules: [r]}}\n"
        f"  - {{id: r, trigger: job-success, name: sim, {LOG}\n"
        f"  - {{id: m, trigger: metric, name: count.sim.success, when: 2, enabled: false, {LOG}",
    )
    told.start()
    told.play("sim.0")
    told.play("sim.1")
    told.keep()
    assert told.kinds == ["disabled", "disabled"]
    assert "by rule stop at event 7" in answer(tmp_path)["conclusion"]
    # A rule that was never in the index has verdicts, too.
    found = answer(tmp_path, "m")
    assert [(span["verdict"], span["count"]) for span in found["spans"]] == [("disabled", 2)]
    assert "the file says so" in found["conclusion"]


def test_cut_chain_is_explained(tmp_path: Path) -> None:
    told = Kept(
        tmp_path,
        "jobs: [{name: sim, command: sim}]\nlimits: {chain: 5}\nrules:\n"
        "  - {id: r, trigger: metric, name: count.sim.submitted, when: '> 0', repetitions: 99,"
        " action: {name: submit, label: sim}}\n"
        "  - {trigger: start, action: {name: submit, label: sim}}\n",
        "r",
    )
    told.start()
    told.keep()
    assert told.kinds[-1] == "cut"
    assert "switched off" in answer(tmp_path)["conclusion"]


def test_rules_are_not_considered_after_the_end(tmp_path: Path) -> None:
    told = story(
        tmp_path,
        "  - {id: end, trigger: job-success, name: sim, action: {name: terminate}}\n"
        f"  - {{id: r, trigger: job-success, name: sim, {LOG}\n"
        f"  - {{id: m, trigger: metric, name: count.sim.finished, when: 2, {LOG}",
    )
    told.start()
    told.begin("sim.1")
    told.play("sim.0")
    told.end("sim.1")
    told.keep()
    # The first rule was decided before the end by the same event, the second after it.
    assert told.kinds == ["ended", "ended"]
    assert "the run ended at event" in answer(tmp_path)["conclusion"]
    assert [span["verdict"] for span in answer(tmp_path, "m")["spans"]] == ["condition", "ended"]


def test_heartbeats_intervals_and_queue_loss_are_shown(tmp_path: Path) -> None:
    told = story(
        tmp_path,
        f"  - {{id: r, trigger: interval, seconds: 4, repetitions: 2, {LOG}\n"
        f'  - {{id: p, trigger: metric, name: max.sim-pending, when: "> 15", {LOG}',
    )
    told.start()
    told.wait(25)
    told.tell(ExecutorLost(told.now, "fake", "it went away"))
    told.keep()
    assert told.kinds == ["fired", "fired"]
    found = answer(tmp_path, "p")
    assert [span["verdict"] for span in found["spans"]] == ["condition", "fired"]
    assert found["spans"][0]["event"] == "heartbeat"


def test_added_rule_is_found_by_its_id(tmp_path: Path) -> None:
    told = Kept(
        tmp_path,
        "jobs: [{name: sim, command: sim, count: 3}]\nrules:\n"
        "  - {id: begin, trigger: start, action: [{name: submit, label: sim},"
        " {name: custom, label: f}]}\n"
        "custom: |\n  def f(**kwargs): return None\n",
        "late",
    )
    decisions = told.start()
    call = next(each.call for each in decisions if each.type == "call")  # type: ignore[attr-defined]
    rule = {"id": "late", "trigger": "metric", "name": "count.sim.success", "when": 2}
    told.tell(CallReturned(1000.0, call, ({"rule": {**rule, "action": {"name": "terminate"}}},)))
    told.play("sim.0")
    told.play("sim.1")
    told.keep()
    assert told.kinds == ["condition", "condition", "fired"]
    assert answer(tmp_path, "late")["fired"] == 1


def test_thousands_of_verdicts_are_a_few_lines(tmp_path: Path) -> None:
    told = Kept(
        tmp_path,
        "jobs: [{name: sim, command: sim, count: 700}]\nrules:\n"
        "  - {trigger: start, action: {name: submit, label: sim}}\n"
        f"  - {{id: r, trigger: job-success, repetitions: 9999, when: index % 2 == 0, {LOG}\n"
        f"  - {{id: m, trigger: metric, name: count.sim.success, when: 5000, {LOG}\n",
        "r",
    )
    told.start()
    for job in range(700):
        told.play(f"sim.{job}")
    told.keep()
    result = ensemble(tmp_path, "why", "last", "m")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 3
    assert "700 times: '== 5000' was false: value 1 to 700" in result.stdout
    alternating = ensemble(tmp_path, "why", "last", "r").stdout.splitlines()
    assert len(alternating) == 1 + 12 + 1 + 12 + 1
    assert "676 more; --all" in alternating[13]
    everything = ensemble(tmp_path, "why", "last", "r", "--all").stdout.splitlines()
    assert len(everything) == 702


def test_misspelt_rule_is_rejected_with_a_suggestion(tmp_path: Path) -> None:
    told = story(tmp_path, f"  - {{id: retry, trigger: job-fail, name: sim, {LOG}")
    told.start()
    told.keep()
    result = ensemble(tmp_path, "why", "last", "retyr")
    assert result.exit_code == 2
    assert result.stderr.strip().endswith("hint: did you mean retry?")
    assert ensemble(tmp_path, "why", "last", "job-fail (sim)").exit_code == 0  # by its label


# -- replay ----------------------------------------------------------------------------------------


def played(state: Path) -> Kept:
    told = story(
        state,
        "  - {id: r, trigger: job-success, name: sim, repetitions: 9, "
        "action: {name: submit, label: amg}}",
    )
    told.start()
    for job in range(3):
        told.play(f"sim.{job}", duration=1.0 + job)
    return told


def test_replay_reports_identical_decisions(tmp_path: Path) -> None:
    told = played(tmp_path)
    told.snapshot()
    told.play("sim.3")
    told.keep()
    result = ensemble(tmp_path, "replay", "last")
    assert result.exit_code == 0, result.output
    assert "gave the same" in result.stdout
    found = json.loads(ensemble(tmp_path, "replay", "last", "--json").stdout)
    assert found["same"]
    assert found["events"] == len(told.events)
    assert found["snapshots"] == [len(told.events) - 10]
    early = json.loads(ensemble(tmp_path, "replay", "last", "--until", "1", "--json").stdout)
    assert (early["events"], early["snapshots"]) == (1, [])
    assert early["report"]["groups"][0]["submitted"] == 9


def test_replay_shows_the_first_difference_with_both_lists(tmp_path: Path) -> None:
    told = played(tmp_path)
    told.keep()
    with sqlite3.connect(told.path) as connection:
        lists = connection.execute("SELECT first, list FROM event_lists ORDER BY first").fetchall()
        numbered = [
            (seq, row)
            for first, text in lists
            for seq, row in enumerate(json.loads(text), start=first)
        ]
        seq = [number for number, row in numbered if len(row) > 5][1]
        for first, text in lists:
            changed = text.replace('"amg.0","group"', '"amg.7","group"')
            connection.execute("UPDATE event_lists SET list = ? WHERE first = ?", (changed, first))
        add_functions(connection)
        connection.executescript(WRITE_ALL)
    connection.close()
    result = ensemble(tmp_path, "replay", "last")
    assert result.exit_code == 1
    assert (
        f"at event {seq} (finish of sim.0) the engine's decisions differ from the journal"
        in result.stderr
    )
    lines = result.stderr.splitlines()
    assert any("both" in line and '"fired"' in line for line in lines)
    assert any("journal" in line and "amg.7" in line for line in lines)
    assert any("engine" in line and "amg.0" in line for line in lines)
    found = json.loads(ensemble(tmp_path, "replay", "last", "--json").stdout)
    assert not found["same"]
    assert found["difference"]["seq"] == seq
    # All earlier events are identical, and `why` uses them.
    assert ensemble(tmp_path, "replay", "last", "--until", str(seq - 1)).exit_code == 0
    answer = ensemble(tmp_path, "why", "last", "r")
    assert answer.exit_code == 1
    # The rule fired later, so `why` must not say that it never fired.
    assert f"Events after {seq - 1} are unknown. Until then:" in " ".join(answer.stdout.split())


def test_replay_finds_a_wrong_snapshot(tmp_path: Path) -> None:
    told = played(tmp_path)
    told.snapshot()
    told.keep()
    other = Engine(told.ensemble)
    for event in told.events:
        other.handle(event)
    other.state.metrics.counts["sim"]["success"] += 1
    state = dump(other)
    assert state is not None
    writer = JournalWriter(told.path)
    writer.begin(0.0, {})
    writer.snapshot(MAKER, state)
    writer.flush(None)
    writer.close()
    result = ensemble(tmp_path, "replay", "last")
    assert result.exit_code == 1
    assert f"the snapshot after event {len(told.events)} has different counts" in result.stderr
    assert " by replay, " in result.stderr


def test_replay_uses_each_version_of_a_changed_file(tmp_path: Path) -> None:
    told = played(tmp_path)
    text = f"{TEXT}  - {{id: new, trigger: metric, name: count.sim.success, when: 4, {LOG}\n"
    told.writer.flush(None)
    told.writer.store_file_version("/e.yaml", text, ())
    changed: Ensemble = Story(text).ensemble
    told.engine.reconfigure(changed)
    told.traced.reconfigure(changed)
    told.play("sim.3")
    told.keep()
    assert ensemble(tmp_path, "replay", "last").exit_code == 0
    assert answer(tmp_path, "new")["fired"] == 1
    gone = answer(tmp_path, "r")
    assert gone["fired"] == 3
    assert "the ensemble file no longer has it" in gone["conclusion"]


@pytest.mark.parametrize("command", [["replay", "last"], ["why", "last", "r"], ["status", "last"]])
def test_damaged_journal_or_one_of_another_version_is_one_error(
    tmp_path: Path, command: list[str]
) -> None:
    told = played(tmp_path)
    told.keep()
    with sqlite3.connect(told.path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    result = ensemble(tmp_path, *command)
    assert result.exit_code == 2
    assert "written by another version of Ensemble" in result.stderr
    told.path.write_bytes(b"not a database at all, but long enough to look at" * 40)
    result = ensemble(tmp_path, *command, "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["code"] == "corrupt"
    assert "is damaged" in result.stderr


def test_tracer_sees_the_start(tmp_path: Path) -> None:
    told = story(tmp_path, f"  - {{id: r, trigger: start, {LOG}")
    told.tell(Started(1000.0, {}))
    assert told.kinds == ["fired"]
    told.keep()


RULES = {
    "count": "{id: r, trigger: metric, name: count.sim.finished, when: '> 4', repetitions: 50, %s",
    "mean": "{id: r, trigger: metric, name: mean.sim-duration, when: '>= 5', repetitions: 50, %s",
    "range": "{id: r, trigger: metric, name: max.sim-duration, when: '> 5 and < 9',"
    " repetitions: 50, backoff: 1, %s",
    "job": "{id: r, trigger: job-finish, name: sim, when: exit_code == 0, repetitions: 50, %s",
    "clean": "{id: r, trigger: job-clean, repetitions: 50, backoff: 7s, %s",
    "pending": "{id: r, trigger: metric, name: p90.sim-pending, when: '> 6', repetitions: 50, %s",
    "beat": "{id: r, trigger: heartbeat, repetitions: 50, backoff: 2, %s",
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(4))
def test_tracer_counts_the_same_as_the_engine(tmp_path: Path, rule: str, seed: int) -> None:
    chance = random.Random(seed)
    told = story(tmp_path, f"  - {RULES[rule] % LOG}\n")
    told.start()
    for job in range(9):
        told.begin(f"sim.{job}", pending=chance.choice([0.0, 3.0, 9.0]))
        told.wait(chance.choice([0.0, 11.0]))
        if chance.random() < 0.2:
            told.cancel(f"sim.{job}")
        else:
            status = chance.choice([0, 0, 256])
            told.end(f"sim.{job}", status=status, duration=chance.choice([1.0, 5.0, 8.0, 12.0]))
    told.keep()
    state = told.engine.state.rules.states["r"]
    assert told.kinds.count("fired") == state.fired
    looked = [kind for kind in told.kinds if kind != "ended"]
    assert len(looked) == state.times_triggered
    assert told.kinds  # the comparison is not empty


def test_end_undone_by_a_resume_is_not_shown(tmp_path: Path) -> None:
    told = story(tmp_path, f"  - {{id: r, trigger: job-success, name: sim, {LOG}")
    told.start()
    told.tell(ExecutorLost(told.now, "fake", "it went away"))
    told.writer.flush(None)
    assert (
        "the run ended at event 2 (executor fake lost its queue" in answer(tmp_path)["conclusion"]
    )
    told.tell(Resumed(told.now))
    told.keep()
    found = answer(tmp_path)
    assert found["conclusion"].startswith("It has not fired so far: it was never triggered")
    assert "ended" not in found["conclusion"]


# -- instances ---------------------------------------------------------------------------------------


STUDY = """
jobs:
  - {name: sim, command: "sim {T}", parameters: {T: [1.0, 2.0]}, observe: {json-lines: {}}}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: sim}}
  - {id: hot, trigger: observed, name: sim, each: job, repetitions: 2, backoff: 1, when: E > 3,
     action: {name: log, message: x}}
  - {id: cold, trigger: observed, name: sim, each: [T], when: max.E < 0, action: {name: log, message: x}}
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Return a run in which sim.0 is hot four times, sim.1 never."""
    told = Kept(tmp_path / "state", STUDY)
    told.start()
    for job in ("sim.0", "sim.1"):
        told.begin(job)
    for energy in (4.0, 5.0, 6.0, 7.0):
        told.observe("sim.0", E=energy)
        told.observe("sim.1", E=-energy)
    told.keep()
    return tmp_path / "state"


def why_last(state: Path, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["why", "last", *words, "--state", str(state)])
    assert done.exit_code == code, done.output
    return done.output


def test_why_without_a_rule_lists_all_rules(state: Path) -> None:
    lines = why_last(state).splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["fired", "1", "begin"],
        ["fired", "2", "hot"],
        ["fired", "1", "cold"],
    ]
    rules = json.loads(why_last(state, "--json"))["rules"]
    assert [(rule["id"], rule["fired"]) for rule in rules] == [
        ("begin", 1),
        ("hot", 2),
        ("cold", 1),
    ]


def test_instance_is_selected_by_its_job(state: Path) -> None:
    told = json.loads(why_last(state, "hot", "--job", "sim.0", "--json"))
    assert [(span["verdict"], span["skips"], span["fired"]) for span in told["spans"]] == [
        ("fired", None, 1),
        ("backoff", 0, 1),
        ("fired", None, 2),
        ("exhausted", None, 2),
    ]
    assert "its limit" in why_last(state, "hot", "--job", "sim.0")
    other = why_last(state, "hot", "--job", "sim.1")
    assert "For sim.1: it has not fired so far" in other
    assert "4 times" in other


def test_instance_is_selected_by_its_parameters(state: Path) -> None:
    told = json.loads(why_last(state, "cold", "--each", "T=2", "--json"))
    assert [span["verdict"] for span in told["spans"]] == ["fired", "exhausted"]
    assert told["spans"][0]["parameters"] == {"T": 2.0}
    one = json.loads(why_last(state, "cold", "--each", "T=1.0", "--json"))
    assert [span["verdict"] for span in one["spans"]] == ["condition"]


def test_unknown_instance_is_reported(state: Path) -> None:
    assert "not considered for sim.7" in why_last(state, "hot", "--job", "sim.7")
    assert "--each T=2.3" in why_last(state, "cold", "--each", "T", code=2)
    assert "--job and --each need a RULE" in why_last(state, "--job", "sim.0", code=2)
