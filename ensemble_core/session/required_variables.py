"""Checks, before a run, the environment variables that jobs and webhooks require."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ensemble_core.errors import UsageError

if TYPE_CHECKING:
    from ensemble_core.model.ensemble import Ensemble


def webhook_errors(ensemble: Ensemble) -> list[UsageError]:
    """Return an error for each webhook whose environment variable is not set, has no safe URL, or
    is inherited by jobs. Jobs will not get the others.
    """
    from ensemble_core.model.notification_addresses import addresses, webhook_of
    from ensemble_core.plugin.executor import withhold

    found: dict[str, UsageError] = {}
    inherited = {name for group in ensemble.groups.values() for name in group.environment_from}
    for rule in ensemble.rules:
        flat = (each for action in rule.actions for each in action.flat())
        named = [addresses(each.options["to"]) for each in flat if each.name == "notify"]
        for hook in filter(None, (webhook_of(address) for one in named for address in one)):
            from ensemble_core.runtime.notifications import webhook_url

            name = hook[0]
            if name in inherited:
                found[name] = UsageError(
                    f"{name} contains the URL of a webhook, so jobs cannot inherit it",
                    where=rule.location,
                    cause="anyone who knows the URL can send messages in your name",
                    hint=f"remove {name} from 'environment_from', or use another variable there",
                    code="bad-value",
                )
                continue
            withhold((name,))
            try:
                webhook_url(name, os.environ)
            except ValueError as error:
                hint = f"export {name}=https://… in this shell and repeat the command"
                found[name] = UsageError(
                    str(error), where=rule.location, hint=hint, code="no-variable"
                )
    return [*found.values()]


def check_environment(ensemble: Ensemble, warn: Callable[[str], None] | None = None) -> None:
    """Raise :class:`UsageError` if jobs or webhooks need an environment variable that is missing.

    With ``warn``, a missing variable for a webhook causes only a warning.
    """
    for error in webhook_errors(ensemble):
        if warn is None:
            raise error
        warn(str(error))
    missing: dict[str, list[str]] = {}
    for group in ensemble.groups.values():
        for name in group.environment_from:
            if name not in os.environ:
                missing.setdefault(name, []).append(group.name)
    if missing:
        shown = (f"{name} (for {', '.join(groups)})" for name, groups in missing.items())
        raise UsageError(
            f"environment variables are not set: {', '.join(shown)}",
            cause="the job groups inherit them by 'environment_from'",
            hint=f"export {next(iter(missing))}=… in this shell and repeat the command",
            code="no-variable",
        )
