"""Bad input: one clear error before anything is requested, with exit code 2."""

from __future__ import annotations

import calendar
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from ensemble_pilot import ensemble_executors
from ensemble_pilot.current_allocation import Allocation, allocation
from ensemble_pilot.options import read_options
from pilot_sessions import WORK, new_session

from ensemble_core import PluginError, UsageError
from ensemble_core.local.slots import machine_cores
from ensemble_core.plugin.discovery import discover, use_registry
from ensemble_core.plugin.registry import Registry

(PLUGIN,) = ensemble_executors()
FILE = """
jobs:
  - name: sim
    command: "true"
    {key}: {value}
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}
"""
TWO = ("-o", "queue=slurm", "-o", "cores=2")


def ensemble(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ensemble_core.cli", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.checkout  # needs ensemble-slurm
@pytest.mark.parametrize("command", ["validate", "run"])
@pytest.mark.parametrize(
    ("key", "value", "options", "words"),
    [
        ("cores_per_task", "3", (), ("3 cores", "has 2", "-o cores=3")),
        ("gpus_per_task", "1", (), ("1 gpus", "has 0", "-o gpus=1")),
        ("nodes", "2", (), ("2 nodes", "one node", "-o inside=flux", "executor of the queue")),
        ("nodes", "3", ("-o", "inside=flux", "-o", "nodes=2"), ("3 nodes", "has 2", "-o nodes=3")),
        ("duration", "59m", ("-o", "duration=1h"), ("3540 s", "3480 s", "'margin' 120 s")),
        ("executor", "large", (), ("'large'",)),  # there is one kind, and it has no name
    ],
)
def test_group_that_no_pilot_can_hold_is_refused_where_it_is_written(
    command: str, key: str, value: str, options: tuple[str, ...], words: tuple[str, ...],
    tmp_path: Path,
) -> None:  # fmt: skip
    (tmp_path / "e.yaml").write_text(FILE.format(key=key, value=value))
    done = ensemble(tmp_path, command, "e.yaml", "--executor", "pilot", *TWO, *options)
    assert done.returncode == 2, done
    assert f"e.yaml:5:{7 + len(key)}" in done.stderr, done.stderr
    assert "hint: " in done.stderr
    assert all(word in done.stderr for word in words), done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queue": "kubernetes"}, ("kubernetes", "-o queue=slurm")),
        pytest.param(
            {"queue": "slurm"},
            ("how many cores", "-o cores=128"),
            marks=pytest.mark.checkout,
        ),
        ({"queue": "pbs", "nodes": 2, "cores": 1}, ("one node, not 2", "-o most=N")),
        ({"queue": "gridengine", "nodes": 3, "cores": 1}, ("one node, not 3", "'gridengine'")),
        pytest.param(
            {"queue": "gridengine", "cores": 2},
            ("no parallel environment", "environment=NAME", "-o options="),
            marks=pytest.mark.checkout,
        ),
        ({"least": 2}, ("'most' is 1", "'least' is 2")),
        ({"duration": "1m"}, ("60 s", "120 s", "no time for jobs")),
        ({"duration": "1h", "margin": "8s"}, ("'grace' is 5 s", "4 s")),
        ({"duration": "soon"}, ("'duration'", "soon")),
        ({"idle": "-1s"}, ("'idle'",)),
        ({"patience": "long"}, ("'patience'", "long")),
        ({"orphan": 0}, ("'orphan' is 0 s",)),
        ({"listen": "none"}, ("must be able to connect", "-o listen=ADDRESS")),
        ({"options": {"slot": 2}}, ("no option 'slot'", "slots")),
        ({"options": {"slots": "many"}}, ("'slots'", "many")),
        ({"options": {"slots": 4}, "nodes": 5}, ("5 x 1 cores", "4 slots")),
        ({"cores": machine_cores() + 1}, (f"{machine_cores() + 1} cores",)),
        ({"queue": "here"}, ("allocation", "SLURM_JOB_ID", "FLUX_URI", "-o queue=NAME")),
        ({"queue": "here", "nodes": 2}, ("'nodes' has no effect", "-o nodes=2")),
        ({"queue": "here", "most": 2}, ("'most' has no effect",)),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: Mapping[str, object], words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_JOB_ID", "FLUX_URI", "PBS_JOBID", "SGE_JOB_SPOOL_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError) as refused:
        PLUGIN.build(options)
    said = str(refused.value)
    assert all(word in said for word in words), said
    assert refused.value.hint


@pytest.mark.checkout  # needs ensemble-pbs, to leave it out
def test_queue_whose_plugin_is_missing_is_refused_with_what_to_install() -> None:
    others = [plugin for plugin in discover().plugins if plugin.distribution != "ensemble-pbs"]
    with use_registry(Registry(others)), pytest.raises(PluginError) as refused:
        PLUGIN.build({"queue": "pbs", "cores": 1})
    said = str(refused.value)
    assert "'pbs'" in said
    assert "ensemble-pbs" in said


def test_jobs_without_a_duration_are_allowed_and_cause_one_warning(folder: Path) -> None:
    (folder / "go").touch()
    with new_session(folder, duration=300, margin=10) as session:
        jobs = [session.job("sh", "-c", WORK) for _ in range(2)]
        session.run(*jobs)
        more = session.job("sh", "-c", WORK)
        session.run(more)
        assert {session.cause(job) for job in (*jobs, more)} == {"exit"}
        (problem,) = session.problems()
    assert problem.startswith(f"jobs without 'duration', such as {jobs[0].id}, may be placed")


def test_option_is_refused_at_validate(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(FILE.format(key="duration", value="1m"))
    words = ("validate", "e.yaml", "--executor", "pilot", "-o", "most=1", "-o", "least=2")
    done = ensemble(tmp_path, *words)
    assert done.returncode == 2
    assert "'most' is 1, but 'least' is 2" in done.stderr


#: Of OpenPBS 23.06 and Grid Engine 8.1, shortened.
QSTAT_PBS = """\
Job Id: 139.vm
    Job_Name = q.sh
    Resource_List.ncpus = 2
    Resource_List.walltime = 00:10:00
    stime = Sun Nov 29 17:45:37 2026
"""
QSTAT_GRID_ENGINE = """\
<?xml version='1.0'?>
<detailed_job_info><djob_info><element>
  <JB_hard_resource_list><qstat_l_requests>
    <CE_name>h_rt</CE_name><CE_stringval>600</CE_stringval>
  </qstat_l_requests></JB_hard_resource_list>
  <JB_ja_tasks>
    <ulong_sublist><JAT_task_number>1</JAT_task_number><JAT_start_time>1000</JAT_start_time></ulong_sublist>
    <ulong_sublist><JAT_task_number>2</JAT_task_number><JAT_start_time>2000</JAT_start_time></ulong_sublist>
  </JB_ja_tasks>
</element></djob_info></detailed_job_info>
"""
QCONF = "qname  all.q\ns_rt   0:5:0\nh_rt   INFINITY\n"


def test_allocations_of_pbs_and_grid_engine_are_read_from_their_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"qstat": QSTAT_PBS}
    monkeypatch.setattr(
        "ensemble_pilot.current_allocation._output",
        lambda what, *_, **environment: (said[what], ""),
    )
    nodes = tmp_path / "nodes"
    nodes.write_text("n1\nn1\n")
    pbs = {"PBS_JOBID": "139.vm", "PBS_NODEFILE": str(nodes), "NCPUS": "2"}
    began = calendar.timegm((2026, 11, 29, 17, 45, 37))
    assert allocation(pbs) == Allocation("pbs-139.vm", 1, 2, began + 600)
    said |= {"qstat": QSTAT_GRID_ENGINE, "qconf": QCONF}
    grid = {"JOB_ID": "7", "SGE_JOB_SPOOL_DIR": "/s", "NSLOTS": "4", "QUEUE": "all.q"}
    assert allocation(grid) == Allocation("gridengine-7.1", 1, 4, 1000 + 300)
    second = {**grid, "SGE_TASK_ID": "2"}
    assert allocation(second) == Allocation("gridengine-7.2", 1, 4, 2000 + 300)
    said |= {"qstat": "", "qconf": ""}  # the node may not ask the queue: its limit is unknown
    assert allocation(grid).left == allocation(pbs).left == 0.0


@pytest.mark.parametrize("hour", [0, 1], ids=["summer", "winter"])
def test_start_of_an_allocation_of_pbs_is_known_in_the_hour_that_comes_twice(
    hour: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PBS prints local times without a zone; in both hours, it is 2:30 in Berlin."""
    began = calendar.timegm((2026, 10, 25, hour, 30, 0))
    qstat = tmp_path / "qstat"
    stime = f"date -d @{began} '+    stime = %a %b %e %H:%M:%S %Y'"
    qstat.write_text(
        f"#!/bin/sh\necho 'Job Id: 7.vm'; {stime}\necho '    Resource_List.walltime = 00:10:00'\n"
    )
    qstat.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        found = allocation({"PBS_JOBID": f"{hour}.vm", "NCPUS": "2"})
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    assert found == Allocation(f"pbs-{hour}.vm", 1, 2, began + 600)


@pytest.mark.parametrize("queue", ["PBS", "Grid Engine"])
def test_allocation_of_several_nodes_is_refused_with_the_reason_where_it_cannot_be_a_pilot(
    queue: str, tmp_path: Path
) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("n1\nn2\nn2\n")
    variables = {
        "PBS": {"PBS_JOBID": "1", "PBS_NODEFILE": str(nodes)},
        "Grid Engine": {"JOB_ID": "1", "SGE_JOB_SPOOL_DIR": "/s", "NHOSTS": "2"},
    }
    with pytest.raises(UsageError) as refused:
        allocation(variables[queue])
    said = str(refused.value)
    assert f"an allocation of {queue} with 2 nodes" in said
    assert "start no tasks on other nodes" in said
    assert "allocate one node" in said


def test_end_of_an_allocation_of_slurm_is_asked_if_no_variable_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm 22.05 does not set SLURM_JOB_END_TIME."""
    ends = int(time.time()) + 3600
    (tmp_path / "squeue").write_text(
        f'#!/bin/sh\necho "$*" $SLURM_TIME_FORMAT >> asked\ncase "$*" in\n'
        f"*=4217*) echo {ends} ;;\n*) echo N/A ;;\nesac\n"
    )
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    for job, end in (("4217", ends), ("4218", 0.0)):
        assert allocation({"SLURM_JOB_ID": job}).ends == end
    assert "%e %s" in (tmp_path / "asked").read_text()


def test_allocation_of_slurm_is_read_from_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"}
    variables["SLURM_JOB_CPUS_PER_NODE"] = "64(x2),16"
    found = allocation(variables)
    assert (found.nodes, found.cores, found.left) == (3, 16, 0.0)
    monkeypatch.delenv("FLUX_URI", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    checked = read_options({"queue": "here"}).kinds[""]
    assert (checked.kind.nodes, checked.kind.cores, checked.kind.least) == (3, 16, 1)
    assert checked.requeue, "jobs run again in the next allocation, as with the executor 'local'"
    with pytest.raises(UsageError, match="'cores' is 32, but a node of this allocation has 16"):
        read_options({"queue": "here", "cores": 32})
