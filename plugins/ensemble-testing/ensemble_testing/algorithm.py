"""Contract suite for algorithms: plugins that an ensemble file names under ``use:``.

An author's own test file::

    from ensemble_testing import AlgorithmContract

    class TestDemand(AlgorithmContract):
        plugin = my_record
        options = {"group": "sim"}
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from ensemble_core.cli.toolkit import load_text, option_defaults, write_yaml
from ensemble_core.errors import EnsembleError
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.hookspecs import AlgorithmPlugin, AlgorithmView
from ensemble_core.plugin.option_schemas import plain
from ensemble_core.plugin.record_validation import check_record
from ensemble_core.plugin.registry import LoadedPlugin, Registry

#: Number of sets of options generated from the schema.
_MADE = 40


class AlgorithmContract:
    """Tests of an algorithm: its rules are valid, and the same options make the same rules.

    - ``plugin``: the record
    - ``groups``: job groups of the tests, by name
    - ``options``: valid options for these groups
    - ``bad_options``: options that must be rejected
    - ``example_exit_code``: exit code of the record's example
    - ``example_options``: more arguments of ``ensemble run`` for the example
    """

    plugin: ClassVar[AlgorithmPlugin]
    options: ClassVar[Mapping[str, Any]] = {}
    groups: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "sim": {"command": "true"},
        "post": {"command": "true", "nodes": 2},
    }
    bad_options: ClassVar[Sequence[Mapping[str, Any]]] = ()
    example_exit_code: ClassVar[int] = 0
    example_options: ClassVar[Sequence[str]] = ()

    # -- the tests -----------------------------------------------------------------------------

    def test_algorithm_record_is_valid(self) -> None:
        check_record(self.plugin)
        assert self.plugin.summary

    def test_same_options_make_the_same_rules(self) -> None:
        first, second = self._built(self.options), self._built(self.options)
        assert first == second
        assert json.loads(json.dumps(first)) == first, "rules are plain data"

    def test_build_changes_neither_options_nor_groups(self) -> None:
        options = option_defaults(self.plugin.options, copy.deepcopy(dict(self.options)))
        view, before = self._view(), copy.deepcopy(options)
        self.plugin.build(options, view)
        assert options == before
        assert view == self._view()

    def test_every_rule_is_valid(self) -> None:
        assert self._load(self._file("one")).rules

    def test_two_instances_work_in_one_file(self) -> None:
        rules = [rule.id for rule in self._load(self._file("one", "two")).rules]
        assert len(rules) == len(set(rules))
        assert {rule.partition("-")[0] for rule in rules} == {"one", "two"}

    def test_rules_use_only_given_job_groups(self) -> None:
        given = json.dumps(plain(self.options))
        for job in self._fragment(self.options).jobs:
            assert json.dumps(job.get("command")) in given, f"{job} is not one of the given groups"

    def test_every_allowed_option_makes_valid_rules(self) -> None:
        """Options that the schema allows may also be rejected with an :class:`EnsembleError`."""
        chance = random.Random(1)
        for _ in range(_MADE):
            made = {**self._random_options(chance), **self.options}
            for key in self._optional():
                if chance.random() < 0.5 and key in self.options:
                    del made[key]
            error = self._refusal(made)
            assert "invalid output of" not in str(error), (made, str(error))
            assert error is None or error.code != "plugin-failed", (made, str(error))

    def test_bad_options_are_rejected(self) -> None:
        for bad in (*self.bad_options, {**self.options, "no-such-option": 1}):
            error = self._refusal(bad)
            assert error is not None, f"{bad} was accepted"
            assert "invalid output of" not in str(error), str(error)

    def test_example_ends_as_declared_and_replays_identically(self) -> None:
        if not self.plugin.example:
            return
        from click.testing import CliRunner

        from ensemble_core.cli.main import main

        with TemporaryDirectory() as folder:
            file, state = Path(folder) / "example.yaml", str(Path(folder) / "state")
            file.write_text(self.plugin.example, encoding="utf-8")
            words = [str(file), "--executor", "local", "--state", state, *self.example_options]
            ended = CliRunner().invoke(main, ["run", *words], standalone_mode=False)
            assert (ended.return_value or 0) == self.example_exit_code, ended.output
            words = ["replay", "last", "--state", state]
            again = CliRunner().invoke(main, words, standalone_mode=False)
            assert not again.exception, again.output
            assert not again.return_value, again.output

    # -- helpers ---------------------------------------------------------------------------------

    @cached_property
    def _registry(self) -> Registry:
        found = discover()
        if any(each is self.plugin for each in found.algorithms.values()):
            return found
        own = LoadedPlugin(
            name="tested",
            distribution="tested",
            version="1",
            module="tested",
            records={"algorithm": (self.plugin,)},
        )
        others = [each for each in found.plugins if self.plugin.name not in _algorithms(each)]
        return Registry([*others, own])

    def _view(self) -> AlgorithmView:
        groups = {name: {"name": name, **fields} for name, fields in self.groups.items()}
        return AlgorithmView(instance="one", groups=groups)

    def _fragment(self, options: Mapping[str, Any]) -> Any:
        return self.plugin.build(option_defaults(self.plugin.options, options), self._view())

    def _built(self, options: Mapping[str, Any]) -> dict[str, Any]:
        made = self._fragment(options)
        return {
            "jobs": plain(made.jobs),
            "rules": plain(made.rules),
            "statistics": plain(made.statistics),
            "heartbeat": made.heartbeat,
        }

    def _file(self, *names: str, options: Mapping[str, Any] | None = None) -> str:
        given = plain(self.options if options is None else options)
        uses = [{"algorithm": self.plugin.name, "as": name, "with": given} for name in names]
        jobs = [{"name": name, **plain(fields)} for name, fields in self.groups.items()]
        return write_yaml({"jobs": jobs, "use": uses})

    def _load(self, text: str) -> Ensemble:
        return load_text(text, self._registry)

    def _refusal(self, options: Mapping[str, Any]) -> EnsembleError | None:
        """Return the error for these options, or ``None`` if they are accepted."""
        try:
            self._load(self._file("one", options=options))
        except EnsembleError as error:
            return error
        return None

    def _optional(self) -> list[str]:
        required = self.plugin.options.get("required", ())
        return [key for key in self.plugin.options.get("properties", {}) if key not in required]

    def _random_options(self, chance: random.Random) -> dict[str, Any]:
        """Return random options of plain types that the schema allows."""
        made = {}
        for key in self._optional():
            schema = self.plugin.options["properties"][key]
            if chance.random() < 0.5:
                continue
            if "enum" in schema:
                made[key] = chance.choice(schema["enum"])
            elif schema.get("type") == "integer" and "x-ensemble" not in schema:
                made[key] = chance.randint(schema.get("minimum", 0), schema.get("maximum", 50))
            elif schema.get("type") == "boolean":
                made[key] = chance.random() < 0.5
        return made


def _algorithms(plugin: LoadedPlugin) -> set[str]:
    return {record.name for record in plugin.records.get("algorithm", ())}
