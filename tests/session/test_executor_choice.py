"""Choice of a run's executor, and its options from the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from ensemble_testing import FakeExecutor

from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.plugin.hookspecs import ExecutorPlugin
from ensemble_core.plugin.registry import LoadedPlugin, Registry
from ensemble_core.session.executor_choice import build_executor, choose_executor, read_options

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "slots": {"type": "integer", "minimum": 1},
        "grace": {"type": "number"},
        "queue": {"type": "string"},
        "exclusive": {"type": "boolean"},
        "bank": {"type": ["string", "null"]},
        "nodes": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "hosts": {"type": "array", "items": {"type": "string"}},
        "tags": {"type": "object"},
        "mode": {"enum": ["fast", 2, False]},
    },
}


def record(
    name: str = "here",
    priority: int = 0,
    available: Callable[[], tuple[bool, str]] | None = None,
    options: Any = SCHEMA,
) -> ExecutorPlugin:
    return ExecutorPlugin(
        name=name,
        summary="A queue",
        build=lambda options: FakeExecutor(),
        priority=priority,
        available=available,
        options=options,
    )


def registry(*records: ExecutorPlugin) -> Registry:
    return Registry(
        [
            LoadedPlugin(
                name="q",
                distribution="dist",
                version="1",
                module="m",
                records={"executor": records},
            )
        ]
    )


def test_a_single_executor_is_chosen_with_that_reason() -> None:
    choice = choose_executor(registry(record(available=lambda: (True, "2 cores"))), None)
    assert str(choice) == "executor here (2 cores): the only one installed"


def test_the_available_executor_of_highest_priority_is_chosen() -> None:
    high = record("high", 9, lambda: (False, "no socket"))
    choice = choose_executor(registry(record("low", 1), record("mid", 5), high), None)
    assert choice.name == "mid"
    assert str(choice) == "executor mid: preferred to low; --executor chooses another"


def test_the_reason_names_unavailable_executors() -> None:
    choice = choose_executor(
        registry(record("a"), record("b", 5, lambda: (False, "no socket"))), None
    )
    assert str(choice) == "executor a: the only one available here (b: no socket)"


def test_executors_that_must_be_named_are_not_listed_as_unavailable() -> None:
    remote = record("remote", available=lambda: (False, "name it with --executor remote"))
    choice = choose_executor(registry(record(available=lambda: (True, "2 cores")), remote), None)
    assert str(choice) == "executor here (2 cores): the only one installed"


def test_a_probe_that_raises_makes_the_executor_unavailable() -> None:
    def probe() -> tuple[bool, str]:
        raise OSError("disk")

    with pytest.raises(UsageError) as caught:
        choose_executor(registry(record(available=probe)), None)
    assert caught.value.cause == "here: OSError: disk"
    assert choose_executor(registry(record(available=probe)), "here").name == "here"


def test_a_named_executor_is_chosen_regardless_of_priority() -> None:
    choice = choose_executor(registry(record("low", -5), record("high", 9)), "low")
    assert str(choice) == "executor low: chosen with --executor"
    with pytest.raises(EnsembleError) as caught:
        choose_executor(registry(record("low")), "lwo")
    assert caught.value.hint == "did you mean 'low'?"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("slots=4", 4),
        ("grace=0.5", 0.5),
        ("grace=2", 2),
        ("queue=12", "12"),
        ("queue=a=b", "a=b"),
        ("exclusive=yes", True),
        ("exclusive=False", False),
        ("bank=null", None),
        ("bank=physics", "physics"),
        ("nodes=3", 3),
        ("nodes=3-5", "3-5"),
        ("hosts=a, b", ["a", "b"]),
        ('hosts=["a","b"]', ["a", "b"]),
        ('tags={"a": 1}', {"a": 1}),
        ("mode=fast", "fast"),
        ("mode=2", 2),
    ],
)
def test_option_texts_are_parsed_by_the_schema(text: str, value: object) -> None:
    key = text.partition("=")[0]
    read = read_options(record(), [text], {})
    assert read == {key: value}
    assert type(read[key]) is type(value)


@pytest.mark.parametrize(
    ("given", "named", "says"),
    [
        (["slotz=1"], {}, "did you mean 'slots'?"),
        (["slots"], {}, "not of the form KEY=VALUE"),
        (["=1"], {}, "not of the form KEY=VALUE"),
        (["slots=many"], {}, "slots"),
        (["slots=0"], {}, "slots: 0 is less than the minimum of 1"),
        (["slots=1"], {"slots": 2}, "given twice"),
        ([], {"min_slots": 2}, "min_slots"),
        (["exclusive=maybe"], {}, "exclusive"),
        (["mode=slow"], {}, "mode"),
    ],
)
def test_invalid_options_are_rejected(
    given: list[str], named: dict[str, object], says: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_options(record(), given, named)
    assert says in str(caught.value)
    assert caught.value.exit_code == 2


def test_options_of_an_executor_without_options_are_rejected() -> None:
    with pytest.raises(UsageError) as caught:
        read_options(record(options={}), ["slots=1"], {})
    assert caught.value.hint == "it has no options"


def test_unknown_options_are_rejected_by_default() -> None:
    schema = {"type": "object", "properties": {"poll": {"type": "number"}}}
    with pytest.raises(UsageError) as caught:
        read_options(record(options=schema), ["pol=2"], {})
    assert caught.value.hint == "did you mean 'poll'?"
    open_schema = {**schema, "additionalProperties": {"type": "string"}}
    assert read_options(record(options=open_schema), ["pol=2"], {}) == {"pol": "2"}


def test_an_executor_gets_the_defaults_of_its_schema() -> None:
    built: list[object] = []
    schema = {"type": "object", "properties": {"poll": {"type": "number", "default": 5}}}

    def build(options: Mapping[str, Any]) -> FakeExecutor:
        built.append(dict(options))
        return FakeExecutor()

    known = replace(record(options=schema), build=build)
    build_executor(registry(known), known, {})
    build_executor(registry(known), known, {"poll": 2})
    assert built == [{"poll": 5}, {"poll": 2}]


def test_a_run_inside_its_own_queue_does_not_begin_unless_the_executor_is_named() -> None:
    queue = replace(record("slurm", 50), inside=lambda: "Slurm job 7 with 2 nodes")
    both = registry(queue, record("local"))
    with pytest.raises(UsageError) as refused:
        choose_executor(both, None)
    assert refused.value.code == "inside-queue"
    assert "this is Slurm job 7 with 2 nodes: the jobs would go to the queue" in str(refused.value)
    assert "--executor local runs them on this node" in (refused.value.hint or "")
    assert "--executor slurm" in (refused.value.hint or "")
    why = choose_executor(both, "slurm").why
    assert why.endswith("; this is Slurm job 7 with 2 nodes: jobs go to the queue, not into it")
    why = choose_executor(both, "local").why
    assert why.endswith("; this is Slurm job 7 with 2 nodes: only this node is used")


def test_a_run_outside_of_queues_says_nothing_about_them() -> None:
    def broken() -> str:
        raise RuntimeError

    both = registry(
        replace(record("slurm", 50), inside=lambda: ""), replace(record("pbs"), inside=broken)
    )
    assert choose_executor(both, None).name == "slurm"
    assert "this is" not in choose_executor(both, "pbs").why


def test_a_run_in_another_executor_inside_a_queue_names_the_job() -> None:
    queue = replace(record("slurm", 50), inside=lambda: "Slurm job 7 with 1 node")
    both = registry(queue, record("flux", 100))
    assert choose_executor(both, None).why.endswith("; this is Slurm job 7 with 1 node")
