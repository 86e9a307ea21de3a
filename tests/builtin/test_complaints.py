"""If an observer finds nothing, the complaint proposes the change that helps."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ensemble_core.cli.main import main

ROWS = "for i in 1 2 3; do echo loss=0.$i; done"
CASES = {
    "rows on standard error": (
        f"({ROWS}) >&2", "{key-value: {fields: [loss]}}",
        "standard error has 3 rows: add 'stream: stderr'",
    ),
    "rows on standard error, text on standard output": (
        f"echo hello; ({ROWS}) >&2", "{key-value: {fields: [loss]}}",
        "standard error has 3 rows: add 'stream: stderr'",
    ),
    "rows on standard output": (
        ROWS, "{key-value: {stream: stderr}}", "standard output has 3 rows: remove 'stream'",
    ),
    "rows on standard output, not in the file": (
        ROWS, "{key-value: {path: train.log}}", "standard output has 3 rows: remove 'path'",
    ),
    "rows on standard output, not in the file on standard error": (
        ROWS, "{key-value: {path: train.log, stream: stderr}}",
        "standard output has 3 rows: remove 'path' and remove 'stream'",
    ),
    "names and values": (
        ROWS, "{json-lines: {}}", "3 lines have NAME=NUMBER: use the observer 'key-value'",
    ),
    "JSON": (
        """echo '{"loss": 0.5}'""", "{regex: {fields: {loss: 'loss=(.*)'}}}",
        "1 line begins with {: use the observer 'json-lines'",
    ),
    "a nested field": (
        """echo '{"metrics": {"loss": 0.5}}'""", "{json-lines: {fields: [loss]}}",
        "no field 'loss'; found 'metrics.loss'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_complaint_says_what_to_change(tmp_path: Path, case: str) -> None:
    program, observe, expected = CASES[case]
    (tmp_path / "program.sh").write_text(program, encoding="utf-8")
    file = tmp_path / "study.yaml"
    file.write_text(
        f"""
jobs:
  - name: sim
    command: "sh {{here}}/program.sh"
    workdir: "{{here}}/work/{{index}}"
    observe: {observe}
rules:
  - {{trigger: start, action: {{name: submit, label: sim}}}}
""",
        encoding="utf-8",
    )

    ran = CliRunner().invoke(main, ["run", "--executor", "local", str(file)])

    assert expected in ran.stdout + ran.stderr
