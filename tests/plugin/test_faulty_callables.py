"""Functions of plugins' records that raise or return something wrong: the message names the plugin
and the line, and does not report an internal error."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from ensemble_core.cli.main import main
from ensemble_core.plugin import records
from ensemble_core.plugin.record_validation import _FUNCTIONS

#: A plugin with one record, which has a faulty function ``odd``.
PLUGIN = """
from ensemble_core import *
from ensemble_core import hookimpl


def odd(*arguments):
    {body}


class Quick(Executor):
    def open(self, run, emit):
        self.run, self.emit = run, emit

    def submit(self, jobs):
        for job in jobs:
            for name in ("submit", "alloc", "start", "finish", "clean"):
                context = {{"status": 0}} if name == "finish" else {{}}
                self.emit([JobEvent(self.run.clock(), job.id, name, context)])

    def cancel(self, jobs):
        pass

    def close(self):
        pass


class Reader(Observer):
    path = "x"

    def feed(self, data):
        return []


class Mean:
    def update(self, value):
        pass

    def get(self):
        return 1.0


class Chooser(Generator):
    points = [{{"x": 1.0}}]

    def suggest(self, count):
        given, self.points = self.points[:count], self.points[count:]
        return given

    def ingest(self, points):
        pass


@hookimpl
def ensemble_{hook}():
    return [{record}(name="odd", summary="-", {given})]
"""
#: An executor that runs the jobs if another record is faulty.
QUICK = """

@hookimpl
def ensemble_executors():
    return [ExecutorPlugin(name="quick", summary="-", build=lambda *given: Quick())]
"""
SIM = 'jobs: [{{name: sim, command: "true {{x}}", parameters: {{x: [1, 2]}}{more}}}]\n'
START = "rules:\n  - {{trigger: start, action: {{name: submit, label: sim}}}}\n{more}"


def study(jobs: str = "", rules: str = "", more: str = "") -> str:
    return SIM.format(more=jobs) + START.format(more=rules) + more


GENERATORS = (
    'jobs: [{name: sim, command: "true {x}", result: {E: = x}}]\n'
    "generators: [{name: g, use: odd, group: sim, variables: {x: [0.0, 2.0]}, "
    "objectives: {E: minimize}, until: count.done >= 1}]\n"
)
BUILT = "build=lambda *given: {}"
WITHIN = "options={'properties': {'odd': {'type': 'string'}}}"
#: For each kind of record and function: other arguments of the record, the file, and further
#: command-line arguments.
USES: dict[tuple[str, str], tuple[str, str, list[str]]] = {
    ("executor", "build"): ("", study(), ["run", "--executor", "odd"]),
    ("executor", "available"): (BUILT.format("Quick()"), study(), ["run", "--executor", "odd"]),
    ("executor", "render"): (
        BUILT.format("Quick()"),
        study(),
        ["run", "--executor", "odd", "--dry-run"],
    ),
    ("executor", "never"): (BUILT.format("Quick()"), study(), ["run", "--executor", "odd"]),
    ("executor", "never_here"): (BUILT.format("Quick()"), study(), ["run", "--executor", "odd"]),
    ("executor", "check_kind"): (
        BUILT.format("Quick()")
        + ", kinds={'properties': {}}, options={'properties': {'kinds': {}}}",
        study(more="pilots: {small: {}}\n"),
        ["run", "--executor", "odd"],
    ),
    ("executor", "virtual"): (BUILT.format("Quick()"), study(), ["run", "--executor", "odd"]),
    ("executor", "status"): (BUILT.format("Quick()"), study(), ["run", "--executor", "odd"]),
    ("executor", "remains"): (BUILT.format("Quick()"), study(), ["run", "--executor", "odd"]),
    ("executor", "inside"): (BUILT.format("Quick()"), study(), ["run", "--executor", "odd"]),
    ("trigger", "build"): ("", study(rules="  - {trigger: odd, action: {name: terminate}}\n"), []),
    ("trigger", "needs_variables"): (
        BUILT.format('Trigger(events=("observed",))'),
        study(rules="  - {trigger: odd, action: {name: terminate}}\n"),
        [],
    ),
    ("action", "run"): ("", study(rules="  - {trigger: job-done, action: {name: odd}}\n"), []),
    ("action", "plan"): ("", study(rules="  - {trigger: job-done, action: {name: odd}}\n"), []),
    ("statistic", "build"): (
        "",
        study(
            rules="  - {trigger: metric, name: odd.sim-duration, when: '> 9', "
            "action: {name: terminate}}\n"
        ),
        [],
    ),
    ("statistic", "timed_when"): (
        BUILT.format("Mean()"),
        study(
            rules="  - {trigger: metric, name: odd.sim-duration, when: '> 9', "
            "action: {name: terminate}}\n"
        ),
        [],
    ),
    ("observer", "build"): ("", study(", observe: {odd: {}}"), []),
    ("observer", "variables"): (
        BUILT.format("Reader()"),
        study(
            ", observe: {odd: {}}",
            "  - {trigger: metric, name: mean.sim-E, when: '> 9', action: {name: terminate}}\n",
        ),
        [],
    ),
    ("observer", "unasked"): (
        BUILT.format("Reader()") + ", variables=lambda options: {'E'}",
        study(
            ", observe: {odd: {}}",
            "  - {trigger: metric, name: mean.sim-E, when: '> 9', action: {name: terminate}}\n",
        ),
        [],
    ),
    ("resizer", "build"): ("", study(), []),
    ("source", "expand"): ("", "jobs: [{odd: x}]\n" + START.format(more=""), []),
    ("algorithm", "build"): ("", study(more="use: [{algorithm: odd}]\n"), []),
    ("generator", "build"): ("", GENERATORS, []),
    ("generator", "check"): (BUILT.format("Chooser()"), GENERATORS, []),
    ("generator", "finite"): (
        BUILT.format("Chooser()"),
        GENERATORS.replace(", until: count.done >= 1", ""),
        [],
    ),
    ("environment", "wrap"): (WITHIN, study(", within: {odd: x}"), []),
    ("environment", "check"): (
        WITHIN + ", wrap=lambda job, options: job.command",
        study(", within: {odd: x}"),
        [],
    ),
}
#: Cases without an error: functions that are not called here, or that may return any value.
UNASKED = {
    ("resizer", "build"),
    ("executor", "available"),
    ("executor", "remains"),
    ("executor", "status"),
    ("executor", "virtual"),
    ("executor", "inside"),
    ("observer", "unasked"),
}
ANYTHING = {("generator", "check"), ("generator", "finite"), ("statistic", "timed_when")}
ANYTHING |= {("environment", "check")}
MAYBE_NONE = {("action", "run"), ("trigger", "needs_variables"), ("observer", "variables")}
MAYBE_NONE |= {("executor", name) for name in ("never", "never_here", "check_kind")}


def test_every_function_of_every_record_has_a_case() -> None:
    known = vars(records)
    classes = [known[name] for name in known if name.endswith("Plugin")]
    found = {
        (cls.__name__.removesuffix("Plugin").lower(), each.name)
        for cls in classes
        for each in fields(cls)
        if "Callable" in str(each.type) or each.name == "plan"
    }
    assert found == set(USES)
    assert found == {(kind, name) for kind, names in _FUNCTIONS.items() for name in names}


@pytest.mark.parametrize(("kind", "function"), USES)
@pytest.mark.parametrize("body", ["return None", "return 3", "raise KeyError('seed')"])
def test_faulty_function_is_reported_with_its_plugin(
    kind: str, function: str, body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, text, words = USES[kind, function]
    source = PLUGIN.format(
        body=body,
        hook=f"{kind}s",
        record=f"{kind.capitalize()}Plugin",
        given=f"{function}=odd, {given}",
    )
    (tmp_path / "odd.py").write_text(source if kind == "executor" else source + QUICK)
    (tmp_path / "study.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)

    done = CliRunner().invoke(
        main, [*(words or ["run", "--executor", "quick"]), "--plugin", "odd.py", "study.yaml"]
    )

    told = done.output
    assert done.exit_code in (0, 1, 2), told
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert "Traceback" not in told
    raises = body.startswith("raise")
    at_fault = raises or (kind, function) not in ANYTHING
    if body == "return None":
        at_fault = at_fault and (kind, function) not in MAYBE_NONE
    if at_fault and (kind, function) not in UNASKED:
        assert any(f"{quote}odd{quote}" in told for quote in ("'", " ", "")), told
        assert "odd.py:" in told
        assert ("KeyError" in told) == raises
    else:
        assert "odd.py" not in told
