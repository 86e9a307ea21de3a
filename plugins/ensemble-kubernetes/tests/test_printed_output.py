"""Logs of pods, as observers read them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ensemble_testing import Running
from ensemble_testing.printed_output import printed_ensemble, wrong_answers

if TYPE_CHECKING:
    from conftest import Cluster


def test_what_is_difficult_to_read_is_read_as_on_this_machine(
    world: Cluster, tmp_path: Path
) -> None:
    file = printed_ensemble(tmp_path, named=False)
    words = ["run", str(file), "--executor", "kubernetes", *world.words, "--json"]
    run = Running(words, tmp_path, {**os.environ, "ENSEMBLE_STATE": str(tmp_path / "state")})
    try:
        assert run.ended() == 0, run.errors
        assert wrong_answers(run.lines, named=False) == [], run.lines
    finally:
        run.close()
