"""What every test of jobspecs may count on: a home of its own, and no setting from outside."""

from __future__ import annotations

from ensemble_core.testing.isolation import isolated

__all__ = ["isolated"]
