"""``ensemble disable RUN RULE…``: disables rules of a live run."""

from __future__ import annotations

from ensemble_core.cli.control_requests import switch_command

disable = switch_command("disable")
