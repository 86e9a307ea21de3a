"""Agenda: the loop that carries out all consequences of an event.

A *step* is a method with its arguments. It is called with the event and returns the steps that
follow. Steps run depth first from a stack, so a long chain of firings needs no recursion. Before
each step, the loop handles metric rules that a changed count triggers, then cancelled held jobs,
then dropped retries. When the stack is empty, the loop handles the run as a whole: limits,
generators, and rules on ``idle``. The stack is empty between events, so snapshots do not include
it.
"""

from __future__ import annotations

from collections.abc import Callable

from ensemble_core.engine.generator_scheduler import GeneratorScheduler
from ensemble_core.engine.job_completion import JobCompletion
from ensemble_core.engine.records import Step, Steps
from ensemble_core.engine.rule_evaluation import RuleEvaluation
from ensemble_core.engine.state import State
from ensemble_core.model.events import Event

__all__ = ["Agenda"]


class Agenda:
    """Loop over the steps that follow from an event."""

    def __init__(
        self,
        state: State,
        rules: RuleEvaluation,
        completion: JobCompletion,
        generating: GeneratorScheduler,
    ) -> None:
        self._state, self._rules = state, rules
        self._completion, self._generating = completion, generating

    def work(self, event: Event, steps: Steps, when_empty: Callable[[], Step | None]) -> None:
        """Carry out these steps and all steps that follow from them.

        When the stack is empty, ``when_empty`` is called for the next step. The work is finished
        when it returns ``None``.
        """
        state = self._state
        stack: list[Step] = [*steps][::-1] if steps else []
        while True:
            if state.ended is None and (
                state.rules.index.touched or state.withdrawn or state.dropped
            ):
                state.link = state.deepest
                self._rules.look(event)
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
        """Return the next step for the run as a whole: limits, generators, ``idle``."""
        state = self._state
        if state.ended is not None or not state.look_for_end:
            return None
        if state.limits_met:
            met, state.limits_met = list(state.limits_met), {}
            return (self._completion.limited, met)
        if state.generators_due:
            return (self._generating.turn,)
        if state.look_for_idle:
            return (self._completion.idle,)
        met = self._completion.only_held()
        return (self._completion.limited, met) if met else None

    def of_deferred(self) -> Step | None:
        """Return the next step for the run as a whole after a deferred event: only ``idle``."""
        state = self._state
        return (self._completion.idle,) if state.look_for_idle and state.ended is None else None
