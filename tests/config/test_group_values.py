"""Values of a job group on their way to a queue: changes, placeholders, numbers and braces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from ensemble_testing import FakeExecutor, Story

from ensemble_core import ExecutorPlugin, FileErrors
from ensemble_core.config import load_text
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.decisions import Log, Submit
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import JobEvent
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.registry import LoadedPlugin, Registry

OPTIONS = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "queue": {"type": "string", "minLength": 1},
        "mem": {"type": ["string", "integer"]},
        "nice": {"type": "integer", "minimum": 0},
        "whole": {"type": "boolean"},
        "launch": {"enum": ["auto", "none"]},
        "extra": {
            "type": "array",
            "items": {
                "type": "string",
                "pattern": "^--[a-z]",
                "not": {"pattern": "^--comment", "description": "the run sets it"},
            },
        },
        "shell": {"type": "object"},
    },
}


def registry() -> Registry:
    queue = ExecutorPlugin(
        name="q", summary="a queue", build=lambda options: FakeExecutor(), job_options=OPTIONS
    )
    plugin = LoadedPlugin(
        name="q", distribution="q", version="1", module="q", records={"executor": (queue,)}
    )
    return Registry([*discover().plugins, plugin])


GROUP = """
jobs:
  - name: sim
    command: "run {n} {m}"
    parameters: {n: [2, 4], m: 1}
    environment: {A: "1", B: "{m}"}
    options: {q: {queue: short, mem: 100M, nice: 7, shell: {x: {y: 1}}}}
"""
FAIL = "{trigger: job-fail, name: sim, each: job, action: %s}"


def ensemble(group: str, *rules: str) -> Ensemble:
    begin = "{trigger: start, action: {name: submit, label: sim}}"
    text = group + "rules:\n" + "".join(f"  - {rule}\n" for rule in (begin, *rules))
    return load_text(text, registry(), file="e.yaml").begun("story", "/story")


def story(group: str, *rules: str) -> Story:
    told = Story(ensemble(group, *rules))
    told.start()
    return told


def submitted(decisions: Sequence[object]) -> list[Job]:
    return [job for one in decisions if isinstance(one, Submit) for job in one.jobs]


def errors(decisions: Sequence[object]) -> list[str]:
    return [one.message for one in decisions if isinstance(one, Log) and one.level == "error"]


def refused(group: str, *rules: str) -> list[str]:
    with pytest.raises(FileErrors) as raised:
        ensemble(group, *rules)
    return [f"{error.where}: {error.what}" for error in raised.value.errors]


def group(fields: str) -> str:
    return f"jobs:\n  - {{name: sim, {fields}}}\n"


def first_jobs(fields: str) -> list[Job]:
    return submitted(story(group(fields)).decisions)


# -- changes are merged ----------------------------------------------------------------------------

MEMORY = "{options: {q: {mem: 200M, nice: null}}, environment: {B: null, C: '3'}}"
MERGED: Mapping[str, Any] = {"queue": "short", "mem": "200M", "shell": {"x": {"y": 1}}}


@pytest.mark.parametrize("how", ["retry", "action", "submit", "vary", "set"])
def test_changes_of_mappings_are_merged_and_null_removes_a_key(how: str) -> None:
    text = GROUP
    rules: tuple[str, ...] = ()
    if how == "retry":
        text += f"    retry: {{times: 1, with: {MEMORY}}}\n"
    elif how == "action":
        rules = (FAIL % f"{{name: retry, with: {MEMORY}}}",)
    elif how == "vary":
        rules = (FAIL % f"{{name: vary, parameters: {{n: 5}}, with: {MEMORY}}}",)
    elif how == "submit":
        rules = (FAIL % f"{{name: submit, label: sim, with: {MEMORY}}}",)
    else:
        rules = (
            FAIL % f"[{{name: set, label: sim, with: {MEMORY}}}, {{name: submit, label: sim}}]",
        )
    told = story(text, *rules)
    job = submitted(told.play("sim.0", status=256))[0]
    assert job.options == {"q": MERGED}
    assert job.environment == {"A": "1", "C": "3"}
    assert "m" in job.parameters


def test_parameters_of_a_submit_are_merged_with_those_of_the_group() -> None:
    told = story(
        GROUP,
        FAIL % "{name: submit, label: sim, with: {parameters: {n: 9}}}",
    )
    assert [job.parameters for job in submitted(told.play("sim.0", status=256))] == [
        {"n": 9, "m": 1}
    ]


def test_retries_add_to_the_changes_of_earlier_retries() -> None:
    told = story(
        GROUP + "    retry: {times: 2, with: {options: {q: {shell: {x: {z: '= attempt'}}}}}}\n"
    )
    told.play("sim.0", status=256)
    (job,) = submitted(told.play("sim.0-1", status=256))
    assert job.options["q"]["shell"] == {"x": {"y": 1, "z": 1}}
    assert job.options["q"]["queue"] == "short"


def test_null_resets_a_field_and_a_whole_mapping() -> None:
    change = "{options: null, environment: null, workdir: null, duration: null, tasks: null}"
    told = story(
        GROUP + "    workdir: w\n    duration: 60\n    tasks: 3\n",
        FAIL % f"{{name: retry, with: {change}}}",
    )
    (job,) = submitted(told.play("sim.0", status=256))
    assert (job.options, job.environment) == ({}, {})
    assert (job.workdir, job.duration, job.tasks) == (None, 0.0, 1)


def test_null_for_an_observer_that_the_group_lacks_is_an_error() -> None:
    (error,) = refused(
        GROUP,
        FAIL % "{name: retry, with: {observe: {json-lines: null}}}",
    )
    assert "'sim' has no observer 'json-lines'" in error


def test_observers_are_merged() -> None:
    told = story(
        GROUP + "    observe: {json-lines: {fields: [E], path: a.out}, key-value: {fields: [F]}}\n",
        FAIL % "{name: retry, with: {observe: {json-lines: {path: b.out}, key-value: null}}}",
    )
    (job,) = submitted(told.play("sim.0", status=256))
    assert [*job.observe] == ["json-lines"]
    assert job.observe["json-lines"]["fields"] == ["E"]
    assert job.observe["json-lines"]["path"] == "b.out"


# -- numbers become text ---------------------------------------------------------------------------


def test_whole_floats_are_integers_in_all_texts() -> None:
    fields = """command: 'run {x} {x:>4}', parameters: {x: [2.0, 1.0e16, 1.0e22, -0.0, 0.5]},
    workdir: 'T{x}', environment: {X: '{x}'}, stdout: '{x}.out',
    options: {q: {mem: '{x}M', shell: {a: 3.0, b: '{x}'}}}"""
    jobs = first_jobs(fields)
    assert [job.environment["X"] for job in jobs] == ["2", "10000000000000000", "1e+22", "0", "0.5"]
    assert jobs[0].command == ("run", "2", "   2")
    assert (jobs[0].workdir, jobs[0].stdout) == ("T2", "2.out")
    assert repr(jobs[0].options["q"]) == "{'mem': '2M', 'shell': {'a': 3, 'b': 2}}"


def test_memory_that_grows_is_a_whole_number() -> None:
    told = story(
        GROUP + "    retry: {times: 3, with: {options: {q: {mem: '= 300 * 2 ** (attempt + 1)'}}}}\n"
    )
    (first,) = submitted(told.play("sim.0", status=256))
    (second,) = submitted(told.play("sim.0-1", status=256))
    assert repr([job.options["q"]["mem"] for job in (first, second)]) == "[600, 1200]"


@pytest.mark.parametrize(
    "action",
    [
        "{name: retry, with: %s}",
        "{name: submit, label: sim, with: %s}",
        "{name: set, label: sim, with: %s}",
    ],
)
def test_the_journal_has_whole_numbers_as_integers(action: str) -> None:
    change = "{tasks: '= 2 ** 1.0', options: {q: {mem: '= 300 * 2 ** 1.0', shell: {a: '{job.f}'}}}}"
    told = story(GROUP.replace("m: 1}", "m: 1, f: 3.0}"), FAIL % (action % change))
    text = "".join(each.to_json() for each in told.play("sim.0", status=256))
    assert '"mem":600' in text
    assert '"a":3' in text
    assert ".0" not in text.replace("sim.0", "").replace('"f":3.0', "")


def test_expressions_are_allowed_for_options_of_any_type() -> None:
    change = """{nice: '= 50 * (attempt + 1)', whole: '= "true" if attempt >= 0 else "false"',
      queue: '= 3', launch: '= "none"', extra: ['= "--a=" if m == 0 else "--b"', '--c={job.n}']}"""
    told = story(GROUP + f"    retry: {{times: 1, with: {{options: {{q: {change}}}}}}}\n")
    (job,) = submitted(told.play("sim.0", status=256))
    wanted = {"nice": 50, "whole": True, "queue": "3", "launch": "none", "extra": ["--b", "--c=2"]}
    assert {name: job.options["q"][name] for name in wanted} == wanted


def test_a_condition_is_a_value_of_an_option_that_is_true_or_false() -> None:
    """Anywhere else, and for an option of another type, it is an error."""
    retry = "    retry: {times: 1, with: {options: {q: {%s}}}}\n"
    for text, value in {"m == 1 and n > 1": True, "not m": False, "isnan(m)": False}.items():
        told = story(GROUP + retry % f"whole: '= {text}'")
        (job,) = submitted(told.play("sim.0", status=256))
        assert job.options["q"]["whole"] is value
    told = story(GROUP + retry % "nice: '= m == 1'")
    assert submitted(told.play("sim.0", status=256)) == []
    assert "'nice' is true (a boolean)" in errors(told.decisions)[0]
    assert refused(GROUP + "    retry: {times: 1, with: {tasks: '= m == 1'}}\n") == [
        "e.yaml:8:37: 'm == 1' is a condition, expected a number"
    ]


def test_a_computed_option_that_does_not_fit_is_an_error_with_its_value() -> None:
    told = story(
        GROUP,
        FAIL % "{name: retry, with: {options: {q: {nice: '= 0 - n'}}}}",
    )
    decisions = told.play("sim.0", status=256)
    assert submitted(decisions) == []
    assert "'nice' is -2, it must be at least 0" in errors(decisions)[0]


# -- placeholders ----------------------------------------------------------------------------------


def test_placeholders_are_filled_in_everywhere_in_options() -> None:
    fields = """command: run, parameters: {n: [5], s: [a]}, replicas: 1, options: {q: {mem: '{n}G',
      nice: '{n}', queue: 'q{n}', extra: ['--x={s}-{index}'],
      shell: {'{s}': [{deep: '{n}'}], '{{s}}': '{{n}}'}}}"""
    (job,) = first_jobs(fields)
    assert job.options["q"] == {
        "mem": "5G", "nice": 5, "queue": "q5", "extra": ["--x=a-0"],
        "shell": {"a": [{"deep": 5}], "{s}": "{n}"},
    }  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        "count: 2, command: x, options: {q: {extra: ['--comment=c-{index}']}}",
        "command: 'x {m}', parameters: {m: 1}, options: {q: {extra: ['--comment={m}-{run}']}}",
        "command: x, parameters: {f: --comment=x}, options: {q: {extra: ['{f}']}}",
    ],
)
def test_an_option_that_a_queue_forbids_is_found_behind_placeholders(fields: str) -> None:
    (error,) = refused(group(fields))
    assert "options.q.extra.0 is '--comment=" in error
    assert error.endswith(": it is not allowed")


@pytest.mark.parametrize(
    ("fields", "stays"),
    [
        ("command: 'x {job.host}'", "{job.host}"),
        ("command: x, avoid: ['{job.host}']", "{job.host}"),
        ("command: x, workdir: 'w/{job.id}'", "{job.id}"),
        ("command: x, options: {q: {extra: ['--x={job.outputs[0]}']}}", "{job.outputs[0]}"),
        ("command: 'x {{job.host}} ${job.host} {job}'", ""),
        ("command: x, retry: {times: 1, with: {avoid: '{job.host}'}}", ""),
    ],
)
def test_a_field_of_an_events_job_in_a_group_is_a_warning(fields: str, stays: str) -> None:
    if "{job}" in fields:
        fields += ", parameters: {job: 1}"
    found = [text for text in ensemble(group(fields)).warnings if "only an event" in text]
    assert [f"'sim': {stays} stays as it is" in text for text in found] == [True] * bool(stays)


def test_a_snapshot_has_options_with_placeholders_and_their_types() -> None:
    told = story(
        GROUP.replace("nice: 7", "nice: '{n}', whole: '{m}'"),
        FAIL % "{name: submit, label: sim, with: {options: {q: {queue: '{n}'}}}}",
    )
    restored = load(dump(told.engine), told.ensemble)
    assert restored is not None
    told.begin("sim.0")
    event = JobEvent(2000.0, "sim.0", "finish", context={"status": 256})
    for engine in (restored, told.engine):
        if engine is restored:
            engine.handle(JobEvent(1999.0, "sim.0", "start"))
        found = [job.options["q"] for job in submitted(engine.handle(event))]
        assert [(each["nice"], each["whole"], each["queue"]) for each in found] == [
            (2, True, "2"),
            (4, True, "4"),
        ]


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ("mem: '«{nn}G'", "{nn}"),
        ("extra: ['--x=«{nn}']", "{nn}"),
        ("shell: {a: [{b: '«{nn:.2f}'}]}", "{nn:.2f}"),
    ],
)
def test_unknown_placeholders_in_options_are_reported_at_their_position(
    options: str, place: str
) -> None:
    line = f"  - {{name: sim, command: 'x {{n}}', parameters: {{n: 1}}, options: {{q: {{{options}}}}}}}"
    (error,) = refused(f"jobs:\n{line.replace('«', '')}\n")
    where = f"e.yaml:2:{line.index('«') + 1}"
    assert error == f"{where}: unknown placeholder {place}: no parameter has this name"


@pytest.mark.parametrize(
    "fields", ["inputs: ['{nn}.dat'],", "observe: {json-lines: {path: '{nn}.out'}},"]
)
def test_unknown_placeholders_in_names_of_files_are_reported(fields: str) -> None:
    (error,) = refused(group(f"{fields} command: x"))
    assert "unknown placeholder {nn}" in error


@pytest.mark.parametrize("text", ["{temp:.2f}", "{indx:03d}"])
def test_a_misspelt_placeholder_with_a_format_is_reported(text: str) -> None:
    (error,) = refused(
        group(f"command: 'x {text} {{temperature}}', parameters: {{temperature: 1}}")
    )
    assert f"unknown placeholder {text}" in error


def test_a_value_that_does_not_fit_an_option_is_reported_with_its_parameters() -> None:
    (error,) = refused(
        group("command: 'x {n}', parameters: {n: [1, a]}, options: {q: {nice: '{n}'}}")
    )
    assert "options.q.nice is 'a' with n=a" in error


# -- braces ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{n}", "5"),
        ("{{n}}", "{n}"),
        ("{{{n}}}", "{5}"),
        ("{{{{n}}}}", "{{n}}"),
        ('{{"m": 0}}', '{"m": 0}'),
        ('{{"n": {n}}}', '{"n": 5}'),
        ('{"n": {n}}', '{"n": 5}'),
        ('{"a": {"b": {n}}}', '{"a": {"b": 5}}'),
        ("{}", "{}"),
        ("{", "{"),
        ("}} {n}", "}} 5"),
        ("${n} ${{n}} ${x:-{n}}", "${n} ${n} ${x:-5}"),
        ("{{print {n}}}", "{print 5}"),
    ],
)
def test_all_braces_follow_one_rule(text: str, filled: str) -> None:
    fields = f"command: ['x', {text!r}], parameters: {{n: 5}}, environment: {{E: {text!r}}}, "
    fields += f"options: {{q: {{queue: {text!r}}}}}, stdout: '{{n}}'"
    (job,) = first_jobs(fields)
    assert (job.command[1], job.environment["E"], job.options["q"]["queue"]) == (filled,) * 3


def test_braces_around_several_words_of_a_command_cause_a_warning() -> None:
    for command in ('x {{"m": 0}} {n}', "x { n } {n}", "x {a b {n}}"):
        found = ensemble(group(f"command: {command!r}, parameters: {{n: 5}}"))
        assert [w for w in found.warnings if "because it is not quoted" in w], command
    for command in ("x '{a b}' {n}", "x {{n}} {n}", "x { {n}", "x } {n} {"):
        found = ensemble(group(f"command: {command!r}, parameters: {{n: 5}}"))
        assert not [w for w in found.warnings if "because it is not quoted" in w], command


def test_an_expression_in_a_group_is_no_expression_and_causes_a_warning() -> None:
    fields = "command: 'x {n}', parameters: {n: 5}, options: {q: {queue: '= 2 * n'}}"
    assert [w for w in ensemble(group(fields)).warnings if "'= 2 * n' stays as it is" in w]
    fields = "command: 'x {n}', parameters: {n: 5}, retry: {times: 1, with: {options: {q: {queue: '= 2 * n'}}}}"
    assert not [w for w in ensemble(group(fields)).warnings if "stays as it is" in w]


@pytest.mark.parametrize("text", ["{n.real}", "{n[0]}", "{n[0].x:.2f}"])
def test_a_part_of_a_parameter_is_no_placeholder(text: str) -> None:
    fields = f"command: ['x', {text!r}, '{{n}}', '{{nodes[0]}} {{m.x}}'], parameters: {{n: 5}}"
    (error,) = refused(group(fields))
    assert f"{text} is no placeholder" in error


def test_braces_of_another_programs_template_cause_a_warning() -> None:
    found = ensemble(group("command: 'docker ps --format {{{{.ID}}}} {{.Names}}'"))
    assert [w for w in found.warnings if "becomes {.Names}" in w]
    assert not [w for w in found.warnings if "ID" in w]


def test_a_name_with_one_brace_is_reported() -> None:
    for text in ("out/{n", "out/n}", "{n/{index}", "{n:03d/{index}"):
        fields = f"command: 'x {{n}}', parameters: {{n: [1]}}, workdir: '{text}'"
        assert "lacks a brace" in "".join(refused(group(fields)))
    found = ensemble(group("command: 'x {n} --to={n', parameters: {n: [1]}")).warnings
    assert [w for w in found if w.startswith("job group 'sim': '{n' in '--to={n' stays as it is")]
    assert not ensemble(group("command: 'x {n} {m -{x n-', parameters: {n: [1]}")).warnings


SWEPT = "command: 'x {n}', parameters: {n: [1]}, options: {q: "

# -- what no shell expands -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ("command: 'ls $HOME'", "'$HOME' stays as it is"),
        ("command: [ls, '${HOME}/x']", "'${HOME}/x' stays as it is"),
        ("command: 'ls ~/x'", "'~/x' stays as it is"),
        ("command: 'cp --to=~/x a'", "'--to=~/x' stays as it is"),
        ("command: 'cat {here}/*.dat'", "'{here}/*.dat' names no files"),
        ("command: 'echo E=1; ls a'", "'E=1;' is an ordinary argument"),
        ('command: "./prepare\\n./a.out\\n"', "'./a.out' is not a second command"),
        ("command: 'cd case'", "'cd' is no program"),
        ("command: [./prepare, '&&', ./a.out]", "'&&' is an ordinary argument"),
        ("command: 'OMP_NUM_THREADS=1 ./a.out'", "'OMP_NUM_THREADS=1' is no program"),
        ("command: './a.out >out.dat'", "'>out.dat' is an ordinary argument"),
        ("command: './a.out 2>/dev/null'", "'2>/dev/null' is an ordinary argument"),
        ("command: './a.out <in.dat'", "'<in.dat' is an ordinary argument"),
        ("command: './a.out | tee log'", "'|' is an ordinary argument"),
        ("command: 'make&&./a.out'", "'make&&./a.out' is an ordinary argument"),
        ("command: 'srun a.out &> log'", "'&>' is an ordinary argument"),
        ("command: 'x', environment: {PATH: '{here}/bin:$PATH'}", "in PATH stays as it is"),
        ("command: 'x', workdir: '~/runs/{index}'", "workdir is not expanded"),
        ("command: 'x', stdout: '$SCRATCH/out'", "stdout is not expanded"),
        (SWEPT + "{mem: '${n}G'}}", "'${n}' does not become the value of n"),
        (SWEPT + "{shell: {x: ['--time=$n']}}}", "'$n' does not become the value of n"),
        (SWEPT + "{mem: '{{n}}G'}}", "'{{n}}' does not become the value of n"),
    ],
)
def test_a_text_that_only_a_shell_expands_causes_one_warning(fields: str, part: str) -> None:
    found = [w for w in ensemble(group(fields)).warnings if "expanded" in w or "shell" in w]
    assert len(found) == 1
    assert part in found[0]


@pytest.mark.parametrize(
    "command",
    [
        "sh -c 'ls $HOME/*.dat ~/'",
        "srun bash -lc 'ls $HOME'",
        "awk '{{print $NF}}' a.dat",
        "find . -name '*.dat'",
        "find . -exec rm a ';'",
        "sh -c 'echo a; ls >b && ls'",
        "a.out 'a;' 'x&&y' -> --min=>3 http://x/?a=1&b=2 <a>",
        "grep '$HOME' x",
        "echo 2 * 3",
        "cat a.dat --like=*.dat",
    ],
)
def test_texts_for_shells_and_patterns_cause_no_warning(command: str) -> None:
    found = ensemble(f'jobs:\n  - {{name: sim, command: "{command}"}}\n').warnings
    assert not [w for w in found if "expanded" in w or "shell" in w]


# -- hints -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "hint"),
    [("[64, 64]", 'quote it: "[64, 64]"'), ("[128]", 'quote it: "[128]"'),
     ("[a]", """quote it: '["a"]'"""), ("{a: 1}", """quote it: '{"a": 1}'""")],
)  # fmt: skip
def test_the_hint_for_a_list_as_a_value_quotes_it(values: str, hint: str) -> None:
    with pytest.raises(FileErrors) as raised:
        ensemble(group(f"command: 'x {{n}}', parameters: {{n: [1, {values}]}}"))
    assert raised.value.errors[0].hint == hint


@pytest.mark.parametrize(
    ("table", "name"),
    [("name;energy\na;1\n", "semicolons"), ("name;energy\na;1,5\n", "semicolons"),
     ("name\tenergy\na\t1\n", "tabs"), ("name|energy\na|1\n", "vertical bars"),
     ("name energy\na 1\n", "blanks")],
)  # fmt: skip
def test_the_hint_for_points_names_the_separator(table: str, name: str) -> None:
    with pytest.raises(FileErrors) as raised:
        load_text(
            group("command: 'x {name} {energy}', points: p.csv")
            + "rules: [{trigger: start, action: {name: submit}}]\n",
            registry(),
            attached={"p.csv": table},
        )
    assert f"separated by {name}" in (raised.value.errors[0].hint or "")


def test_the_host_of_an_attempt_is_a_field() -> None:
    retry = (
        "retry: {times: 2, when: host == 'n3', with: {options: {q: {extra: ['--not={job.host}']}}}}"
    )
    told = story(GROUP + f"    {retry}\n", FAIL % "{name: log, message: 'failed on {host}'}")
    told.tell(JobEvent(told.now, "sim.0", "submit"))
    told.tell(JobEvent(told.now, "sim.0", "start", {"host": "n3"}))
    decisions = told.end("sim.0", status=256)
    (job,) = submitted(decisions)
    assert job.options["q"]["extra"] == ["--not=n3"]
    assert [one.message for one in decisions if isinstance(one, Log)] == ["failed on n3"]


# -- measured values -------------------------------------------------------------------------------


def test_results_and_what_comes_from_them_keep_all_digits() -> None:
    values = [-76543.1234567891, -76543.1234567012]
    text = (
        GROUP
        + """    observe: {json-lines: {fields: [E, n]}}
    result: {E: last.E, N: last.n}
  - {name: next, command: "x {E} {N}", parameters: {E: null, N: null}}
results:
  table: {of: sim, columns: {third: E / 3}}
"""
    )
    told = story(
        text,
        "{trigger: job-success, name: sim, repetitions: 9, action: {name: submit, label: next, "
        "with: {parameters: {E: '= last.E', N: '{N}'}}}}",
    )
    for index, value in enumerate(values):
        told.begin(f"sim.{index}")
        told.observe(f"sim.{index}", E=value, n=9007199254740991)
        (job,) = submitted(told.end(f"sim.{index}"))
        assert job.parameters == {"E": value, "N": 9007199254740991}
        assert job.command == ("x", repr(value), "9007199254740991")
    rows = dict(told.engine.tables())["table"]
    assert [row["E"] for row in rows] == values
    assert [row["third"] for row in rows] == [value / 3 for value in values]


def test_what_a_job_requests_is_a_placeholder_and_a_parameter_of_that_name_wins() -> None:
    fields = (
        "command: 'x {nodes} {tasks} {cores_per_task:02d} {gpus_per_task}', workdir: 'w{tasks}'"
    )
    (job,) = first_jobs(f"{fields}, nodes: 2, cores_per_task: 3, gpus_per_task: 1")
    assert (job.command, job.workdir) == (("x", "2", "2", "03", "1"), "w2")
    assert job.fill("{tasks}/{cores_per_task}") == "2/3"
    (error,) = refused(group("command: 'x {core_per_task}'"))
    assert "unknown placeholder {core_per_task}" in error
    (job,) = first_jobs("command: 'x {tasks}', parameters: {tasks: [7]}")
    assert job.command == ("x", "7")


def test_the_time_limit_is_a_placeholder_in_seconds() -> None:
    (job,) = first_jobs("command: 'pw {limit} {limit:06d}', duration: 2h")
    assert job.command == ("pw", "7200", "007200")
    assert job.fill("{limit}") == "7200"
    assert first_jobs("command: 'pw {limit}'")[0].command == ("pw", "0")
    for name in ("duration", "walltime", "time_limit"):
        with pytest.raises(FileErrors) as raised:
            ensemble(group(f"command: 'x {{{name}}}', duration: 2h"))
        assert "did you mean {limit}?" in (raised.value.errors[0].hint or "")


# -- memory ----------------------------------------------------------------------------------------

MEBI = 1 << 20


@pytest.mark.parametrize(
    ("text", "size"),
    [("500M", 500 * MEBI), ("'4 GiB'", 4 << 30), ("1.5gb", 3 << 29), (f"{MEBI}", MEBI)],
)
def test_memory_has_a_unit_or_is_in_bytes(text: str, size: int) -> None:
    (job,) = first_jobs(f"command: 'x {{memory_per_task}}', tasks: 2, memory_per_task: {text}")
    assert (job.memory_per_task, job.memory, job.command[1]) == (size, 2 * size, str(size))
    assert Job.from_dict(job.to_dict()).memory_per_task == size
    assert "memory_per_task" not in first_jobs("command: x")[0].to_dict()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4X", "'4X' is not an amount of memory; write a number with a unit"),
        ("'4096'", 'the amount of memory 4096 has no unit; write "4096M" or "4096G"'),
        ("4096", '4096 means 4096 bytes of memory, which is too little; add a unit: "4096M"'),
        ("1e3", '1000 means 1000 bytes of memory, which is too little; add a unit: "1000M"'),
        ("0", "the amount of memory 0 is out of range; write at least 1M, or remove the key"),
        ("0G", "the amount of memory 0G is out of range"),
        ("-1G", "'-1G' is not an amount of memory"),
        ("9999999999T", "the amount of memory 9999999999T is out of range"),
    ],
)
def test_an_invalid_amount_of_memory_is_reported_once(text: str, words: str) -> None:
    (error,) = refused(group(f"command: x, memory_per_task: {text}"))
    assert error.startswith("e.yaml:2:")
    assert words.partition("; ")[0] in error


def test_memory_grows_at_each_retry_from_that_of_the_failed_attempt() -> None:
    told = story(
        group(
            "command: x, memory_per_task: 1.5M,"
            " retry: {times: 2, with: {memory_per_task: '= 2 * memory_per_task'}}"
        )
    )
    (job,) = submitted(told.decisions)
    sizes = [job.memory_per_task]
    while jobs := submitted(told.play(job.id, status=256)):
        (job,) = jobs
        sizes.append(job.memory_per_task)
    assert sizes == [3 * MEBI // 2, 3 * MEBI, 6 * MEBI]


@pytest.mark.parametrize(
    ("command", "warned"),
    [
        ("gmx mdrun -deffnm md", True),
        ("/opt/gromacs/bin/gmx_d -quiet mdrun -ntomp 1 -s md.tpr", True),
        ("bash -c 'gmx grompp -nt 1 && gmx mdrun; gmx energy -nt 1'", True),
        ("gmx mdrun -nt {cores_per_task} -deffnm md", False),
        ("gmx mdrun -ntmpi 1 -ntomp 4", False),
        ("gmx_mpi mdrun -deffnm md", False),
        ("gmx energy -s mdrun.tpr", False),
    ],
)
def test_gromacs_that_counts_the_machines_cores_is_a_warning(command: str, warned: bool) -> None:
    """On one core of two, GROMACS 2022 was 50 times as slow without ``-nt``."""
    warnings = ensemble(group(f'command: "{command}"')).warnings
    assert any("mdrun -nt {cores_per_task}" in each for each in warnings) == warned


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ("command: mpirun -n 4 sim, tasks: 4", "write tasks: 1 and cores_per_task: 4"),
        ("command: /opt/bin/mpiexec sim, tasks: 2, cores_per_task: 8", "cores_per_task: 16"),
        ("command: mpirun sim, nodes: 2", "on Slurm write options: {slurm: {launch: none}}"),
        ("command: mpirun -n 4 sim, cores_per_task: 4", ""),
        ("command: sim mpirun, tasks: 4", ""),
    ],
)
def test_launcher_that_the_queue_would_start_several_times_is_a_warning(
    fields: str, advice: str
) -> None:
    warnings = [each for each in ensemble(group(fields)).warnings if "leave out" in each]
    assert len(warnings) == bool(advice)
    assert all(each.endswith(advice) for each in warnings)


@pytest.mark.checkout
@pytest.mark.parametrize("options", ["{slurm: {launch: none}}", "{flux: {instance: true}}"])
def test_launcher_that_the_queue_starts_once_is_no_warning(options: str) -> None:
    found = ensemble(group(f"command: mpirun sim, nodes: 2, options: {options}"))
    assert not [each for each in found.warnings if "leave out" in each]
