"""Tells the job table which data about jobs it has to store.

To save memory, it stores only data that a rule, a table of results or a user's function needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ensemble_core.engine.done_jobs import DoneJobs
from ensemble_core.engine.job_table import JobTable
from ensemble_core.engine.replicas import Replicas
from ensemble_core.engine.scopes import SliceKey, SliceTable, add_read
from ensemble_core.metrics.series import StatisticSpec
from ensemble_core.model.rules import BoundAction, BoundRule
from ensemble_core.model.tables import Table


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


def keep_done(table: JobTable, tables: Iterable[Table], rules: Iterable[BoundRule]) -> None:
    """From now on, store the done jobs that tables of results and functions for parameters need."""
    for each in tables:
        group = table.groups[each.of]
        if each.of not in table.done:
            table.done[each.of] = DoneJobs()
            if group.counts["done"]:
                table.metrics.warn(
                    f"the table {each.name!r} is new: earlier finished jobs of {each.of!r} "
                    f"({group.counts['done']}) are missing"
                )
    for name, group in table.groups.items():
        if group.group.asked:
            keep_results(table, name)
    for rule in rules:
        if isinstance(rule.each, tuple) and rule.asks_tables:
            for done in table.done.values():
                done.keep_by(rule.each)


def report_lacking(table: JobTable, earlier: Mapping[str, DoneJobs]) -> None:
    """Warn about results of a changed file that earlier jobs cannot have, because nothing has read
    the values.
    """
    for name, done in earlier.items():
        for result in sorted(table.groups[name].results):
            lacking = sum(result not in done.known(job) for job in done.jobs.values())
            if lacking:
                table.metrics.warn(
                    f"the result {result!r} of {name!r} has no value for {lacking} of "
                    f"{len(done.jobs)} earlier jobs"
                )


def keep_results(table: JobTable, name: str) -> None:
    """From now on, store a group's done jobs, for functions that compute the group's parameters."""
    group = table.groups[name]
    if name in table.done:
        return
    table.done[name] = DoneJobs()
    if group.counts["done"]:
        table.metrics.warn(
            f"a function now gives parameters of {name!r}: earlier finished jobs "
            f"({group.counts['done']}) are missing in its results"
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
