"""Entries under ``jobs:`` that name a source: expansion and checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import Story

from ensemble_core import Fragment, Location, SourcePlugin, UsageError
from ensemble_core.config import load, load_text, schema
from ensemble_core.errors import FileErrors
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.registry import LoadedPlugin, Registry

ENTRY = "jobs:\n  - {name: first, command: 'true'}\n  - listed: list.txt\n    prefix: p-\n"
OPTIONS = {"type": "object", "properties": {"prefix": {"type": "string", "default": ""}}}


def registry(expand: Any, name: str = "listed") -> Registry:
    record = SourcePlugin(name=name, summary="tasks", expand=expand, options=OPTIONS)
    plugin = LoadedPlugin(
        name="t",
        distribution="ensemble-t",
        version="2.0",
        module="t",
        records={"source": (record,)},
    )
    return Registry([*discover().plugins, plugin])


def lines(options: Any, view: Any) -> Fragment:
    """Source with a job group for each line of a file, submitted at the start."""
    jobs: list[dict[str, Any]] = []
    rules, places = [], {}
    name = options["listed"]
    for number, line in enumerate(view.read(name).splitlines(), 1):
        group, _, command = line.partition(" ")
        places["jobs", len(jobs)] = Location(view.called(name), number, 1)
        jobs.append({"name": options["prefix"] + group, "command": command})
        rules.append(
            {"trigger": "start", "action": {"name": "submit", "label": options["prefix"] + group}}
        )
    return Fragment(jobs=jobs, rules=rules, places=places, warnings=["two lines"])


def in_folder(folder: Path, text: str, listed: str = "a echo a\nb echo b\n") -> Path:
    (folder / "list.txt").write_text(listed, encoding="utf-8")
    file = folder / "study.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def errors(file: Path, expand: Any = lines, **given: Any) -> list[str]:
    with pytest.raises(FileErrors) as caught:
        load(file, registry(expand), **given)
    shown = [f"{each.where}: {each.what} [{each.code}]" for each in caught.value.errors]
    return [text.replace(f"{file.parent}/", "") for text in shown]


def test_groups_of_a_source_replace_its_entry_and_rules_are_appended(
    tmp_path: Path,
) -> None:
    text = (
        ENTRY + "  - {name: last, command: 'true'}\n"
        "rules: [{trigger: job-success, name: p-b, action: {name: submit, label: last}}]\n"
    )
    ensemble = load(in_folder(tmp_path, text), registry(lines))
    assert list(ensemble.groups) == ["first", "p-a", "p-b", "last"]
    assert [rule.label for rule in ensemble.rules][1:] == ["start", "start"]
    assert any("two lines" in text and "study.yaml:3:5" in text for text in ensemble.warnings)


def test_file_without_rules_gets_those_of_its_source(tmp_path: Path) -> None:
    assert len(load(in_folder(tmp_path, ENTRY), registry(lines)).rules) == 2


def test_resume_uses_the_stored_expansion(tmp_path: Path) -> None:
    file = in_folder(tmp_path, ENTRY)
    before = load(file, registry(lines))
    (tmp_path / "list.txt").unlink()

    def gone(options: Any, view: Any) -> Fragment:
        raise AssertionError("asked again")

    def again() -> Ensemble:
        return load_text(
            file.read_text(), registry(gone), file=str(file), attached=dict(before.attached)
        )

    assert again().rules == again().rules
    assert [rule.spec for rule in again().rules] == [rule.spec for rule in before.rules]
    assert dict(again().groups) == dict(before.groups)
    (kept,) = (json.loads(text) for name, text in before.attached.items() if "expanded" in name)
    assert kept["version"] == "ensemble-t 2.0"


def test_set_changes_a_job_group_of_a_source(tmp_path: Path) -> None:
    file = in_folder(tmp_path, ENTRY)
    ensemble = load(file, registry(lines), overrides=["jobs.p-b.count=3"])
    assert ensemble.groups["p-b"].count == 3


def test_set_changes_options_of_a_source(tmp_path: Path) -> None:
    ensemble = load(
        in_folder(tmp_path, ENTRY), registry(lines), overrides=["jobs.listed.prefix=q-"]
    )
    assert list(ensemble.groups) == ["first", "q-a", "q-b"]


def test_mistake_in_a_sources_file_is_reported_there(tmp_path: Path) -> None:
    file = in_folder(tmp_path, ENTRY, "a echo 'a\nb echo {here\n")
    assert errors(file)[0].startswith("list.txt:1:1: 'command'")


def test_mistake_without_a_place_is_reported_as_the_plugins(tmp_path: Path) -> None:
    def wrong(options: Any, view: Any) -> Fragment:
        return Fragment(jobs=[{"name": "x", "comand": "true"}], rules=[{"trigger": "strat"}])

    told = errors(in_folder(tmp_path, ENTRY), wrong)
    whose = "study.yaml:3:5: invalid output of the source 'listed' (plugin 't' of ensemble-t 2.0): "
    assert f"{whose}unknown key 'comand' in the job group 'x' [unknown-key]" in told
    assert f"{whose}there is no trigger 'strat' [no-such-trigger]" in told


def test_entry_of_a_source_is_checked_before_expansion(tmp_path: Path) -> None:
    file = in_folder(tmp_path, ENTRY.replace("prefix", "prefx"))
    assert errors(file) == [
        "study.yaml:4:5: unknown key 'prefx' in the entry of 'listed' [unknown-key]"
    ]


def test_places_after_a_sources_entry_are_correct(tmp_path: Path) -> None:
    file = in_folder(tmp_path, ENTRY + "  - {name: last, comand: 'true'}\n")
    assert errors(file) == [
        "study.yaml:5:18: unknown key 'comand' in the job group 'last' [unknown-key]",
    ]


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (None, "returned None, expected a Fragment"),
        (Fragment(jobs=["x"]), "returned jobs that are not a list of mappings"),  # type: ignore[list-item]
        (Fragment(warnings=[1]), "returned warnings that are not a list of strings"),  # type: ignore[list-item]
        (Fragment(rules=[{"trigger": print}]), "expected plain data"),
    ],
)
def test_source_that_returns_no_fragment_is_reported(
    returned: Any, told: str, tmp_path: Path
) -> None:
    (error,) = errors(in_folder(tmp_path, ENTRY), lambda options, view: returned)
    assert told in error


def test_source_that_raises_is_reported_with_its_place(tmp_path: Path) -> None:
    def broken(options: Any, view: Any) -> Fragment:
        raise ZeroDivisionError("by zero")

    (error,) = errors(in_folder(tmp_path, ENTRY), broken)
    assert "the source 'listed' (plugin 't' of ensemble-t 2.0) cannot be built" in error
    assert "[plugin-failed]" in error


def test_all_errors_of_a_source_are_reported(tmp_path: Path) -> None:
    def strict(options: Any, view: Any) -> Fragment:
        wrong = [UsageError(text, where=Location("list.txt", 7, 2), code="x") for text in "ab"]
        raise FileErrors(wrong)

    assert errors(in_folder(tmp_path, ENTRY), strict) == [
        "list.txt:7:2: a [x]",
        "list.txt:7:2: b [x]",
    ]


def test_missing_file_is_reported_where_it_is_named(tmp_path: Path) -> None:
    file = in_folder(tmp_path, ENTRY)
    (tmp_path / "list.txt").unlink()
    assert errors(file) == ["study.yaml:3:13: there is no file 'list.txt' [no-such-file]"]


def test_entry_with_two_sources_is_rejected(tmp_path: Path) -> None:
    both = Registry([*registry(lines).plugins, *registry(lines, "list").plugins[-1:]])
    file = in_folder(tmp_path, ENTRY + "    list: x\n")
    with pytest.raises(FileErrors) as caught:
        load(file, both)
    assert "'listed' and 'list'; an entry has only one" in caught.value.errors[0].what


def test_schema_allows_entries_of_sources() -> None:
    import jsonschema_rs

    whole = schema(registry(lines))
    assert jsonschema_rs.is_valid(whole, {"jobs": [{"listed": "list.txt", "prefix": "p"}]})
    assert not jsonschema_rs.is_valid(whole, {"jobs": [{"listed": "list.txt", "prefx": "p"}]})
    assert not jsonschema_rs.is_valid(whole, {"jobs": [{"name": "a", "command": "b"}]})


def test_expanded_source_runs(tmp_path: Path) -> None:
    story = Story(load(in_folder(tmp_path, ENTRY), registry(lines)))
    story.start()
    assert story.submitted() == ["p-a.0", "p-b.0"]
