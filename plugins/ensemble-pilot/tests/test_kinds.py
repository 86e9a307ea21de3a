"""Several kinds of pilots: in a file, in a profile, and which jobs run where."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ensemble_pilot import ensemble_executors
from ensemble_pilot.fleet import Fleet, Kind, Pilot
from ensemble_pilot.ledger import PilotLedger
from ensemble_pilot.options import read_options

from ensemble_core import Job, UsageError

(PLUGIN,) = ensemble_executors()
FILE = """\
pilots:
  small: {cores: 1, most: 2}
  large: {cores: 2, orphan: 1m}
jobs:
  - {name: any, command: "true", count: 2}
  - {name: wide, command: "true", tasks: 2}
  - {name: bound, command: "true", executor: large}
rules:
  - trigger: start
    action: [{name: submit, label: any}, {name: submit, label: wide}, {name: submit, label: bound}]
"""


def ensemble(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    import os

    command = [sys.executable, "-m", "ensemble_core.cli", *words]
    environment = {**os.environ, "ENSEMBLE_STATE": str(folder / "state"), **more}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=environment
    )


def pilots_of(folder: Path, tag: str) -> Any:
    done = ensemble(folder, "status", tag, "--json")
    assert done.returncode == 0, done
    return json.loads(done.stdout)["executor_status"]["pilots"]


def job(name: str, **more: Any) -> Job:
    return Job(id=name, group="t", index=0, command=("true",), **more)


def test_jobs_run_in_pilots_of_the_kind_that_they_name_or_that_can_hold_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "e.yaml").write_text(FILE)
    options = ("-o", 'options={"slots": 8, "pool": "none"}', "--tag", "t")
    done = ensemble(tmp_path, "run", "e.yaml", "--executor", "pilot", *options)
    assert done.returncode == 0, done
    assert "(large) requested (1 node of 2 cores)" in done.stdout, done.stdout
    assert "(small) requested (1 node of 1 core)" in done.stdout
    status = ensemble(tmp_path, "status", "t").stdout
    assert " large ended at" in status
    assert " small ended at" in status


def test_profile_defines_kinds_which_the_file_can_change(tmp_path: Path) -> None:
    config = tmp_path / "config" / "ensemble" / "config.yaml"
    config.parent.mkdir(parents=True, mode=0o755)
    config.write_text(
        "profiles:\n"
        "  lab:\n"
        "    executor: pilot\n"
        "    options: {idle: 1m}\n"
        "    pilots:\n"
        "      small: {cores: 1, most: 2}\n"
        "      large: {cores: 2, most: 4}\n"
    )
    config.chmod(0o644)
    text = FILE.replace("  small: {cores: 1, most: 2}\n  large: {cores: 2, orphan: 1m}\n",
                        "  large: {most: 1}\n")  # fmt: skip
    (tmp_path / "e.yaml").write_text(text)
    home = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    words = ("validate", "e.yaml", "--profile", "lab", "--resolved")
    done = ensemble(tmp_path, *words, **home)
    assert done.returncode == 0, done
    found = [line.split() for line in done.stdout.splitlines()]
    assert ["pilots.large.cores", "2", f"{config}:7:22"] in found, done.stdout
    assert ["pilots.large.most", "1", "e.yaml:2:17"] in found
    assert ["pilots.small.most", "2", f"{config}:6:31"] in found
    config.write_text(config.read_text().replace("cores: 2", "cores: two"))
    done = ensemble(tmp_path, *words[:-1], **home)
    assert done.returncode == 2
    assert f"{config}:7:" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("change", "where", "words"),
    [
        (("executor: large", "executor: larg"), "e.yaml:7:46", ("'larg'", "did you mean 'large'")),
        (("tasks: 2", "tasks: 3"), "e.yaml:6:42", ("small: ", "3 cores", "has 1", "large: ")),
        (("most: 2", "most: 2, least: 3"), "e.yaml:2:27", ("kind 'small'", "'least' is 3")),
        (("most: 2", "mots: 2"), "e.yaml:2:21", ("'mots'", "did you mean 'most'")),
        (("orphan: 1m", "orphan: soon"), "e.yaml:3:29", ("kind 'large'", "'orphan'", "soon")),
        (("orphan: 1m", "memory: 3"), "e.yaml:3:29", ("kind 'large'", "'memory'", "3G")),
        (("orphan: 1m", "queue: kubernetes"), "e.yaml:3:28", ("kubernetes", "slurm")),
        (("orphan: 1m", "nodes: 2, queue: pbs"), "e.yaml:3:28", ("one node, not 2",)),
        (("orphan: 1m", "listen: auto"), "e.yaml:3:21", ("'listen'",)),
        (("large: {", "local: {"), "e.yaml:3:3", ("'local'", "executor")),
        (("executor: large", "executor: large, memory_per_task: 3G"), "e.yaml:7:70",
         ("3G of memory", "has 2G")),
    ],
)  # fmt: skip
def test_mistake_in_a_kind_is_refused_where_it_is_written(
    change: tuple[str, str], where: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    text = FILE.replace("orphan: 1m", "orphan: 1m, memory: 2G") if "3G" in change[1] else FILE
    (tmp_path / "e.yaml").write_text(text.replace(*change))
    for command in ("validate", "run"):
        done = ensemble(tmp_path, command, "e.yaml", "--executor", "pilot")
        assert done.returncode == 2, done
        assert where in done.stderr, done.stderr
        assert all(word in done.stderr for word in words), done.stderr


def test_here_is_the_only_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    kinds = {"a": {"queue": "here"}, "b": {"cores": 1}}
    with pytest.raises(UsageError, match="the one pilot, but there are 2 kinds"):
        read_options({"kinds": kinds})


def test_other_executors_ignore_the_kinds_and_say_so_of_groups_that_name_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "e.yaml").write_text(FILE)
    done = ensemble(tmp_path, "run", "e.yaml", "--executor", "local", "-o", "slots=2")
    assert done.returncode == 0, done
    assert "'executor: large' names a kind of pilot" in done.stderr, done.stderr


def test_options_are_defaults_of_all_kinds() -> None:
    options = read_options({"idle": "9s", "kinds": {"a": {"cores": 1}, "b": {"idle": "1m"}}})
    assert [each.kind.idle for each in options.kinds.values()] == [9.0, 60.0]


SMALL, FAST = Kind("small", cores=4, most=2), Kind("fast", cores=4, gpus=2, most=2)


def ready(fleet: Fleet, number: int, kind: Kind) -> Pilot:
    pilot = fleet.add_pilot(number, kind, 0.0)
    for node in pilot.nodes:
        fleet.connect(node, kind.cores, kind.gpus, None, 0.0)
    return pilot


def test_pilots_are_requested_of_the_first_kind_that_can_hold_a_job_then_of_the_next() -> None:
    fleet = Fleet(SMALL, FAST)
    for number in range(8):
        fleet.add(job(f"a.{number}"), number)
    assert fleet.requests(0.0) == [SMALL, SMALL], "eight jobs of one core"
    for number in range(8, 12):
        fleet.add(job(f"a.{number}"), number)
    assert fleet.requests(0.0) == [SMALL, SMALL, FAST], "'most' allows no third small one"
    fleet = Fleet(SMALL, FAST)
    fleet.add(job("g", gpus_per_task=1), 0)
    assert fleet.requests(0.0) == [FAST]
    assert fleet.demands["small"].why == "no job waits for this kind"


def test_jobs_of_a_kind_whose_pilots_fail_get_pilots_of_another_kind() -> None:
    fleet = Fleet(SMALL, FAST)
    fleet.add(job("a"), 0)
    for number in range(3):
        assert fleet.requests(0.0) == [SMALL]
        pilot = fleet.add_pilot(number, SMALL, 0.0)
        fleet.drain(pilot, "ended")
        pilot.to("fenced")
        fleet.end(pilot, 0.0, wanted=False)
    assert fleet.requests(0.0) == [FAST]


def test_jobs_leave_gpus_to_those_that_need_them() -> None:
    fleet = Fleet(FAST, SMALL)
    ready(fleet, 1, FAST)
    ready(fleet, 2, SMALL)
    for number in range(5):
        fleet.add(job(f"a.{number}"), number)
    places = [node.pilot.number for _, node in fleet.place(1.0)]
    assert places == [2, 2, 2, 2, 1]


def test_job_that_names_a_kind_waits_for_it() -> None:
    fleet = Fleet(SMALL, FAST)
    pilot = ready(fleet, 1, SMALL)
    fleet.add(job("a", executor="fast"), 0)
    assert fleet.place(1.0) == []
    assert fleet.requests(1.0) == [FAST]
    assert fleet.surplus(1e4) == [pilot], "it can run nothing that waits"


def test_memory_of_a_kind_is_what_jobs_get_of_a_node() -> None:
    fleet = Fleet(Kind(cores=4, memory=8 << 30))
    pilot = fleet.add_pilot(1, fleet.demands[""].kind, 0.0)
    fleet.connect(pilot.nodes[0], 4, 0, 64 << 30, 0.0)
    for number in range(3):
        fleet.add(job(f"a.{number}", memory_per_task=3 << 30), number)
    assert len(fleet.place(1.0)) == 2
    assert "9G of memory" in (fleet.never(job("b", memory_per_task=9 << 30)) or "")


def test_kinds_of_a_run_stay_as_they_were_when_it_began(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(FILE)
    options = ("-o", 'options={"slots": 8, "pool": "none"}', "--tag", "t")
    done = ensemble(tmp_path, "run", "e.yaml", "--executor", "pilot", *options)
    assert done.returncode == 0, done
    (tmp_path / "e.yaml").write_text(FILE.replace("most: 2", "most: 1").replace("t: 2}", "t: 3}"))
    done = ensemble(tmp_path, "resume", "t", "--accept-changes")
    assert done.returncode == 0, done
    assert "'pilots' has changed, which has no effect" in done.stderr, done.stderr


def test_kinds_that_follow_on_the_same_queue_share_it_and_others_have_their_own(
    tmp_path: Path,
) -> None:
    kinds = {
        "a": {"cores": 1},
        "b": {"cores": 2},
        "c": {"cores": 1, "options": {"slots": 3}},
    }
    executor: Any = PLUGIN.build({"options": {"slots": 4}, "kinds": kinds})
    of = executor._outer_of
    assert of["a"] is of["b"]
    assert of["a"] is not of["c"]


def test_waiting_job_names_its_kind_also_after_a_resume(tmp_path: Path) -> None:
    """Another controller would place it in any kind of pilot."""
    path = tmp_path / "pilots.log"
    job = Job(id="a.0", group="a", index=0, command=("true",), executor="gpu")
    first = PilotLedger(path, "r")
    first.submit([job], 1.0)
    first.close()
    for _ in range(2):  # it is rewritten each time
        later = PilotLedger(path, "r")
        assert later.jobs["a.0"].job.executor == "gpu"
        later.close()
