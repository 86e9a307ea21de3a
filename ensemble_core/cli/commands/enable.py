"""``ensemble enable RUN RULE…``: switches rules of a run under way on."""

from __future__ import annotations

from ensemble_core.cli.control_requests import switch_command

__all__ = ["enable"]

enable = switch_command("enable", "on")
