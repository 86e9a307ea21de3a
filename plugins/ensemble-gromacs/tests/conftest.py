"""Fixtures of the tests: a temporary home folder and no user settings."""

from __future__ import annotations

from ensemble_testing.isolation import isolated

__all__ = ["isolated"]
