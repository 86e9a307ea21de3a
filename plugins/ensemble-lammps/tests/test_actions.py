"""Tests of the actions ``lammps-vary``, ``lammps-continue`` and ``lammps-check``."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ensemble_lammps.actions import ensemble_actions
from ensemble_lammps.program import LAMMPS
from ensemble_lammps.restarts import MAGIC
from ensemble_testing import ActionContract, FakeFiring, Story

from ensemble_core import Action, CallContext, EnsembleError, Job, JobGroup, MetricsView, Rule
from ensemble_core.model.decisions import Call, Log, Submit, Terminate
from ensemble_core.model.events import CallReturned, JobEvent, Observed

VARY, CONTINUE, CHECK = ensemble_actions()

COMMAND = ("lmp", "-in", "in.melt", "-var", "T", "{T}", "-var", "seed", "1")
GROUP = JobGroup(name="sim", command=COMMAND, parameters={"T": (1.0, 2.0)}, count=5)
TABLE = """LAMMPS (22 Jul 2025)
Per MPI rank memory allocation (min/avg/max) = 3.1 | 3.1 | 3.1 Mbytes
   Step          Temp          TotEng         \x20
         0   1.44          -4.63         \x20
       100   {temp}          -4.63         \x20
"""
END = "Loop time of 0.5 on 1 procs for 100 steps with 108 atoms\n"
WALL = "Total wall time: 0:00:01\n"


class TestVary(ActionContract):
    plugin = VARY
    options: ClassVar = {"variables": {"T": "=T * 1.1", "seed": 4711, "more": "text"}}
    bad_options: ClassVar = [
        {},
        {"variables": {}},
        {"variables": {"T": [1, 2]}},
        {"variables": {"T x": 1}},
        {"variables": {"T": 1}, "count": 0},
    ]

    def firing(self) -> FakeFiring:
        job = next(GROUP.jobs(0))
        return FakeFiring(job_spec=job, groups=[GROUP], fields={"T": 1.0, "job": "sim.0"})


class TestContinue(ActionContract):
    plugin = CONTINUE
    options: ClassVar = {
        "restart": ["melt.*", "turn.{index}.%"],
        "steps": 1000,
        "otherwise": {"name": "submit", "label": "sim"},
    }
    bad_options: ClassVar = [
        {"restart": []},
        {"restart": ""},
        {"newest": "best"},
        {"variable": "a b"},
        {"variables": {}},
    ]


class TestCheck(ActionContract):
    plugin = CHECK
    options: ClassVar = {"lost-atoms": {"name": "log", "message": "{outcome}"}}
    bad_options: ClassVar = [{"log": ""}, {"lost_atoms": {"name": "log", "message": "m"}}]


# -- lammps-vary -----------------------------------------------------------------------------------


def vary(options: Mapping[str, Any], job: Job | None = None, group: JobGroup = GROUP) -> Submit:
    fields = {} if job is None else {"T": 1.0, "Temp": 1.25, "index": job.index}
    firing = FakeFiring(job_spec=job, groups=[group, JobGroup(name="cool", command=COMMAND[:3])],
                        fields=fields, metrics={"mean.sim-Temp": 1.5})  # fmt: skip
    assert VARY.plan is not None
    (submit,) = VARY.plan(firing, options)
    assert isinstance(submit, Submit)
    return submit


def job(index: int = 0, group: JobGroup = GROUP) -> Job:
    return list(group.jobs(0))[index]


def test_a_sweep_parameter_is_set_and_another_variable_is_added_to_the_command() -> None:
    submit = vary({"variables": {"T": "=T * 1.1", "seed": 4711, "P": "=Temp"}}, job())
    (one,) = submit.jobs
    assert dict(one.parameters) == {"T": 1.1}
    assert one.command == (
        *("lmp", "-in", "in.melt", "-var", "T", "1.1", "-var", "seed", "4711"),
        *("-var", "P", "1.25"),
    )


def test_other_variables_stay_as_the_job_had_them() -> None:
    (one,) = vary({"variables": {"seed": 2}}, job(5)).jobs
    assert dict(one.parameters) == {"T": 2.0}


def test_earlier_variations_are_kept() -> None:
    (first,) = vary({"variables": {"seed": 2, "P": "a{index}"}}, job()).jobs
    (second,) = vary({"variables": {"T": 3}}, first).jobs
    assert second.command[4:] == ("T", "3", "-var", "seed", "2", "-var", "P", "a{index}")
    (third,) = vary({"variables": {"seed": 3}}, second).jobs
    assert third.command[4:] == ("T", "3", "-var", "seed", "3", "-var", "P", "a{index}")
    (fourth,) = vary({"variables": {"T": 4}, "input": "in.{index}"}, third).jobs
    (fifth,) = vary({"variables": {"T": 5}}, fourth).jobs
    assert [one.command[2] for one in (third, fourth, fifth)] == ["in.melt", "in.0", "in.0"]


def test_without_a_job_the_whole_sweep_is_submitted_with_the_change() -> None:
    submit = vary({"label": "sim", "variables": {"seed": "=2 * metric('mean.sim-Temp')"}})
    assert len(submit.jobs) == 10
    assert {one.command[8] for one in submit.jobs} == {"3"}


def test_another_group_gets_the_values_of_its_parameters() -> None:
    (one,) = vary({"label": "cool", "variables": {"T": "=T"}, "input": "in.cool"}, job(3)).jobs
    assert one.command == ("lmp", "-in", "in.cool", "-var", "T", "1")
    assert len(vary({"variables": {"T": 1}, "count": 3}, job()).jobs) == 3


def test_an_integer_is_written_without_a_point() -> None:
    (one,) = vary({"variables": {"seed": 1e5, "P": 0.25}}, job()).jobs
    assert one.command[-4:] == ("100000", "-var", "P", "0.25")


def test_an_expression_without_a_value_submits_nothing() -> None:
    with pytest.raises(EnsembleError, match="variable T: cannot evaluate"):
        vary({"variables": {"T": "=Press / 2"}}, job())
    with pytest.raises(EnsembleError, match="variable T: cannot evaluate"):
        vary({"variables": {"T": "=1 / (T - 1)"}}, job())


# -- in an ensemble file --------------------------------------------------------------------------

FILE = """
jobs:
  - name: sim
    command: lmp -in in.melt -var T {T} -var seed 1
    parameters: {T: [1.0]}
    workdir: WORKDIR
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - id: rule
    trigger: job-fail
    name: sim
    repetitions: 5
    action: ACTION
"""


def story(action: str, workdir: object = "/nowhere") -> Story:
    told = Story(FILE.replace("ACTION", action).replace("WORKDIR", str(workdir)))
    told.start()
    return told


def carry_out(told: Story, call: Call) -> list[Any]:
    """Run the action of a call; return the decisions that follow from its result."""
    record = next(each for each in ensemble_actions() if each.name == call.name)
    assert record.run is not None
    result = record.run(
        CallContext(
            options=call.options,
            event=call.event,
            rule=Rule({}),
            action=Action(),
            metrics=MetricsView({}),
            job=call.job,
        )
    )
    assert result is not None
    assert not isinstance(result, (Action, Rule))
    returned = [
        {"action": dict(one.spec), "fields": dict(one.fields)}
        for one in result
        if isinstance(one, Action)
    ]
    return told.tell(CallReturned(told.now, call.call, tuple(returned)))


def fail(told: Story, job: str = "sim.0", **play: float) -> list[Any]:
    """Let the job fail; return the decisions that follow from the action's ``run``."""
    calls = [one for one in told.play(job, status=256, **play) if isinstance(one, Call)]
    return [decision for call in calls for decision in carry_out(told, call)]


def submitted(decisions: list[Any]) -> list[tuple[str, ...]]:
    return [job.command for one in decisions if isinstance(one, Submit) for job in one.jobs]


def logged(decisions: list[Any]) -> list[tuple[str, str]]:
    return [(one.level, one.message) for one in decisions if isinstance(one, Log)]


def write_restart(path: Path, step: int) -> None:
    path.write_bytes(MAGIC + struct.pack("<4iq", 1, 3, 5, step & 0xFFFFFFFF, 0) + MAGIC)


def test_a_misspelled_name_in_an_expression_is_rejected_with_the_file() -> None:
    with pytest.raises(EnsembleError, match="did you mean") as caught:
        story('{name: lammps-vary, variables: {T: "=duraton * 2"}}')
    assert "duraton" in str(caught.value)


def test_a_nested_action_is_checked_with_the_file() -> None:
    with pytest.raises(EnsembleError, match="smi"):
        story("{name: lammps-continue, otherwise: {name: submit, label: smi}}")
    with pytest.raises(EnsembleError, match="outcom"):
        story("{name: lammps-check, error: {name: log, message: '{outcom}'}}")


def test_actions_on_a_job_are_rejected_without_a_job() -> None:
    for action, what in (
        ("{name: lammps-check, error: {name: terminate}}", "'lammps-check' acts on"),
        ("{name: lammps-continue}", "'lammps-continue' acts on"),
        ("{name: lammps-vary, variables: {T: 1}}", "'lammps-vary' without 'label' acts on"),
    ):
        with pytest.raises(EnsembleError, match=f"{what}.*the trigger 'start' has no job"):
            Story(
                FILE.replace("action: {name: submit, label: sim}", f"action: {action}")
                .replace("ACTION", "{name: terminate}")
                .replace("WORKDIR", "x")
            )


# -- lammps-continue -------------------------------------------------------------------------------


def test_a_job_continues_from_its_newest_restart_file(tmp_path: Path) -> None:
    for step in (100, 200):
        write_restart(tmp_path / f"melt.{step}", step)
    now = (tmp_path / "melt.200").stat().st_mtime
    told = story("{name: lammps-continue, steps: '=duration * 2', variables: {P: 2}}", tmp_path)
    told.now = now
    decided = fail(told, duration=5)
    ((*command,),) = submitted(decided)
    path = str(tmp_path / "melt.200")
    assert command[5:] == ["1", "-var", "seed", "1", "-var", "P", "2", "-var", "restart", path,
                           "-var", "steps", "10"]  # fmt: skip
    assert logged(decided) == [("info", f"sim.0 continues from {path} (step 200)")]


def test_a_pattern_may_contain_the_jobs_placeholders(tmp_path: Path) -> None:
    for name, step in (("melt.1.0.100", 100), ("melt.2.0.200", 200)):
        write_restart(tmp_path / name, step)
    told = story("{name: lammps-continue, restart: 'melt.{T}.*'}", tmp_path)
    told.now = (tmp_path / "melt.1.0.100").stat().st_mtime
    ((*command,),) = submitted(fail(told))
    assert command[-1] == str(tmp_path / "melt.1.0.100")


def test_the_next_link_has_the_current_shape_of_the_group(tmp_path: Path) -> None:
    write_restart(tmp_path / "melt.200", 200)
    told = story("[{name: set, label: sim, with: {nodes: 8}}, {name: lammps-continue}]", tmp_path)
    told.now = (tmp_path / "melt.200").stat().st_mtime
    (submit,) = (one for one in fail(told) if isinstance(one, Submit))
    assert [job.nodes for job in submit.jobs] == [8]


def test_another_group_continues_where_this_one_stopped(tmp_path: Path) -> None:
    write_restart(tmp_path / "melt.200", 200)
    told = Story(
        FILE.replace("ACTION", "{name: lammps-continue, label: go, steps: 9}")
        .replace("WORKDIR", str(tmp_path))
        .replace(
            "rules:",
            "  - name: go\n"
            "    command: lmp -in in.on -var T {T} -var s {s} -var steps 5\n"
            "    parameters: {T: [7], s: [1, 2]}\n"
            "    count: 4\n"
            "rules:",
        )
    )
    told.start()
    told.now = (tmp_path / "melt.200").stat().st_mtime
    commands = submitted(fail(told))
    path = tmp_path / "melt.200"
    assert [" ".join(command[3:]) for command in commands] == [
        f"-var T 1 -var s {s} -var steps 9 -var restart {path}" for s in (1, 2)
    ]


def test_a_parameters_value_is_not_a_pattern(tmp_path: Path) -> None:
    for name, step in (("melt.[1].100", 100), ("melt.1.200", 200)):
        write_restart(tmp_path / name, step)
    file = FILE.replace("[1.0]", "['[1]']").replace("WORKDIR", str(tmp_path))
    told = Story(file.replace("ACTION", "{name: lammps-continue, restart: 'melt.{T}.*'}"))
    told.start()
    told.now = (tmp_path / "melt.[1].100").stat().st_mtime
    ((*command,),) = submitted(fail(told))
    assert command[-1] == str(tmp_path / "melt.[1].100")


def test_the_latest_file_is_used_if_a_script_resets_the_step(tmp_path: Path) -> None:
    for name, step, time in (("equilibrated", 90_000, 1001), ("produced", 500, 1002)):
        write_restart(tmp_path / name, step)
        os.utime(tmp_path / name, (time, time))
    for option, name in (("step", "equilibrated"), ("time", "produced")):
        told = story(f"{{name: lammps-continue, newest: {option}}}", tmp_path)
        ((*command,),) = submitted(fail(told, duration=5))
        assert command[-1] == str(tmp_path / name)


def test_a_long_epilogue_does_not_make_a_jobs_own_files_old(tmp_path: Path) -> None:
    write_restart(tmp_path / "melt.200", 200)
    os.utime(tmp_path / "melt.200", (1003, 1003))
    told = Story(
        FILE.replace("ACTION", "{name: lammps-continue}")
        .replace("WORKDIR", str(tmp_path))
        .replace("job-fail", "job-clean")
    )
    told.start()
    told.begin("sim.0")
    told.job("sim.0", "finish", after=5, status=256)
    (call,) = (
        one
        for one in told.job("sim.0", "release", "free", "clean", after=120)
        if isinstance(one, Call)
    )
    assert len(submitted(carry_out(told, call))) == 1


def test_a_link_that_wrote_nothing_continues_where_it_started(tmp_path: Path) -> None:
    first, second = tmp_path / "0", tmp_path / "1"
    for folder in (first, second):
        folder.mkdir()
    write_restart(first / "melt.200", 200)
    told = story("{name: lammps-continue}", f"{tmp_path}/{{index}}")
    told.now = (first / "melt.200").stat().st_mtime
    fail(told)
    told.wait(1000)
    decided = fail(told, "sim.1")
    ((*command,),) = submitted(decided)
    assert command[-3:] == ["-var", "restart", str(first / "melt.200")]
    assert "wrote no restart file" in logged(decided)[-1][1]


def test_files_of_an_earlier_run_in_the_folder_are_ignored(tmp_path: Path) -> None:
    write_restart(tmp_path / "melt.200", 200)
    os.utime(tmp_path / "melt.200", (500, 500))
    told = story("{name: lammps-continue}", tmp_path)  # time is 1000 now
    decided = fail(told)
    assert submitted(decided) == []
    ((level, message),) = logged(decided)
    assert level == "error"
    assert "melt.200: it is older than the job" in message


@pytest.mark.parametrize("trigger", ["job-fail", "job-clean", "job-exception", "lammps-thermo"])
def test_files_written_a_minute_before_by_an_earlier_run_are_ignored_for_any_trigger(
    trigger: str, tmp_path: Path
) -> None:
    write_restart(tmp_path / "melt.200", 200)
    file = FILE.replace("trigger: job-fail", f"trigger: {trigger}").replace(
        "workdir:", "observe: {lammps: {}}\n    workdir:"
    )
    told = Story(
        file.replace("ACTION", "{name: lammps-continue}").replace("WORKDIR", str(tmp_path))
    )
    told.start()
    os.utime(tmp_path / "melt.200", (told.now - 60, told.now - 60))
    decided = [
        *told.begin("sim.0"),
        *told.tell(Observed(told.now, "sim.0", "lammps", {"Temp": 1.0})),
        *told.tell(JobEvent(told.now, "sim.0", "exception", {"type": "timeout", "severity": 0})),
        *told.tell(JobEvent(told.now, "sim.0", "finish", {"status": 256})),
        *told.tell(JobEvent(told.now, "sim.0", "clean")),
    ]
    (call,) = [one for one in decided if isinstance(one, Call)]
    ((level, message),) = logged(carry_out(told, call))
    assert level == "error"
    assert "melt.200: it is older than the job" in message


def test_otherwise_applies_without_a_restart_file(tmp_path: Path) -> None:
    (tmp_path / "melt.200").write_bytes(MAGIC + b"cut")
    told = story(
        "{name: lammps-continue, otherwise: [{name: log, message: anew}, "
        "{name: submit, label: sim}]}",
        tmp_path,
    )
    decided = fail(told)
    assert [command[5] for command in submitted(decided)] == ["1"]
    (level, why), anew = logged(decided)
    assert level == "warning"
    assert "truncated" in why
    assert anew == ("info", "anew")


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    assert "does not exist on this machine" in logged(fail(story("{name: lammps-continue}")))[0][1]
    assert "it never ran, or" in logged(fail(story("{name: lammps-continue}", "runs")))[0][1]


def test_a_script_that_does_not_use_the_restart_file_is_reported(tmp_path: Path) -> None:
    write_restart(tmp_path / "melt.200", 200)
    script = tmp_path / "in.melt"

    def warned(text: str) -> bool:
        script.write_text(text)
        told = story("{name: lammps-continue}", tmp_path)
        told.now = (tmp_path / "melt.200").stat().st_mtime
        return any("does not mention" in message for _, message in logged(fail(told)))

    assert warned("restart 100 melt\nrun 100\n")
    assert warned("")
    assert not warned("read_restart ${restart}\n")
    assert not warned('if "$(is_defined(variable,restart))" then "jump in.on"\n')
    assert not warned("include other\n")
    script.unlink()
    os.mkfifo(script)
    told = story("{name: lammps-continue}", tmp_path)
    told.now = (tmp_path / "melt.200").stat().st_mtime
    assert [level for level, _ in logged(fail(told))] == ["info"]


def test_a_repeated_call_finds_the_same(tmp_path: Path) -> None:
    write_restart(tmp_path / "melt.200", 200)
    told = story("{name: lammps-continue}", tmp_path)
    told.now = (tmp_path / "melt.200").stat().st_mtime
    (call,) = (one for one in told.play("sim.0", status=256) if isinstance(one, Call))
    once, again = (
        list(CONTINUE.run(_context(call)) or ())  # type: ignore[arg-type, misc]
        for _ in range(2)
    )
    assert once == again


def _context(call: Call) -> CallContext:
    return CallContext(
        options=call.options,
        event={**call.event, "attempt": 2},
        rule=Rule({}),
        action=Action(),
        metrics=MetricsView({}),
        job=call.job,
    )


# -- lammps-check ----------------------------------------------------------------------------------

LOGS = {
    "completed": TABLE.format(temp=1.1) + END + WALL,
    "lost-atoms": TABLE.format(temp=9.9)
    + "ERROR: Lost atoms: original 500 current 32 (src/thermo.cpp:494)\n",
    "nan": TABLE.format(temp="nan") + END + WALL,
    "error": TABLE.format(temp=1.1) + "ERROR: Unknown pair style lj/kut\n",
    "killed": TABLE.format(temp=1.1),
}
STATUS = {"completed": 0, "nan": 0, "killed": 9, "cut": 0}


def check(
    folder: Path, kind: str, action: str, name: str = "log.lammps"
) -> tuple[list[tuple[str, ...]], list[tuple[str, str]]]:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(LOGS.get(kind, LOGS["killed"]))
    told = Story(
        FILE.replace("ACTION", action)
        .replace("WORKDIR", str(folder))
        .replace("trigger: job-fail", "trigger: job-finish")
    )
    told.start()
    status = STATUS.get(kind, 256)
    (call,) = (one for one in told.play("sim.0", status=status) if isinstance(one, Call))
    decided = carry_out(told, call)
    return submitted(decided), logged(decided)


@pytest.mark.parametrize("kind", LOGS)
def test_the_outcome_of_a_job_chooses_the_action(tmp_path: Path, kind: str) -> None:
    others = ", ".join(f"{other}: {{name: log, message: wrong}}" for other in LOGS if other != kind)
    action = f"{{name: lammps-check, {kind}: {{name: submit, label: sim}}, {others}}}"
    again, told = check(tmp_path, kind, action)
    assert len(again) == 1
    assert all(message != "wrong" for _, message in told)
    assert [level for level, _ in told] == ([] if kind == "completed" else ["warning"])


def test_each_outcome_has_an_option() -> None:
    assert {*CHECK.options["properties"]} == {*LAMMPS.kinds, "otherwise", "log"}


def test_otherwise_applies_if_the_outcome_is_unknown(tmp_path: Path) -> None:
    options = ", ".join(f"{kind}: {{name: log, message: wrong}}" for kind in LOGS)
    action = f"{{name: lammps-check, {options}, otherwise: {{name: submit, label: sim}}}}"
    again, told = check(tmp_path, "cut", action)
    assert len(again) == 1
    assert [level for level, _ in told] == ["warning"]


def test_a_running_job_does_not_count_as_killed(tmp_path: Path) -> None:
    (tmp_path / "log.lammps").write_text(LOGS["killed"])
    action = "{name: lammps-check, killed: {name: terminate}, otherwise: {name: log, message: m}}"
    told = Story(
        FILE.replace("ACTION", action)
        .replace("WORKDIR", str(tmp_path))
        .replace("job-fail", "job-start")
    )
    told.start()
    (call,) = (one for one in told.begin("sim.0") if isinstance(one, Call))
    assert ("info", "m") in logged(carry_out(told, call))


def test_messages_of_nested_actions_have_the_outcome(tmp_path: Path) -> None:
    action = (
        "{name: lammps-check, otherwise: {name: log, message: '{job} {outcome} {step} {message}'}}"
    )
    _, told = check(tmp_path, "lost-atoms", action)
    assert told[-1][1].startswith("sim.0 lost-atoms 100 ")
    assert "original 500 current 32" in told[-1][1]


def test_an_outcome_without_an_option_is_still_reported(tmp_path: Path) -> None:
    again, told = check(tmp_path, "error", "{name: lammps-check, killed: {name: terminate}}")
    assert again == []
    ((level, message),) = told
    assert level == "warning"
    assert "sim.0: error at step 100" in message
    assert "Unknown pair style" in message


def test_a_job_whose_program_was_not_found_has_the_outcome_error(tmp_path: Path) -> None:
    action = "{name: lammps-check, killed: {name: log, message: m}, otherwise: {name: terminate}}"
    told = story(action, "runs/{index}")
    ends = told.job("sim.0", "submit", "alloc", "exception", "clean", severity=0, type="exec")
    (call,) = (one for one in ends if isinstance(one, Call))
    decided = carry_out(told, call)
    assert logged(decided) == [("warning", "sim.0: unknown: the job never ran")]
    assert any(isinstance(one, Terminate) for one in decided)


def test_another_log_can_be_named_with_placeholders(tmp_path: Path) -> None:
    action = "{name: lammps-check, log: 'logs/{T}.{index}', error: {name: submit, label: sim}}"
    again, _ = check(tmp_path, "error", action, "logs/1.0.0")
    assert len(again) == 1


def test_a_failed_job_continues_if_it_was_killed_but_not_after_an_error(tmp_path: Path) -> None:
    write_restart(tmp_path / "melt.100", 100)
    os.utime(tmp_path / "melt.100", (1000, 1000))
    (tmp_path / "log.lammps").write_text(LOGS["killed"])
    told = story("{name: lammps-check, killed: {name: lammps-continue}}", tmp_path)
    (first,) = (one for one in told.play("sim.0", status=9) if isinstance(one, Call))
    (second,) = (one for one in carry_out(told, first) if isinstance(one, Call))
    assert second.name == "lammps-continue"
    ((*command,),) = submitted(carry_out(told, second))
    assert command[-2:] == ["restart", str(tmp_path / "melt.100")]
