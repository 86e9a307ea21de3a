"""Formats the events and decisions of a run as lines of text.

The lines look like those of ensemble-python, an earlier program.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ensemble_core.display.text_style import (
    TextStyle,
    count_of,
    format_clock,
    format_fields,
    printable,
    shorten,
)
from ensemble_core.engine.job_record import BY_OTHERS
from ensemble_core.model.causes import cause_of, reported_cause
from ensemble_core.model.decisions import (
    AddRule,
    Avoid,
    Call,
    Cancel,
    Decision,
    DisableRule,
    EnableRule,
    Fail,
    Fired,
    Log,
    Notify,
    Resize,
    Retry,
    SetGenerator,
    SetGroup,
    SetLimits,
    Signal,
    Submit,
    Switch,
    Terminate,
)
from ensemble_core.model.ensemble import Ensemble
from ensemble_core.model.events import (
    CallFailed,
    CallReturned,
    Event,
    JobEvent,
    Problem,
    Requested,
    ResizeOutcome,
    Resumed,
    TimerElapsed,
)
from ensemble_core.model.jobs import INTERRUPTIONS, Job
from ensemble_core.model.numbers import format_number
from ensemble_core.model.rules import UNLIMITED
from ensemble_core.quick_dataclass import dataclass

#: How many failed jobs are printed for each group. The summary counts all of them.
FAILURES_SHOWN = 10

_LONGEST_TEXT = 400
#: After this many seconds, the time of day is printed again.
_STAMP_EVERY = 60.0
_JOB_EVENTS = frozenset({"start", *INTERRUPTIONS, "exception", "finish", "clean"})
#: The words for a job that the queue interrupts, and how many of these lines are printed for each
#: group.
_INTERRUPTED = {"suspend": "suspended", "unsuspend": "continued", "requeue": "requeued"}
_INTERRUPTIONS_SHOWN = 20


class OutputLine(NamedTuple):
    """A line of output for stdout. Errors go to stderr instead, even with --quiet."""

    text: str
    error: bool = False


def is_relevant(event: Event) -> bool:
    """Return True if the narrator needs the event even without ``debug``."""
    if type(event) is JobEvent:
        if event.name == "finish" and event.context.get("status") == 0:
            return False
        return event.name in _JOB_EVENTS and event.ours
    if isinstance(event, TimerElapsed):
        return event.timer == "pace"
    return isinstance(event, (CallReturned, CallFailed, Requested, ResizeOutcome))


def describe_status(status: object) -> str:
    """Describe a wait status: ``exit code 3``, ``killed by SIGKILL (exit code 137)``."""
    if not isinstance(status, int) or isinstance(status, bool):
        return "failed"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        core = ", core dumped" if os.WCOREDUMP(status) else ""
        return f"killed by {name} (exit code {128 + number}{core})"
    return f"exit code {os.WEXITSTATUS(status)}"


def _short_status(status: object) -> str:
    """Describe a wait status briefly: ``exit 3``, ``SIGKILL (exit code 137)``."""
    text = describe_status(status).removeprefix("killed by ")
    return text.replace("exit code", "exit") if text.startswith("exit") else text


@dataclass(slots=True)
class _Active:
    """A job that is not over."""

    job: Job | None
    stderr: str | None = None
    told: bool = False
    asked: bool = False  # the run asked for a cancel of the job
    #: Why the job failed.
    why: str = ""


class Narrator:
    """Formats the events and decisions of a run as lines. With ``debug``, it prints every event.

    With ``errors_only``, it formats no firings and submits, because only errors are shown.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        out: TextStyle,
        err: TextStyle | None = None,
        *,
        debug: bool = False,
        errors_only: bool = False,
    ) -> None:
        self._ensemble = ensemble
        self._errors_only = errors_only
        self._out = out
        self._err = out if err is None else err
        self.debug = debug
        self._began: float | None = None
        #: The time of the current event, and the time that was printed last.
        self._now = 0.0
        self._stamped = 0.0
        #: For each group, the line that was printed for its last submit.
        self._submitted: dict[str, dict[str, object]] = {}
        self._firing = 0
        self._active: dict[str, _Active] = {}
        #: The job whose ``clean`` came last. The group's ``retry`` refers to it, because it follows
        #: ``clean``.
        self._cleaned: tuple[str, _Active | None] = ("", None)
        #: Jobs that will be retried, by group and index, each with the reason.
        self._retried: dict[tuple[str, int], str] = {}
        self._failures: dict[str, int] = {}
        #: How often the queue has interrupted jobs of each group.
        self._interruptions: dict[str, int] = {}
        self._resizes: dict[str, int] = {}
        self._calls: dict[str, Call] = {}
        self._returned: Call | None = None
        self._pacing = False
        #: Whether the current event is a message of the executor.
        self._noticing = False
        self._repetitions = {
            rule.id: rule.repetitions if rule.each is None else UNLIMITED for rule in ensemble.rules
        }
        #: Rules that have an id in the file. The id is printed to distinguish rules with the same
        #: trigger.
        self._named = {rule.id for rule in ensemble.rules if "id" in rule.spec}
        self._decisions: dict[type[Decision], Callable[[Any], Iterator[OutputLine]]] = {
            Fired: self._fired,
            Submit: self._submit,
            Fail: self._fail,
            Retry: self._retry,
            Cancel: self._cancel,
            Signal: self._signal,
            Resize: self._resize,
            AddRule: self._add_rule,
            EnableRule: self._switch,
            DisableRule: self._switch,
            Switch: self._switch_instances,
            SetGenerator: self._set_generator,
            SetGroup: self._set_group,
            SetLimits: self._set_limits,
            Avoid: self._avoid,
            Call: self._call,
            Log: self._log,
            Notify: self._notify,
            Terminate: self._terminate,
        }

    def tell(self, item: Event | Decision) -> Iterator[OutputLine]:
        """Yield the lines for an event or a decision. Often there are none."""
        if isinstance(item, Decision):
            told = self._decisions.get(type(item))
            if told is not None:
                yield from self._heading(item)
                yield from told(item)
            return
        self._pacing = isinstance(item, TimerElapsed) and item.timer == "pace"
        self._noticing = isinstance(item, Problem)
        self._returned = None
        if isinstance(item, (CallReturned, CallFailed)):
            self._returned = self._calls.pop(item.call, None)
        self.at(item.timestamp)
        if self.debug:
            yield self._event(item)
        if isinstance(item, JobEvent):
            if item.ours:
                yield from self._job_event(item)
        elif isinstance(item, Requested):
            asked = f"{item.by} requested {item.action.get('name')}"
            yield OutputLine(self._out.paint(f" => {printable(asked)}", "trigger"))
        elif isinstance(item, Resumed) and item.request:
            asked = f"{item.request['by']} requested {item.request['action'].get('name')}"
            yield OutputLine(self._out.paint(f" => {printable(asked)}", "trigger"))
        elif isinstance(item, CallFailed):
            yield from self._call_failed(item)
        elif isinstance(item, ResizeOutcome):
            yield from self._resized(item)

    def at(self, timestamp: float) -> None:
        """Set the time of the event that leads to the next decisions."""
        if self._began is None:
            self._began = self._stamped = timestamp
        self._now = max(self._now, timestamp)

    def _clock(self) -> list[str]:
        """Return the time of day if a minute has passed since it was last printed."""
        if self._began is None or self._now - self._stamped < _STAMP_EVERY:
            return []
        self._stamped = self._now
        return [format_clock(self._now, self._began)]

    # Decisions

    def _heading(self, decision: Decision) -> Iterator[OutputLine]:
        """Yield a heading above decisions that a function has returned.

        It is needed only if other rules have fired since the function was called.
        """
        call, self._returned = self._returned, None
        if call is None or decision.firing != call.firing or decision.firing == self._firing:
            return
        self._firing = decision.firing
        if not isinstance(decision, (Fired, Log, Notify)):
            told = self._out.paint(f" => {printable(call.name)} returned", "trigger")
            clock = "".join(f"  ({each})" for each in self._clock())
            yield OutputLine(told + self._out.paint(clock, "dim") if clock else told)

    def _fired(self, fired: Fired) -> Iterator[OutputLine]:
        self._firing = fired.firing
        self._pacing = False
        #: Whether the current event is a message of the executor.
        self._noticing = False
        if self._errors_only:
            return
        told = self._out.paint(f" => trigger {printable(fired.label)}", "trigger")
        notes = [printable(fired.rule)] if fired.rule in self._named else []
        of = self._repetitions.get(fired.rule or "", 1)
        if fired.count > 1 or of > 1:
            known = UNLIMITED > of >= fired.count
            notes.append(f"{fired.count} of {of}" if known else f"{fired.count}")
        notes += [f"{name}={printable(str(value))}" for name, value in fired.each.items()]
        if fired.value is not None:
            notes.append(f"value {format_number(fired.value)}")
        if fired.job is not None:
            notes.append(printable(fired.job))
        notes += self._clock()
        if notes:
            told += "  " + self._out.paint(f"({', '.join(notes)})", "dim")
        yield OutputLine(told)

    def _submit(self, submit: Submit) -> Iterator[OutputLine]:
        for job in submit.jobs:
            self._active[job.id] = _Active(job)
        if self._errors_only or (self._pacing and not self.debug):
            return  # for example the rest of a rate-limited submit, which has been printed
        group = self._ensemble.groups.get(submit.group)
        count = str(len(submit.jobs))
        if (
            not self._pacing
            and group is not None
            and len(submit.jobs) < group.size
            and self._is_rate_limited
        ):
            count = f"{group.size}, {len(submit.jobs)} now"
        fields: dict[str, object] = {"name": submit.group, "command": "", "count": count}
        if not submit.jobs:
            fields["command"] = group.text if group is not None else ""
        else:
            job = submit.jobs[0]
            fields["command"] = self._command(job)
            fields["nodes"] = job.nodes
            if job.tasks != job.nodes:
                fields["tasks"] = job.tasks
            if job.cores_per_task != 1:
                fields["cores_per_task"] = job.cores_per_task
            if job.gpus_per_task:
                fields["gpus_per_task"] = job.gpus_per_task
            if job.duration:
                fields["duration"] = f"{job.duration:g}"
            for name, values in self._sweep(submit).items():
                fields[name] = shorten(", ".join(map(_value, values)), 60, self._out)
        before = self._submitted.get(submit.group)
        retried = bool(submit.jobs) and submit.jobs[0].attempt > 0  # a submit has at most one retry
        if not retried:
            self._submitted[submit.group] = {**fields}
        if before is not None and submit.jobs:
            fields = {
                key: fields.get(key, "-")
                for key in (*fields, *(name for name in before if name not in fields))
                if key == "count" or fields.get(key, "-") != before.get(key)
            }
        doing = f"submit {submit.group}"
        if retried:
            doing = self._retry_text(submit.jobs[0])
            del fields["count"]
        spelled = ",".join(f"({key}:{printable(str(value))})" for key, value in fields.items())
        space = " " if spelled else ""
        told = self._out.paint(f"   {doing}{space}", "action")
        yield OutputLine(told + self._out.paint(spelled, "fields"))

    def _fail(self, fail: Fail) -> Iterator[OutputLine]:
        active = self._active.get(fail.job) or _Active(None)
        if fail.outcome == "cancelled":
            return  # the run was cancelling it, which was printed
        active.told, active.why = True, "result"
        yield from self._failed(fail.job, active, f"result: fail_if: {fail.condition}")

    def _retry(self, retry: Retry) -> Iterator[OutputLine]:
        """Remember why the job failed, until its next attempt is submitted."""
        cleaned, active = self._cleaned
        if cleaned != retry.job:
            active = self._active.get(retry.job)
        if active is not None and active.job is not None and not self._errors_only:
            self._retried[active.job.group, active.job.index] = active.why
        yield from ()

    def _retry_text(self, job: Job) -> str:
        why = self._retried.pop((job.group, job.index), "")
        notes = f"attempt {job.attempt + 1}" + (f", {printable(why)}" if why else "")
        return f"retry {job.group}.{job.index} ({notes})"

    def _sweep(self, submit: Submit) -> Mapping[str, Iterable[object]]:
        """Return the values of each parameter in these jobs.

        They may differ from those in the file.
        """
        values: dict[str, Iterable[object]] = {}
        group = self._ensemble.groups.get(submit.group)
        for name in submit.jobs[0].parameters:
            own = dict.fromkeys(job.parameters.get(name) for job in submit.jobs)
            usual = group.parameters.get(name, ()) if group is not None else ()
            # Of a rate-limited submit, only the first jobs are here.
            values[name] = usual if self._is_rate_limited and own.keys() <= set(usual) else own
        return values

    @property
    def _is_rate_limited(self) -> bool:
        return self._ensemble.limits.submits_per_second is not None

    def _command(self, job: Job) -> str:
        """Return the command as written in the file, or the job's command if a rule has changed
        it.
        """
        group = self._ensemble.groups.get(job.group)
        text = ""
        if group is not None and group.text:
            usual = group.job(job.index, job.parameters, job.replica, job.attempt)
            if usual.command == job.command:
                text = group.text
        text = text or shlex.join(job.command)
        return shorten(" ".join(text.split("\n")).strip(), _LONGEST_TEXT, self._out)

    def _action(self, text: str, note: str = "") -> OutputLine:
        shown = shorten(printable(text).replace("\n", " "), _LONGEST_TEXT, self._out)
        told = self._out.paint(f"   {shown}", "action")
        return OutputLine(f"{told}  {self._out.paint(note, 'dim')}" if note else told)

    def _cancel(self, cancel: Cancel) -> Iterator[OutputLine]:
        self._ask_for_cancels(cancel.jobs)
        yield self._action(
            f"cancel {self._list_names(cancel.jobs) or 'nothing: no matching active jobs'}"
        )

    def _signal(self, sent: Signal) -> Iterator[OutputLine]:
        again = " again" if sent.attempt > 1 else ""
        yield self._action(f"SIG{sent.signal} to {self._list_names(sent.jobs)}{again}")

    def _ask_for_cancels(self, jobs: Iterable[str]) -> None:
        for job in jobs:
            if job in self._active:
                self._active[job].asked = True

    def _list_names(self, names: tuple[str, ...]) -> str:
        if len(names) <= 4:
            return ", ".join(names)
        return f"{', '.join(names[:3])}, {self._out.ellipsis} ({len(names)} jobs)"

    def _resize(self, resize: Resize) -> Iterator[OutputLine]:
        self._resizes[resize.request] = resize.delta
        yield self._action(f"{'grow' if resize.delta > 0 else 'shrink'} {abs(resize.delta)}")

    def _add_rule(self, added: AddRule) -> Iterator[OutputLine]:
        spec = added.spec
        repetitions = spec.get("repetitions")
        if isinstance(repetitions, int):
            self._repetitions[added.id] = repetitions
        if "id" in spec:
            self._named.add(added.id)
        parts = [str(spec.get("trigger", ""))]
        parts += [
            str(spec[key]) for key in ("name", "when", "crosses") if spec.get(key) is not None
        ]
        yield self._action(f"add rule {added.id}: {' '.join(parts).strip()}")

    def _switch(self, switched: EnableRule | DisableRule) -> Iterator[OutputLine]:
        word = "enable" if isinstance(switched, EnableRule) else "disable"
        yield self._action(f"{word} {', '.join(switched.rules)}")

    def _switch_instances(self, switch: Switch) -> Iterator[OutputLine]:
        off = ", ".join(switch.off)
        if not switch.on:  # the switch is only about generators
            yield self._action(f"switch off {off}")
            return
        away = f" from {off}" if off else ""
        yield self._action(f"switch to {', '.join(switch.on)}{away}")

    def _set_generator(self, steered: SetGenerator) -> Iterator[OutputLine]:
        name, count = steered.generator, steered.count
        if count:
            yield self._action(f"suggest {count} of {name}")
        elif steered.pause:
            yield self._action(f"pause {name}")
        else:
            told = f", with the points of {', '.join(steered.learns)}" if steered.learns else ""
            yield self._action(f"resume {name}{told}")

    def _set_group(self, change: SetGroup) -> Iterator[OutputLine]:
        yield self._action(f"set {change.group}: {format_fields(change.fields)}")

    def _set_limits(self, change: SetLimits) -> Iterator[OutputLine]:
        yield self._action(f"set limits: {format_fields(change.limits)}")

    def _avoid(self, avoided: Avoid) -> Iterator[OutputLine]:
        again = len(avoided.jobs)
        jobs = f", and submit {again} waiting job{'s' * (again > 1)} again" if again else ""
        yield self._action(f"avoid {', '.join(avoided.nodes)}{jobs}")

    def _call(self, call: Call) -> Iterator[OutputLine]:
        self._calls[call.call] = call
        if call.kind == "generator":
            count = call.options["suggest"]
            if count:
                yield self._action(f"ask {call.name} for {count} point{'s' * (count > 1)}")
        elif call.kind == "custom":
            yield self._action(f"custom {call.name}")
        elif call.kind == "parameters":
            names = ", ".join(call.options["functions"])
            yield self._action(f"ask {call.name} for {names} of {call.options['group']}")
        else:
            options = ", ".join(f"{key}={_short(value)}" for key, value in call.options.items())
            yield self._action(f"{call.name} {options}".rstrip())

    def _log(self, log: Log) -> Iterator[OutputLine]:
        if log.level == "info":
            yield self._action(log.message if self._noticing else f"log {log.message}")
        elif log.level == "warning":
            by = f" (rule {log.rule})" if log.rule else ""
            yield OutputLine(self._err.warning(printable(log.message) + by), error=True)
        else:
            yield self._error(log.message, log.rule)

    def _notify(self, sent: Notify) -> Iterator[OutputLine]:
        yield self._action(f"notify {sent.message}", f"({', '.join(sent.to)})")

    def _terminate(self, end: Terminate) -> Iterator[OutputLine]:
        self._ask_for_cancels(end.cancel)
        if end.natural or not end.firing:
            return  # the summary says how the run ended, and a signal has printed a line
        notes = [f"exit code {end.exit_code}"] if end.exit_code else []
        if end.cancel:
            notes.append(f"cancelling {count_of(len(end.cancel), 'job')}")
        yield self._action("terminate ensemble session", f"({', '.join(notes)})" if notes else "")

    # Events

    def _event(self, event: Event) -> OutputLine:
        elapsed = event.timestamp - (self._began if self._began is not None else event.timestamp)
        data = event.to_dict()
        for key in ("type", "timestamp"):
            data.pop(key, None)
        words = [event.type]
        if isinstance(event, JobEvent):
            words = ["job", event.name, printable(event.job)]
            data = dict(event.context)
            if not event.ours:
                words.append("(foreign)")
        elif isinstance(event, TimerElapsed) and event.timer == "heartbeat":
            words = ["💗 HEARTBEAT" if self._out.unicode else "HEARTBEAT"]
            data = {}
        data = {key: value for key, value in data.items() if value not in ("", None)}
        rest = printable(json.dumps(data, default=_plain, ensure_ascii=not self._out.unicode))
        told = f"[{elapsed:10.3f}] {' '.join(words)}"
        if data:
            told += f" {shorten(rest, 2000, self._out)}"
        return OutputLine(self._out.paint(told, "dim"))

    def know(self, job: Job, start: Mapping[str, Any] | None, *, asked: bool = False) -> None:
        """Register a job that an earlier controller has submitted.

        ``start`` is the context of the job's start event. ``asked``: the run asked for a cancel.
        """
        self._active[job.id] = active = _Active(job, asked=asked)
        if start is not None:
            path = start.get("stderr") or start.get("stdout")
            active.stderr = str(path) if path else None

    def _job_event(self, event: JobEvent) -> Iterator[OutputLine]:
        if event.name == "clean":
            self._cleaned = event.job, self._active.pop(event.job, None)
            return
        active = self._active.get(event.job)
        if event.name not in _JOB_EVENTS:
            return
        if active is None:
            active = self._active[event.job] = _Active(None)
        if event.name == "start":
            path = event.context.get("stderr") or event.context.get("stdout")
            active.stderr = str(path) if path else None
        elif event.name in _INTERRUPTED:
            yield from self._interrupted(event, active)
        elif event.name == "exception":
            severity = event.context.get("severity", 0)
            if severity == 0 and event.context.get("type") == "interrupted":
                active.told = True
                yield from self._interrupted(event, active)
            elif severity == 0 and not active.told:
                active.told = True
                cancelled = event.context.get("type") == "cancel"
                if not (cancelled and active.asked):
                    said = reported_cause(event.context)
                    kind = str(event.context.get("type") or "exception")
                    cause = said or cause_of(kind, None)
                    kind = kind if cause == "unknown" else cause
                    if cancelled:
                        kind = f"cancelled by {event.context.get('by') or BY_OTHERS}"
                    active.why = kind
                    note = str(event.context.get("note") or "")
                    yield from self._failed(event.job, active, f"{kind}: {note}" if note else kind)
        elif event.name == "finish":
            status = event.context.get("status")
            if status != 0 and not active.told:
                active.told = True
                said = reported_cause(event.context)
                active.why = said or _short_status(status)
                reason = f"{said}: {describe_status(status)}" if said else describe_status(status)
                yield from self._failed(event.job, active, reason, words=True)

    def _interrupted(self, event: JobEvent, active: _Active) -> Iterator[OutputLine]:
        group = active.job.group if active.job is not None else event.job.rpartition(".")[0]
        number = self._interruptions[group] = self._interruptions.get(group, 0) + 1
        if number > _INTERRUPTIONS_SHOWN + 1:
            return
        what = _INTERRUPTED.get(event.name, "interrupted")
        told = f"   {what} {printable(event.job)} (by the queue)"
        if note := str(event.context.get("note") or ""):
            told += f": {shorten(printable(note), 160, self._out)}"
        if number > _INTERRUPTIONS_SHOWN:
            told = f"   {self._out.ellipsis} more interruptions of {printable(group)} are not shown"
        yield OutputLine(self._out.paint(told, "dim"))

    def _failed(
        self, job: str, active: _Active, reason: str, words: bool = False
    ) -> Iterator[OutputLine]:
        group = active.job.group if active.job is not None else job.rpartition(".")[0]
        number = self._failures[group] = self._failures.get(group, 0) + 1
        if number > FAILURES_SHOWN:
            if number == FAILURES_SHOWN + 1:
                told = f"   {self._err.ellipsis} more failures of {printable(group)} are counted"
                yield OutputLine(self._err.paint(f"{told} in the summary", "bad"), error=True)
            return
        told = f"   failed {printable(job)}: {printable(reason)}"
        last = _last_line(active.stderr) if active.stderr else ""
        if last and words:
            told += f": {shorten(printable(last), 160, self._err)}"
        shown = self._err.paint(told, "bad")
        if active.stderr and last:  # empty files are deleted after the job
            shown += "  " + self._err.paint(f"({printable(active.stderr)})", "dim")
        yield OutputLine(shown, error=True)

    def _call_failed(self, failed: CallFailed) -> Iterator[OutputLine]:
        # The engine's error line follows, with the exception and its position.
        if not self.debug:
            return
        name = self._returned.name if self._returned is not None else failed.call
        traceback = printable(failed.traceback.rstrip())
        if traceback:
            body = "\n".join(f"  {line}" for line in traceback.split("\n"))
            yield OutputLine(
                self._err.paint(f"   {printable(name)} raised:\n{body}", "dim"), error=True
            )

    def _resized(self, outcome: ResizeOutcome) -> Iterator[OutputLine]:
        delta = self._resizes.get(outcome.request, 0)
        if outcome.outcome != "undelivered":  # the request will be repeated
            self._resizes.pop(outcome.request, None)
        word = "grow" if delta > 0 else "shrink" if delta < 0 else "resize"
        told = f"{word} {abs(delta)} {outcome.outcome}" if delta else f"{word} {outcome.outcome}"
        if outcome.size is not None and outcome.outcome == "granted":
            told += f": size {outcome.size}"
        if outcome.reason:
            told += f": {outcome.reason}"
        if outcome.outcome == "granted":
            yield self._action(told)
        else:
            again = "; the request will be repeated" if outcome.outcome == "undelivered" else ""
            yield OutputLine(self._err.warning(printable(told) + again), error=True)

    def _error(self, message: str, rule: str | None) -> OutputLine:
        what, newline, rest = printable(message).partition("\n")
        by = f" (rule {rule})" if rule and rule not in what else ""
        return OutputLine(
            f"{self._err.paint('error:', 'bad')} {what}{by}{newline}{rest}", error=True
        )


def _value(value: object) -> str:
    """Format the value of a parameter with at most six digits."""
    text = str(value)
    return format_number(value) if isinstance(value, float) and len(text) > 8 else text


def _short(value: object) -> object:
    """Format the value of an option on one line. An action is shown by its name."""
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return value["name"]
    if isinstance(value, (list, tuple)) and value:
        return f"[{', '.join(str(_short(one)) for one in value)}]"
    return value


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _last_line(path: str) -> str:
    """Return the last line of an output file, from its last 4 KiB.

    The line is empty if the path is not a regular file.
    """
    try:
        file = Path(path)
        if not file.is_file():  # a pipe or device would block the console
            return ""
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - 4096))
            text = stream.read(4096).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
