"""Tests of reading and validating jobspecs, and of the place of each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from ensemble_jobspec import read

from ensemble_core import FileErrors
from ensemble_core.cli.main import main

FLUX = """\
version: 1
resources:
- type: node
  count: 2
  with: [{type: slot, count: 1, label: default, with: [{type: core, count: 4}]}]
tasks:
- {command: [hostname], slot: default, count: {per_slot: 1}}
attributes: {system: {duration: 60, cwd: /tmp, environment: {A: 1.10}}}
"""
TRANSFORM = """\
version: 1
resources:
- {type: slot, count: 1, label: small, with: [{type: core, count: 2}]}
task:
  scripts:
  - {name: hello.sh, content: "#!/bin/bash\\necho hello\\n"}
  transform:
  - {step: write, filename: hello.sh, executable: true}
  - {step: submit, filename: hello.sh, wait: true}
"""
NEXTGEN = """\
version: 1
name: study
resources:
  small: {type: node, count: 1, with: [{type: core, count: 2}]}
  wide: {type: node, replicas: 4}
requires:
  io: [{name: io, field: type, match: shm}]
attributes: {environment: {A: a, B: b}, duration: 10m}
tasks:
- {name: build, command: make all, resources: small, attributes: {environment: {B: mine}}}
- {name: test, command: "#!/usr/bin/env python3\\nprint(1)", resources: small|wide, depends_on: [build], replicas: 3, requires: io}
- {name: finish, group: post, depends_on: test}
groups:
- name: post
  resources: small
  attributes: {duration: 300s}
  requires: io
  tasks: [{command: [plot, "a b"]}, {command: gzip x, local: true}]
"""


def errors(text: str) -> list[tuple[str, int, str, str]]:
    """Return code, line, message and hint of each mistake."""
    with pytest.raises(FileErrors) as raised:
        read(f"{text}\n")
    found = raised.value.errors
    assert all(error.where is not None and error.exit_code == 2 for error in found)
    return [
        (e.code, e.where.line if e.where else 0, e.what, f"{e.hint or ''} {e.cause or ''}")
        for e in found
    ]


def test_the_form_is_detected_by_the_shape() -> None:
    assert [read(text).form for text in (FLUX, TRANSFORM, NEXTGEN)] == [
        "flux",
        "transform",
        "nextgen",
    ]


def test_a_flux_jobspec_is_one_task_with_its_slots() -> None:
    (task,) = read(FLUX).tasks
    assert task.command == ("hostname",)
    assert task.request is not None
    (node,) = task.request.alternatives
    assert (node.type, node.count, node.within[0].type, node.within[0].within[0].count) == (
        "node", 2, "slot", 4,
    )  # fmt: skip
    assert task.attributes.duration == 60
    assert task.attributes.environment == {"A": "1.10"}  # not 1.1


def test_tasks_inherit_attributes_of_resources_groups_and_the_whole() -> None:
    found = read(NEXTGEN)
    build, test, finish = found.tasks
    assert found.name == "study"
    assert build.command == ("make", "all")
    assert build.attributes.environment == {"A": "a", "B": "mine"}
    assert build.attributes.duration == 600  # seconds
    assert test.script is not None
    assert test.script.text.startswith("#!/usr/bin/env python3")
    assert test.request is not None
    assert test.request.names == ("small", "wide")
    assert test.request.alternatives[1].anywhere
    assert (test.replicas, test.requires) == (3, "io")
    assert [name.text for name in finish.depends_on] == ["test"]
    (post,) = found.groups
    assert [task.attributes.duration for task in post.tasks] == [300, 300]
    assert [task.local for task in post.tasks] == [False, True]
    assert post.requires == "io"
    assert test.where.line == 11


@pytest.mark.parametrize(
    ("given", "seconds"), [("5", 5), ("300s", 300), ("5m", 300), ("1h30m", 5400), ("'90'", 90)]
)
def test_a_duration_has_units_and_a_number_is_seconds(given: str, seconds: float) -> None:
    (task,) = read(
        f"version: 1\ntasks: [{{command: x, attributes: {{duration: {given}}}}}]\n"
    ).tasks
    assert task.attributes.duration == seconds


def test_attributes_of_resources_replace_those_of_the_whole_and_of_a_group_those_of_resources() -> (
    None
):
    text = """\
version: 1
attributes: {duration: 60, environment: {A: whole, B: whole, C: whole}}
resources: {r: {type: node, attributes: {duration: 20, environment: {B: resources}}}}
tasks: [{name: t, command: x, resources: r, attributes: {environment: {C: task}}}]
groups: [{name: g, attributes: {duration: 40}, tasks: [{command: x, resources: r}]}]
"""
    found = read(text)
    (task,), (inner,) = found.tasks, found.groups[0].tasks
    assert task.attributes.environment == {"A": "whole", "B": "resources", "C": "task"}
    assert (task.attributes.duration, inner.attributes.duration) == (20, 40)
    found = read(text.replace("duration: 20, ", ""))
    assert (found.tasks[0].attributes.duration, found.groups[0].tasks[0].attributes.duration) == (
        60,
        40,
    )


def test_resources_may_be_written_in_the_task() -> None:
    inline = "{type: node, count: 2, with: [{type: cores, count: 3}]}"
    (task,) = read(f"version: 1\ntasks: [{{command: x, resources: {inline}}}]\n").tasks
    assert task.request is not None
    (node,) = task.request.alternatives
    assert (node.type, node.count, node.within[0].type, node.within[0].count) == (
        "node", 2, "core", 3,
    )  # fmt: skip


def test_the_command_alone_prints_its_help_and_has_a_version() -> None:
    result = CliRunner().invoke(main, ["jobspec"])
    assert (result.exit_code, "validate" in result.output) == (2, True)
    result = CliRunner().invoke(main, ["jobspec", "--version"])
    assert (result.exit_code, "version" in result.output) == (0, True)


def test_an_unnamed_task_never_gets_the_name_of_a_group() -> None:
    text = "version: 1\ntasks: [{command: x}, {group: task-2}]\n"
    found = read(f"{text}groups: [{{name: task-2, tasks: [{{command: y}}]}}]\n")
    assert [task.name for task in found.tasks] == ["task-1", "task-2-"]


def test_a_file_gives_the_same_as_its_text(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(NEXTGEN)
    assert read(file).tasks[0].where.file == str(file)
    assert read(str(file)).file == str(file)


@pytest.mark.parametrize(
    ("text", "code", "line", "said"),
    [
        # upstream accepts these or crashes
        ("version: 1\ntsaks: [{command: x}]", "unknown-key", 2, "did you mean 'tasks'?"),
        ("version: 1\ntasks: [{command: x}]\ntsaks: []", "unknown-key", 3, "'tasks'"),
        ("version: 1", "jobspec-form", 1, "has no 'tasks', 'task'"),
        ("[1]", "jobspec-form", 1, "cannot detect"),
        ("version: 1\ntask: {}\ntasks: []", "jobspec-form", 1, "both"),
        ("version: 1\nresources: []\ntasks: [{command: x}]", "jobspec-form", 1, "are a list"),
        (
            "version: 1\nresources: {a: {type: node}}\ntasks: [{command: x, slot: a}]",
            "jobspec-form", 1, "are a mapping",
        ),
        ("version: 2\ntasks: [{command: x}]", "bad-value", 1, "expected 1"),
        ("tasks: [{command: x}]", "missing-key", 1, "no 'version'"),
        ("version: 1\ntasks: []", "empty", 2, "is empty"),
        ("version: 1\nresources: {a: {type: node}}", "nothing-to-run", 1, "neither"),
        ("version: 1\ntasks:\n- {name: a}", "nothing-to-run", 3, "needs a command"),
        (
            "version: 1\nresources:\n  my-node: {type: nod}\ntasks: [{command: x}]",
            "bad-value", 3, "did you mean 'node'?",
        ),
        (
            "version: 1\nresources:\n  a: {type: node, with: [{type: memory}]}\ntasks: [{command: x}]",
            "bad-value", 3, "'memory'",
        ),
        (
            "version: 1\nresources:\n  a: {type: node, count: 1, replicas: 2}\ntasks: [{command: x}]",
            "bad-resources", 3, "cannot be combined",
        ),
        ("version: 1\ntasks: [{command: x, resources: a}]", "no-such-resources", 2, "'a'"),
        (
            "version: 1\nresources: {small: {type: node}}\ntasks: [{command: x, resources: smal}]",
            "no-such-resources", 3, "did you mean 'small'?",
        ),
        ("version: 1\ntasks:\n- {command: x, replicas: 0}", "out-of-range", 3, "at least 1"),
        ("version: 1\ntasks:\n- {command: 'echo \"x'}", "bad-command", 3, "closing quotation"),
        ("version: 1\ntasks:\n- {command: ''}", "empty", 3, "is empty"),
        ("version: 1\ntasks:\n- {command: x, depends_on: [b]}", "no-such-task", 3, "'b'"),
        (
            "version: 1\ntasks:\n- {name: a, command: x, depends_on: [b]}\n- {name: b, command: x, depends_on: [c]}\n- {name: c, command: x, depends_on: [a]}",
            "dependency-cycle", 3, "a needs b needs c needs a",
        ),
        ("version: 1\ntasks:\n- {name: a, command: x, depends_on: a}", "dependency-cycle", 3, "a needs a"),
        (
            "version: 1\ntasks:\n- {name: a, command: x}\n- {name: a, command: y}",
            "duplicate-name", 4, "at jobspec:3",
        ),
        ("version: 1\ntasks:\n- {name: a, group: g}", "no-such-group", 3, "'g'"),
        (
            "version: 1\ngroups:\n- {name: g, tasks: [{group: h}]}\n- {name: h, tasks: [{group: g}]}",
            "dependency-cycle", 4, "contains itself",
        ),
        (
            ("version: 1\ntasks:\n- {name: a, group: g}\n"
            "groups:\n- {name: g, depends_on: [a], tasks: [{command: x}]}"),
            "dependency-cycle", 3, "a needs a",
        ),
        ("version: 1\ntasks:\n- {command: x, requires: a|b}", "no-such-requirement", 3, "'a'"),
        (
            "version: 1\ntasks:\n- {command: x, attributes: {duration: 5 minutes}}",
            "bad-duration", 3, "not a duration",
        ),
        (
            "version: 1\ngroups:\n- name: g\n  attributes: {duration: 60}\n  tasks: [{command: x, attributes: {duration: 61}}]",
            "out-of-range", 5, "longer than",
        ),
        ("version: 1\ngroups:\n- {name: g}", "nothing-to-run", 3, "no tasks"),
        ("version: 1\ntasks:\n- {command: x, steps: [{name: write, path: y}]}", "bad-value", 3, "'write'"),
        (
            "version: 1\ntasks:\n- {command: x, group: g}\ngroups: [{name: g, tasks: [{command: x}]}]",
            "bad-value", 3, "only one is allowed",
        ),
        # Flux's jobspec
        (FLUX.replace("slot: default", "slot: defalt"), "no-such-slot", 7, "'default'"),
        (FLUX.replace("duration: 60, ", ""), "missing-key", 8, "no 'duration'"),
        (FLUX.replace("type: core", "type: cores"), "bad-value", 5, "did you mean 'core'?"),
        (FLUX.replace("per_slot: 1", "per_slot: 1, total: 2"), "bad-value", 7, "only one is allowed"),
        # the steps of a transform
        (TRANSFORM.replace("step: submit", "step: sumbit"), "no-such-step", 9, "did you mean 'submit'?"),
        (TRANSFORM.replace("name: hello.sh,", "name: ../hello.sh,"), "path-outside", 6, "is outside"),
        (TRANSFORM.replace("write, filename: hello.sh", "write, filename: /etc/x"), "path-outside", 8, "is outside"),
        (TRANSFORM.replace("write, filename: hello.sh, executable: true", "copy, source: x, filename: a/../../x"), "path-outside", 8, "is outside"),
        (TRANSFORM.replace("write, filename: hello.sh", "write, filename: helo.sh"), "no-such-script", 8, "'hello.sh'"),
        (TRANSFORM.replace("executable", "executible"), "unknown-key", 8, "'executable'"),
        (TRANSFORM.replace("submit, filename: hello.sh", "submit, filename: bye.sh"), "not-written", 9, "'bye.sh'"),
        (TRANSFORM.replace("- {step: write, filename: hello.sh, executable: true}", "- {step: stage, filename: hello.sh}"), "not-written", 8, "earlier step"),
        (TRANSFORM.replace("- {step: submit, filename: hello.sh, wait: true}", ""), "nothing-to-run", 8, "no step submits"),
        (TRANSFORM.replace("step: submit, filename: hello.sh, wait", "step: submit, wait"), "nothing-to-run", 9, "no command"),
        (TRANSFORM.replace("submit, filename: hello.sh, wait: true", "set, key: stag, value: x"), "bad-value", 9, "'stage'"),
        (TRANSFORM.replace("submit, filename: hello.sh, wait: true", "set, key: sharedfs, value: x"), "wrong-type", 9, "true or false"),
        ("version: 1\nresources: [{type: node}]\ntask: {}", "nothing-to-run", 3, "needs a command"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_line_and_a_suggestion(
    text: str, code: str, line: int, said: str
) -> None:
    told = [
        f"{what} {hint}" for found, at, what, hint in errors(text) if (found, at) == (code, line)
    ]
    assert any(said in one for one in told), errors(text)


def test_all_mistakes_of_a_file_are_reported_at_once() -> None:
    text = "version: 1\ntasks:\n- {comand: x}\n- {command: y, replicas: none}\n- {command: 1}"
    assert [(code, line) for code, line, *_ in errors(text)] == [
        ("unknown-key", 3), ("wrong-type", 4), ("wrong-type", 5),
    ]  # fmt: skip


def test_mistakes_in_every_step_are_not_reported_as_missing_steps() -> None:
    text = TRANSFORM.replace("hello.sh", "../hello.sh")
    assert {code for code, *_ in errors(text)} == {"path-outside"}


def test_ignored_fields_cause_warnings() -> None:
    text = NEXTGEN.replace("replicas: 4}", "replicas: 4, schedule: true}").replace(
        "{environment: {B: mine}}", "{environment: {B: mine}, priority: 3}"
    )
    warnings = "\n".join(read(text).warnings)
    assert "jobspec:5:45: 'schedule' is ignored: the queue decides what it schedules" in warnings
    assert "'priority' is ignored, except on Flux" in warnings
    text = TRANSFORM.replace("task:\n", "task:\n  resources: {io: {match: shm}}\n")
    assert "'resources' are ignored" in "".join(read(text).warnings)


@pytest.mark.parametrize("form", [FLUX, TRANSFORM], ids=["flux", "transform"])
@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ("queue: debug", "'queue' is ignored, except on Flux"),
        ("durration: 5m", "'durration' is ignored, except on Flux (did you mean 'duration'?)"),
        ("constraints: {properties: [gpu]}", "'constraints' is ignored, except on Flux"),
        ("shell: {options: {output: {stdout: {type: file, path: out}}}}", "'shell' is ignored"),
        ("shell: {options: {rlimit: {core: 0}}}", ""),  # of each 'flux submit --dry-run'
        ("job: {name: mine}", ""),
    ],
)
def test_attributes_that_only_flux_has_cause_warnings_in_all_forms(
    form: str, given: str, warning: str
) -> None:
    document = yaml.safe_load(form)
    system = document.setdefault("attributes", {}).setdefault("system", {})
    system.update(yaml.safe_load(given))
    warnings = "\n".join(read(json.dumps(document)).warnings)
    assert warning in warnings
    assert bool(warning) == bool(warnings)


def test_keys_that_have_no_effect_on_any_queue_cause_warnings() -> None:
    document = yaml.safe_load(FLUX)
    document["tasks"][0].update(distribution="cyclic", attributes={"environment": {"A": "1"}})
    warnings = "\n".join(read(json.dumps(document)).warnings)
    assert "the task's 'attributes' are ignored" in warnings
    assert "the task's 'distribution' is ignored" in warnings
    nested = "tasks: [{name: a, command: 'true', attributes: {system: {environment: {A: 1}}}}]"
    (warning,) = read(f"version: 1\n{nested}").warnings
    assert "'system' is ignored in this form: write what is in it directly into" in warning


def test_validate_prints_the_form_or_every_mistake_and_exits_with_2(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(NEXTGEN)
    bad.write_text("version: 1\ntasks:\n- {comand: x}\n")
    result = CliRunner().invoke(main, ["jobspec", "validate", str(good)])
    assert result.exit_code == 0, result.output
    assert "form nextgen: 5 tasks" in result.output
    result = CliRunner().invoke(main, ["jobspec", "validate", str(good), str(bad)])
    assert result.exit_code == 2
    assert f"{bad}:3:4: unknown key 'comand'" in result.output
    result = CliRunner().invoke(main, ["jobspec", "validate", "--json", str(bad)])
    (line,) = result.stdout.splitlines()
    assert (json.loads(line)["code"], json.loads(line)["line"]) == ("unknown-key", 3)


def test_validate_reports_unsupported_resources(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    resources = "{a: {type: node, with: [{type: slot}, {type: core}]}}"
    file.write_text(f"version: 1\nresources: {resources}\ntasks: [{{command: x, resources: a}}]\n")
    result = CliRunner().invoke(main, ["jobspec", "validate", str(file)])
    assert result.exit_code == 2
    assert f"{file}:2:16: unsupported resources: cores or GPUs beside a slot" in result.output


def test_a_given_form_is_enforced(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("version: 1\nresources: []\n")
    result = CliRunner().invoke(main, ["jobspec", "validate", "--form", "A", str(file)])
    assert result.exit_code == 2
    assert "has no 'tasks'" in result.output
