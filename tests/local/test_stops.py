"""A stop and a resume of a run whose jobs are processes of this machine."""

from __future__ import annotations

import pytest
from ensemble_testing import StopSuite


class TestLocal(StopSuite):
    executor = "local"
    options = ("--slots", "3")
    on_stop = "cancel"  # who interrupts a run here wants the processors back

    @pytest.mark.parametrize("how", ["SIGTERM", "SIGHUP", "SIGINT", "stop"])
    def test_signals_and_the_command_stop_a_run_alike(self, how: str) -> None:
        self.test_a_run_that_is_stopped_goes_on_where_it_was(how, None)
