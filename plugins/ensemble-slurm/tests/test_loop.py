"""The loop: cancels that time out, and the address that nodes are told."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ensemble_batch import CommandResult, Records
from ensemble_slurm.loop import SlurmLoop
from ensemble_slurm.parse import Site
from ensemble_slurm.script import Scripts
from ensemble_slurm.spool import Spool

from ensemble_core import Event, Run


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Callable[..., SlurmLoop]]:
    made: list[SlurmLoop] = []

    def make(emit: Callable[[Sequence[Event]], None] = lambda _: None, **more: Any) -> SlurmLoop:
        run = Run("r-1", tmp_path, time.time, state=tmp_path)
        spool = Spool(str(tmp_path / "slurm"))
        scripts = Scripts("r-1", "t", spool.folder, str(tmp_path))
        options = {"listen": None, "look": 60.0, "rate": 50.0, "gauges": {}, **more}
        loop = SlurmLoop(
            run, emit, Site(), scripts, spool, Records(None), dict(os.environ), **options
        )
        loop.start()
        made.append(loop)
        return loop

    yield make
    for each in made:
        each.close()


def test_a_cancel_that_timed_out_for_one_job_is_tried_again_though_another_is_gone(
    loop: Callable[..., SlurmLoop],
) -> None:
    told: list[Event] = []
    cancelling = loop(told.extend)
    later: list[float] = []
    cancelling.after = lambda seconds, what: later.append(seconds)  # type: ignore[method-assign]
    said = (
        "scancel: error: Kill job error on job id 7: Invalid job id specified\n"
        "scancel: error: Kill job error on job id 8: Socket timed out on send/recv operation\n"
    )
    cancelling._cancelled(["7", "8"], CommandResult(1, "", said))
    assert 3.0 in later


def test_a_listener_on_all_addresses_is_not_what_nodes_are_told(
    loop: Callable[..., SlurmLoop], tmp_path: Path
) -> None:
    loop(listen=("0.0.0.0", 0))
    _, *hosts = (tmp_path / "slurm" / "address").read_text().split()
    assert hosts
    assert "0.0.0.0" not in hosts
    assert socket.gethostname() in hosts
