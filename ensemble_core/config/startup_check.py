"""Checks that a run can begin: a rule or a generator must be able to submit the first job."""

from __future__ import annotations

from collections.abc import Sequence

from ensemble_core.config.context import Context
from ensemble_core.metrics.store import (
    AWAY,
    BACKLOG,
    COMMITTED,
    FIRINGS,
    GENERATOR,
    USED,
    parse_path,
)
from ensemble_core.model.rules import BoundRule, Trigger
from ensemble_core.plugin.record_validation import CORE_EVENTS

#: Events that occur even if the run has no job.
_FIRST = {"start", "heartbeat"}
#: Prefixes of gauges about this run's own jobs, rules and generators.
_OWN = (
    *("queue.active", "waiting.jobs", "waiting.next", "waiting.smallest", "waiting.largest"),
    *("waiting.random", USED, COMMITTED, BACKLOG, AWAY, FIRINGS, GENERATOR),
)


def check_can_start(context: Context, rules: Sequence[BoundRule], *, heartbeat: bool) -> None:
    """Report an error if no rule can fire before the first job and no generator suggests points."""
    if any(each is None or each.enabled for each in context.known.generators.values()):
        return
    able = [
        rule for rule in rules if rule.queue_scope or _can_begin(context, rule.trigger, heartbeat)
    ]
    off = [rule for rule in able if not rule.enabled or _is_disabled(context, rule)]
    if len(off) < len(able):
        return
    hint = "add a rule with 'trigger: start'"
    if off:
        hint = f"enable the rule {off[0].id!r} (remove 'enabled: false')"
    context.report(
        ("rules",),
        "no rule can start the run: all rules wait for jobs, but no rule submits the first job",
        hint=f"{hint}; if the run only steers jobs of other runs, set 'scope: queue' in its rules, "
        "or use --allow-idle (in Python, allow_idle=True)",
        code="nothing-begins",
        where=context.document.at_key(("rules",)),
    )


def _is_disabled(context: Context, rule: BoundRule) -> bool:
    return rule.instance is not None and not context.instances[rule.instance].enabled


def _can_begin(context: Context, trigger: Trigger, heartbeat: bool) -> bool:
    """Return True if the trigger can fire before the run has submitted a job."""
    if trigger.metric is None:
        ours = trigger.every is None and CORE_EVENTS.issuperset(trigger.events)
        return not ours or not _FIRST.isdisjoint(trigger.events)
    # Gauges of the run's own jobs change only after the first job. With a heartbeat, the run does
    # not end while it has no jobs, so that a user can add jobs (``ensemble submit``).
    path = parse_path(trigger.metric, context.known.groups, context.known.statistics)
    if path.group or path.kind == "count":
        return False
    gauge = path.variable or path.text
    return heartbeat or not gauge.startswith(_OWN)
