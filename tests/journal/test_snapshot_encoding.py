"""Snapshots restore the whole state and cannot run code."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ensemble_testing import FakeExecutor, Story

import ensemble_core
from ensemble_core.builtin.statistics import EXACT
from ensemble_core.config import load_text
from ensemble_core.engine.engine import Engine
from ensemble_core.journal.event_encoding import decisions_text
from ensemble_core.journal.reader import NAME, Journal
from ensemble_core.journal.snapshot_encoding import dump, load
from ensemble_core.journal.writer import JournalWriter
from ensemble_core.metrics.series import StatisticSpec
from ensemble_core.metrics.statistic_state import NoState
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import JobEvent
from ensemble_core.plugin.discovery import discover
from ensemble_core.runtime.controller import Runtime

REGISTRY = discover()
#: Rules that use every statistic of a variable.
TEXT = """
jobs: [{name: a, command: run, count: 3}, {name: b, command: run}]
rules:
  - {trigger: start, action: {name: submit, label: a}}
  - {trigger: metric, name: p90.a-duration, when: "> 100", action: {name: submit, label: b}}
  - {trigger: job-fail, name: a, repetitions: 9, action: {name: custom, label: more}}
custom: |
  def more(**kwargs):
      return {"trigger": "job-success", "name": "a", "action": {"name": "submit", "label": "b"}}
"""


def told(values: int) -> Story:
    """Return a run with ``values`` finished jobs of different durations."""
    ensemble = load_text(TEXT.replace("count: 3", f"count: {values + 2}"), REGISTRY)
    story = Story(ensemble)
    story.start()
    for number in range(values):
        story.begin(f"a.{number}", pending=number * 7 % 11)
        story.end(f"a.{number}", duration=0.5 + number * 13 % 97)
    story.begin(f"a.{values}")
    return story


def again(story: Story) -> Engine:
    loaded = load(dump(story.engine), story.ensemble)
    assert loaded is not None
    return loaded


@pytest.mark.parametrize("values", [1, 200, EXACT + 150])
def test_every_statistic_is_restored_exactly(values: int) -> None:
    story = told(values)
    restored = again(story)
    assert dict(restored.snapshot()) == dict(story.engine.snapshot())
    assert len(restored.state.metrics.series["a", "duration"].names) > 10
    for number in range(120):
        event = JobEvent(2e4 + number, f"a.{values}", "start" if number == 0 else "memo")
        assert decisions_text(restored.handle(event)) == decisions_text(story.engine.handle(event))
        duration = number * 1.75 % 31
        for engine in (restored, story.engine):
            engine.state.metrics.series["a", "duration"].record(duration, 2e4 + number)
    assert dict(restored.snapshot()) == dict(story.engine.snapshot())


def test_shared_objects_stay_shared() -> None:
    story = told(3)
    state = again(story).state
    group = state.table.groups["a"]
    assert group.counts is state.metrics.counts["a"]
    assert group.waiting.keys() == story.engine.state.table.groups["a"].waiting.keys()
    for job, record in group.waiting.items():
        assert record is state.table.records[job]
    watch = state.rules.index.watches["p90.a-duration"]
    assert watch.bounds is state.metrics.series["a", "duration"]


# -- statistics of plugins -------------------------------------------------------------------------


class Last:
    """A statistic whose state is its attributes."""

    def __init__(self) -> None:
        self.value = 0.0

    def update(self, value: float, /) -> None:
        self.value = value

    def get(self) -> float | None:
        return self.value


class Of(Last):
    """A statistic with another statistic and functions as attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.function, self.both = Last(), max, partial(round, ndigits=2)

    def update(self, value: float, /) -> None:
        self.inner.update(value)
        self.value = self.both(self.function(value, self.inner.value))


class Speaks(Last):
    """A statistic that defines what to store."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def __getstate__(self) -> float:
        return self.value

    def __setstate__(self, state: float) -> None:
        self.value = state


class Locks(Last):
    """A statistic with an attribute that cannot be stored."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Changes(Last):
    """A statistic that changes its class."""

    def update(self, value: float, /) -> None:
        self.inner = Last()
        self.value = value


class Stubborn(Last):
    """A statistic that raises when it is stored."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ValueError("ctypes objects containing pointers cannot be copied")


class Unreadable(Speaks):
    """A statistic that rejects its stored state."""

    def __setstate__(self, state: float) -> None:
        raise ZeroDivisionError("the plugin has changed")


def with_statistic(build: Callable[[], Any]) -> Ensemble:
    checked = load_text(
        "jobs: [{name: work, command: x}]\n"
        "rules: [{trigger: start, action: {name: submit, label: work}}]\n",
        REGISTRY,
    )
    spec = StatisticSpec(name="odd", build=build, default=True)
    return replace(checked, statistics={**checked.statistics, "odd": spec})


@pytest.mark.parametrize("kind", [Last, Of, Speaks])
def test_a_plugins_statistic_is_restored(kind: type[Last]) -> None:
    story = Story(with_statistic(kind))
    story.start()
    story.begin("work.0", pending=2.125)
    assert again(story).state.metrics.get(story.engine.state.rules.path("odd.work-pending"), 9) == (  # type: ignore[arg-type]
        2.12 if kind is Of else 2.125
    )


@pytest.mark.parametrize("kind", [Locks, Changes, Stubborn])
def test_the_error_names_a_statistic_that_cannot_be_stored(kind: type[Last]) -> None:
    story = Story(with_statistic(kind))
    story.start()
    story.play("work.0")
    story.metric("odd.work-duration")
    with pytest.raises(NoState, match="statistic 'odd'"):
        dump(story.engine)


def test_a_statistic_that_cannot_be_stored_disables_snapshots_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ensemble_core.runtime.snapshot_schedule._SNAPSHOT_EVERY", 1)
    monkeypatch.setattr("ensemble_core.runtime.snapshot_schedule._SNAPSHOT_SHARE", 0)
    text = (
        "jobs: [{name: work, command: x, count: 20}, {name: more, command: x}]\n"
        "rules:\n"
        "- {trigger: start, action: {name: submit, label: work}}\n"
        # The events of this job come after the warning.
        "- {trigger: idle, name: work, action: {name: submit, label: more}}\n"
    )
    checked = replace(load_text(text, REGISTRY), statistics=with_statistic(Locks).statistics)
    writer = JournalWriter(tmp_path / NAME)
    writer.begin(0.0, {})
    runtime = Runtime(
        checked,
        FakeExecutor(instant=True),
        actions=REGISTRY.actions,
        observers=REGISTRY.observers,
        folder=tmp_path / "output",
        journal=writer,
        maker="test",
    )
    assert runtime.run().exit_code == 0
    writer.close()
    with Journal(tmp_path / NAME) as journal:
        decided = [row.decisions or "" for row in journal.rows(0)]
        assert sum("cannot be saved" in text for text in decided) == 1
        assert list(journal.snapshots()) == []


def test_a_statistic_that_cannot_be_restored_makes_the_resume_use_events() -> None:
    story = Story(with_statistic(Unreadable))
    story.start()
    story.play("work.0")
    assert load(dump(story.engine), story.ensemble) is None


# -- hostile snapshots -----------------------------------------------------------------------------


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[list[str]]]:
        return subprocess.call, (["touch", str(self.trace)],)


def test_a_snapshot_with_code_is_rejected_without_running_it(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    assert load(pickle.dumps(Bomb(ran)), told(1).ensemble) is None
    assert not ran.exists()


def hostile(change: Callable[[dict[str, Any]], None]) -> bytes:
    data = json.loads(dump(told(2).engine))
    change(data)
    return json.dumps(data).encode()


def fields_of(data: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each[2] for each in data["chunks"] if each[0] == name)
    return found


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["chunks"].append(["subprocess.Popen", 1, {}]),
        lambda data: data["chunks"].append(["engine.Engine", 1, {}]),
        lambda data: data["chunks"].append(["conditions.Condition", 1, {}]),
        lambda data: fields_of(data, "state.State").update(__class__={"all": "x"}),
        lambda data: fields_of(data, "state.State").update(apply={"all": "x"}),
        lambda data: fields_of(data, "rule_index.Watch").update(read={"all": "x"}),
        lambda data: fields_of(data, "series._Cell").update(statistic={"all": "x"}),
        lambda data: fields_of(data, "state.State").pop("firings"),
        lambda data: data.update(state={"all": "x"}),
        lambda data: data.update(chunks=[]),
        lambda data: fields_of(data, "rule_index.RuleState")["rule"].update(rule=["none"] * 3),
    ],
)
def test_a_snapshot_with_unknown_content_is_rejected(
    change: Callable[[dict[str, Any]], None],
) -> None:
    ensemble = told(2).ensemble
    assert load(hostile(lambda data: None), ensemble) is not None
    assert load(hostile(change), ensemble) is None


def test_with_a_damaged_snapshot_the_events_are_used() -> None:
    ensemble = told(1).ensemble
    for state in (b"", b"\x80\x05.", b"[]", b"null", b"{}", b"[" * 100_000, b'{"chunks": 1}'):
        assert load(state, ensemble) is None


def test_the_product_never_unpickles() -> None:
    """No module of ours can read pickles."""
    unsafe = re.compile(
        r"^\s*(import|from)\s.*\b(_?pickle|marshal|shelve|dill|cloudpickle|joblib)\b", re.M
    )
    folders = [Path(ensemble_core.__file__).parent, Path(__file__).parents[2] / "plugins"]
    product = [
        path
        for folder in folders
        for path in folder.rglob("*.py")
        if not {"tests", ".venv", "build"} & set(path.relative_to(folder).parts)
    ]
    assert len(product) > 100
    found = [path for path in product if unsafe.search(path.read_text("utf-8"))]
    assert found == []
    assert "pickle" in sys.modules  # imported by this test; the product may not
