"""Inspection of a kept run: what a page, a report or a notebook shows of it.

An :class:`Inspection` reads a run's journal and, after :meth:`~Inspection.refresh`, only what is
new. All it returns is plain data (``dict``, ``list``, text, numbers, ``None``), ready for JSON.
Times are seconds since the epoch.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble_core.errors import EnsembleError, UsageError

if TYPE_CHECKING:
    from ensemble_core.engine.engine import Engine
    from ensemble_core.engine.report import Report
    from ensemble_core.journal.replay import Replay
    from ensemble_core.session.kept_run import KeptRun

__all__ = ["Inspection"]

#: A parameter with more distinct values is not searched for suspects; so many suspects are named.
_VALUES, _NAMED = 200, 3
#: Failed jobs of one kind that are named, and whose output and node are read.
_EXAMPLES, _READ = 50, 3
#: Bytes of a log that are returned at most, and bytes of one line.
_LOG, _LINE = 65_536, 500
#: Points of one curve, curves of one variable.
_POINTS, _CURVES = 400, 60
_FAILED = ("failed", "cancelled")
#: What an overview has of the engine's report.
_REPORTED = ("groups", "rules", "progress", "warnings")


class Inspection:
    """A kept run, read for display. Use it with ``with``.

    A damaged run is shown as far as it can be read; ``problem`` says what is wrong with it. The
    engine's part (groups, rules, tables) then stands at the last event before the damage.
    """

    def __init__(self, kept: KeptRun) -> None:
        self._kept = kept
        self._replay: Replay | None = None
        self._rows: list[dict[str, Any]] | None = None
        self._names: tuple[str, ...] = ()
        self._firings: list[dict[str, Any]] = []
        self._fired_until = 0
        self._began: float | None = None
        self._newest: float | None = None
        #: Number of the last event that was read.
        self.seq = -1
        self.problem = ""
        self.refresh()

    def __enter__(self) -> Inspection:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.journal.close()

    def refresh(self) -> bool:
        """Read the events that were added since; return whether there were any."""
        journal = self._kept.journal
        try:
            last = journal.last()
        except EnsembleError as error:
            self._note(error)
            last = max(self.seq, 0)
        if last == self.seq:
            return False
        self.seq = last
        self._rows = None
        try:
            if self._replay is None:
                self._replay = self._kept.recover(compare=False)
            else:
                for _ in self._replay.steps():
                    pass
        except EnsembleError as error:
            self._note(error)
            self._replay = self._replay or self._before_damage()
        try:
            if self._began is None:
                self._began = next((row.time for row in journal.rows(until=1)), None)
            newest = [row.time for row in journal.rows(last - 1)]
            self._newest = newest[-1] if newest else self._newest
        except EnsembleError as error:
            self._note(error)
        return True

    def _note(self, error: EnsembleError) -> None:
        cause = f": {error.cause}" if error.cause else ""
        self.problem = self.problem or f"{error.what}{cause}"

    def _before_damage(self) -> Replay | None:
        from ensemble_core.journal.replay import Replay

        try:
            replay = Replay(self._kept.journal, self._kept.loading, compare=False)
        except EnsembleError as error:
            self._note(error)
            return None
        try:
            for _ in replay.steps():
                pass
        except EnsembleError as error:
            self._note(error)
        return replay

    @property
    def _engine(self) -> Engine | None:
        return None if self._replay is None else self._replay.engine

    # -- how the run stands ------------------------------------------------------------------------

    def report(self) -> Report | None:
        """The engine's report; ``None`` if nothing of the journal can be read."""
        return None if self._engine is None else self._engine.report()

    def overview(self) -> dict[str, Any]:
        """How the run stands: who controls it, its groups and rules, its progress and costs."""
        from ensemble_core.journal.run_store import look

        info = look(self._kept.folder)
        report = self.report()
        controller = info.controller or {}
        found: dict[str, Any] = {
            "tag": self._kept.tag,
            "name": info.name,
            "state": info.state,
            "reason": info.reason,
            "exit_code": info.exit_code,
            "executor": info.executor,
            "began": self._began if self._began is not None else info.began,
            "ended": info.ended,
            "newest": self._newest,
            "events": self.seq,
            "controller": {key: controller.get(key) for key in ("host", "pid")},
            "problem": self.problem or info.problem,
            "groups": [],
            "rules": [],
            "progress": None,
            "warnings": [],
        }
        if report is None:
            return found
        plain = report.to_dict()
        return found | {key: plain.get(key, found[key]) for key in _REPORTED}

    # -- jobs --------------------------------------------------------------------------------------

    def _jobs(self) -> list[dict[str, Any]]:
        """A row for each job, by group and index; read once until the next event."""
        if self._rows is None:
            try:
                with closing(self._kept.jobs()) as jobs:
                    self._names = jobs.names
                    self._rows = list(jobs.rows())
            except EnsembleError as error:
                self._note(error)
                self._rows = []
        return self._rows

    def jobs(
        self,
        where: Mapping[str, object] | None = None,
        *,
        text: str = "",
        sort: str | None = None,
        descending: bool = False,
        offset: int = 0,
        limit: int | None = None,
    ) -> dict[str, Any]:
        """A page of the table of jobs: ``names`` of its columns, ``rows`` (lists in their order)
        and ``total``, the number of jobs that match.

        ``where`` names columns and their values; ``text`` is looked for in all values. Jobs without
        a value in the column ``sort`` come last. Raises :class:`UsageError` for unknown columns.
        """
        rows = self._jobs()
        for name in [*(where or {}), *([sort] if sort else [])]:
            if rows and name not in self._names:
                raise UsageError(
                    f"jobs have no column {name!r}",
                    hint=f"they have {', '.join(self._names)}",
                    code="no-such-column",
                )
        for name, value in (where or {}).items():
            rows = [row for row in rows if _same(row.get(name), value)]
        if text:
            wanted = text.lower()
            rows = [row for row in rows if _holds(row, wanted)]
        if sort:
            having = [row for row in rows if row.get(sort) is not None]
            having.sort(key=lambda row: _order(row[sort]), reverse=descending)
            rows = having + [row for row in rows if row.get(sort) is None]
        end = None if limit is None else offset + limit
        page = [[row.get(name) for name in self._names] for row in rows[offset:end]]
        return {"names": list(self._names), "rows": page, "total": len(rows), "offset": offset}

    def job(self, group: str, index: int) -> dict[str, Any]:
        """One job: its row, its attempts as they were submitted, its events, the values that it
        reported and the rules that touched it. Raises :class:`UsageError` if there is none."""
        row = next((r for r in self._jobs() if r["group"] == group and r["index"] == index), None)
        if row is None:
            raise UsageError(f"the run has no job {group}.{index}", code="no-such-job")
        name = f"{group}.{index}"
        attempts: list[dict[str, Any]] = []
        events: list[dict[str, Any]] = []
        values: list[list[Any]] = []
        rules: list[dict[str, Any]] = []
        # Attempts after the first are called GROUP.INDEX-NUMBER.
        for each in self._events(f'"{name}'):
            own = _is_of(each.job, name)
            if own and each.type == "observed":
                values.append([each.time, dict((each.data or {}).get("values", {}))])
            elif own:
                events.append(
                    {
                        "seq": each.seq,
                        "time": each.time,
                        "job": each.job,
                        "type": each.type,
                        "name": each.name,
                        "context": dict(each.data or {}),
                    }
                )
            for decision in json.loads(each.decisions) if each.decisions else ():
                kind, rule = decision["type"], decision.get("rule")
                if kind == "submit":
                    made = [job for job in decision["jobs"] if _is_of(job["id"], name)]
                    attempts += [_shown_job(job) for job in made]
                    touched = bool(made)
                elif kind == "cancel":
                    touched = any(_is_of(job, name) for job in decision["jobs"])
                else:
                    told = decision.get("job")
                    touched = isinstance(told, str) and _is_of(told, name)
                if touched and rule:
                    rules.append(
                        {"rule": rule, "decision": kind, "seq": each.seq, "time": each.time}
                    )
        return {
            "id": name,
            "row": {key: row.get(key) for key in self._names},
            "attempts": attempts,
            "events": events,
            "values": _thinned(values, _POINTS),
            "rules": rules,
        }

    def log(self, job: str, stream: str = "stdout", most: int = _LOG) -> dict[str, Any]:
        """The end of what a job (``sim.3``, or ``sim.3-1`` for a further attempt) wrote, of at most
        ``most`` bytes: ``text``, the file's ``size`` and, if it cannot be read, ``problem``.

        Raises :class:`UsageError` for a stream other than ``stdout`` and ``stderr``.
        """
        if stream not in ("stdout", "stderr"):
            raise UsageError(f"a job has no stream {stream!r}", code="no-such-stream")
        starts = [row.data for row in self._events(f'"{job}"', job) if row.name == "start"]
        place = starts[-1] if starts else None
        found: dict[str, Any] = {"text": "", "size": None, "problem": ""}
        if not place or not place.get(stream):
            found["problem"] = "it has not started" if not place else "its output is not in a file"
            return found
        path = Path(str(place.get("workdir") or "."), str(place[stream]))
        try:
            text, found["size"] = _end_of(path, min(most, _LOG))
            found["text"] = text
        except OSError as error:
            found["problem"] = f"its file cannot be read: {error.strerror or error}"
        return found

    def _events(self, holding: str, job: str | None = None) -> Iterator[Any]:
        try:
            yield from self._kept.journal.rows(job=job, holding=holding)
        except EnsembleError as error:
            self._note(error)

    # -- what went wrong ---------------------------------------------------------------------------

    def failures(self) -> list[dict[str, Any]]:
        """Jobs that failed or were cancelled, by group, cause and exit code, the most first.

        ``parameters`` are values that failed more often than others: ``failed`` of ``total`` jobs
        of the group. ``examples`` are jobs, with node and last line of output of the first.
        """
        kinds: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in self._jobs():
            groups.setdefault(row["group"], []).append(row)
            if row["outcome"] in _FAILED:
                key = (row["group"], row["outcome"], row.get("cause"), row.get("exit_code"))
                kinds.setdefault(key, []).append(row)
        found = []
        for (group, outcome, cause, code), rows in kinds.items():
            examples = [{"id": f"{group}.{row['index']}"} for row in rows[:_EXAMPLES]]
            for example, row in zip(examples[:_READ], rows, strict=False):
                example |= self._end_of_job(example["id"], row["attempts"])
            found.append(
                {
                    "group": group,
                    "outcome": outcome,
                    "cause": cause,
                    "exit_code": code,
                    "count": len(rows),
                    "of": len(groups[group]),
                    "parameters": _suspects(self._parameters(group), rows, groups[group]),
                    "examples": examples,
                }
            )
        return sorted(found, key=lambda each: -each["count"])

    def _parameters(self, group: str) -> Sequence[str]:
        engine = self._engine
        if engine is None or group not in engine.state.ensemble.groups:
            return ()
        return [n for n in engine.state.ensemble.groups[group].names if n in self._names]

    def _end_of_job(self, name: str, attempts: int) -> dict[str, Any]:
        """The node of a job's last attempt, and the last line that it wrote."""
        job = name if attempts == 1 else f"{name}-{attempts - 1}"
        node = None
        for row in self._events(f'"{job}"', job):
            context = row.data or {}
            node = context.get("host") or context.get("nodes") or node
        for stream in ("stderr", "stdout"):
            lines = self.log(job, stream, 4096)["text"].strip().splitlines()
            if lines:
                return {"node": node, "line": lines[-1][:_LINE], "stream": stream}
        return {"node": node, "line": "", "stream": ""}

    # -- what it cost ------------------------------------------------------------------------------

    def costs(self) -> list[dict[str, Any]]:
        """For each group: core-hours by outcome, and how long jobs took and waited (seconds;
        ``median``, ``longest``), beside the time limit that they asked for."""
        engine = self._engine
        sums: dict[str, dict[str, Any]] = {}
        for row in self._jobs():
            one = sums.setdefault(row["group"], {"hours": Counter(), "took": [], "waited": []})
            one["hours"][row["outcome"]] += row.get("core_hours") or 0.0
            if row.get("duration") is not None:
                one["took"].append(row["duration"])
            if row.get("started") is not None and row.get("submitted") is not None:
                one["waited"].append(row["started"] - row["submitted"])
        limits = {} if engine is None else engine.state.ensemble.groups
        return [
            {
                "group": name,
                "core_hours": dict(one["hours"]),
                "duration": _spread(one["took"]),
                "waiting": _spread(one["waited"]),
                "time_limit": limits[name].duration or None if name in limits else None,
            }
            for name, one in sums.items()
        ]

    # -- results -----------------------------------------------------------------------------------

    def tables(self) -> list[dict[str, Any]]:
        """Every table of results and every generator's points: ``name``, ``names`` of the columns,
        ``rows`` as lists, and ``plot`` as the ensemble file has it."""
        engine = self._engine
        if engine is None:
            return []
        found = []
        computed = engine.tables()
        for name, table in engine.state.ensemble.tables.items():
            rows = [[row.get(n) for n in table.shown] for row in computed.shown(name)]
            one = {"name": name, "names": list(table.shown), "rows": rows, "plot": dict(table.plot)}
            found.append({**one, "kind": "table", "of": table.of})
        for name, state in engine.state.generators.items():
            vocs = engine.state.ensemble.generators[name].vocs
            names, points = state.table(vocs)
            rows = [[row.get(n) for n in names] for row in points]
            one = {"name": name, "names": list(names), "rows": rows, "plot": {}}
            found.append({**one, "kind": "generator", "of": name})
        return found

    def curves(self) -> list[dict[str, Any]]:
        """Values that jobs reported while they ran: by group and variable, those of some jobs over
        the seconds since each job's first, thinned if there are many."""
        points: dict[tuple[str, str], dict[str, list[list[float]]]] = {}
        for row in self._events('"observed"'):
            if row.type != "observed" or row.job is None:
                continue
            group = row.job.rpartition(".")[0]
            for name, value in ((row.data or {}).get("values") or {}).items():
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    jobs = points.setdefault((group, name), {})
                    if row.job in jobs or len(jobs) < _CURVES:
                        jobs.setdefault(row.job, []).append([row.time, value])
        return [
            {
                "group": group,
                "variable": name,
                "jobs": [
                    {"id": job, "points": [[t - own[0][0], v] for t, v in _thinned(own, _POINTS)]}
                    for job, own in jobs.items()
                ],
            }
            for (group, name), jobs in points.items()
        ]

    # -- what the rules did, and when --------------------------------------------------------------

    def firings(self, after: int = 0) -> list[dict[str, Any]]:
        """Each firing of a rule after event ``after``: ``rule``, ``seq`` and ``time`` of the event,
        the event in words, the condition's ``value``, and the ``decisions`` that followed."""
        from ensemble_core.engine.rule_trace import event_words

        for row in self._journal_rows('"type":"fired"'):
            if '"type":"fired"' not in (row.decisions or ""):
                continue
            decisions = json.loads(row.decisions)
            own: dict[tuple[Any, Any], list[str]] = {
                (decision.get("rule"), decision.get("firing")): [] for decision in decisions
            }
            for decision in decisions:
                if decision["type"] != "fired":
                    own[decision.get("rule"), decision.get("firing")].append(_in_words(decision))
            for decision in decisions:
                if decision["type"] == "fired":
                    self._firings.append(
                        {
                            "rule": decision.get("rule"),
                            "firing": decision.get("firing"),
                            "seq": row.seq,
                            "time": row.time,
                            "event": event_words(row.event()),
                            "job": decision.get("job"),
                            "value": decision.get("value"),
                            "each": dict(decision.get("each") or {}),
                            "decisions": own[decision.get("rule"), decision.get("firing")],
                        }
                    )
        return [each for each in self._firings if each["seq"] > after]

    def _journal_rows(self, holding: str) -> Iterator[Any]:
        try:
            for row in self._kept.journal.rows(self._fired_until, self.seq, holding=holding):
                self._fired_until = row.seq
                yield row
        except EnsembleError as error:
            self._note(error)

    def timeline(self, bins: int = 300) -> dict[str, Any]:
        """How many jobs of each group waited and ran, in ``bins`` equal parts of the run.

        ``began`` and the ``width`` of a part in seconds; by group, the mean number of jobs
        ``running`` and ``waiting`` in each part."""
        rows = self._jobs()
        began = self._began if self._began is not None else 0.0
        end = max((self._newest or began), began + 1e-6)
        width = (end - began) / bins
        groups: dict[str, dict[str, list[float]]] = {}
        for row in rows:
            one = groups.setdefault(
                row["group"], {"running": [0.0] * bins, "waiting": [0.0] * bins}
            )
            start, stop = row.get("started"), row.get("finished")
            # A job that was cancelled before it began waited for a time that nobody kept.
            if start is not None or row["outcome"] == "active":
                _spread_over(one["waiting"], began, width, row.get("submitted"), start or end)
            if start is not None:
                _spread_over(one["running"], began, width, start, end if stop is None else stop)
        return {"began": began, "width": width, "groups": groups}


def _is_of(job: str | None, name: str) -> bool:
    return job is not None and (job == name or job.startswith(f"{name}-"))


def _same(value: object, wanted: object) -> bool:
    if isinstance(value, (int, float)) and isinstance(wanted, str):
        try:
            return float(value) == float(wanted)
        except ValueError:
            return False
    return value == wanted


def _holds(row: Mapping[str, Any], wanted: str) -> bool:
    name = f"{row['group']}.{row['index']}".lower()
    return wanted in name or any(wanted in str(value).lower() for value in row.values())


def _order(value: object) -> tuple[int, Any]:
    """Numbers before texts."""
    return (0, value) if isinstance(value, (int, float)) else (1, str(value))


def _shown_job(job: Mapping[str, Any]) -> dict[str, Any]:
    """A submitted job without its environment, which may hold secrets."""
    names = ("id", "command", "nodes", "tasks", "cores_per_task", "gpus_per_task", "duration")
    return {name: job.get(name) for name in (*names, "workdir", "stdout", "stderr", "parameters")}


def _in_words(decision: Mapping[str, Any]) -> str:
    kind = decision["type"]
    if kind == "submit":
        count = len(decision["jobs"])
        return f"submit {count} job{'' if count == 1 else 's'} of {decision['group']}"
    if kind == "cancel":
        count = len(decision["jobs"])
        return f"cancel {count} job{'' if count == 1 else 's'}"
    if kind == "log":
        return f"log {decision.get('message', '')}"
    if kind == "terminate":
        return f"terminate with exit code {decision.get('exit_code', 0)}"
    for name in ("call", "rules", "group", "job", "delta", "generator"):
        if name in decision:
            return f"{kind} {decision[name]}"
    return str(kind)


def _suspects(
    names: Sequence[str], failed: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Values of parameters whose jobs failed clearly more often than those of the whole group."""
    share = len(failed) / len(rows)
    found = []
    for name in names:
        total = _counted(rows, name)
        if not 1 < len(total) <= _VALUES:
            continue
        for value, count in _counted(failed, name).items():
            if count > 1 and count / total[value] >= min(0.95, 1.5 * share):
                one = {"name": name, "value": json.loads(value), "failed": count}
                found.append({**one, "total": total[value]})
    found.sort(key=lambda each: (-each["failed"] / each["total"], -each["failed"]))
    return found[:_NAMED]


def _counted(rows: Iterable[Mapping[str, Any]], name: str) -> Counter[str]:
    return Counter(json.dumps(row[name]) for row in rows if row.get(name) is not None)


def _spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    values.sort()
    return {"median": values[len(values) // 2], "longest": values[-1], "sum": sum(values)}


def _spread_over(
    parts: list[float], began: float, width: float, start: float | None, stop: float
) -> None:
    """Add to each part the share of it that lies between two times."""
    if start is None or stop <= start:
        return
    first = (start - began) / width
    last = (stop - began) / width
    low, high = max(0, int(first)), min(len(parts) - 1, int(last))
    for at in range(low, high + 1):
        parts[at] += max(0.0, min(at + 1, last) - max(at, first))


def _thinned(values: list[Any], most: int) -> list[Any]:
    if len(values) <= most:
        return values
    step = (len(values) - 1) / (most - 1)
    return [values[round(at * step)] for at in range(most)]


def _end_of(path: Path, most: int) -> tuple[str, int]:
    """The last ``most`` bytes of a regular file as text, and its size. Links are not followed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a regular file")
        file.seek(max(0, status.st_size - most))
        return file.read(most).decode("utf-8", "replace"), status.st_size
