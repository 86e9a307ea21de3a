"""``discard``: files below a job's workdir that are removed when the job is over."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ensemble_testing import wait_until

from ensemble_core.cli.main import main
from ensemble_core.config import load_text
from ensemble_core.engine.job_record import JobRecord
from ensemble_core.errors import FileErrors
from ensemble_core.model.events import Event, JobEvent
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.discovery import discover
from ensemble_core.runtime.discard import Discarder, remove_below


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("pattern", "gone"),
    [
        ("a.tmp", ["a.tmp"]),
        ("*.tmp", ["a.tmp"]),
        ("**/*.tmp", ["a.tmp", "s/b.tmp", "s/t/c.tmp"]),
        ("*/", ["s/.h", "s/b.tmp", "s/t/c.tmp"]),
        ("s", ["s/.h", "s/b.tmp", "s/t/c.tmp"]),
        ("s/t/", ["s/t/c.tmp"]),
        ("*/t/*", ["s/t/c.tmp"]),
        ("s/.h", ["s/.h"]),
        ("a.tmp/", []),
        ("a.tmp/x", []),
        ("nothing", []),
        ("[b]*", []),
    ],
)
def test_a_pattern_removes_files_and_whole_folders(
    tmp_path: Path, pattern: str, gone: list[str]
) -> None:
    make(tmp_path, *(every := [".x.tmp", "a.tmp", "k.dat", "s/.h", "s/b.tmp", "s/t/c.tmp"]))
    assert remove_below(str(tmp_path), pattern) == ""
    assert left(tmp_path) == sorted({*every} - {*gone})


def test_nothing_outside_the_workdir_is_removed(tmp_path: Path) -> None:
    """Not by a link, and not by a path that a parameter has changed."""
    outside, inside = tmp_path / "outside", tmp_path / "in"
    make(outside, "x.tmp", "y/z.tmp")
    make(inside, "s/a.tmp")
    (inside / "link").symlink_to(outside)
    (inside / "s" / "link").symlink_to(outside)
    for pattern in ("**/*.tmp", "link/x.tmp", "link/", "s", "*/y"):
        assert remove_below(str(inside), pattern) == ""
    assert (inside / "link").is_symlink()
    assert remove_below(str(inside), "link") == ""
    assert os.listdir(inside) == []
    for pattern in ("../outside", "s/../../outside", str(outside), ".", ""):
        assert "is not below" in remove_below(str(inside), pattern)
    assert left(outside) == ["x.tmp", "y/z.tmp"]


STUDY = """
jobs:
  - name: a
    command: sh -c '{script}'
    parameters: {{c: [0, 1], n: '*'}}
    environment: {{N: '{{n}}'}}
    workdir: w/{{c}}
    discard: [{discard}]
    {more}
rules: [{{trigger: start, action: {{name: submit}}}}]
"""


def run(folder: Path, script: str, discard: str, more: str = "") -> Result:
    file = folder / "study.yaml"
    file.write_text(STUDY.format(script=script, discard=discard, more=more))
    os.chdir(folder)
    words = ["run", "--executor", "local", "--state", "state", "--tag", "t", str(file)]
    return CliRunner().invoke(main, words)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_files_go_after_a_success_or_always_and_a_replay_is_equal(folder: Path) -> None:
    script = "mkdir -p s; touch s/x a.tmp k.dat; exit {{c}}".replace("{{c}}", "{c}")
    done = run(folder, script, "s/, {path: '*.tmp', when: always}")
    assert done.exit_code == 1, done.output
    assert left(folder / "w") == ["0/k.dat", "1/k.dat", "1/s/x"]
    again = CliRunner().invoke(main, ["replay", "--state", "state", "t"])
    assert again.exit_code == 0, again.output


def test_the_next_attempt_begins_after_the_removal(folder: Path) -> None:
    script = "test -e s && exit 7; mkdir s; test -e second; c=$?; touch second; exit $c"
    done = run(folder, script, "{path: s, when: always}", "retry: {times: 1}")
    assert done.exit_code == 0, done.output
    assert left(folder / "w") == ["0/second", "1/second"]


def test_a_star_in_a_value_is_no_pattern(folder: Path) -> None:
    done = run(folder, 'touch "$N.tmp" other.tmp', "'{n}.tmp'")
    assert done.exit_code == 0, done.output
    assert left(folder / "w") == ["0/other.tmp", "1/other.tmp"]


def test_files_that_cannot_be_removed_cause_one_warning(folder: Path) -> None:
    done = run(folder, "rmdir $PWD", "x", "urgency: 16")
    assert done.exit_code == 0, done.output
    assert done.output.count("'discard' cannot remove 'x'") == 1, done.output


class Held:
    """A discarder, with the events that it has passed on."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.discarder = Discarder(self._put, self._warn)
        self.warnings: list[str] = []
        self._lock = threading.Lock()

    def _put(self, events: Sequence[Event]) -> None:
        with self._lock:
            self.events += events

    def _warn(self, message: str) -> None:
        self.warnings.append(message)

    def record(self, folder: Path, number: int, **more: Any) -> JobRecord:
        job = Job(
            id=f"a.{number}", group="a", index=number, command=("x",), workdir=str(folder),
            discard={"*.tmp": "success"},
        )  # fmt: skip
        self.discarder.expect([job])
        record = JobRecord(job, 0.0, None)
        record.files, record.outcome = {"workdir": str(folder)}, "success"
        for name, value in more.items():
            setattr(record, name, value)
        return record

    def clean(self, record: JobRecord, stop: Any = None) -> bool:
        return self.discarder.holds(JobEvent(1.0, record.job.id, "clean"), record, stop)


def test_the_last_job_in_a_folder_removes_its_files(tmp_path: Path) -> None:
    held = Held()
    make(tmp_path, "a.tmp")
    first, second = held.record(tmp_path, 0), held.record(tmp_path, 1)
    assert not held.clean(first)
    assert left(tmp_path) == ["a.tmp"]
    assert held.clean(second)
    wait_until(lambda: held.events)
    assert left(tmp_path) == []
    assert not held.clean(second)  # the same event, for the second time


@pytest.mark.parametrize(
    "more", [{"outcome": None}, {"files": None}, {"reused": "r/a.0"}, {"outcome": "failed"}]
)
def test_files_of_a_job_that_runs_again_or_never_ran_stay(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    held = Held()
    assert not held.clean(held.record(tmp_path, 0, **more))
    assert not held.warnings


def test_a_job_that_succeeds_during_a_stop_leaves_a_tidy_folder(tmp_path: Path) -> None:
    """The engine learns of its end at the resume, so its outcome is not known yet."""
    held = Held()
    make(tmp_path, "a.tmp")
    good, bad = held.record(tmp_path / "x", 1), held.record(tmp_path, 0)
    for record in (good, bad):
        record.outcome = None
    ends = [JobEvent(1.0, "a.1", "finish", {"status": 0})]
    ends += [JobEvent(1.0, "a.0", "exception", {"type": "cancel"})]
    stop = SimpleNamespace(deferred=[*ends, JobEvent(1.0, "a.0", "finish", {"status": 0})])
    assert held.clean(good, stop)
    assert not held.clean(bad, stop)


def test_a_folder_on_another_machine_causes_one_warning(tmp_path: Path) -> None:
    held = Held()
    for number in range(2):
        record = held.record(tmp_path / str(number), number)
        record.files = {"at_member": {"workdir": "/there"}}
        assert not held.clean(record)
    (warning,) = held.warnings
    assert "a.0" in warning
    assert "--option shared=FOLDER" in warning


@pytest.mark.parametrize(
    ("discard", "more", "what"),
    [
        ("[/tmp/x]", "", "'/tmp/x' is an absolute path"),
        ("['{here}/x']", "", "'{here}/x' is an absolute path"),
        ("[a/../../x]", "", "'a/../../x' leads out of the job's workdir"),
        ("[.]", "", "'.' is the job's workdir itself"),
        ("[./]", "", "'./' is the job's workdir itself"),
        ("[x, x]", "", "'x' is listed twice"),
        ("['*']", "", "'*' would remove everything"),
        ("['**/*.tmp']", "", "'**/*.tmp' would remove everything"),
        ("['*.xtc']", ", workdir: w, outputs: [a.xtc]", "would remove 'a.xtc', which 'outputs'"),
        ("[out/]", ", workdir: w, outputs: [out/a.xtc]", "would remove 'out/a.xtc'"),
        ("[{path: x, when: never}]", "", "'when' is 'never', expected one of success, always"),
        ("[{when: always}]", "", "has no 'path'"),
        ("['{nope}']", "", "nope"),
        ("x", "", "expected a list"),
    ],
)
def test_bad_input_gives_one_error(discard: str, more: str, what: str) -> None:
    text = f"jobs: [{{name: a, command: x, discard: {discard}{more}}}]\nrules: [{{trigger: start, action: {{name: submit}}}}]\n"
    with pytest.raises(FileErrors) as raised:
        load_text(text, discover(), file="e.yaml")
    (error,) = raised.value.errors
    assert what in str(error)
    assert str(error.where).startswith("e.yaml:1:")
