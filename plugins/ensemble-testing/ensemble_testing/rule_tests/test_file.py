"""Reader of files ``*.ensemble-test.yaml``, each with rule tests of one ensemble.

All mistakes are reported at once, before any test runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ensemble_core.cli.toolkit import (
    Context,
    Known,
    Validators,
    load_file,
    read_document,
    read_file,
    shown,
)
from ensemble_core.cli.toolkit import DocumentPath as Path
from ensemble_core.errors import FileErrors, Location
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.registry import Registry
from ensemble_core.plugin.untrusted_code import Purpose, require
from ensemble_testing.rule_tests.expectations import KEYS, Expectation, read_expectation
from ensemble_testing.rule_tests.given_steps import WORDS, Given
from ensemble_testing.rule_tests.scripted_queue import Tell
from ensemble_testing.rule_tests.step_reader import StepReader


@dataclass(frozen=True, slots=True)
class Step:
    """A step of ``given``."""

    where: Location | None
    at: float  # seconds after the start
    word: str  # name of the step in messages
    tell: Tell | None = None
    #: For the keyword ``reused``: jobs or groups with results from an earlier run.
    reuses: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RuleTest:
    """A rule test."""

    name: str
    where: Location | None
    steps: tuple[Step, ...]
    expect: tuple[Expectation, ...]
    #: Gauges of the queue at the start of the run.
    gauges: Mapping[str, float] = field(default_factory=dict)
    #: Functions and generators whose results the test gives, so they are not called. ``None``: all.
    answered: frozenset[str] | None = frozenset()

    @property
    def length(self) -> float:
        """Return the time of the test's last step or expectation, in seconds after the start."""
        times = [step.at for step in self.steps]
        times += [each.at for each in self.expect if each.at is not None]
        return max(times, default=0.0)


@dataclass(frozen=True, slots=True)
class TestFile:
    """The tests of one file, and their ensemble."""

    __test__ = False  # not a pytest test, despite its name

    file: str
    ensemble: Ensemble
    registry: Registry
    tests: tuple[RuleTest, ...]
    purpose: Purpose = "check"  # says whether code that the file names may be loaded


def read_tests(
    file: str,
    plugins: tuple[str, ...] = (),
    *,
    purpose: Purpose = "check",
    text: str | None = None,
    about: tuple[Ensemble, Registry] | None = None,
) -> TestFile:
    """Return the tests of a file. Raise :class:`EnsembleError` with all mistakes.

    - ``purpose``: says whether plugins that the file names may be loaded
    - ``text``: read instead of the file
    - ``about``: test this ensemble, instead of the ensemble file and plugins that the tests name
    """
    document = read_document(read_file(file) if text is None else text, file)
    data = document.data
    here = os.path.dirname(file)
    known = data if isinstance(data, dict) else {}
    named = known.get("plugins") or []
    more = [
        os.path.join(here, str(each)) for each in (named if isinstance(named, list) else [named])
    ]
    if about is not None:
        registry = about[1]
    else:
        for each in more:
            where = document.at(("plugins",))
            require("plugin", f"the plugin {each!r}", purpose, where=where, instead=_PLUGIN)
        registry = discover((*plugins, *more))
    context = Context(document, Validators(registry), None, Known())
    if not isinstance(data, dict):
        what = f"expected a mapping with 'ensemble' and 'tests', the file contains {shown(data)}"
        hint = "write 'ensemble: study.yaml' and 'tests: […]'"
        context.report((), what, hint=hint, code="wrong-type")
        raise FileErrors(context.errors)
    for key in data:
        if key not in _TOP:
            _unknown_key(context, (key,), key, _TOP)
    study = data.get("ensemble")
    if not isinstance(study, str):
        hint = "write 'ensemble: study.yaml', the file under test"
        what = "the test file does not name its ensemble file"
        context.report(("ensemble",), what, hint=hint, code="missing-key")
        raise FileErrors(context.errors)
    overrides = data.get("set") or []
    if not isinstance(overrides, list):
        hint = "write a list of KEY=VALUE, as for --set"
        context.report(("set",), f"{shown(overrides)} is not a list", hint=hint, code="wrong-type")
        overrides = []
    if about is not None:
        ensemble = about[0]
    else:
        ensemble = load_file(
            os.path.join(here, study), registry, overrides=list(map(str, overrides))
        )
    reader = _Reader(context, ensemble)
    found = reader.tests(data.get("tests"))
    if context.errors:
        raise FileErrors(context.errors)
    return TestFile(file, ensemble, registry, found, purpose)


#: Hint: an alternative to loading a plugin that a test names.
_PLUGIN = "remove it from the file and load it with --plugin"
_TOP = ("ensemble", "tests", "plugins", "set")
_TEST = ("name", "given", "expect")


def _unknown_key(context: Context, path: Path, key: Any, known: tuple[str, ...]) -> None:
    context.unknown(
        path,
        "key",
        str(key),
        known,
        what=f"unknown key {key!r}",
        where=context.document.at_key(path),
    )


class _Reader(StepReader):
    def __init__(self, context: Context, ensemble: Ensemble) -> None:
        super().__init__(context, ensemble)
        # Functions, and actions without a plan, can add rules to a live run.
        joins = bool(ensemble.functions) or any(
            each.plan is None
            for rule in ensemble.rules
            for action in rule.actions
            for each in action.flat()
        )
        context.known = Known(
            groups=dict(ensemble.groups),
            statistics=ensemble.statistics,
            functions=ensemble.functions,
            generators=dict(ensemble.generators),
            instances=frozenset(ensemble.instances),
            rules=None if joins else frozenset(rule.id for rule in ensemble.rules),
        )
        self._given = Given(context, ensemble)

    def tests(self, data: Any) -> tuple[RuleTest, ...]:
        found: list[RuleTest] = []
        if not isinstance(data, list) or not data:
            hint = "write a list, each with 'name', 'given' and 'expect'"
            self._context.report(("tests",), "the file has no tests", hint=hint, code="missing-key")
            return ()
        names: set[str] = set()
        for place, spec in enumerate(data):
            path: Path = ("tests", place)
            if not isinstance(spec, Mapping):
                hint = "write {name: …, given: […], expect: […]}"
                self._report(path, f"{shown(spec)} is not a test", hint, "wrong-type")
                continue
            test = self._test(spec, path)
            if test.name in names:
                self._report(
                    (*path, "name"), f"duplicate test {test.name!r}", "rename one", "wrong-type"
                )
            names.add(test.name)
            found.append(test)
        return tuple(found)

    def _test(self, spec: Mapping[str, Any], path: Path) -> RuleTest:
        for key in spec:
            if key not in _TEST:
                _unknown_key(self._context, (*path, key), key, _TEST)
        name = spec.get("name")
        if not isinstance(name, str):
            self._report((*path, "name"), "the test has no name", "write 'name: …'", "missing-key")
        self._given.answered = set()
        steps, gauges = self._steps(spec.get("given"), (*path, "given"))
        expect = self._expect(spec.get("expect"), (*path, "expect"))
        where = self._context.document.at(path)
        answered = frozenset(self._given.answered)
        return RuleTest(str(name), where, steps, expect, gauges, answered)

    def _entries(self, data: Any, path: Path) -> list[tuple[Path, Mapping[str, Any]]]:
        if data is None:
            return []
        if not isinstance(data, list):
            self._report(
                path,
                f"{shown(data)} is not a list",
                "write one entry a line, with '- '",
                "wrong-type",
            )
            return []
        found = []
        for place, entry in enumerate(data):
            if isinstance(entry, Mapping):
                found.append(((*path, place), entry))
            else:
                self._report(
                    (*path, place),
                    f"{shown(entry)} is not a mapping",
                    "write WORD: …",
                    "wrong-type",
                )
        return found

    def _steps(self, data: Any, path: Path) -> tuple[tuple[Step, ...], Mapping[str, float]]:
        steps: list[Step] = []
        gauges: Mapping[str, float] = {}
        now = 0.0
        for here, entry in self._entries(data, path):
            now = self._time(entry, here, now)
            words = [word for word in entry if word != "at"]
            for word in words:
                if word != "start" and word not in WORDS:
                    self._unknown_key((*here, word), "event", ("start", *WORDS))
            if len(words) > 1:
                self._report(
                    here,
                    f"a step combines {' and '.join(map(str, words))}",
                    "write one step for each",
                    "wrong-type",
                )
                continue
            word = str(words[0]) if words else ""
            where = self._context.document.at(here)
            if word == "start":
                if steps or now:
                    self._report(
                        here, "the run has already started", "write 'start' first", "wrong-type"
                    )
                gauges = self._given.start_gauges(entry[word] or {}, (*here, word))
            elif not word:
                steps.append(Step(where, now, "time"))
            elif word in WORDS:
                tell = self._given.step(word, entry[word], (*here, word))
                given = entry[word] if word == "reused" else None
                jobs = given.get("job") if isinstance(given, Mapping) else None
                reuses = frozenset(map(str, jobs if isinstance(jobs, list) else [jobs or ""]))
                steps.append(Step(where, now, word, tell, reuses - {""}))
        return tuple(steps), gauges

    def _time(self, entry: Mapping[str, Any], path: Path, now: float) -> float:
        """Return the time of a step; report a time before the previous step's."""
        if "at" not in entry:
            return now
        found = self._context.duration((*path, "at"), entry["at"])
        if found is None:
            return now
        if found < now:
            what = f"{entry['at']!r} is before the step above it, at {now:g} s"
            hint = "write the steps in the order in which they happen"
            self._context.report((*path, "at"), what, hint=hint, code="out-of-order")
            return now
        return found

    def _expect(self, data: Any, path: Path) -> tuple[Expectation, ...]:
        if not data:
            self._report(
                path, "nothing is expected", "write 'expect: [{fired: RULE}]'", "missing-key"
            )
        found = []
        for here, entry in self._entries(data, path):
            sound = True
            for key in entry:
                if key not in KEYS:
                    self._unknown_key((*here, key), "word", KEYS)
                    sound = False
            at = None
            if "at" in entry:
                at = self._context.duration((*here, "at"), entry["at"])
            if not set(entry) - {"at"} and sound:
                self._report(
                    here, "nothing is expected here", f"one of {', '.join(KEYS[1:])}", "wrong-type"
                )
            found.append(read_expectation(self._context, entry, here, at))
        return tuple(found)
