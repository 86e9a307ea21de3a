"""Invalid ensemble files: each error has its place, and all errors are reported at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from marked_places import unmarked

from ensemble_core.config import load, load_text
from ensemble_core.errors import EnsembleError, FileErrors, Location, UsageError
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.executor import Executor
from ensemble_core.plugin.hookspecs import ExecutorPlugin
from ensemble_core.plugin.registry import Registry

JOBS = "jobs:\n  - {name: sleep, command: sleep 1}\n"
START = "rules:\n  - {trigger: start, action: {name: submit, label: sleep}}\n"


@pytest.fixture(scope="module")
def registry() -> Registry:
    return discover()


def errors_of(
    text: str, registry: Registry, overrides: Sequence[str] = ()
) -> tuple[EnsembleError, ...]:
    with pytest.raises(FileErrors) as caught:
        load_text(text, registry, file="f.yaml", overrides=overrides)
    assert caught.value.exit_code == 2
    return caught.value.errors


def the_error(text: str, registry: Registry) -> EnsembleError:
    errors = errors_of(text, registry)
    assert len(errors) == 1, [str(error) for error in errors]
    return errors[0]


def error_at(text: str, registry: Registry) -> EnsembleError:
    """Return the error of this text. It must be the only one, and at the sign «."""
    text, expected = unmarked(text)
    error = the_error(text, registry)
    assert str(error.where) == f"f.yaml:{expected}"
    return error


def job(fields: str) -> str:
    """Return a file whose group also has these fields."""
    return JOBS.replace("}", f", {fields}}}") + START


def place(error: EnsembleError) -> tuple[int, int]:
    assert error.where is not None
    assert error.where.file == "f.yaml"
    return error.where.line, error.where.column


# -- keys and types ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (JOBS + START + "«limts: {jobs: 1}\n", "'limits'"),
        (JOBS + START + "limits: {«job: 1}\n", "'jobs'"),
        (JOBS + START + "logging: {«debgu: true}\n", "'debug'"),
        (job("«nodse: 1"), "'nodes'"),
        (JOBS + START.replace("start", "start, «whn: 3"), "'when'"),
        (JOBS + START.replace("label: sleep", "«lable: sleep, label: sleep"), "'label'"),
        (JOBS + START.replace("label: sleep", "label: sleep, with: {«cuont: 1}"), "'count'"),
    ],
)
def test_unknown_key_is_an_error_with_a_suggestion(
    registry: Registry, text: str, hint: str
) -> None:
    error = error_at(text, registry)

    assert error.code == "unknown-key"
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("count: «two", ["the string 'two'", "a whole number"]),
        ("count: «1.5", ["1.5", "a whole number"]),
        ("nodes: «[1]", ["a list", "a whole number"]),
        ("workdir: «3", ["the number 3", "a string"]),
        ("environment: {A: «yes}", ["yes", "boolean"]),
        ("environment: «[A]", ["a list", "a mapping"]),
        ("observe: {json-lines: «3}", ["the number 3", "a mapping"]),
        ("parameters: {T: «yes}", ["yes", "a list"]),
        ("urgency: «32", ["32", "at most 31"]),
        ("count: «.inf", [".inf", "a whole number"]),
    ],
)
def test_wrong_type_is_reported_with_the_expected_one(
    registry: Registry, field: str, words: list[str]
) -> None:
    error = error_at(job(field), registry)

    assert all(word in error.what for word in words), error.what


@pytest.mark.parametrize("value", ["yes", "no", "on", "off", "true"])
def test_boolean_in_place_of_a_string_gets_a_hint_to_quote_it(
    registry: Registry, value: str
) -> None:
    error = the_error(job(f"workdir: {value}"), registry)

    assert error.hint == f'quote it: "{value}"'


@pytest.mark.parametrize("field", ["count", "nodes", "tasks", "cores_per_task"])
@pytest.mark.parametrize("value", [0, -1])
def test_zero_and_negative_counts_are_rejected(registry: Registry, field: str, value: int) -> None:
    assert error_at(job(f"{field}: «{value}"), registry).code == "out-of-range"


def test_missing_key_is_reported_at_its_mapping(registry: Registry) -> None:
    errors = errors_of("jobs:\n  - {name: a}\nrules:\n  - {trigger: start}\n", registry)

    assert [(place(e), e.code) for e in errors] == [
        ((2, 5), "missing-key"),
        ((4, 5), "missing-key"),
    ]
    assert "'command'" in errors[0].what


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "code", "hint"),
    [
        ("trigger: «job-cnacel, action: {name: cancel}", "no-such-trigger", "job-cancel"),
        ("trigger: start, action: {name: «sumbit, label: x}", "no-such-action", "submit"),
        ("trigger: start, action: {name: submit, label: «slep}", "no-such-group", "'sleep'"),
        ("trigger: job-fail, name: «slep, END", "no-such-group", "'sleep'"),
        ("trigger: metric, name: «count.sleep.succes, END", "no-such-metric", "sleep.success"),
        ("trigger: metric, name: «mean.sleep-temp, END", "no-such-metric", "observe"),
        ("trigger: metric, name: «maen.sleep-duration, END", "no-such-metric", "mean.sleep-dur"),
        ("trigger: start, action: {name: custom, label: «gone}", "no-such-function", "no functio"),
        ("trigger: start, action: {name: enable, rules: [rule-1, «x]}", "no-such-rule", "rule-1"),
        (
            "trigger: job-fail, when: «metric('count.slep.failed') > 2, END",
            "no-such-metric",
            "sleep.f",
        ),
        (
            "trigger: start, action: {name: log, message: 'at «{tiemstamp}'}",
            "no-such-field",
            "{timest",
        ),
    ],
)
def test_unknown_reference_is_an_error(registry: Registry, rule: str, code: str, hint: str) -> None:
    rule = rule.replace("END", "action: {name: terminate}")
    error = error_at(f"{JOBS}rules:\n  - {{{rule}}}\n", registry)

    assert error.code == code
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("text", "code", "hint"),
    [
        (job("observe: {«json-linse: {}}"), "no-such-observer", "'json-lines'"),
        (job("executor: «loacl"), "no-such-executor", "'local'"),
        (job("options: {«loacl: {}}"), "no-such-executor", "'local'"),
        (JOBS + START + "statistics: {a: {statistic: «maen}}\n", "no-such-statistic", "'mean'"),
    ],
)
def test_unknown_executor_observer_or_statistic_is_an_error(
    registry: Registry, text: str, code: str, hint: str
) -> None:
    error = error_at(text, registry)

    assert error.code == code
    assert f"did you mean {hint}" in (error.hint or "")


def test_duplicate_rule_id_is_an_error_that_shows_both(registry: Registry) -> None:
    rule = "  - {id: SIGNa, trigger: start, action: {name: submit, label: sleep}}\n"
    twice = rule.replace("SIGN", "") + rule.replace("SIGN", "«")
    error = error_at(f"{JOBS}rules:\n{twice}", registry)

    assert error.code == "duplicate-name"
    assert "f.yaml:4:10" in error.what


# -- actions and the executor ------------------------------------------------------------------


def _never(options: object) -> Executor:
    raise AssertionError("checking a file builds no executor")


def test_grow_without_resize_names_executors_that_can(registry: Registry) -> None:
    text = JOBS + "rules:\n  - {trigger: start, action: {name: grow}}\n"
    queue = ExecutorPlugin(name="queue", summary="cannot resize", build=_never)

    with pytest.raises(FileErrors) as caught:
        load_text(text, registry, file="f.yaml", executor=queue)

    (error,) = caught.value.errors
    assert place(error) == (4, 37)
    assert error.what == "'grow' needs an executor that can resize; 'queue' cannot"
    assert error.hint is not None
    assert "'local'" in error.hint
    assert error.hint.endswith(" can")
    assert load_text(text, registry, executor=registry.executors["local"]).heartbeat == 60


def test_cancel_without_a_label_needs_a_trigger_with_a_job(registry: Registry) -> None:
    error = error_at(JOBS + "rules:\n  - {trigger: start, action: {name: «cancel}}\n", registry)

    assert error.code == "no-job"
    for trigger in ("job-exception", "job-start", "observed"):
        load_text(f"{JOBS}rules:\n  - {{trigger: {trigger}, action: {{name: cancel}}}}\n", registry)


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("trigger: start, action: «{}", "missing-key"),
        ("trigger: start, when: «exit_code == 3, action: {name: terminate}", "bad-condition"),
        ("trigger: job-start, when: «exit_code == 3, action: {name: terminate}", "bad-condition"),
        (
            "trigger: job-fail, repetitions: 2, action: {name: cancel, «repetitions: 2}",
            "bad-pace",
        ),
        ("trigger: job-fail, action: [{name: cancel}, {name: cancel, «backoff: 2}]", "bad-pace"),
    ],
)
def test_rule_that_contradicts_itself_is_rejected(registry: Registry, rule: str, code: str) -> None:
    assert error_at(f"{JOBS}rules:\n  - {{{rule}}}\n", registry).code == code


@pytest.mark.parametrize(
    ("backoff", "hint"),
    [
        ("3", 'to skip 3 matches, write 3 without quotes; to wait 3 seconds, write "3s"'),
        ("1.5", 'to wait 1.5 seconds, write "1.5s"'),
    ],
)
def test_hint_for_a_quoted_number_as_backoff_can_be_followed(
    registry: Registry, backoff: str, hint: str
) -> None:
    rule = f"trigger: job-fail, backoff: «'{backoff}', action: {{name: cancel}}"
    assert error_at(f"{JOBS}rules:\n  - {{{rule}}}\n", registry).hint == hint


# -- conditions --------------------------------------------------------------------------------


def metric_rule(when: str) -> str:
    """Return a file with a rule on a count and this condition."""
    rule = f"trigger: metric, name: count.sleep.success, when: «{when}, action: {{name: terminate}}"
    return f"{JOBS}rules:\n  - {{{rule}}}\n"


@pytest.mark.parametrize(
    "when",
    [
        "'> '", "'value >'", "'foo(value) > 1'", "'().__class__ == 1'", "'value > 1; 2'",
        "'nope > 1'", "[]",
    ],
)  # fmt: skip
def test_invalid_or_unsafe_condition_is_rejected(registry: Registry, when: str) -> None:
    error_at(metric_rule(when), registry)


@pytest.mark.parametrize("when", ["2.5", "'== -1'", "'< 0'", "'<= -0.5'"])
def test_impossible_count_is_rejected(registry: Registry, when: str) -> None:
    assert error_at(metric_rule(when), registry).code == "never-holds"


# -- sweeps, commands, durations ---------------------------------------------------------------


def test_placeholder_without_a_parameter_is_reported_at_its_place(registry: Registry) -> None:
    error = error_at(JOBS.replace("sleep 1", "'run --t «{T}'") + START, registry)

    assert error.code == "no-such-parameter"
    assert "{{T}}" in (error.hint or "")


@pytest.mark.parametrize("name", ["group", "index", "id", "here"])
def test_parameter_with_a_built_in_name_is_an_error(registry: Registry, name: str) -> None:
    text = f"jobs:\n  - {{name: sleep, command: 'x {{{name}}}', parameters: {{{name}: [1]}}}}\n"
    error = the_error(text + START, registry)

    assert error.code == "bad-name"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (job("parameters: {«T: [1, 2]}"), "unused-parameter"),
        (JOBS.replace("sleep 1", "«echo \"it's") + START, "bad-command"),
        (
            JOBS + START.replace("sleep}", "sleep, with: {command: 'x {T}', duration: «1:30}}"),
            "bad-duration",
        ),
    ],
    ids=["unused parameter", "unclosed quote", "with is checked like a group"],
)
def test_invalid_field_of_a_group_is_rejected(registry: Registry, text: str, code: str) -> None:
    assert error_at(text, registry).code == code


@pytest.mark.parametrize(
    ("duration", "hint"), [("1:30", '"1m30s" or "1h30m"'), ("ten", "1h30m"), ("5 weeks", "2d")]
)
def test_invalid_duration_gets_a_hint(registry: Registry, duration: str, hint: str) -> None:
    error = error_at(job(f"duration: «{duration}"), registry)

    assert error.code == "bad-duration"
    assert hint in (error.hint or "")


def test_invalid_python_is_reported_at_its_line(
    registry: Registry,
) -> None:
    error = the_error(JOBS + START + "custom: |\n  def f():\n      return 1 +\n", registry)

    assert error.code == "bad-python"
    assert place(error)[0] == 7


# -- the file itself ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("«", "empty-file"),
        ("«# nothing\n", "empty-file"),
        ("jobs:\n«\t- name: a\n", "tab"),
        ("jobs:\n  - name: a\n«\tcommand: b\n", "tab"),
        ("jobs: [\n«", "bad-yaml"),
        ("jobs: a«: b\n", "bad-yaml"),
        ("name: a\n«name: b\n", "duplicate-key"),
        ("name: a\n«---\nname: b\n", "several-documents"),
        ("name: «!!python/object/apply:os.system [ls]\n", "yaml-tag"),
        ("name: «*gone\n", "bad-yaml"),
        ("name: &a [«*a]\n", "bad-yaml"),
        ("name: «\x01\n", "bad-yaml"),
        ("[" * 64 + "«" + "[" * 9_936, "too-deep"),
        ("- " * 64 + "«" + "- " * 9_936, "too-deep"),
        ("«just text\n", "wrong-type"),
        ("«- a\n", "wrong-type"),
    ],
)
def test_file_that_is_not_an_ensemble_is_rejected_at_its_place(
    registry: Registry, text: str, code: str
) -> None:
    assert error_at(text, registry).code == code


@pytest.mark.timeout(180)
@pytest.mark.parametrize("pattern", ["[{}]", "{{<<: [{}]}}"])
def test_alias_bomb_is_rejected(registry: Registry, pattern: str) -> None:
    lines = ["a0: &a0 " + ("[x, x]" if pattern[0] == "[" else "{x: y}")]
    lines += [
        f"a{level}: &a{level} " + pattern.format(", ".join([f"*a{level - 1}"] * 9))
        for level in range(1, 20)
    ]

    assert the_error("\n".join(lines), registry).code == "alias-bomb"


def test_huge_file_is_rejected_unread(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "big.yaml"
    with file.open("wb") as stream:
        stream.truncate(100 * 1024 * 1024)

    with pytest.raises(UsageError, match=r"100\.0 MiB"):
        load(file, registry)


def test_missing_file_suggests_similar_ones(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(JOBS + START)

    with pytest.raises(UsageError) as folder:
        load(tmp_path, registry)
    with pytest.raises(UsageError) as missing:
        load(tmp_path / "stduy.yaml", registry)

    assert folder.value.code == "not-a-file"
    assert "study.yaml" in (folder.value.hint or "")
    assert missing.value.code == "no-such-file"
    assert "study.yaml" in (missing.value.hint or "")


def test_file_that_is_not_utf8_is_reported_with_the_byte(
    registry: Registry, tmp_path: Path
) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes("name: é\n".encode() + b"x: caf\xe9\n")

    with pytest.raises(UsageError) as caught:
        load(file, registry)

    assert caught.value.code == "not-utf-8"
    assert caught.value.where == Location(str(file), 2, 7)


def test_named_pipe_is_rejected_without_blocking(registry: Registry, tmp_path: Path) -> None:
    pipe = tmp_path / "f.yaml"
    os.mkfifo(pipe)
    found: list[str] = []

    def attempt() -> None:
        try:
            load(pipe, registry)
        except UsageError as error:
            found.append(error.code)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(120)

    assert found == ["not-a-file"]


@pytest.mark.usefixtures("permissions_hold")
def test_unreadable_ensemble_file_is_rejected(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(JOBS + START)
    file.chmod(0)

    with pytest.raises(UsageError, match="Permission denied"):
        load(file, registry)


# -- all at once -------------------------------------------------------------------------------


def test_all_errors_of_a_file_are_reported_in_order(
    registry: Registry,
) -> None:
    errors = errors_of(
        "jobs:\n"
        "  - {name: a, command: 'run {T}', count: 0}\n"
        "  - {name: b, command: run, nodse: 2}\n"
        "rules:\n"
        "  - {trigger: strat, action: {name: submit, label: c}}\n"
        "  - {trigger: metric, name: count.b.sucess, when: '>', "
        "action: {name: custom, label: f}}\n",
        registry,
    )

    assert [(place(e)[0], e.code) for e in errors] == [
        (2, "no-such-parameter"),
        (2, "out-of-range"),
        (3, "unknown-key"),
        (5, "no-such-trigger"),
        (5, "no-such-group"),
        (6, "no-such-metric"),
        (6, "bad-condition"),
        (6, "no-such-function"),
    ]


def test_errors_in_set_options_are_reported_there(registry: Registry) -> None:
    errors = errors_of(
        JOBS + START,
        registry,
        ["jobs.sleep.count=0", "jobs.slep.count=1", "jobs.sleep.cuont=1", "nonsense"],
    )

    assert {str(error.where): error.code for error in errors} == {
        "--set jobs.sleep.count=0": "out-of-range",
        "--set jobs.slep.count=1": "bad-override",
        "--set jobs.sleep.cuont=1": "unknown-key",
        "--set nonsense": "bad-override",
    }


# -- members ---------------------------------------------------------------------------------------


def executor_error(registry: Registry, name: str, chosen: str | None) -> EnsembleError | None:
    text = f"jobs:\n  - {{name: sim, command: x, executor: {name}}}\nrules: []\n"
    record = None if chosen is None else registry.executors[chosen]
    try:
        load_text(text, registry, file="f.yaml", executor=record)
    except FileErrors as caught:
        found = [error for error in caught.errors if place(error) == (2, 39)]
        return found[0] if found else None
    return None


@pytest.mark.checkout
@pytest.mark.parametrize("name", ["left", "left/right", "local", "remote", "a-1"])
def test_group_may_name_a_member_if_the_executor_has_members(registry: Registry, name: str) -> None:
    assert executor_error(registry, name, "remote") is None


@pytest.mark.checkout
@pytest.mark.parametrize("name", ["Left", "a/b/c", "/a", "a/", "a_b", "-a", "a" * 64])
def test_invalid_member_name_is_rejected(registry: Registry, name: str) -> None:
    error = executor_error(registry, name, "remote")
    assert error is not None
    assert error.code == "bad-member"


@pytest.mark.checkout
def test_member_is_rejected_if_the_executor_has_no_members(registry: Registry) -> None:
    error = executor_error(registry, "left", "local")
    assert error is not None
    assert error.code == "no-such-executor"
    assert "--executor remote" in str(error.hint)
