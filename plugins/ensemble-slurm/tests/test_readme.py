"""Tests of the README: its ensemble files are valid, and it lists every option.

A test follows the page ``docs/start-slurm.md`` on a real cluster.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ensemble_slurm import JOB_OPTIONS, OPTIONS
from ensemble_testing import ReadmeContract
from start_pages import commands_of, run_commands

from ensemble_core.config import load_text
from ensemble_core.plugin.discovery import discover


class TestReadme(ReadmeContract):
    distribution = "ensemble-slurm"
    options = JOB_OPTIONS
    executor_options = OPTIONS
    tests = Path(__file__).parent


def test_an_option_that_only_the_run_may_set_is_rejected_with_a_hint() -> None:
    text = (
        "jobs: [{name: sim, command: 'true', options: {slurm: {extra: ['--time=1']}}}]\n"
        "rules: [{trigger: start, action: {name: submit, label: sim}}]\n"
    )
    with pytest.raises(Exception, match=r"item 1 of 'extra'.*--time=1.*not allowed") as caught:
        load_text(text, discover(), file="e.yaml")
    assert "duration" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "word"),
    [("{partitoin: a}", "partition"), ("{extra: ['--array=0-9']}", "extra"), ("{launch: mpirun}", "launch"), ("{requeue: maybe}", "requeue")],
)  # fmt: skip
def test_invalid_options_of_a_group_are_rejected_before_submitting(options: str, word: str) -> None:
    text = (
        f"jobs: [{{name: sim, command: 'true', options: {{slurm: {options}}}}}]\n"
        "rules: [{trigger: start, action: {name: submit, label: sim}}]\n"
    )
    with pytest.raises(Exception, match=word):
        load_text(text, discover(), file="e.yaml")


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        ("options: {slurm: {begin: now}}", "extra (Further options of sbatch, each --NAME=VALUE)"),
        ("options: {slurm: {acount: a}}", "did you mean 'account'?"),
        ("options: {slurm: {exclude: n1}}", "it is a key of the job group: avoid"),
        ("options: {slurm: {time: 1h}}", "it is a key of the job group: duration"),
        ("partition: short", "it is an option of slurm: write 'options: {slurm: {partition: …}}'"),
        ("options: {slurm: {extra: ['-N2']}}", "an option of sbatch in its long form"),
        ("options: {slurm: {nice: '= 50 * attempt'}}", "may stand under 'with'"),
    ],
)
def test_options_of_sbatch_in_another_place_or_form_have_a_hint(keys: str, hint: str) -> None:
    text = (
        f"jobs: [{{name: sim, command: 'true', {keys}}}]\n"
        "rules: [{trigger: start, action: {name: submit, label: sim}}]\n"
    )
    with pytest.raises(Exception, match=re.escape(hint)):
        load_text(text, discover(), file="e.yaml")


@pytest.mark.checkout
@pytest.mark.timeout(300)
def test_the_commands_of_the_page_get_started_run_the_study(cluster: Any, tmp_path: Path) -> None:
    commands = commands_of("start-slurm.md").replace("partition=NAME", "partition=all")
    output = run_commands(commands, tmp_path)
    assert "executor slurm" in output
    assert " exit code 0" in output
