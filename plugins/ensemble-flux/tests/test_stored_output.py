"""Tests of observers that read output by way of Flux: from its own store, or from files that it
writes.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import Running, wait_until
from ensemble_testing.printed_output import printed_ensemble, wrong_answers

from ensemble_core.cli.options import KeptRun
from ensemble_core.journal.replay import Replay
from ensemble_core.model.events import Observed

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("instance")]
#: Where output without a named file goes.
PLACES = pytest.mark.parametrize("output", ["kvs", "files"])
SOURCES = pytest.mark.parametrize("events", ["journal", "eventlogs"])

GROUP = """
  - name: {name}
    command: [python3, -c, {script}]
    tasks: {tasks}
    nodes: {tasks}
    options: {{flux: {{shell: {{output.limit: {limit}}}}}}}
    observe: {observe}
    result: {{x: last.x}}
"""
#: What a program needs to write bytes at once, and to wait for the test.
PROGRAM = """
import os, pathlib, signal, time
def write(data, stream=1):
    os.write(stream, data)
def wait():
    while not pathlib.Path("{gate}").exists():
        time.sleep(0.05)
"""
#: Observers, with the words before and of a value of each.
OBSERVERS = {
    "pairs": ("{key-value: {}}", "", "x={}"),
    "objects": ("{json-lines: {fields: [x]}}", "", '{{"x": {}}}'),
    "words": ("{regex: {fields: {x: 'x is (\\S+)'}}}", "", "x is {}"),
    "rows": ("{table: {header: '^x y'}}", "x y\n", "{} 7"),
}


class Work:
    """Runs programs, each in one job, with the observer ``key-value`` unless they say more."""

    def __init__(self, folder: Path, ensemble: Callable[..., Running]) -> None:
        self._folder, self._ensemble = folder, ensemble
        self.gate = folder / "gate"

    def run(self, script: str, output: str, *options: str, **group: Any) -> Running:
        return self._run({"work": ("{key-value: {}}", script)}, output, *options, **group)

    def run_each(self, output: str, make: Callable[[str], str], end: str = "") -> Running:
        """Run a job for each observer. It prints what ``make`` returns for the observer's form."""
        scripts = {
            name: (observe, f"write({(before + make(form))!r}.encode()); {end}")
            for name, (observe, before, form) in OBSERVERS.items()
        }
        return self._run(scripts, output)

    def _run(
        self,
        scripts: Mapping[str, tuple[str, str]],
        output: str,
        *options: str,
        tasks: int = 1,
        limit: str = "1M",
    ) -> Running:
        text, actions = "jobs:", []
        for name, (observe, script) in scripts.items():
            program = json.dumps(PROGRAM.format(gate=self.gate) + script)
            text += GROUP.format(
                name=name, observe=observe, script=program, tasks=tasks, limit=limit
            )
            actions.append(f"{{name: submit, label: {name}}}")
        text += f"rules: [{{trigger: start, action: [{', '.join(actions)}]}}]\n"
        state = str(self._folder / "state")
        return self._ensemble(
            text, "-o", f"output={output}", "--tag", "t", "--state", state, *options
        )

    def resume(self) -> Running:
        words = ["resume", "t", "--json", "--state", str(self._folder / "state")]
        return Running(words, self._folder, os.environ)

    def kept(self) -> list[Any]:
        """Return the values in the run's journal."""
        with KeptRun(str(self._folder / "state"), "t") as past:
            steps = Replay(past.journal, past.loading, compare=True).steps()
            events = [row.event() for row, _, _ in steps]
        return [each.values.get("x") for each in events if isinstance(each, Observed)]


@pytest.fixture
def work(tmp_path: Path, ensemble: Callable[..., Running]) -> Iterator[Work]:
    yield (found := Work(tmp_path, ensemble))
    found.gate.touch()


def values(run: Running, group: str = "work") -> list[Any]:
    rows = run.of(kind="event", type="observed", job=f"{group}.0")
    return [line["values"].get("x") for line in rows]


def all_values(run: Running) -> dict[str, list[Any]]:
    return {group: values(run, group) for group in OBSERVERS}


@PLACES
def test_a_progress_bar_is_seen_while_the_job_runs(work: Work, output: str) -> None:
    script = r"""
for number in (1, 2, 3):
    write(b"\rstep x=%d" % number)
    time.sleep(0.3)
wait()
write(b"\rstep x=4\n")
"""
    run = work.run(script, output)
    wait_until(lambda: 2 in values(run), 100)  # the third may not be complete
    assert 4 not in values(run)
    work.gate.touch()
    assert run.ended() == 0, run.errors
    assert values(run) == [1, 2, 3, 4]


@PLACES
def test_a_last_line_without_an_end_counts_if_the_job_ended_by_itself(
    work: Work, output: str
) -> None:
    run = work.run_each(output, lambda form: f"{form.format(1)}\n{form.format(2)}")
    assert run.ended() == 0, run.errors
    assert all_values(run) == {group: [1, 2] for group in OBSERVERS}


@PLACES
def test_a_part_of_a_line_before_a_kill_is_dropped_and_told(work: Work, output: str) -> None:
    def cut(form: str) -> str:
        text = f"{form.format(1)}\n{form.format(23)}"
        return text[: text.rindex("23") + 1]

    run = work.run_each(output, cut, "os.kill(os.getpid(), signal.SIGKILL)")
    assert run.ended() == 1, run.errors
    assert all_values(run) == {group: [1] for group in OBSERVERS}
    told = [text for text in run.warnings() if "no end" in text]
    for group in OBSERVERS:
        assert [text for text in told if f"{group}.0" in text], (group, run.warnings())


@PLACES
def test_the_last_word_counts_also_if_it_is_no_number(work: Work, output: str) -> None:
    run = work.run_each(
        output, lambda form: "".join(f"{form.format(word)}\n" for word in (1, 2, "NaN"))
    )
    assert run.ended() == 0, run.errors
    assert all_values(run) == {group: [1, 2, None] for group in OBSERVERS}, run.of(type="observed")


@PLACES
def test_bytes_that_are_no_text_change_no_value(work: Work, output: str) -> None:
    script = r"""
write(b"caf\xe9 \xff\xfe x=1\n")
time.sleep(0.3)
write(b"\x1b[31mx=2\x1b[0m nul=\x00 \xc3")
time.sleep(0.3)
write(b"\xa9\n")
"""
    run = work.run(script, output)
    assert run.ended() == 0, run.errors
    assert values(run) == [1, 2]


def test_tasks_of_a_job_mix_no_lines(work: Work) -> None:
    script = r"""
for part in (b"x=", b"1", b"2", b"\n") * 20:
    write(part)
    time.sleep(0.001)
"""
    run = work.run(script, "kvs", tasks=3)
    assert run.ended() == 0, run.errors
    assert set(values(run)) == {12}


@SOURCES
@PLACES
def test_a_resumed_run_reads_on(work: Work, output: str, events: str) -> None:
    """Also what was printed while no controller ran."""
    script = r"""
write(b"x=1\n")
write(b"x=9\n", stream=2)
wait()
write(b"x=2\n")
time.sleep(1)
write(b"x=3\n")
"""
    run = work.run(script, output, "-o", f"events={events}")
    wait_until(lambda: values(run) == [1], 100)
    run.signal(signal.SIGKILL)
    run.process.wait(120)
    work.gate.touch()
    resumed = work.resume()
    try:
        assert resumed.ended() == 0, resumed.errors
    finally:
        resumed.close()
    assert work.kept() == [1, 2, 3], resumed.warnings()


@SOURCES
@PLACES
def test_a_job_that_starts_after_a_resume_is_observed(
    instance: Any, work: Work, output: str, events: str
) -> None:
    instance.flux("queue", "stop")
    try:
        run = work.run(r"write(b'x=1\n')", output, "-o", f"events={events}")
        run.wait_for(type="job", name="submit")
        wait_until(lambda: bool(instance.active()), 100)
        run.signal(signal.SIGKILL)
        run.process.wait(120)
        resumed = work.resume()
        try:
            wait_until(lambda: bool(resumed.of(type="session")) or bool(resumed.lines), 100)
            instance.flux("queue", "start")
            assert resumed.ended() == 0, resumed.errors
        finally:
            resumed.close()
        assert work.kept() == [1], resumed.warnings()
    finally:
        instance.flux("queue", "start")


def test_output_that_flux_drops_is_told_once(work: Work) -> None:
    script = "for number in range(9000): write(b'x=%d\\n' % number)"
    run = work.run(script, "kvs", limit="20k")
    assert run.ended() == 0, run.errors
    (told,) = [text for text in run.warnings() if "dropped output" in text]
    assert "work.0" in told
    assert "output.limit" in told


@PLACES
def test_what_is_difficult_to_read_is_read_as_on_this_machine(
    tmp_path: Path, ensemble: Callable[..., Running], output: str
) -> None:
    text = printed_ensemble(tmp_path, named=False).read_text()
    run = ensemble(text, "-o", f"output={output}")
    assert run.ended() == 0, run.errors
    assert wrong_answers(run.lines, named=False) == [], run.lines


def test_a_limit_on_output_that_stays_in_the_store_of_flux_is_told(
    ensemble: Callable[..., Running],
) -> None:
    text = """
limits: {output: 1M}
jobs: [{name: sim, command: sh -c 'head -c 3000000 /dev/zero'}]
rules: [{trigger: start, action: {name: submit, label: sim}}]
"""
    run = ensemble(text, "-o", "output=kvs")
    assert run.ended() == 0, run.errors
    (told,) = [text for text in run.warnings() if "limits.output" in text]
    assert "no effect" in told
