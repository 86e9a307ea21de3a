"""End of a run: when it is over, with which exit code, and for which reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ensemble_core.engine.job_record import BY_OTHERS
from ensemble_core.engine.state import State
from ensemble_core.engine.submission import Submitter
from ensemble_core.model.decisions import Log, Terminate
from ensemble_core.model.ensemble import amount
from ensemble_core.quick_dataclass import replace


class EndOfRun:
    """Ends the run by a decision, or if nothing more can happen."""

    def __init__(self, state: State, submission: Submitter) -> None:
        self._state = state
        self._submission = submission

    def end(self, decision: Terminate) -> None:
        """End the run with this decision."""
        state = self._state
        held = self._submission.forget_held(state.held())
        reused = self._submission.reused(decision.cancel)
        self._submission.ask_cancel(reused)
        if held or state.attempts or reused:
            known = {*held, *state.attempts, *reused}
            left = tuple(job for job in decision.cancel if job not in known)
            decision = replace(decision, cancel=left)
        lost = [*state.attempts.values(), *(record.index for record in held.values())]
        state.attempts.clear()
        for index in lost:
            if index.record.job.id not in state.table.records:
                state.table.close(index.record, done=False)
        self._submission.ask_cancel(decision.cancel)
        self._end(decision)

    def lose(self, reason: str) -> None:
        """End the run because its queue is lost. Held jobs stay held for a resume."""
        self._state.resumable_end = Terminate(exit_code=1, reason=reason)
        self._end(self._state.resumable_end)

    def _end(self, decision: Terminate) -> None:
        state = self._state
        state.ended = decision
        state.rules.true_conditions.ended_at = state.now
        state.end_due = state.end_check_due = True
        state.rules.index.touched.clear()
        for index in (*state.dropped, *(record.index for record in state.withdrawn)):
            if index.record.job.id not in state.table.records:
                state.table.close(index.record, done=False)
        state.dropped.clear()
        state.withdrawn.clear()
        state.out.append(decision)

    def end_if_over(self) -> None:
        """End the run if nothing more can happen."""
        state = self._state
        state.end_check_due = False
        held = state.only_held
        if (state.table.records and not held) or state.awaits_answers() or state.attempts:
            return
        if (state.resizes or state.retries) and state.rules.waits_for_resize():
            return
        if state.rules.waits_for_time(state.now, shared=state.shared):
            return
        if state.rules.true_conditions.pending:
            self._report_wait()
            return
        if held:
            self._end_by_limit()
            return
        faults = [each.name for each in state.generators.values() if each.fault is not None]
        if faults:
            self._end_by_fault(faults)
            return
        failed = state.errors or state.failures
        self.end(Terminate(exit_code=1 if failed else 0, reason=self._end_reason(), natural=True))

    def _report_wait(self) -> None:
        """Say once for which rule the run waits, although no job is left."""
        state = self._state
        found = state.rules.true_conditions.first()
        if found is None or found.reported:
            return
        found.reported = True
        rule, since = found.state.rule, state.now if found.one.since is None else found.one.since
        left = max(0.0, since + rule.lasts - state.now)
        message = (
            f"no job is left; the run waits {left:.0f} s for rule {rule.id!r}: its condition is "
            f"true, and has to be true for {rule.spec.get('for', rule.lasts)}"
        )
        state.out.append(Log(rule=rule.id, message=message, level="info"))

    def _end_by_limit(self) -> None:
        """End the run because a limit holds all remaining jobs.

        A resume with a higher limit submits these jobs.
        """
        state = self._state
        state.resumable_end = Terminate(exit_code=4, reason=self._held_reason(), natural=True)
        self._end(state.resumable_end)

    def _end_by_fault(self, names: list[str]) -> None:
        """End the run because generators failed. A resume builds them again."""
        state = self._state
        which = f"generator{'s' * (len(names) > 1)} {', '.join(names)}"
        reason = f"{which} failed; {self._end_reason()}"
        state.resumable_end = Terminate(exit_code=1, reason=reason, natural=True)
        self._end(state.resumable_end)

    def _held_reason(self) -> str:
        """Describe how many jobs each limit holds, and how much more these jobs need."""
        state = self._state
        budget = state.table.budget
        assert budget is not None
        held = state.table.held_jobs()
        groups = Counter(job.group for job in held)
        if len(groups) == 1:
            named = f"of {held[0].group}"
        else:
            named = "(" + ", ".join(f"{name} {number}" for name, number in groups.items()) + ")"
        parts = []
        needed = budget.needed(held, state.now)
        for name, raised in budget.raised(held, state.now).items():
            used, _ = budget.use(name, state.now)
            least, known = needed[name]
            more = "at least " if not known else ""
            parts.append(
                f"limits.{name} is {amount(budget.limits[name])}, {amount(used)} used; they "
                f"need {more}{amount(max(0.0, least - used))} more: set limits.{name} to "
                f"{amount(raised)}"
            )
        jobs = "1 job" if len(held) == 1 else f"{len(held)} jobs"
        reason = f"only held jobs are left: {jobs} {named}; " + "; ".join(parts)
        return f"{reason}; {self._end_reason()}" if state.errors or state.failures else reason

    def _end_reason(self) -> str:
        failures, errors = self._state.unhandled_failures, self._state.errors
        reasons = []
        if failures:
            jobs, them = ("1 job", "it") if failures == 1 else (f"{failures} jobs", "them")
            reasons.append(f"{jobs} failed and no rule handled {them}")
        if self._state.unhandled_cancels:
            reasons.append(_cancels_text(self._state.unhandled_cancels))
        if errors:
            reasons.append("1 error" if errors == 1 else f"{errors} errors")
        return "; ".join(reasons) or "nothing more can happen"


def _cancels_text(cancels: Mapping[str, int]) -> str:
    """Describe how many jobs were cancelled by others, and by whom if that is known.

    ``cancels`` are the numbers of jobs by canceller.
    """
    total = sum(cancels.values())
    known = {who: number for who, number in cancels.items() if who != BY_OTHERS}
    if known == {**cancels} and len(known) == 1:
        named = f" ({next(iter(known))})"
    elif known:
        named = f" ({', '.join(f'{who} {known[who]}' for who in sorted(known))})"
    else:
        named = ""
    jobs, them = ("1 job was", "it") if total == 1 else (f"{total} jobs were", "them")
    return f"{jobs} cancelled by others{named} and no rule handled {them}"
