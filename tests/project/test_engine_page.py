"""The code on the page about the engine alone runs, and imports only the kernel."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "engine-alone.md"
ROOMS = """
import sys
print({name.split(".")[1] for name in sys.modules if name.startswith("ensemble_core.")}
      - {"errors", "metrics", "model", "engine", "plugin", "quick_dataclass",
         "late_pattern"})
"""


def test_the_engine_alone_imports_only_the_kernel(tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (printed,) = re.findall(r"^```text\n(.*?)^```", text, re.M | re.S)
    done = subprocess.run(
        [sys.executable, "-u", "-c", program + ROOMS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == printed + "set()\n"
