"""Decision suite: checks that ensembles make the same decisions on an executor as on the local one.

An author's own test file::

    from ensemble_testing import DecisionSuite

    class TestMyQueue(DecisionSuite):
        executor = "my-queue"
        options = ("-o", "partition=debug")
        files = sorted(Path("examples").glob("*.yaml"))

Random differences are ignored, such as measured values and the order of independent firings.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ensemble_core.cli.main import main
from ensemble_testing.run_process import cancel_runs, held_jobs
from ensemble_testing.session import NAME, need

#: Ensembles whose decisions depend only on the outcomes of jobs, whatever the size of the queue.
ENSEMBLES = {
    "outcomes": """
jobs:
  - {name: work, command: "true", count: 5}
  - {name: flaky, command: [sh, -c, "test {index} = 2 || exit 75"]}
  - {name: missing, command: there-is-no-such-command}
  - {name: next, command: "true", count: 2}
  - {name: late, command: sleep 600, duration: 1}
rules:
  - id: begin
    trigger: start
    action:
      - {name: submit, label: work}
      - {name: submit, label: flaky}
      - {name: submit, label: missing}
      - {name: submit, label: late}
  - {id: retry, trigger: job-fail, name: flaky, when: exit_code == 75, repetitions: 5,
     action: {name: submit, label: flaky}}
  - {id: gone, trigger: job-fail, name: missing, action: {name: log, message: "{job} failed"}}
  - {id: late, trigger: job-exception, name: late, when: type == "timeout",
     action: {name: log, message: "{job} took too long"}}
  - {id: some, trigger: metric, name: count.work.success, when: 3,
     action: {name: submit, label: next}}
  - {id: all, trigger: metric, name: count.next.success, when: 2,
     action: {name: submit, label: next, with: {count: 1, environment: {LAST: "1"}}}}
""",
    "attempts": """
jobs:
  - name: flaky
    command: [sh, -c, 'test "$ENSEMBLE_ATTEMPT" = 2 || exit 75']
    count: 2
  - name: slow
    command: [sh, -c, 'test "$ENSEMBLE_JOB_ID $ENSEMBLE_INDEX" = "slow.0-1 0" || exec sleep 600']
    duration: 1
rules:
  - id: begin
    trigger: start
    action: [{name: submit, label: flaky}, {name: submit, label: slow}]
  - {id: again, trigger: job-fail, name: flaky, each: job, when: exit_code == 75, repetitions: 3,
     action: {name: retry}}
  - {id: longer, trigger: job-fail, name: slow, each: job, when: cause == "timeout",
     action: {name: retry, with: {duration: "= 120 * limit"}}}
  - {id: done, trigger: job-done, each: job, repetitions: 1,
     action: {name: log, message: "done: {job}"}}
  - {id: lost, trigger: job-lost, action: {name: terminate, exit_code: 3}}
  - {id: over, trigger: idle, action: {name: log, message: "over"}}
""",
    "cancel": """
jobs:
  - {name: work, command: "true", count: 3}
  - {name: server, command: sleep 600, count: 2}
  - {name: tail, command: "true"}
  - {name: watch, command: sleep 600}
rules:
  - id: begin
    trigger: start
    action: [{name: submit, label: work}, {name: submit, label: server}]
  - {id: stop, trigger: metric, name: count.work.success, when: 3,
     action: {name: cancel, label: server}}
  - {id: told, trigger: job-cancel, name: server, repetitions: 9,
     action: {name: submit, label: tail}}
  - {id: over, trigger: metric, name: count.tail.success, when: 2,
     action: [{name: submit, label: watch}, {name: terminate, exit_code: 5}]}
""",
    "observed": """
jobs:
  - name: walk
    command: >-
      sh -c 'for step in 1 2 3; do
      echo "{{\\"step\\": $step, \\"far\\": $((step * {pace}))}}"; done'
    parameters: {pace: [1, 10]}
    observe: {json-lines: {fields: [step, far]}}
  - {name: again, command: "true"}
rules:
  - {id: begin, trigger: start, action: {name: submit, label: walk}}
  - {id: far, trigger: observed, name: walk, when: step == 3 and far == 30, repetitions: 9,
     action: [{name: log, message: "{job} is far"}, {name: custom, label: more}]}
  - {id: sum, trigger: metric, name: sum.walk-far, when: 66,
     action: {name: log, message: "all have walked"}}
custom: |
  def more(job, **rest):
      pace = job["parameters"]["pace"]
      return Action({"name": "submit", "label": "again", "with": {"tasks": 1, "count": pace // 5}})
""",
}


def ensemble_files(folder: Path, *without: str) -> list[Path]:
    """Return a folder's ensemble files, without rule tests; an empty list if the folder is missing.

    - ``without``: beginnings of file names to leave out
    """
    files = sorted(folder.glob("*.yaml"))
    return [
        file for file in files if file.name.count(".") == 1 and not file.name.startswith(without)
    ]


@dataclass(frozen=True)
class Decisions:
    """Decisions of a run, for a comparison with those of another run."""

    exit_code: int
    #: Number of equal firings. The key is a rule with its decisions, as JSON.
    firings: Counter[str]
    #: Rules that fired and groups that were submitted or cancelled, without counts.
    outline: frozenset[tuple[str, ...]]

    def difference(self, other: Decisions) -> list[str]:
        """Return, as text, the decisions that only one of the two runs has."""
        return [
            *(f"only here: {firing}" for firing in (self.firings - other.firings).elements()),
            *(f"only there: {firing}" for firing in (other.firings - self.firings).elements()),
        ]


class DecisionSuite:
    """Tests of the executor with the name ``executor``.

    Start the queue in a fixture, with the environment variables that your executor needs. Jobs must
    run as this user, on this machine or one that shares its files.
    """

    #: The executor's name, and other options of ``ensemble run``.
    executor: ClassVar[str]
    options: Sequence[str] = ()
    #: Ensembles to run, by name, and other ensemble files.
    ensembles: ClassVar[Mapping[str, str]] = ENSEMBLES
    files: ClassVar[Sequence[Path]] = ()
    #: Names of files that this executor must reject because it cannot resize.
    refused: ClassVar[Collection[str]] = ()
    #: Names of files where timing determines how often a rule fires or how many jobs are submitted.
    #: For these, only the sets of rules and groups are compared.
    timed: ClassVar[Collection[str]] = ()
    #: Ids of rules to ignore, because they depend on the speed of the machine.
    unheeded: ClassVar[Collection[str]] = ()
    #: Time limit of one run in seconds.
    timeout: ClassVar[float] = 240.0

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "ensemble_file" in metafunc.fixturenames:
            found: list[str | Path] = [*self.ensembles, *self.files]
            names = [f if isinstance(f, str) else f"{f.parent.name}-{f.stem}" for f in found]
            metafunc.parametrize("ensemble_file", found, ids=names)

    @contextmanager
    def running(
        self, executor: str, file: Path, folder: Path, *options: str
    ) -> Iterator[subprocess.Popen[str]]:
        """Run ``ensemble run`` in a separate folder during the block."""
        folder.mkdir()
        words = self._command_line(executor, file, folder, *options)
        with (folder / "errors").open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "ensemble_core.cli", *words],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **self._environment(folder)},
            )
        try:
            yield process
        except BaseException:  # also pytest's own exceptions
            cancel_runs(folder / "state")
            raise
        finally:
            if process.poll() is None:
                process.terminate()
            process.communicate(timeout=self.timeout)

    @staticmethod
    def _command_line(executor: str, file: Path, folder: Path, *options: str) -> list[str]:
        output = str(folder / "output")
        return ["run", "--json", "--executor", executor, "--output", output, *options, str(file)]

    @staticmethod
    def _environment(folder: Path) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return {"PATH": path, "ENSEMBLE_STATE": str(folder / "state")}

    def _local_decisions(self, file: Path, folder: Path, *options: str) -> Decisions:
        """Return the decisions of a run on this machine, played in this process to save imports."""
        folder.mkdir()
        words = self._command_line("local", file, folder, *options)
        with (
            (folder / "lines").open("w") as lines,
            (folder / "errors").open("w") as errors,
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(lines),
            redirect_stderr(errors),
        ):
            patch.chdir(folder)
            for name, value in self._environment(folder).items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main(words)
        code = ended.value.code
        assert isinstance(code, int)
        return self._read(code, (folder / "lines").read_text(), (folder / "errors").read_text())

    def decisions(self, process: subprocess.Popen[str], folder: Path) -> Decisions:
        """Wait for the end of a run and return its decisions."""
        try:
            output, _ = process.communicate(timeout=self.timeout)
        except subprocess.TimeoutExpired:
            held = held_jobs(folder / "state")
            pytest.fail(f"a run did not end within {self.timeout:g} s: {held}")
        return self._read(process.returncode, output, (folder / "errors").read_text())

    def _read(self, code: int, output: str, errors: str) -> Decisions:
        lines = [json.loads(line) for line in output.splitlines()]
        found = [
            line
            for line in lines
            if line.get("kind") == "decision"
            # These are messages of the executor about its queue.
            and not (line["type"] == "log" and line["rule"] is None and line["level"] == "info")
        ]
        assert found, errors
        firings: dict[Any, list[dict[str, Any]]] = {}
        outline = set()
        for number, line in enumerate(found):
            firing = line.get("firing")
            of = f"no firing {number}" if firing is None else firing
            firings.setdefault(of, []).append(self._meaning(line))
            if line["type"] in ("fired", "submit", "cancel", "terminate"):
                keys = [key for key in ("type", "rule", "group") if key in line]
                outline.add(tuple(str(line[key]) for key in keys))
        return Decisions(
            code,
            Counter(json.dumps(each, sort_keys=True) for each in firings.values()),
            frozenset(each for each in outline if each[1] not in self.unheeded),
        )

    @staticmethod
    def _meaning(line: dict[str, Any]) -> dict[str, Any]:
        """Return a decision without its random parts."""
        chance = {"timestamp", "value", "firing"}
        if line["type"] == "fired":
            chance |= {"job", "count"}  # which of several came first
        elif line["type"] == "terminate":
            chance.add("cancel")  # which jobs were still active
        kept = {key: value for key, value in line.items() if key not in chance}
        if line["type"] == "log":
            named = re.sub(r"(/[^/\s]+)+/", "", line["message"])  # files, each in its run's folder
            kept["message"] = re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", named)
        return kept

    def test_decisions_equal_those_of_a_local_run(
        self, ensemble_file: str | Path, tmp_path: Path
    ) -> None:
        need(self, executor=NAME)
        if isinstance(ensemble_file, str):
            file = tmp_path / f"{ensemble_file}.yaml"
            file.write_text(self.ensembles[ensemble_file].lstrip())
        else:
            file = ensemble_file
        here, there = tmp_path / "here", tmp_path / "there"
        if file.name in self.refused:
            with self.running(self.executor, file, there, *self.options) as refused:
                refused.communicate(timeout=self.timeout)
            errors = (there / "errors").read_text()
            assert refused.returncode == 2, errors
            assert self.executor in errors
            assert "resize" in errors or "grow" in errors
            return
        tag = ("--tag", f"same-{secrets.token_hex(6)}")  # {run} is the same in both
        with self.running(self.executor, file, there, *self.options, *tag) as other:
            expected = self._local_decisions(file, here, "--slots", "8", *tag)
            found = self.decisions(other, there)
        assert found.exit_code == expected.exit_code
        assert found.outline == expected.outline
        if file.name not in self.timed:
            assert found.firings == expected.firings, "\n".join(found.difference(expected))
