"""Bad input: one clear error before anything is requested, with exit code 2."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from ensemble_pilot import ensemble_executors
from ensemble_pilot.allocation import allocation
from ensemble_pilot.options import read_options

from ensemble_core import UsageError
from ensemble_core.local.slots import machine_cores

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
        ("nodes", "2", (), ("2 nodes", "runs on one node", "executor of the queue")),
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
        ({"least": 2}, ("'most' is 1", "'least' is 2")),
        ({"duration": "1m"}, ("60 s", "120 s", "no time for jobs")),
        ({"duration": "1h", "margin": "8s"}, ("'grace' is 5 s", "4 s")),
        ({"duration": "soon"}, ("'duration'", "soon")),
        ({"idle": "-1s"}, ("'idle'",)),
        ({"orphan": 0}, ("'orphan' is 0 s",)),
        ({"listen": "none"}, ("must be able to connect", "-o listen=ADDRESS")),
        ({"options": {"slot": 2}}, ("no option 'slot'", "slots")),
        ({"options": {"slots": "many"}}, ("'slots'", "many")),
        ({"options": {"slots": 4}, "nodes": 5}, ("5 x 1 cores", "4 slots")),
        ({"cores": machine_cores() + 1}, (f"{machine_cores() + 1} cores",)),
        ({"queue": "here"}, ("allocation", "SLURM_JOB_ID", "-o queue=slurm")),
        ({"queue": "here", "nodes": 2}, ("'nodes' has no effect", "-o nodes=2")),
        ({"queue": "here", "most": 2}, ("'most' has no effect",)),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: Mapping[str, object], words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(UsageError) as refused:
        PLUGIN.build(options)
    said = str(refused.value)
    assert all(word in said for word in words), said
    assert refused.value.hint


def test_option_is_refused_at_validate(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(FILE.format(key="duration", value="1m"))
    words = ("validate", "e.yaml", "--executor", "pilot", "-o", "most=1", "-o", "least=2")
    done = ensemble(tmp_path, *words)
    assert done.returncode == 2
    assert "'most' is 1, but 'least' is 2" in done.stderr


def test_allocation_of_slurm_is_read_from_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"}
    variables["SLURM_JOB_CPUS_PER_NODE"] = "64(x2),16"
    found = allocation(variables)
    assert (found.nodes, found.cores, found.left) == (3, 16, 0.0)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    checked = read_options({"queue": "here"})
    assert (checked.kind.nodes, checked.kind.cores, checked.kind.least) == (3, 16, 1)
    assert checked.requeue, "jobs run again in the next allocation, as with the executor 'local'"
    with pytest.raises(UsageError, match="'cores' is 32, but a node of this allocation has 16"):
        read_options({"queue": "here", "cores": 32})
