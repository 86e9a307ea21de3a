"""Authorisation: roles, what each may do, and the names of members.

``tokens`` finds the identity that a call's credential stands for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ensemble_core import EnsembleError, UsageError

__all__ = [
    "Identity",
    "Role",
    "Unauthenticated",
    "is_tag",
    "member_name",
    "namespace_name",
    "shown",
]

Role = Literal["member", "controller", "viewer", "admin"]

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def namespace_name(text: str) -> str:
    """A namespace as it may be written, or :class:`UsageError`: a label of RFC 1123."""
    return _label(text, "namespace", text)


def member_name(text: str) -> str:
    """A member's name in full, ``NAMESPACE/NAME``; ``NAME`` alone is in ``default``.

    Raises :class:`UsageError` for a part that is no label of RFC 1123, and for too many parts.
    """
    namespace, slash, name = text.partition("/")
    if not slash:
        namespace, name = "default", text
    if "/" in name:
        raise UsageError(
            f"{shown(text)} is not the name of a member",
            cause="it has more than one slash",
            hint="a member is NAMESPACE/NAME, or NAME for one in 'default'",
            code="bad-member",
        )
    return f"{_label(namespace, 'member', text)}/{_label(name, 'member', text)}"


def is_tag(text: str) -> bool:
    """True if a text can be a run's tag; members name a folder by it."""
    return _TAG.fullmatch(text) is not None


def _label(part: str, what: str, whole: str) -> str:
    if _LABEL.fullmatch(part):
        return part
    if not part:
        cause = "a part of it is empty" if whole else "it is empty"
    elif len(part) > 63:
        cause = f"a part of it has {len(part)} characters, and 63 are the most"
    else:
        cause = "only a-z, 0-9 and '-' may be in it, and '-' neither first nor last"
    raise UsageError(
        f"{shown(whole)} is not the name of a {what}",
        cause=cause,
        hint="a member is NAMESPACE/NAME, or NAME for one in 'default'"
        if what == "member"
        else "for example: default",
        code=f"bad-{what}",
    )


def shown(text: str) -> str:
    """Text of a caller as an error shows it: quoted, and not too long."""
    return repr(text if len(text) <= 140 else text[:137] + "...")


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a call comes from, and what that may do.

    ``namespace`` is empty for an admin, who may do all but be a member; ``member`` is the full name
    of the one member that a member's credential stands for. ``id`` names the token in logs.
    """

    role: Role
    namespace: str
    member: str | None = None
    id: str = ""

    def __str__(self) -> str:
        whom = self.member or self.namespace
        return f"{self.role} {whom}" if whom else self.role

    def may_be(self, member: str) -> bool:
        """True if it may connect as ``member``: only with that member's own token."""
        return self.role == "member" and self.member == member

    def may_see(self, member: str) -> bool:
        """True if it may know of ``member`` and how it stands."""
        if self.role == "member":
            return self.member == member
        return self._covers(member)

    def may_steer(self, member: str) -> bool:
        """True if it may submit jobs to ``member`` and cancel them."""
        return self.role in ("controller", "admin") and self._covers(member)

    def may_resize(self, member: str) -> bool:
        """True if it may ask for more or fewer nodes of ``member``; a member may of itself."""
        return self.may_be(member) or self.may_steer(member)

    def may_run(self, tag: str) -> bool:
        """True if it may begin a run of this tag. Whose the run is, :attr:`owner` says."""
        return self.role in ("controller", "admin") and is_tag(tag)

    @property
    def owner(self) -> str:
        """The owner under which runs of this identity are filed: nobody else may touch them."""
        return self.namespace

    def _covers(self, member: str) -> bool:
        return self.role == "admin" or member.startswith(f"{self.namespace}/")


class Unauthenticated(EnsembleError):
    """A credential that stands for nobody: missing, wrong, removed or expired."""
