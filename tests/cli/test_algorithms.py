"""Tests of ``ensemble algorithms``, ``validate --expanded``, and ``why`` for an instance."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from ensemble_core.cli.main import main

STUDY = """
jobs: [{name: sim, command: "true", count: 3}]
use:
  - {algorithm: random-selection, as: draw, with: {groups: [sim], at_once: 1}}
"""


def ensemble(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def test_list_shows_each_algorithm_and_json_all_details() -> None:
    listed = ensemble("algorithms", "list").output
    assert "workload-demand         submit all jobs, and scale the cluster with the queue" in listed
    found = json.loads(ensemble("algorithms", "list", "--json").output)["algorithms"]
    assert len(found) == 7
    assert all(each["example"] and each["objective"] for each in found)


def test_show_describes_options_needs_and_an_example() -> None:
    shown = ensemble("algorithms", "show", "workload-demand").output
    assert "needs an executor that can: resize" in shown
    assert "groups (array, required)" in shown
    assert "algorithm: workload-demand" in shown
    assert (
        "algorithm workload-demand"
        in ensemble("plugins", "show", "algorithm", "workload-demand").output
    )
    wrong = ensemble("algorithms", "show", "workload-demnad")
    assert wrong.exit_code == 2
    assert "did you mean 'workload-demand'?" in wrong.output


def test_shown_rules_are_a_valid_entry_of_a_file(tmp_path: Path) -> None:
    words = ("algorithms", "show", "random-selection", "--with", "groups=[sim]")
    made = ensemble(*words, "--with", "at_once=2").output
    assert "trigger: job-clean" in made
    file = tmp_path / "study.yaml"
    file.write_text('jobs: [{name: sim, command: "true", count: 3}]\n' + made)
    assert "valid: 1 job group, 2 rules" in ensemble("validate", str(file)).output
    wrong = ensemble(*words, "--with", "at_once=0")
    assert wrong.exit_code == 2
    assert "'at_once' is 0, it must be at least 1" in wrong.output


def test_expanded_file_is_valid_and_why_groups_by_instance(tmp_path: Path) -> None:
    file, expanded = tmp_path / "study.yaml", tmp_path / "expanded.yaml"
    file.write_text(STUDY)
    printed = ensemble("validate", "--expanded", str(file))
    assert printed.exit_code == 0, printed.output
    expanded.write_text(printed.output)
    state = str(tmp_path / "state")
    for each in (file, expanded):
        ran = ensemble("run", str(each), "--executor", "local", "--state", state)
        assert ran.exit_code == 0, ran.output
        assert "on  draw" in ran.output
        why = ensemble("why", "last", "draw", "--state", state).output
        assert "on from the start" in why
        assert "draw-next-sim" in why
    told = json.loads(ensemble("why", "last", "draw", "--json", "--state", state).output)
    assert [rule["fired"] for rule in told["rules"]] == [1, 3]


def test_invalid_file_is_not_expanded(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(STUDY.replace("sim]", "smi]"))
    wrong = ensemble("validate", "--expanded", str(file))
    assert wrong.exit_code == 2
    assert "there is no job group 'smi'" in wrong.output
