"""Fixtures of the simulation tests: a separate home folder, and no settings from outside."""

from __future__ import annotations

from ensemble_testing.isolation import isolated

__all__ = ["isolated"]
