"""SQL views of a journal: its events, jobs, failures and firings as rows, for any SQLite client.

The tables of a journal are not a public interface, these views are: ``docs/sql.md`` describes them.
Ensemble itself does not read them.
"""

from __future__ import annotations

from ensemble_core.journal.job_rows import FIELDS, FIRST_OWN, INTERRUPTED

__all__ = ["VIEWS"]


def _object(part: int) -> str:
    """Return SQL for a JSON object of a job's parameters (part 0), result (1) or columns (2)."""
    before = "+".join(f"json_array_length(names,'$[{n}]')" for n in range(part))
    return (
        "(SELECT json_group_object(value,"
        f" json_extract(row,'$['||({FIRST_OWN}+{before or 0}+key)||']'))"
        f" FROM json_each(names,'$[{part}]'))"
    )


#: SQL for a list of events as valid JSON. SQLite before 3.42 does not read nan and infinity.
_LIST = (
    "CASE WHEN json_valid(list) THEN list ELSE replace(replace(replace(list,"
    " '-Infinity', 'null'), 'Infinity', 'null'), 'NaN', 'null') END"
)

_FIELDS = ", ".join(
    f"json_extract(row,'$[{place}]') AS {name}"
    for place, name in enumerate(name for name in FIELDS[2:] if name != "duration")
)
_VIEWS = f"""
    CREATE VIEW events (seq, time, type, job, name, data, decisions, more) AS
        SELECT first + key, {", ".join(f"json_extract(value,'$[{place}]')" for place in range(7))}
        FROM event_lists, json_each({_LIST});
    CREATE VIEW jobs AS
        SELECT {", ".join(f'"{name}"' for name in FIELDS[:-2])},
            finished - started - coalesce(json_extract(columns,'$.{INTERRUPTED}'), 0) AS duration,
            core_hours, parameters, result, columns
        FROM (SELECT name AS "group", number AS "index", {_FIELDS}, {_object(0)} AS parameters,
                {_object(1)} AS result, {_object(2)} AS columns
            FROM job_rows JOIN (SELECT number AS layout, layout AS names FROM job_layouts)
                USING (layout));
    CREATE VIEW failures AS SELECT * FROM jobs WHERE outcome = 'failed';
    CREATE VIEW firings (seq, time, rule, job) AS
        SELECT seq, time, json_extract(value,'$.rule'), job FROM events, json_each(decisions)
        WHERE json_extract(value,'$.type') = 'fired';
"""
#: SQL statements that create the views. They use only functions of SQLite 3.31. They are short:
#: if the schema fits in the first page of the file (4 KB), a truncated journal keeps its tables.
VIEWS = " ".join(_VIEWS.split())
