"""Instances under ``use:``, of algorithms or of rules in the file: expansion and checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import Story

from ensemble_core import AlgorithmPlugin, ExecutorPlugin, Fragment
from ensemble_core.config import expanded, load, load_text
from ensemble_core.config.yaml_reader import read_document, write_yaml
from ensemble_core.errors import FileErrors
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.registry import LoadedPlugin, Registry

HEAD = "jobs:\n  - {name: sim, command: 'true'}\n  - {name: post, command: 'true'}\n"
GROUP = {"type": "string", "x-ensemble": "group"}
OPTIONS = {
    "type": "object",
    "required": ["group"],
    "properties": {
        "group": GROUP,
        "most": {"type": "integer", "minimum": 1, "default": 3},
        "unless": {"type": "string", "x-ensemble": "metric"},
        "then": {"x-ensemble": "action"},
    },
}


def build(options: Any, view: Any) -> Fragment:
    """Algorithm that submits a group, and another job after each success, up to ``most``."""
    group = options["group"]
    rules: list[dict[str, Any]] = [
        {"id": "begin", "trigger": "start", "action": {"name": "submit", "label": group}},
        {
            "id": "next",
            "trigger": "job-success",
            "name": group,
            "repetitions": options["most"],
            "when": "metric('count.rule.next') < 100",
            "action": [{"name": "submit", "label": group}, {"name": "disable", "rules": "begin"}],
        },
    ]
    if "then" in options:
        many = {"id": "many", "trigger": "metric", "name": f"recent.{group}-duration"}
        rules.append({**many, "when": "> 0", "action": options["then"]})
    return Fragment(
        rules=rules, statistics={"recent": {"statistic": "mean", "window": 3}}, heartbeat=20
    )


def registry(make: Any = build, **more: Any) -> Registry:
    record = AlgorithmPlugin(
        name="again", summary="again and again", build=make, options=OPTIONS, **more
    )
    plugin = LoadedPlugin(
        name="a", distribution="ensemble-a", version="2.0", module="a",
        records={"algorithm": (record,)},
    )  # fmt: skip
    return Registry([*discover().plugins, plugin])


def errors(text: str, make: Any = build, **given: Any) -> list[str]:
    with pytest.raises(FileErrors) as caught:
        load_text(text, registry(make), file="e.yaml", **given)
    return [f"{each.where}: {each.what} [{each.code}]" for each in caught.value.errors]


def use(entry: str) -> str:
    return f"{HEAD}use:\n  - {entry}\n"


def test_rules_of_an_instance_come_after_the_files() -> None:
    text = use("{algorithm: again, as: one, with: {group: sim}}") + (
        "rules: [{trigger: job-success, name: sim, action: {name: submit, label: post}}]\n"
    )
    ensemble = load_text(text, registry(), file="e.yaml")
    assert [rule.id for rule in ensemble.rules] == ["rule-1", "one-begin", "one-next"]
    assert [rule.instance for rule in ensemble.rules] == [None, "one", "one"]
    assert ensemble.instances["one"].algorithm == "again"
    assert ensemble.instances["one"].version == "ensemble-a 2.0"
    assert ensemble.heartbeat == 20


def test_file_with_an_instance_needs_no_rules() -> None:
    story = Story(load_text(use("{algorithm: again, with: {group: sim}}"), registry()))
    story.start()
    story.play("sim.0")
    assert story.submitted() == ["sim.0", "sim.1"]


def test_references_between_rules_of_an_instance_are_translated() -> None:
    text = f"{HEAD}use:\n" + "".join(
        f"  - {{algorithm: again, as: {name}, with: {{group: {group}, "
        f"then: {{name: log, message: m}}}}}}\n"
        for name, group in (("one", "sim"), ("two-b", "post"))
    )
    ensemble = load_text(text, registry())
    rules = {rule.id: rule for rule in ensemble.rules}
    assert rules["one-next"].spec["action"][1]["rules"] == "one-begin"
    assert "count.rule.two-b-next" in rules["two-b-next"].spec["when"]
    assert rules["two-b-many"].trigger.metric == "two_b_recent.post-duration"
    assert {"one_recent", "two_b_recent"} <= set(ensemble.statistics)


def test_algorithm_may_be_qualified_by_its_distribution() -> None:
    for name in ("ensemble-a:again", "Ensemble_A:again"):
        ensemble = load_text(use(f"{{algorithm: '{name}', with: {{group: sim}}}}"), registry())
        assert [rule.id for rule in ensemble.rules] == ["again-begin", "again-next"]
    text = use("{algorithm: 'ensemble-core:random-selection', with: {groups: [sim], at_once: 1}}")
    assert list(load_text(text, registry()).instances) == ["random-selection"]


def test_options_of_an_algorithm_are_checked_at_their_place() -> None:
    told = {
        "{algorithm: again, with: {group: sim, mots: 3}}": (
            "e.yaml:5:43: unknown key 'mots' in 'with' [unknown-key]"
        ),
        "{algorithm: again, with: {group: sim, most: 0}}": (
            "e.yaml:5:49: 'most' is 0, it must be at least 1 [out-of-range]"
        ),
        "{algorithm: again, with: {group: smi}}": (
            "e.yaml:5:38: there is no job group 'smi' [no-such-group]"
        ),
        "{algorithm: again, with: {group: sim, unless: count.smi.success}}": "unknown metric",
        "{algorithm: again, with: {group: sim, then: {name: submit, label: past}}}": (
            "e.yaml:5:71: there is no job group 'past' [no-such-group]"
        ),
        "{algorithm: agian, with: {group: sim}}": (
            "e.yaml:5:17: there is no algorithm 'agian' [no-such-algorithm]"
        ),
        "{algorithm: again}": "has no 'with' [missing-key]",
        "{as: x}": "e.yaml:5:5: the entry of 'use' has neither 'algorithm' nor 'rules' [missing-key]",
        "{algorithm: again, wiht: {}}": "e.yaml:5:24: unknown key 'wiht'",
        "{rules: [{trigger: start, action: {name: submit}}]}": "needs a name [missing-key]",
    }
    for entry, expected in told.items():
        found = errors(use(entry))
        assert any(expected in text for text in found), (entry, found)
        assert not any("invalid output of" in text for text in found), (entry, found)


def test_wrong_option_of_an_algorithm_is_reported_once_with_a_hint() -> None:
    told = {
        "groups: sim, at_once: 2": ["write a list: [sim]"],
        "groups: [sim], at_once: many": ["at_once: Number of concurrent jobs."],
        "groups: [sim], at_once: [2]": ["leave the brackets out: 2"],
        "groups: [sim], at_onec: 2": ["did you mean 'at_once'?"],
        "groups: [sim]": ["at_once: Number of concurrent jobs."],
    }
    for options, hints in told.items():
        with pytest.raises(FileErrors) as caught:
            load_text(use(f"{{algorithm: random-selection, with: {{{options}}}}}"), registry())
        assert [each.hint for each in caught.value.errors] == hints, options
    entry = "{algorithm: workload-demand, with: {groups: [sim], grow_by: most}}"
    (said,) = errors(use(entry))
    assert "expected one of next, smallest, largest, random or a whole number" in said


def test_mistake_in_an_algorithm_names_its_distribution_and_the_entry() -> None:
    def wrong(options: Any, view: Any) -> Fragment:
        submit = {"name": "submit", "label": "smi"}
        return Fragment(rules=[{"id": "begin", "trigger": "start", "action": submit}])

    (told,) = errors(use("{algorithm: again, as: one, with: {group: sim}}"), wrong)
    assert told == (
        "e.yaml:5:17: invalid output of the algorithm 'again' (plugin 'a' of ensemble-a 2.0), instance 'one', rule "
        "'one-begin': there is no job group 'smi' [no-such-group]"
    )


def test_algorithm_that_raises_is_reported_with_its_place() -> None:
    def broken(options: Any, view: Any) -> Fragment:
        raise KeyError("x")

    (told,) = errors(use("{algorithm: again, with: {group: sim}}"), broken)
    assert "the algorithm 'again' (plugin 'a' of ensemble-a 2.0) cannot be built" in told
    with pytest.raises(FileErrors) as caught:
        load_text(use("{algorithm: again, with: {group: sim}}"), registry(broken))
    assert "fix your plugin" in str(caught.value)


def test_instances_need_unique_names() -> None:
    twice = use(
        "{algorithm: again, with: {group: sim}}\n  - {algorithm: again, with: {group: post}}"
    )
    assert errors(twice) == [
        "e.yaml:6:17: duplicate instance 'again'; the first is at e.yaml:5:17 [duplicate-name]"
    ]
    text = use("{algorithm: again, as: a, with: {group: sim}}") + (
        "rules: [{id: a, trigger: start, action: {name: submit}}]\n"
    )
    assert errors(text) == [
        ("e.yaml:5:28: the instance 'a' has the same name as a rule [duplicate-name]")
    ]


def test_missing_capability_for_an_algorithm_is_reported() -> None:
    text = use("{algorithm: again, with: {group: sim}}")
    local = ExecutorPlugin(name="local", summary="fixed", build=lambda options: None)
    with pytest.raises(FileErrors, match="needs an executor that can resize"):
        load_text(text, registry(needs=frozenset({"resize"})), executor=local)
    with pytest.raises(FileErrors, match="needs the executor 'remote', but this run uses 'local'"):
        load_text(text, registry(supports=frozenset({"remote"})), executor=local)


def test_switch_to_an_unknown_instance_is_an_error() -> None:
    text = use("{algorithm: again, as: one, with: {group: sim}}") + (
        "rules: [{trigger: job-fail, name: sim, action: {name: switch, to: oen}}]\n"
    )
    assert errors(text) == ["e.yaml:6:67: there is no instance 'oen' [no-such-instance]"]


def test_resume_uses_the_stored_rules_of_an_algorithm() -> None:
    text = use("{algorithm: again, as: one, with: {group: sim}}")
    before = load_text(text, registry())

    def changed(options: Any, view: Any) -> Fragment:
        raise AssertionError("asked again")

    again = load_text(text, registry(changed), attached=dict(before.attached))
    assert [rule.spec for rule in again.rules] == [rule.spec for rule in before.rules]
    assert again.instances == before.instances
    (kept,) = before.attached.values()
    assert json.loads(kept)["version"] == "ensemble-a 2.0"


def test_set_changes_options_and_rules_of_an_instance() -> None:
    ensemble = load_text(
        use("{algorithm: again, as: one, with: {group: sim}}"),
        registry(),
        overrides=["use.one.with.most=7", "rules.one-begin.enabled=false"],
    )
    assert [(rule.repetitions, rule.enabled) for rule in ensemble.rules] == [(1, False), (7, True)]
    with pytest.raises(FileErrors, match="there is no instance 'oen'"):
        load_text(
            use("{algorithm: again, as: one, with: {group: sim}}"),
            registry(),
            overrides=["use.oen.with.most=7"],
        )


def test_expanded_file_runs_the_same() -> None:
    text = use(
        "{algorithm: again, as: one, enabled: false, with: {group: sim, "
        "then: {name: log, message: m}}}\n"
        "  - {as: own, rules: [{id: go, trigger: start, action: {name: switch, to: one}}]}"
    )
    written = write_yaml(expanded(text, registry(), file="e.yaml"))
    assert "algorithm" not in written
    decided = []
    for each in (text, written):
        story = Story(load_text(each, registry()))
        story.start()
        for number in range(4):
            story.play(f"sim.{number}", duration=2)
        decided.append(story.decisions)
    assert decided[0] == decided[1]
    assert len(decided[0]) > 10


@pytest.mark.parametrize(
    "value",
    ["1e3", "yes", "", "010", "a: b", "x # y", "two\nlines\n", "{T}", "= 3", "~", "é", 'q"'],
)
def test_written_yaml_reads_back_the_same(value: str) -> None:
    data = {"k": value, "l": [value, {"m": value}], "n": 1.5, "o": None, "p": True}
    assert read_document(write_yaml(data), "f").data == data


DEMAND = """\
summary: submits a group, and says when it is done
options:
  required: [group, often]
  properties:
    group: {type: string, x-ensemble: group}
    done: {type: string}
    often: {type: integer, minimum: 1}
    seen: {type: string}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: "${group}", with: {count: "${often}"}}}
  - id: done
    trigger: metric
    name: "${done}"
    when: "${often}"
    action: [{name: disable, rules: begin}, {name: log, message: "${instance}", level: "${seen}"}]
"""


def in_folder(folder: Path, demand: str, entry: str) -> Path:
    (folder / "demand.yaml").write_text(demand, encoding="utf-8")
    file = folder / "e.yaml"
    file.write_text(use(entry), encoding="utf-8")
    return file


USED = "{algorithm: ./demand.yaml, with: {group: sim, often: 2, done: count.sim.success}}"


def test_algorithm_file_has_typed_options(tmp_path: Path) -> None:
    story = Story(load(in_folder(tmp_path, DEMAND, USED), registry()))
    story.start()
    story.play("sim.0")
    story.play("sim.1")
    assert story.submitted() == ["sim.0", "sim.1"]
    assert "demand-done" in story.ensemble.rules[1].id
    (said,) = [each for each in story.decisions if each.type == "log"]
    assert (said.message, said.level) == ("demand", "info")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "entry", "told"),
    [
        (("${often}", "${oftn}"), USED, "demand.yaml:10:89: the algorithm has no option 'oftn'"),
        (
            ("${done}", "x ${done}"),
            USED,
            "demand.yaml:13:11: a placeholder must be the whole value, not part of 'x ${done}'",
        ),
        (("label: ", "lable: "), USED, "demand.yaml:10:63: unknown key 'lable'"),
        (("summary", "sumary"), USED, "demand.yaml:1:1: unknown key 'sumary'"),
        (("x-ensemble: group", "x-ensemble: grop"), USED, "demand.yaml:3:3: algorithm "),
        (("a", "a"), USED.replace("often: 2", "often: two"), "e.yaml:5:58: 'often' is the string"),
        (("a", "a"), USED.replace("demand", "demnd"), "e.yaml:5:17: there is no file"),
        (
            ("a", "a"),
            USED.replace("count.sim.success", "count.sim.succes"),
            "demand.yaml:13:11: unknown metric",
        ),
    ],
)
def test_mistake_in_an_algorithm_file_is_reported_there(
    change: tuple[str, str], entry: str, told: str, tmp_path: Path
) -> None:
    file = in_folder(tmp_path, DEMAND.replace(*change), entry)
    with pytest.raises(FileErrors) as caught:
        load(file, registry())
    found = [f"{each.where}: {each.what}" for each in caught.value.errors]
    found = [text.replace(f"{tmp_path}/", "").replace("./demand", "demand") for text in found]
    assert any(text.startswith(told) for text in found), found


def test_two_instances_that_end_the_run_cause_a_warning() -> None:
    end = {"name": "terminate"}

    def ending(options: Any, view: Any) -> Fragment:
        group = options["group"]
        return Fragment(
            rules=[
                {"trigger": "start", "action": {"name": "submit", "label": group}},
                {"trigger": "job-success", "name": group, "action": end},
            ]
        )

    both = use(
        "{algorithm: again, as: a, with: {group: sim}}\n"
        "  - {algorithm: again, as: b, with: {group: post}}"
    )
    (warning,) = load_text(both, registry(ending)).warnings
    assert warning.startswith("ensemble.yaml:6:17: the instances 'a' and 'b' may both end the run")
    switched = both.replace("as: b", "as: b, enabled: false")
    assert load_text(switched, registry(ending)).warnings == ()
