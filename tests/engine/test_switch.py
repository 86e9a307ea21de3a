"""``switch``: disables the rules of one instance, and enables those of another."""

from __future__ import annotations

from collections import Counter

from ensemble_testing import Story

from ensemble_core.model.decisions import Decision
from ensemble_core.model.events import CallReturned, TimerElapsed

PHASES = """
jobs:
  - {name: sim, command: 'true', count: 2, at_once: 1}
  - {name: post, command: 'true'}
use:
  - as: one
    rules:
      - {id: begin, trigger: start, action: {name: submit, label: sim}}
      - {id: seen, trigger: job-success, repetitions: 9, action: {name: log, message: one}}
  - as: two
    enabled: false
    rules:
      - {id: begin, trigger: start, repetitions: 5, action: {name: submit, label: post}}
      - {id: seen, trigger: job-success, repetitions: 1, action: {name: log, message: two}}
      - {id: every, trigger: interval, seconds: 10, repetitions: 2, action: {name: log, message: t}}
rules:
  - {id: over, trigger: job-fail, repetitions: 9, action: {name: switch, to: two OPTIONS}}
  - {id: back, trigger: job-cancel, repetitions: 9, action: {name: switch, to: one, from: two}}
"""


def story(options: str = "", text: str = PHASES) -> Story:
    told = Story(text.replace(" OPTIONS", options))
    told.start()
    return told


def count(told: Story) -> Counter[str | None]:
    return Counter(each.rule for each in told.decisions if each.type == "fired")


def types(decisions: list[Decision]) -> list[tuple[str, str | None]]:
    return [(each.type, each.rule) for each in decisions]


def test_only_instances_that_are_on_start_with_the_run() -> None:
    told = story()
    assert told.submitted() == ["sim.0"]
    assert ("log", "one-seen") in types(told.play("sim.0"))
    told.wait(60)
    assert not any(rule and rule.startswith("two") for _, rule in types(told.decisions))


def test_a_switch_disables_enables_and_starts_within_one_firing() -> None:
    told = story()
    decided = types(told.play("sim.0", status=256))
    assert decided[:4] == [
        ("fired", "over"),
        ("switch", "over"),
        ("fired", "two-begin"),
        ("submit", "two-begin"),
    ]
    told.play("post.0")
    assert count(told)["two-seen"] == 1
    assert "one-seen" not in count(told)
    told.wait(30)
    assert count(told)["two-every"] == 2


def test_jobs_of_the_old_phase_continue_unless_cancelled() -> None:
    assert story().play("sim.0", status=256)[-1].type != "cancel"
    told = story(", cancel: true")
    told.play("sim.0", status=256)
    assert told.metric("count.sim.cancelled") == 1


def test_a_switch_to_the_current_instance_does_nothing() -> None:
    told = story()
    told.play("sim.0", status=256)
    decided = types(told.play("sim.1", status=256))
    assert decided == [("fired", "over")]


COUNTS = """
jobs: [{name: sim, command: 'true', count: 4, at_once: 1}]
use:
  - as: one
    rules: [{id: go, trigger: start, action: {name: submit, label: sim}}]
  - as: two
    enabled: false
    rules: [{id: seen, trigger: job-start, action: {name: log, message: seen}}]
rules:
  - {id: to-two, trigger: job-success, repetitions: 9, action: {name: switch, to: two RESET}}
  - {id: to-one, trigger: job-fail, repetitions: 9, action: {name: switch, to: one}}
"""


def seen(reset: str) -> int:
    told = Story(COUNTS.replace(" RESET", reset))
    told.start()
    for number, status in enumerate((0, 256, 0, 256)):
        told.play(f"sim.{number}", status=status)
    return count(told).get("two-seen", 0)


def test_a_switch_keeps_firing_counters_unless_reset() -> None:
    # The switch enables the instance when the second job starts, and again when the fourth does.
    assert seen("") == 1
    assert seen(", reset: true") == 2


def test_enable_and_disable_accept_instances() -> None:
    text = PHASES.replace("{name: switch, to: two OPTIONS}", "{name: disable, rules: [one, back]}")
    told = Story(text)
    told.start()
    told.play("sim.0", status=256)
    told.play("sim.1")
    assert "one-seen" not in count(told)
    (one, _) = told.engine.report().instances
    assert (one.name, one.on, one.first, one.fired) == ("one", False, True, 1)


def test_endless_switches_are_a_chain_that_is_cut() -> None:
    told = Story("""
jobs: [{name: sim, command: 'true'}]
limits: {chain: 20}
use:
  - as: a
    rules: [{trigger: start, repetitions: unlimited, action: [{name: submit}, {name: switch, to: b}]}]
  - as: b
    enabled: false
    rules: [{trigger: start, repetitions: unlimited, action: {name: switch, to: a}}]
""")
    decided = told.start()
    assert any(each.type == "log" and "is switched off" in each.message for each in decided)  # type: ignore[attr-defined]
    assert told.engine.state.firings == 20


CALLS = """
jobs: [{name: sim, command: 'true'}]
custom: |
  def ask(handle=None, metrics=None):
      return None
use:
  - as: one
    rules:
      - {trigger: start, action: {name: submit}}
      - {trigger: job-success, action: {name: custom, label: ask}}
  - as: two
    enabled: false
    rules: [{trigger: start, action: {name: log, message: two}}]
rules:
  - {trigger: interval, seconds: 5, action: {name: switch, to: two KEEP}}
"""


def test_results_of_the_old_instances_functions_are_dropped_unless_kept() -> None:
    for keep, submitted in (("", 1), (", keep: true", 2)):
        told = Story(CALLS.replace(" KEEP", keep))
        told.start()
        (call,) = [each for each in told.play("sim.0") if each.type == "call"]
        told.wait(6)
        if keep:
            again = {"action": {"name": "submit", "label": "sim"}}
            told.tell(CallReturned(told.now, call.call, (again,)))  # type: ignore[attr-defined]
        assert len(told.submitted()) == submitted
        assert (told.exit_code is None) == bool(keep)


def test_a_snapshot_keeps_which_instances_are_on() -> None:
    from ensemble_core.journal.snapshot_encoding import dump, load

    told = story()
    told.play("sim.0", status=256)
    again = load(dump(told.engine), told.ensemble)
    assert again is not None
    assert [(each.on, each.switched) for each in again.report().instances] == [
        (each.on, each.switched) for each in told.engine.report().instances
    ]
    event = TimerElapsed(told.now + 10, "interval", "two-every")
    assert [each.type for each in again.handle(event)] == ["fired", "log"]


def test_a_retry_released_by_a_switch_keeps_its_index_open() -> None:
    """The index no longer waits for the function, so the retry begins immediately."""
    told = Story(
        """
jobs: [{name: sim, command: x}]
use:
  - {as: one, rules: [{trigger: job-fail, name: sim, action: {name: custom, label: more}}]}
  - as: two
    enabled: false
    rules: [{trigger: job-success, action: {name: log, message: success}}]
rules:
  - {trigger: start, action: {name: submit}}
  - {trigger: job-fail, name: sim, action: {name: retry}}
  - {trigger: job-clean, name: sim, action: {name: switch, to: two}}
  - {trigger: job-lost, name: sim, action: {name: log, message: lost}}
  - {trigger: job-done, name: sim, action: {name: log, message: done}}
custom: |
  def more(**_): ...
"""
    )
    told.start()
    assert told.submitted(told.play("sim.0", status=256)) == ["sim.0-1"]
    counts = ("open", "lost", "active")
    assert [told.metric(f"count.sim.{each}") for each in counts] == [1, 0, 1]
    told.play("sim.0-1")
    assert told.messages() == ["success", "done"]
    assert told.exit_code == 0
