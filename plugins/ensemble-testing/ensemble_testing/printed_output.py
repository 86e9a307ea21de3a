"""An ensemble whose jobs print what is difficult to read, for a run on each kind of queue.

Bars, nan, numbers that cannot be read, half of a line before a kill, steps that a restart prints
again, and output without end. The right answers are the same on every queue.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

#: What ``printf`` prints, the end of the program, and the last value of ``x``.
_PRINTED = {
    r"x=1\rx=2\rx=3\n": ("exit", "3"),
    r"x=1\nx=nan\n": ("exit", "nan"),
    r"x=5\nx=*****\n": ("exit", "nan"),
    r"x=0,253\nx=1.0D+03\n": ("exit", "1000"),
    r"\033[31mx=9.5\033[0m \377": ("exit", "9.5"),
    r"x=1.5\nx=15": ("kill -9 $$", "1.5"),
    r"x=-76543.1234567891\n": ("exit", "-76543.1234567891"),
    r"x=12345678901234\r\n": ("exit", "12345678901234"),
    r"\377\376x\000=\0007\000\n\000": ("exit", "7"),
}
#: Steps and values of an attempt that dies, and of the one that continues it.
_RESTARTED = (((1, 10), (2, 20), (3, 90)), ((2, 20), (3, 30), (4, 40), (5, 50)))
_SAID = ["x could not be read in 1 of", "may be incomplete, so it was not read: 'x=15'"]


def printed_ensemble(folder: Path, *, named: bool) -> Path:
    """Write the programs and the ensemble file. Return the file.

    ``named``: the jobs name the files for their output, also one for standard error.
    """
    for number, (text, (end, _)) in enumerate(_PRINTED.items()):
        (folder / f"job{number}").write_text(f"printf '{text}'\n{end}\n")
    for attempt, rows in enumerate(_RESTARTED):
        lines = [f"echo step={step} e={value}" for step, value in rows]
        script = "\n".join([*lines, f"exit {1 - attempt}"])
        (folder / f"restart{attempt}").write_text(script)
    observed = {"key-value": {"fields": ["x"]}}
    jobs: list[dict[str, Any]] = [
        {"name": "work", "command": f"bash {folder}/job{{index}}", "count": len(_PRINTED)},
        {"name": "restart", "command": f"bash {folder}/restart{{attempt}}"},
        {
            "name": "endless",
            "command": "sh -c 'head -c 2000000 /dev/urandom | base64; sleep 600'",
        },
    ]
    for job in jobs:
        job |= {"workdir": str(folder), "observe": observed}
        if named:
            job["stdout"] = f"{job['name']}.{{index}}.{{attempt}}.out"
    jobs[1] |= {
        "observe": {"key-value": {"fields": ["e"], "clock": "step"}},
        "retry": {"times": 1, "continue": True},
    }
    if named:
        command, stream = "sh -c 'echo x=3 >&2'", {"key-value": {"stream": "stderr"}}
        errors = {"command": command, "stderr": f"{folder}/errors", "observe": stream}
        jobs.append({"name": "errors", **errors})
    rules: list[dict[str, Any]] = [
        {"trigger": "start", "action": [{"name": "submit", "label": job["name"]} for job in jobs]},
    ]
    messages = {"work": "{job} {last.x:.15g}", "errors": "{job} {last.x:.15g}"}
    messages |= {"restart": "{sum.e} {max.e}", "endless": "endless: {cause}"}
    for job in jobs:
        name = job["name"]
        action = {"name": "log", "message": messages[name]}
        for trigger in ("job-done", "job-lost"):
            rule = {"trigger": trigger, "name": name, "action": action, "repetitions": "unlimited"}
            rules.append(rule)
    file = folder / "printed.yaml"
    file.write_text(json.dumps({"limits": {"output": "1M"}, "jobs": jobs, "rules": rules}))
    return file


def wrong_answers(lines: Iterable[Mapping[str, Any]], *, named: bool) -> list[str]:
    """Return what is missing in the lines that ``ensemble run --json`` has printed."""
    said = [str(line["message"]) for line in lines if "message" in line]
    right = [f"work.{n} {last}" for n, (_, last) in enumerate(_PRINTED.values())]
    right += ["150 50", "endless: output", *(["errors.0 3"] if named else [])]
    warnings = "; ".join(said)
    return [each for each in right if each not in said] + [
        each for each in _SAID if each not in warnings
    ]
