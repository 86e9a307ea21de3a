"""``{replica}`` continues over all submits, and jobs that overwrite one another's files."""

from __future__ import annotations

import pytest
from ensemble_testing import Story

from ensemble_core.engine.shared_files import SharedFiles
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.model.decisions import Log, Submit
from ensemble_core.model.events import Requested

MD = (
    "jobs:\n  - {name: md, command: 'md {T} {replica}', parameters: {T: [280, 300]}, replicas: 2,"
    " observe: {key-value: {fields: [T]}}}\n"
)
ANA = "  - {name: ana, command: 'ana {T}', parameters: {T: null}}\n"
TABLE = "results: {t: {of: md, by: [T], columns: {n: n}}}\n"


def rules(*actions: str, more: str = "") -> str:
    listed = ", ".join(f"{{{each}}}" for each in actions)
    return f"rules:\n  - {{trigger: start, action: [{listed}]}}\n{more}"


def numbers(story: Story, value: object = 280) -> list[int]:
    """The replicas of one temperature, in the order of submission."""
    jobs = [job for each in story.decisions if isinstance(each, Submit) for job in each.jobs]
    assert len({job.id for job in jobs}) == len(jobs)
    return [job.replica for job in jobs if job.parameters.get("T") == value and job.group == "md"]


def warnings(story: Story) -> list[str]:
    logs = [each for each in story.decisions if isinstance(each, Log)]
    return [each.message.splitlines()[0] for each in logs if each.level != "info"]


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        (["name: submit, label: md"] * 2, [0, 1, 2, 3]),
        (["name: submit, label: md", "name: submit, label: md, with: {replicas: 1}"], [0, 1, 2]),
        (
            ["name: submit, label: md", "name: submit, label: md, with: {parameters: {T: 280}}"],
            [0, 1, 2, 3],
        ),
        (
            ["name: submit, label: md, with: {parameters: {T: 280.0}}", "name: submit, label: md"],
            [0, 1, 2, 3],
        ),
        (["name: submit, label: md", "name: submit-next, groups: md, count: 4"], [0, 1, 2, 3]),
        (["name: submit-next, groups: md, count: 3", "name: submit, label: md"], [0, 1, 2, 3]),
        (["name: submit, label: md, with: {parameters: {T: [280, 280]}}"], [0, 1, 2, 3]),
    ],
)
def test_replicas_continue_over_the_submits_of_a_rule(
    actions: list[str], expected: list[int]
) -> None:
    story = Story(MD + rules(*actions))
    story.start()
    assert numbers(story) == expected
    assert warnings(story) == []


def test_replicas_continue_after_other_actions_and_a_request() -> None:
    vary = "  - {trigger: job-done, name: md, action: {name: vary, again: true, parameters: {T: 280}}}\n"
    row = "  - {trigger: idle, name: md, action: {name: submit, label: md, rows: t, again: true}}\n"
    story = Story(MD + rules("name: submit, label: md", more=vary + row) + TABLE)
    story.start()
    for job in ("md.0", "md.1", "md.2", "md.3"):
        story.play(job)  # the first one submits md.4
    story.play("md.4")  # the group is idle: two further replicas of each row
    parameters = {"T": [280]}
    story.tell(
        Requested(1, "u", {"name": "submit", "label": "md", "with": {"parameters": parameters}})
    )
    assert numbers(story) == [0, 1, 2, 3, 4, 5, 6]


def test_an_analysis_adds_replicas_with_new_numbers() -> None:
    more = (
        '  - {trigger: idle, name: md, each: [T], action: {name: submit, label: ana, with: {parameters: {T: "{T}"}}}}\n'
        "  - {trigger: job-done, name: ana, each: [T], repetitions: 2,"
        ' action: {name: submit, label: md, with: {parameters: {T: "{T}"}, replicas: 1}}}\n'
    )
    story = Story(MD + ANA + rules("name: submit, label: md", more=more))
    story.start()
    story.play("md.0")
    story.play("md.1")
    story.play("ana.0")
    story.play("md.4")
    story.play("md.2")
    assert numbers(story) == [0, 1, 2]


def test_a_retry_keeps_its_number() -> None:
    more = "  - {trigger: job-fail, name: md, action: {name: retry}}\n"
    story = Story(MD + rules("name: submit, label: md", more=more))
    story.start()
    story.play("md.1", status=256)
    assert numbers(story) == [0, 1, 1] or story.submitted()[-1] == "md.1-1"
    story.tell(Requested(1, "u", {"name": "submit", "label": "md"}))
    assert numbers(story)[-2:] == [2, 3]


FILES = "jobs:\n  - {{name: md, command: 'md {{T}}', parameters: {{T: [280]}}, {fields}}}\n"
TWICE = ["name: submit, label: md"] * 2


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ("workdir: 'r/{T}', stdout: out", "md.0 and md.1 would both write r/280/out"),
        ("stdout: 'r/../out'", "md.0 and md.1 would both write out"),
        ("stderr: err.txt", "md.0 and md.1 would both write err.txt"),
        ("workdir: 'r/{T}'", "md.0 and md.1 would both run T=280, replica 0 in r/280"),
        ("workdir: 'r/{T}/{replica}', stdout: out", None),
        ("workdir: 'r/{index}', stdout: out", None),
        ("stdout: '{id}.out'", None),
        ("stdout: /dev/null", None),
        ("reuse: true", None),
    ],
)
def test_jobs_that_would_overwrite_files_are_reported(fields: str, what: str | None) -> None:
    story = Story(FILES.format(fields=fields) + rules(*TWICE, *TWICE))
    story.start()
    assert warnings(story) == ([] if what is None else [what])
    assert len(numbers(story)) == 4
    strict = Story("limits: {strict: true}\n" + FILES.format(fields=fields) + rules(*TWICE))
    strict.start()
    assert warnings(strict) == ([] if what is None else [f"{what}: nothing was submitted"])
    assert len(numbers(strict)) == (2 if what is None else 1)


def test_values_that_a_format_or_their_type_makes_equal_share_a_folder() -> None:
    group = "jobs:\n  - {{name: md, command: 'md {{T}}', parameters: {{T: {}}}, replicas: 2, {}}}\n"
    rounded = Story(
        group.format("[2.21, 2.24]", "workdir: 'r/{T:.1f}/{replica}'") + rules(TWICE[0])
    )
    rounded.start()
    assert warnings(rounded) == ["T=2.21 and T=2.24 would both run in r/2.2/0"]
    more = rules(TWICE[0], "name: submit, label: md, with: {parameters: {T: '280'}}")
    typed = Story(group.format("[280]", "workdir: 'r/{T}/{replica}'") + more)
    typed.start()
    assert warnings(typed) == ["md.0 and md.2 would both run T=280, replica 0 in r/280/0"]
    # Jobs with the same value may share its folder, and so may an attempt with a changed one.
    shared = "retry: {times: 1, with: {parameters: {T: '= T + 0.01'}}}, workdir: 'r/{T:.1f}'"
    retried = Story(group.format("[2.21]", shared) + rules(TWICE[0]))
    retried.start()
    retried.play("md.0", status=256)
    assert len(retried.submitted()) == 3
    assert warnings(retried) == []


def test_files_of_two_groups_are_compared() -> None:
    text = "jobs: [{name: a, command: x, stdout: '{index}.out'}, {name: b, command: x, stdout: '{index}.out'}]\n"
    story = Story(text + rules("name: submit"))
    story.start()
    assert warnings(story) == ["a and b would both write {index}.out"]


@pytest.mark.parametrize("files", ["stdout: '{f}'", "stdout: '{f}', stderr: '{f}'"])
def test_a_refused_submit_owns_no_files(files: str) -> None:
    text = f"limits: {{strict: true}}\njobs: [{{name: a, command: 'x {{f}}', parameters: {{f: [p, p]}}, {files}}}]\n"
    story = Story(text + rules("name: submit, label: a"))
    story.start()
    assert story.submitted() == []
    (said,) = warnings(story)
    assert said.startswith("a.0 and a.1 would both write p")
    files = story.engine.state.shared_files
    assert isinstance(files, SharedFiles)
    assert not files.first


def test_attempts_of_a_job_share_its_files() -> None:
    more = "  - {trigger: job-fail, name: md, action: {name: retry}}\n"
    text = FILES.format(fields="workdir: 'r/{T}', stdout: out")
    story = Story(text + rules("name: submit, label: md", more=more))
    story.start()
    story.play("md.0", status=256)
    assert story.submitted()[-1] == "md.0-1"
    assert warnings(story) == []


def test_a_resume_from_a_snapshot_continues_numbers_and_remembers_files() -> None:
    text = MD.replace("replicas: 2,", "replicas: 2, stdout: '{replica}.out',")
    story = Story(text + rules("name: submit, label: md"))
    story.start()
    restored = load(dump(story.engine), story.ensemble)
    assert restored is not None
    story.engine = restored
    story.tell(Requested(1, "u", {"name": "submit", "label": "md"}))
    assert numbers(story) == [0, 1, 2, 3]
    assert warnings(story) == ["md.0 and md.2 would both write 0.out"]
