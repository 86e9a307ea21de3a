"""Passes requests to a live run as files in its folder: actions, a stop, the end of the run.

A command writes ``requests/NUMBER.json`` and waits for ``NUMBER.answer``. The controller removes
the file before it carries out the request, so no request is carried out twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ensemble_core.errors import EnsembleError, UsageError
from ensemble_core.journal.lock import Lock, is_suspended
from ensemble_core.journal.run_folder import HALT, LEAVE, STOP, read_note, require_own
from ensemble_core.journal.run_state import read_info
from ensemble_core.model.decisions import Decision

if TYPE_CHECKING:
    from concurrent.futures import Future

_FOLDER = "requests"
_LARGEST = 1_000_000
#: Seconds between two polls for an answer.
_LOOK = 0.1

#: Function that requests an action on behalf of a user. See ``Runtime.request``.
Request = Callable[[Mapping[str, Any], str], "Future[tuple[Decision, ...]]"]


def ask(
    folder: Path, action: Mapping[str, Any], by: str, waiting: Callable[[], object] = bool
) -> list[dict[str, Any]]:
    """Request an action from the run in this folder, and return the resulting decisions.

    ``waiting`` is called periodically until there is an answer. Raises :class:`EnsembleError` if
    the run belongs to another user, has no controller, one that is suspended or one that exits
    without an answer, or rejects the request.
    """
    require_own(folder)
    lock = Lock(folder)
    controller = lock.controller()
    if controller is None:
        raise _not_live(folder)
    _require_active(folder, controller)
    name = f"{time.time_ns():020d}-{os.urandom(4).hex()}"
    question, answer = (folder / _FOLDER / f"{name}.{kind}" for kind in ("json", "answer"))
    try:
        question.parent.mkdir(mode=0o700, exist_ok=True)
        _write(question, json.dumps({"by": by, "action": dict(action)}))
    except OSError as error:
        raise EnsembleError(
            f"cannot write a request file into the folder of run {folder.name}",
            cause=error.strerror,
            code="unwritable",
        ) from error
    try:
        while True:
            now = lock.controller()  # before reading the answer
            waiting()
            if answer.exists():
                return _read_answer(answer)
            if now is None and question.exists():
                raise _not_live(folder)
            if now != controller:
                raise _unanswered(folder)
            time.sleep(_LOOK)
    finally:
        for path in (question, answer):
            path.unlink(missing_ok=True)


def _require_active(folder: Path, controller: Mapping[str, Any] | None) -> None:
    """Raise :class:`EnsembleError` if the controller is suspended, because it would not answer."""
    if controller is None or not is_suspended(controller):
        return
    pid = controller["pid"]
    raise EnsembleError(
        f"the controller of run {folder.name} is suspended: process {pid} on {controller['host']}",
        cause="a signal has stopped it, as Ctrl-Z does",
        hint=f"continue it: 'fg' in its shell, or 'kill -CONT {pid}'; then repeat this command",
        code="suspended",
    )


def _not_live(folder: Path) -> UsageError:
    info = read_info(folder)
    what = f"run {folder.name} is not live: it has no controller"
    if info.state == "ended":
        what = f"run {folder.name} has ended, with exit code {info.exit_code}"
        hint = (
            "add what is missing to its file, then 'ensemble resume RUN --accept-changes'; "
            "'ensemble retry RUN' runs failed jobs again"
        )
    else:
        hint = f"'ensemble resume {folder.name}' resumes it"
    return UsageError(what, hint=hint, code="not-under-way")


def _unanswered(folder: Path) -> EnsembleError:
    return EnsembleError(
        f"the controller of run {folder.name} exited before it answered the request",
        cause="it may have carried out the request",
        hint=f"'ensemble events {folder.name}' shows the requests that were carried out",
        code="not-under-way",
    )


def _write(path: Path, text: str) -> None:
    """Write a file atomically. A link or a named pipe in its place is replaced, never opened."""
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    with open(part, "x", encoding="utf-8") as file:  # O_EXCL does not follow links
        file.write(text)
    os.replace(part, path)


def _read_answer(path: Path) -> list[dict[str, Any]]:
    answer: dict[str, Any] = json.loads(read_note(path, 1 << 30))
    if "error" in answer:
        error = answer["error"]
        raise UsageError(
            error["what"], cause=error.get("cause"), hint=error.get("hint"), code=error["code"]
        )
    decided: list[dict[str, Any]] = answer["decided"]
    return decided


def forget_requests(folder: Path) -> None:
    """Remove requests to an earlier controller, so that the next one ignores them."""
    with contextlib.suppress(OSError):
        for path in (folder / _FOLDER).iterdir():
            path.unlink(missing_ok=True)


def requester() -> str:
    """Return the user and the machine, as text for the origin of a request."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user} on {socket.gethostname()}"


def post_request(folder: Path, *names: str, word: str | None = None) -> None:
    """Request that the controller stops, ends or leaves the run.

    This writes the files ``names`` into the run's folder, for example ``run_folder.STOP``. They
    contain ``word``, or else the user's name. Raises :class:`EnsembleError` if the run belongs to
    another user, the controller is suspended, or the files cannot be written.
    """
    require_own(folder)
    _require_active(folder, Lock(folder).controller())
    try:
        for name in names:
            _write(folder / name, f"{word or requester()}\n")
    except OSError as error:
        raise EnsembleError(
            f"cannot ask the controller of run {folder.name} to stop",
            cause=error.strerror,
            hint="send SIGTERM to the controller; 'ensemble status' shows its process",
            code="unwritable",
        ) from error


def end_requester(folder: Path) -> str | None:
    """Return the user who has requested the end of this run, or ``None``."""
    return _requester_in(folder / STOP)


def stop_requester(folder: Path) -> str | None:
    """Return the user who has requested a stop of this run, or ``None``."""
    return _requester_in(folder / HALT)


def _requester_in(file: Path) -> str | None:
    try:
        return read_note(file).decode().strip() or "unknown user"
    except (OSError, ValueError):
        return None


def is_leave_requested(folder: Path) -> bool:
    """Return True if the controller should not wait for jobs that cannot be cancelled now."""
    return os.path.exists(folder / LEAVE)


class RequestInbox:
    """Inbox for requests to a run. The controller calls it periodically."""

    def __init__(self, folder: Path, request: Request) -> None:
        self._folder = folder / _FOLDER
        self._request = request
        self._open: list[tuple[Path, Future[tuple[Decision, ...]]]] = []

    def __call__(self) -> None:
        """Accept new requests, and answer those that are done."""
        with contextlib.suppress(OSError):  # usually, the folder does not exist
            for path in sorted(self._folder.glob("*.json")):
                # A request that cannot be removed must not block others.
                with contextlib.suppress(OSError):
                    self._handle_file(path)
        if self._open:  # most requests are done at once
            with contextlib.suppress(Exception):
                self._open[-1][1].exception(timeout=_LOOK)
        for item in [item for item in self._open if item[1].done()]:
            self._open.remove(item)
            self._answer(*item)

    def _handle_file(self, path: Path) -> None:
        answer = path.with_suffix(".answer")
        try:
            text = read_note(path, _LARGEST + 1)
            if len(text) > _LARGEST:
                raise ValueError(f"the request file has more than {_LARGEST} bytes")
            request = json.loads(text)
            action, by = request["action"], str(request["by"])
            if not isinstance(action, dict):
                raise TypeError("'action' is not a mapping")
        except FileNotFoundError:
            return  # the process that made the request has exited
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            path.unlink(missing_ok=True)
            self._write_answer(
                answer, UsageError(f"the request cannot be read: {error}", code="bad-request")
            )
            return
        path.unlink()
        self._open.append((answer, self._request(action, by)))

    def _answer(self, path: Path, done: Future[tuple[Decision, ...]]) -> None:
        error = done.exception()
        if error is not None and not isinstance(error, EnsembleError):
            error = EnsembleError("the run failed to carry out the request", cause=repr(error))
        self._write_answer(path, error, () if error is not None else done.result())

    @staticmethod
    def _write_answer(
        path: Path, error: EnsembleError | None, decided: Sequence[Decision] = ()
    ) -> None:
        answer = {"decided": [each.to_dict() for each in decided]}
        with contextlib.suppress(OSError):  # the process that made the request no longer waits
            _write(path, json.dumps(answer if error is None else {"error": error.to_dict()}))
