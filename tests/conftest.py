"""What every test of the core may count on: a home of its own, and no setting from outside."""

from __future__ import annotations

from hypothesis import settings

from ensemble_core.testing.isolation import isolated

__all__ = ["isolated"]

# A verdict does not depend on how fast the machine is.
settings.register_profile("any-speed", deadline=None)
settings.load_profile("any-speed")
