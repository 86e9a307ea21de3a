"""Code that files name: only a run loads it. Every option of a file is classified as code or data."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

import ensemble_core
from ensemble_core.cli.main import main
from ensemble_core.config.loading import expanded, load_text
from ensemble_core.config.schema import compose
from ensemble_core.errors import EnsembleError
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.option_schemas import ANNOTATIONS
from ensemble_core.plugin.registry import Registry
from ensemble_core.plugin.untrusted_code import Kind, is_loaded

pytestmark = pytest.mark.checkout
ROOT = Path(__file__).parents[2]

#: A module that records its import, with a generator and another callable.
CANARY = """
import os
open(os.environ["CANARY"], "a").write("imported")

from gest_api.generator import Generator

class Canary(Generator):
    def __init__(self, vocs, **options):
        self.number = 0
    def _validate_vocs(self, vocs):
        pass
    def suggest(self, count):
        self.number += count
        return [{"x": self.number / 100} for _ in range(count)]

def touch(**options):
    open(os.environ["CANARY"], "a").write("called")
"""
#: Values that an option that names code might accept.
NAMES = ("canary_module.touch", "canary_module:touch", "canary_module", "./canary_module.py")


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the file that exists if code was loaded."""
    monkeypatch.chdir(tmp_path)
    Path("canary_module.py").write_text(CANARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("CANARY", str(tmp_path / "ran"))
    yield tmp_path / "ran"
    sys.modules.pop("canary_module", None)


# -- every option of the schema --------------------------------------------------------------------

#: Annotations of options that name code: loaded by ``untrusted_code``, or a function of ``custom:``,
#: which ``untrusted_code`` loads.
CODE: Mapping[str, Kind] = {"source": "source", "function": "source", "class": "class"}

#: Options whose text is data: a name, the path of a data file, text for a queue or a job, or an
#: expression. To add an option of the schema or a plugin here is to state that its value is never
#: imported, executed or called. Options that name code are annotated instead ("x-ensemble":
#: "class"), and ``untrusted_code`` loads it.
PLAIN = """
action-jobspec-files.files.content action-jobspec-files.files.name action-jobspec-files.files.source
  action-jobspec-files.folder action-jobspec-files.task
action-jobspec-local.command action-jobspec-local.environment action-jobspec-local.task
  action-jobspec-local.workdir
action-espresso-check.log
action-espresso-continue.checkpoint action-espresso-continue.log action-espresso-continue.parameter
action-gromacs-check.log
action-gromacs-continue.checkpoint action-gromacs-continue.log action-gromacs-continue.parameter
action-lammps-check.log
action-lammps-continue.input action-lammps-continue.restart action-lammps-continue.variable
action-lammps-vary.input
action-notify.to
action-openfoam-check.log
action-openfoam-continue.checkpoint action-openfoam-continue.log action-openfoam-continue.parameter
action.backoff
algorithm-select-fastest-runtime.statistic
algorithm-select-longest-runtime.statistic
algorithm-workload-success.valid
environment-apptainer.apptainer environment-apptainer.args environment-apptainer.bind
  environment-conda.conda environment-conda.program environment-module.module
  environment-module.use environment-podman.args environment-podman.bind
  environment-podman.podman environment-venv.venv
file.^x- file.limits.output file.limits.stop file.limits.wall file.name file.simulate
generator-gest-options.options
generator-optuna-options.pruner_options generator-optuna-options.sampler_options
generator.constraints generator.failed generator.first generator.first.generator
  generator.first.run generator.group generator.name generator.prune.step
  generator.prune.value generator.until generator.with
job.at_once.each job.avoid job.command job.environment job.environment_from job.executor job.inputs job.inputs.path
  job.fail_if job.name job.observe.json-lines.clock
  job.observe.json-lines.fields job.observe.json-lines.path job.observe.key-value.clock
  job.observe.key-value.fields job.observe.key-value.path job.observe.lammps.columns
  job.observe.lammps.log job.observe.regex.clock job.observe.regex.fields job.observe.regex.path job.options.flux.attributes
  job.options.flux.bank job.options.flux.queue job.options.flux.shell job.options.gridengine.project
  job.options.gridengine.queue job.options.gridengine.resources
  job.options.kubernetes.container job.options.kubernetes.image job.options.kubernetes.pod job.options.local
  job.options.minicluster job.options.pbs.account job.options.pbs.project job.options.pbs.queue
  job.options.pbs.resources job.options.pilot job.options.remote job.options.slurm.account job.options.slurm.constraint
  job.options.slurm.gres job.options.slurm.licenses job.options.slurm.mem
  job.options.slurm.mem_per_cpu job.options.slurm.partition job.options.slurm.qos
  job.options.slurm.reservation job.parameters job.points job.points.columns job.points.file
  job.observe.table.clock job.observe.table.fields job.observe.table.header job.observe.table.path
  job.observe.table.until job.observe.json-lines.until job.observe.key-value.until
  job.observe.regex.until
  job.observe.espresso.log job.observe.gromacs.columns job.observe.gromacs.log
  job.observe.gromacs-edr.columns job.observe.gromacs-edr.path
  job.observe.openfoam.log
  job.discard job.discard.path job.outputs job.outputs.path job.result job.retry.when job.stderr
  job.stdout job.uses job.workdir
pilot.duration pilot.idle pilot.margin pilot.memory pilot.options pilot.orphan pilot.patience
  pilot.queue
rule.backoff rule.crosses rule.each rule.for rule.id rule.when
source-jobspec.jobspec source-jobspec.parameters source-jobspec.prefix source-jobspec.requires
  source-jobspec.skip
table.by table.columns table.of table.order table.pivot table.plot.errors table.plot.x table.plot.y table.where
use.algorithm use.as use.with
variable.values variable.when
any-profile config.^x- config.default profile.executor profile.jobs.avoid profile.jobs.environment
  profile.jobs.options.flux.attributes profile.jobs.options.flux.bank
  profile.jobs.options.flux.queue profile.jobs.options.flux.shell
  profile.jobs.options.gridengine.project profile.jobs.options.gridengine.queue
  profile.jobs.options.gridengine.resources profile.jobs.options.kubernetes.container
  profile.jobs.options.kubernetes.image profile.jobs.options.kubernetes.pod
  profile.jobs.options.local profile.jobs.options.minicluster profile.jobs.options.pbs.account
  profile.jobs.options.pbs.project profile.jobs.options.pbs.queue
  profile.jobs.options.pbs.resources profile.jobs.options.pilot profile.jobs.options.remote
  profile.jobs.options.slurm.account profile.jobs.options.slurm.constraint
  profile.jobs.options.slurm.gres profile.jobs.options.slurm.licenses
  profile.jobs.options.slurm.mem profile.jobs.options.slurm.mem_per_cpu
  profile.jobs.options.slurm.partition profile.jobs.options.slurm.qos
  profile.jobs.options.slurm.reservation profile.limits.output profile.limits.stop
  profile.limits.wall profile.options
"""


def places(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return every option of the schema that accepts free text, with its annotation."""
    found: dict[str, str] = {}

    def walk(node: Any, name: str, around: str = "") -> None:
        if not isinstance(node, dict):
            return
        mark = str(node.get("x-ensemble", around))
        types = node.get("type", ())
        types = {types} if isinstance(types, str) else set(types)
        inner = [key for key in (*_WITHIN, "if") if key in node]
        closed = {"enum", "const", "$ref", "required", "minItems"} & node.keys()
        free = not (inner or closed) and (not types or "object" in types or "array" in types)
        if (("string" in types and "enum" not in node) or free) and _takes_names(node):
            found[name] = mark
        for key in _WITHIN:
            part = node.get(key)
            if key in _NAMED:
                for each, value in (part or {}).items():
                    walk(value, f"{name}.{each}" if key != "$defs" else each)
            else:
                for value in part if isinstance(part, list) else [part]:
                    walk(value, name, mark)

    walk(schema, "file")
    # Skip qualified names, and the fields of a job or group in actions.
    return {
        name: mark
        for name, mark in found.items()
        if ":" not in name and not name.startswith(("job-fields", "group-fields"))
    }


_NAMED = ("properties", "patternProperties", "$defs")
_WITHIN = (
    *_NAMED,
    *("additionalProperties", "items", "prefixItems", "allOf", "anyOf", "oneOf", "then", "else"),
)


def _takes_names(node: Mapping[str, Any]) -> bool:
    pattern = node.get("pattern")
    return pattern is None or any(re.search(pattern, name) for name in NAMES)


def test_every_text_option_is_classified_as_code_or_not() -> None:
    """A new option fails here until it is classified."""
    found = places(compose(discover()))
    plain = set(PLAIN.split())
    undecided = {name for name, mark in found.items() if not mark} - plain
    assert not undecided, "mark these as naming code, or list them as PLAIN"
    assert not plain - found.keys(), "there are no such places any more"
    own = {"memory"}  # only the core's own options have it
    assert {mark for mark in found.values() if mark} <= ANNOTATIONS | own | CODE.keys()
    assert {name for name, mark in found.items() if mark in CODE} == {
        "file.custom",
        "file.custom.file",
        "given-by.function",
        "action-custom.label",
        "generator-gest-options.class",
    }


def test_options_that_name_code_are_found_in_any_plugin() -> None:
    option = {"type": "string"}
    for schema in (
        {"properties": {"a": option}},
        {"additionalProperties": option},
        {"properties": {"a": {"type": "array", "items": {"anyOf": [{"type": "null"}, option]}}}},
        {"$defs": {"new": {"properties": {"a": {"type": "object"}}}}},
        {"properties": {"a": {"if": {"type": "array"}, "then": {}, "else": option}}},
    ):
        assert set(places(schema).values()) == {""}, schema


def test_code_is_loaded_only_for_a_run_or_with_run_code() -> None:
    assert not any(is_loaded(kind, "check") for kind in CODE.values())
    assert not is_loaded("plugin", "check")
    assert not any(is_loaded(kind, "look") for kind in CODE.values())
    assert all(is_loaded(kind, "run") for kind in (*CODE.values(), "plugin"))  # type: ignore[arg-type]


# -- every option of files, with a canary -----------------------------------------------------------

#: A study that names code in all possible ways.
STUDY = """
name: study
jobs:
  - {name: sim, command: 'echo "E: {x}"', observe: {key-value: {fields: [E]}}, result: {E: last.E}}
  - {name: more, command: 'echo {T}', parameters: {T: {function: next_T}}}
custom: |
  open(__import__("os").environ["CANARY"], "a").write("executed")
  def next_T(**kwargs):
      return 1.5
  def decide(**kwargs):
      return None
generators:
  - {name: s, use: gest, group: sim, variables: {x: [0.0, 1.0]}, objectives: {E: minimize},
     until: count.done >= 3, with: {class: canary_module.Canary, options: {filename: thesis}}}
rules:
  - {id: given, trigger: start, action: {name: submit, label: more}}
  - {id: asks, trigger: job-success, name: sim, action: {name: custom, label: decide}}
simulate: {jobs: {sim: 10s, more: 10s}, functions: {decide: 1s}}
"""


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every text in a document."""
    if isinstance(data, (dict, list)):
        for key, inner in data.items() if isinstance(data, dict) else enumerate(data):
            yield from leaves(inner, (*path, key))
    elif isinstance(data, str):
        yield path


def with_text(data: Any, path: tuple[Any, ...], text: str) -> Any:
    """Return the document with another text at this path."""
    if not path:
        return text
    copied = dict(data) if isinstance(data, dict) else list(data)
    copied[path[0]] = with_text(data[path[0]], path[1:], text)
    return copied


#: The fast loader, if available, because each worker reads all examples at collection.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
FILES = {
    file: data
    for file in sorted((ROOT / "examples").rglob("*.yaml"))
    if "jobs" in (data := yaml.load(file.read_text("utf-8"), LOADER) or {})
}


def option(data: Any, path: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the schema's option for a path: the path, with kinds of entries instead of indices."""
    found: list[Any] = []
    kind = ("trigger", "use", "algorithm", *(("name",) if "action" in path else ()))
    for step in path:
        data = data[step]
        found.append(step if isinstance(step, str) else "")
        if isinstance(data, dict):
            found.append(tuple(str(data.get(key)) for key in kind))
    return tuple(found)


@pytest.fixture(scope="module")
def registry() -> Registry:
    return discover()


@cache
def changes() -> Mapping[Path, Sequence[tuple[tuple[Any, ...], str]]]:
    """Return the replacements for each file, so that each option has each of ``NAMES`` once."""
    times: Counter[tuple[Any, ...]] = Counter()
    found: dict[Path, list[tuple[tuple[Any, ...], str]]] = {file: [] for file in FILES}
    for file, data in FILES.items():
        for path in leaves(data):
            number = times[option(data, path)]
            times[option(data, path)] += 1
            if number < len(NAMES):
                found[file].append((path, NAMES[number]))
    return found


@pytest.mark.parametrize("file", [None, *FILES], ids=lambda file: file.name if file else "study")
def test_check_of_a_file_loads_none_of_its_code(
    file: Path | None, registry: Registry, canary: Path
) -> None:
    data = yaml.safe_load(STUDY) if file is None else FILES[file]
    name = "study.yaml" if file is None else str(file)
    every = [(path, word) for path in leaves(data) for word in NAMES]
    for path, word in every if file is None else changes()[file]:
        changed = yaml.safe_dump(with_text(data, path, word), sort_keys=False)
        for check in (load_text, expanded) if file is None else (load_text,):
            with contextlib.suppress(EnsembleError):
                check(changed, registry, file=name)
        assert "canary_module" not in sys.modules, (path, word)
        assert not canary.exists(), (path, word)


# -- every command ---------------------------------------------------------------------------------

#: Arguments for each command: FILE is a study that names code, TEST a rule test of it, RUN a stored
#: run of it. ``None``: not tested here, for the reason beside it.
COMMANDS: Mapping[str, Sequence[Sequence[str]] | None] = {
    "algorithms": [["list"]],
    "cancel": [["RUN"]],
    "clean": [["--dry-run"]],
    "completion": [["bash"]],
    "dashboard": None,  # serves until it is stopped; shows the same as "report"
    "disable": [["RUN", "asks"]],
    "enable": [["RUN", "asks"]],
    "events": [["RUN"]],
    "init": [["new"]],
    "jobs": [["RUN"]],
    "jobspec": [["validate", "FILE"], ["convert", "FILE", "--to", "script"]],
    "logs": [["RUN"]],
    "member": None,  # calls the service
    "metrics": [["RUN"]],
    "observe": [["FILE"], ["FILE", "--in", "FILE", "--group", "more"]],
    "plot": [["RUN", "-o", "plot.svg"], ["RUN", "s", "-o", "points.svg"]],
    "plugins": [["list"]],
    "replay": [["RUN"]],
    "report": [["RUN", "-o", "report.html"]],
    "results": [["RUN"], ["RUN", "s"]],
    "resume": None,  # runs it
    "retry": None,  # runs it, if it has ended
    "run": [["--dry-run", "FILE"], ["--dry-run", "--debug", "FILE"], ["--help"]],
    "runs": [[]],
    "schema": [[]],
    "server": None,  # no run to steer
    "set": [["RUN", "more", "duration=1m"]],
    "simulate": [["FILE"], ["--runs", "2", "FILE"], ["--model-from", "RUN", "FILE"]],
    "status": [["RUN"]],
    "stop": [["RUN"]],
    "submit": [["RUN", "more"]],
    "test": [["TEST"], ["--record", "RUN"], ["--json", "TEST"]],
    "validate": [["FILE"], ["--expanded", "FILE"], ["--json", "FILE"]],
    "version": [[]],
    "watch": None,  # reads what a run publishes
    "why": [["RUN", "asks"], ["RUN", "given"]],
}

TEST = """
ensemble: study.yaml
tests:
  - name: calls
    given: [{at: 1s}, {finished: more}]
    expect: [{never: asks}]
"""


def test_every_command_is_classified_by_whether_it_runs_code_of_a_file() -> None:
    assert set(main.list_commands(click.Context(main))) == COMMANDS.keys()


def test_only_run_and_resume_load_code_of_a_file(canary: Path) -> None:
    Path("study.yaml").write_text(STUDY)
    Path("study.ensemble-test.yaml").write_text(TEST)
    state = ["--state", "state"]
    words = {"FILE": "study.yaml", "TEST": "study.ensemble-test.yaml", "RUN": "one"}
    ran = CliRunner().invoke(
        main, ["run", "-q", "--executor", "local", *state, "--tag", "one", "study.yaml"]
    )
    assert ran.exit_code == 0, ran.output
    assert canary.read_text() == "importedexecuted"  # proves that the canary works
    for command, lines in COMMANDS.items():
        for line in lines or ():
            canary.unlink(missing_ok=True)
            sys.modules.pop("canary_module", None)
            given = [words.get(word, word) for word in line]
            kept = state if "RUN" in line or command in ("clean", "runs", "simulate") else []
            result = CliRunner().invoke(main, [command, *given, *kept])
            assert not canary.exists(), (command, *line)
            assert result.exit_code in (0, 1, 2), (command, *line, result.output)
            assert "no option" not in result.output, (command, *line, result.output)
    allowed = CliRunner().invoke(main, ["simulate", "--run-code", "study.yaml", *state])
    assert "imported" in canary.read_text(), allowed.output


def test_shell_completion_loads_no_code_of_a_file(canary: Path) -> None:
    Path("study.yaml").write_text(STUDY)
    for line in ("ensemble run study.yaml --", "ensemble validate st", "ensemble simulate st"):
        environment = {"_ENSEMBLE_COMPLETE": "bash_complete", "COMP_WORDS": line}
        environment["COMP_CWORD"] = str(len(line.split()) - 1)
        CliRunner().invoke(main, [], prog_name="ensemble", env={**os.environ, **environment})
        assert not canary.exists(), line


def test_check_from_python_loads_none_of_the_files_code(canary: Path) -> None:
    Path("study.yaml").write_text(STUDY)
    assert ensemble_core.load("study.yaml").generators["s"].classes == ("canary_module.Canary",)
    assert ensemble_core.load(yaml.safe_load(STUDY)).functions == {"next_T", "decide"}
    assert not canary.exists()


@pytest.mark.parametrize("path", ["canary_module.touch", "logging.basicConfig"])
def test_run_rejects_a_class_that_is_not_a_generator(path: str, canary: Path) -> None:
    Path("thesis").write_text("written in three years")
    options = "{filename: thesis, filemode: w, force: true}"
    text = STUDY.replace("canary_module.Canary", path).replace("{filename: thesis}", options)
    Path("study.yaml").write_text(text)
    for command in (["validate"], ["run", "--dry-run"], ["run", "--executor", "local"]):
        result = CliRunner().invoke(main, [*command, "study.yaml"])
        assert result.exit_code == (2 if "local" in command else 0), result.output
    assert f"{path!r} is not a subclass of gest_api.generator.Generator" in result.output
    assert re.search(r"study\.yaml:14:\d+: ", result.output)
    assert "called" not in (canary.read_text() if canary.exists() else "")
    assert Path("thesis").read_text() == "written in three years"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("canary_module", "is not the import path of a class"),
        ("no_such_module.Class", "cannot import the module 'no_such_module'"),
    ],
)
def test_path_of_a_class_is_checked_without_an_import(path: str, said: str, canary: Path) -> None:
    Path("study.yaml").write_text(STUDY.replace("canary_module.Canary", path))
    result = CliRunner().invoke(main, ["validate", "--json", "study.yaml"])
    assert result.exit_code == 2
    (error,) = json.loads(result.stdout)["files"][0]["errors"]
    assert said in error["what"]
    assert error["line"] == 14
    assert not canary.exists()
