"""Ensemble: ``ensemble run`` on this machine, with its journal and the output of jobs kept."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from task import Peer, Task, main

PEER = Peer(
    name="ensemble",
    packages=(),
    settings="ensemble run --executor local --slots N, defaults otherwise",
    output="two files per job; empty ones are removed",
    durable="each event and decision in a journal before it is acted on; synced within 0.2 s",
    objection="",
    answer="",
)
#: A chain by a rule: the next job is submitted when the previous one has ended.
CHAIN = (
    "  - {{trigger: job-done, name: t, repetitions: {more}, action: {{name: submit, label: t}}}}"
)


def run(task: Task) -> None:
    words = [word.replace("{i}", "{index}") for word in task.command]
    text = shlex.join(words).replace("'", "''")
    lines = [
        f"jobs: [{{name: t, command: '{text}', count: {1 if task.chain else task.count}}}]",
        "rules:",
        "  - {trigger: start, action: {name: submit, label: t}}",
    ]
    if task.chain and task.count > 1:
        lines.append(CHAIN.format(more=task.count - 1))
    file = Path(task.folder, "ensemble.yaml")
    file.write_text("\n".join(lines), encoding="utf-8")
    program = [sys.executable, "-m", "ensemble_core.cli"]
    where = ["--state", task.folder, "--quiet"]
    if task.resume:
        os.execv(sys.executable, [*program, "resume", "run", *where])
    slots = ["--executor", "local", "--slots", str(task.slots)]
    os.execv(sys.executable, [*program, "run", str(file), *slots, *where, "--tag", "run"])


if __name__ == "__main__":
    main(run)
