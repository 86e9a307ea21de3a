"""SQL views of a journal: its events, jobs, failures and firings as rows, for any SQLite client.

The tables of a journal are not a public interface, these views are: ``docs/sql.md`` describes them.
Ensemble itself does not read them.
"""

from __future__ import annotations

import re

from ensemble_core.journal.job_rows import FIELDS, FIRST_OWN, INTERRUPTED


def _object(part: int) -> str:
    """Return SQL for a JSON object of a job's parameters (part 0), result (1) or columns (2).

    With a path that is given twice, ``json_extract`` returns a list with two copies of the value as
    it stands in the text. As a number, it would keep 15 digits only.
    """
    first = (FIRST_OWN, "own", "own+json_array_length(names,'$[1]')")[part]
    return (
        "(SELECT json_group_object(n,json(substr(t,2,length(t)/2-1))) FROM"
        " (SELECT n, json_extract(row,p,p) t FROM"
        f" (SELECT value n, '$['||({first}+key)||']' p FROM json_each(names,'$[{part}]'))))"
    )


def _valid(text: str, before: str) -> str:
    """Return SQL for a text as valid JSON: nan and infinity become null.

    SQLite before 3.42 does not read them. ``before`` has the signs that may stand before one. Such
    words in a string stay as they are, unless one of these signs is directly before them.
    """
    valid = text
    for sign in before:
        for word in ("NaN", "Infinity", "-Infinity"):
            valid = f"replace({valid},'{sign}{word}','{sign}null')"
    return f"CASE WHEN json_valid({text}) THEN {text} ELSE {valid} END"


_FIELDS = ", ".join(
    f"json_extract(row,'$[{place}]') {name}"
    for place, name in enumerate(name for name in FIELDS[2:] if name != "duration")
)
_VIEWS = f"""
    CREATE VIEW events (seq, time, type, job, name, data, decisions, more) AS
        SELECT first + key, {", ".join(f"json_extract(value,'$[{place}]')" for place in range(7))}
        FROM event_lists, json_each({_valid("list", ":,[")});
    CREATE VIEW jobs AS
        SELECT "group", "index", {", ".join(FIELDS[2:-2])},
            finished - started - coalesce(json_extract(columns,'$.{INTERRUPTED}'), 0) duration,
            core_hours, parameters, result, columns
        FROM (SELECT name AS "group", number AS "index", {_FIELDS}, {_object(0)} parameters,
                {_object(1)} result, {_object(2)} columns
            FROM (SELECT name, number, layout, {_valid("row", ",")} AS row FROM job_rows)
                JOIN (SELECT number AS layout, layout AS names,
                    {FIRST_OWN} + json_array_length(layout,'$[0]') own FROM job_layouts)
                USING (layout));
    CREATE VIEW failures AS SELECT * FROM jobs WHERE outcome = 'failed';
    CREATE VIEW firings (seq, time, rule, job) AS
        SELECT seq, time, json_extract(value,'$.rule'), job FROM events, json_each(decisions)
        WHERE json_extract(value,'$.type') = 'fired';
"""
#: SQL statements that create the views. They use only functions of SQLite 3.31. They are short:
#: if the schema fits in the first page of the file (4 KB), a truncated journal keeps its tables.
VIEWS = re.sub(r" ?([(),=+-]) ?", r"\1", " ".join(_VIEWS.split()))
