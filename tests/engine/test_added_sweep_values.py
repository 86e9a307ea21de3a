"""Values that are added to a sweep by an accepted change of the file run once, also after the end."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
import yaml
from ensemble_testing import Story

from ensemble_core.engine.engine import Engine
from ensemble_core.journal import snapshot_encoding as snapshot
from ensemble_core.journal.event_encoding import decisions_text
from ensemble_core.model.decisions import Decision, Log, Submit
from ensemble_core.model.events import Event, Requested, Resumed

FILE = """
jobs: [{name: sim, command: "x {T}", parameters: {T: [1, 2, 3]}}]
rules: [{trigger: start, action: {name: submit, label: sim}}]
"""


def swept(parameters: str) -> str:
    """Return the file with this sweep."""
    text = FILE.replace("T: [1, 2, 3]", parameters)
    return text.replace('"x {T}"', '"x {T} {U}"') if "U:" in parameters else text


def change(story: Story, text: str) -> list[Decision]:
    """Accept a changed file, and resume. Reopen the run if it has ended."""
    story.engine.reconfigure(Story(text).ensemble)
    return story.tell(Resumed(story.now, reopened=story.exit_code is not None))


def values(decided: list[Decision]) -> list[object]:
    jobs = [job for each in decided if isinstance(each, Submit) for job in each.jobs]
    return [tuple(job.parameters.values()) for job in jobs]


def said(decided: list[Decision]) -> str:
    return "\n".join(each.message for each in decided if isinstance(each, Log))


def ended(text: str = FILE) -> Story:
    story = Story(text)
    story.start()
    for _ in range(99):
        for job, _record in story.engine.in_queue():
            story.play(job)
    assert story.exit_code == 0
    return story


@pytest.mark.parametrize(
    ("before", "after", "new"),
    [
        ("T: [1, 2, 3]", "T: [0.5, 1, 2, 2.5, 3]", [(0.5,), (2.5,)]),
        ("T: [1, 2, 3]", "T: [1.0, 2.0, 3.0, 4]", [(4,)]),
        ("T: [1, 2, 3]", "T: [3, 2, 1]", []),
        ("T: [1, 2, 3]", "T: [1, 2, 3, 3]", [(3,)]),
        ("T: [1, 2, 3]", "T: {from: 1, to: 5, step: 1}", [(4,), (5,)]),
        ("T: [a, '1']", "T: [a, '1', 1]", [(1,)]),
        ("T: [1, 2], U: [x]", "U: [x, y], T: [1, 2]", [("y", 1), ("y", 2)]),
        ("T: [1, 2], U: [x]", "T: [1, 2, 3], U: [x, y]", [(1, "y"), (2, "y"), (3, "x"), (3, "y")]),
    ],
)
def test_added_values_run_once_in_a_live_and_in_an_ended_run(
    before: str, after: str, new: list[object]
) -> None:
    text, changed = swept(before), swept(after)
    live = Story(text)
    live.start()
    for story in (live, ended(text)):
        decided = change(story, changed)
        assert values(decided) == new
        assert ("added to the earlier submit of sim" in said(decided)) is bool(new)
        assert values(change(story, changed)) == []


def test_larger_count_and_replicas_run_the_missing_jobs_with_the_next_numbers() -> None:
    for key in ("count", "replicas"):
        text = FILE.replace('"x {T}", ', f'"x {{T}} {{replica}}", {key}: 2, ')
        story = ended(text)
        decided = change(story, text.replace(f"{key}: 2", f"{key}: 3"))
        jobs = [job for each in decided if isinstance(each, Submit) for job in each.jobs]
        assert [job.command for job in jobs] == [("x", f"{T}", "2") for T in (1, 2, 3)]


def test_further_entries_are_completed_and_new_ones_run() -> None:
    text = """
jobs:
  - {name: sim, command: "x {T} {U}", parameters: {T: [1, 2], U: [3, 4]}}
  - {name: sim, command: "y {T}", parameters: {T: [7]}}
rules: [{trigger: start, action: {name: submit, label: sim}}]
"""
    more = "  - {name: sim, command: z}\n"
    changed = text.replace("[1, 2], U", "[1, 2, 1], U")
    changed = changed.replace("T: [7]}}\n", f"T: [7, 8]}}}}\n{more}")
    assert values(change(ended(text), changed)) == [(1, 3), (1, 4), (8,), ()]


def test_what_cannot_be_completed_is_said_with_the_command_that_runs_it() -> None:
    renamed = change(ended(), FILE.replace("{T: [", "{V: [").replace("{T}", "{V}"))
    assert values(renamed) == []
    assert "its parameters were T, and are V now" in said(renamed)
    assert "ensemble submit RUN sim --set V=VALUE" in said(renamed)
    smaller = change(ended(), FILE.replace("[1, 2, 3]", "[1, 4]"))
    assert values(smaller) == [(4,)]
    assert "no longer has the values of 2 jobs" in said(smaller)
    rule = change(
        ended(),
        FILE.replace("[1, 2, 3]", "[1, 2, 3, 4]").replace("sim}}]", "sim, with: {nodes: 2}}}]"),
    )
    assert values(rule) == []
    assert "1 earlier submit cannot be completed" in said(rule)


def test_value_that_a_user_submitted_before_is_not_repeated() -> None:
    story = Story(FILE)
    story.start()
    asked = {"name": "submit", "label": "sim", "with": {"parameters": {"T": 9}}}
    story.tell(Requested(story.now, "alice", asked))
    assert values(change(story, FILE.replace("[1, 2, 3]", "[1, 2, 3, 9, 10]"))) == [(10,)]


def test_a_request_counts_only_the_jobs_that_it_ran() -> None:
    """The file changed after the request, so the same request would run other jobs now."""
    text = swept("T: [1], U: [a]")
    story = Story(text)
    story.start()
    asked = {"name": "submit", "label": "sim", "with": {"parameters": {"T": 9}}}
    assert values(story.tell(Requested(story.now, "alice", asked))) == [(9, "a")]
    assert values(change(story, swept("T: [1], U: [a, b]"))) == [(1, "b")]
    assert values(change(story, swept("T: [1, 9], U: [a, b]"))) == [(9, "b")]
    twice = swept("T: [1, 9], U: [a, b]").replace("jobs: [{", "jobs: [{count: 2, ")
    new = [(1, "a"), (1, "b"), (9, "a"), (9, "b")]
    assert values(change(story, twice)) == new


def test_submits_with_other_fields_are_completed_with_these_fields() -> None:
    text = """
jobs:
  - {name: sim, command: "x {T}", parameters: {T: [1, 2]}}
  - {name: post, command: "y {T} {U}", parameters: {T: [0], U: [a]}}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: job-done, name: sim, each: job,
     action: {name: submit, label: post, with: {parameters: {T: "{T}"}}}}
"""
    decided = change(ended(text), text.replace("U: [a]", "U: [a, b]"))
    assert [*map(str, values(decided))] == ["(1, 'b')", "(2, 'b')"]


LAW = """
jobs:
  - {{name: sim, command: "x {{T}} {{U}}", at_once: 3, parameters: {{{sweep}}}, {count}: {n}}}
  - {{name: post, command: "y {{T}} {{V}}", parameters: {{T: 0, V: {V}}}}}
  - {{name: sum, command: "z {{T}}", parameters: {{T: 0}}}}
rules:
{first}  - {{trigger: start, action: {{name: submit, label: sim}}}}
  - {{trigger: job-done, name: sim, repetitions: {again}, action: {{name: submit, label: sim}}}}
  - {{trigger: job-done, name: sim, each: job,
      action: {{name: submit, label: post, with: {{parameters: {{T: "{{T}}"}}}}}}}}
  - {{trigger: idle, name: sim, each: [T],
      action: {{name: submit, label: sum, with: {{parameters: {{T: "{{T}}"}}}}}}}}
"""


_AGAIN = (
    "  - {{trigger: job-done, name: sim, repetitions: {again}, action: {{name: submit, label: "
    "sim}}}}\n"
)


def _play(story: Story, chance: random.Random, most: int) -> None:
    for _ in range(most):
        jobs = [job for job, _ in story.engine.in_queue()]
        if not jobs:
            return
        story.play(chance.choice(jobs))


def _check_rules(story: Story, decided: list[Decision]) -> None:
    """Check that each completed submit names the rule of the changed file that submits the group."""
    labels = {
        rule.id: str(rule.spec["action"]["label"])
        for rule in story.engine.state.ensemble.rules
        if rule.spec["action"]["name"] == "submit"
    }
    added = [one for one in decided if isinstance(one, Log) and ": added to the" in one.message]
    for one in added:
        assert f"the earlier submit of {labels[one.rule or '']}, as" in one.message


def _jobs(story: Story) -> Counter[object]:
    jobs = [job for each in story.decisions if isinstance(each, Submit) for job in each.jobs]
    assert len({job.id for job in jobs}) == len(jobs)
    return Counter((job.group, *sorted(job.parameters.items()), job.replica) for job in jobs)


@pytest.mark.parametrize("seed", range(24))
def test_study_that_is_extended_twice_equals_the_study_with_all_values(seed: int) -> None:
    chance = random.Random(seed)
    kind, again = chance.choice(["count", "replicas"]), chance.choice([0, 2])
    stages, sweeps = [], []
    t, u, v, n, first = [1.0, 2], ["a"], [0.5], 1, ""
    for _ in range(3):
        sweep = [f"T: {t}", f"U: {u}"]
        chance.shuffle(sweep)
        text = LAW.replace("{again}", str(again)) if again else LAW.replace(_AGAIN, "")
        given = {"sweep": ", ".join(sweep), "V": v, "n": n, "count": kind, "first": first}
        stages.append(text.format(**given))
        sweeps.append(t)
        # The same values in another order, as whole or as decimal numbers, and new ones.
        t = [float(each) if chance.random() < 0.5 else each for each in t]
        new = chance.sample([each for each in (3, 4, 5.5, 6, 7, 8, 9) if each not in t], 2)
        t = chance.sample([*t, *new], len(t) + 2)
        u = [*dict.fromkeys([*u, *chance.sample(["b", "c"], chance.randint(0, 1))])]
        v = [*v, 7 + len(v)] if chance.random() < 0.5 else v
        n += chance.randint(0, 1)
        # A further rule at the top changes the ids of the others.
        first += "  - {trigger: job-fail, action: {name: log, message: m}}\n"
    story = Story(stages[0])
    story.start()
    journal: list[tuple[Event | str, str | None]] = []
    changes = []
    requests = [each for each in sweeps[2] if each not in sweeps[0]]
    for text, sweep in zip(stages[1:], sweeps[:2], strict=True):
        _play(story, chance, chance.choice([0, 3, 7, 999]))
        requests = [each for each in requests if each not in sweep]
        if chance.random() < 0.5 and story.exit_code is None and requests:
            value = requests.pop(chance.randrange(len(requests)))
            asked = {"name": "submit", "label": "sim", "with": {"parameters": {"T": value}}}
            story.tell(Requested(story.now, "alice", asked))
            _play(story, chance, chance.choice([0, 3]))
        changes.append((len(story.events), text))
        if chance.random() < 0.5:
            story.engine = snapshot.load(snapshot.dump(story.engine), story.ensemble)
        if text is stages[1] and chance.random() < 0.3:  # both changes with one resume
            story.engine.reconfigure(Story(text).ensemble)
            changes.append((len(story.events), stages[2]))
            _check_rules(story, change(story, stages[2]))
            break
        _check_rules(story, change(story, text))
        story.ensemble = story.engine.state.ensemble
    _play(story, chance, 9999)
    whole = Story(stages[-1])
    whole.start()
    _play(whole, chance, 9999)
    assert (story.exit_code, whole.exit_code) == (0, 0)
    assert _jobs(story) == _jobs(whole)
    again = Story(stages[0])
    for place, event in enumerate(story.events):
        for at, text in changes:
            if at == place:
                again.engine.reconfigure(Story(text).ensemble)
        journal.append((event, decisions_text(again.tell(event))))
    assert decisions_text(again.decisions) == decisions_text(story.decisions)


def test_sweep_of_100000_combinations_is_extended_by_10_in_2_s() -> None:
    text = swept("T: {from: 1, to: 10000, step: 1}, U: {from: 1, to: 10, step: 1}")
    engine = Engine(Story(text).ensemble)
    story = Story(text)
    group = story.ensemble.groups["sim"]
    # The jobs themselves are not needed: the submit is remembered without them.
    engine.state.table.groups["sim"].past.note("rule-1", 1, {})
    engine.state.table.groups["sim"].next_index = group.size
    engine.state.started = True
    engine.reconfigure(Story(text.replace("to: 10000", "to: 10001")).ensemble)
    began = time.process_time()
    decided = engine.handle(Resumed(1000.0))
    assert time.process_time() - began < 2
    assert len(values(decided)) == 10


@pytest.mark.parametrize("key", ["T: [{}]", "T: [1, 2], U: [{}]"])
def test_values_that_the_file_lost_and_got_back_do_not_run_again(key: str) -> None:
    first, less, more = (swept(key.format(each)) for each in ("7, 8, 9", "7, 9", "9, 8, 7, 6"))
    story = Story(first)
    story.start()
    assert values(change(story, less)) == []
    story.engine = snapshot.load(snapshot.dump(story.engine), story.engine.state.ensemble)
    decided = change(story, more)
    whole = len(values([*Story(swept(key.format("6"))).start()]))
    assert (len(values(decided)), {each[-1] for each in values(decided)}) == (whole, {6})
    assert "submitted before: not repeated" in said(decided)
    assert values(change(story, less)) == []
    assert values(change(story, first)) == []


@pytest.mark.parametrize("key", ["count", "replicas"])
def test_a_count_that_sank_and_rose_again_adds_only_further_jobs(key: str) -> None:
    text = FILE.replace('"x {T}", ', f'"x {{T}} {{replica}}", {key}: N, ')
    story = Story(text.replace("N", "2"))
    story.start()
    assert values(change(story, text.replace("N", "1"))) == []
    assert values(change(story, text.replace("N", "3"))) == [(1,), (2,), (3,)]


def test_entries_and_groups_that_were_removed_and_come_back_do_not_run_again() -> None:
    entry = "- {name: sim, command: y, count: 2}"
    text = f"""
jobs:
  - {{name: sim, command: "x {{T}}", parameters: {{T: [1, 2]}}}}
  {entry}
  - {{name: post, command: "p {{T}}", parameters: {{T: [1, 2]}}}}
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}
  - {{trigger: start, action: {{name: submit, label: post}}}}
"""
    story = Story(text)
    story.start()
    decided = change(story, text.replace(f"  {entry}\n", ""))
    assert "sim: the file no longer has the values of 2 jobs" in said(decided)
    assert values(change(story, text)) == []
    without = "".join(line + "\n" for line in text.splitlines() if "post" not in line)
    assert values(change(story, without)) == []
    decided = change(
        story, text.replace('"p {T}", parameters: {T: [1, 2]', '"p {T}", parameters: {T: [1, 2, 3]')
    )
    assert values(decided) == []
    assert "post: the sweep has changed, and no jobs are added: 1 earlier submit" in said(decided)


def test_jobs_that_were_cancelled_are_named_when_a_study_is_extended() -> None:
    story = Story(FILE)
    story.start()
    story.begin("sim.0")
    story.tell(Requested(story.now, "a", {"name": "cancel", "jobs": ["sim.0"]}))
    story.cancel("sim.0")
    for job in ("sim.1", "sim.2"):
        story.play(job)
    decided = change(story, swept("T: [1, 2, 3, 4]"))
    assert values(decided) == [(4,)]
    assert "sim: 1 job was cancelled earlier" in said(decided)
    assert "'ensemble retry RUN sim.0' runs such jobs" in said(decided)


LATER = """
jobs:
  - name: sim
    command: "x {T}"
    parameters: {T: [1, 2, 3, 4]}
    at_once: 2
    environment: {A: a}
    observe: {key-value: {fields: [E]}}
    result: {E: last.E}
rules:
  - {trigger: start, action: {name: submit, label: sim, with: {environment: {B: b}}}}
"""


def test_jobs_that_are_not_over_follow_the_changed_file() -> None:
    story = Story(LATER)
    story.start()
    story.begin("sim.0")
    text = LATER.replace('"x {T}"', '"y {T}"').replace("A: a", "A: c")
    text = text.replace("{E: last.E}", '{E: last.E, F: "2 * last.E"}')
    text = text.replace("    result", "    retry: {times: 1}\n    fail_if: last.E > 5\n    result")
    decided = change(story, text)
    assert said(decided) == (
        "sim: 2 jobs keep their command, environment, as submitted before the change; "
        "further attempts follow it"
    )
    story.observe("sim.0", E=1)
    first = story.engine.state.table.records["sim.0"]
    story.end("sim.0")
    assert first.result == {"E": 1, "F": 2}
    story.begin("sim.1")
    story.observe("sim.1", E=6)
    story.end("sim.1")
    story.play("sim.2")
    jobs = [job for each in story.decisions if isinstance(each, Submit) for job in each.jobs]
    assert [(job.id, job.command) for job in jobs] == [
        ("sim.0", ("x", "1")),
        ("sim.1", ("x", "2")),
        ("sim.2", ("y", "3")),
        ("sim.3", ("y", "4")),
        ("sim.1-1", ("y", "2")),
    ]
    assert [dict(job.environment) for job in jobs[1:3]] == [
        {"A": "a", "B": "b"},
        {"A": "c", "B": "b"},
    ]


def test_job_with_rows_keeps_its_result_if_the_file_has_statistics_of_other_rows() -> None:
    story = Story(LATER)
    story.start()
    story.begin("sim.0")
    story.observe("sim.0", E=9)
    decided = change(story, LATER.replace("{E: last.E}", "{E: last.E, M: max.E}"))
    assert said(decided) == (
        "sim: 1 job keeps its result, fail_if and retry: the change needs statistics that do not "
        "cover the rows so far"
    )
    results = []
    for job, value in (("sim.0", 1), ("sim.1", 7)):
        record = story.engine.state.table.records[job]
        if job != "sim.0":
            story.begin(job)
        story.observe(job, E=value)
        story.end(job)
        results.append(record.result)
    assert results == [{"E": 1}, {"E": 7, "M": 7}]


def test_jobs_of_a_group_that_the_file_has_lost_are_named() -> None:
    story = Story(LATER)
    story.start()
    decided = change(
        story, LATER.replace("name: sim", "name: md").replace("label: sim", "label: md")
    )
    assert (
        "the job group 'sim' is no longer in the file: its 4 unfinished jobs continue as submitted"
        in said(decided)
    )


def test_ended_jobs_of_a_group_that_was_renamed_in_the_file_are_named() -> None:
    decided = change(
        ended(), FILE.replace("name: sim", "name: md").replace("label: sim", "label: md")
    )
    assert (
        "the job group 'sim' is no longer in the file: its 3 ended jobs are kept, but no table "
        "or rule covers them" in said(decided)
    )


def test_groups_that_the_file_has_lost_are_named_in_its_order() -> None:
    # The order of a set differs from process to process, so a replay would decide otherwise.
    names = [f"group-{number}" for number in range(8)]
    groups = "".join(f"\n  - {{name: {name}, command: x}}" for name in names)
    text = f"jobs:{groups}\nrules: [{{trigger: start, action: {{name: submit}}}}]"
    decided = change(ended(text), text.replace("group-", "other-"))
    lost = [line for line in said(decided).splitlines() if "is no longer in the file" in line]
    assert [line.split("'")[1] for line in lost] == names


SET = """
jobs:
  - {name: sim, command: "x {T}", parameters: {T: [1, 2, 3]}, at_once: 1, environment: {A: a}}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: job-start, name: sim, enabled: ENABLED, action: {name: set, label: sim, with: FIELDS}}
"""
FIELDS = "{nodes: 2, at_once: 3, retry: {times: 2}, environment: {B: b}}"


@pytest.mark.parametrize("by", ["request", "rule"])
def test_fields_that_were_set_during_the_run_stay_if_the_file_changes_others(by: str) -> None:
    enabled = "true" if by == "rule" else "false"
    text = SET.replace("ENABLED", enabled).replace("FIELDS", FIELDS)
    story = Story(text)
    story.start()
    story.begin("sim.0")
    if by == "request":
        setting = {"name": "set", "label": "sim", "with": yaml.safe_load(FIELDS)}
        story.tell(Requested(story.now, "a", setting))
    story.engine = snapshot.load(snapshot.dump(story.engine), story.ensemble)
    decided = change(story, text.replace("[1, 2, 3]", "[1, 2, 3, 4]"))
    assert "what was set" not in said(decided)
    group = story.engine.state.table.groups["sim"].group
    assert (group.nodes, group.at_once, group.environment) == (2, 3, {"A": "a", "B": "b"})
    story.end("sim.0", status=256)
    story.play("sim.1")
    jobs = [job for each in story.decisions if isinstance(each, Submit) for job in each.jobs]
    assert [job.id for job in jobs] == ["sim.0", "sim.1", "sim.2", "sim.3", "sim.0-1"]
    assert (jobs[3].nodes, jobs[3].environment) == (2, group.environment)
    changed = text.replace("[1, 2, 3]", "[1, 2, 3, 4]").replace("A: a", "A: c")
    decided = change(story, changed.replace("at_once: 1", "at_once: 3"))
    assert "sim: the changed file replaces what was set during the run: environment" in said(
        decided
    )
    group = story.engine.state.table.groups["sim"].group
    assert (group.nodes, group.at_once, group.environment) == (2, 3, {"A": "c"})
    assert "what was set" not in said(change(story, changed.replace("A: c", "A: d")))
