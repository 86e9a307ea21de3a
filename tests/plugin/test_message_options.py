"""Placeholders in message options of plugins' actions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ensemble_testing import FakeFiring, Story

from ensemble_core import Action, ActionPlugin, CallContext
from ensemble_core.config import load_text
from ensemble_core.model.decisions import Call, Decision, Log
from ensemble_core.model.rules import Firing
from ensemble_core.plugin.discovery import discover
from ensemble_core.plugin.registry import LoadedPlugin, Registry

_MESSAGE = {"description": "What to say.", "type": "string", "x-ensemble": "message"}
_OPTIONS = {
    "type": "object",
    "properties": {
        "text": {**_MESSAGE, "default": "{job} again"},
        "lines": {**_MESSAGE, "type": "array", "items": {"type": "string"}},
        "card": {"type": "object", "properties": {"title": _MESSAGE, "raw": {"type": "string"}}},
        "own": {**_MESSAGE, "x-ensemble-fills": True},
    },
}


def _say(firing: Firing, options: Mapping[str, Any]) -> Iterable[Decision]:
    yield firing.log(repr(dict(options)))


def _post(context: CallContext) -> Action | None:
    return None


SAY = ActionPlugin(name="say", summary="-", plan=_say, options=_OPTIONS)
POST = ActionPlugin(name="post", summary="-", run=_post, options=_OPTIONS)


def told(action: str) -> Story:
    plugin = LoadedPlugin(
        name="chat", distribution="chat", version="1", module="chat",
        records={"action": (SAY, POST)},
    )  # fmt: skip
    text = (
        "jobs: [{name: sim, command: 'x {T}', parameters: {T: 2.5}}]\n"
        "rules:\n"
        "  - {trigger: start, action: {name: submit, label: sim}}\n"
        f"  - {{trigger: job-fail, action: {action}}}\n"
    )
    story = Story(load_text(text, Registry([*discover().plugins, plugin])))
    story.start()
    story.play("sim.0", status=256)
    return story


def options_of(story: Story) -> Mapping[str, Any]:
    (call,) = [each for each in story.decisions if isinstance(each, Call)]
    return call.options


def test_placeholders_in_messages_of_slow_actions_are_filled() -> None:
    options = options_of(told("{name: post, text: '{job} failed with {exit_code}, T {job.T:.2f}'}"))
    assert options["text"] == "sim.0 failed with 1, T 2.50"


def test_placeholders_in_messages_of_plans_are_filled() -> None:
    (log,) = [d for d in told("{name: say, text: '{job}'}").decisions if isinstance(d, Log)]
    assert log.message == "{'text': 'sim.0'}"


def test_placeholders_in_nested_and_default_messages_are_filled() -> None:
    options = options_of(
        told("{name: post, lines: ['{job}', '{{job}}'], card: {title: '{job}', raw: '{job}'}}")
    )
    assert options["lines"] == ["sim.0", "{job}"]
    assert options["card"] == {"title": "sim.0", "raw": "{job}"}
    assert options["text"] == "sim.0 again"


def test_message_of_an_action_that_fills_it_is_passed_unchanged() -> None:
    assert options_of(told("{name: post, own: '{job}'}"))["own"] == "{job}"


def test_fake_firing_fills_messages_of_nested_actions() -> None:
    firing = FakeFiring(fields={"job": "sim.0"}, actions=[SAY])
    (log,) = firing.act({"name": "say", "text": "{job}"})
    assert isinstance(log, Log)
    assert log.message == "{'text': 'sim.0'}"
