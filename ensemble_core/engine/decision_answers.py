"""Handles the answers to decisions: results of calls and resizes, and deliveries of messages."""

from __future__ import annotations

from typing import Any

from ensemble_core.engine.firing_records import PendingRequest, Steps
from ensemble_core.engine.generator_scheduler import GeneratorScheduler
from ensemble_core.engine.job_completion import JobCompletion
from ensemble_core.engine.rule_evaluation import RuleEvaluation
from ensemble_core.model.decisions import Call, Log
from ensemble_core.model.events import (
    CallFailed,
    CallReturned,
    Delivered,
    Event,
    ResizeOutcome,
    Signalled,
)
from ensemble_core.quick_dataclass import replace

_LONGEST_RETRY = 60.0


class DecisionAnswers:
    """Updates the state with each answer, and evaluates the rules that react to it."""

    def __init__(
        self, rules: RuleEvaluation, completion: JobCompletion, generating: GeneratorScheduler
    ) -> None:
        self._state, self._rules = rules.state, rules
        self._completion, self._generating = completion, generating

    def handle_return(self, event: CallReturned) -> Steps:
        """Handle the result of a call.

        The actions that a function returned are performed; the answer of a generator is passed to
        the generator's scheduler.
        """
        state = self._state
        generator = self._generating.caller(event.call)
        if generator is not None:
            return self._generating.answered(generator, event)
        called = state.calls.pop(event.call, None)
        state.end_check_due = state.idle_check_due = True
        if called is not None and state.ended is None:
            state.link = state.deepest = state.via = called.link
            for spec in event.result:
                self._rules.follow(called.origin, spec)
            state.via = None
        return [(self._settle_index, called)]

    def _settle_index(self, called: PendingRequest[Call] | None, event: Event) -> Steps:
        """Settle the index that waited for this call, if it has no other pending calls."""
        record = None if called is None else called.origin.match.record
        if record is not None:
            record.index.calls -= 1
            return self._completion.settle_index(record.index, event)
        return None

    def handle_failure(self, event: CallFailed) -> Steps:
        """Report that a called function raised an error."""
        state = self._state
        generator = self._generating.caller(event.call)
        if generator is not None:
            self._generating.stop_failed(generator, event.error)
            return None
        called = state.calls.pop(event.call, None)
        state.end_check_due = state.idle_check_due = True
        if called is not None:
            message = f"{called.origin.rule}: {event.error}"
            state.error(message, called.origin, tolerated=called.decision.tolerated)
        return self._settle_index(called, event)

    def handle_delivery(self, event: Delivered) -> None:
        """Handle messages that were delivered, or that could not be delivered after all
        attempts.
        """
        state = self._state
        for notice in event.notices:
            sent = state.notices.get(notice)
            if sent is None:
                continue
            left = tuple(address for address in sent.to if address != event.to)
            if left:
                state.notices[notice] = replace(sent, to=left)
            else:
                del state.notices[notice]
        if event.error:
            what = "a message" if len(event.notices) == 1 else f"{len(event.notices)} messages"
            message = f"cannot deliver {what} to {event.to}: {event.error}"
            state.out.append(Log(level="warning", message=message))

    def redeliver(self) -> None:
        """Send messages again whose delivery is not confirmed."""
        for notice, sent in self._state.notices.items():
            again = replace(sent, attempt=sent.attempt + 1)
            self._state.notices[notice] = again
            self._state.out.append(again)

    def handle_signalled(self, event: Signalled) -> None:
        """Handle a signal that the executor has sent, or could not send."""
        state = self._state
        sent = state.signals.pop(event.request, None)
        if sent is not None and event.error:
            count = f"{len(sent.jobs)} job{'s' * (len(sent.jobs) != 1)}"
            message = f"cannot send SIG{sent.signal} to {count}: {event.error}"
            log = Log(rule=sent.rule, firing=sent.firing, level="error", message=message)
            state.out.append(log)
            state.errors += 1

    def repeat_signals(self) -> None:
        """Send unconfirmed signals again to the jobs that still run."""
        state = self._state
        records = state.table.records
        for request, sent in list(state.signals.items()):
            jobs = tuple(job for job in sent.jobs if job in records and records[job].runs)
            if jobs:
                again = replace(sent, jobs=jobs, attempt=sent.attempt + 1)
                state.signals[request] = again
                state.out.append(again)
            else:
                del state.signals[request]

    def handle_resize(self, event: ResizeOutcome) -> None:
        """Handle the outcome of a resize request.

        A request that was not delivered is repeated with exponential backoff.
        """
        state = self._state
        asked = state.resizes.pop(event.request, None)
        state.end_check_due = True
        if asked is None or state.ended is not None:
            return
        state.link = asked.link
        delta, attempt = asked.decision.delta, asked.decision.attempt
        if event.outcome != "undelivered":
            fields: dict[str, Any] = {"delta": delta, "reason": event.reason}
            if event.size is not None:
                fields["size"] = event.size
            self._rules.react((f"resize-{event.outcome}",), None, event, None, fields)
            return
        state.retries[event.request] = asked
        delay = min(_LONGEST_RETRY, 2.0 ** min(attempt - 1, 6))
        state.timers.once(state.now + delay, "retry", event.request)
        if attempt == 1:
            word = "grow" if delta > 0 else "shrink"
            state.out.append(
                Log(
                    **asked.origin.decision_fields,
                    level="warning",
                    message=f"the request to {word} was not delivered "
                    f"({event.reason or 'no answer'}); it will be repeated",
                )
            )

    def repeat_request(self, request: str) -> None:
        """Repeat a resize request with the same id."""
        self._state.resizes[request] = asked = self._state.resizes[request].retry()
        self._state.out.append(asked.decision)
