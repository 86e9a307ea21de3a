"""Loop that processes an event and everything that follows from it.

The unit of work is a *step*: a method and its arguments. A step returns the steps that follow.
"""

from __future__ import annotations

from collections.abc import Callable

from ensemble_core.engine.firing_records import Step, Steps
from ensemble_core.engine.generator_scheduler import GeneratorScheduler
from ensemble_core.engine.idle_and_limit import IdleAndLimit
from ensemble_core.engine.job_completion import JobCompletion
from ensemble_core.engine.rule_evaluation import RuleEvaluation
from ensemble_core.engine.state import State
from ensemble_core.model.events import Event


class Agenda:
    """Runs the steps that follow from an event."""

    def __init__(
        self,
        state: State,
        rules: RuleEvaluation,
        completion: JobCompletion,
        generating: GeneratorScheduler,
    ) -> None:
        self._state, self._rules = state, rules
        self._completion, self._generating = completion, generating
        self._idle_and_limit = IdleAndLimit(rules)

    def work(self, event: Event, steps: Steps, when_empty: Callable[[], Step | None]) -> None:
        """Run these steps and all steps that follow from them.

        Whenever the stack is empty, ``when_empty`` is called for another step. If it returns
        ``None``, the work is finished.
        """
        state = self._state
        # A stack, so that a long chain of firings needs no recursion. It is empty between events,
        # so snapshots do not include it.
        stack: list[Step] = [*steps][::-1] if steps else []
        while True:
            # Before each step: rules on changed metrics, then held jobs that were cancelled, then
            # retries that were dropped.
            if state.ended is None and (
                state.rules.index.touched or state.withdrawn or state.dropped
            ):
                state.link = state.deepest
                self._rules.consider_updated(event)
                if state.withdrawn:
                    stack += [(self._completion.gone, each) for each in reversed(state.withdrawn)]
                    state.withdrawn = []
                elif state.dropped:
                    stack += [
                        (self._completion.settle_index, each) for each in reversed(state.dropped)
                    ]
                    state.dropped = []
                else:
                    continue
            elif not stack:
                step = when_empty()
                if step is None:
                    return
                stack.append(step)
            method, *given = stack.pop()
            follow = method(*given, event)
            if follow:
                stack += follow[::-1]

    def of_run(self) -> Step | None:
        """Return the next step that concerns the whole run (limits, generators, ``idle``), or
        ``None``.
        """
        state = self._state
        if state.ended is not None or not state.end_check_due:
            return None
        if state.limits_met:
            met, state.limits_met = list(state.limits_met), {}
            return (self._idle_and_limit.limited, met)
        if state.generators_due:
            return (self._generating.schedule,)
        if self._may_be_idle:
            return (self._idle_and_limit.idle,)
        met = self._idle_and_limit.only_held()
        return (self._idle_and_limit.limited, met) if met else None

    def of_deferred(self) -> Step | None:
        """Like :meth:`of_run`, but for an event that a stop had deferred: only rules on
        ``idle``.
        """
        may_be_idle = self._may_be_idle and self._state.ended is None
        return (self._idle_and_limit.idle,) if may_be_idle else None

    @property
    def _may_be_idle(self) -> bool:
        """True if rules on ``idle`` have to be checked.

        This is also the case if the event finished an index and thereby enabled such a rule.
        """
        state = self._state
        return state.idle_check_due or (
            state.rules.index.new_idle and state.index_over == state.events
        )
