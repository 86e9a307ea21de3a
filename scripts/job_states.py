"""Writes the diagrams of ``docs/job-states.md`` from the tables in ``engine/job_states.py``.

    python scripts/job_states.py [--check]

With ``--check``, writes nothing; the exit code is 1 if the page is not current.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ensemble_core.engine.job_states import ATTEMPT, CANCEL, INDEX

PAGE = Path(__file__).resolve().parents[1] / "docs" / "job-states.md"
_DIAGRAM = re.compile(r"```mermaid\n.*?\n```", re.DOTALL)


def drawn(states: Mapping[Any, Mapping[str, Any]]) -> str:
    """Return the states as a Mermaid diagram."""
    lines = ["stateDiagram-v2"]
    for state, ways in states.items():
        for what, following in ways.items():
            nexts = (following,) if isinstance(following, str) else following
            lines += [f"    {state} --> {each}: {what}" for each in nexts]
    return "\n".join(lines)


def current(text: str) -> str:
    """Return the text of the page with current diagrams."""
    diagrams = iter([drawn(ATTEMPT), drawn(CANCEL), drawn(INDEX)])
    return _DIAGRAM.sub(lambda _: f"```mermaid\n{next(diagrams)}\n```", text)


def main() -> int:
    before = PAGE.read_text("utf-8")
    after = current(before)
    if "--check" in sys.argv[1:]:
        return int(after != before)
    PAGE.write_text(after, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
