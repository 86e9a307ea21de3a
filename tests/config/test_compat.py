"""Ensemble files written for ensemble-python 0.0.16 load unchanged, with the same meaning.

The folder with such files is named by ``ENSEMBLE_COMPAT_DIR``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ensemble_testing import Story

from ensemble_core.config import load
from ensemble_core.plugin.discovery import discover

_FOLDER = os.environ.get("ENSEMBLE_COMPAT_DIR", "")
FILES = (
    sorted({*Path(_FOLDER).glob("*-example.yaml"), *Path(_FOLDER).glob("hello-world.yaml")})
    if _FOLDER
    else []
)

needs_files = pytest.mark.skipif(not _FOLDER, reason="ENSEMBLE_COMPAT_DIR is not set")


@needs_files
def test_folder_of_old_files_is_not_empty() -> None:
    assert FILES


@needs_files
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_file_of_the_first_implementation_loads(file: Path) -> None:
    registry = discover()

    ensemble = load(file, registry, executor=registry.executors["local"])

    assert ensemble.name == file.stem
    assert ensemble.rules[0].trigger.events == ("start",)
    assert ensemble.groups["sleep"].command == ("sleep", "10")
    assert ensemble.groups["sleep"].count == 5


@needs_files
@pytest.mark.parametrize("file", [f for f in FILES if f.name == "backoff-example.yaml"])
def test_repetitions_and_backoff_of_the_action_apply_to_the_rule(file: Path) -> None:
    _, first, second = load(file, discover()).rules

    assert (first.repetitions, first.backoff) == (3, 0)
    assert (second.repetitions, second.backoff) == (3, 2)
    assert first.trigger.group == "sleep"


@needs_files
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_file_of_the_first_implementation_runs_without_errors(
    file: Path,
) -> None:
    told = Story(load(file, discover()))
    told.start()
    for _ in range(100):
        job = next(iter(told.engine.state.table.records), None)
        if job is None or told.exit_code is not None:
            break
        told.begin(job)
        told.end(job)
    assert told.exit_code == 0
    assert told.engine.report().errors == 0


def test_other_features_of_the_first_implementation_keep_their_meaning() -> None:
    text = """
logging: {debug: true}
jobs:
  - {name: sim, command: sleep 1, nodes: 2, tasks: 1}
  - {name: post, command: sleep 2}
  - {name: sim, command: sleep 3, count: 2}
rules:
  - {trigger: start, action: {name: submit}}
"""
    story = Story(text)

    # A submit without a label submits every group; groups with the same name are one.
    assert story.submitted(story.start()) == ["sim.0", "sim.1", "sim.2", "post.0"]
    commands = [job.command[1] for job in story.ensemble.groups["sim"].jobs(0)]
    assert commands == ["1", "3", "3"]
