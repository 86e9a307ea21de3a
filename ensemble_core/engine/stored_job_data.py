"""Tells the job table which statistics and combinations of parameters it has to store.

To save memory, it stores only data that a rule needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ensemble_core.engine.job_table import JobTable
from ensemble_core.engine.replicas import Replicas
from ensemble_core.engine.scopes import SliceKey, SliceTable, add_read
from ensemble_core.metrics.series import StatisticSpec
from ensemble_core.model.rules import BoundAction, BoundRule


def keep_for(table: JobTable, rule: BoundRule, statistics: Mapping[str, StatisticSpec]) -> None:
    """From now on, store the statistics and combinations of parameters that this rule needs."""
    groups = rule.groups or tuple(table.groups)
    for action in rule.actions:
        for each in action.flat():
            remember(table, each.varies)
            if each.retries and each.options.get("continue"):
                for group in groups:
                    table.groups[group].continues = True
            if _numbers_replicas(each):
                remember(table, (each.options["label"],))
    if rule.each is None or rule.each == "job":
        if rule.reads and rule.reads_of is None:
            for group in groups:
                read(table, group, rule.reads, statistics)
        return
    key = SliceKey(rule.groups, rule.each)
    slices = table.tables.get(key)
    if slices is None:
        slices = table.tables[key] = SliceTable(key)
        for group in groups:
            table.groups[group].tables.append(slices)
        for record in table.records.values():  # if the rule was added during the run
            if record.job.group in groups:
                table.enter_slice(record.index, slices, late=True)
    for name in sorted(rule.reads):
        if not name.startswith("count.") or name.endswith(")"):  # slices have all counts anyway
            add_read(slices.reads, name, statistics)
    for group in groups:
        table.groups[group].keep_variables(slices.reads)


def _numbers_replicas(action: BoundAction) -> bool:
    """Return True if an action changes a group so that it numbers its replicas."""
    changed = action.options.get("with")
    return (
        isinstance(changed, Mapping)
        and ("replicas" in changed or "{replica" in repr(changed))
        and isinstance(action.options.get("label"), str)
    )


def remember(table: JobTable, groups: Iterable[str]) -> None:
    """From now on, store which combinations of parameters these groups have submitted."""
    for name in groups:
        group = table.groups[name]
        if group.replicas is None:
            group.replicas = Replicas()
            group.replicas.claim_all(
                each.job for each in table.records.values() if each.job.group == name
            )


def read(
    table: JobTable, group: str, names: Iterable[str], statistics: Mapping[str, StatisticSpec]
) -> None:
    """From now on, compute these statistics (``STAT.NAME``) for each job of a group."""
    found = table.groups[group]
    for name in sorted(names):
        add_read(found.reads, name, statistics)
        found.counts_passing |= name.startswith("count.") and name.endswith(")")
    found.keep_variables(found.reads)
