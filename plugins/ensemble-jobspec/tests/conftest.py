"""The surroundings of every test of jobspecs: a home of its own, and no setting from outside."""

from __future__ import annotations

from ensemble_testing.isolation import isolated

__all__ = ["isolated"]
