"""``ensemble enable RUN RULE…``: enables rules of a live run."""

from __future__ import annotations

from ensemble_core.cli.control_requests import switch_command

enable = switch_command("enable")
