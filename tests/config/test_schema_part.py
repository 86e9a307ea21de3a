"""The partial schema, with only the names in a file, gives the same result as the whole one."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ensemble_core.config.schema import _SHARED, Validators, compose
from ensemble_core.model.job_group import JobGroup
from ensemble_core.plugin.discovery import discover

EXAMPLES = Path(__file__).parents[2] / "examples"
REGISTRY = discover()
NAMES = ("hello-world", "failure-handling", "parameter-sweep", "custom-action", "grow-shrink")
WORDS = ("trigger", "submit", "metric", "nowhere", "count", "", "rules", "job-success", "heartbeat")


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(data, (dict, list)):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield (*path, key)
            yield from places(data[key], (*path, key))


def damaged(data: Any, chance: random.Random) -> Any:
    """Return the data with a key renamed, a value replaced or a part removed."""
    again = copy.deepcopy(data)
    *path, last = chance.choice(list(places(again)))
    here = again
    for step in path:
        here = here[step]
    what = chance.choice(("rename", "replace", "remove"))
    if what == "rename" and isinstance(here, dict):
        here[chance.choice(WORDS)] = here.pop(last)
    elif what == "remove":
        del here[last]
    else:
        here[last] = chance.choice((*WORDS, 0, -1, None, [], {}, True))
    return again


@pytest.mark.parametrize("name", NAMES)
def test_partial_schema_accepts_the_same_files_as_the_whole_one(
    name: str,
) -> None:
    data = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    chance = random.Random(name)
    whole, verdicts = Validators(REGISTRY), set()
    for tried in (data, *(damaged(data, chance) for _ in range(40))):
        _SHARED.pop(REGISTRY, None)
        verdict = Validators(REGISTRY).hold(tried)
        assert verdict == (not list(whole.errors(tried))), tried
        verdicts.add(verdict)
    assert verdicts == {True, False}
    _SHARED.pop(REGISTRY, None)


def test_second_file_of_a_process_is_checked_by_the_whole_schema() -> None:
    data = yaml.safe_load((EXAMPLES / "hello-world.yaml").read_text())
    _SHARED.pop(REGISTRY, None)
    assert Validators(REGISTRY).hold(data)
    assert not Validators(REGISTRY).hold(data)
    assert not list(Validators(REGISTRY).errors(data))


def test_what_may_change_a_key_and_its_default_are_declared_once() -> None:
    keys = compose(REGISTRY)["$defs"]["job"]["properties"]
    assert {key.get("x-ensemble-change") for key in keys.values()} == {
        *(None, "never", "group", "submit")
    }
    defaults = {name: key["default"] for name, key in keys.items() if "default" in key}
    fields = {each.name: each.default for each in dataclasses.fields(JobGroup)}
    assert defaults == {name: fields[name] for name in defaults}
