"""Fixture: a temporary home folder, and no settings of the user."""

from __future__ import annotations

from ensemble_testing.isolation import isolated

__all__ = ["isolated"]
