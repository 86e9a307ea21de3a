"""``ensemble disable RUN RULE…``: switches rules of a run under way off."""

from __future__ import annotations

from ensemble_core.cli.control_requests import switch_command

__all__ = ["disable"]

disable = switch_command("disable", "off")
