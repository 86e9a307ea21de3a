"""Tests of jobspecs converted to job groups and rules, or to texts for queues."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from ensemble_jobspec import conversion, read
from ensemble_jobspec.conversion import Options, convert
from ensemble_jobspec.format_writer import as_nextgen, as_yaml
from ensemble_jobspec.resource_shapes import Shape, choose_shape, compute_shape
from ensemble_jobspec.staging import script_words
from ensemble_jobspec.workload import Request, Script, Vertex, Workload
from ensemble_testing import Story
from hypothesis import given, settings
from hypothesis import strategies as st

from ensemble_core import FileErrors, JobGroup, UsageError, escape_braces, unescape_braces
from ensemble_core.cli.main import main
from ensemble_core.cli.toolkit import load_text
from ensemble_core.plugin.discovery import discover

STUDY = """\
version: 1
name: study
resources:
  two: {type: node, count: 2, with: [{type: slot, count: 3, with: [{type: core, count: 4}, {type: gpu, count: 1}]}]}
  one: {type: slot, count: 1, with: [{type: core, count: 1}]}
tasks:
- {name: build, command: "echo {index} ${HOME}", resources: two, attributes: {duration: 5m, cwd: /tmp, environment: {A: "{run}"}}}
- {name: prepare, command: echo prepared, local: true}
- {name: test, command: "#!/usr/bin/env python3\\nprint('{0}', {1})", depends_on: [build, prepare], replicas: 3}
- {name: finish, group: post, depends_on: test}
groups:
- {name: post, resources: one, tasks: [{command: [echo, "a b"]}, {name: last, command: echo 2, depends_on: [task-1]}]}
"""
NASTY = [
    "; touch X",
    "$(touch X)",
    "`touch X`",
    "a'b\"c",
    "a\nb",
    "{index} {{x}} ${y} {z:3}",
    "*",
    "\\",
    "é",
]


def shape(text: str, **more: object) -> Shape:
    (task,) = read(
        f"version: 1\nresources: {{a: {text}}}\ntasks: [{{command: x, resources: a}}]\n"
    ).tasks
    assert task.request is not None
    return compute_shape(task.request.alternatives[0], **more)  # type: ignore[arg-type]


def test_a_slot_runs_one_task_with_everything_in_the_slot() -> None:
    found = shape(
        "{type: node, count: 2, with: [{type: slot, count: 3, with: [{type: core, count: 4}, {type: gpu}]}]}"
    )
    assert (found.nodes, found.tasks, found.cores, found.gpus, found.anywhere) == (
        2,
        6,
        4,
        1,
        False,
    )
    found = shape("{type: slot, count: 3, with: [{type: core, count: 4}]}")
    assert (found.nodes, found.tasks, found.cores, found.anywhere) == (1, 3, 4, True)


def test_without_a_slot_each_node_has_one_task_and_a_note_about_upstream() -> None:
    found = shape(
        "{type: node, count: 2, with: [{type: socket, count: 2, with: [{type: cores, count: 4}]}]}"
    )
    assert (found.nodes, found.tasks, found.cores) == (2, 2, 8)
    assert "a socket has no effect" in found.notes[0]
    assert "upstream would start 8 copies" in found.notes[1]
    found = shape("{type: node, count: 2, with: [{type: core, count: 4}]}", copies="cores")
    assert (found.tasks, found.cores) == (8, 1)


def test_nodes_with_replicas_may_be_anywhere_and_a_bare_node_is_exclusive() -> None:
    found = shape("{type: node, replicas: 4, with: [{type: core, count: 2}]}")
    assert (found.nodes, found.tasks, found.cores, found.anywhere, found.whole) == (
        1,
        4,
        2,
        True,
        False,
    )
    assert shape("{type: node, count: 4}").whole


def test_a_rack_multiplies_its_contents() -> None:
    assert (
        shape("{type: rack, count: 2, with: [{type: node, count: 3, with: [{type: core}]}]}").nodes
        == 6
    )


@pytest.mark.parametrize(
    "text",
    [
        "{type: node, with: [{type: slot}, {type: core}]}",
        "{type: node, with: [{type: node}]}",
        "{type: slot, with: [{type: node}]}",
        "{type: slot, with: [{type: slot}]}",
        "{type: core, with: [{type: gpu}]}",
        "{type: rack, with: [{type: node}, {type: core}]}",
    ],
)
def test_unsupported_resources_are_rejected_with_their_place(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        shape(text)
    assert raised.value.code == "bad-resources"
    assert raised.value.where is not None
    assert raised.value.where.line == 2


def test_tasks_are_counted_in_total_or_per_slot() -> None:
    slot = "{type: node, count: 2, with: [{type: slot, count: 2, with: [{type: core, count: 4}]}]}"
    assert (shape(slot, per_slot=2).tasks, shape(slot, per_slot=2).cores) == (8, 2)
    assert (shape(slot, total=3).tasks, shape(slot, total=8).tasks) == (3, 8)
    with pytest.raises(UsageError, match="5 tasks in 4 slots"):
        shape(slot, total=5)


_CORES = st.builds(Vertex, st.just("core"), st.integers(1, 8))
_GPUS = st.builds(Vertex, st.just("gpu"), st.integers(1, 4))


def _holder(inner: st.SearchStrategy[tuple[Vertex, ...]], *types: str) -> st.SearchStrategy[Vertex]:
    return st.builds(Vertex, st.sampled_from(types), st.integers(1, 5), inner)


_PARTS = st.lists(
    st.one_of(_CORES, _GPUS, _holder(st.tuples(_CORES), "socket")), min_size=1, max_size=3
).map(tuple)
_SLOT = _holder(_PARTS, "slot")
_NODE = _holder(st.one_of(st.tuples(_SLOT), _PARTS), "node")
_TREES = st.one_of(_SLOT, _NODE, _holder(st.tuples(_NODE), "rack"), _CORES)


def cores_in(vertex: Vertex) -> int:
    """Return the number of cores in a tree: counts multiply."""
    own = 1 if vertex.type == "core" else sum(map(cores_in, vertex.within))
    return vertex.count * own


@given(_TREES)
@settings(deadline=None)
def test_the_cores_of_any_tree_are_those_of_the_job(tree: Vertex) -> None:
    found = compute_shape(tree)
    if cores_in(tree):
        assert found.tasks * found.cores == cores_in(tree)
        copied = compute_shape(tree, copies="cores")
        assert copied.tasks * copied.cores == cores_in(tree)


def test_the_first_alternative_that_the_queue_can_ever_hold_is_used() -> None:
    big, small = Vertex("node", 8), Vertex("node", 1)
    request = Request((big, small), ("big", "small"))
    assert choose_shape(request, "slots", {"nodes.up": 4})[0].nodes == 1
    assert choose_shape(request, "slots", {"nodes.up": 8})[0].nodes == 8
    assert choose_shape(request, "slots", None)[0].nodes == 8
    with pytest.raises(UsageError) as raised:
        choose_shape(request, "slots", {"nodes.up": 0})
    assert raised.value.code == "cannot-hold"
    assert "big: nodes.up is 0, needs 8" in str(raised.value.cause)


def test_nodes_that_are_down_cause_a_warning_and_the_first_alternative_is_submitted() -> None:
    slot = "{type: slot, count: 1, with: [{type: core, count: %d}]}"
    text = f"""\
version: 1
resources: {{big: {slot % 8}, small: {slot % 4}}}
tasks: [{{name: a, command: x, resources: big|small}}, {{name: b, command: x, resources: big}}]
"""
    found = convert(read(text), Options(gauges={"cores.up": 2.0}, firm=False))
    assert [job["cores_per_task"] for job in found.jobs] == [8, 8]
    assert "big: cores.up is 2, needs 8; small: cores.up is 2" in found.warnings[0]
    found = convert(read(text), Options(gauges={"cores.up": 4.0}, firm=False))
    assert [job["cores_per_task"] for job in found.jobs] == [4, 8]
    assert len(found.warnings) == 1
    with pytest.raises(UsageError):
        convert(read(text), Options(gauges={"cores.up": 4.0}))


# -- rules -----------------------------------------------------------------------------------------


def test_tasks_become_job_groups_and_dependencies_rules() -> None:
    document = convert(read(STUDY)).document
    build, test, first, last = document["jobs"]
    assert build == {
        "name": "build", "command": ["echo", "{{index}}", "${HOME}"], "nodes": 2, "tasks": 6,
        "cores_per_task": 4, "gpus_per_task": 1, "duration": 300.0, "workdir": "/tmp",
        "environment": {"A": "{{run}}"},
    }  # fmt: skip
    assert (test["name"], test["count"]) == ("test", 3)
    assert test["command"][:3] == ["/usr/bin/env", "python3", "-c"]
    assert (first["name"], last["name"]) == ("finish-task-1", "finish-last")
    waits = {(r["id"], r.get("name"), r.get("when")) for r in document["rules"]}
    assert ("test-after-build", "count.build.success", ">= 1") in waits
    assert ("test", "count.rule.prepare-done", ">= 1") in waits
    assert ("finish-task-1", "count.test.success", ">= 3") in waits


def test_the_tasks_and_groups_of_a_file_start_together_in_its_order() -> None:
    tasks = "tasks: [{name: x, command: x}]"
    groups = f"groups: [{{name: g, {tasks}}}, {{name: h, {tasks}}}]"
    begin = convert(read(f"version: 1\n{groups}\ntasks: [{{name: t, command: x}}]\n")).rules[0]
    assert begin["trigger"] == "start"
    assert [each["label"] for each in begin["action"]] == ["t", "g-x", "h-x"]


def test_replicas_of_a_node_need_not_be_on_one_node_in_any_queue() -> None:
    text = "version: 1\ntasks: [{command: x, resources: {type: node, replicas: 3, with: [{type: core}]}}]\n"
    (job,) = convert(read(text), Options(executors=frozenset({"flux", "slurm"}))).jobs
    assert job["tasks"] == 3
    assert "nodes" not in job
    assert job["options"]["flux"]["any_nodes"]
    assert job["options"]["slurm"]["any_nodes"]


def test_the_result_is_a_valid_ensemble_file() -> None:
    assert convert(read(STUDY)).name == "study"
    text = as_yaml(convert(read(STUDY)).document)
    ensemble = load_text(text, discover(), file="study.yaml")
    assert list(ensemble.groups) == ["build", "test", "finish-task-1", "finish-last"]
    assert next(ensemble.groups["build"].jobs(0)).command == ("echo", "{index}", "${HOME}")


def test_a_group_may_become_a_job_with_a_nested_ensemble() -> None:
    options = Options(executor="slurm", executors=frozenset({"slurm"}), file="/x/study.yaml")
    document = convert(read(STUDY), options).document
    (batch,) = [job for job in document["jobs"] if job["name"] == "finish"]
    assert batch["command"][:6] == ["ensemble", "jobspec", "run", "/x/study.yaml", "--only", "post"]
    flux = convert(read(STUDY), Options(executor="flux", executors=frozenset({"flux"})))
    (batch,) = [job for job in flux.jobs if job["name"] == "finish"]
    assert batch["options"]["flux"]["instance"] is True
    assert batch["command"][-2:] == ["--executor", "flux"]


def test_a_batch_of_several_nodes_on_slurm_is_rejected_with_a_hint() -> None:
    text = STUDY.replace("{name: post, resources: one", "{name: post, resources: two")
    with pytest.raises(UsageError) as raised:
        convert(read(text), Options(executor="slurm"))
    assert raised.value.code == "cannot-nest"
    assert "--groups flat" in str(raised.value.hint)


def test_a_batch_of_several_nodes_on_slurm_runs_flux_if_available() -> None:
    text = STUDY.replace("{name: post, resources: one", "{name: post, resources: two")
    options = Options(
        executor="slurm", executors=frozenset({"slurm", "flux"}), flux="/opt/bin/flux",
        program=("/x/ensemble",),
    )  # fmt: skip
    (batch,) = [job for job in convert(read(text), options).jobs if job["name"] == "finish"]
    words = batch["command"]
    assert words[0] == "srun"
    assert words[words.index("/opt/bin/flux") :][:3] == ["/opt/bin/flux", "start", "/x/ensemble"]
    assert words[-2:] == ["--executor", "flux"]
    assert (batch["nodes"], batch["cores_per_task"], batch["gpus_per_task"]) == (2, 12, 3)
    assert "tasks" not in batch  # one task per node
    assert batch["options"]["slurm"]["launch"] == "none"
    assert batch["environment"] == {"SLURM_MPI_TYPE": "pmi2"}


def test_a_group_may_be_referred_to_several_times() -> None:
    text = STUDY.replace("- {name: finish,", "- {name: again, group: post}\n- {name: finish,")
    names = [job["name"] for job in convert(read(text)).jobs]
    assert {"again-task-1", "again-last", "finish-task-1", "finish-last"} <= set(names)


def test_a_dependency_on_a_group_that_is_run_elsewhere_is_rejected() -> None:
    text = "version: 1\ntasks: [{command: x, depends_on: [g]}]\ngroups:\n"
    text += "- {name: g, tasks: [{command: y}]}\n- {name: h, tasks: [{group: g}]}\n"
    with pytest.raises(UsageError) as raised:
        convert(read(text))
    assert raised.value.code == "no-such-task"
    assert "which a task in another group runs" in str(raised.value)


def test_requirements_are_met_by_the_sites_table_or_reported() -> None:
    text = STUDY.replace(
        "{type: node, count: 2, with", "{type: node, requires: ['cpu=amd64'], count: 2, with"
    )
    site = {
        "cpu=amd64": {"slurm": {"constraint": "amd64"}, "kubernetes": {"nodeSelector": {"a": "b"}}}
    }
    options = Options(executors=frozenset({"slurm"}), site=site)
    found = convert(read(text), options)
    assert found.jobs[0]["options"] == {"slurm": {"constraint": "amd64"}}
    assert found.selectors["build"] == {"nodeSelector": {"a": "b"}}
    assert any("requires 'cpu=amd64'" in warning for warning in convert(read(text)).warnings)
    with pytest.raises(UsageError) as raised:
        convert(read(text), Options(strict=True))
    assert raised.value.code == "not-met"


STAGED = """\
version: 1
resources: [{type: node, count: 2, with: [{type: slot, count: 1, with: [{type: core}]}]}]
task:
  scripts: [{name: a.sh, content: "cat data"}]
  transform:
  - {step: set, key: sharedfs, value: false}
  - {step: write, filename: a.sh}
  - {step: copy, source: far/away, filename: data}
  - {step: stage, filename: a.sh}
  - {step: stage, filename: data}
  - {step: submit, filename: a.sh}
"""


@pytest.mark.parametrize(
    ("stated", "shared", "staged"),
    [(False, True, True), (False, False, True), (None, True, False), (None, False, True)],
)
def test_files_are_sent_if_nodes_share_no_folder_which_a_step_may_state(
    stated: bool | None, shared: bool, staged: bool
) -> None:
    text = (
        STAGED
        if stated is False
        else STAGED.replace("  - {step: set, key: sharedfs, value: false}\n", "")
    )
    options = Options(
        executor="flux", executors=frozenset({"flux"}), shared=shared, contents=lambda name: name
    )
    (job,) = convert(read(text), options).jobs
    assert ("options" in job) == staged


def test_a_task_stages_files_with_steps_alone() -> None:
    text = """\
version: 1
tasks:
- {name: files, steps: [{name: stage, path: data}]}
- {name: t, command: x, depends_on: [files]}
"""
    options = Options(
        executor="flux", executors=frozenset({"flux"}), shared=False, contents=lambda name: name
    )
    (job,) = convert(read(text), options).jobs  # a single job: 'files' is not one
    assert job["options"]["flux"]["attributes"]["system.files"]["data"]["data"] == "data"


PLAIN = {
    "version": 1,
    "resources": [{"type": "slot", "count": 3, "label": "one", "with": [{"type": "core"}]}],
    "task": {"command": "true", "slot": "one", "count": {"total": 2}},
    "attributes": {"system": {"duration": 90, "cwd": "/tmp", "environment": {"A": "a"}}},
}


def test_a_task_of_jobspec_0_0_needs_neither_steps_nor_scripts() -> None:
    (job,) = convert(read(f"{json.dumps(PLAIN)}\n")).jobs
    assert job["command"] == ["true"]
    assert job["tasks"] == 2  # in three slots
    assert (job["duration"], job["workdir"], job["environment"]) == (90, "/tmp", {"A": "a"})
    with pytest.raises(FileErrors) as raised:
        read(json.dumps(PLAIN).replace('"slot": "one"', '"slot": "two"') + "\n")
    assert [error.code for error in raised.value.errors] == ["no-such-slot"]


@pytest.mark.parametrize(("word", "waits"), [("wait", True), ("watch", True), ("", False)])
def test_the_next_step_waits_for_the_end_of_a_submitted_one(word: str, waits: bool) -> None:
    text = TRANSFORM.replace(", wait: true", f", {word}: true" if word else "")
    rules = convert(read(text)).rules
    after = [rule["id"] for rule in rules if rule.get("name") == "count.jobspec-a-sh.success"]
    assert after == (["jobspec-files-2"] if waits else [])


def test_staged_files_are_read_at_their_source() -> None:
    options = Options(executor="flux", executors=frozenset({"flux"}), contents=lambda name: name)
    (job,) = convert(read(STAGED), options).jobs
    files = job["options"]["flux"]["attributes"]["system.files"]
    assert {name: file["data"] for name, file in files.items()} == {
        "a.sh": "cat data",
        "data": "far/away",
    }
    with pytest.raises(UsageError, match="can stage only its"):
        convert(read(STAGED), Options(executor="flux"))


def test_a_queue_that_cannot_copy_files_to_its_nodes_is_reported() -> None:
    with pytest.raises(UsageError) as raised:
        convert(read(STAGED), Options(executor="gridengine"))
    assert raised.value.code == "cannot-stage"
    assert raised.value.where is not None
    assert raised.value.where.line == 11
    assert convert(read(STAGED), Options(executor="local")).jobs
    assert convert(read(STAGED), Options(executor="gridengine", skip=frozenset({"stage"}))).jobs


def test_a_group_without_resources_uses_those_of_the_enclosing_group() -> None:
    text = STUDY.replace(
        "{name: post, resources: one, tasks: [",
        "{name: post, resources: two, groups: [{name: inner, tasks: [{command: x, resources: two}]}], tasks: [",
    )
    options = Options(executor="flux", executors=frozenset({"flux"}))
    assert convert(read(text), options).jobs
    with pytest.raises(UsageError) as raised:
        convert(read(text.replace("post, resources: two", "post, resources: one")), options)
    assert raised.value.code == "cannot-hold"
    assert "the group 'inner' can never hold" in str(raised.value)


@pytest.mark.parametrize(("many", "row"), [(16, 16), (17, 16), (11, 3)], ids=str)
def test_a_task_starts_once_all_of_many_dependencies_are_done(
    many: int, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "_IN_A_ROW", row)  # 4 parts for 11 tasks, again more than 3
    names = [f"t{number}" for number in range(many)]
    lines = ["version: 1", "tasks:", *(f"- {{name: {name}, command: x}}" for name in names)]
    lines.append(f"- {{name: last, command: x, depends_on: [{', '.join(names)}]}}")
    told = Story(as_yaml(convert(read("\n".join(lines))).document))
    told.start()
    for name in reversed(names):  # the first task ends last
        assert "last.0" not in told.submitted()
        told.play(f"{name}.0")
    assert "last.0" in told.submitted()
    assert told.play("last.0")
    assert told.exit_code == 0


# -- texts -----------------------------------------------------------------------------------------


@given(st.text(st.sampled_from("{}ab$: 3run"), max_size=12) | st.sampled_from(NASTY))
@settings(deadline=None)
def test_braces_of_a_jobspec_are_not_placeholders(text: str) -> None:
    group = JobGroup(name="g", command=(escape_braces(text),), run="R", here="/h", cwd="/c")
    assert next(group.jobs(0)).command == (text,)
    assert unescape_braces(escape_braces(text)) == text


@pytest.mark.parametrize(
    ("script", "out"),
    [
        ("#!/bin/bash\necho $0 \"$#\" {index}\n", "it 0 {index}\n"),
        ("echo one\necho two\n", "one\ntwo\n"),
        ("#!/usr/bin/env python3\nimport sys\nprint(len(sys.argv))\n", "1\n"),
        ("#!/usr/bin/awk -f\nBEGIN { print \"awk\" }\n", "awk\n"),
        ("#!/bin/sh -eu\nfalse\necho never\n", ""),
        ("#!/bin/sh\n" + "# long\n" * 40_000 + "echo long\n", "long\n"),
    ],
)  # fmt: skip
def test_a_script_is_run_by_its_interpreter_line(script: str, out: str, tmp_path: Path) -> None:
    done = subprocess.run(
        script_words(Script(script, "it")), capture_output=True, text=True, cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert done.stdout == out, done.stderr
    assert list(tmp_path.iterdir()) == []


def _convert(folder: Path, text: str, *arguments: str) -> Result:
    (folder / "study.yaml").write_text(text)
    return CliRunner().invoke(main, ["jobspec", "convert", str(folder / "study.yaml"), *arguments])


def test_a_shell_script_runs_everything_and_quotes_all_texts(tmp_path: Path) -> None:
    tasks = [
        {
            "name": f"t{n}",
            "command": ["printf", "%s|", text],
            "depends_on": [f"t{n - 1}"] if n else [],
        }
        for n, text in enumerate(NASTY)
    ]
    result = _convert(tmp_path, json.dumps({"version": 1, "tasks": tasks}), "--to", "script")
    assert result.exit_code == 0, result.output
    done = subprocess.run(
        ["sh"], input=result.stdout, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stdout == "".join(f"{text}|" for text in NASTY), done.stderr
    assert not (tmp_path / "X").exists()


def test_kubernetes_jobs_have_the_tasks_requests(tmp_path: Path) -> None:
    text = STUDY.replace("count: 2, with: [{type: slot", "count: 1, with: [{type: slot")
    result = _convert(tmp_path, text, "--to", "kubernetes", "--image", "ubuntu")
    assert result.exit_code == 0, result.output
    build, test, post = yaml.safe_load_all(result.stdout)
    assert build["kind"] == "Job"
    (container,) = build["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["echo", "{index}", "${HOME}"]
    assert container["resources"]["limits"] == {"cpu": "4", "nvidia.com/gpu": "1"}
    assert build["spec"]["activeDeadlineSeconds"] == 300
    assert (build["spec"]["completions"], build["spec"]["completionMode"]) == (3, "Indexed")
    assert test["spec"]["completions"] == 3
    assert test["metadata"]["annotations"] == {"ensemble/jobspec-after": "build,prepare"}
    assert post["kind"] == "MiniCluster"
    assert _convert(tmp_path, text, "--to", "kubernetes").exit_code == 2


def test_a_missing_name_is_rejected_with_a_suggestion(tmp_path: Path) -> None:
    result = _convert(tmp_path, STUDY, "--to", "nextgn")
    assert result.exit_code == 2
    assert "did you mean 'nextgen'?" in result.output


@pytest.mark.parametrize("target", ["ensemble", "nextgen", "kubernetes", "flux-script", "script"])
def test_a_workload_of_local_tasks_only_can_be_converted(target: str, tmp_path: Path) -> None:
    text = "version: 1\ntasks: [{name: a, command: echo a, local: true}]\n"
    result = _convert(tmp_path, text, "--to", target, "--image", "x")
    assert result.exit_code == 0, result.output


def test_files_are_written_into_a_folder(tmp_path: Path) -> None:
    result = _convert(tmp_path, STUDY, "--to", "local", "-o", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "test.sh").read_text().startswith("/usr/bin/env python3 -c")


def _plain(workload: Workload) -> object:
    """Return a workload without positions in the file."""
    return [
        (t.name, t.command, t.script and t.script.text, t.replicas, [n.text for n in t.depends_on],
         t.local, t.attributes.duration, dict(t.attributes.environment), t.attributes.cwd,
         compute_shape(t.request.alternatives[0], t.request.per_slot, t.request.total).tasks if t.request else 1)
        for t in workload.every_task()
    ]  # fmt: skip


FLUX = {
    "version": 1,
    "resources": [{"type": "node", "count": 2, "with": [{"type": "slot", "label": "a", "count": 2, "with": [{"type": "core", "count": 4}]}]}],
    "tasks": [{"command": ["hostname", "{index}"], "slot": "a", "count": {"per_slot": 2}}],
    "attributes": {"system": {"duration": 90, "cwd": "/tmp", "environment": {"A": "1"}}},
}  # fmt: skip
TRANSFORM = """\
version: 1
resources: [{type: slot, count: 1, with: [{type: core, count: 2}]}]
task:
  scripts: [{name: a.sh, content: "echo a\\n"}, {name: b.sh, content: "#!/bin/bash\\necho b\\n"}]
  transform:
  - {step: write, filename: a.sh}
  - {step: submit, filename: a.sh, wait: true}
  - {step: write, filename: b.sh}
  - {step: submit, filename: b.sh}
"""


def test_every_form_equals_its_nextgen_form() -> None:
    for text in (json.dumps(FLUX), STUDY):
        workload = read(text)
        again = read(as_yaml(as_nextgen(workload)))
        assert _plain(again) == _plain(workload)
    steps = read(as_yaml(as_nextgen(read(TRANSFORM))))
    first, second = steps.tasks
    assert first.script is not None
    assert first.script.text == "#!/bin/sh\necho a\n"
    assert [name.text for name in second.depends_on] == [first.name]


@pytest.mark.checkout
def test_flux_accepts_what_came_from_flux(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(FLUX))
    result = CliRunner().invoke(
        main, ["jobspec", "convert", str(tmp_path / "job.json"), "--to", "flux"]
    )
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    (node,) = made["resources"]
    (slot,) = node["with"]
    assert (node["count"], slot["count"], slot["with"][0]["count"]) == (2, 4, 2)
    assert made["tasks"][0]["command"] == ["hostname", "{index}"]
    assert made["attributes"]["system"]["duration"] == 90
    assert made["attributes"]["system"]["cwd"] == "/tmp"


def test_a_plugin_that_cannot_render_for_its_queue_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(FLUX))
    (tmp_path / "broken.py").write_text("""
from ensemble_core import ExecutorPlugin, hookimpl

def render(job, options):
    return 1 / 0

@hookimpl
def ensemble_executors():
    return [ExecutorPlugin(name="broken", summary="A queue.", build=dict, render=render)]
""")
    job, plugin = str(tmp_path / "job.json"), str(tmp_path / "broken.py")
    result = CliRunner().invoke(
        main, ["jobspec", "convert", job, "--to", "broken", "--plugin", plugin]
    )
    assert "executor 'broken' cannot show what it submits" in result.output
    assert result.exit_code == 2
