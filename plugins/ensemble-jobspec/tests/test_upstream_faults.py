"""Regression tests for faults of jobspec 0.0.12 and 0.1.15, one for each.

In the order of ``docs/upstream-faults.md``, which describes upstream's behaviour; the last test
compares that list with these tests. These tests only cover the content of files; queues are in
``test_queues``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ensemble_jobspec import read
from ensemble_jobspec.conversion import Options, convert

from ensemble_core import EnsembleError, FileErrors
from ensemble_core.cli.main import main

PROGRAM = [sys.executable, "-c", "import sys; from ensemble_core.cli.main import main; main()"]
LIST = Path(__file__).parents[1] / "docs" / "upstream-faults.md"
SLOT = {"type": "slot", "count": 1, "label": "one", "with": [{"type": "core", "count": 1}]}


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def transform(*steps: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return a jobspec 0.0 with two scripts and these steps."""
    scripts = [
        {"name": "one.sh", "content": "echo one >>$HERE/notes; pwd >>$HERE/where\n"},
        {"name": "two.sh", "content": "echo two >>$HERE/notes\n"},
    ]
    task = {"name": "t", "scripts": scripts, "transform": list(steps), **more}
    attributes = {"system": {"duration": 90, "environment": {"HERE": os.getcwd()}}}
    return {"version": 1, "resources": [SLOT], "task": task, "attributes": attributes}


def write(name: str, **more: Any) -> dict[str, Any]:
    return {"step": "write", "filename": name, **more}


def submit(name: str, **more: Any) -> dict[str, Any]:
    return {"step": "submit", "filename": name, **more}


def nextgen(*tasks: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"version": 1, "tasks": list(tasks), **more}


def with_resources(**vertex: Any) -> dict[str, Any]:
    """Return a jobspec 0.1 whose one task has these resources."""
    return nextgen({"name": "t", "command": "x", "resources": "r"}, resources={"r": vertex})


def text(document: Any) -> str:
    return f"{document if isinstance(document, str) else json.dumps(document)}\n"


def jobs(document: Any, **options: Any) -> dict[str, Mapping[str, Any]]:
    return {job["name"]: job for job in convert(read(text(document)), Options(**options)).jobs}


def refused(document: Any) -> set[str]:
    """Return the codes of the mistakes."""
    with pytest.raises(EnsembleError) as raised:
        convert(read(text(document)))
    found = raised.value
    return {each.code for each in (found.errors if isinstance(found, FileErrors) else [found])}


def ensemble(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == code, result.output
    return result


RUN = ("run", "work.yaml", "--state", "state", "--no-progress")


def run(document: Any, *words: str, code: int = 0) -> Result:
    Path("work.yaml").write_text(text(document))
    given = words or ("--executor", "local", "-o", "slots=1")
    return ensemble("jobspec", *RUN, *given, code=code)


def note(word: str) -> list[str]:
    return ["sh", "-c", 'echo "$0" >>"$1"', word, os.path.abspath("notes")]


def notes() -> list[str]:
    return Path("notes").read_text().split() if Path("notes").exists() else []


# -- jobspec 0.0.12: fields ------------------------------------------------------------------------


def test_attributes_of_0_0_are_used() -> None:
    document = transform({"step": "submit"}, command="true")
    document["attributes"]["system"] |= {"cwd": "/tmp", "environment": {"A": "a"}}
    (job,) = jobs(document | {"task": {"command": "true"}}).values()
    assert (job["duration"], job["workdir"], job["environment"]) == (90, "/tmp", {"A": "a"})


def test_the_slot_and_the_count_of_a_task_are_read() -> None:
    task = {"command": "true", "slot": "one", "count": {"total": 3}}
    document = {"version": 1, "resources": [{**SLOT, "count": 3}], "task": task}
    (job,) = jobs(document).values()
    assert job["tasks"] == 3
    assert refused(document | {"task": {**task, "slot": "two"}}) == {"no-such-slot"}


def test_the_command_of_a_task_is_run() -> None:
    run(transform({"step": "submit"}, command=note("ran")))
    assert notes() == ["ran"]


def test_resources_named_by_a_task_of_0_0_cause_a_warning() -> None:
    document = transform({"step": "submit"}, command="true", resources={"io": {"match": "shm"}})
    assert "'resources' are ignored" in "".join(read(text(document)).warnings)


# -- jobspec 0.0.12: steps -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x"])
def test_no_step_leaves_the_staging_folder(name: str) -> None:
    document = transform(write(name), submit("one.sh"))
    document["task"]["scripts"].append({"name": name, "content": ""})
    assert "path-outside" in refused(document)
    assert "path-outside" in refused(transform({"step": "copy", "source": "x", "filename": name}))


def test_stage_uses_the_folder_that_was_set() -> None:
    mine = {"step": "set", "key": "stage", "value": "mine"}
    run(transform(mine, write("one.sh"), submit("one.sh")))
    assert Path("where").read_text() == f"{Path('mine').absolute()}\n"


def test_the_staging_folder_belongs_to_the_run_and_stays_visible() -> None:
    run(transform(write("one.sh"), submit("one.sh")))
    (stage,) = Path().glob("jobspec-t-*")
    assert Path("where").read_text() == f"{stage.absolute()}\n"
    assert (stage / "one.sh").exists()


def test_a_shared_folder_is_detected_unless_declared() -> None:
    steps = (write("one.sh"), {"step": "stage", "filename": "one.sh"}, submit("one.sh"))
    flux: dict[str, Any] = {"executor": "flux", "executors": frozenset({"flux"})}
    assert "options" not in jobs(transform(*steps), shared=True, **flux)["t"]
    assert "options" in jobs(transform(*steps), shared=False, **flux)["t"]
    said = {"step": "set", "key": "sharedfs", "value": False}
    assert "options" in jobs(transform(said, *steps), shared=True, **flux)["t"]


def test_staged_files_travel_in_the_jobspec_and_need_no_filemap() -> None:
    said = {"step": "set", "key": "sharedfs", "value": False}
    staged = {"step": "stage", "filename": "one.sh"}
    document = transform(said, write("one.sh"), staged, submit("one.sh"))
    job = jobs(document, executor="flux", executors=frozenset({"flux"}))["t"]
    assert "one.sh" in job["options"]["flux"]["attributes"]["system.files"]
    assert "filemap" not in json.dumps(job)


def test_wait_waits() -> None:
    slow = {"name": "slow.sh", "content": "sleep 0.2; echo slow >>$HERE/notes\n"}
    for word in ("wait", "watch"):
        steps = (write("slow.sh"), write("two.sh"), submit("slow.sh", **{word: True}))
        document = transform(*steps, submit("two.sh"))
        document["task"]["scripts"].append(slow)
        run(document, "--executor", "local", "-o", "slots=2")
        assert notes() == ["slow", "two"]
        Path("notes").unlink()


def test_copy_copies() -> None:
    Path("data").write_text("echo copied >>$HERE/notes\n")
    run(transform({"step": "copy", "source": "data"}, submit("data")))
    assert notes() == ["copied"]


def test_auth_signs_on_first() -> None:
    run(transform({"step": "auth", "command": note("sign-on")}, write("one.sh"), submit("one.sh")))
    assert notes() == ["sign-on", "one"]


def test_an_unknown_step_is_rejected_before_anything_runs() -> None:
    run(transform(write("one.sh"), submit("one.sh"), {"step": "coppy", "source": "x"}), code=2)
    assert [path.name for path in Path().iterdir()] == ["work.yaml"]


def test_cores_of_a_slot_belong_to_its_task_without_copies() -> None:
    slot = {**SLOT, "count": 3, "with": [{"type": "core", "count": 4}, {"type": "gpu", "count": 2}]}
    document = {"version": 1, "resources": [slot], "task": {"command": "true"}}
    (job,) = jobs(document).values()
    assert (job["tasks"], job["cores_per_task"], job["gpus_per_task"]) == (3, 4, 2)


# -- jobspec 0.0.12: the program -------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["-t", "--transform", "--transformer"])
def test_the_documented_flag_names_a_transformer(flag: str) -> None:
    run(nextgen({"command": note("ran")}), flag, "local")
    assert notes() == ["ran"]


def test_requirements_are_declared() -> None:
    from ensemble_jobspec import __file__ as package

    # The core provides the base of every plugin's command.
    needed = " ".join([*(requires("ensemble-jobspec") or ()), *(requires("ensemble-core") or ())])
    imported = set()
    for file in Path(package).parent.glob("*.py"):
        imported |= set(re.findall(r"^ *(?:import|from) (\w+)", file.read_text(), re.M))
    others = imported - set(sys.stdlib_module_names) - {"ensemble_jobspec"}
    names = {each.replace("_", "-") for each in others}
    assert names
    assert [name for name in names if name not in needed] == []


def test_the_command_alone_and_the_version_work() -> None:
    assert "validate" in ensemble("jobspec", code=2).output
    assert "version" in ensemble("jobspec", "--version").output


def test_a_failed_step_fails_the_run() -> None:
    document = transform(write("one.sh"), submit("one.sh", wait=True), write("two.sh"))
    document["task"]["scripts"][0]["content"] = "exit 7\n"
    document["task"]["transform"].append(submit("two.sh"))
    assert "exit code 1" in run(document, code=1).output
    assert notes() == []


#: A transformer like upstream's, which adds a step to classes that all share in upstream.
OTHERS = """\
import json, ensemble_jobspec.schemas as schemas
schemas.STEPS["mine"] = {}
class Transformer:
    def run(self, file):
        print("carried out", file)
"""


def others(name: str, source: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command with such a package installed."""
    package = Path("site", f"jobspec_{name}")
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(source)
    Path("work.yaml").write_text(text(nextgen({"command": note("ran")})))
    env = {**os.environ, "PYTHONPATH": str(Path("site").absolute())}
    command = [*PROGRAM, "jobspec", *RUN, *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_a_third_party_transformer_is_loaded_and_breaks_no_other() -> None:
    done = others("mine", OTHERS, "-t", "mine")
    assert (done.returncode, done.stdout) == (0, "carried out work.yaml\n"), done.stderr
    done = others("broken", "raise RuntimeError\n", "-t", "local")
    assert (done.returncode, notes()) == (0, ["ran"]), done.stderr


def test_steps_registered_by_one_transformer_are_unknown_to_others() -> None:
    assert others("mine", OTHERS, "-t", "mine").returncode == 0
    assert refused(transform({"step": "mine"})) == {"no-such-step"}


def test_a_step_can_be_skipped() -> None:
    steps = (write("one.sh"), {"step": "auth", "command": "false"}, submit("one.sh"))
    run(transform(*steps), "--executor", "local", "--skip", "auth")
    assert notes() == ["one"]


@pytest.mark.parametrize("absent", ["transform", "scripts"])
def test_optional_fields_may_be_missing(absent: str) -> None:
    document = transform({"step": "submit"}, command=note("ran"))
    del document["task"][absent]
    run(document)
    assert notes() == ["ran"]


# -- jobspec 0.1.15: fields ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document",
    [
        {"version": 1, "tsaks": [{"command": "x"}]},
        nextgen({"command": "x"}, tsaks=[]),
        nextgen({"command": "x", "depend_on": ["a"]}),
        nextgen({"command": "x"}, groups=[{"name": "g", "task": []}]),
    ],
)
def test_an_unknown_key_is_rejected(document: dict[str, Any]) -> None:
    assert "unknown-key" in refused(document)


def test_the_given_name_is_used() -> None:
    assert convert(read(text(nextgen({"command": "x"}, name="mine")))).name == "mine"


def test_resources_of_any_name_are_checked() -> None:
    bad = {"type": "node", "cuont": 2}
    assert refused(nextgen({"command": "x"}, resources={"my-node": bad})) == {"unknown-key"}


def test_cores_of_a_node_belong_to_one_task_without_copies() -> None:
    node = with_resources(type="node", count=2, **{"with": [{"type": "core", "count": 4}]})
    job = jobs(node)["t"]
    assert (job["nodes"], job.get("tasks"), job["cores_per_task"]) == (2, None, 4)
    assert jobs(node, copies="cores")["t"]["tasks"] == 8  # as upstream, if requested


def test_gpus_are_counted_per_slot() -> None:
    inside = [{"type": "core", "count": 2}, {"type": "gpu", "count": 1}]
    slots = [{"type": "slot", "count": 4, "with": inside}]
    job = jobs(with_resources(type="node", count=1, **{"with": slots}))["t"]
    assert (job["tasks"], job["gpus_per_task"]) == (4, 1)


def test_the_plural_cores_is_accepted() -> None:
    found = [
        jobs(with_resources(type="node", **{"with": [{"type": kind, "count": 3}]}))["t"]
        for kind in ("core", "cores")
    ]
    assert found[0] == found[1]
    assert found[0]["cores_per_task"] == 3


def test_an_unknown_resource_type_is_rejected() -> None:
    assert refused(with_resources(type="node", **{"with": [{"type": "memory"}]})) == {"bad-value"}


def test_replicas_of_a_node_may_be_anywhere() -> None:
    inside = {"with": [{"type": "core", "count": 1}]}
    queues = frozenset({"flux", "slurm"})
    job = jobs(with_resources(type="node", replicas=3, **inside), executors=queues)["t"]
    assert job["tasks"] == 3
    assert "nodes" not in job
    assert all(job["options"][queue]["any_nodes"] for queue in queues)


def test_schedule_causes_a_warning() -> None:
    found = read(text(with_resources(type="node", schedule=True)))
    assert "'schedule'" in "".join(found.warnings)


def test_requirements_of_resources_are_looked_up_before_a_run() -> None:
    document = with_resources(type="node", requires=["cpu=arm"])
    site = {"cpu=arm": {"slurm": {"constraint": "arm"}}}
    job = jobs(document, site=site, executors=frozenset({"slurm"}))["t"]
    assert job["options"]["slurm"]["constraint"] == "arm"
    assert "requires 'cpu=arm'" in "".join(convert(read(text(document))).warnings)
    with pytest.raises(EnsembleError):
        convert(read(text(document)), Options(strict=True))


@pytest.mark.parametrize(
    "command",
    [
        "#!/bin/bash\necho a b >>notes\n",
        "#!/usr/bin/env sh\necho a b >>notes\n",
        "#!/usr/bin/env python3\nprint('a b', file=open('notes', 'a'))\n",
        "echo a >>notes\n#!/bin/sh\necho b >>notes\n",
    ],
)
def test_a_command_of_several_lines_is_a_script_for_any_interpreter(command: str) -> None:
    run(nextgen({"command": command}))
    assert notes() == ["a", "b"]


def test_resources_may_be_written_in_the_task() -> None:
    job = jobs(nextgen({"name": "t", "command": "x", "resources": {"type": "node", "count": 2}}))
    assert job["t"]["nodes"] == 2


def test_the_first_alternative_that_fits_is_used() -> None:
    named = {"big": {"type": "node", "count": 9}, "small": {"type": "node", "count": 2}}
    task = {"name": "t", "command": "x", "resources": "big|small"}
    found = jobs(nextgen(task, resources=named), gauges={"nodes.up": 4.0})
    assert found["t"]["nodes"] == 2


def test_replicas_of_a_task_are_separate_jobs() -> None:
    run(nextgen({"command": note("a"), "replicas": 3}))
    assert notes() == ["a", "a", "a"]


def test_a_dependency_is_respected() -> None:
    first = {"name": "first", "command": ["sh", "-c", "sleep 0.2; echo first >>notes"]}
    second = {"name": "second", "command": note("second"), "depends_on": ["first"]}
    run(nextgen(second, first), "--executor", "local", "-o", "slots=2")
    assert notes() == ["first", "second"]


def test_a_local_task_runs_beside_the_controller() -> None:
    document = nextgen({"name": "t", "command": "x", "local": True})
    found = convert(read(text(document)), Options(executor="slurm"))
    assert "t" not in [job["name"] for job in found.jobs]
    assert "jobspec-local" in json.dumps(found.rules)


def test_a_group_may_be_referred_to_twice() -> None:
    twice = ({"name": "a", "group": "g"}, {"name": "b", "group": "g"})
    run(nextgen(*twice, groups=[{"name": "g", "tasks": [{"command": note("g")}]}]))
    assert notes() == ["g", "g"]


def test_requirements_of_a_task_do_not_prevent_it_from_running() -> None:
    needed = {"io": [{"name": "io", "field": "type", "match": "shm"}]}
    run(nextgen({"command": note("ran"), "requires": "io"}, requires=needed))
    assert notes() == ["ran"]


def test_steps_of_a_task_stage_files() -> None:
    Path("data").write_text("staged")
    steps = [{"name": "stage", "path": "data"}]
    document = nextgen(
        {"name": "files", "steps": steps},
        {"name": "t", "command": "x", "depends_on": ["files"]},
    )
    options: dict[str, Any] = {"executor": "flux", "executors": frozenset({"flux"})}
    options |= {"shared": False, "contents": lambda name: Path(name).read_text()}
    job = jobs(document, **options)["t"]  # the task with steps only is not a job
    assert job["options"]["flux"]["attributes"]["system.files"]["data"]["data"] == "staged"


def test_attributes_of_the_whole_the_resources_the_group_and_the_task_are_merged() -> None:
    node = {"type": "node", "attributes": {"duration": 20, "environment": {"B": "resources"}}}
    task = {"command": "x", "resources": "r", "attributes": {"environment": {"C": "task"}}}
    document = nextgen(
        {"name": "t", **task},
        resources={"r": node},
        groups=[{"name": "g", "attributes": {"duration": 40}, "tasks": [{"name": "u", **task}]}],
        attributes={"duration": 60, "environment": {"A": "whole", "B": "whole", "C": "whole"}},
    )
    found = jobs(document)
    environment = {"A": "whole", "B": "resources", "C": "task"}
    assert found["t"]["environment"] == found["g-u"]["environment"] == environment
    assert {name: job["duration"] for name, job in found.items()} == {"t": 20, "g-u": 40}
    del document["resources"]["r"]["attributes"]["duration"]
    assert {name: job["duration"] for name, job in jobs(document).items()} == {"t": 60, "g-u": 40}


@pytest.mark.parametrize(
    ("given", "seconds"), [(5, 5), ("300s", 300), ("5m", 300), ("1h30m", 5400), ("90", 90)]
)
def test_a_duration_has_units_and_a_number_is_seconds(given: Any, seconds: float) -> None:
    task = {"name": "t", "command": "x", "attributes": {"duration": given}}
    assert jobs(nextgen(task))["t"]["duration"] == seconds


# -- jobspec 0.1.15: groups and satisfy ------------------------------------------------------------


def test_attributes_and_requirements_of_a_group_are_used() -> None:
    group = {"name": "g", "tasks": [{"name": "t", "command": "x"}], "attributes": {"duration": 9}}
    needed = {"io": [{"name": "io", "field": "type", "match": "shm"}]}
    found = read(text({"version": 1, "groups": [{**group, "requires": "io"}], "requires": needed}))
    assert (found.groups[0].attributes.duration, found.groups[0].requires) == (9, "io")


def test_dependencies_of_groups_and_nested_groups_are_respected() -> None:
    inner = {"name": "inner", "tasks": [{"command": note("inner")}]}
    groups = [
        {"name": "late", "depends_on": ["early"], "tasks": [{"command": note("late")}]},
        {"name": "early", "groups": [inner]},
    ]
    run({"version": 1, "groups": groups})
    assert notes() == ["inner", "late"]


def test_tasks_and_groups_start_together_and_in_order() -> None:
    groups = [{"name": name, "tasks": [{"name": "x", "command": "x"}]} for name in ("g", "h")]
    found = convert(read(text(nextgen({"name": "t", "command": "x"}, groups=groups))))
    begin = found.rules[0]
    assert begin["trigger"] == "start"
    assert [each["label"] for each in begin["action"]] == ["t", "g-x", "h-x"]


def test_arguments_of_a_command_in_a_group_stay_separate() -> None:
    command = 'bash -c "echo a >>notes; sleep 0.1; echo b >>notes"'
    evil = ["printf", "%s", "; touch owned; $(touch owned)"]
    tasks = [{"command": command}, {"name": "; touch owned", "command": evil}]
    run({"version": 1, "groups": [{"name": "g", "tasks": tasks}]})
    assert notes() == ["a", "b"]
    assert not list(Path().rglob("owned"))


def test_a_failure_in_a_group_reaches_the_exit_code() -> None:
    run({"version": 1, "groups": [{"name": "g", "tasks": [{"command": "false"}]}]}, code=1)


def satisfy(**requirement: Any) -> Result:
    """Check one requirement against a node of type shm and speed 2."""
    Path("graphs").mkdir(exist_ok=True)
    nodes = {"1": {"metadata": {"type": "shm", "attributes": {"speed": 2}}}}
    Path("graphs/io.json").write_text(json.dumps({"graph": {"nodes": nodes}}))
    needed = {"it": [{"name": "io", **requirement}]}
    Path("work.yaml").write_text(text(nextgen({"command": "x", "requires": "it"}, requires=needed)))
    words = ["jobspec", "satisfy", "work.yaml", "--subsystem-dir", "graphs"]
    return CliRunner().invoke(main, words)


@pytest.mark.parametrize(
    ("requirement", "code"),
    [
        ({"field": "type", "match": "shm"}, 0),  # without attribute
        ({"field": "type", "match": "nvme"}, 1),
        ({"attribute": "speed", "value": 2}, 0),  # without match
        ({"attribute": "speed", "value": 3}, 1),
        ({"field": "type", "match": "shm", "attribute": "speed", "value": 3}, 1),
    ],
)
def test_an_unmet_requirement_is_reported(requirement: dict[str, Any], code: int) -> None:
    result = satisfy(**requirement)
    assert result.exit_code == code, result.output
    assert ("not satisfied" in result.output) == bool(code)


def test_sql_in_a_requirement_is_plain_text() -> None:
    assert satisfy(field="type", match="x' OR '1'='1").exit_code == 1


# -- the list --------------------------------------------------------------------------------------


@pytest.mark.checkout
def test_the_list_of_faults_names_exactly_these_tests() -> None:
    listed = re.findall(r"`(test_\w+)`", LIST.read_text("utf-8"))
    own = [name for name in globals() if name.startswith("test_")]
    assert listed == own[:-1]  # in the same order; the last is this one
