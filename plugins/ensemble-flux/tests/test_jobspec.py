"""Tests of the jobspec of a job."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from ensemble_flux import ensemble_executors
from ensemble_flux.jobspec import JobspecError, Jobspecs, limits

from ensemble_core import Job

OUTER = {
    "HOME": "/home/user",
    "FLUX_TASK_RANK": "0",
    "PMI_FD": "9",
    "PMI2_RANK": "0",
    "PMIX_RANK": "0",
    "OMPI_COMM_WORLD_RANK": "0",
    "HYDI_CONTROL_FD": "7",
}


def written(specs: Jobspecs | None = None, **fields: Any) -> dict[str, Any]:
    output = fields.pop("output", None)
    fields = {"id": "melt.3", "group": "melt", "index": 3, "command": ("lmp", "-in", "x"), **fields}
    specs = specs or Jobspecs("night", "0123456789abcdef", OUTER, "/data")
    jobspec = json.loads(specs.write(Job(**fields), output))
    assert isinstance(jobspec, dict)
    return jobspec


def system(**fields: Any) -> dict[str, Any]:
    found = written(**fields)["attributes"]["system"]
    assert isinstance(found, dict)
    return found


def flux(**options: Any) -> dict[str, Any]:
    return {"options": {"flux": options}}


def test_avoided_nodes_are_added_to_the_user_s_constraints() -> None:
    away = {"not": [{"hostlist": ["n1,n2"]}]}
    assert system(avoid=("n1", "n2"))["constraints"] == away
    own = {"properties": ["fast"]}
    for path in ("constraints", "system.constraints"):
        both = system(avoid=("n1", "n2"), **flux(attributes={path: own}))
        assert both["constraints"] == {"and": [own, away]}


def test_a_plain_job_is_one_task_on_one_core_of_one_node() -> None:
    jobspec = written()
    share = {"type": "core", "count": 1}
    slot = {"type": "slot", "label": "task", "count": 1, "with": [share]}
    assert jobspec["version"] == 1
    assert jobspec["resources"] == [{"type": "node", "count": 1, "with": [slot]}]
    assert jobspec["tasks"] == [
        {"command": ["lmp", "-in", "x"], "slot": "task", "count": {"per_slot": 1}}
    ]


@pytest.mark.parametrize(
    ("nodes", "tasks", "slots", "count"),
    [
        (1, 1, 1, {"per_slot": 1}),
        (2, 8, 4, {"per_slot": 1}),
        (3, 3, 1, {"per_slot": 1}),
        (2, 5, 3, {"total": 5}),
        (4, 7, 2, {"total": 7}),
    ],
)
def test_tasks_are_spread_over_the_nodes(
    nodes: int, tasks: int, slots: int, count: dict[str, int]
) -> None:
    jobspec = written(nodes=nodes, tasks=tasks)
    (node,) = jobspec["resources"]
    assert (node["count"], node["with"][0]["count"]) == (nodes, slots)
    assert jobspec["tasks"][0]["count"] == count


def test_with_fewer_tasks_than_nodes_each_node_has_one() -> None:
    assert written(nodes=3, tasks=2) == written(nodes=3, tasks=3)


@pytest.mark.parametrize("command", [(), ("",)])
def test_an_empty_command_is_rejected(command: tuple[str, ...]) -> None:
    with pytest.raises(JobspecError, match="command is empty"):
        written(command=command)


def test_a_task_has_its_cores_and_gpus() -> None:
    (node,) = written(cores_per_task=4, gpus_per_task=2)["resources"]
    assert node["with"][0]["with"] == [{"type": "core", "count": 4}, {"type": "gpu", "count": 2}]


def test_a_job_may_be_a_nested_instance_with_a_broker_on_each_node() -> None:
    made = written(nodes=2, tasks=8, **flux(instance=True, shell={"mpi": "pmi2"}))
    assert made["tasks"][0]["command"] == ["flux", "broker", "lmp", "-in", "x"]
    assert made["resources"][0]["with"][0]["count"] == 4  # the job distributes its resources itself
    shell = made["attributes"]["system"]["shell"]["options"]
    assert (shell["per-resource"], shell["mpi"]) == ({"type": "node"}, "pmi2")


def test_tasks_on_any_nodes_are_slots_without_nodes() -> None:
    made = written(tasks=6, cores_per_task=2, **flux(any_nodes=True))
    (slot,) = made["resources"]
    assert (slot["type"], slot["count"], slot["with"]) == (
        "slot", 6, [{"type": "core", "count": 2}],
    )  # fmt: skip
    assert made["tasks"][0]["count"] == {"per_slot": 1}


@pytest.mark.parametrize("exclusive", [True, False])
def test_nodes_are_exclusive_only_if_the_job_says_so(exclusive: bool) -> None:
    (node,) = written(**flux(exclusive=exclusive))["resources"]
    assert node.get("exclusive", False) is exclusive


def test_duration_and_name_are_the_jobs() -> None:
    found = system(duration=90.5)
    assert found["duration"] == 90.5
    assert found["job"] == {"name": "melt.3"}


@pytest.mark.parametrize(
    ("workdir", "folder"),
    [(None, "/data"), ("run/3", "/data/run/3"), ("../x", "/x"), ("/scratch/a", "/scratch/a")],
)
def test_a_job_runs_in_its_folder(workdir: str | None, folder: str) -> None:
    assert system(workdir=workdir)["cwd"] == folder


def test_an_outer_launchers_variables_are_not_in_the_jobs_environment() -> None:
    assert system(environment={"OMP_NUM_THREADS": "4", "HOME": "/tmp"})["environment"] == {
        "HOME": "/tmp",
        "OMP_NUM_THREADS": "4",
        "ENSEMBLE_RUN": "night",
        "ENSEMBLE_JOB_ID": "melt.3",
        "ENSEMBLE_GROUP": "melt",
        "ENSEMBLE_INDEX": "3",
        "ENSEMBLE_ATTEMPT": "0",
        "ENSEMBLE_CORES": "1",
    }


def test_a_task_has_as_many_threads_as_cores_unless_that_is_set() -> None:
    def threads(outer: dict[str, str], **own: Any) -> object:
        specs = Jobspecs("night", "0123456789abcdef", outer, "/data")
        found = written(specs, cores_per_task=4, **own)["attributes"]["system"]["environment"]
        return found["OMP_NUM_THREADS"]

    assert threads({}) == "4"
    assert threads({"OMP_NUM_THREADS": "5"}) == "5"
    assert threads({"OMP_NUM_THREADS": "5"}, environment={"OMP_NUM_THREADS": "7"}) == "7"


def test_variables_of_the_job_itself_stay_whatever_their_names() -> None:
    assert system(environment={"PMI_DEBUG": "1"})["environment"]["PMI_DEBUG"] == "1"


def test_the_executors_queue_and_bank_are_defaults_for_groups() -> None:
    specs = Jobspecs("night", "0123456789abcdef", {}, "/data", queue="batch", bank="physics")
    one = written(specs)["attributes"]["system"]
    other = written(specs, **flux(queue="debug"))["attributes"]["system"]
    assert (one["queue"], one["bank"]) == ("batch", "physics")
    assert (other["queue"], other["bank"]) == ("debug", "physics")
    assert not {"queue", "bank"} & system().keys()


def test_shell_options_are_added_to_our_own() -> None:
    options = system(
        output={"stdout": {"type": "kvs"}},
        **flux(shell={"cpu-affinity": "per-task", "mpi": "none", "output.mode": "truncate"}),
    )["shell"]["options"]
    assert options == {
        "cpu-affinity": "per-task",
        "mpi": "none",
        "output": {"stdout": {"type": "kvs"}, "mode": "truncate"},
    }


def test_attributes_are_set_as_setattr_does() -> None:
    attributes = written(
        **flux(attributes={"user.note": "x", "system.prio": 1, "constraints.properties": ["fast"]})
    )["attributes"]
    assert attributes["user"]["note"] == "x"
    assert attributes["system"]["prio"] == 1
    assert attributes["system"]["constraints"] == {"properties": ["fast"]}


def test_the_jobspec_identifies_the_job_for_reattaching() -> None:
    assert written()["attributes"]["user"]["ensemble"] == {
        "run": "night", "id": "0123456789abcdef", "job": "melt.3", "group": "melt",
    }  # fmt: skip


def test_an_attribute_within_a_plain_value_is_rejected() -> None:
    with pytest.raises(JobspecError, match=r"'system.cwd.deep': 'cwd' already has a value"):
        written(**flux(attributes={"system.cwd.deep": 1}))


def test_jobs_have_the_resource_limits_of_this_process() -> None:
    specs = Jobspecs("night", "0123456789abcdef", {}, "/data", rlimits=limits())
    given = written(specs)["attributes"]["system"]["shell"]["options"]["rlimit"]
    assert {"core", "nofile", "stack"} <= given.keys()
    assert all(isinstance(value, int) for value in given.values())


VALIDATE = """
import sys
from ensemble_flux.bindings import bindings
flux = bindings()
import flux.job
for line in sys.stdin:
    flux.job.Jobspec.from_yaml_stream(line)
    flux.job.validate_jobspec(line)
print("valid")
"""


@pytest.mark.usefixtures("flux_command")
def test_flux_itself_accepts_every_kind_of_jobspec() -> None:
    kinds: list[dict[str, Any]] = [
        {},
        {"nodes": 2, "tasks": 5, "gpus_per_task": 1, "cores_per_task": 3},
        {"nodes": 4, "tasks": 8, "duration": 12.5, "environment": {"A": "b"}, "workdir": "x"},
        {"output": {"mode": "append", "stdout": {"type": "kvs"}}},
        flux(exclusive=True, queue="q", bank="b", shell={"verbose": 1}, attributes={"a.b": [1]}),
    ]
    specs = Jobspecs("night", "0123456789abcdef", OUTER, "/data", rlimits=limits())
    text = "\n".join(json.dumps(written(specs, **kind)) for kind in kinds)
    done = subprocess.run(
        [sys.executable, "-c", VALIDATE], input=text, capture_output=True, text=True, timeout=150
    )
    assert done.stdout.strip() == "valid", done.stderr


def test_the_job_around_this_process_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of the instance that gets the jobs, not the job in which the instance runs."""
    (record,) = ensemble_executors()
    assert record.inside is not None
    monkeypatch.delenv("FLUX_JOB_ID", raising=False)
    monkeypatch.setenv("FLUX_ENCLOSING_ID", "ƒ2eNNoRZ")
    assert record.inside() == ""
    monkeypatch.setenv("FLUX_JOB_ID", "ƒ3mXPEkX")
    assert record.inside() == "Flux job ƒ3mXPEkX with 1 node"
    monkeypatch.setenv("FLUX_JOB_NNODES", "4")
    assert record.inside() == "Flux job ƒ3mXPEkX with 4 nodes"
