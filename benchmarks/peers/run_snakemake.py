"""Snakemake: one rule for all jobs, each with a flag file."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from task import Peer, Task, main

PEER = Peer(
    name="snakemake",
    packages=("snakemake",),
    settings="--cores N --scheduler greedy --latency-wait 0 --quiet all; output: touch(...); "
    "--drop-metadata, except with a killed controller; for resume --unlock, then "
    "--rerun-incomplete",
    output="none: jobs write to the terminal (log: keeps files)",
    durable="yes: by the output files",
    objection="Snakemake builds graphs of files and checks files for each job. It is not made for "
    "jobs of 1 ms; with `group` or a shell loop, one job does the work of many.",
    answer="True, but every tool could combine jobs in this way, so none does here.",
    fewer=5,
)
RULES = """
rule all:
    input: {wanted}
rule one:
    output: touch("done/{{i}}")
    shell: {command!r}
"""
CHAIN = """
rule all:
    input: "done/{last}"
rule first:
    output: touch("done/0")
    params: i=0
    shell: {command!r}
rule one:
    input: lambda wildcards: f"done/{{int(wildcards.i) - 1}}"
    output: touch("done/{{i}}")
    wildcard_constraints: i="[1-9][0-9]*"
    params: i=lambda wildcards: wildcards.i
    shell: {command!r}
"""


def run(task: Task) -> None:
    os.chdir(task.folder)
    command = shlex.join(task.command)
    if task.chain:
        text = CHAIN.format(last=task.count - 1, command=command.replace("{i}", "{params.i}"))
    else:
        wanted = f'expand("done/{{i}}", i=range({task.count}))'
        text = RULES.format(wanted=wanted, command=command.replace("{i}", "{wildcards.i}"))
    Path("Snakefile").write_text(text, encoding="utf-8")
    program = [sys.executable, "-m", "snakemake", "--quiet", "all", "--cores", str(task.slots)]
    if task.resume:
        subprocess.run([*program, "--unlock"], check=True)
        program.append("--rerun-incomplete")
    if not task.durable:
        program.append("--drop-metadata")
    os.execv(sys.executable, [*program, "--scheduler", "greedy", "--latency-wait", "0"])


if __name__ == "__main__":
    main(run)
