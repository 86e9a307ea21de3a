"""Reconcile loop: observes a custom resource, plans changes, and carries them out."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ensemble_operator.api import MERGE, Api, ApiError
from ensemble_operator.apply_changes import object_of, try_out, write
from ensemble_operator.cache import Cache, Key
from ensemble_operator.changes import (
    Change,
    Create,
    DryRun,
    Figures,
    Finalizer,
    Keys,
    Observed,
    Patch,
    Plan,
)
from ensemble_operator.crd_schema import KIND
from ensemble_operator.credential_issuance import make_secrets
from ensemble_operator.credential_renewal import VIEWER, needs_user, secret_names, value
from ensemble_operator.file_check import FileChecks, option_errors
from ensemble_operator.kubernetes_events import Events
from ensemble_operator.member_objects import token_secret
from ensemble_operator.object_names import HASH, KINDS, Object, content, seconds
from ensemble_operator.pod_state import ended_jobs, is_set_up, waits_since
from ensemble_operator.reconcile import empty_ensemble, files_of, plan
from ensemble_operator.resource import Ensemble, Reference, is_readable, read
from ensemble_operator.service_objects import address, tokens_secret
from ensemble_operator.service_polling import Target
from ensemble_operator.settings import Settings

#: In seconds: shortest and longest backoff; pause before a reconcile after a conflict.
_FIRST, _LAST, _SOON = 1.0, 300.0, 0.2
#: Key of the backoff after an interrupted reconcile, together with the path of the failed request.
#: A failure of a different request means progress, so it has a separate backoff.
_LOOK = "look"
#: Seconds between checks of Secrets while a pod that may need them is being set up.
_MOUNT = 10.0
#: Queries about why a pod or Job is stuck: seconds until the first and between two of them, and the
#: maximum number at a time.
_STUCK, _MOST_ASKED = 60.0, 4
_log = logging.getLogger("ensemble.operator")

Ask = Callable[[Key, Target], Awaitable["Mapping[str, Figures] | None"]]


@dataclass
class _EnsembleState:
    """State of one Ensemble that the loop remembers, such as Secrets and failed changes."""

    uid: str = ""
    secrets: dict[str, Object | None] = field(default_factory=dict)
    #: Times of the next checks.
    secrets_due: float = 0.0
    files: dict[Reference, str | None] = field(default_factory=dict)
    figures: Mapping[str, Figures] = field(default_factory=dict)
    written: float = 0.0
    ended: dict[str, float] = field(default_factory=dict)
    refused: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    tried: dict[tuple[str, str], str] = field(default_factory=dict)
    #: Messages about temporary rejections.
    words: dict[tuple[str, str], str] = field(default_factory=dict)
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: dict[str, str] = field(default_factory=dict)
    #: When to read Kubernetes' warnings again, and when the Secrets of waiting pods were checked.
    warnings_due: float = 0.0
    waited: float = 0.0
    #: By kind and name of a change's object: when to retry, and the number of failures.
    troubles: dict[tuple[str, str], tuple[float, int]] = field(default_factory=dict)
    target: Target | None = None


class Loop:
    """The loop of one process.

    The callback ``ask`` queries a service for its members' status. ``clock`` returns seconds since
    the epoch.
    """

    def __init__(
        self,
        api: Api,
        cache: Cache,
        settings: Settings,
        ask: Ask,
        *,
        flux: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
        workers: int = 8,
    ) -> None:
        self.api, self.cache, self.settings = api, cache, settings
        self.counts: Counter[str] = Counter()
        self._ask, self._flux, self._clock, self._chance = ask, flux, clock, chance
        self._workers = workers
        self._events = Events(api)
        self._checks = FileChecks()
        self._known: dict[Key, _EnsembleState] = {}
        self._waiting: asyncio.Queue[Key] = asyncio.Queue()
        self._queued: set[Key] = set()
        self._busy: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._when: dict[Key, float] = {}

    # -- scheduling -------------------------------------------------------------------------------

    def reconcile_soon(self, key: Key) -> None:
        """Reconcile an Ensemble soon."""
        if key in self._queued:
            return
        self._queued.add(key)
        if key not in self._busy:
            self._waiting.put_nowait(key)

    def reconcile_in(self, key: Key, seconds: float) -> None:
        """Reconcile an Ensemble in ``seconds`` seconds, or earlier."""
        loop = asyncio.get_running_loop()
        when = loop.time() + max(0.0, seconds)
        if key in self._timers and self._when[key] <= when:
            return
        self._drop_timer(key)
        self._when[key] = when
        self._timers[key] = loop.call_at(when, self._on_timer, key)

    def _on_timer(self, key: Key) -> None:
        self._drop_timer(key)
        self.reconcile_soon(key)

    def _drop_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        self._when.pop(key, None)
        if timer is not None:
            timer.cancel()

    def config_map(self, namespace: str, name: str) -> None:
        """Reconcile the Ensembles that use a changed ConfigMap."""
        for key, known in self._known.items():
            gone = [each for each in known.files if (key[0], each.name) == (namespace, name)]
            for each in gone:
                del known.files[each]
            if gone:
                self.reconcile_soon(key)

    async def run(self) -> None:
        """Reconcile Ensembles until cancelled."""
        workers = [asyncio.ensure_future(self._work()) for _ in range(self._workers)]
        workers.append(asyncio.ensure_future(self._poll_services()))
        try:
            await asyncio.gather(*workers)
        finally:
            for each in workers:
                each.cancel()
            for key in list(self._timers):
                self._drop_timer(key)

    async def _work(self) -> None:
        while True:
            key = await self._waiting.get()
            self._queued.discard(key)
            self._busy.add(key)
            try:
                await self._reconcile(key)
                self._clear_errors(key)
            except ApiError as error:
                _log.warning("%s/%s: %s", *key, error)
                self._postpone(key, (_LOOK, error.path), error)
            except Exception:
                _log.exception("cannot reconcile %s/%s", *key)
                self._postpone(key, (_LOOK, ""), ApiError(0, ""))
            finally:
                self._busy.discard(key)
                if key in self._queued:
                    self._waiting.put_nowait(key)

    def _clear_errors(self, key: Key) -> None:
        """Clear the errors of earlier, interrupted reconciles, after a complete one."""
        if key in self._known:
            troubles = self._known[key].troubles
            for what in [each for each in troubles if each[0] == _LOOK]:
                del troubles[what]

    # -- one reconcile ----------------------------------------------------------------------------

    async def _reconcile(self, key: Key) -> None:
        self.counts["reconciles"] += 1
        found = self.cache.ensembles.get(key)
        if found is None:
            self._known.pop(key, None)
            self._drop_timer(key)
            return
        known, uid = self._known.get(key), found["metadata"]["uid"]
        if known is None or known.uid != uid:  # deleted and created again at once
            known = self._known[key] = _EnsembleState(uid)
        ensemble = read(found) if is_readable(found) else None
        if ensemble is None and "deletionTimestamp" in found["metadata"]:
            ensemble = empty_ensemble(found)  # an invalid Ensemble can be deleted, too
        observed = await self._observe(key, known, ensemble)
        now = self._clock()
        planned = plan(found, observed, self.settings, now)
        found = await self._write_status(key, known, found, planned)
        if found is not None:
            await self._apply_changes(key, known, found, ensemble, planned)
            again = planned.again - now if planned.again is not None else self.settings.resync
            # Reconcile by then at the latest. The random part spreads out Ensembles that were
            # created together.
            spread = self.settings.resync * (0.5 + 0.5 * self._chance())
            self.reconcile_in(key, min(max(again, 0.1), spread))

    async def _observe(
        self, key: Key, known: _EnsembleState, ensemble: Ensemble | None
    ) -> Observed:
        if ensemble is None:
            return Observed()
        await self._read_secrets(key, known, ensemble)
        errors: dict[str, Any] = {}
        named: dict[str, Any] = {}
        for file in files_of(ensemble).values():
            text = await self._text(key, known, file) if isinstance(file, Reference) else file
            if text is not None:
                executor = "remote" if ensemble.outside else "minicluster"
                found = await asyncio.to_thread(self._checks.get, text, executor)
                errors[content(text)] = found.errors
                named[content(text)] = found.members
        for member in ensemble.members:
            digest = content(member.options)
            if digest not in known.options:
                found_errors = await asyncio.to_thread(option_errors, member.options)
                known.options[digest] = found_errors
        await self._read_warnings(key, known)
        target = self._target(ensemble, known)
        known.target = target if not ensemble.status.get("finishedAt") else None
        children = self.cache.children(key)
        known.ended = ended_jobs(children.values(), known.ended, self._clock())
        return Observed(
            children=children,
            pods=self.cache.pods(key),
            secrets=dict(known.secrets),
            files=dict(known.files),
            errors=errors,
            refused=dict(known.refused),
            tried=dict(known.tried),
            troubles={k: v for k, v in known.words.items() if k in known.troubles},
            named=named,
            options={m.name: known.options[content(m.options)] for m in ensemble.members},
            warnings=dict(known.warnings),
            flux=self._flux(),
            figures=known.figures,
            written=known.written,
            ended=dict(known.ended),
        )

    async def _read_secrets(self, key: Key, known: _EnsembleState, ensemble: Ensemble) -> None:
        """Read the Secrets from time to time. A watch would need permission to read all Secrets."""
        names = secret_names(ensemble)
        now = self._clock()
        waits = now - known.waited >= _MOUNT and any(map(is_set_up, self.cache.pods(key)))
        if now > known.secrets_due or waits:
            known.secrets.clear()
            known.waited = now
        gone = [e["name"] for e in ensemble.status.get("members") or () if e.get("minicluster")]
        names += [token_secret(ensemble, each) for each in gone]
        for name in dict.fromkeys(names):
            if name not in known.secrets or needs_user(ensemble, name, known.secrets[name]):
                known.secrets[name] = await self._get("Secret", key[0], name)
                # Spread out the checks of Ensembles that were created together.
                known.secrets_due = now + self.settings.secrets * (0.5 + self._chance())

    async def _read_warnings(self, key: Key, known: _EnsembleState) -> None:
        """Read the newest warning about each stuck pod or Job.

        Examples are the kubelet's warnings about volumes, and the controller's warnings about
        quotas.
        """
        now = self._clock()
        pods = [p for p in self.cache.pods(key) if waits_since(p) is not None]
        jobs = {(p["metadata"].get("labels") or {}).get("job-name") for p in self.cache.pods(key)}
        late = [p["metadata"]["name"] for p in pods if now - (waits_since(p) or now) >= _STUCK]
        for (kind, name), found in self.cache.children(key).items():
            made = seconds(found["metadata"].get("creationTimestamp"))
            if kind == "Job" and name not in jobs and made and now - made >= _STUCK:
                late.append(name)
        known.warnings = {name: each for name, each in known.warnings.items() if name in late}
        if not late or now < known.warnings_due:
            return
        known.warnings_due = now + _STUCK
        for name in late[:_MOST_ASKED]:
            only = {"fieldSelector": f"involvedObject.name={name},type=Warning"}
            items = (await self.api("GET", KINDS["Event"].path(key[0]), query=only))["items"]
            last = max(items, key=_event_time, default=None)
            if last is not None:
                known.warnings[name] = f"{last.get('reason')}: {last.get('message', '')}"[:1000]

    async def _get(self, kind: str, namespace: str, name: str) -> Object | None:
        try:
            found: Object = await self.api("GET", KINDS[kind].path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return {**found, "kind": kind}

    async def check_blocker(self, key: Key, kind: str, name: str) -> None:
        """Check whether a foreign object still blocks a name. Raises :class:`ApiError`."""
        found = await self._get(kind, key[0], name)
        if found is None:
            self.cache.forget(key, kind, name)
            self.reconcile_soon(key)
        else:
            self.cache.store_reply(key, kind, found)

    async def _text(self, key: Key, known: _EnsembleState, file: Reference) -> str | None:
        if file not in known.files:
            found = await self._get("ConfigMap", key[0], file.name)
            known.files[file] = ((found or {}).get("data") or {}).get(file.key)
        return known.files[file]

    def _target(self, ensemble: Ensemble, known: _EnsembleState) -> Target | None:
        secret = known.secrets.get(tokens_secret(ensemble))
        token, authority = value(secret, VIEWER), value(secret, "ca.crt")
        if not token or not authority:
            return None
        return Target(address(ensemble), ensemble.sidecar.port, token, authority)

    # -- carrying out plans -----------------------------------------------------------------------

    async def _write_status(
        self, key: Key, known: _EnsembleState, found: Object, planned: Plan
    ) -> Object | None:
        """Write the planned status. Return the Ensemble, or ``None`` if it is gone."""
        before = found.get("status") or {}
        if planned.status == before:
            return found
        patch = {**dict.fromkeys(before), **planned.status}
        path = KINDS[KIND].path(*key)
        # Not if it has changed: another operator may know more, such as the end of the run.
        same = {each: found["metadata"][each] for each in ("uid", "resourceVersion")}
        body = {"metadata": same, "status": patch}
        try:
            written: Object = await self.api("PATCH", f"{path}/status", body, content_type=MERGE)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            newer = await self._get(KIND, *key)
            if newer is not None:
                self.cache.store_reply(key, KIND, newer)
            self.reconcile_in(key, _SOON)
            return None
        self.counts["statuses"] += 1
        known.written = self._clock()
        self.cache.store_reply(key, KIND, written)
        await self._events.tell(found, planned.events, self._clock())
        return written

    async def _apply_changes(
        self,
        key: Key,
        known: _EnsembleState,
        found: Object,
        ensemble: Ensemble | None,
        planned: Plan,
    ) -> None:
        for change in planned.changes:
            what = object_of(change)
            until, _ = known.troubles.get(what, (0.0, 0))
            if until > self._clock():
                self.reconcile_in(key, until - self._clock())
                continue
            try:
                if isinstance(change, DryRun):
                    await self._try(key, known, change)
                elif isinstance(change, Keys):
                    assert ensemble is not None
                    await self._make_keys(key, known, ensemble)
                else:
                    await write(self.api, self.cache, key, change)
            except ApiError as error:
                self._failed(key, known, change, error)
                continue
            self.counts["changes"] += 1
            if what[0] == "Secret" and what[1]:  # not watched, so read it again
                known.secrets.pop(what[1], None)
            known.troubles.pop(what, None)
            known.words.pop(what, None)
            if change.note is not None:
                await self._events.tell(found, (change.note,), self._clock())
        if planned.changes:
            # Watches report the write too, but not if it changed nothing.
            self.reconcile_in(key, 0.5)

    async def _try(self, key: Key, known: _EnsembleState, change: DryRun) -> None:
        """Validate objects with dry runs, and remember the accepted ones."""
        for body in change.bodies:
            what = body["kind"], body["metadata"]["name"]
            digest = body["metadata"]["annotations"][HASH]
            try:
                await try_out(self.api, key, body, change.given)
            except ApiError as error:
                if error.status not in (400, 413, 422):
                    raise
                known.refused[what] = (digest, error.message)
            else:
                known.tried[what] = digest
        self.reconcile_soon(key)

    def _failed(self, key: Key, known: _EnsembleState, change: Change, error: ApiError) -> None:
        kind, name = what = object_of(change)
        if kind == "Secret":
            known.secrets.pop(name, None)
        # A JSON patch for an object that has changed in the meantime fails with 422.
        if error.status == 409 or (error.status == 422 and isinstance(change, Finalizer)):
            self.counts["conflicts"] += 1
            self.reconcile_in(key, _SOON * (1 + self._chance()))
        elif error.status == 404 and not isinstance(change, Create):
            self.cache.forget(key, kind, name)
            self.reconcile_in(key, _SOON)
        elif error.status in (400, 413, 422) and isinstance(change, (Create, Patch)):
            known.refused[what] = (change.body["metadata"]["annotations"][HASH], error.message)
            self.reconcile_soon(key)
        else:
            _log.warning("%s/%s: %s %s: %s", *key, kind, name, error)
            known.words[what] = error.message
            self._postpone(key, what, error)

    def _postpone(self, key: Key, what: tuple[str, str], error: ApiError) -> None:
        """Postpone the retry of ``what``, for longer after each failure."""
        self.counts["errors"] += 1
        known = self._known.setdefault(key, _EnsembleState())
        _, failed = known.troubles.get(what, (0.0, 0))
        pause = min(_LAST, _FIRST * 2.0**failed) * (0.5 + self._chance() / 2)
        pause = max(pause, min(error.after, _LAST))
        known.troubles[what] = (self._clock() + pause, min(failed + 1, 20))
        self.reconcile_in(key, pause)

    async def _make_keys(self, key: Key, known: _EnsembleState, ensemble: Ensemble) -> None:
        written = await asyncio.to_thread(
            make_secrets, ensemble, dict(known.secrets), self._clock()
        )
        for body in written:
            name = body["metadata"]["name"]
            path = KINDS["Secret"].path(key[0])
            try:
                old = known.secrets.get(name)
                if old is None:
                    found = await self.api("POST", path, body)
                else:
                    version = old["metadata"]["resourceVersion"]
                    notes = body["metadata"]["annotations"]
                    patch = {"metadata": {"annotations": notes, "resourceVersion": version}}
                    patch |= {"data": body["data"]}
                    found = await self.api("PATCH", f"{path}/{name}", patch, content_type=MERGE)
            except ApiError:
                known.secrets.pop(name, None)  # the Secrets are not in the expected state
                raise
            known.secrets[name] = {**found, "kind": "Secret"}

    # -- services ----------------------------------------------------------------------------------

    async def _poll_services(self) -> None:
        """Query every service about its members, at regular intervals."""
        asked: dict[Key, float] = {}
        under_way: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        while True:
            for key, known in list(self._known.items()):
                if known.target is not None and loop.time() >= asked.get(key, 0.0):
                    asked[key] = loop.time() + self.settings.ask * (0.9 + 0.2 * self._chance())
                    task = asyncio.ensure_future(self._poll_service(key, known, known.target))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
            for key in [key for key in asked if key not in self._known]:
                del asked[key]
            await asyncio.sleep(min(0.5, self.settings.ask / 4))

    async def _poll_service(self, key: Key, known: _EnsembleState, target: Target) -> None:
        found = await self._ask(key, target)
        if found is None:
            return
        before, known.figures = known.figures, found
        bare = [
            {
                name: (bool(each.beat), each.alive, each.gauges, each.groups, each.denied)
                for name, each in one.items()
            }
            for one in (before, found)
        ]
        was = [each.beat for each in before.values()]
        silent = any(self._clock() - beat > 60 for beat in was)
        if bare[0] != bare[1] or silent:
            self.reconcile_soon(key)


def _event_time(event: Mapping[str, Any]) -> tuple[str, int]:
    """Return when an Event last occurred, as a key for sorting.

    Times are often whole seconds. Of two Events in one second, the one written last is the newer.
    """
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    metadata = event["metadata"]
    when = next((each for each in times if each), metadata.get("creationTimestamp"))
    version = str(metadata.get("resourceVersion"))
    return str(when), int(version) if version.isdecimal() else 0
