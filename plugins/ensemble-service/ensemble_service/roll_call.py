"""Roll call at the start of a run: waits for the service and for the members that the run needs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from functools import partial

from ensemble_core import ExecutorError
from ensemble_service.membership import Membership, join_names, no_such_member, similar_name
from ensemble_service.service_presence import ServicePresence

#: Seconds to wait for the service at the start.
_WELCOME = 5.0
#: Seconds to wait for named members: slightly longer than they take to reconnect to a restarted
#: service.
_COMING = 8.0

_log = logging.getLogger("ensemble.remote")


class RollCall:
    """A roll call in progress. Callers must hold the lock of the condition ``news``."""

    def __init__(
        self,
        service: ServicePresence,
        membership: Membership,
        namespace: str,
        news: threading.Condition,  # notified when the service or a member comes or goes
    ) -> None:
        self._service = service
        self._membership = membership
        self._namespace = namespace
        self._news = news

    def take(self, wanted: Collection[str], default: str | None, need: bool) -> str | None:
        """Wait for the members ``wanted`` and for a default member; return the default member's
        name.

        A default member is required only if ``default`` names it or ``need`` is set. An absent
        member delays only its own jobs. Raises :class:`EnsembleError` if all wanted members are
        absent, or if the name of an absent member looks misspelled.
        """
        service, resumed = self._service, self._membership.resumed
        self._news.wait_for(lambda: service.answered, _WELCOME)
        if not service.welcome:
            raise service.unreachable(self._membership.run)
        need = need or not wanted
        if not resumed:
            self._wait(wanted, default, need)
        if default is None:
            default = self._choose_default(need)
        names = {*wanted} if default is None else {*wanted, default}
        absent = sorted(names - service.members)
        if absent and not resumed:
            if not service.welcome:  # the connection was lost while waiting for members
                raise service.unreachable(self._membership.run)
            there = service.members - names
            if not names & service.members or any(map(partial(similar_name, there=there), absent)):
                raise no_such_member(absent, service.members, service.target, self._namespace)
            _log.warning(
                "some members are not connected to the service at %s: %s; their jobs wait for "
                "them, other jobs start (connected: %s)",
                service.target,
                join_names(absent),
                join_names(sorted(service.members)),
            )
        return default

    def _present_members(self) -> list[str]:
        prefix = f"{self._namespace}/"
        return sorted(name for name in self._service.members if name.startswith(prefix))

    def _wait(self, wanted: Collection[str], default: str | None, need: bool) -> None:
        """Wait for the members. They reconnect within seconds after a restart of the service."""
        names = {*wanted} if default is None else {*wanted, default}

        def awaited() -> list[str]:
            absent = [f"member {name}" for name in sorted(names - self._service.members)]
            if default is None and need and not self._present_members():
                absent.append(f"a member of {self._namespace}")
            return absent

        absent = awaited()
        if absent:
            _log.warning(
                "waiting up to %g s for %s to connect to the service at %s",
                _COMING,
                join_names(absent),
                self._service.target,
            )
            self._news.wait_for(lambda: not awaited(), _COMING)

    def _choose_default(self, need: bool) -> str | None:
        """Choose the member for jobs that name none, if no option has chosen it."""
        if self._membership.default is not None:
            return self._membership.default
        if not need:
            return None
        there = self._present_members()
        if len(there) == 1:
            self._membership.default = there[0]
            return there[0]
        if not there:
            if not self._service.welcome:
                raise self._service.unreachable(self._membership.run)
            raise no_such_member([], self._service.members, self._service.target, self._namespace)
        raise ExecutorError(
            "no default member for job groups without 'executor': several members are connected",
            cause=f"connected in {self._namespace}: {join_names(there)}",
            hint=f"choose a default: --option default={there[0].partition('/')[2]}",
            code="no-default",
        )
