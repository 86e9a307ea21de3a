"""Identities of jobs: which parts are compared as written, which by value, and which are ignored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ensemble_core.model.identity import Source, identity_of, parts_of
from ensemble_core.model.job_group import JobGroup

GROUP = JobGroup(
    name="g",
    command=("{here}/x", "{T}", "{replica}", "{run}/{attempt}", "{index}"),
    parameters={"T": [1, 2]},
    environment={"A": "{cwd}", "B": "1"},
    here="/here",
    run="r1",
    cwd="/cwd",
    count=2,
    replicated=True,
)


def identity(group: JobGroup = GROUP, place: int = 0, attempt: int = 0, **inputs: str) -> str:
    entry, parameters, replica = group.element(place)
    job = entry.job(place, parameters, replica, attempt)
    return identity_of(parts_of(job, Source.of(entry).parts, inputs))


@pytest.mark.parametrize(
    "change",
    [
        {"here": "/moved"},
        {"run": "r2"},
        {"cwd": "/other"},
        {"name": "h"},
        {"nodes": 2, "tasks": 1},
        {"duration": 60.0},
        {"workdir": "w"},
        {"executor": "flux"},
        {"urgency": 1},
        {"environment": {"B": "1", "A": "{cwd}"}},
    ],
)
def test_a_moved_study_with_other_resources_has_the_same_identities(change: dict[str, Any]) -> None:
    assert identity(replace(GROUP, **change)) == identity()


@pytest.mark.parametrize(
    "change",
    [
        {"command": ("{here}/y", "{T}", "{replica}", "{run}/{attempt}", "{index}")},
        {"parameters": {"T": [3, 2]}},
        {"tasks": 4},
        {"environment": {"A": "{cwd}", "B": "2"}},
        {"environment_from": ("SEED",)},
        {"observe": {"json-lines": {"fields": ["u"]}}},
    ],
)
def test_a_change_of_what_a_job_does_changes_its_identity(change: dict[str, Any]) -> None:
    assert identity(replace(GROUP, **change)) != identity()


BOXED = replace(
    GROUP,
    compared={"boxes": {"image": "sim:1", "mounts": None}, "slurm": {"launch": None}},
    options={"boxes": {"mounts": ["/a"], "queue": "q"}},
)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"boxes": {"mounts": ["/b"]}},
        {"boxes": {"mounts": ["/a"], "image": "sim:2"}},
        {"boxes": {"mounts": ["/a"]}, "slurm": {"launch": "none"}},
    ],
)
def test_an_option_that_says_what_runs_changes_the_identity(options: dict[str, Any]) -> None:
    assert identity(replace(BOXED, options=options)) != identity(BOXED)


@pytest.mark.parametrize(
    "options",
    [
        {"boxes": {"mounts": ["/a"], "queue": "other"}},
        {"boxes": {"image": "sim:1", "mounts": ["/a"]}, "slurm": {"partition": "p"}},
    ],
)
def test_an_option_that_says_where_a_job_runs_is_not_compared(options: dict[str, Any]) -> None:
    assert identity(replace(BOXED, options=options)) == identity(BOXED)
    assert identity(replace(GROUP, options=options)) == identity()


def test_replica_index_and_inputs_change_the_identity_but_not_the_attempt() -> None:
    assert len({identity(place=place) for place in range(4)}) == 4
    assert identity(attempt=1) == identity()
    assert identity(a="1") != identity(a="2")
    assert identity(a="1") != identity()


def test_options_with_unsortable_keys_have_an_identity() -> None:
    odd = replace(GROUP, observe={"o": {"a": {1: 2, "b": 3}}})
    assert identity(odd) == identity(odd) != identity()
