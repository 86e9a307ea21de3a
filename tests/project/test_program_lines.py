"""The page on what programs print: the observers make the rows that it shows of its lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ensemble_core.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "programs.md"
_BLOCKS = re.compile(r"```text\n(.*?)```\n\n```yaml\n(.*?)```\n\n```text\n(.*?)```", re.S)
PROGRAMS = {
    section.partition("\n")[0]: _BLOCKS.findall(section)
    for section in PAGE.read_text("utf-8").split("\n## ")[1:]
}
PROGRAMS = {name: found for name, found in PROGRAMS.items() if found}

pytestmark = pytest.mark.checkout


def test_the_page_has_as_many_programs_as_it_says() -> None:
    assert f" for {len(PROGRAMS)} programs" in PAGE.read_text("utf-8")


@pytest.mark.parametrize("ends", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_observer_makes_the_rows_that_the_page_shows(
    program: str, ends: str, tmp_path: Path
) -> None:
    """A progress bar ends its updates with a carriage return."""
    ((lines, observers, shown),) = PROGRAMS[program]
    log, study = tmp_path / "out.log", tmp_path / "study.yaml"
    log.write_bytes(lines.replace("\n", ends).encode())
    group = f"jobs:\n  - name: a\n    command: x\n{observers}"
    study.write_text(f"{group}rules: [{{trigger: start, action: {{name: submit}}}}]\n")
    done = CliRunner().invoke(main, ["observe", str(log), "--in", str(study)])
    assert done.stderr == ""
    assert done.stdout == shown
    assert done.exit_code == 0
