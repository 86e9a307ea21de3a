"""Typical mistakes in rules, keys and conditions, and their hints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from ensemble_testing import Story

from ensemble_core.config import load, load_text
from ensemble_core.errors import EnsembleError, FileErrors
from ensemble_core.model.decisions import Submit
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.plugin.discovery import discover

REGISTRY = discover()
JOB = "{name: a, command: x, count: 4, observe: {json-lines: {fields: [T, x]}}}"
START = "  - {trigger: start, action: {name: submit, label: a}}\n"


def loaded(rule: str = "", job: str = JOB) -> Ensemble:
    return load_text(f"jobs:\n  - {job}\nrules:\n{START}{rule}\n", REGISTRY)


def error(rule: str = "", job: str = JOB) -> EnsembleError:
    with pytest.raises(EnsembleError) as caught:
        loaded(rule, job)
    found = caught.value
    return found.errors[0] if isinstance(found, FileErrors) else found


def _errors(job: str) -> Sequence[EnsembleError]:
    with pytest.raises(FileErrors) as caught:
        loaded(job=job)
    return caught.value.errors


def test_hint_for_a_fraction_is_the_next_whole_numbers() -> None:
    wrong = error(job="{name: a, command: x, count: 1.5}")
    assert wrong.what == "'count' is the number 1.5, expected a whole number"
    assert wrong.hint == "write 1 or 2"


def when(condition: str) -> str:
    return f"  - {{trigger: observed, name: a, when: '{condition}', action: {{name: terminate}}}}"


@pytest.mark.parametrize(
    ("condition", "right"),
    [
        ("T > 1 && x < 2", "T > 1 and x < 2"),
        ("T > 1 || x < 2", "T > 1 or x < 2"),
        ("T > 1 AND x < 2", "T > 1 and x < 2"),
        ("NOT T > 1 OR x < 2", "not T > 1 or x < 2"),
        ("!(T > 1)", "not (T > 1)"),
        ("T = 1", "T == 1"),
        ("duration > 5m", "duration > 300"),
        ('T = 1 and group = "a && b"', 'T == 1 and group == "a && b"'),
    ],
)
def test_condition_in_another_languages_syntax_gets_a_hint(condition: str, right: str) -> None:
    assert error(when(condition)).hint == f"write {right!r}"


@pytest.mark.parametrize(
    ("rule", "hint"),
    [
        ("  - trigger: job-fail\n    when: > 5\n    action: {name: terminate}", '"> 5"'),
        ("  - trigger: job-fail\n    when: >= 5\n    action: {name: terminate}", '"> 5"'),
        ("  - {trigger: job-fail, when: > 5, action: {name: terminate}}", '"> 5"'),
        (
            "  - trigger: job-fail\n    action:\n      name: log\n      message: {job} failed",
            "quote",
        ),
        ("  - {trigger: job-fail, action: {name: log, message: {job} failed}}", "quote text"),
        ("  - {trigger: job-fail, repetitions: 0, action: {name: terminate}}", "enabled: false"),
        (
            "  - {trigger: idle, when: count.done > 2, action: {name: terminate}}",
            "give the trigger a group, 'name: a', or use metric('count.a.done')",
        ),
        ("  - {trigger: idle, action: terminate}", "write action: {name: terminate}"),
        ("  - {trigger: job-fail, action: {name: scale-up}}", "'grow'"),
        ("  - {trigger: job-fail, action: {name: scale-down}}", "'shrink'"),
        ("  - {trigger: job-fail, repetitions: '3', action: {name: terminate}}", "write 3"),
        (
            "  - {trigger: job-fail, name: a, when: count.aa.done > 1, action: {name: terminate}}",
            "did you mean metric('count.a.done')?",
        ),
        (
            "  - {trigger: job-fail, action: {name: log, message: '{count.aa.don}'}}",
            "did you mean metric('count.a.done')?",
        ),
        (
            "  - {trigger: metric, name: avg.a-duration, action: {name: terminate}}",
            "'mean.a-duration'",
        ),
        (
            "  - {trigger: metric, name: mean.a.duration, action: {name: terminate}}",
            "'mean.a-duration'",
        ),
        (
            (
                "  - trigger: start\n"
                "    action: {name: submit, label: a, with: {parameters: {T: = min(T, 3)}}}"
            ),
            "quote text that contains a comma",
        ),
    ],
)
def test_typical_mistake_in_a_rule_gets_a_hint(rule: str, hint: str) -> None:
    assert hint in (error(rule).hint or "")


@pytest.mark.parametrize(
    ("observe", "hint"),
    [
        ("[key-value]", "write observe: {key-value: {}}"),
        ("key-value", "write observe: {key-value: {}}"),
        ("{json: {}}", "did you mean 'json-lines'?"),
        ("{csv: {}}", "did you mean 'table'?"),
    ],
)
def test_observer_in_another_form_gets_ours_as_a_hint(observe: str, hint: str) -> None:
    assert error(job=f"{{name: a, command: x, observe: {observe}}}").hint == hint


@pytest.mark.parametrize(
    ("key", "right"),
    [
        ("cores", "cores_per_task"),
        ("gpus", "gpus_per_task"),
        ("walltime", "duration"),
        ("matrix", "parameters"),
        ("repetitions", "replicas"),
        ("ncpus", "cores_per_task"),
        ("max_retries", "retry"),
        ("directory", "workdir"),
        ("checkpoint", "warn"),
        ("cleanup", "discard"),
        ("prologue", "within"),
        ("mpi", "tasks"),
    ],
)
def test_key_of_another_program_gets_our_name_as_a_hint(key: str, right: str) -> None:
    assert error(job=f"{{name: a, command: x, {key}: 4}}").hint == f"did you mean {right!r}?"


@pytest.mark.parametrize(
    ("text", "right"),
    [("scratch/", "[scratch/]"), ("'*.tmp'", "['*.tmp']"), ("'a, b'", "['a, b']"), ("''", "['']")]
    + [(text, f"[{text}]") for text in ("'true'", "'123'", "'~'", "'1.5'", "'.inf'")],
)
def test_a_text_instead_of_a_list_is_answered_with_a_list(text: str, right: str) -> None:
    assert error(job=f"{{name: a, command: x, outputs: {text}}}").hint == f"write a list: {right}"


@pytest.mark.checkout
@pytest.mark.parametrize("key", ["module", "conda", "venv", "apptainer", "podman"])
def test_an_environment_as_a_key_is_put_under_within(key: str) -> None:
    assert error(job=f"{{name: a, command: x, {key}: y}}").hint == f"write 'within: {{{key}: …}}'"


@pytest.mark.parametrize(
    ("rule", "right"),
    [
        ("{trigger: job-done, group: a, action: submit}", "name"),
        ("{trigger: start, action: {name: submit, group: a}}", "label"),
        ("{trigger: job-fail, name: a, action: {name: retry, limit: 2}}", "repetitions"),
        ("{trigger: start, if: 1 > 0, action: {name: submit, label: a}}", "when"),
        ("{trigger: idle, action: {name: stop}}", "terminate"),
        ("{trigger: succeeded, action: {name: terminate}}", "job-success"),
        ("{trigger: failed, action: {name: terminate}}", "job-fail"),
        ("{trigger: idle, action: {name: scale-up, size: 2}}", "grow"),
    ],
)
def test_an_everyday_word_in_a_rule_is_answered_with_ours(rule: str, right: str) -> None:
    assert f"did you mean {right!r}?" in (error(f"  - {rule}").hint or "")


@pytest.mark.parametrize(
    ("condition", "warned"),
    [
        ("T > 5 and T < 3", "never"),
        ("T > 5 and x > 1 and 5 >= T", "never"),
        ("5 < T < 5.0", "never"),
        ("T == 3 and T > 3", "never"),
        ("T >= 5 and T <= 5", ""),
        ("T > 5 or T < 3", ""),
        ("T > -3 and T < -1", ""),
        ('group == "a" or "x"', "always"),
        ("T > 3 or 1", "always"),
        ('group in ("a", "b") or T > 1', ""),
    ],
)
def test_constant_condition_causes_a_warning(condition: str, warned: str) -> None:
    (rule,) = [
        f"  - {{trigger: observed, name: a, when: {condition!r}, action: {{name: terminate}}}}"
    ]
    warnings = [text for text in loaded(rule).warnings if " true" in text]
    assert [warned in text for text in warnings] == ([True] if warned else [])


@pytest.mark.parametrize(
    ("job", "condition", "rest", "warned"),
    [
        (JOB, "5", "", True),
        (JOB, "'> 3'", "", False),
        (JOB, "'> 4'", "", True),
        (JOB, "4", "", False),
        (JOB, "8", START, False),
        (JOB, "9", START, True),
        (JOB, "5", "  - {trigger: job-fail, action: {name: submit, label: a, with: {count: 9}}}\n", False),
        (JOB, "5", "  - {trigger: heartbeat, action: {name: set, label: a, with: {count: 9}}}\n", False),
    ],
)  # fmt: skip
def test_unreachable_count_causes_a_warning(
    job: str, condition: str, rest: str, warned: bool
) -> None:
    rule = f"  - {{trigger: metric, name: count.a.success, when: {condition}, action: {{name: terminate}}}}\n"  # fmt: skip
    said = [text for text in loaded(rule + rest, job).warnings if "are ever submitted" in text]
    assert bool(said) == warned


def test_a_job_may_print_more_rows_than_there_are_jobs() -> None:
    rule = "  - {trigger: metric, name: count.a.rows, when: '>= 99', action: {name: terminate}}\n"
    assert not [text for text in loaded(rule).warnings if "are ever submitted" in text]


@pytest.mark.parametrize(
    ("rule", "rest", "written"),
    [
        ("trigger: job-done, name: a, when: count.success == 3", "", "all.count.success"),
        ("trigger: job-done, name: a, when: count.done >= 2 and E > 1", "", "all.count.done"),
        ("trigger: job-success, when: 3 <= count.done", "", "metric('count.GROUP.done')"),
        (
            "trigger: job-done, name: a, when: count.done >= 0.8 * (count.done + count.lost)",
            "",
            "all.count.done and all.count.lost",
        ),
        ("trigger: job-done, name: a, when: count.done == 1", "", ""),
        ("trigger: job-fail, name: a, when: count.failed == 3", "", ""),
        ("trigger: job-done, name: a, when: all.count.done == 3", "", ""),
        ("trigger: job-done, name: a, each: [x], when: count.done == 3", "", ""),
        ("trigger: idle, name: a, when: count.done == 3", "", ""),
        # A job may succeed several times if it is repeated after a success.
        ("trigger: job-done, name: a, when: count.success == 3", "job-success", ""),
        ("trigger: job-done, name: a, when: count.success == 3", "job-fail", "all.count.success"),
    ],
)
def test_a_count_of_one_job_that_is_meant_for_the_group_gets_a_warning(
    rule: str, rest: str, written: str
) -> None:
    job = "{name: a, command: 'x {x}', parameters: {x: [1, 2]}, result: {E: duration}, count: 2}"
    rules = f"  - {{{rule}, action: {{name: terminate}}}}\n"
    if rest:
        rules += f"  - {{trigger: {rest}, name: a, action: {{name: retry, repetitions: 2}}}}\n"
    said = [text for text in loaded(rules, job).warnings if "only the event's job" in text]
    assert [text.rpartition("write ")[2] for text in said] == ([written] if written else [])


def test_missing_program_is_reported_with_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = tmp_path / "start"
    start.mkdir()
    monkeypatch.chdir(start)
    for program in (tmp_path / "ising", start / "post"):
        program.touch()
        program.chmod(0o755)
    file = tmp_path / "f.yaml"

    def warnings(command: str, executor: str | None = None) -> list[str]:
        file.write_text(
            f"jobs:\n  - {{name: a, command: {command}, workdir: runs}}\nrules:\n{START}"
        )
        record = None if executor is None else REGISTRY.executors[executor]
        return [
            text for text in load(file, REGISTRY, executor=record).warnings if "program" in text
        ]

    for command in ("ising", "./ising"):
        assert ["did you mean {here}/ising?" in text for text in warnings(command)] == [True]
    assert ["did you mean {cwd}/post?" in text for text in warnings("./post")] == [True]
    assert warnings("no-such-program-anywhere") == []
    assert len(warnings("no-such-program-anywhere", "local")) == 1
    assert warnings("sh -c true", "local") == []
    assert warnings("'{here}/ising'", "local") == []


def test_submit_without_a_label_submits_every_group() -> None:
    text = "jobs:\n  - {name: a, command: x}\n  - {name: b, command: y, count: 2}\nrules:\n  - {trigger: start, action: {name: submit}}\n"  # fmt: skip
    ensemble = load_text(text, REGISTRY)
    assert [text for text in ensemble.warnings if "submit" in text] == []
    decisions = Story(ensemble).start()
    submits = [one for one in decisions if isinstance(one, Submit)]
    assert [[job.id for job in one.jobs] for one in submits] == [["a.0"], ["b.0", "b.1"]]
    with pytest.raises(FileErrors):
        load_text(text.replace("name: submit", "name: submit, with: {count: 2}"), REGISTRY)


def test_a_retry_with_a_count_is_answered_with_times() -> None:
    found = [
        each.hint
        for each in _errors("{name: a, command: x, retry: {count: 2}}")
        if each.code == "unknown-key"
    ]
    assert found == ["did you mean 'times'?"]


def test_a_retry_on_a_cause_that_does_not_exist_is_rejected() -> None:
    job = "{name: a, command: x, retry: {times: 2, when: 'cause == \"failed\"'}}"
    found = error(job=job)
    assert found.what == "unknown cause 'failed' in 'cause == \"failed\"'"
    assert found.code == "no-such-cause"


def test_thousands_of_unknown_keys_are_explained_once_and_only_the_first_hundred() -> None:
    keys = "".join(f", k{number}: 1" for number in range(4000))
    found = _errors(f"{{name: a, command: x{keys}}}")
    assert len(found) == 100
    assert found[0].what == "unknown key 'k0' in the job group 'a'"
    assert found[-1].what.endswith("(only the first 100 errors are listed)")
