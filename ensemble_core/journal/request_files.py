"""Requests to a live run, as files in its folder.

A command writes ``requests/NUMBER.json`` and waits for ``NUMBER.answer``; the run's controller, on
any machine, polls for them (:class:`RequestInbox`). A request is removed before it is carried out,
so it is carried out at most once.
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
from ensemble_core.journal.filesystem import read_note
from ensemble_core.journal.run_store import Lock, look
from ensemble_core.model.decisions import Decision

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["RequestInbox", "ask", "forget_requests", "leave_request", "requester"]

_FOLDER = "requests"
_LARGEST = 1_000_000
#: Seconds between looks for an answer.
_LOOK = 0.1

#: Hands an action and who asks for it to the run: see ``Runtime.request``.
Request = Callable[[Mapping[str, Any], str], "Future[tuple[Decision, ...]]"]


def ask(folder: Path, action: Mapping[str, Any], by: str) -> list[dict[str, Any]]:
    """Ask the run in this folder for an action, and wait; what was decided, as plain data.

    Raises :class:`UsageError` where no controller has the run or the request is refused.
    """
    lock = Lock(folder)
    if lock.controller() is None:
        raise _not_under_way(folder)
    name = f"{time.time_ns():020d}-{os.urandom(4).hex()}"
    question, answer = (folder / _FOLDER / f"{name}.{kind}" for kind in ("json", "answer"))
    try:
        question.parent.mkdir(mode=0o700, exist_ok=True)
        _write(question, {"by": by, "action": dict(action)})
    except OSError as error:
        raise EnsembleError(
            f"run {folder.name} cannot be asked", cause=error.strerror, code="unwritable"
        ) from error
    try:
        while True:
            gone = lock.controller() is None  # asked first: what it wrote before is read after
            if answer.exists():
                return _read_answer(answer)
            if gone:
                raise _not_under_way(folder)
            time.sleep(_LOOK)
    finally:
        for path in (question, answer):
            path.unlink(missing_ok=True)


def _not_under_way(folder: Path) -> UsageError:
    info = look(folder)
    what = f"run {folder.name} is not under way: no controller has it"
    if info.state == "ended":
        what = f"run {folder.name} has ended, with exit code {info.exit_code}"
        hint = "'ensemble run' starts it anew"
    else:
        hint = f"'ensemble resume {folder.name}' goes on with it"
    return UsageError(what, hint=hint, code="not-under-way")


def _write(path: Path, data: Mapping[str, Any]) -> None:
    """Write a file that is there as a whole or not at all."""
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    # Use a new file: opening a named pipe would block until it has a reader.
    with open(part, "x", encoding="utf-8") as file:
        file.write(json.dumps(data))
    os.replace(part, path)


def _read_answer(path: Path) -> list[dict[str, Any]]:
    told: dict[str, Any] = json.loads(read_note(path, 1 << 30))
    if "error" in told:
        error = told["error"]
        raise UsageError(
            error["what"], cause=error.get("cause"), hint=error.get("hint"), code=error["code"]
        )
    decided: list[dict[str, Any]] = told["decided"]
    return decided


def forget_requests(folder: Path) -> None:
    """Removes the requests to an earlier controller, so that a later one does not act on them."""
    with contextlib.suppress(OSError):
        for path in (folder / _FOLDER).iterdir():
            path.unlink(missing_ok=True)


def requester() -> str:
    """The user who runs this program, and the machine, as the run's controller tells it."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user} on {socket.gethostname()}"


def leave_request(folder: Path, *names: str, word: str | None = None) -> None:
    """Ask the run's controller to stop, end or leave the run, by files of these names in its
    folder. They say who asks, or this word instead.

    Raises :class:`EnsembleError` where they cannot be written.
    """
    try:
        for name in names:
            (folder / name).write_text(f"{word or requester()}\n", encoding="utf-8")
    except OSError as error:
        raise EnsembleError(
            f"run {folder.name} cannot be told to stop",
            cause=error.strerror,
            hint="send its controller SIGTERM: 'ensemble status' says where it is",
            code="unwritable",
        ) from error


class RequestInbox:
    """Requests to a run, read by its controller: to be called periodically."""

    def __init__(self, folder: Path, request: Request) -> None:
        self._folder = folder / _FOLDER
        self._request = request
        self._open: list[tuple[Path, Future[tuple[Decision, ...]]]] = []

    def __call__(self) -> None:
        """Take what is new, and answer what has been carried out."""
        with contextlib.suppress(OSError):  # mostly: there is no such folder
            for path in sorted(self._folder.glob("*.json")):
                # One that cannot be removed must not block the others.
                with contextlib.suppress(OSError):
                    self._take(path)
        if self._open:  # mostly it takes no longer than that
            with contextlib.suppress(Exception):
                self._open[-1][1].exception(timeout=_LOOK)
        for item in [item for item in self._open if item[1].done()]:
            self._open.remove(item)
            self._answer(*item)

    def _take(self, path: Path) -> None:
        answer = path.with_suffix(".answer")
        try:
            text = read_note(path, _LARGEST + 1)
            if len(text) > _LARGEST:
                raise ValueError("it is too large")
            asked = json.loads(text)
            action, by = asked["action"], str(asked["by"])
            if not isinstance(action, dict):
                raise TypeError("its action is no mapping")
        except FileNotFoundError:
            return  # the requester has exited
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            path.unlink(missing_ok=True)
            self._say(answer, UsageError(f"it cannot be read: {error}", code="bad-request"))
            return
        path.unlink()
        self._open.append((answer, self._request(action, by)))

    def _answer(self, path: Path, done: Future[tuple[Decision, ...]]) -> None:
        error = done.exception()
        if error is not None and not isinstance(error, EnsembleError):
            error = EnsembleError("the run failed to carry it out", cause=repr(error))
        self._say(path, error, () if error is not None else done.result())

    @staticmethod
    def _say(path: Path, error: EnsembleError | None, decided: Sequence[Decision] = ()) -> None:
        told = {"decided": [each.to_dict() for each in decided]}
        with contextlib.suppress(OSError):  # the requester no longer waits
            _write(path, told if error is None else {"error": error.to_dict()})
