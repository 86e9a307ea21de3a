"""The code blocks of the page on Python run, one after another."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.checkout
def test_code_blocks_of_the_python_page_run_in_order(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    text = PAGE.read_text("utf-8")
    (file,) = re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(blocks) >= 5
    (tmp_path / "sim.yaml").write_text(file)
    (tmp_path / "page.py").write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env={**os.environ, "ENSEMBLE_STATE": str(tmp_path / "state")},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["6 12.0", "2 4.0", "1 2.0"]
