"""Contract suite for actions."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import pytest

from ensemble_core.metrics.store import MetricsView
from ensemble_core.model.decisions import Decision
from ensemble_core.model.events import Event, JobEvent
from ensemble_core.model.jobs import Job
from ensemble_core.model.rules import Action, Rule
from ensemble_core.plugin.hookspecs import ActionPlugin, CallContext
from ensemble_testing.fakes import FakeFiring
from ensemble_testing.plugin_record import RecordContract


class ActionContract(RecordContract):
    """Tests of an action plugin. Subclass it in your own tests::

        class TestNotify(ActionContract):
            plugin = notify                    # your ActionPlugin
            options = {"message": "half done"}

    The tests use an event of the job ``sim.0`` in the group ``sim``, with the metrics in the
    attribute ``metrics``. To change that, override the attributes, :meth:`firing` or
    :meth:`context`. If your record has a ``run`` function, the tests call it: choose options
    without side effects.
    """

    plugin: ClassVar[ActionPlugin]
    metrics: ClassVar[Mapping[str, float]] = {"count.sim.success": 3}
    event: ClassVar[Event] = JobEvent(10.0, "sim.0", "finish", {"status": 0})

    def firing(self) -> FakeFiring:
        """Return the argument for ``plan``."""
        return FakeFiring(
            event=self.event,
            job="sim.0",
            groups=["sim"],
            metrics=self.metrics,
            active=["sim.0", "sim.1"],
            fields={"name": "finish", "job": "sim.0", "group": "sim", "index": 0, "status": 0},
        )

    def context(self) -> CallContext:
        """Return the argument for ``run``."""
        spec = {"name": self.plugin.name, **self.options}
        job = Job(id="sim.0", group="sim", index=0, command=("true",))
        return CallContext(
            options=dict(self.options),
            event=self.event.to_dict(),
            rule=Rule({"id": "rule-1", "trigger": "job-finish", "action": spec}),
            action=Action(spec),
            metrics=MetricsView(self.metrics),
            job={**job.to_dict(), "job": job.id, "workdir": "/", "outcome": "success"},
            ensemble="contract",
        )

    def _plan(self, options: Mapping[str, Any]) -> list[Decision]:
        if self.plugin.plan is None:
            pytest.skip("it has no 'plan'")
        return list(self.plugin.plan(self.firing(), options))

    def test_plan_returns_decisions(self) -> None:
        for decision in self._plan(self.options):
            assert isinstance(decision, Decision), f"{decision!r} is not a decision"

    def test_same_firing_gives_the_same_decisions(self) -> None:
        first = [decision.to_dict() for decision in self._plan(self.options)]
        assert first == [decision.to_dict() for decision in self._plan(self.options)]

    def test_plan_does_not_change_its_options(self) -> None:
        options = copy.deepcopy(dict(self.options))
        self._plan(options)
        assert options == dict(self.options)

    def test_plan_returns_every_decision_it_creates(self) -> None:
        if self.plugin.plan is None:
            pytest.skip("it has no 'plan'")
        firing = self.firing()
        returned = list(self.plugin.plan(firing, self.options))
        lost = [item for item in firing.decided if all(item is not given for given in returned)]
        assert not lost, f"created but not returned, so it would have no effect: {lost!r}"

    def test_run_returns_actions_or_rules(self) -> None:
        if self.plugin.run is None:
            return  # the action has a 'plan' instead
        outcome = self.plugin.run(self.context())
        if outcome is None or isinstance(outcome, (Action, Rule)):
            return
        assert not isinstance(outcome, (str, bytes, Mapping)), (
            f"{outcome!r} is not an action or rule"
        )
        assert isinstance(outcome, Iterable)
        for item in outcome:
            assert isinstance(item, (Action, Rule)), f"{item!r} is not an action or rule"
