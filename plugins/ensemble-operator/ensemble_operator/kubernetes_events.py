"""Posts Kubernetes Events about Ensembles."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from typing import Any

from ensemble_operator.api import MERGE, Api, ApiError
from ensemble_operator.changes import Note
from ensemble_operator.crd_schema import GROUP, KIND, VERSION
from ensemble_operator.object_names import KINDS, MANAGER, Object, format_time

_MOST = 10_000
_log = logging.getLogger("ensemble.operator")


class Events:
    """Posts Events, and counts repeated ones. A failure to post is only logged."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._counts: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def tell(self, found: Object, notes: tuple[Note, ...], now: float) -> None:
        """Post what happened to an Ensemble."""
        for note in notes:
            await self._post_event(found["metadata"], note, format_time(now))

    async def _post_event(self, about: dict[str, Any], note: Note, when: str) -> None:
        namespace, name = about["namespace"], about["name"]
        _log.log(
            logging.WARNING if note.warning else logging.INFO,
            "%s/%s: %s: %s", namespace, name, note.reason, note.message,
        )  # fmt: skip
        text = "\0".join((about.get("uid", ""), note.reason, note.message))
        event = f"{name}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        path = KINDS["Event"].path(namespace)
        count = self._counts.get((namespace, event), 0) + 1
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event, "namespace": namespace},
            "involvedObject": {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": KIND,
                "name": name,
                "namespace": namespace,
                "uid": about.get("uid", ""),
            },
            "reason": note.reason,
            "message": note.message[:1000],
            "type": "Warning" if note.warning else "Normal",
            "source": {"component": MANAGER},
            "reportingComponent": MANAGER,
            "firstTimestamp": when,
            "lastTimestamp": when,
            "count": 1,
        }
        again = {"count": count, "lastTimestamp": when}
        try:
            if count == 1:
                try:
                    await self._api("POST", path, body)
                except ApiError as error:
                    if error.status != 409:
                        raise
                    await self._api(
                        "PATCH", f"{path}/{event}", {"lastTimestamp": when}, content_type=MERGE
                    )
            else:
                await self._api("PATCH", f"{path}/{event}", again, content_type=MERGE)
        except ApiError as error:
            _log.debug("Event not posted: %s", error)
        self._counts[(namespace, event)] = count
        if len(self._counts) > _MOST:
            self._counts.popitem(last=False)
