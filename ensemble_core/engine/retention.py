"""Demands on the job table: what it keeps since a rule, a table of the file or a function needs it.

Of indices and slices the statistics that rules name, of groups the jobs that are done and the
combinations that they have had. Called by the state, for each rule that there is or that joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ensemble_core.engine.done_jobs import DoneJobs
from ensemble_core.engine.group_state import combination
from ensemble_core.engine.job_table import JobTable
from ensemble_core.engine.records import SliceKey, SliceTable, add_read
from ensemble_core.metrics.series import StatisticSpec
from ensemble_core.model.rules import BoundRule
from ensemble_core.model.tables import Table

__all__ = ["keep_done", "keep_results", "read", "remember", "serve"]


def serve(table: JobTable, rule: BoundRule, statistics: Mapping[str, StatisticSpec]) -> None:
    """Keep what a rule names of single indices or of slices."""
    groups = rule.groups or tuple(table.groups)
    for action in rule.actions:
        remember(table, (group for each in action.flat() for group in each.varies))
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
        for record in table.records.values():  # a rule that joined, or a changed file
            if record.job.group in groups:
                table.enter_slice(record.index, slices, late=True)
    for name in sorted(rule.reads):
        if not name.startswith("count.") or name.endswith(")"):  # else a slice counts in any case
            add_read(slices.reads, name, statistics)
    for group in groups:
        table.groups[group].speak(slices.reads)


def keep_done(table: JobTable, tables: Iterable[Table], rules: Iterable[BoundRule]) -> None:
    """Keep what tables are worked out of, and what functions are told that give parameters."""
    for each in tables:
        group = table.groups[each.of]
        if each.of not in table.done:
            table.done[each.of] = DoneJobs()
            if group.counts["done"]:
                table.warnings.append(
                    f"the table {each.name!r} is new: jobs of {each.of!r} that were done "
                    f"before ({group.counts['done']}) are not in it"
                )
    for name, group in table.groups.items():
        if group.group.asked:
            keep_results(table, name)
    for rule in rules:
        if isinstance(rule.each, tuple) and rule.asks_tables:
            for done in table.done.values():
                done.serve(rule.each)


def keep_results(table: JobTable, name: str) -> None:
    """Keep what functions are told that give parameters of a group."""
    group = table.groups[name]
    if name in table.done:
        return
    table.done[name] = DoneJobs()
    if group.counts["done"]:
        table.warnings.append(
            f"a function gives parameters of {name!r} from now on: jobs that were done before "
            f"({group.counts['done']}) are not among its results"
        )


def remember(table: JobTable, groups: Iterable[str]) -> None:
    """Keep the combinations that these groups have had."""
    for name in groups:
        group = table.groups[name]
        if group.had is None:
            active = [each.job for each in table.records.values() if each.job.group == name]
            group.had = {combination(job.parameters, job.replica) for job in active}


def read(
    table: JobTable, group: str, names: Iterable[str], statistics: Mapping[str, StatisticSpec]
) -> None:
    """Keep these ``STAT.NAME`` of each index of a group."""
    found = table.groups[group]
    for name in sorted(names):
        add_read(found.reads, name, statistics)
        found.counts_passing |= name.startswith("count.") and name.endswith(")")
    found.speak(found.reads)
