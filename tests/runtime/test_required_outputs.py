"""``outputs``: a job is successful only if it has left its files."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from ensemble_testing import Story, wait_until

from ensemble_core.cli.main import main
from ensemble_core.config import load_text
from ensemble_core.errors import FileErrors
from ensemble_core.model.decisions import Retry
from ensemble_core.model.events import Event, JobEvent, Requested, Resumed, StopRequested
from ensemble_core.model.jobs import Job
from ensemble_core.plugin.discovery import discover
from ensemble_core.runtime.required_outputs import OutputCheck

#: A wait that no test waits for.
NEVER = 3600.0


class Checked:
    """An output check, with the events that it has passed on."""

    def __init__(self) -> None:
        self.events: list[JobEvent] = []
        self.check = OutputCheck(self._take)

    def _take(self, events: Sequence[Event]) -> None:
        self.events += [event for event in events if isinstance(event, JobEvent)]

    def job(self, outputs: Mapping[str, float], name: str = "sim.0") -> None:
        job = Job(id=name, group="sim", index=0, command=("x",), outputs=outputs)
        self.check.expect([job])

    def emit(self, name: str, job: str = "sim.0", **context: object) -> None:
        self.check.emit([JobEvent(1.0 + len(self.events), job, name, context)])

    def play(self, folder: Path, status: int = 0, **start: object) -> None:
        self.emit("start", **(start or {"workdir": str(folder)}))
        self.emit("finish", status=status)
        self.emit("clean")

    def names(self, job: str = "sim.0") -> list[str]:
        return [event.name for event in self.events if event.job == job]

    def until_clean(self) -> list[str]:
        wait_until(lambda: "clean" in self.names())
        return self.names()

    @property
    def note(self) -> str:
        (found,) = [event for event in self.events if event.name == "exception"]
        assert (found.context["type"], found.context["severity"]) == ("output-missing", 0)
        return str(found.context["note"])


@pytest.fixture
def checked() -> Iterator[Checked]:
    made = Checked()
    yield made
    made.check.close()


GOOD, BAD = ["start", "finish", "clean"], ["start", "exception", "finish", "clean"]


def test_a_job_that_has_left_its_files_has_no_exception(checked: Checked, tmp_path: Path) -> None:
    (tmp_path / "traj.xtc").write_text("x")
    (tmp_path / "restart").mkdir()
    (tmp_path / "restart" / "a").write_text("x")
    absolute = tmp_path / "elsewhere"
    absolute.write_text("x")
    wanted = ["traj.xtc", "restart/", "*.xtc", "**/a", str(absolute)]
    checked.job(dict.fromkeys(wanted, NEVER))
    checked.play(tmp_path)
    assert checked.until_clean() == GOOD


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("traj.xtc", "'traj.xtc' is missing"),
        ("empty", "'empty' is empty"),
        ("folder", "'folder' is an empty folder"),
        ("empty/x", "'empty/x' is missing"),
        ("*.xtc", "no file matches '*.xtc'"),
        ("emp*", "'empty' is empty"),
        ("broken", "'broken' is missing"),
    ],
)
def test_a_missing_or_empty_file_is_a_fatal_exception_before_the_finish(
    checked: Checked, tmp_path: Path, path: str, what: str
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken").symlink_to("nowhere")
    checked.job({path: 0.0})
    checked.play(tmp_path)
    assert checked.until_clean() == BAD
    assert checked.note == f"outputs: {what} in {tmp_path}"
    raised, finish = checked.events[1:3]
    assert raised.timestamp < finish.timestamp  # a resume asks for later events


def test_characters_of_patterns_in_a_name_or_in_the_folder_are_no_pattern(
    checked: Checked, tmp_path: Path
) -> None:
    folder = tmp_path / "run[1]"
    folder.mkdir()
    (folder / "a[0].dat").write_text("x")
    checked.job({"a[0].dat": 0.0, "*.dat": 0.0})
    checked.play(folder)
    assert checked.until_clean() == GOOD


def test_a_file_may_appear_after_the_end_of_the_job(checked: Checked, tmp_path: Path) -> None:
    checked.job({"late": NEVER})
    checked.play(tmp_path)
    checked.job({}, "sim.1")
    checked.emit("start", "sim.1")
    assert checked.names() == ["start"]
    assert checked.names("sim.1") == ["start"]  # the wait does not hold other jobs
    (tmp_path / "late").write_text("x")
    assert checked.until_clean() == GOOD


def test_a_run_that_ends_does_not_wait_for_files(checked: Checked, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    checked.job({"late": NEVER, "there": NEVER})
    checked.play(tmp_path)
    checked.check.hurry()
    assert checked.until_clean() == BAD
    assert checked.note == f"outputs: 'late' is missing in {tmp_path}"


@pytest.mark.parametrize("status", [256, 9])
def test_only_jobs_with_exit_code_0_are_checked(
    checked: Checked, tmp_path: Path, status: int
) -> None:
    checked.job({"late": NEVER})
    checked.play(tmp_path, status)
    assert checked.names() == GOOD


def test_a_job_that_was_cancelled_or_reached_a_limit_is_not_checked(
    checked: Checked, tmp_path: Path
) -> None:
    checked.job({"late": NEVER})
    checked.emit("start", workdir=str(tmp_path))
    checked.emit("exception", type="timeout", severity=0)
    checked.emit("finish", status=0)
    assert checked.names() == ["start", "exception", "finish"]


def test_after_a_requeue_the_folder_of_the_last_start_counts(
    checked: Checked, tmp_path: Path
) -> None:
    (tmp_path / "traj.xtc").write_text("x")
    checked.job({"traj.xtc": 0.0})
    checked.emit("start", workdir="/nowhere")
    checked.emit("requeue")
    checked.play(tmp_path)
    assert checked.until_clean() == ["start", "requeue", *GOOD]


def test_a_folder_that_this_machine_does_not_see_is_named(checked: Checked) -> None:
    checked.job({"traj.xtc": 0.0})
    checked.play(Path("/no/such/folder"))
    assert checked.until_clean() == BAD
    assert "because /no/such/folder does not exist on this machine" in checked.note


def test_a_folder_of_a_member_that_is_not_shared_is_named(checked: Checked) -> None:
    checked.job({"traj.xtc": NEVER})
    checked.play(Path(), at_member={"workdir": "/far/away"})
    assert checked.names() == BAD
    assert "cannot be checked" in checked.note
    assert "/far/away" in checked.note
    assert "--option shared=FOLDER" in checked.note


def test_events_keep_their_order_while_many_jobs_end(tmp_path: Path) -> None:
    checked = Checked()
    (tmp_path / "f").write_text("x")
    jobs = [f"sim.{number}" for number in range(300)]
    for name in jobs:
        checked.job({"f": NEVER}, name)

    def play(names: Sequence[str]) -> None:
        for name in names:
            start = JobEvent(1.0, name, "start", {"workdir": str(tmp_path)})
            checked.check.emit([start, JobEvent(2.0, name, "finish", {"status": 0})])
            checked.check.emit([JobEvent(3.0, name, "clean")])

    threads = [threading.Thread(target=play, args=(jobs[n::3],)) for n in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: sum(event.name == "clean" for event in checked.events) == len(jobs))
    assert all(checked.names(name) == GOOD for name in jobs)
    checked.check.close()


# -- the engine --------------------------------------------------------------------------------

STORY = """
jobs: [{name: sim, command: x, outputs: [a], retry: {times: 1}}]
rules: [{trigger: start, action: {name: submit, label: sim}}]
"""


def begun() -> Story:
    told = Story(STORY)
    told.start()
    told.begin("sim.0")
    return told


def test_a_job_that_a_stop_was_cancelling_is_submitted_again() -> None:
    told = begun()
    told.tell(StopRequested(told.now, then="cancel"))
    told.job("sim.0", "exception", type="output-missing", severity=0)
    told.end("sim.0")
    again = told.tell(Resumed(told.now))
    assert told.submitted(again) == ["sim.0"]
    assert not any(isinstance(one, Retry) for one in again)


def test_a_job_that_the_run_was_cancelling_is_cancelled() -> None:
    told = begun()
    told.tell(Requested(told.now, "me", {"name": "cancel", "label": "sim"}))
    told.job("sim.0", "exception", type="output-missing", severity=0)
    told.end("sim.0")
    assert told.metric("count.sim.cancelled") == 1
    assert told.exit_code == 0


# -- whole runs --------------------------------------------------------------------------------

FILE = """
name: study
jobs:
  - name: sim
    command: sh -c 'test "$1" = 1 || echo x > ener_$1.edr' sh {index}
    count: 3
    workdir: out/{index}
    outputs: [{path: "ener_{index}.edr", wait: 0}]
    MORE
rules:
  - {trigger: start, action: {name: submit, label: sim}}
"""


def ensemble(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [*words])
    assert result.exit_code == code, result.output
    return result


def jobs(tag: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(ensemble("jobs", tag, "--csv").output)))


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENSEMBLE_STATE", str(tmp_path / "state"))
    return tmp_path / "e.yaml"


def write(study: Path, more: str = "", file: str = FILE) -> None:
    study.write_text(file.replace("MORE", more))


def test_a_run_counts_a_job_without_its_file_as_failed_by_output(study: Path) -> None:
    write(study)
    result = ensemble("run", "e.yaml", "--executor", "local", "--tag", "r", code=1)
    assert "failed of sim: 1 by output" in result.output
    assert "outputs: 'ener_1.edr' is missing in " in result.output
    assert [(row["outcome"], row["exit_code"], row["cause"]) for row in jobs("r")] == [
        ("success", "0", "exit"),
        ("failed", "0", "output"),
        ("success", "0", "exit"),
    ]
    assert "byte for byte" in ensemble("replay", "r").output


def test_a_retry_may_be_about_the_cause(study: Path) -> None:
    text = FILE.replace('"$1" = 1', '"$1$2" = 10').replace("sh {index}", "sh {index} {attempt}")
    write(study, "retry: {times: 1, when: cause == 'output'}", text)
    ensemble("run", "e.yaml", "--executor", "local", "--tag", "r")
    assert [row["attempts"] for row in jobs("r")] == ["1", "2", "1"]


def test_an_earlier_job_whose_files_are_gone_is_not_reused(study: Path) -> None:
    write(study, file=FILE.replace("test", "false"))
    ensemble("run", "e.yaml", "--executor", "local", "--tag", "r")
    Path("out/2/ener_2.edr").unlink()
    ensemble("run", "e.yaml", "--executor", "local", "--reuse", "r", "--tag", "r2")
    found = json.loads(ensemble("metrics", "r2", "--json").output)
    assert {one["metric"]: one["value"] for one in found}["count.sim.reused"] == 2
    assert Path("out/2/ener_2.edr").exists()


# -- bad input ---------------------------------------------------------------------------------

REGISTRY = discover()
GROUP = "jobs: [{name: sim, command: x, count: 2, GROUP}]\n"
START = "rules: [{trigger: start, action: {name: submit, label: sim}}]\n"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("outputs: traj.xtc", "expected a list"),
        ("outputs: ['']", "empty"),
        ("outputs: [a, a]", "listed twice"),
        ("outputs: [{path: a, wait: 3 parsecs}]", "parsecs"),
        ("outputs: [{path: a, wait: -1}]", "-1"),
        ("outputs: [{wait: 1}]", "path"),
        ("outputs: [{path: a, waits: 1}]", "did you mean 'wait'?"),
        ("outputs: ['{indx}.dat']", "did you mean {index}?"),
        ("output: [a]", "did you mean 'outputs'?"),
    ],
)
def test_a_mistake_in_outputs_is_one_error(given: str, what: str) -> None:
    with pytest.raises(FileErrors) as caught:
        load_text(GROUP.replace("GROUP", given) + START, REGISTRY, file="f.yaml")
    (error,) = caught.value.errors
    assert what in str(error)
    assert "f.yaml:1:" in str(error)


NEXT = """  - {trigger: job-success, name: sim, action: {name: submit, label: use,
      with: {command: "cat {job.outputs[N]}"}}}
"""


def test_a_rule_can_name_the_files_of_a_job(study: Path) -> None:
    more = FILE.replace("rules:", "  - {name: use, command: 'x'}\nrules:").replace("count: 3", "")
    write(study, file=more.replace("MORE", "") + NEXT.replace("N", "0"))
    ensemble("run", "e.yaml", "--executor", "local", "--tag", "r")
    submit = [line for line in ensemble("events", "r").output.splitlines() if '"cat"' in line]
    assert f'"{study.parent}/out/0/ener_0.edr"' in submit[0]


def test_a_file_that_a_job_does_not_have_is_an_unknown_field() -> None:
    groups = "jobs: [{name: sim, command: x, outputs: [a]}, {name: use, command: x}]\n"
    rules = "rules:\n  - {trigger: start, action: {name: submit, label: sim}}\n" + NEXT
    with pytest.raises(FileErrors) as caught:
        load_text(groups + rules.replace("N", "1"), REGISTRY, file="f.yaml")
    (error,) = caught.value.errors
    assert "a job has no 'outputs[1]'" in str(error)
    assert "outputs[0]" in str(error)


def test_jobs_that_would_write_one_required_file_cause_a_warning() -> None:
    text = GROUP.replace("GROUP", "outputs: [a, '{index}.dat']") + START
    (warning,) = load_text(text, REGISTRY).warnings
    assert "sim.0 and sim.1 would both write a, which 'outputs' names" in warning


def test_outputs_are_rejected_if_pods_have_the_files() -> None:
    text = GROUP.replace("GROUP", "outputs: [a]") + START
    if "kubernetes" not in REGISTRY.executors:
        pytest.skip("needs ensemble-kubernetes")
    with pytest.raises(FileErrors) as caught:
        load_text(text, REGISTRY, executor=REGISTRY.executors["kubernetes"])
    (error,) = caught.value.errors
    assert "pods have their own file systems" in str(error)
