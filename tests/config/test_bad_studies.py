"""Mistakes in a study: each is reported with its place and a suggestion."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import marked_places
import pytest
from click.testing import CliRunner
from marked_places import check_errors, unmarked

from ensemble_core.cli.main import main
from ensemble_core.config import load_text
from ensemble_core.errors import FileErrors
from ensemble_core.plugin.discovery import discover

REGISTRY = discover()

#: Parts of the study that a mistake replaces.
STUDY = """\
jobs:
  - name: sim
    command: touch ran {T} {d}
    parameters: {T: [1, 2], d: 0.5}
    observe: {json-lines: {fields: [energy]}}
    result: {E: last.energy}
    duration: 60
  - {name: post, command: 'touch ran {T}', parameters: {T: null}}
rules:
  - {trigger: start, action: {name: submit, label: sim}}
  - {trigger: idle, name: sim, each: [T], action: {name: vary, label: post}}
results:
  best: {of: sim, order: E, top: 5}
"""
#: The rule without its action.
IDLE = "trigger: idle, name: sim, each: [T]"
#: The action of that rule.
VARY = "name: vary, label: post"


wrong = partial(marked_places.wrong, STUDY)
GROUP = "duration: 60"
TYPES = [
    wrong(GROUP, "retry: «3", "'retry'", "a mapping"),
    wrong(GROUP, "retry: {times: «many}", "'times'", "a whole number"),
    wrong(GROUP, "retry: {times: «unlimited}", "'times'", "a whole number"),
    wrong(GROUP, "retry: {times: 3, when: «5}", "'when'", "a string"),
    wrong(GROUP, "retry: {times: 3, wait: «[]}", "'wait'", "a number or a string"),
    wrong(GROUP, "retry: {times: 3, with: «3}", "'with'", "a mapping"),
    wrong(GROUP, "retry: {times: 3, continue: «3}", "'continue'", "true or false"),
    wrong(GROUP, "at_once: «many", "'at_once'", "a whole number"),
    wrong(GROUP, "at_once: «0", "'at_once' is 0", "at least 1"),
    wrong(GROUP, "replicas: «two", "'replicas'", "a whole number"),
    wrong(GROUP, "points: «3", "'points'", "a string or a mapping"),
    wrong(GROUP, "points: {file: «3}", "'file'", "a string"),
    wrong("{E: last.energy}", "«[E]", "'result'", "a mapping"),
    wrong("{E: last.energy}", "{E: «[1]}", "'E'", "a number or a string"),
    wrong("json-lines: {fields: [energy]}", "key-value: «3", "'key-value'", "a mapping"),
    wrong(
        "json-lines: {fields: [energy]}", "regex: {fields: «3}", "'fields'", "a list or a mapping"
    ),
    wrong("fields: [energy]", "fields: [energy], rows: «3", "'rows'", "true or false"),
    wrong("each: [T]", "each: «3", "'each'", "a string or a list"),
    wrong("each: [T]", "each: [«3]", "item 1 of 'each'", "a string"),
    wrong("name: sim, each: [T]", "name: «3", "'name'", "a string or a list"),
    wrong("each: [T]", "repetitions: «lots", "a whole number or unlimited"),
    wrong(IDLE, "trigger: heartbeat, when: queue.active > 3, for: «many", "not a duration"),
    wrong(IDLE, "trigger: silent, name: sim, seconds: «long", "not a duration", '"10m"'),
    wrong(VARY, "name: vary, parameters: «3", "'parameters'", "a mapping"),
    wrong(VARY, "name: vary, again: «maybe", "'again'", "true or false"),
    wrong(VARY, "name: vary, with: «3", "'with'", "a mapping"),
    wrong(VARY, "name: submit, label: post, rows: «3", "'rows'", "a string"),
    wrong(VARY, "name: submit-next, groups: «3", "'groups'", "a string or a list"),
    wrong(VARY, "name: submit-next, groups: sim, order: «up", "'order'", "given, random"),
    wrong("top: 5", "top: «many", "'top'", "a share such as 5%"),
    wrong("top: 5", "columns: «[E]", "'columns'", "a mapping"),
    wrong("top: 5", "where: «3", "'where'", "a string"),
    wrong("top: 5", "plot: «3", "'plot'", "a mapping"),
]
NAMES = [
    # parameters
    wrong("each: [T]", "each: [«t]", "'sim' has no parameter 't'", "'T'"),
    wrong(VARY, "name: vary, parameters: {«t: 3}", "has no parameter 't'", "'T'"),
    wrong("{T} {d}", "{T} «{D}", "{D}", "'parameters'"),
    wrong(GROUP, "retry: {times: 3, «wehn: x}", "'when'"),
    # columns, results
    wrong("last.energy", "«last.enrgy", "'last.energy'"),
    wrong("last.energy", "«lats.energy", "'last.energy'"),
    wrong("each: [T]", "each: [T], when: «mean.enrgy > 3", "'mean.energy'"),
    wrong("each: [T]", "each: [T], when: «maen.energy > 3", "'mean.energy'"),
    wrong("each: [T]", "each: [T], when: «count.dones > 3", "'count.done'"),
    wrong("top: 5", "where: «e < 3", "unknown name 'e'", "E"),
    # tables, groups
    wrong(VARY, "name: submit, label: post, rows: «bset", "no table 'bset'", "'best'"),
    wrong(VARY, "name: vary, label: «psot", "no job group 'psot'", "'post'"),
    wrong("name: sim, each: [T]", "name: [sim, «psot]", "no job group 'psot'", "'post'"),
    wrong("name: sim, each: [T]", "name: sim, when: «sum.best.e > 1", "no column 'e'", "best.E"),
]
FORMATS = [
    wrong("{T} {d}", "«{T:q} {d}", "'q' is not a valid format", "{T:.2f}"),
    wrong("{T} {d}\n", "{T} «{d:d}\n", "does not fit 0.5", "{d:.2f}"),
    wrong(VARY, "name: log, message: '«{T:q}'", "invalid format in {T:q}: 'q'"),
]
CONTRADICTIONS = [
    # null without a value
    wrong(
        "{name: vary, label: post}",
        "«{name: submit, label: post}",
        "'T' of 'post' is null",
        "with: {parameters: {T: …}}",
    ),
    # one job more than a group may have
    wrong("parameters: {T: [1, 2]", "parameters: «{T: {from: 1, to: 1000001}", "1000001 jobs"),
    # each: with a trigger that does not concern a job
    wrong("name: sim, each: [T]", "name: sim, each: «job", "'idle' has no job", "job-done"),
    wrong(IDLE, "trigger: start, each: «job", "'start' has no job"),
    wrong(IDLE, "trigger: metric, name: count.sim.done, when: 3, each: «[T]", "concerns a job"),
    wrong(IDLE, "trigger: job-fail, «for: 3, when: exit_code > 3", "are not checked regularly"),
    wrong(IDLE, "trigger: job-fail, repetitions: «0", "at least 1", "unlimited"),
    wrong(
        f"{IDLE}, action: {{{VARY}}}",
        "trigger: start, action: {name: «retry}",
        "'start' has no job",
    ),
    # rows: job, but not rows: true in the group
    wrong(
        f"{IDLE}, action: {{{VARY}}}",
        "trigger: job-done, name: sim, action: {name: submit, label: post, rows: «job}",
        "rows: true",
    ),
    wrong(VARY, "name: submit, label: post, rows: «job", "'rows: job'", "job-done"),
    wrong("{E: last.energy}", "{«T: last.energy}", "'T' is a parameter", "another name"),
    wrong("json-lines: {fields: [energy]}", "regex: «{fields: {a: '('}}", "RE2"),
]


def ran(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the output of ``ensemble run`` for an invalid file, which must submit nothing."""
    monkeypatch.chdir(folder)
    Path("f.yaml").write_text(text)
    files = sorted(folder.iterdir())
    done = CliRunner().invoke(main, ["run", "--executor", "local", "--state", "state", "f.yaml"])
    assert done.exit_code == 2, done.output
    assert sorted(folder.iterdir()) == files, "no run was begun, and no job has run"
    return done.output


@pytest.mark.parametrize(("text", "words"), [*TYPES, *NAMES, *FORMATS, *CONTRADICTIONS])
def test_mistake_in_a_study_is_reported(text: str, words: tuple[str, ...]) -> None:
    check_errors(text, REGISTRY, words)


def test_study_without_mistakes_is_valid() -> None:
    assert load_text(STUDY, REGISTRY, must_begin=True)


@pytest.mark.parametrize("columns", ["", ", columns: [Z]"])
@pytest.mark.parametrize(
    "content",
    [
        "root:hunter2:19000:0:99999\nbin:*:19000:0\n",
        "hunter2,hunter2\n1,2\n",
        "T,e\nhunter2\n",
        "T,{cwd},hunter2?\n1,2,3\n",
        '"hunter2\n',
        "hunter2 \0\n1\n",
        "hunter2 \ud800\n1\n",
    ],
)
def test_content_of_an_invalid_points_file_is_not_printed(
    content: str, columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An untrusted ensemble file may name any file, and error messages may end up in a log."""
    (tmp_path / "secret").write_text(content, "utf-8", "surrogatepass")
    text = STUDY.replace("{T: [1, 2], d: 0.5}", "{d: 0.5}")
    told = ran(text.replace(GROUP, f"points: {{file: secret{columns}}}"), tmp_path, monkeypatch)
    assert "secret" in told, told
    assert "hunter2" not in told


def test_content_of_an_invalid_python_file_is_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("password = hunter2 hunter3\n")
    told = ran(f"custom: {{file: secret}}\n{STUDY}", tmp_path, monkeypatch)
    assert "secret:1:" in told, told
    assert "hunter" not in told


def test_missing_column_of_points_is_reported_with_the_existing_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "points.csv").write_text("T,e\n1,2\n")
    text = STUDY.replace("{T: [1, 2], d: 0.5}", "{d: 0.5}")
    points = "points: {file: points.csv, columns: [«TT]}"
    file, place = unmarked(text.replace(GROUP, points))
    told = ran(file, tmp_path, monkeypatch)
    assert f"f.yaml:{place}: " in told, told
    assert "no column 'TT'" in told


ONE_MISTAKE = """\
limits: {at_once: {gpu: 4}}
jobs:
  - {name: sim, command: "sim {T} {U}", parameters: {T: [1, 2]}, points: p.csv, nodes: 2, uses: gpu}
  - {name: post, command: post, duration: 60, uses: [gpu]}
rules:
  - {trigger: job-success, name: sim, when: T > 1 and U > 2, action: {name: log, message: "{T}"}}
  - {trigger: job-success, name: sim, when: E > 1, action: {name: submit, label: post}}
results:
  best: {of: sim, by: T, columns: {jobs: n}}
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("gpu: 4", "gpu: many"),
        ("{gpu: 4}", "{gpu: 4}, wall: soon"),
        ("{at_once: {gpu: 4}}", "[gpu]"),
        ("nodes: 2", "nodes: two, result: {E: last.E}"),
    ],
)
def test_mistake_in_a_limit_or_a_group_causes_no_further_errors(
    tmp_path: Path, before: str, after: str
) -> None:
    (tmp_path / "p.csv").write_text("U\n1\n")
    text = ONE_MISTAKE if "result:" in after else ONE_MISTAKE.replace("E > 1", "T > 1")
    with pytest.raises(FileErrors) as caught:
        load_text(text.replace(before, after), REGISTRY, file="f.yaml", here=str(tmp_path))
    assert len(caught.value.errors) == 1, str(caught.value)


def test_first_point_with_a_value_for_a_variable_that_does_not_apply_causes_a_warning() -> None:
    text = """
jobs: [{name: a, command: "x {opt} {m}", result: {E: last.E}, observe: {key-value: {}}}]
generators:
  - name: g
    use: random
    group: a
    variables: {opt: {values: [sgd, adam]}, m: {range: [0, 1], when: opt == "sgd"}}
    objectives: {E: minimize}
    first: [{opt: adam, m: 0.9}, {opt: adam}, {opt: sgd, m: 0.5}, {opt: adam, m: ""}]
    until: count.done >= 9
"""
    (warning,) = load_text(text, REGISTRY, file="f.yaml").warnings
    assert "1 first point gives 'm' a value, which is ignored" in warning
    assert "f.yaml:9:" in warning
