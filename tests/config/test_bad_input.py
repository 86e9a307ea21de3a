"""Every kind of bad ensemble file: a clear error with its place, and all of them at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

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


def place(error: EnsembleError) -> tuple[int, int]:
    assert error.where is not None
    assert error.where.file == "f.yaml"
    return error.where.line, error.where.column


# -- keys and types ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "where", "hint"),
    [
        (JOBS + START + "limts: {jobs: 1}\n", (5, 1), "'limits'"),
        (JOBS + START + "limits: {job: 1}\n", (5, 10), "'jobs'"),
        (JOBS + START + "logging: {debgu: true}\n", (5, 11), "'debug'"),
        (JOBS.replace("}", ", nodse: 1}") + START, (2, 37), "'nodes'"),
        (JOBS + START.replace("trigger: start", "trigger: start, whn: 3"), (4, 22), "'when'"),
        (JOBS + START.replace("label: sleep", "lable: sleep, label: sleep"), (4, 45), "'label'"),
        (
            JOBS + START.replace("label: sleep", "label: sleep, with: {cuont: 1}"),
            (4, 66),
            "'count'",
        ),
    ],
)
def test_an_unknown_key_at_any_level_is_an_error_with_the_nearest(
    registry: Registry, text: str, where: tuple[int, int], hint: str
) -> None:
    error = the_error(text, registry)

    assert error.code == "unknown-key"
    assert place(error) == where
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("field", "where", "words"),
    [
        ("count: two", (2, 44), ["the string 'two'", "a whole number"]),
        ("count: 1.5", (2, 44), ["1.5", "a whole number"]),
        ("nodes: [1]", (2, 44), ["a list", "a whole number"]),
        ("workdir: 3", (2, 46), ["the number 3", "a string"]),
        ("environment: {A: yes}", (2, 54), ["yes", "boolean"]),
        ("environment: [A]", (2, 50), ["a list", "a mapping"]),
        ("observe: {json-lines: 3}", (2, 59), ["the number 3", "a mapping"]),
        ("parameters: {T: yes}", (2, 53), ["yes", "a list"]),
        ("urgency: 32", (2, 46), ["32", "at most 31"]),
        ("count: .inf", (2, 44), [".inf", "a whole number"]),
    ],
)
def test_a_wrong_type_says_what_was_found_and_expected(
    registry: Registry, field: str, where: tuple[int, int], words: list[str]
) -> None:
    error = the_error(JOBS.replace("}", f", {field}}}") + START, registry)

    assert place(error) == where
    assert all(word in error.what for word in words), error.what


@pytest.mark.parametrize("value", ["yes", "no", "on", "off", "true"])
def test_a_boolean_where_text_is_meant_says_to_quote_it(registry: Registry, value: str) -> None:
    error = the_error(JOBS.replace("}", f", workdir: {value}}}") + START, registry)

    assert error.hint == f'quote it: "{value}"'


@pytest.mark.parametrize("field", ["count", "nodes", "tasks", "cores_per_task"])
@pytest.mark.parametrize("value", [0, -1])
def test_zero_and_negative_counts_are_refused(registry: Registry, field: str, value: int) -> None:
    error = the_error(JOBS.replace("}", f", {field}: {value}}}") + START, registry)

    assert error.code == "out-of-range"
    assert place(error) == (2, 39 + len(field))


def test_what_is_missing_is_told_where_it_is_missed(registry: Registry) -> None:
    errors = errors_of("jobs:\n  - {name: a}\nrules:\n  - {trigger: start}\n", registry)

    assert [(place(e), e.code) for e in errors] == [
        ((2, 5), "missing-key"),
        ((4, 5), "missing-key"),
    ]
    assert "'command'" in errors[0].what


def test_an_empty_action_is_refused(registry: Registry) -> None:
    error = the_error(JOBS + "rules:\n  - trigger: start\n    action: {}\n", registry)

    assert (place(error), error.code) == ((5, 13), "missing-key")


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "where", "code", "hint"),
    [
        ("{trigger: job-cnacel, action: {name: cancel}}", (4, 15), "no-such-trigger", "job-cancel"),
        ("{trigger: start, action: {name: sumbit, label: x}}", (4, 37), "no-such-action", "submit"),
        (
            "{trigger: start, action: {name: submit, label: slep}}",
            (4, 52),
            "no-such-group",
            "'sleep'",
        ),
        (
            "{trigger: job-fail, name: slep, action: {name: terminate}}",
            (4, 31),
            "no-such-group",
            "'sleep'",
        ),
        (
            "{trigger: metric, name: count.sleep.succes, action: {name: terminate}}",
            (4, 29),
            "no-such-metric",
            "count.sleep.success",
        ),
        (
            "{trigger: metric, name: mean.sleep-temp, action: {name: terminate}}",
            (4, 29),
            "no-such-metric",
            "observe",
        ),
        (
            "{trigger: metric, name: maen.sleep-duration, action: {name: terminate}}",
            (4, 29),
            "no-such-metric",
            "mean.sleep-duration",
        ),
        (
            "{trigger: start, action: {name: custom, label: gone}}",
            (4, 52),
            "no-such-function",
            "no functions",
        ),
        (
            "{trigger: start, action: {name: enable, rules: [rule-1, rule-9]}}",
            (4, 61),
            "no-such-rule",
            "rule-1",
        ),
        (
            "{trigger: job-fail, when: metric('count.slep.failed') > 2, action: {name: cancel}}",
            (4, 31),
            "no-such-metric",
            "count.sleep.failed",
        ),
        (
            "{trigger: start, action: {name: log, message: 'at {tiemstamp}'}}",
            (4, 55),
            "no-such-field",
            "{timestamp}",
        ),
    ],
)
def test_a_name_that_refers_to_nothing_is_an_error(
    registry: Registry, rule: str, where: tuple[int, int], code: str, hint: str
) -> None:
    error = the_error(f"{JOBS}rules:\n  - {rule}\n", registry)

    assert (place(error), error.code) == (where, code)
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("field", "where", "code"),
    [
        ("observe: {json-linse: {}}", (2, 47), "no-such-observer"),
        ("executor: loacl", (2, 47), "no-such-executor"),
        ("options: {loacl: {}}", (2, 47), "no-such-executor"),
    ],
)
def test_a_group_names_only_what_is_installed(
    registry: Registry, field: str, where: tuple[int, int], code: str
) -> None:
    error = the_error(JOBS.replace("}", f", {field}}}") + START, registry)

    assert (place(error), error.code) == (where, code)
    assert "did you mean" in (error.hint or "")


def test_a_statistic_that_does_not_exist_is_an_error(registry: Registry) -> None:
    error = the_error(JOBS + START + "statistics: {recent: {statistic: maen}}\n", registry)

    assert (place(error), error.code) == ((5, 34), "no-such-statistic")
    assert "'mean'" in (error.hint or "")


def test_two_rules_of_one_name_are_an_error_that_shows_both(registry: Registry) -> None:
    rule = the_error(
        JOBS
        + "rules:\n"
        + "  - {id: a, trigger: start, action: {name: submit, label: sleep}}\n" * 2,
        registry,
    )

    assert (place(rule), rule.code) == ((5, 10), "duplicate-name")
    assert "f.yaml:4:10" in rule.what


# -- actions and the executor ------------------------------------------------------------------


def _never(options: object) -> Executor:
    raise AssertionError("checking a file builds no executor")


def test_grow_on_an_executor_that_cannot_resize_says_which_can(registry: Registry) -> None:
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
    error = the_error(JOBS + "rules:\n  - {trigger: start, action: {name: cancel}}\n", registry)

    assert (place(error), error.code) == ((4, 37), "no-job")
    for trigger in ("job-exception", "job-start", "observed"):
        load_text(f"{JOBS}rules:\n  - {{trigger: {trigger}, action: {{name: cancel}}}}\n", registry)


@pytest.mark.parametrize(
    ("action", "where"),
    [
        ("repetitions: 2\n    action: {name: cancel, repetitions: 2}", (6, 28)),
        ("action: [{name: cancel}, {name: cancel, backoff: 2}]", (5, 45)),
    ],
)
def test_repetitions_and_backoff_stand_in_one_place(
    registry: Registry, action: str, where: tuple[int, int]
) -> None:
    error = the_error(f"{JOBS}rules:\n  - trigger: job-fail\n    {action}\n", registry)

    assert (place(error), error.code) == (where, "bad-pace")


# -- conditions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "when",
    ["> ", "value >", "foo(value) > 1", "().__class__ == 1", "value > 1; 2", "nope > 1", "[]"],
)
def test_a_condition_that_does_not_parse_or_reaches_out_is_refused(
    registry: Registry, when: str
) -> None:
    error = the_error(
        f"{JOBS}rules:\n  - trigger: metric\n    name: count.sleep.success\n"
        f"    when: '{when}'\n    action: {{name: terminate}}\n"
        if when != "[]"
        else f"{JOBS}rules:\n  - trigger: metric\n    name: count.sleep.success\n"
        f"    when: []\n    action: {{name: terminate}}\n",
        registry,
    )

    assert place(error) == (6, 11)


@pytest.mark.parametrize("when", ["2.5", "'== -1'", "'< 0'", "'<= -0.5'"])
def test_a_count_that_can_never_be_is_refused(registry: Registry, when: str) -> None:
    error = the_error(
        f"{JOBS}rules:\n  - trigger: metric\n    name: count.sleep.success\n"
        f"    when: {when}\n    action: {{name: terminate}}\n",
        registry,
    )

    assert (place(error), error.code) == ((6, 11), "never-holds")


def test_how_a_job_ended_cannot_be_asked_before_it_ends(registry: Registry) -> None:
    for trigger in ("job-start", "start"):
        error = the_error(
            f"{JOBS}rules:\n  - trigger: {trigger}\n    when: exit_code == 3\n"
            "    action: {name: terminate}\n",
            registry,
        )
        assert (place(error), error.code) == ((5, 11), "bad-condition")


# -- sweeps, commands, durations ---------------------------------------------------------------


def test_a_placeholder_without_a_parameter_is_told_where_it_stands(registry: Registry) -> None:
    error = the_error("jobs:\n  - name: a\n    command: run --t {T}\n" + START.replace(
        "sleep", "a"), registry)  # fmt: skip

    assert (place(error), error.code) == ((3, 22), "no-such-parameter")
    assert "{{T}}" in (error.hint or "")


def test_a_parameter_that_is_used_nowhere_is_an_error(registry: Registry) -> None:
    error = the_error(JOBS.replace("}", ", parameters: {T: [1, 2]}}") + START, registry)

    assert (place(error), error.code) == ((2, 50), "unused-parameter")


@pytest.mark.parametrize("name", ["group", "index", "id", "here"])
def test_a_parameter_cannot_take_a_built_in_name(registry: Registry, name: str) -> None:
    text = f"jobs:\n  - {{name: sleep, command: 'x {{{name}}}', parameters: {{{name}: [1]}}}}\n"
    error = the_error(text + START, registry)

    assert error.code == "bad-name"


def test_a_with_is_checked_like_the_group_itself(registry: Registry) -> None:
    errors = errors_of(
        JOBS
        + "rules:\n  - trigger: start\n    action:\n      name: submit\n      label: sleep\n"
        + "      with:\n        command: run {T}\n        duration: 1:30\n",
        registry,
    )

    assert [(place(e), e.code) for e in errors] == [((10, 19), "bad-duration")]


@pytest.mark.parametrize(
    ("duration", "hint"), [("1:30", '"1m30s" or "1h30m"'), ("ten", "1h30m"), ("5 weeks", "2d")]
)
def test_a_duration_that_is_none_says_how_to_write_one(
    registry: Registry, duration: str, hint: str
) -> None:
    error = the_error(JOBS.replace("}", f", duration: {duration}}}") + START, registry)

    assert (place(error), error.code) == ((2, 47), "bad-duration")
    assert hint in (error.hint or "")


def test_a_quote_that_is_never_closed_is_told(registry: Registry) -> None:
    error = the_error("jobs:\n  - name: sleep\n    command: echo \"it's\n" + START, registry)

    assert (place(error), error.code) == ((3, 14), "bad-command")


def test_custom_python_that_does_not_parse_is_told_at_its_line_in_the_file(
    registry: Registry,
) -> None:
    error = the_error(JOBS + START + "custom: |\n  def f():\n      return 1 +\n", registry)

    assert error.code == "bad-python"
    assert place(error)[0] == 7


# -- the file itself ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "where", "code"),
    [
        ("", (1, 1), "empty-file"),
        ("# nothing\n", (1, 1), "empty-file"),
        ("jobs:\n\t- name: a\n", (2, 1), "tab"),
        ("jobs:\n  - name: a\n\tcommand: b\n", (3, 1), "tab"),
        ("jobs: [\n", (2, 1), "bad-yaml"),
        ("jobs: a: b\n", (1, 8), "bad-yaml"),
        ("name: a\nname: b\n", (2, 1), "duplicate-key"),
        ("name: a\n---\nname: b\n", (2, 1), "several-documents"),
        ("name: !!python/object/apply:os.system [ls]\n", (1, 7), "yaml-tag"),
        ("name: *gone\n", (1, 7), "bad-yaml"),
        ("name: &a [*a]\n", (1, 11), "bad-yaml"),
        ("name: \x01\n", (1, 7), "bad-yaml"),
        ("[" * 10_000, (1, 65), "too-deep"),
        ("- " * 10_000, (1, 129), "too-deep"),
        ("just text\n", (1, 1), "wrong-type"),
        ("- a\n", (1, 1), "wrong-type"),
    ],
)
def test_what_is_no_ensemble_file_is_refused_at_its_place(
    registry: Registry, text: str, where: tuple[int, int], code: str
) -> None:
    error = the_error(text, registry)

    assert (place(error), error.code) == (where, code)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("pattern", ["[{}]", "{{<<: [{}]}}"])
def test_anchors_that_explode_are_refused(registry: Registry, pattern: str) -> None:
    lines = ["a0: &a0 " + ("[x, x]" if pattern[0] == "[" else "{x: y}")]
    lines += [
        f"a{level}: &a{level} " + pattern.format(", ".join([f"*a{level - 1}"] * 9))
        for level in range(1, 20)
    ]

    assert the_error("\n".join(lines), registry).code == "alias-bomb"


def test_a_file_of_a_hundred_megabytes_is_not_even_read(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "big.yaml"
    with file.open("wb") as stream:
        stream.truncate(100 * 1024 * 1024)

    with pytest.raises(UsageError, match=r"100\.0 MiB"):
        load(file, registry)


def test_a_folder_and_a_missing_file_name_what_is_near(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(JOBS + START)

    with pytest.raises(UsageError) as folder:
        load(tmp_path, registry)
    with pytest.raises(UsageError) as missing:
        load(tmp_path / "stduy.yaml", registry)

    assert folder.value.code == "not-a-file"
    assert "study.yaml" in (folder.value.hint or "")
    assert missing.value.code == "no-such-file"
    assert "study.yaml" in (missing.value.hint or "")


def test_a_file_that_is_not_utf8_says_at_which_byte(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes("name: é\n".encode() + b"x: caf\xe9\n")

    with pytest.raises(UsageError) as caught:
        load(file, registry)

    assert caught.value.code == "not-utf-8"
    assert caught.value.where == Location(str(file), 2, 7)


def test_a_pipe_is_refused_without_waiting_for_a_writer(registry: Registry, tmp_path: Path) -> None:
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
    thread.join(10)

    assert found == ["not-a-file"]


@pytest.mark.usefixtures("permissions_hold")
def test_a_file_without_permission_is_refused(registry: Registry, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(JOBS + START)
    file.chmod(0)

    with pytest.raises(UsageError, match="Permission denied"):
        load(file, registry)


# -- all at once -------------------------------------------------------------------------------


def test_all_errors_of_a_file_are_reported_at_once_in_the_order_of_their_places(
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


def test_what_was_set_on_the_command_line_is_the_place_of_its_errors(registry: Registry) -> None:
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
def test_a_group_may_name_a_member_where_the_executor_has_members(
    registry: Registry, name: str
) -> None:
    assert executor_error(registry, name, "remote") is None


@pytest.mark.checkout
@pytest.mark.parametrize("name", ["Left", "a/b/c", "/a", "a/", "a_b", "-a", "a" * 64])
def test_a_name_that_no_member_can_have_is_refused(registry: Registry, name: str) -> None:
    error = executor_error(registry, name, "remote")
    assert error is not None
    assert error.code == "bad-member"


@pytest.mark.checkout
def test_a_member_named_for_an_executor_without_members_is_refused(registry: Registry) -> None:
    error = executor_error(registry, "left", "local")
    assert error is not None
    assert error.code == "no-such-executor"
    assert "--executor remote" in str(error.hint)
