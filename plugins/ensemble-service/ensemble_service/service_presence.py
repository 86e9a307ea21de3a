"""Tracks a run's connection to the service, and the connected members."""

from __future__ import annotations

from ensemble_core import EnsembleError, ExecutorError, Run, UsageError
from ensemble_service.call_errors import MISMATCHED
from ensemble_service.membership import takeover_error

#: Seconds without the service until the run is warned.
_AWAY = 5.0


class ServicePresence:
    """Connection of a run to the service at ``target``."""

    def __init__(self, target: str) -> None:
        self.target = target
        #: Connected members; empty while the run is disconnected.
        self.members: set[str] = set()
        #: Whether the run is connected.
        self.welcome = False
        self._trouble: EnsembleError | None = None
        self._away_since: float | None = None
        self._told_away = False

    @property
    def there(self) -> bool:
        """Return True unless the connection to the service is lost."""
        return self._away_since is None

    @property
    def answered(self) -> bool:
        """Return True if the service is connected, or if waiting for it is useless."""
        trouble = self._trouble
        lasting = trouble is not None and (not trouble.transient or trouble.code in MISMATCHED)
        return self.welcome or lasting

    def connected(self) -> str | None:
        """Handle a connection. Return a message to report, if any."""
        self.welcome, self._trouble, self._away_since = True, None, None
        told, self._told_away = self._told_away, False
        return f"the service at {self.target} is back" if told else None

    def disconnected(self, error: EnsembleError, now: float) -> None:
        """Handle the loss of the connection at ``now`` (monotonic seconds)."""
        self.welcome, self._trouble = False, error
        if self._away_since is None:
            self._away_since = now
        self.members.clear()

    def lasting_absence(self, now: float) -> str | None:
        """Return a warning, once, if the service has been unavailable for long."""
        if self._away_since is None or now - self._away_since <= _AWAY or self._told_away:
            return None
        self._told_away = True
        cause = self._trouble.cause or self._trouble.what if self._trouble else ""
        return (
            f"the service at {self.target} is unavailable: jobs continue; the run continues when "
            f"the service is available again{f' ({cause})' if cause else ''}"
        )

    def unreachable(self, run: Run) -> EnsembleError:
        """Return the error that ends a run if the service cannot be reached at the start."""
        trouble = self._trouble
        if isinstance(trouble, UsageError):
            return trouble
        if trouble is None:
            return ExecutorError(
                f"the service at {self.target} cannot be reached",
                cause="it does not answer",
                hint="check that it is running; start one with 'ensemble-server start'",
                code="unavailable",
                transient=True,
            )
        if trouble.code == "failed-precondition":
            return takeover_error(run)
        return ExecutorError(
            trouble.what,
            cause=trouble.cause,
            hint=trouble.hint,
            code=trouble.code,
            transient=trouble.transient,
        )
