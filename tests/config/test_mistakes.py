"""Typical mistakes of new users: the whole message and its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

import ensemble_core
from ensemble_core.cli.main import main
from ensemble_core.config import load, load_text
from ensemble_core.errors import FileErrors
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.registry import LoadedPlugin, Registry

REGISTRY = discover()

STUDY = """\
jobs:
  - name: sim
    command: python3 prog.py {T} {L}
    parameters: {T: [1.0, 2.0, 3.0], L: [8, 16]}
    observe: {key-value: {fields: [x, E]}}
    result: {E: last.E, U: mean.x}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: job-lost, name: sim, action: {name: log, message: '{job} is lost'}}
results:
  curve: {of: sim, by: [T], columns: {m: mean.E}}
  other: {of: sim, by: [L], columns: {u: mean.U, most: max.curve.m}}
"""
#: A rule of the study, and its first action.
RULE = "trigger: job-lost, name: sim, action: {name: log, message: '{job} is lost'}"
END = "action: {name: terminate}"


class Mistake(NamedTuple):
    """A mistake: text that replaces a part of the study, with ``«`` at the place of the error."""

    instead: str
    of: str
    says: str
    hint: str


MISTAKES = {
    "count in a table": Mistake(
        "m: mean.E, jobs: «count",
        "m: mean.E",
        "unknown name 'count' in the table 'curve'",
        "write n, the number of the row's jobs",
    ),
    "count of some jobs in a table": Mistake(
        "m: mean.E, jobs: «count.E(T > 1)",
        "m: mean.E",
        "unknown name 'count.E(T > 1)' in the table 'curve'",
        "write count.done(T > 1)",
    ),
    "n of some jobs in a table": Mistake(
        "m: mean.E, jobs: «n(T > 1)",
        "m: mean.E",
        "the expression has an invalid filter",
        "write count.done(T > 1)",
    ),
    "arrow": Mistake(
        f"trigger: metric, name: count.sim.done, when: «'=> 3', {END}",
        RULE,
        "'when' does not parse: '=> 3'",
        'write ">= 3"',
    ),
    "arrow after a name": Mistake(
        f"trigger: job-done, name: sim, when: «E =< 3, {END}",
        RULE,
        "'when' does not parse: 'E =< 3' (invalid syntax)",
        "write 'E <= 3'",
    ),
    "each of jobs": Mistake(
        f"trigger: job-done, name: sim, each: «jobs, {END}",
        RULE,
        "'each' is 'jobs', expected job or a list of parameters",
        "did you mean 'job'?",
    ),
    "each of jobs that are idle": Mistake(
        f"trigger: idle, name: sim, each: «jobs, {END}",
        RULE,
        "'each' is 'jobs', expected job or a list of parameters",
        "write each: [L, T]",
    ),
    "vary for all jobs at once": Mistake(
        "trigger: idle, name: sim, action: {name: «vary, parameters: {L: 32}}",
        RULE,
        "'vary' acts on the event's job, but the trigger 'idle' has no job",
        "add each: [T] beside the trigger: the rule then fires separately for each value",
    ),
    "vary of a parameter by its own value": Mistake(
        "trigger: idle, name: sim, action: {name: «vary, parameters: {T: '= T + 1'}}",
        RULE,
        "'vary' acts on the event's job, but the trigger 'idle' has no job",
        "add each: [T, L] beside the trigger: the rule then fires separately for each value",
    ),
    "vary when every parameter has new values": Mistake(
        "trigger: idle, name: sim, action: {name: «vary, parameters: {T: 4.0, L: 32}}",
        RULE,
        "'vary' acts on the event's job, but the trigger 'idle' has no job",
        "write {name: submit, label: sim, with: {parameters: …}}, which needs no job",
    ),
    "steps of a range": Mistake(
        "{from: 1, to: 3, «steps: 4}",
        "[1.0, 2.0, 3.0]",
        "unknown key 'steps' in 'T'",
        "write 'count: 4' for 4 values, or 'step: 4' for the distance from one value to the next",
    ),
    "above nan": Mistake(
        f"trigger: observed, name: sim, when: «E > nan, {END}",
        RULE,
        "'E > nan' compares with nan, which is never above, below or equal to a number",
        "write isnan(E)",
    ),
    "not nan": Mistake(
        f"trigger: observed, name: sim, when: «E != nan, {END}",
        RULE,
        "'E != nan' compares with nan, which is never above, below or equal to a number",
        "write not isnan(E)",
    ),
    "a metric that is nan": Mistake(
        f"trigger: metric, name: mean.sim-E, when: «value == nan, {END}",
        RULE,
        "'value == nan' compares with nan, which is never above, below or equal to a number",
        "for the last value, write isnan(last.COLUMN); for a row that has nan, write trigger: "
        "observed with when: isnan(COLUMN)",
    ),
    "nan in a table": Mistake(
        "by: [L], where: «E == nan",
        "by: [L]",
        "'E == nan' compares with nan, which is never above, below or equal to a number",
        "write isnan(E)",
    ),
    "a result of no single job": Mistake(
        f"trigger: idle, name: sim, when: «E > 3, {END}",
        RULE,
        "'E' in 'E > 3' belongs to one job or row, but the trigger 'idle' has neither",
        "write mean.E (over the jobs), or write mean.curve.m (over a table)",
    ),
    "a result of no group": Mistake(
        f"trigger: idle, when: «E > 3, {END}",
        RULE,
        "'E' in 'E > 3' belongs to one job or row, but the trigger 'idle' has neither",
        "write mean.E (over the jobs) and add 'name: sim', or write mean.curve.m (over a table)",
    ),
    "a column of no row": Mistake(
        f"trigger: idle, name: sim, when: «m > 3, {END}",
        RULE,
        "'m' in 'm > 3' belongs to one job or row, but the trigger 'idle' has neither",
        "write mean.curve.m (over a table)",
    ),
    "a statistic of nothing in a table": Mistake(
        "{m: «mean.Q}",
        "{m: mean.E}",
        "unknown name 'mean.Q' in the table 'curve'",
        "known: T, n, reused, mean.L, mean.E, mean.U",
    ),
    "parameters of a submit": Mistake(
        "label: sim, «parameters: {T: 4}}",
        "label: sim}",
        "unknown key 'parameters' in the action 'submit'",
        "put it under 'with:': with: {parameters: …}",
    ),
    "if without else": Mistake(
        "U: 1 - mean.x if L == 16«}",
        "U: mean.x}",
        "'1 - mean.x if L == 16' has 'if' without 'else'",
        "add the other value: 1 - mean.x if L == 16 else VALUE",
    ),
    "if without else, quoted": Mistake(
        "U: '= 1 - mean.x if L == 16«'}",
        "U: mean.x}",
        "'1 - mean.x if L == 16' has 'if' without 'else'",
        "add the other value: 1 - mean.x if L == 16 else VALUE",
    ),
    "if without else in a table": Mistake(
        "{m: mean.E if n > 1«}",
        "{m: mean.E}",
        "'mean.E if n > 1' has 'if' without 'else'",
        "add the other value: mean.E if n > 1 else VALUE",
    ),
    "a number of retries": Mistake(
        "result: {E: last.E, U: mean.x}\n    retry: «5",
        "result: {E: last.E, U: mean.x}",
        "'retry' is the number 5, expected a mapping",
        "write retry: {times: 5}",
    ),
    "a group's name": Mistake(
        "- «nam: sim", "- name: sim", "unknown key 'nam' in the job group", "did you mean 'name'?"
    ),
    "a condition with a comma": Mistake(
        "result: {E: last.E, U: mean.x}\n    retry: {times: 2, when: exit_code in (75, «143)}",
        "result: {E: last.E, U: mean.x}",
        "unknown key '143)' in 'retry'",
        'quote text that contains a comma: "= min(T, 3)"',
    ),
    "a group that waits for another one": Mistake(
        "result: {E: last.E, U: mean.x}\n  - {name: post, command: ./post, «depends: [sim]}",
        "result: {E: last.E, U: mean.x}",
        "unknown key 'depends' in the job group 'post'",
        "a rule starts a group when another one is over: {trigger: idle, name: sim, action: {name: "
        "submit, label: post}}",
    ),
    "rules twice": Mistake(
        f"«ruls:\n  - {{trigger: idle, {END}}}\nresults:",
        "results:",
        "unknown key 'ruls' in the file",
        "did you mean 'rules'?",
    ),
    "no rule that begins": Mistake(
        "«rules:",
        "rules:\n  - {trigger: start, action: {name: submit, label: sim}}",
        "no rule can start the run: all rules wait for jobs, but no rule submits the first job",
        "add a rule with 'trigger: start'; if the run only steers jobs of other runs, set "
        "'scope: queue' in its rules, or use --allow-idle (in Python, allow_idle=True)",
    ),
    "a beginning that is off": Mistake(
        "«rules:\n  - {id: begin, enabled: false, trigger: start,",
        "rules:\n  - {trigger: start,",
        "no rule can start the run: all rules wait for jobs, but no rule submits the first job",
        "enable the rule 'begin' (remove 'enabled: false'); if the run only steers jobs of other runs, "
        "set 'scope: queue' in its rules, or use --allow-idle (in Python, allow_idle=True)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_mistake_gives_one_error_with_a_hint(mistake: Mistake) -> None:
    assert STUDY.count(mistake.of) == 1
    text = STUDY.replace(mistake.of, mistake.instead)
    before, _, after = text.partition("«")
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    with pytest.raises(FileErrors) as caught:
        load_text(before + after, REGISTRY, file="study.yaml", must_begin=True)
    assert str(caught.value) == (
        f"study.yaml:{line}:{column}: {mistake.says}\n  hint: {mistake.hint}"
    )
    assert caught.value.exit_code == 2


def test_base_study_is_valid() -> None:
    assert load_text(STUDY, REGISTRY, file="study.yaml", must_begin=True).warnings == ()


RUN = ["run", "--executor", "local", "--state", "state", "--no-progress"]

# -- no rule can start the run ---------------------------------------------------------------------

WAITS = """\
jobs: [{name: sim, command: 'true'}]
rules:
  - {id: only, RULE, action: {name: submit, label: sim}}
"""


@pytest.mark.parametrize(
    "rule",
    [
        "trigger: start",
        "trigger: interval, seconds: 5",
        "trigger: heartbeat",
        "trigger: job-fail, scope: queue",
        "trigger: metric, name: nodes.free, when: '> 1'",
        "trigger: metric, name: queue.sched, when: '== 0'",
        "trigger: metric, name: mean.queue.sched, when: '== 0'",
    ],
)
def test_file_whose_rule_can_fire_first_is_valid(rule: str) -> None:
    assert load_text(WAITS.replace("RULE", rule), REGISTRY, must_begin=True)


@pytest.mark.parametrize(
    "rule",
    [
        "trigger: job-success",
        "trigger: idle",
        "trigger: limit",
        "trigger: resize-granted",
        "trigger: metric, name: count.sim.done, when: '>= 0'",
        "trigger: metric, name: queue.active, when: '== 0'",
        "trigger: metric, name: count.rule.only, when: '>= 0'",
        "trigger: start, enabled: false",
    ],
)
def test_file_without_a_rule_that_can_fire_first_is_an_error(rule: str) -> None:
    text = WAITS.replace("RULE", rule)
    with pytest.raises(FileErrors, match="no rule can start the run"):
        load_text(text, REGISTRY, must_begin=True)
    assert load_text(text, REGISTRY)


@pytest.mark.parametrize("words", [["validate"], ["validate", "--expanded"], RUN])
def test_allow_idle_permits_a_file_without_a_rule_that_can_fire_first(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.yaml").write_text(WAITS.replace("RULE", "trigger: job-success"))
    refused = CliRunner().invoke(main, [*words, "f.yaml"])
    assert (refused.exit_code, "no rule can start the run" in refused.output) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["f.yaml"]
    allowed = CliRunner().invoke(main, [*words, "--allow-idle", "f.yaml"])
    assert allowed.exit_code == 0, allowed.output
    for later in ("status", "replay") if words is RUN else ():  # these do not check it again
        read = CliRunner().invoke(main, [later, "last", "--state", "state"])
        assert read.exit_code == 0, read.output


def test_allow_idle_works_from_python() -> None:
    rules = [{"trigger": "job-fail", "action": {"name": "terminate"}}]
    source = {"jobs": [{"name": "sim", "command": "true"}], "rules": rules}
    with pytest.raises(FileErrors) as caught:
        ensemble_core.load(source)
    assert caught.value.errors[0].code == "nothing-begins"
    with pytest.raises(FileErrors):
        ensemble_core.run(source, keep=False, executor="local")
    assert ensemble_core.load(source, allow_idle=True).rules
    assert ensemble_core.run(source, keep=False, executor="local", allow_idle=True).exit_code == 0


# -- endless loops ---------------------------------------------------------------------------------

LOOP = """\
jobs: [{name: a, command: 'true'}, {name: b, command: 'true'}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
"""
SUBMIT_A = "action: {name: submit, label: a}"
SUBMIT_B = "action: {name: submit, label: b}"
AGAIN = f"  - {{id: again, trigger: job-success, name: a, repetitions: unlimited, {SUBMIT_A}}}\n"
TO_B = f"  - {{id: to-b, trigger: job-done, name: a, repetitions: unlimited, {SUBMIT_B}}}\n"
TO_A = f"  - {{id: to-a, trigger: job-done, name: b, repetitions: unlimited, {SUBMIT_A}}}\n"
WAY_OUT = "add a condition ('when') or repetitions, or set limits.jobs"


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (AGAIN, "rule 'again' submits jobs endlessly: job-success of 'a' submits 'a'; "),
        (
            TO_B + TO_A,
            "rules 'to-b' and 'to-a' submit jobs endlessly: {}, and {}; ".format(
                "job-done of 'a' submits 'b'", "job-done of 'b' submits 'a'"
            ),
        ),
        (
            AGAIN.replace("job-success, name: a", "job-clean"),
            "rule 'again' submits jobs endlessly: job-clean of 'a' submits 'a'; ",
        ),
        (
            AGAIN.replace("repetitions: unlimited", "each: job"),
            "rule 'again' submits jobs endlessly: job-success of 'a' submits 'a'; ",
        ),
        (
            AGAIN.replace("job-success, name: a", "metric, name: count.a.done, when: '>= 1'"),
            "rule 'again' submits jobs endlessly: count.a.done of 'a' submits 'a'; ",
        ),
    ],
    ids=["one rule", "two rules", "any group", "each job", "a count"],
)
def test_endless_loop_causes_a_warning_that_names_its_rules(rules: str, said: str) -> None:
    told = load_text(LOOP + rules, REGISTRY).warnings
    assert [each for each in told if "endless" in each] == [said + WAY_OUT]


@pytest.mark.parametrize(
    "rules",
    [
        TO_B,
        AGAIN.replace("repetitions: unlimited", "repetitions: 1000"),
        AGAIN.replace("name: a,", "name: a, when: exit_code == 3,"),
        AGAIN.replace("name: a,", "name: a, backoff: 2,"),
        AGAIN.replace("name: a,", "name: a, enabled: false,"),
        AGAIN.replace("job-success, name: a", "metric, name: count.a.done, when: '>= 5'"),
        AGAIN.replace("job-success, name: a", "metric, name: count.a.active, when: '< 5'"),
        AGAIN + "  - {trigger: job-fail, action: {name: terminate}}\n",
        AGAIN + "  - {trigger: job-fail, action: {name: disable, rules: again}}\n",
        AGAIN + "limits: {jobs: 100}\n",
        AGAIN + "limits: {wall: 1h}\n",
        AGAIN.replace("label: a}", "label: a, rows: t}") + "results: {t: {of: a}}\n",
    ],
)
def test_rules_that_can_end_cause_no_warning(rules: str) -> None:
    assert not [each for each in load_text(LOOP + rules, REGISTRY).warnings if "endless" in each]


# -- programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "file", "hint"),
    [
        ("python3 prog.py", "prog.py", "did you mean {here}/prog.py?"),
        ("python3 -u tools/prog.py 4", "tools/prog.py", "did you mean {here}/tools/prog.py?"),
        ("env A=1 ./ising", "ising", "did you mean {here}/ising?"),
        ("./prog.py", "prog.py", "did you mean {here}/prog.py?"),
    ],
)
def test_program_next_to_the_file_is_suggested(
    command: str, file: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "study" / file
    (tmp_path / "elsewhere").mkdir()
    program.parent.mkdir(parents=True)
    program.touch()
    program.chmod(0o755)
    study = tmp_path / "study" / "study.yaml"
    study.write_text(
        f"jobs: [{{name: sim, command: {command}}}]\n"
        "rules: [{trigger: start, action: {name: submit}}]\n"
    )
    monkeypatch.chdir(tmp_path / "elsewhere")
    word = next(word for word in command.split() if word.endswith(program.name))
    said = f"job group 'sim': program {word!r} not found; {hint}"
    assert load(study, REGISTRY).warnings == (said,)
    monkeypatch.chdir(tmp_path / "study")
    assert load(study, REGISTRY).warnings == ()


@pytest.mark.parametrize(
    ("command", "mode", "problem"),
    [
        ("{here}/prog {T}", None, "program '{here}/prog' not found: no file PATH"),
        ("python3 {here}/prog.py", None, "program '{here}/prog.py' not found: no file PATH"),
        ("{here}/prog", 0o644, "program '{here}/prog' is not executable; run chmod +x PATH"),
        ("{here}/prog", 0o755, ""),
        ("python3 {here}/prog.py", 0o644, ""),
        ("cp x {here}/prog", None, ""),  # may be output of the job
        ("{here}/prog{T}", None, ""),
        ("{here}/{group}.py", None, ""),
    ],
)
def test_program_in_here_must_exist_and_be_executable(
    command: str, mode: int | None, problem: str, tmp_path: Path
) -> None:
    program = tmp_path / ("prog.py" if "prog.py" in command else "prog")
    if mode is not None:
        program.touch(mode)
    study = tmp_path / "study.yaml"
    study.write_text(
        f"jobs: [{{name: sim, command: '{command}', parameters: {{T: [1]}}}}]\n"
        "rules: [{trigger: start, action: {name: submit, label: sim}}]\n"
        "results: {t: {of: sim, by: [T]}}\n"
    )
    said = f"job group 'sim': {problem}".replace("PATH", str(program))
    assert load(study, REGISTRY).warnings == ((said,) if problem else ())


def test_program_for_another_machine_may_be_missing(tmp_path: Path) -> None:
    members = replace(REGISTRY.executors["local"], name="members", members=True)
    plugin = LoadedPlugin(
        name="mine", distribution="mine", version="1", module="m", records={"executor": (members,)}
    )
    registry = Registry([*REGISTRY.plugins, plugin])
    study = tmp_path / "study.yaml"
    text = (
        "jobs: [{name: sim, command: '{here}/prog'}]\n"
        "rules: [{trigger: start, action: {name: submit}}]\n"
    )
    study.write_text(text)
    assert len(load(study, registry).warnings) == 1
    assert load(study, registry, executor=members).warnings == ()
    study.write_text(text.replace("prog'", "prog', executor: left"))
    assert load(study, registry).warnings == ()


def test_program_in_the_jobs_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(
        "jobs: [{name: sim, command: python3 prog.py, workdir: '{here}/runs/{T}',"
        " parameters: {T: [1, 2]}}]\n"
        "rules: [{trigger: start, action: {name: submit}}]\n"
    )
    (tmp_path / "prog.py").touch()
    monkeypatch.chdir(tmp_path.parent)
    assert [each for each in load(study, REGISTRY).warnings if "{here}/prog.py" in each]
    (tmp_path / "runs" / "1").mkdir(parents=True)
    (tmp_path / "runs" / "1" / "prog.py").touch()
    assert load(study, REGISTRY).warnings == ()
