"""Authorization: the roles, what each role may do, and the names of members."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ensemble_core import EnsembleError, Run, UsageError

Role = Literal["member", "controller", "viewer", "admin"]

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,216}")


def namespace_name(text: str) -> str:
    """Return ``text`` if it is a valid namespace (an RFC 1123 label).

    Otherwise raises :class:`UsageError`.
    """
    return _label(text, "namespace", text)


def member_name(text: str) -> str:
    """Return a member's full name, ``NAMESPACE/NAME``; a bare ``NAME`` is in ``default``.

    Raises :class:`UsageError` for an invalid name.
    """
    namespace, slash, name = text.partition("/")
    if not slash:
        namespace, name = "default", text
    if "/" in name:
        raise UsageError(
            f"invalid member name {shown(text)}",
            cause="it has more than one slash",
            hint="write NAMESPACE/NAME, or NAME for a member in 'default'",
            code="bad-member",
        )
    return f"{_label(namespace, 'member', text)}/{_label(name, 'member', text)}"


def run_name(run: Run) -> str:
    """Return a run's name at the service and at members: its tag, for people, and its identity.

    Two runs may have the same tag.
    """
    return f"{run.tag}.{run.id}"


def is_run_name(text: str) -> bool:
    """Return whether a text is a valid run name. Members use it as a folder name."""
    return _RUN.fullmatch(text) is not None


def runs_named(text: str, names: Iterable[str]) -> list[str]:
    """Return the run with this name, or all runs with this tag."""
    found = [name for name in names if text in (name, name.rpartition(".")[0])]
    return [text] if text in found else found


def _label(part: str, what: str, whole: str) -> str:
    if _LABEL.fullmatch(part):
        return part
    if not part:
        cause = "a part of it is empty" if whole else "it is empty"
    elif len(part) > 63:
        cause = f"a part of it has {len(part)} characters; the limit is 63"
    else:
        cause = "use only a-z, 0-9 and '-', and no '-' at either end"
    raise UsageError(
        f"invalid {what} name {shown(whole)}",
        cause=cause,
        hint="write NAMESPACE/NAME, or NAME for a member in 'default'"
        if what == "member"
        else "for example: default",
        code=f"bad-{what}",
    )


def shown(text: str) -> str:
    """Return a caller's text quoted and shortened, for error messages."""
    return repr(text if len(text) <= 140 else text[:137] + "...")


@dataclass(frozen=True, slots=True)
class Identity:
    """The sender of a call, and what the sender may do."""

    role: Role
    namespace: str  # empty for an admin
    member: str | None = None  # full name, if the sender is a member
    id: str = ""  # of the token, for logs

    def __str__(self) -> str:
        whom = self.member or self.namespace
        return f"{self.role} {whom}" if whom else self.role

    def may_be(self, member: str) -> bool:
        """Return whether the identity may connect as ``member``. Only that member's own token
        may.
        """
        return self.role == "member" and self.member == member

    def may_see(self, member: str) -> bool:
        """Return whether the identity may see ``member`` and its status."""
        if self.role == "member":
            return self.member == member
        return self._covers(member)

    def may_steer(self, member: str) -> bool:
        """Return whether the identity may submit jobs to ``member`` and cancel them."""
        return self.role in ("controller", "admin") and self._covers(member)

    def may_resize(self, member: str) -> bool:
        """Return whether the identity may resize ``member``. A member may resize itself."""
        return self.may_be(member) or self.may_steer(member)

    def may_run(self, name: str) -> bool:
        """Return whether the identity may start a run with this tag. :attr:`owner` says who owns
        the run.
        """
        return self.role in ("controller", "admin") and is_run_name(name)

    @property
    def owner(self) -> str:
        """The owner of the runs that this identity starts. No other owner may use these runs."""
        return self.namespace

    def _covers(self, member: str) -> bool:
        return self.role == "admin" or member.startswith(f"{self.namespace}/")


class Unauthenticated(EnsembleError):
    """The credential is missing, wrong, removed or expired."""
