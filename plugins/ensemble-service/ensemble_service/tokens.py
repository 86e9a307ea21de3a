"""File of the tokens that authenticate callers of the service.

The file contains only hashes (SHA-256). The token itself is shown once, when it is created.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from ensemble_core import EnsembleError, UsageError, private_folder
from ensemble_service.access import (
    Identity,
    Role,
    Unauthenticated,
    member_name,
    namespace_name,
    shown,
)
from ensemble_service.state_folder import write_atomically

#: Format of a token. A token contains the id of its entry in the file, so that only one hash must
#: be compared.
_TOKEN = re.compile(r"ensemble-([0-9a-f]{8})-([A-Za-z0-9_-]{43})")
_VERSION = 1
#: Seconds between checks for changes of the file.
_GLANCE = 0.2
_LARGEST = 16_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Hash, role and validity of one token. Times are in seconds since the epoch."""

    id: str
    role: Role
    namespace: str
    member: str | None
    sha256: str
    created: float
    expires: float = 0.0  # 0: never

    @property
    def identity(self) -> Identity:
        return Identity(self.role, self.namespace, self.member, self.id)

    def expired(self, now: float) -> bool:
        """Return whether the token has expired."""
        return bool(self.expires) and now >= self.expires


class TokenFile:
    """The tokens of a service, in the file ``path`` (mode 0600, replaced atomically).

    A running service notices when another process calls ``add`` or ``remove``. If the file becomes
    unreadable, the tokens read before stay valid, and ``trouble`` says why.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.trouble = ""
        self._clock = clock
        self._tokens: Mapping[str, Token] = {}
        self._seen: tuple[int, ...] | None = None
        self._next_glance = 0.0

    # -- used by the service --------------------------------------------------------------------

    def identify(self, text: str) -> Identity:
        """Return the identity for a token.

        Raises :class:`Unauthenticated`, whose message never quotes the token.
        """
        now = self._clock()
        self._refresh()
        match = _TOKEN.fullmatch(text)
        token, right = self._compare(text, match)
        if not right and match is not None and not self.trouble:
            self._next_glance = 0.0  # the token may have just been created
            self._refresh()
            token, right = self._compare(text, match)
        if match is None:
            raise Unauthenticated(
                "not a token of the ensemble service",
                cause="tokens begin with 'ensemble-'",
                hint="create a token with 'ensemble-server token add'",
                code="bad-token",
            )
        if token is None or not right:
            raise Unauthenticated(
                "the token is wrong or was removed",
                hint="list the tokens with 'ensemble-server token list'",
                code="wrong-token",
            )
        if token.expired(now):
            raise Unauthenticated(
                f"the token {token.id} has expired",
                cause=f"it was valid until {_format_time(token.expires)}",
                hint="create a new token with 'ensemble-server token add'",
                code="expired-token",
            )
        return token.identity

    def _compare(self, text: str, match: re.Match[str] | None) -> tuple[Token | None, bool]:
        token = self._tokens.get(match[1]) if match else None
        # Always compare, so that the time taken does not reveal which ids exist.
        return token, hmac.compare_digest(_digest(text), token.sha256 if token else "0" * 64)

    def stands(self, identity: Identity) -> bool:
        """Return whether this identity's token is still valid. Used for long-lived connections."""
        self._refresh()
        token = self._tokens.get(identity.id)
        return token is not None and not token.expired(self._clock()) and token.identity == identity

    def _refresh(self) -> None:
        """Reread the file if it has changed. Checks at most once per :data:`_GLANCE` seconds."""
        now = time.monotonic()
        if now < self._next_glance:
            return
        self._next_glance = now + _GLANCE
        try:
            seen = _mark(os.stat(self.path))
        except FileNotFoundError:
            seen = ()
        except OSError as error:
            self.trouble = f"{self.path}: {error.strerror}"
            self._seen = None
            return
        if seen == self._seen:
            return
        try:
            self._tokens = self._read()
        except EnsembleError as error:
            # Retry at the next check even if the file does not change again: the problem may have
            # another cause (such as too many open files), and a removed token must not stay valid.
            self.trouble = f"{error.what}: {error.cause}"
            self._seen = None
        else:
            self.trouble = ""
            self._seen = seen

    # -- used by the command line ---------------------------------------------------------------

    def tokens(self) -> list[Token]:
        """Return all tokens, oldest first. Raise :class:`EnsembleError` if the file cannot be
        read.
        """
        return sorted(self._read().values(), key=lambda token: (token.created, token.id))

    def add(
        self, role: Role, name: str = "", *, expires: float = 0.0, text: str | None = None
    ) -> tuple[str, Token]:
        """Create a token. Return it in clear text and as stored.

        - ``name``: for the role ``member``, the member; for ``controller`` and ``viewer``, the
          namespace; for ``admin``, empty
        - ``expires``: seconds since the epoch; 0 means never
        - ``text``: an existing token in clear text to accept (again); if it does not have this
          service's format, a new token replaces it
        """
        member = member_name(name) if role == "member" else None
        namespace = (
            member.partition("/")[0] if member else "" if role == "admin" else namespace_name(name)
        )
        with self._write_lock():
            tokens = self._read()
            match = _TOKEN.fullmatch(text or "")
            ident = match[1] if match else secrets.token_hex(4)
            while match is None and ident in tokens:
                ident = secrets.token_hex(4)
            if match is None or text is None:
                text = f"ensemble-{ident}-{secrets.token_urlsafe(32)}"
            token = Token(
                id=ident,
                role=role,
                namespace=namespace,
                member=member,
                sha256=_digest(text),
                created=self._clock(),
                expires=expires,
            )
            self._write({**tokens, ident: token})
        return text, token

    def remove(self, ident: str) -> Token:
        """Remove a token. Later calls with it are rejected."""
        with self._write_lock():
            tokens = self._read()
            if ident not in tokens:
                raise UsageError(
                    f"no token with the ID {shown(ident)}",
                    hint="see the IDs with 'ensemble-server token list'",
                    code="no-such-token",
                )
            token = tokens.pop(ident)
            self._write(tokens)
        return token

    # -- the file -------------------------------------------------------------------------------

    def _read(self) -> dict[str, Token]:
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    raise self._file_error(
                        "other users can write to this file", f"chmod 600 {self.path}"
                    )
                data = file.read(_LARGEST + 1)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._file_error(error.strerror or str(error)) from None
        try:
            if len(data) > _LARGEST:
                raise ValueError(f"the file is larger than {_LARGEST} bytes")
            document = json.loads(data)
            if document["version"] != _VERSION:
                version = document["version"]
                raise ValueError(f"the file has version {version!r}, expected {_VERSION}")
            return {token.id: token for token in map(_read_entry, document["tokens"])}
        except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
            words = f"the file has no {error}" if isinstance(error, KeyError) else str(error)
            raise self._file_error(words) from None

    def _file_error(self, cause: str, hint: str | None = None) -> EnsembleError:
        return UsageError(
            f"cannot use the file of tokens {self.path}",
            cause=cause,
            hint=hint,
            code="bad-token-file",
        )

    def _write(self, tokens: Mapping[str, Token]) -> None:
        document = {"version": _VERSION, "tokens": [asdict(token) for token in tokens.values()]}
        write_private(self.path, json.dumps(document, indent=1).encode() + b"\n")
        self._seen, self._next_glance = None, 0.0

    @contextlib.contextmanager
    def _write_lock(self) -> Iterator[None]:
        """Hold the writers' lock. The lock is a separate file, because the file of tokens is
        replaced.
        """
        try:
            private_folder(self.path.parent)
            lock = os.open(f"{self.path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._file_error(error.strerror or str(error)) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def write_private(path: Path, data: bytes) -> None:
    """Write ``data`` atomically to a file that only its owner can read."""
    try:
        write_atomically(path, data)
    except OSError as error:
        raise EnsembleError(
            f"cannot write {path}", cause=error.strerror or str(error), code="cannot-write"
        ) from None


def _read_entry(data: Any) -> Token:
    """Return a validated entry of the file."""
    token = Token(**data)
    if token.role not in get_args(Role):
        raise ValueError(f"a token has the unknown role {token.role!r}")
    if not re.fullmatch(r"[0-9a-f]{8}", token.id) or not re.fullmatch(
        r"[0-9a-f]{64}", token.sha256
    ):
        raise ValueError("a token has an invalid 'id' or 'sha256'")
    if not all(type(each) in (int, float) for each in (token.created, token.expires)):
        raise ValueError("'created' or 'expires' of a token is not a number")
    if (token.role == "member") != (token.member is not None):
        raise ValueError(
            "a token with the role 'member' needs the key 'member'; tokens with other roles must "
            "not have this key"
        )
    if token.member is not None and member_name(token.member) != token.member:
        raise ValueError(f"a token has the member {token.member!r}, expected NAMESPACE/NAME")
    if token.member is not None and token.member.partition("/")[0] != token.namespace:
        raise ValueError(
            f"the token of {token.member!r} has the namespace {token.namespace!r}, expected "
            f"{token.member.partition('/')[0]!r}"
        )
    if token.role == "admin" and token.namespace:
        raise ValueError("a token with the role 'admin' must not have a namespace")
    if token.role != "admin":
        namespace_name(token.namespace)
    return token


def _mark(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
