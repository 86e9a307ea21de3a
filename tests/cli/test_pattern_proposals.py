"""``ensemble observe FILE`` proposes patterns for lines that no observer reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ensemble_core.cli.main import main
from ensemble_core.cli.pattern_proposals import LineKinds


def observed(*words: object) -> tuple[str, str]:
    done = CliRunner().invoke(main, ["observe", *map(str, words)])
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("program", "text", "rows"),
    [
        (
            "PETSc",
            "  0 KSP Residual norm 1.000000e+00\n  1 KSP Residual norm 2.5e-01\n",
            [{"x1": 0, "norm": 1.0}, {"x1": 1, "norm": 0.25}],
        ),
        (
            "Elmer",
            (
                "ComputeChange: NS (ITER=1) (NRM,RELC): ( 0.1 2.0 ) :: heat\n"
                "ComputeChange: NS (ITER=12) (NRM,RELC): ( 0.2 0.5 ) :: heat\n"
            ),
            [{"ITER": 1, "RELC": 0.1, "x1": 2.0}, {"ITER": 12, "RELC": 0.2, "x1": 0.5}],
        ),
        (
            "Fluent",
            (
                "  iter  continuity     time/iter\n"
                "     1  1.0000e+00  0:00:12   99\n     2  5.0000e-01  0:00:11   98\n"
            ),
            [{"x1": 1, "x2": 1.0, "x3": 99}, {"x1": 2, "x2": 0.5, "x3": 98}],
        ),
        (
            "make",
            "[ 20%] Building a1.o\n[100%] Building a5.o\n",
            [{"x1": 20}, {"x1": 100}],
        ),
        (
            "scikit-learn",
            "Iteration 0, inertia 886.5.\r\nIteration 1, inertia 725.25.\r\n",
            [{"Iteration": 0, "x1": 886.5}, {"Iteration": 1, "x1": 725.25}],
        ),
        (
            "quotes",
            '!  it\'s $5 `a` "b" \\c 1.5\n!  it\'s $6 `a` "b" \\c -nan\n',
            [{"c": 1.5}, {"c": None}],
        ),
    ],
)
def test_the_proposed_command_reads_the_lines_in_a_shell(
    tmp_path: Path, program: str, text: str, rows: list[dict[str, object]]
) -> None:
    log = tmp_path / "a log"
    log.write_text(text, newline="")
    _, said = observed(log)
    (command,) = (line for line in said.splitlines() if line.startswith("  ensemble observe"))
    words = command.strip().removeprefix("ensemble ")
    done = subprocess.run(
        ["sh", "-c", f"{Path(sys.executable).with_name('ensemble')} {words} --json"],
        capture_output=True,
        text=True,
        check=True,
    )
    shown = [row["values"] for row in json.loads(done.stdout)["rows"]]
    assert [{k: str(v) for k, v in row.items()} for row in shown] == [
        {k: str(v) for k, v in row.items()} for row in rows
    ]


def test_only_lines_that_are_not_read_have_a_proposal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("loss=0.5 acc=0.25\n" * 9)
    assert observed(log)[1] == ""
    log.write_text("step  loss\n1 0.5\n2 0.25\n3 0.125\n")
    assert observed(log)[1] == ""
    log.write_text("Iteration 1, loss = 0.5\nIteration 2, loss = 0.25\nfound 3 cores\n")
    assert "(?P<Iteration>" in observed(log)[1]
    assert "cores" not in observed(log)[1]
    assert observed(log, "--with", "key-value")[1] == ""


def test_text_without_numbers_has_no_proposal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for text in (
        "nothing here\n",
        "12:30:05,123 started v1.2.3\n",
        "\0\1\2 5\n",
        "x" * 999 + " 5\n",
    ):
        log.write_text(text)
        assert "write a pattern, as in --with" in observed(log)[1], text


def test_names_of_columns_are_distinct_and_allowed() -> None:
    kinds = LineKinds()
    kinds.feed(b"duration 5 of duration 6 and x1 = 7 and \xc3\xa9t\xc3\xa9 = 8\n" * 2)
    (proposal,) = kinds.proposals()
    assert proposal.alike == 2
    assert proposal.pattern.count("(?P<") == 4
    assert "(?P<duration>" not in proposal.pattern


def test_many_kinds_of_lines_take_little_memory() -> None:
    kinds = LineKinds()
    words = ["".join(chr(97 + int(digit)) for digit in f"{n:06}") for n in range(20_000)]
    for word in words:
        kinds.feed(f"{word} {len(word)}\n".encode())
    assert sum(1 for _ in kinds.proposals()) <= 5000
