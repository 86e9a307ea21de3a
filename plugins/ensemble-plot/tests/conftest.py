"""What every test of the plots may count on: a home of its own, and no setting from outside."""

from __future__ import annotations

from ensemble_testing.isolation import isolated

__all__ = ["isolated"]
