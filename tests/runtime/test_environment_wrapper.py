"""``within``: the environments in which commands start."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ensemble_core import EnvironmentPlugin, Job, JobGroup
from ensemble_core.cli.main import main
from ensemble_core.errors import EnsembleError, PluginError
from ensemble_core.model.causes import ENVIRONMENT_FAILED
from ensemble_core.model.events import JobEvent
from ensemble_core.model.identity import Source, identity_of, parts_of
from ensemble_core.plugin.record_validation import check_record
from ensemble_core.runtime.environment_wrapper import Environments, wrapped

#: Two environments: ``tool`` appends to a variable, ``shelf`` does so as well.
PLUGIN = f"""
import shlex
from ensemble_core import EnsembleError, EnvironmentPlugin, ExecutorPlugin, hookimpl

TEXT = {{"type": "string", "minLength": 1}}

def check(options, local):
    if options["tool"] == "nowhere":
        raise EnsembleError(f"there is no tool 'nowhere' ({{local=}})", hint="build it")

def wrap(name):
    def wrapped(job, options):
        script = f'''[ {{shlex.quote(options[name])}} != broken ] || {{{{
          echo "the tool is broken" >&2; exit {ENVIRONMENT_FAILED}; }}}}
        TOOLS="$TOOLS {{options[name]}}{{options.get("level", "")}}"; export TOOLS; exec "$@"'''
        return ["sh", "-c", script, "sh", *job.command]
    return wrapped

@hookimpl
def ensemble_executors():
    why = {{"pods": "pods have their own file systems", "queue": ""}}
    for name in why:
        yield ExecutorPlugin(name=name, summary="x", build=lambda options: None, unseen=why[name])

@hookimpl
def ensemble_environments():
    for name in ("tool", "shelf"):
        yield EnvironmentPlugin(
            name=name, summary="x", wrap=wrap(name), check=check if name == "tool" else None,
            options={{"type": "object", "required": [name], "properties": {{
                name: TEXT, "level": {{"type": "integer", "default": 3}}}}}},
        )
"""
RULES = "rules: [{trigger: start, action: {name: submit, label: a}}]\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plug.py").write_text(PLUGIN)
    return tmp_path


def call(command: str, *words: object) -> Result:
    return CliRunner().invoke(main, [command, "--plugin", "plug.py", *map(str, words)])


def run(group: str, tag: str, *words: object) -> Result:
    Path("study.yaml").write_text(f"jobs:\n- {group}\n{RULES}")
    return call("run", "study.yaml", "--state", "state", "--tag", tag, *words)


def test_a_command_starts_in_its_environments_the_outermost_first(folder: Path) -> None:
    group = (
        '{name: a, command: [sh, -c, \'echo "$TOOLS;$1" > got-{v}\', sh, "two words $HOME \'q"], '
        "within: [{shelf: s}, {tool: 'x{v}', level: 5}], parameters: {v: [1, 2]}}"
    )
    done = run(group, "first")
    assert done.exit_code == 0, done.output
    assert Path("got-1").read_text() == " s3 x15;two words $HOME 'q\n"
    assert Path("got-2").read_text() == " s3 x25;two words $HOME 'q\n"
    # What is shown and kept is the command of the file; a dry run shows what the queue gets.
    assert 'exec "' not in done.output
    dry = call("run", "study.yaml", "--dry-run").output
    assert dry.index("TOOLS s3") < dry.index("TOOLS x15") < dry.index("got-1")
    assert CliRunner().invoke(main, ["replay", "state/runs/first"]).exit_code == 0
    # Other environments are other jobs, for --reuse.
    again = run(group, "again", "--reuse", "first")
    assert " => trigger start\n   submit" not in again.output, again.output
    changed = run(group.replace("level: 5", "level: 6"), "other", "--reuse", "first")
    assert Path("got-1").read_text() == " s3 x16;two words $HOME 'q\n", changed.output


def test_an_environment_that_fails_is_the_cause_with_the_words_of_its_shell(folder: Path) -> None:
    Path("study.yaml").write_text(
        "jobs:\n"
        "- {name: a, command: touch never, within: {tool: broken}, "
        'retry: {times: 1, when: cause == "environment"}}\n'
        f"- {{name: b, command: sh -c 'exit {ENVIRONMENT_FAILED}'}}\n"
        "rules: [{trigger: start, action: [{name: submit, label: a}, {name: submit, label: b}]}]\n"
    )
    done = call("run", "study.yaml", "--state", "state", "--tag", "t")
    assert done.exit_code == 1
    assert "failed a.0: environment: exit code 122: the tool is broken" in done.output
    assert not Path("never").exists()
    jobs = CliRunner().invoke(main, ["jobs", "state/runs/t", "--json"])
    causes = {each["group"]: each["cause"] for each in json.loads(jobs.stdout)}
    # A program may use this exit code as well.
    assert causes == {"a": "environment", "b": "exit"}


def test_a_resumed_controller_knows_which_jobs_have_environments() -> None:
    job = Job(id="a.0", group="a", index=0, command=("x",), within=({"tool": "y"},), requeued=1)
    environments = Environments({})
    environments.learn(job)
    ended = JobEvent(1.0, "a.0~1", "finish", {"status": ENVIRONMENT_FAILED << 8})
    assert environments.explained([ended])[0].context["cause"] == "environment"  # type: ignore[union-attr]
    environments.explained([JobEvent(2.0, "a.0~1", "clean", {})])
    assert not environments


@pytest.mark.parametrize(
    ("within", "what", "hint"),
    [
        ("{tol: x}", "2:42: there is no environment 'tol'", "did you mean 'tool'?"),
        ("{apptaine: x.sif}", "there is no environment 'apptaine'", ""),
        ("{tool: x, shelf: y}", "has several environments: tool and shelf", "[{tool: …}, {shelf:"),
        ("{tool: x, levl: 1}", "2:51: unknown key 'levl'", "did you mean 'level'?"),
        ("[{tool: x}, {tool: y, level: high}]", "'level' is the string 'high', expected", ""),
        ("{}", "'within' is empty", ""),
        ("tool", "'within' is the string 'tool', expected", ""),
        ("{tool: ''}", "2:48: 'tool' is empty", ""),
        ("{tool: nowhere}", "2:48: there is no tool 'nowhere' (local=True)", "check: false"),
        ("{tool: '{size}'}", "2:49: unknown placeholder {size}", "add size to 'parameters'"),
        ('{tool: "a\\0b"}', "a NUL character", ""),
    ],
)
def test_a_wrong_environment_is_one_error_before_anything_is_submitted(
    folder: Path, within: str, what: str, hint: str
) -> None:
    done = run(f"{{name: a, command: touch ran, within: {within}}}", "t")
    assert done.exit_code == 2
    assert what in done.output, done.output
    assert hint in done.output, done.output
    assert len(re.findall(r"^study.yaml:", done.output, re.M)) == 1, done.output
    assert not Path("ran").exists()


def test_environments_that_an_executor_cannot_have_are_rejected(folder: Path) -> None:
    group = "{{name: a, command: x, {}}}"
    for fields, executor, code, what in [
        ("within: {tool: x}", "pods", 2, "with the executor pods: pods have their own file sys"),
        ("within: []", "pods", 0, "valid"),
        ("within: {tool: nowhere}", "queue", 2, "there is no tool 'nowhere' (local=False)"),
        ("within: {tool: nowhere, check: false}", "queue", 0, "valid"),
        ("within: {tool: '{T}'}, parameters: {T: [x, nowhere]}", "queue", 2, "2:40: there is no"),
    ]:
        Path("study.yaml").write_text(f"jobs:\n- {group.format(fields)}\n{RULES}")
        done = call("validate", "study.yaml", "--executor", executor)
        assert (done.exit_code, what in done.output) == (code, True), done.output
    # Without an executor, the file may be meant for another machine.
    Path("study.yaml").write_text(f"jobs:\n- {group.format('within: {tool: nowhere}')}\n{RULES}")
    done = call("validate", "study.yaml")
    assert done.exit_code == 0
    assert "warning: study.yaml:2:40: there is no tool" in done.output


def test_an_environment_that_only_the_nodes_have_is_not_checked(folder: Path) -> None:
    done = run("{name: a, command: touch ran, within: {tool: nowhere, check: false}}", "t")
    assert done.exit_code == 0, done.output
    assert Path("ran").exists()


def test_a_profile_sets_environments_that_a_file_replaces_or_removes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = folder / "config" / "ensemble" / "config.yaml"
    config.parent.mkdir(parents=True, mode=0o755)
    config.write_text("profiles: {lab: {jobs: {within: {shelf: lab, level: 1}}}}\n")
    config.chmod(0o644)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    for number, (own, tools) in enumerate(
        [("", " lab1"), ("within: {tool: x}", " x3"), ("within: null", "")]
    ):
        group = f"{{name: a, command: [sh, -c, 'echo \"$TOOLS\" > got'], {own}}}"
        done = run(group, f"t{number}", "--profile", "lab")
        assert done.exit_code == 0, done.output
        assert Path("got").read_text() == f"{tools}\n"
    config.write_text("profiles: {lab: {jobs: {within: [{tool: nowhere}]}}}\n")
    done = run("{name: a, command: touch ran}", "wrong", "--profile", "lab")
    assert done.exit_code == 2
    assert f"{config}:1:33: there is no tool" in done.output
    shown = call("validate", "study.yaml", "--profile", "lab", "--resolved")
    assert "jobs.a.within" in shown.output or shown.exit_code == 2
    # 'status' says which profile the run had.
    status = CliRunner().invoke(main, ["status", "state/runs/t0"])
    assert " profile     lab\n" in status.output
    status = CliRunner().invoke(main, ["status", "state/runs/t0", "--json"])
    assert json.loads(status.stdout)["profile"] == "lab"


def test_a_rule_changes_the_environments_of_a_group(folder: Path) -> None:
    Path("study.yaml").write_text(
        "jobs: [{name: a, command: [sh, -c, 'echo \"$TOOLS\" > got-{index}'], within: {tool: x}}]\n"
        "rules:\n- {trigger: start, action: [\n"
        "    {name: submit, label: a, with: {within: [{shelf: y}, {tool: z}]}},\n"
        "    {name: submit, label: a, with: {within: null}}]}\n"
    )
    done = call("run", "study.yaml", "--state", "state")
    assert done.exit_code == 0, done.output
    assert (Path("got-0").read_text(), Path("got-1").read_text()) == (" y3 z3\n", "\n")


def test_the_environments_are_part_of_a_jobs_identity() -> None:
    def identity(**fields: object) -> str:
        group = JobGroup(name="a", command=("x",), **fields)  # type: ignore[arg-type]
        return identity_of(parts_of(next(group.jobs(0)), Source.of(group).parts, {}))

    plain = identity()
    assert plain == identity(here="/other", cwd="/elsewhere")
    found = {identity(within=({"tool": value},)) for value in ("{here}/a", "b", "c")}
    assert len({plain, *found}) == 4
    assert identity(within=({"tool": "{here}/a"},), here="/other") in found


def test_a_faulty_environment_ends_the_job_and_not_the_run() -> None:
    job = Job(id="a.0", group="a", index=0, command=("x",), within=({"tool": "y"},))
    for wrap in (lambda job, options: 1 / 0, lambda job, options: [], lambda job, options: None):
        with pytest.raises(EnsembleError, match="'tool'"):
            wrapped(job, {"tool": wrap})  # type: ignore[dict-item]
    with pytest.raises(EnsembleError, match="there is no environment 'tool'"):
        wrapped(job, {})


def test_a_record_without_the_key_of_its_environment_is_rejected() -> None:
    record = EnvironmentPlugin(
        name="x", summary="x", wrap=lambda job, options: [], options={"properties": {"y": {}}}
    )
    with pytest.raises(PluginError, match="does not define 'x'"):
        check_record(record)
